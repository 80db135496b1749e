"""Files of plans for hosts with GPUs: the rank map, and what starts the ranks."""

from __future__ import annotations

import json
import os
import re
import socket
import subprocess
import sys
from collections import Counter
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from meshwright.backends.results import Files, Seat
from meshwright.backends.torch_ import door
from meshwright.backends.torch_.emit.write.hosts import on_hosts, on_several
from meshwright.cost_models.hardware.text import read_cluster
from meshwright.planner.cli.verbs.code.emit import seats

ROOT = Path(__file__).parents[3]
PYTHON = f"""#!/bin/sh
[ "$1" = -c ] && exec {sys.executable} -c "import importlib.metadata as m; m.version = lambda _: '$TORCH'
$2"
echo "$@"
"""
"""It says that it has the torch that it is told, and tells what else it is asked to run."""


def files(order: list[int]) -> Files:
    rows = [{"rank": rank, "cluster_rank": planned} for rank, planned in enumerate(order)]
    return Files((("train.py", ""), ("launch.sh", ""), ("ranks.json", json.dumps(rows))))


def started(made: Files, folder: Path, **environment: str) -> subprocess.CompletedProcess[str]:
    """What the launch script starts, on a host with two GPUs."""
    made.write(folder)
    (folder / "nvidia-smi").write_text("#!/bin/sh\necho GPU 0\necho GPU 1\n")
    (folder / "nvidia-smi").chmod(0o755)
    (folder / "python").write_text(PYTHON)
    (folder / "python").chmod(0o755)
    path = f"{folder}:{os.environ['PATH']}"
    return subprocess.run(
        [folder / "launch.sh", "--steps", "3"],
        env={"PATH": path, "TORCH": "2.11.0+cpu", "PYTHON": "python", **environment},
        capture_output=True,
        text=True,
        check=False,
    )


def test_ranks_are_mapped_to_hosts_gpus_and_adapters() -> None:
    found = seats(read_cluster("2x8xH100"))
    assert found[11] == Seat(host=1, device="H100-80G", gpu=3, nic=3, network="infiniband")
    made = dict(on_hosts(files([2, 3, 0, 1]), seats(read_cluster("2x2xH100"))).texts)
    rows = json.loads(made["ranks.json"])
    assert [(row["host"], row["gpu"], row["nic"]) for row in rows] == [(1, 0, 0), (1, 1, 1), (0, 0, 0), (0, 1, 1)]
    assert "in the order of NODE_RANK: 1 0" in made["launch.sh"]


def test_every_host_starts_its_own_ranks(tmp_path: Path) -> None:
    made = on_hosts(files([0, 1, 2, 3]), seats(read_cluster("2x2xH100")))
    done = started(made, tmp_path, HEAD="a", NODE_RANK="1")
    assert done.stdout.split() == [
        "-m",
        "torch.distributed.run",
        "--nnodes",
        "2",
        "--node-rank",
        "1",
        "--nproc-per-node",
        "2",
        "--master-addr",
        "a",
        "--master-port",
        "29500",
        "train.py",
        "--steps",
        "3",
    ]
    assert "NODE_RANK" in started(made, tmp_path, HEAD="a").stderr
    assert 'export NCCL_CROSS_NIC="${NCCL_CROSS_NIC:-0}"' in dict(made.texts)["launch.sh"]


def test_hosts_may_have_unlike_numbers_of_gpus(tmp_path: Path) -> None:
    """torchrun numbers ranks host after host, however many each has. No file starts hosts in an order of its own."""
    cluster = read_cluster(str(ROOT / "examples" / "clusters" / "three_gpus.toml"))
    made = on_hosts(files([1, 2, 0]), seats(cluster))
    rows = json.loads(dict(made.texts)["ranks.json"])
    counts = Counter(row["host"] for row in rows)
    assert len(set(counts.values())) > 1
    for number, host in enumerate(counts):
        done = started(made, tmp_path, HEAD="a", NODE_RANK=str(number))
        assert f"--nnodes {len(counts)} --node-rank {number} --nproc-per-node {counts[host]} " in done.stdout
    assert "there are hosts 0 to 1" in started(made, tmp_path, HEAD="a", NODE_RANK="2").stderr
    assert set(dict(made.texts)) == {"train.py", "launch.sh", "ranks.json"}


def test_ranks_get_the_gpus_that_the_plan_chose(tmp_path: Path) -> None:
    made = on_hosts(files([1, 0]), seats(read_cluster("1x2xH100")))
    assert "each=2 gpus=1,0\n" in dict(made.texts)["launch.sh"]
    assert "--standalone --nproc-per-node 2 train.py --steps 3" in started(made, tmp_path).stdout


SAY = """\
import os, pathlib
rank, node, place, ranks = (os.environ[name] for name in ("RANK", "GROUP_RANK", "LOCAL_RANK", "WORLD_SIZE"))
gpus = os.environ["CUDA_VISIBLE_DEVICES"]
pathlib.Path(__file__).with_name(f"{rank} of {ranks} on {node}, GPU {gpus}[{place}]").touch()
import torch.distributed as dist
dist.init_process_group("gloo")
assert dist.get_rank() == int(rank)
dist.barrier()
"""


@pytest.mark.e2e
@pytest.mark.parametrize(
    ("seated_on", "found"),
    [
        (((0, 0), (0, 1), (1, 1)), {"0 of 3 on 0, GPU 0,1[0]", "1 of 3 on 0, GPU 0,1[1]", "2 of 3 on 1, GPU 1[0]"}),
        (((1, 0), (0, 1), (1, 1)), {"0 of 3 on 0, GPU 0,1[0]", "1 of 3 on 1, GPU 1[0]", "2 of 3 on 0, GPU 0,1[1]"}),
    ],
    ids=["host after host", "scattered"],
)
def test_every_rank_is_started_where_the_plan_has_it(
    seated_on: tuple[tuple[int, int], ...], found: set[str], tmp_path: Path
) -> None:
    """Two launch scripts stand for two hosts; all ranks join one group under the numbers that the plan gives them."""
    places = seated(*seated_on)
    made = on_hosts(files(list(range(len(places)))), places)
    texts = dict(made.texts) | {"train.py": SAY}
    Files(tuple(texts.items())).write(tmp_path)
    (tmp_path / "nvidia-smi").write_text("#!/bin/sh\necho GPU 0\necho GPU 1\n")
    (tmp_path / "nvidia-smi").chmod(0o755)
    assert any(_both_hosts(tmp_path) for _ in range(3))
    assert {path.name for path in tmp_path.iterdir() if " of " in path.name} == found


def _both_hosts(folder: Path) -> bool:
    """Start both hosts on this machine; not so if another program took the port that was free."""
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port = str(free.getsockname()[1])
    told = {"HEAD": "127.0.0.1", "PORT": port, "PYTHON": sys.executable, "OMP_NUM_THREADS": "1"}
    told["PATH"] = f"{folder}:{os.environ['PATH']}"
    hosts = [
        subprocess.Popen([folder / "launch.sh"], env=os.environ | told | {"NODE_RANK": node}) for node in ("0", "1")
    ]
    try:
        first = hosts[0].wait(timeout=120)
        return first == 0 and hosts[1].wait(timeout=120) == 0
    finally:
        for one in hosts:
            one.kill()
            one.wait()


def test_one_host_needs_no_address(tmp_path: Path) -> None:
    made = on_hosts(files([0, 1]), seats(read_cluster("1x2xH100")))
    assert "--standalone --nproc-per-node 2 train.py --steps 3" in started(made, tmp_path).stdout
    assert "train.sbatch" not in dict(made.texts)


def test_processors_of_several_hosts_meet_by_gloo(tmp_path: Path) -> None:
    """Nothing is asked of GPUs, and no variable of NCCL is set. On one host they are processes of this machine."""
    (tmp_path / "two.toml").write_text(
        '[[pool]]\nname = "a"\nhosts = 2\ngpu = "CPU"\ngpus_per_host = 2\n'
        'nics = [{ kind = "ethernet", gbps = 1, count = 1 }]\n'
    )
    places = seats(read_cluster(str(tmp_path / "two.toml")))
    made = on_hosts(files([0, 1, 2, 3]), places, gpus=False)
    done = started(made, tmp_path, HEAD="127.0.0.1", NODE_RANK="1")
    assert "--nnodes 2 --node-rank 1 --nproc-per-node 2 --master-addr 127.0.0.1" in done.stdout
    launch = dict(made.texts)["launch.sh"]
    assert "GLOO_SOCKET_IFNAME" in launch
    assert not any(word in launch for word in ("NCCL", "nvidia", "CUDA"))
    assert "gpus-per-node" not in dict(made.texts)["train.sbatch"]
    assert "use_gpu=False" in dict(made.texts)["ray_train.py"]
    assert set(json.loads(dict(made.texts)["ranks.json"])[0]) == {"cluster_rank", "host", "nic", "rank"}
    assert door.on_hosts("torch-gloo", places)
    assert not door.on_hosts("torch-gloo", seats(read_cluster("cpu:2")))
    assert not door.on_hosts("torch-gloo", seats(read_cluster("2x2xH100")))
    assert door.on_hosts("torch-cuda", seats(read_cluster("2x2xH100")))


def test_slurm_starts_one_task_on_each_host(tmp_path: Path) -> None:
    made = dict(on_hosts(files(list(range(16))), seats(read_cluster("2x8xH100"))).texts)
    assert {"#SBATCH --nodes=2", "#SBATCH --gpus-per-node=8"} <= set(made["train.sbatch"].splitlines())
    assert subprocess.run(["bash", "-n"], input=made["train.sbatch"], text=True, check=False).returncode == 0


RAY = """
import json, sys, types
def module(name, **names):
    sys.modules[name] = types.SimpleNamespace(**names)
class Trainer:
    def __init__(self, work, train_loop_config, scaling_config):
        self.fit = lambda: (print(json.dumps(scaling_config)), work(train_loop_config))
module("ray", init=lambda **asked: print(json.dumps(asked)))
module("ray.train", ScalingConfig=dict)
module("ray.train.torch", TorchTrainer=Trainer)
sys.argv = ["ray_train.py", "--steps", "3"]
exec(compile(open("ray_train.py").read(), "ray_train.py", "exec"), {"__name__": "__main__", "__file__": "ray_train.py"})
"""
"""Stands in for Ray: says what it is asked for, and runs the work of a rank."""


def test_ray_train_runs_the_same_script(tmp_path: Path) -> None:
    on_hosts(files(list(range(16))), seats(read_cluster("2x8xH100"))).write(tmp_path)
    (tmp_path / "train.py").write_text("import sys\ndef main():\n    print(*sys.argv)\n")
    done = subprocess.run(
        [sys.executable, "-c", RAY], cwd=tmp_path, capture_output=True, text=True, check=True, timeout=60
    )
    asked, scaling, ran = done.stdout.splitlines()
    assert json.loads(asked)["runtime_env"]["env_vars"]["NCCL_CROSS_NIC"] == "0"
    assert json.loads(scaling) == {"num_workers": 16, "use_gpu": True, "placement_strategy": "PACK"}
    assert ran == "train.py --steps 3"


def test_a_host_with_fewer_gpus_is_refused_where_it_starts(tmp_path: Path) -> None:
    done = started(on_hosts(files(list(range(4))), seats(read_cluster("1x4xH100"))), tmp_path)
    assert done.returncode == 1
    assert "4 ranks on this host, which has 2 GPUs" in done.stderr


def test_a_torch_that_is_too_old_is_refused_where_it_starts(tmp_path: Path) -> None:
    done = started(on_hosts(files([0, 1]), seats(read_cluster("1x2xH100"))), tmp_path, TORCH="2.9.1")
    assert done.returncode == 8
    assert "needs torch 2.11 or newer, and this is 2.9.1" in done.stderr
    assert not done.stdout


def seated(*places: tuple[int, int], nic: int = 0, networks: tuple[str, ...] = ("infiniband",) * 9) -> list[Seat]:
    """A rank of the cluster on each host and GPU."""
    return [Seat(host=host, device="H100-80G", gpu=gpu, nic=nic, network=networks[host]) for host, gpu in places]


COUNTED: dict[str, tuple[list[Seat], list[str]]] = {
    # which hosts have which GPUs, and what is said of ranks, hosts, GPUs and the network
    "one host": (seated((0, 0), (0, 1)), ["each=2"]),
    "one host, GPUs chosen": (seated((0, 1), (0, 3)), ["each=2 gpus=1,3", 'export CUDA_VISIBLE_DEVICES="$gpus"']),
    "three alike": (
        seated((0, 0), (0, 1), (1, 0), (1, 1), (2, 0), (2, 1)),
        [
            "# Start this host's ranks of train.py, which has 6. On every host, with its number:",
            "#   HEAD=<address of host 0> NODE_RANK=<0 to 2> ./launch.sh --steps 10",
            "each=2",
            "# GPUs of one number talk over the adapters of that number: rails are apart.",
            'export NCCL_CROSS_NIC="${NCCL_CROSS_NIC:-0}"',
            '    --nnodes 3 --node-rank "${NODE_RANK:?}" --nproc-per-node "$each" \\',
        ],
    ),
    "three, another order": (
        seated((1, 0), (0, 0), (2, 0)),
        [
            "# Start this host's ranks of train.py, which has 3. On every host, with its number:",
            "#   HEAD=<address of host 0> NODE_RANK=<0 to 2> ./launch.sh --steps 10",
            "# Hosts of the planned cluster in the order of NODE_RANK: 1 0 2",
            "each=1",
            "# GPUs of one number talk over the adapters of that number: rails are apart.",
            'export NCCL_CROSS_NIC="${NCCL_CROSS_NIC:-0}"',
            '    --nnodes 3 --node-rank "${NODE_RANK:?}" --nproc-per-node "$each" \\',
        ],
    ),
    "unlike numbers, two networks": (
        seated((0, 0), (1, 0), (1, 1), networks=("roce", "ethernet")),
        [
            "# Start this host's ranks of train.py, which has 3. On every host, with its number:",
            "#   HEAD=<address of host 0> NODE_RANK=<0 to 1> ./launch.sh --steps 10",
            "# Hosts of the planned cluster in the order of NODE_RANK: 0 1",
            "    0) each=1 ;;",
            "    1) each=2 ;;",
            '    *) echo "NODE_RANK is $NODE_RANK, and there are hosts 0 to 1" >&2; exit 1 ;;',
            '    --nnodes 2 --node-rank "${NODE_RANK:?}" --nproc-per-node "$each" \\',
        ],
    ),
    "ranks that take turns": (
        seated((0, 0), (1, 0), (0, 1), (1, 1)),
        [
            "# Start this host's ranks of train.py, which has 4. On every host, with its number:",
            "#   HEAD=<address of host 0> NODE_RANK=<0 to 1> ./launch.sh --steps 10",
            "# Hosts of the planned cluster in the order of NODE_RANK: 0 1",
            "    0) each=2 ranks=0,2 ;;",
            "    1) each=2 ranks=1,3 ;;",
            '    *) echo "NODE_RANK is $NODE_RANK, and there are hosts 0 to 1" >&2; exit 1 ;;',
            "# GPUs of one number talk over the adapters of that number: rails are apart.",
            'export NCCL_CROSS_NIC="${NCCL_CROSS_NIC:-0}"',
            '    --nnodes 2 --node-rank "${NODE_RANK:?}" --nproc-per-node "$each" \\',
        ],
    ),
    "as many, one of them chosen": (
        seated((0, 0), (1, 1), networks=("ethernet", "ethernet")),
        [
            "# Start this host's ranks of train.py, which has 2. On every host, with its number:",
            "#   HEAD=<address of host 0> NODE_RANK=<0 to 1> ./launch.sh --steps 10",
            "# Hosts of the planned cluster in the order of NODE_RANK: 0 1",
            "    0) each=1 gpus=0 ;;",
            "    1) each=1 gpus=1 ;;",
            '    *) echo "NODE_RANK is $NODE_RANK, and there are hosts 0 to 1" >&2; exit 1 ;;',
            'export CUDA_VISIBLE_DEVICES="$gpus"',
            "# The plan's links are sockets: no search for InfiniBand.",
            'export NCCL_IB_DISABLE="${NCCL_IB_DISABLE:-1}"',
            '    --nnodes 2 --node-rank "${NODE_RANK:?}" --nproc-per-node "$each" \\',
        ],
    ),
}
TOLD = ("which has", "HEAD=<", "order of NODE_RANK", "each=", ") e", "CUDA_VISIBLE", "rails", "sockets", "NCCL_CROSS")
TOLD += ("NCCL_IB", "--nnodes")


def test_what_is_said_of_hosts_is_what_they_have() -> None:
    """One host alone needs no network; of two networks none is told. Slurm and Ray start hosts that are alike only."""
    for what, (places, lines) in COUNTED.items():
        made = on_hosts(files(list(range(len(places)))), places)
        text = dict(made.texts)["launch.sh"]
        said = [line for line in text.splitlines() if any(one in line for one in TOLD) and "$found" not in line]
        assert said == lines, what
        assert "# The plan leaves a few percent for fragments; without this there are more.\n" in text, what
        assert on_several(made) == ("--nnodes" in text) == (not what.startswith("one host")), what
        both = {"ray_train.py", "train.sbatch"}
        alike = {"one host": {"ray_train.py"}, "three alike": both, "three, another order": both}
        assert set(dict(made.texts)) - {"train.py", "launch.sh", "ranks.json"} == alike.get(what, set()), what


@given(st.permutations([(host, gpu) for host in range(3) for gpu in range(3)]), st.integers(1, 9))
def test_every_process_takes_the_rank_whose_gpu_it_has(order: list[tuple[int, int]], ranks: int) -> None:
    """Wherever ranks sit: what the table of a host says of its processes is what the map says of their ranks."""
    texts = dict(on_hosts(files(list(range(ranks))), seated(*order[:ranks])).texts)
    told = [
        dict(word.split("=") for word in found.split())
        for found in re.findall(r"each=\d.*?(?= ;;|$)", texts["launch.sh"], re.MULTILINE)
    ]
    numbered, started = list(dict.fromkeys(host for host, _ in order[:ranks])), dict[int, tuple[int, int]]()
    for node, host in enumerate(numbered):
        table = told[node if len(told) > 1 else 0]
        each = int(table["each"])
        gpus = [int(gpu) for gpu in table.get("gpus", ",".join(map(str, range(each)))).split(",")]
        usual = ",".join(map(str, range(len(started), len(started) + each)))
        own = [int(rank) for rank in table.get("ranks", usual).split(",")]
        assert len(gpus) == len(own) == each
        started |= {rank: (host, gpu) for rank, gpu in zip(own, gpus, strict=True)}
    assert [started[rank] for rank in range(ranks)] == order[:ranks]


def test_hosts_without_adapters_have_none_in_the_map() -> None:
    rows = json.loads(dict(on_hosts(files([1, 0]), seated((0, 4), (0, 5), nic=-1)).texts)["ranks.json"])
    assert rows == [
        {"rank": 0, "cluster_rank": 1, "host": 0, "gpu": 5},
        {"rank": 1, "cluster_rank": 0, "host": 0, "gpu": 4},
    ]
