"""The launch script and the rank map of an emitted plan."""

from __future__ import annotations

import json

from meshwright.backends.subject import Subject
from meshwright.backends.torch_.emit.write.needed import CHECK

LAUNCH = """\
#!/bin/sh
# Start train.py on {ranks} ranks of this machine. Arguments are handed on: ./launch.sh --steps 10
cd "$(dirname "$0")" || exit 1
{check}# One thread per rank: ranks share the cores of the machine.
OMP_NUM_THREADS="${{OMP_NUM_THREADS:-1}}" exec "${{PYTHON:-python3}}" -m torch.distributed.run \\
    --standalone --nproc-per-node {ranks} train.py "$@"
"""


def launch_script(subject: Subject) -> str:
    """The text of launch.sh."""
    return LAUNCH.format(ranks=subject.ranks, check=CHECK)


def rank_map(subject: Subject) -> str:
    """The text of ranks.json: the place of every rank of the script on the mesh, and its rank of the planned
    cluster."""
    stages = subject.decisions.stages
    rows: list[dict[str, object]] = []
    for ranks in subject.decisions.groups:
        held = [index for index, stage in enumerate(stages) if stage.ranks == ranks]
        rows += [
            {
                "rank": len(rows) + rank,
                "cluster_rank": planned,
                "stages": held,
                "mesh": stages[held[0]].mesh.coordinates(rank),
            }
            for rank, planned in enumerate(ranks)
        ]
    lines = ",\n".join(f"  {json.dumps(row)}" for row in rows)
    return f"[\n{lines}\n]\n"
