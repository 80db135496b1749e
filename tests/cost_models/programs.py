"""Small models as programs, at random and by hand: each model captured once, written anew at other batches."""

from __future__ import annotations

from dataclasses import dataclass, replace
from functools import lru_cache
from math import prod

from hypothesis import strategies as st

from meshwright.cost_models.hardware.cluster import Cluster
from meshwright.cost_models.hardware.devices import Device, devices
from meshwright.cost_models.hardware.parts import Nic, Pool, PoolLink
from meshwright.cost_models.hardware.quantity import Quantity, given
from meshwright.ir.analysis.rebatch import with_batch
from meshwright.ir.frontends.door import capture
from meshwright.ir.frontends.shape import Shape
from meshwright.ir.frontends.torch_.sources.shape_toml import build
from meshwright.ir.graph.fold import Fold
from meshwright.ir.names import Degrees, template
from meshwright.ir.program.lower import BodyCache, lower
from meshwright.ir.program.lower_body import Lowering
from meshwright.ir.program.program import Program
from meshwright.ir.target.workload import STACKS, Workload

SEQ = 1024
DENSE = Shape(layers=4, hidden=1024, ffn_hidden=4096, heads=8, kv_heads=4, vocab=32000, tied_embeddings=True)
MOE = replace(DENSE, experts=4, topk=2, moe_ffn=1024, tied_embeddings=False)
ALONE = Degrees()
SHAPES = {"dense": DENSE, "moe": MOE}
OFFLOADS = ("optimizer", "activations", "activations:1", "optimizer+activations")


@lru_cache
def captured(shape: Shape, seq: int = SEQ) -> Fold:
    return capture(build(shape, "test"), batch=8, seq=seq).fold


@lru_cache
def fold(shape: Shape, batch: int, seq: int = SEQ) -> Fold:
    return with_batch(captured(shape, seq), batch)


_bodies: BodyCache = {}


@lru_cache
def program(
    shape: Shape = DENSE,
    degrees: Degrees = ALONE,
    *,
    stack: str = "torch",
    mbs: int = 1,
    seq: int = SEQ,
    imbalance: float = 1.0,
    precision: str = "bf16",
) -> Program:
    workload = Workload(
        global_batch=mbs * degrees.dp * degrees.microbatches,
        seq=seq,
        stack=STACKS[stack],
        imbalance=imbalance,
        precision=precision,
    )
    model = fold(shape, mbs * degrees.dp, seq)
    decisions = replace(template(model, degrees), style=workload.stack.style)
    return lower(model, decisions, Lowering().for_stack(workload.stack), workload, _bodies)


@dataclass(frozen=True)
class Case:
    """A configuration of a small model, as hypothesis prints it."""

    shape: str
    stack: str
    degrees: Degrees
    mbs: int = 1
    imbalance: float = 1.0

    @property
    def program(self) -> Program:
        return program(SHAPES[self.shape], self.degrees, stack=self.stack, mbs=self.mbs, imbalance=self.imbalance)

    @property
    def ranks(self) -> int:
        return prod((self.degrees.dp, self.degrees.tp, self.degrees.cp, self.degrees.pp))


@st.composite
def cases(draw: st.DrawFn) -> Case:
    """Legal configurations of up to sixteen ranks."""
    shape = draw(st.sampled_from(sorted(SHAPES)))
    tp, cp, dp = (draw(st.sampled_from(sizes)) for sizes in ((1, 2, 4), (1, 2), (1, 2)))
    pp = draw(st.sampled_from([pp for pp in (1, 2, 4) if pp * tp * cp * dp <= 16]))
    folded = draw(st.booleans()) if pp == 2 else False
    vp = 2 if folded else 1
    if folded:
        schedule = draw(st.sampled_from(["interleaved", "zbv", "v-half", "dualpipev"]))
    else:
        schedule = draw(st.sampled_from(["1f1b", "gpipe", "zb-h1"])) if pp > 1 else "1f1b"
    context = draw(st.sampled_from(["all_gather", "ring", "ulysses"])) if cp > 1 and tp < 4 else "all_gather"
    degrees = Degrees(
        dp=dp,
        tp=tp,
        cp=cp,
        pp=pp,
        vp=vp,
        ep=draw(st.sampled_from([ep for ep in (1, 2) if shape == "moe" and (dp * cp) % ep == 0] or [1])),
        sequence_parallel=tp > 1 and draw(st.booleans()),
        context=context,
        zigzag=cp > 1 and context != "ulysses" and draw(st.booleans()),
        zero=draw(st.integers(0, 3)) if dp * cp > 1 else 0,
        recompute=draw(st.sampled_from(["none", "full", "selective"])),
        offload=draw(st.sampled_from(["none", "none", *OFFLOADS])),
        schedule=schedule,
        microbatches=4 if folded else draw(st.sampled_from([1, 2, 4])),
    )
    return Case(
        shape=shape,
        stack=draw(
            st.sampled_from(["torch", "torch-compile", "megatron", "megatron-tp-overlap", "megatron-2021", "jax"])
        ),
        degrees=degrees,
        imbalance=draw(st.sampled_from([1.0, 1.5])) if shape == "moe" else 1.0,
    )


# Clusters ------------------------------------------------------------------------------------------------------------

BASES = tuple(one for one in devices() if "bf16" in one.dtypes and one.nic)


def scaled(quantity: Quantity, factor: float) -> Quantity:
    return given(quantity.value * factor, quantity.unit)


def own(base: Device, name: str = "own") -> Device:
    """The device as a user's own: nothing that was measured on the base is read for it. Its host is known."""
    host = replace(base.host_link, memory=base.host_link.memory or given(1e11, "bytes/s"))
    return replace(base, name=name, aliases=(), like=base.name, host_link=host)


def faster(
    device: Device, *, peaks: float = 1, hbm: float = 1, memory: float = 1, island: float = 1, host: float = 1
) -> Device:
    """The same device with larger numbers."""
    wires = device.island and replace(device.island, bandwidth=scaled(device.island.bandwidth, island))
    driver = device.driver_memory and scaled(device.driver_memory, memory)
    return replace(
        device,
        peaks=tuple((name, scaled(peak, peaks)) for name, peak in device.peaks),
        memory_bandwidth=scaled(device.memory_bandwidth, hbm),
        memory=scaled(device.memory, memory),
        driver_memory=driver,
        island=wires,
        host_link=replace(
            device.host_link,
            bandwidth=scaled(device.host_link.bandwidth, island * host),
            memory=device.host_link.memory and scaled(device.host_link.memory, host),
        ),
    )


def pool(device: Device, hosts: int, gpus: int, gbps: float = 400, kind: str = "infiniband", name: str = "p") -> Pool:
    nics = (Nic(kind=kind, rate=given(gbps, "Gb/s"), count=min(gpus, 4)),)
    return Pool(name=name, hosts=hosts, device=device, gpus_per_host=gpus, nics=nics)


@st.composite
def clusters_of(draw: st.DrawFn, ranks: int) -> Cluster:
    """One pool of so many ranks."""
    gpus = draw(st.sampled_from([size for size in (1, 2, 4, 8, 16) if size <= ranks]))
    base = own(draw(st.sampled_from(BASES)))
    kind = draw(st.sampled_from(["infiniband", "roce", "ethernet"]))
    return Cluster(pools=(pool(base, ranks // gpus, gpus, draw(st.sampled_from([25.0, 100.0, 400.0])), kind),))


@st.composite
def pairs_of(draw: st.DrawFn, ranks: int) -> Cluster:
    """Two unlike pools, which share so many ranks as it comes: groups may straddle them."""
    gpus = draw(st.sampled_from([size for size in (1, 2, 4, 8) if size <= ranks // 2]))
    first = draw(st.integers(1, ranks // gpus - 1))
    pools = tuple(
        pool(
            own(draw(st.sampled_from(BASES)), f"own {name}"),
            hosts,
            gpus,
            draw(st.sampled_from([25.0, 100.0, 400.0])),
            draw(st.sampled_from(["infiniband", "roce", "ethernet"])),
            name,
        )
        for name, hosts in (("one", first), ("two", ranks // gpus - first))
    )
    rate = given(draw(st.sampled_from([10.0, 100.0, 800.0])), "Gb/s")
    link = PoolLink(between=("one", "two"), kind="ethernet", rate=rate, latency=given(2e-5, "s"))
    return Cluster(pools=pools, links=(link,))


def better(cluster: Cluster, what: str, factor: float) -> Cluster:
    """The cluster with more of something, everywhere."""
    pools = cluster.pools
    if what == "nic":
        nics = [tuple(replace(nic, rate=scaled(nic.rate, factor)) for nic in one.nics) for one in pools]
        return replace(cluster, pools=tuple(replace(one, nics=of) for one, of in zip(pools, nics, strict=True)))
    names = ("peaks", "hbm", "memory", "island", "host") if what == "all" else (what,)
    grown = [replace(one, device=faster(one.device, **dict.fromkeys(names, factor))) for one in pools]
    return replace(cluster, pools=tuple(grown))


MORE = ("nic", "peaks", "hbm", "memory", "island", "host", "all")
