"""The search for a plan, its explanation, and the command line."""
