"""Verbs of a model's code: what the planner sees in it, the script that a plan becomes, and whether that is right."""
