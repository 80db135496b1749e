"""The launch script and the rank map of an emitted plan."""

from __future__ import annotations

import json

from meshwright.backends.torch_.emit.subject import Subject

LAUNCH = """\
#!/bin/sh
# Start train.py on {ranks} ranks of this machine. Arguments are handed on: ./launch.sh --steps 10
cd "$(dirname "$0")" || exit 1
# One thread per rank: ranks share the cores of the machine.
OMP_NUM_THREADS="${{OMP_NUM_THREADS:-1}}" exec "${{PYTHON:-python3}}" -m torch.distributed.run \\
    --standalone --nproc-per-node {ranks} train.py "$@"
"""


def launch_script(subject: Subject) -> str:
    """launch.sh."""
    return LAUNCH.format(ranks=subject.mesh.size)


def rank_map(subject: Subject) -> str:
    """ranks.json: where every rank of the script stands on the mesh, and which rank of the planned cluster it is."""
    mesh, planned = subject.mesh, subject.decisions.stages[0].ranks
    rows = [
        {"rank": rank, "cluster_rank": planned[rank], "stage": 0, "mesh": mesh.coordinates(rank)}
        for rank in range(mesh.size)
    ]
    lines = ",\n".join(f"  {json.dumps(row)}" for row in rows)
    return f"[\n{lines}\n]\n"
