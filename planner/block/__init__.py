"""The block builder."""
