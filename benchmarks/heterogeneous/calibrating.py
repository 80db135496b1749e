"""A topology's profile: `plan calibrate` under torchrun on its hosts, where compute is slept and links are shaped.

A profile is of one device, so all ranks are of full speed here. What others compute is priced by their declared rates
beside the measured one.
"""

from __future__ import annotations

import sys
from collections.abc import Sequence
from pathlib import Path

from benchmarks.heterogeneous.running import printed_by
from benchmarks.heterogeneous.topologies import FLOPS_PER_S
from benchmarks.testbed.hosts import Host
from benchmarks.testbed.sleeping import AHEAD

PORT, LIMIT_S = 29600, 900.0


def calibrated(hosts: Sequence[Host], model: Sequence[str], out: Path) -> Path:
    """Write the profile of a topology; `model` and its batch are words of the command line."""
    launch = ["env", f"{AHEAD}=0", sys.executable, "-m", "torch.distributed.run", "--nproc-per-node", "1"]
    launch += ["--nnodes", str(len(hosts)), "--master-addr", hosts[0].address, "--master-port", str(PORT)]
    asked = ["-m", "meshwright", "calibrate", "--ranks", "1", "--quick", "--force", "--out", str(out), "--for", *model]
    commands = [[*launch, "--node-rank", str(number), *asked] for number in range(len(hosts))]
    printed_by(hosts, commands, [FLOPS_PER_S] * len(hosts), LIMIT_S)
    return out
