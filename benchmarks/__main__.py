"""``python -m benchmarks [NAME ...]``: list the registered benchmarks and run them, or those that are named."""

from __future__ import annotations

import sys
from collections.abc import Sequence
from importlib import import_module

from benchmarks import BENCHMARKS


def main(argv: Sequence[str]) -> int:
    """Run the benchmarks named in ``argv``, or all; return the first exit code that is not 0."""
    unknown = [name for name in argv if name not in BENCHMARKS]
    if unknown:
        print(f"no such benchmark: {', '.join(unknown)}; there are: {', '.join(BENCHMARKS) or 'none'}", file=sys.stderr)
        return 2
    if not BENCHMARKS:
        print("no benchmark is registered")
        return 0
    for name, shows in BENCHMARKS.items():
        print(f"{name}: {shows}", flush=True)
    exit_codes = [_run(name) for name in argv or BENCHMARKS]
    return next((code for code in exit_codes if code), 0)


def _run(name: str) -> int:
    print(f"\n== {name}", flush=True)
    exit_code: int = import_module(f"benchmarks.{name}").main([])
    return exit_code


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
