"""The version of torch that emitted scripts need, checked before one of them fails where torch lacks a function."""

from __future__ import annotations

from importlib.metadata import PackageNotFoundError, version

from meshwright.ir.errors import DependencyMissing

OLDEST = (2, 11)
"""The oldest torch that has all that scripts use: the tests run with it and with the newest."""
SAID = ".".join(map(str, OLDEST))

CHECK = f"""\
"${{PYTHON:-python3}}" -c '
import sys
from importlib.metadata import version
found = version("torch")
if [int(part) for part in found.split(".")[:2]] < {list(OLDEST)}:
    sys.exit(f"train.py needs torch {SAID} or newer, and this is {{found}}: pip install --upgrade torch")
' || exit 8
"""
"""What launch scripts ask of the Python that they start."""


def check_torch() -> None:
    """Refuse a torch that scripts cannot be run with."""
    try:
        found = version("torch")
    except PackageNotFoundError:
        found = "missing"
    if found == "missing" or tuple(int(part) for part in found.split(".")[:2]) < OLDEST:
        raise DependencyMissing(
            place="torch",
            cause=f"emitted scripts need {SAID} or newer, and it is {found}",
            fix=f"pip install 'torch>={SAID}'",
        )
