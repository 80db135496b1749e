"""Ctrl-C and SIGTERM: the command ends, with 128 + the signal's number, wherever they find it.

Python raises KeyboardInterrupt where the signal finds it, and that may be lost: in a callback of a library, in a
`__del__`, in code that catches everything. So the signal is noted as well. What it raises unwinds as usual; if the
process is still there `PATIENCE_S` later, it is ended. Whatever happens then, the exit code says that it was
interrupted. Processes that it started end with it (`meshwright.ir.processes`).
"""

from __future__ import annotations

import os
import signal
import sys
import threading
import time
from collections.abc import Callable
from types import FrameType, TracebackType
from typing import Any

PATIENCE_S = 2.0
"""For what unwinds: processes that are ended, folders that are removed."""

SIGNALS = (signal.SIGINT, signal.SIGTERM)


class Interrupts:
    """A context in which signals end the command. Must: be entered on the main thread, else nothing is watched.

    `number` is the signal that came, or 0.
    """

    def __init__(self, exit_now: Callable[[int], Any] = os._exit) -> None:
        self.number, self.over = 0, False
        self.exit_now = exit_now
        self.before: dict[int, Any] = {}
        self.unraisable = sys.unraisablehook

    def __enter__(self) -> Interrupts:
        if threading.current_thread() is threading.main_thread():
            self.before = {one: signal.signal(one, self.noted) for one in SIGNALS}
            sys.unraisablehook = self.quiet
        return self

    def __exit__(self, *_: type[BaseException] | BaseException | TracebackType | None) -> None:
        self.over = True
        for one, handler in self.before.items():
            signal.signal(one, handler)
        sys.unraisablehook = self.unraisable

    def noted(self, number: int, _: FrameType | None) -> None:
        """Handle a signal."""
        if not self.number:
            self.number = number
            threading.Thread(target=self.patient, daemon=True).start()
        raise KeyboardInterrupt

    def patient(self) -> None:
        """End the command, some time later, if it has not ended by itself."""
        time.sleep(PATIENCE_S)
        if not self.over:
            self.exit_now(128 + self.number)

    def quiet(self, lost: Any) -> None:
        """Report exceptions that Python cannot raise, except interrupts, which are noted."""
        if not (self.number and issubclass(lost.exc_type, KeyboardInterrupt)):
            self.unraisable(lost)

    def exit_code(self, code: int) -> int:
        """The exit code of the command."""
        return 128 + self.number if self.number else code
