"""Verbs of machines: clusters, measurements, and the profiles that are kept of them."""
