"""Clusters and profiles as a person reads them."""
