"""Plans, prices and comparisons as a person reads them."""
