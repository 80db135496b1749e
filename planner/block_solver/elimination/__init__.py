"""Exact elimination: the optimum by two sweeps of min-plus elimination, and where limits bind, prices and labels."""
