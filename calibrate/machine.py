"""Which machine this is, and whether it is idle enough to be measured."""

from __future__ import annotations

import os
import platform
import time
from pathlib import Path

from meshwright.cost_models.measured.measured import Identity
from meshwright.ir.errors import MachineBusy

WATCHED_S, MOST_BUSY = 1.0, 0.1
"""How long the processors are watched before, and the share of them that others may have."""


def identity(device: str, libraries: tuple[tuple[str, str], ...], threads: int) -> Identity:
    """The machine that this process runs on."""
    return Identity(
        device=device,
        processor=_processor(),
        driver="",
        libraries=libraries,
        cores=len(os.sched_getaffinity(0)),
        threads=threads,
    )


def _processor() -> str:
    """What the processor calls itself; its architecture where it does not say."""
    info = Path("/proc/cpuinfo")
    lines = info.read_text(encoding="utf-8", errors="replace").splitlines() if info.exists() else []
    named = (line.partition(":")[2].strip() for line in lines if line.startswith("model name"))
    return next(named, "") or platform.machine() or "unknown"


def launched() -> bool:
    """Whether a launcher started this process as one of several ranks."""
    return "RANK" in os.environ


def leading() -> bool:
    """Whether this process asks and writes: of ranks that a launcher started, the first."""
    return os.environ.get("RANK", "0") == "0"


def hosts_started() -> int:
    """The hosts on which a launcher started ranks, as many on each; 1 without a launcher."""
    ranks = int(os.environ.get("WORLD_SIZE", "1"))
    return max(1, ranks // int(os.environ.get("LOCAL_WORLD_SIZE", ranks)))


def busy_share(watched_s: float = WATCHED_S) -> float:
    """The share of all processors' time that anything takes; 0 where the system does not say."""
    before = _ticks()
    time.sleep(watched_s)
    after = _ticks()
    passed = sum(after) - sum(before)
    idle = sum(after[3:5]) - sum(before[3:5])  # idle, iowait
    return 1 - idle / passed if passed > 0 else 0.0


def _ticks() -> list[int]:
    """The first line of /proc/stat: user, nice, system, idle, iowait, … of all processors, since the start."""
    stat = Path("/proc/stat")
    return [int(word) for word in stat.read_text().splitlines()[0].split()[1:]] if stat.exists() else [0] * 8


def check_idle(*, force: bool) -> bool:
    """Whether something else is running; refused unless it is to be measured nevertheless."""
    share = busy_share()
    if share > MOST_BUSY and not force:
        raise MachineBusy(
            place="plan calibrate",
            cause=f"{share:.0%} of the processors are busy with something else",
            fix="end that, or measure nevertheless with --force, which the profile will say",
        )
    return share > MOST_BUSY
