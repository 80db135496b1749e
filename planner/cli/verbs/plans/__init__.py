"""Verbs that answer questions about plans: find one, price one, explain it, compare it with another or with a run."""
