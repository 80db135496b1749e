"""An emitted plan on the hosts that it was made for: the place of every rank, and how all ranks are started.

    Files, seats -> Files       ranks.json with hosts, GPUs and NICs; launch.sh for every host; train.sbatch for Slurm;
                                ray_train.py for Ray Train

The ranks of a script are numbered as its mesh counts them, and torchrun numbers hosts by --node-rank and processes of a
host one after the other, however many these are. Where the ranks of every host follow one another, the order of hosts,
and which GPUs of each the ranks have, is all there is to say; else every process is told its rank before the script
begins. Slurm and Ray choose the order of hosts themselves, so that they start hosts that are alike only.
"""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from types import MappingProxyType
from typing import Any

from meshwright.backends.results import Files, Seat
from meshwright.backends.torch_.emit.write.files import LAUNCH, RANKS
from meshwright.backends.torch_.emit.write.needed import CHECK

SLURM, RAY = "train.sbatch", "ray_train.py"
INTERFACE = """\
# gloo would take the interface of this host's own name; the ranks meet on the one that leads to host 0.
if [ -z "$GLOO_SOCKET_IFNAME" ] && command -v ip >/dev/null; then
    head=$(getent ahosts "${HEAD:?}" | awk '{ print $1; exit }')
    GLOO_SOCKET_IFNAME=$(ip -o addr show to "$head" | awk '{ print $2; exit }')
    [ -n "$GLOO_SOCKET_IFNAME" ] \\
        || GLOO_SOCKET_IFNAME=$(ip -o route get "$head" | sed -n 's/.* dev \\([^ ]*\\).*/\\1/p')
    export GLOO_SOCKET_IFNAME
fi"""
AS_PLANNED = """\
--no-python sh -c '
        RANK=$(echo "$ranks" | cut -d , -f $((LOCAL_RANK + 1)))
        export RANK
        exec "${PYTHON:-python3}" train.py "$@"' sh "$@\""""
"""torchrun numbers the processes of a host one after the other; each takes the rank that the plan gives it."""
RAY_TRAIN = '''\
"""Start train.py by Ray Train, from a folder that all hosts have: python {name} --steps 10"""

import sys
from pathlib import Path
from typing import Any

import ray
from ray.train import ScalingConfig
from ray.train.torch import TorchTrainer

RANKS = {ranks}
HERE = str(Path(__file__).resolve().parent)
ENVIRONMENT: dict[str, str] = {{{environment}}}


def work(config: dict[str, Any]) -> None:
    sys.path.insert(0, HERE)
    import train

    sys.argv = ["train.py", *config["arguments"]]
    train.main()


if __name__ == "__main__":
    ray.init(runtime_env={{"env_vars": ENVIRONMENT}})
    # Ray fills one host after the other, and numbers ranks so; which host comes first is its choice.
    scaling = ScalingConfig(num_workers=RANKS, use_gpu={gpus}, placement_strategy="PACK")
    TorchTrainer(work, train_loop_config={{"arguments": sys.argv[1:]}}, scaling_config=scaling).fit()
'''


VARIABLES: Mapping[str, tuple[tuple[str, str, str], ...]] = MappingProxyType(
    {
        "infiniband": (
            (
                "NCCL_CROSS_NIC",
                "0",
                "GPUs of one number talk over the adapters of that number: rails are apart",
            ),
        ),
        "roce": (
            (
                "NCCL_CROSS_NIC",
                "0",
                "GPUs of one number talk over the adapters of that number: rails are apart",
            ),
            ("NCCL_IB_GID_INDEX", "3", "RoCE v2, which is routed; the usual index of it"),
        ),
        "ethernet": (("NCCL_IB_DISABLE", "1", "the plan's links are sockets: no search for InfiniBand"),),
    }
)
"""What NCCL is told for a network, and why. What stands in the environment already is left."""
ALWAYS = (
    (
        "PYTORCH_CUDA_ALLOC_CONF",
        "expandable_segments:True",
        "the plan leaves a few percent for fragments; without this there are more",
    ),
    ("TORCH_NCCL_ASYNC_ERROR_HANDLING", "1", "a rank that fails ends the others, instead of leaving them to wait"),
)


@dataclass(frozen=True, slots=True)
class Host:
    """A host of the cluster, its ranks, and the devices that these have."""

    number: int
    ranks: tuple[int, ...]
    gpus: tuple[int, ...]

    @property
    def in_order(self) -> bool:
        """Whether the host's ranks have its first GPUs, in order."""
        return self.gpus == tuple(range(len(self.gpus)))


def on_several(files: Files) -> bool:
    """Whether files are started on more hosts than one."""
    return "NODE_RANK" in dict(files.texts)[LAUNCH]


def on_hosts(files: Files, seats: Sequence[Seat], *, gpus: bool = True) -> Files:
    """The files of a plan, with the places of its ranks; `gpus`: these are GPUs, and no processes that have none.
    `seats` are those of the cluster's ranks."""
    texts = dict(files.texts)
    rows: list[dict[str, Any]] = json.loads(texts[RANKS])
    placed = [seats[row["cluster_rank"]] for row in rows]
    hosts = _hosts(placed)
    if not gpus:
        hosts = [replace(host, gpus=tuple(range(len(host.gpus)))) for host in hosts]
    for row, seat in zip(rows, placed, strict=True):
        row.update(
            {"host": seat.host} | ({"gpu": seat.gpu} if gpus else {}) | ({"nic": seat.nic} if seat.nic >= 0 else {})
        )
    lines = ",\n".join(f"  {json.dumps(row)}" for row in rows)
    networks = {seat.network for seat in placed} if len(hosts) > 1 else set()
    network = networks.pop() if len(networks) == 1 else ""
    texts[RANKS] = f"[\n{lines}\n]\n"
    texts[LAUNCH] = "\n".join(_launch(hosts, network, gpus=gpus)) + "\n"
    if _alike(hosts):
        texts[RAY] = _ray(len(placed), network, gpus=gpus)
        if len(hosts) > 1:
            texts[SLURM] = "\n".join(_slurm(hosts, gpus=gpus)) + "\n"
    return Files(tuple(texts.items()))


def _hosts(placed: Sequence[Seat]) -> list[Host]:
    """The hosts in the order of their first ranks."""
    ranks: dict[int, list[int]] = {}
    for rank, seat in enumerate(placed):
        ranks.setdefault(seat.host, []).append(rank)
    return [Host(number, tuple(own), tuple(placed[rank].gpu for rank in own)) for number, own in ranks.items()]


def _numbered_on(hosts: Sequence[Host]) -> bool:
    """Whether torchrun numbers ranks as the plan does: host after host."""
    numbered = [rank for host in hosts for rank in host.ranks]
    return numbered == sorted(numbered)


def _alike(hosts: Sequence[Host]) -> bool:
    """Whether hosts differ only by their place: as many ranks on each, on its first GPUs, numbered host after host."""
    return _numbered_on(hosts) and all(one.in_order and len(one.gpus) == len(hosts[0].gpus) for one in hosts)


def _launch(hosts: Sequence[Host], network: str, *, gpus: bool) -> Iterator[str]:
    ranks = sum(len(one.gpus) for one in hosts)
    yield "#!/bin/sh"
    if len(hosts) == 1:
        what = "GPUs" if gpus else "ranks"
        yield f"# Start train.py on {ranks} {what} of this host. Arguments are handed on: ./launch.sh --steps 10"
    else:
        yield f"# Start this host's ranks of train.py, which has {ranks}. On every host, with its number:"
        yield f"#   HEAD=<address of host 0> NODE_RANK=<0 to {len(hosts) - 1}> ./launch.sh --steps 10"
        numbers = [one.number for one in hosts]
        if numbers != sorted(numbers) or not _alike(hosts):
            yield f"# Hosts of the planned cluster in the order of NODE_RANK: {' '.join(map(str, numbers))}"
    yield 'cd "$(dirname "$0")" || exit 1'
    yield from CHECK.splitlines()
    yield from _each(hosts)
    if gpus:
        yield "found=$(nvidia-smi -L | wc -l)"
        yield 'if [ "$found" -lt "$each" ]; then'
        yield '    echo "ranks.json has $each ranks on this host, which has $found GPUs: plan for such hosts" >&2'
        yield "    exit 1"
        yield "fi"
    elif len(hosts) > 1:
        yield from INTERFACE.splitlines()
    for name, value, why in _told(network, gpus=gpus):
        yield f"# {why[0].upper()}{why[1:]}."
        yield f'export {name}="${{{name}:-{value}}}"'
    yield "# Ranks share the cores of a host; torchrun would give each one."
    yield 'export OMP_NUM_THREADS="${OMP_NUM_THREADS:-$(( ($(nproc) + each - 1) / each ))}"'
    yield 'exec "${PYTHON:-python3}" -m torch.distributed.run \\'
    if len(hosts) == 1:
        yield '    --standalone --nproc-per-node "$each" train.py "$@"'
    else:
        script = 'train.py "$@"' if _numbered_on(hosts) else AS_PLANNED
        yield f'    --nnodes {len(hosts)} --node-rank "${{NODE_RANK:?}}" --nproc-per-node "$each" \\'
        yield f'    --master-addr "${{HEAD:?}}" --master-port "${{PORT:-29500}}" {script}'


def _told(network: str, *, gpus: bool) -> tuple[tuple[str, str, str], ...]:
    """Variables of the environment; those of NCCL and CUDA say nothing to processors."""
    return (*VARIABLES.get(network, ()), *ALWAYS) if gpus else ()


def _each(hosts: Sequence[Host]) -> Iterator[str]:
    """The number of ranks of a host, their GPUs if these are not the first ones in order, and which ranks they are if
    torchrun numbers them otherwise."""
    chosen, scattered = not all(host.in_order for host in hosts), not _numbered_on(hosts)

    def told(host: Host) -> str:
        gpus = f" gpus={','.join(map(str, host.gpus))}" if chosen else ""
        ranks = f" ranks={','.join(map(str, host.ranks))}" if scattered else ""
        return f"each={len(host.gpus)}{gpus}{ranks}"

    if _alike(hosts) or len(hosts) == 1:
        yield told(hosts[0])
    else:
        yield 'case "${NODE_RANK:?}" in'
        yield from (f"    {number}) {told(host)} ;;" for number, host in enumerate(hosts))
        yield f'    *) echo "NODE_RANK is $NODE_RANK, and there are hosts 0 to {len(hosts) - 1}" >&2; exit 1 ;;'
        yield "esac"
    if chosen:
        yield "# The plan chose which GPU each rank has."
        yield 'export CUDA_VISIBLE_DEVICES="$gpus"'
    if scattered:
        yield "# The plan's ranks of a host do not follow one another, as torchrun would number them."
        yield "export ranks"


def _ray(ranks: int, network: str, *, gpus: bool) -> str:
    told = _told(network, gpus=gpus)
    environment = "".join(f'\n    # {why}\n    "{name}": "{value}",' for name, value, why in told)
    return RAY_TRAIN.format(name=RAY, ranks=ranks, gpus=gpus, environment=f"{environment}\n")


def _slurm(hosts: Sequence[Host], *, gpus: bool) -> Iterator[str]:
    each = len(hosts[0].gpus)
    yield "#!/bin/bash"
    yield f"# Start train.py under Slurm: sbatch {SLURM} --steps 10"
    yield "#SBATCH --job-name=train"
    yield f"#SBATCH --nodes={len(hosts)}"
    yield "#SBATCH --ntasks-per-node=1"
    if gpus:
        yield f"#SBATCH --gpus-per-node={each}"
    yield "#SBATCH --exclusive"
    yield 'cd "$SLURM_SUBMIT_DIR" || exit 1'
    yield 'HEAD=$(scontrol show hostnames "$SLURM_JOB_NODELIST" | head -n 1)'
    yield "export HEAD"
    yield "# One task on each host starts its ranks; Slurm numbers the hosts as torchrun wants them."
    yield 'srun sh -c \'NODE_RANK=$SLURM_NODEID exec ./launch.sh "$@"\' sh "$@"'
