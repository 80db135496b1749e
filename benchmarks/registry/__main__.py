"""``python -m benchmarks.registry``."""

from __future__ import annotations

import sys

from benchmarks.registry import main

if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
