"""Measurements on the target, and the profiles that are fitted to them."""
