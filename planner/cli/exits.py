"""Exit codes of the command line beyond 0; those of refusals stand with their errors (`ir.errors`)."""

INTERNAL = 1
NOTHING_FITS = 3
GAP_TOO_WIDE = 4
"""More is left unproved than --max-gap allows."""
MISMATCH = 7
"""What ran is not what was planned."""
INTERRUPTED = 130
READER_GONE = 141
"""Whoever reads our output has gone."""
