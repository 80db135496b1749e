"""Processes that end when their parent does, however that ends, and that collect garbage rarely.

A process that is killed tells nobody, so its children must notice by themselves: Linux sends them a signal
(PR_SET_PDEATHSIG, prctl(2)); elsewhere a thread looks for another parent now and then.
"""

from __future__ import annotations

import ctypes
import gc
import os
import resource
import signal
import sys
import threading
import time
from pathlib import Path

_PR_SET_PDEATHSIG = 1
_LOOK_EVERY_S = 0.5

THRESHOLDS = (100_000, 20, 100)
"""Frameworks are imported by making a million objects that stay, and a search makes millions of small values that go by
themselves; at Python's usual thresholds collections took a tenth of the time of a command, and an eighth of planning
and lowering on forked processes (Llama-3.1-8B, 2026-11)."""


def end_with(parent: int) -> None:
    """Have this process killed when its parent ends; at once, if it has ended.

    `parent` is the parent's own process number: by the time it is asked for here, another one may have taken over.
    Signals of Linux do not pass on to what this process forks.
    """
    if sys.platform == "linux":
        ctypes.CDLL(None, use_errno=True).prctl(_PR_SET_PDEATHSIG, signal.SIGKILL, 0, 0, 0)
    else:
        threading.Thread(target=_watch, args=(parent,), daemon=True).start()
    if os.getppid() != parent:
        os._exit(1)


def peak_memory() -> int:
    """The most bytes that this process held at once.

    `ru_maxrss` begins with what the parent held when it started this process, so that a small process of a large one
    seems large; /proc of Linux counts anew.
    """
    status = Path("/proc/self/status")
    lines = status.read_text().splitlines() if status.exists() else []
    found = next((line.split() for line in lines if line.startswith("VmHWM:")), None)
    if found is not None:
        return int(found[1]) * 1024
    unit = 1 if sys.platform == "darwin" else 1024  # of ru_maxrss: bytes there, KiB elsewhere
    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * unit


def _watch(parent: int) -> None:
    while os.getppid() == parent:
        time.sleep(_LOOK_EVERY_S)
    os._exit(1)


def collect_rarely() -> None:
    """Collect garbage by these thresholds from now on."""
    gc.set_threshold(*THRESHOLDS)
