"""Profiles that are kept for the machine: written by `plan calibrate`, and found again by what the machine is.

A profile prices by itself only where the machine is the one that was measured, to the version of its libraries: its
file is called after a digest of its `Identity`.
"""

from __future__ import annotations

import hashlib
import os
from pathlib import Path

from meshwright.backends.door import MEASURED, measurer
from meshwright.calibrate.machine import identity
from meshwright.cost_models.measured.file import FORMAT_VERSION
from meshwright.cost_models.measured.measured import Identity
from meshwright.ir.target.capabilities import PROCESSOR

VARIABLE = "MESHWRIGHT_PROFILES"
"""The environment variable that names another folder."""
DIGITS = 12
"""Of a digest in a file's name."""


def folder() -> Path:
    """Where this user's profiles are."""
    cache = os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache"
    return Path(os.environ.get(VARIABLE) or Path(cache) / "meshwright" / "profiles")


def path_of(of: Identity) -> Path:
    """The file of a machine's profile; of another release's form it has another name."""
    digest = hashlib.sha256(repr((FORMAT_VERSION, of)).encode()).hexdigest()[:DIGITS]
    return folder() / f"{of.device}-{of.cores}-cores-{digest}.json"


def this_machine(target: str, threads: int = 1) -> Identity:
    """This machine, as ranks of a local target use it."""
    return identity(PROCESSOR, measurer(target).libraries(), threads)


def kept_for(devices: tuple[str, ...]) -> Path | None:
    """The profile of this machine, where one is kept and some ranks are such as it has."""
    if PROCESSOR not in devices:
        return None
    return next((path for path in (path_of(this_machine(target)) for target in MEASURED) if path.is_file()), None)


def unlike(of: Identity) -> str:
    """In what a profile's machine is another than this one; empty where it is this one, or of devices that are not
    asked here."""
    if of.device != PROCESSOR:
        return ""
    own = [this_machine(target, of.threads) for target in MEASURED]
    return "" if of in own else f"this machine is {own[0]}"
