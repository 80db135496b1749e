"""``python -m meshwright`` is ``plan``."""

from __future__ import annotations

import signal
import sys

from meshwright.planner.cli.interrupts import Interrupts


def main() -> int:
    """Run the command line of this process; signals end it from its first import to its last."""
    with Interrupts() as interrupts:
        try:
            from meshwright.planner.cli.main import main as run

            code = run()
        except KeyboardInterrupt:
            code = 0
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # all is said; Python only ends
    return interrupts.exit_code(code)


if __name__ == "__main__":
    sys.exit(main())
