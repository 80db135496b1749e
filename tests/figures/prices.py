"""Prices: kernels on devices, shapes of groups and what collectives cost in them, whole steps with their memory."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import replace
from functools import cache, partial
from itertools import product
from random import Random

from meshwright.cost_models.cluster import Cluster
from meshwright.cost_models.cluster_text import read_cluster
from meshwright.cost_models.cluster_toml import read
from meshwright.cost_models.collectives import collective
from meshwright.cost_models.evaluate import evaluate
from meshwright.cost_models.host_traffic import between_hosts
from meshwright.cost_models.memory import holdings, stepped_on_host, tensors_held
from meshwright.cost_models.prices import Prices
from meshwright.cost_models.profile import Profile, published
from meshwright.cost_models.topology import group_shape, pair_shape
from meshwright.ir.errors import MeshwrightError
from meshwright.ir.mesh import Mesh
from meshwright.ir.names import Degrees
from tests.cost_models.programs import DENSE, MOE, program
from tests.figures import Cases, text

POOL = """
[[pool]]
name = "{name}"
hosts = {hosts}
gpu = "{gpu}"
gpus_per_host = {gpus}
nics = [{{ kind = "{kind}", gbps = {gbps}, count = {count} }}]
"""
LINK = """
[[link]]
between = ["{one}", "{other}"]
kind = "{kind}"
gbps = {gbps}
latency_us = {latency}
"""


def pool(name: str, hosts: int, gpu: str, gpus: int, kind: str = "infiniband", gbps: int = 200, count: int = 2) -> str:
    return POOL.format(name=name, hosts=hosts, gpu=gpu, gpus=gpus, kind=kind, gbps=gbps, count=count)


def link(one: str, other: str, kind: str = "ethernet", gbps: int = 100, latency: int = 20) -> str:
    return LINK.format(one=one, other=other, kind=kind, gbps=gbps, latency=latency)


def matrix(size: int, seed: int) -> str:
    rows = [[0] * size for _ in range(size)]
    random = Random(seed)
    for one, other in product(range(size), repeat=2):
        if one < other:
            rows[one][other] = rows[other][one] = random.choice([50, 100, 150, 400])
    return f"link_matrix = {rows}\n"


@cache
def clusters() -> dict[str, Cluster]:
    """Of eight ranks each: one host, several, a matrix, unlike pools in a pair and in a chain, a torus, a rack."""
    texts = {
        "matrix of hosts": matrix(4, 1) + pool("all", 4, "A100-80G", 2),
        "matrix of ranks": matrix(8, 2) + pool("all", 4, "H100", 2),
        "two pools": pool("fast", 2, "H100", 2, gbps=400) + pool("old", 2, "A100-40G", 2, "roce") + link("fast", "old"),
        "chain": pool("a", 1, "A100-80G", 4, "roce", 100, 1)
        + pool("b", 1, "V100-32G", 2, "infiniband", 100, 1)
        + pool("c", 2, "L4", 1, "ethernet", 50, 1)
        + link("a", "b", "roce", 100, 5)
        + link("b", "c", "ethernet", 25, 30),
    }
    words = ("1x8xH100", "2x4xA100,inter=100G", "8x1xB200", "1x8xL40S", "4x2xMI300X", "2x4xTPU-v5p", "1x8xGB200")
    return {word: read_cluster(word) for word in words} | {name: read(one) for name, one in texts.items()}


@cache
def profile() -> Profile:
    return published()


# Groups ---------------------------------------------------------------------------------------------------------------

MESHES = ("a=8", "a=4 b=2", "a=2 b=4", "a=2 b=2 c=2")
ORDERS = ((0, 1, 2, 3, 4, 5, 6, 7), (0, 4, 1, 5, 2, 6, 3, 7))
KINDS = ("all_reduce", "all_gather", "reduce_scatter", "all_to_all", "broadcast", "p2p")
BYTES = (4e3, 3e5, 2e7, 5e9)


def groups(name: str) -> Iterator[str]:
    """Shapes of groups along every axis, and seconds of collectives in them."""
    cluster, shapes = clusters()[name], {}
    for text_, ranks in product(MESHES, ORDERS):
        mesh = Mesh.parse(text_)
        names = [axis.name for axis in mesh.axes]
        for axes in (*((axis,) for axis in names), tuple(names)):
            shapes[f"{text_} {''.join(axes)} {ranks[1]}"] = group_shape(cluster, ranks, mesh, axes)
    shapes["pairs"] = pair_shape(cluster, (0, 1, 2, 3), (4, 5, 6, 7))
    shapes["crossed pairs"] = pair_shape(cluster, (0, 4, 1, 5), (7, 3, 6, 2))
    known: dict[object, str] = {}
    for where, shape in shapes.items():
        if shape in known:
            yield f"{where}: as {known[shape]}"
            continue
        known[shape] = where
        yield f"{where}: {text(shape)}"
        for kind, library in product(KINDS, ("nccl", "gloo", "xla")):
            try:
                costs = [collective(kind, size, shape, library) for size in BYTES]  # type: ignore[arg-type]
            except MeshwrightError as error:
                yield f"  {kind} {library}: {error.code}"
                continue
            how = "/".join(dict.fromkeys(cost.how for cost in costs))
            yield f"  {kind} {library}: {text([cost.seconds for cost in costs])} {how}"


# Steps ----------------------------------------------------------------------------------------------------------------

STACKS = ("torch", "torch-compile", "megatron", "megatron-tp-overlap", "megatron-2021", "jax")
STEPS = 64


def drawn(number: int) -> dict[str, object]:
    """Degrees on eight ranks, and what else a step depends on."""
    random = Random(number)
    pick = random.choice
    tp, cp, pp = pick(
        [(1, 1, 1), (2, 1, 1), (4, 1, 2), (1, 2, 2), (2, 2, 1), (1, 1, 4), (2, 1, 2), (8, 1, 1), (1, 4, 1)]
    )
    moe = random.random() < 0.4
    dp = 8 // (tp * cp * pp)
    vp = 2 if pp == 2 and random.random() < 0.4 else 1
    usual = ["interleaved", "zbv", "v-half", "dualpipev"] if vp == 2 else ["1f1b", "gpipe", "zb-h1", "zb-h2"]
    return {
        "shape": "moe" if moe else "dense",
        "cluster": pick(list(clusters())),
        "stack": pick(STACKS),
        "mbs": pick([1, 2]),
        "imbalance": 1.3 if moe and random.random() < 0.5 else 1.0,
        "precision": pick(["bf16", "bf16", "fp8_tensorwise", "fp32"]),
        "degrees": {
            "dp": dp,
            "tp": tp,
            "cp": cp,
            "pp": pp,
            "vp": vp,
            "ep": pick([1, 2, 4]) if moe and dp * cp >= 4 else 1,
            "sequence_parallel": tp > 1 and random.random() < 0.5,
            "context": pick(["all_gather", "ring", "ulysses"]) if cp > 1 else "all_gather",
            "zero": pick([0, 1, 2, 3]) if dp * cp > 1 else 0,
            "recompute": pick(["none", "none", "full", "selective", "full_layers:1"]),
            "offload": pick(["none", "none", "none", "optimizer", "activations", "activations:1"]),
            "schedule": pick(usual) if pp > 1 else "gpipe",
            "microbatches": pick([4, 8]) if pp > 1 else pick([1, 2, 4]),
        },
    }


def step(number: int) -> Iterator[str]:
    """What a step takes and holds; or why there is none."""
    case = drawn(number)
    cluster = clusters()[str(case["cluster"])]
    yield text({key: value for key, value in case.items() if key != "degrees"})
    yield text({key: value for key, value in case["degrees"].items() if value != getattr(Degrees(), key)})  # type: ignore[attr-defined]
    try:
        made = program(
            replace(DENSE) if case["shape"] == "dense" else MOE,
            Degrees(**case["degrees"]),  # type: ignore[arg-type]
            **{key: case[key] for key in ("stack", "mbs", "imbalance", "precision")},  # type: ignore[arg-type]
        )
        told = evaluate(made, cluster, profile()).to_json()
    except MeshwrightError as error:
        yield error.code
        return
    for stage in told.pop("stages"):
        memory = stage.pop("memory")
        yield text(list(stage.values()))
        yield "  " + text({name: size for name, size in memory.items() if size})
    told["shares"] = {name: share for name, share in told["shares"].items() if share}
    for name, value in told.items():
        yield f"{name}: {text(value)}"
    yield f"between hosts: {text(list(between_hosts(made, Prices(cluster, profile())).items()))}"
    yield from dict.fromkeys(map(text, holdings(made, cluster, profile().memory)))
    yield f"tensors: {text(sorted({one.peak_bytes for one in tensors_held(made).values()}))}"
    yield f"on the host: {text(sorted(set(stepped_on_host(made).values())))}"


def table(count: int, lines: Callable[[int], Iterator[str]]) -> Cases:
    return {str(number): partial(lines, number) for number in range(count)}
