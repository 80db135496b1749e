"""The block solver: one contract (`problem`), three implementations that must agree."""
