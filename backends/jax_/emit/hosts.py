"""What starts a script on several hosts: one process on each, which has all devices of that host."""

from __future__ import annotations

from dataclasses import replace

from meshwright.backends.results import Files

LAUNCH = "launch.sh"
TEXT = """\
#!/bin/sh
# On each of HOSTS hosts: ./launch.sh NUMBER ADDRESS --steps 10, with its number from 0, and the address of host 0.
# Where JAX finds out both by itself (Slurm, TPU pods), HOSTS=HOSTS python train.py is enough.
set -eu
if [ $# -lt 2 ]; then sed -n 2,3p "$0" >&2; exit 2; fi
export HOSTS=HOSTS HOST="$1" COORDINATOR="$2:${PORT:-8476}"
shift 2
exec python "$(dirname "$0")/train.py" "$@"
"""


def with_hosts(files: Files, hosts: int) -> Files:
    """The files of a plan for so many hosts."""
    if hosts <= 1:
        return files
    text = TEXT.replace("of HOSTS hosts", f"of {hosts} hosts").replace("HOSTS=HOSTS", f"HOSTS={hosts}")
    return replace(files, texts=(*files.texts, (LAUNCH, text)), start=LAUNCH)
