"""Published training runs, every choice made, and what a row may mean where it leaves something blank.

Run, Skipped       what a row of the table is read as (`reading`)
readings(run)      the runs that the row may mean: one, or one for each recomputation if that is blank
zero_stages(run)   the run under each ZeRO stage, lowest first, if that is blank
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from dataclasses import dataclass, replace
from itertools import combinations, starmap

from benchmarks.cells import Recompute, Zero, memory_meaning
from benchmarks.models import Model, shape_of
from benchmarks.stacks import Stack
from meshwright.cost_models.hardware.cluster import Cluster
from meshwright.cost_models.hardware.devices import Device, latency_of
from meshwright.cost_models.hardware.parts import Nic, Pool, PoolLink
from meshwright.cost_models.hardware.quantity import given
from meshwright.ir.frontends.shape import Shape

OPEN_RECOMPUTE = (
    Recompute(kind="none"),
    Recompute(kind="selective", modules=("core_attention",)),
    Recompute(kind="full"),
)


GRAPHS = {"none": "none", "transformer_engine": "static", "local": "step"}
"""What rows say of `cuda_graph`, by our names."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Skipped:
    """A row that cannot be priced or scored."""

    row: int
    source: str
    model: str
    reason: str
    timed: bool = False


@dataclass(frozen=True, slots=True, kw_only=True)
class Run:
    """One published run, every choice made.

    - tp * pp * cp * dp must be the number of devices, and `hosts` * `gpus_per_host` too.
    - `micro_batch` * dp must divide `global_batch`; etp * ep must divide tp * cp * dp.
    - `zero_open`: `zero` was blank, and holds stage 0. `recompute_open`: likewise, and holds none.
    - `degrees_open`: nothing is said of how devices were used. `own_schedule`: `schedule` is the closest one that has
      a name.
    - `beside`: other devices, and the number of their hosts; the others of `hosts` have `device`.
    - `partition`: layers of each stage, where that is stated.
    """

    row: int
    source: str
    table: str
    model: Model
    task: str
    seq: int
    global_batch: int
    micro_batch: int
    precision: str
    device: Device
    beside: tuple[tuple[Device, int], ...]
    hosts: int
    gpus_per_host: int
    nic: Nic | None
    tp: int
    pp: int
    vp: int
    cp: int
    ep: int
    etp: int
    dp: int
    degrees_open: bool
    zero: Zero
    zero_open: bool
    recompute: Recompute
    recompute_open: bool
    sequence_parallel: bool
    schedule: str
    own_schedule: bool
    partition: tuple[int, ...]
    offload_layers: int
    stack: Stack
    style: str
    options: frozenset[str]
    step_time_s: float | None
    derived: bool
    peak_bytes: float | None
    memory_kind: str
    outcome: str
    confidence: str
    readings: tuple[str, ...]

    def __post_init__(self) -> None:
        if self.tp * self.pp * self.cp * self.dp != self.devices:
            degrees = f"tp {self.tp} x pp {self.pp} x cp {self.cp} x dp {self.dp}"
            raise ValueError(f"{degrees} are not {self.devices} devices")
        if self.global_batch % (self.micro_batch * self.dp):
            raise ValueError(
                f"micro-batch {self.micro_batch} on {self.dp} replicas does not divide global batch {self.global_batch}"
            )
        if self.tp * self.cp * self.dp % (self.ep * self.etp):
            raise ValueError(f"ep {self.ep} x etp {self.etp} does not divide tp x cp x dp")

    @property
    def measured(self) -> bool:
        """Whether something is published that a price can be held against."""
        return self.step_time_s is not None or self.peak_bytes is not None or bool(self.outcome)

    @property
    def ran(self) -> bool:
        return self.outcome != "oom"

    @property
    def devices(self) -> int:
        return self.hosts * self.gpus_per_host

    @property
    def micro_batches(self) -> int:
        return self.global_batch // (self.micro_batch * self.dp)

    @property
    def shape(self) -> Shape:
        """The decoder of the run; `models.fold_of` traces it."""
        mtp, parallel_block = self.predicting_layers, "parallel_block" in self.options
        return shape_of(self.model, seq=self.seq, mtp=mtp, parallel_block=parallel_block)

    @property
    def predicting_layers(self) -> int:
        """Layers that look at further tokens (multi-token prediction)."""
        return int("mtp" in self.options)

    @property
    def stage_layers(self) -> tuple[int, ...]:
        """Layers of each virtual stage, where no partition is stated."""
        return stage_layers(self.shape.layers, self.pp, self.vp, self.predicting_layers)

    @property
    def configuration(self) -> tuple[object, ...]:
        """What is computed, where, and by which degrees; nothing of the software."""
        same = (self.model.name, self.task, self.seq, self.global_batch, self.micro_batch, self.precision)
        others = tuple((other.name, hosts) for other, hosts in self.beside)
        where = (self.device.name, others, self.hosts, self.gpus_per_host, self.nic)
        degrees = (self.tp, self.pp, self.vp, self.cp, self.ep, self.etp, self.dp, self.zero, self.zero_open)
        return (*same, *where, *degrees, self.stack.name)

    @property
    def settings(self) -> tuple[object, ...]:
        """What makes two rows of the same or of different sources replicates of one run."""
        how = (self.recompute, self.recompute_open, self.sequence_parallel, self.schedule, self.offload_layers)
        return (*self.configuration, *how, self.style, self.options)

    @property
    def work(self) -> tuple[object, ...]:
        """What rows share whose times may be compared: the same job on the same devices, by the same people."""
        job = (self.model.name, self.task, self.seq, self.global_batch, self.precision)
        return (self.source, *job, self.device.name, self.devices)

    @property
    def memory_meaning(self) -> str:
        """What `peak_bytes` counts."""
        return memory_meaning(self.memory_kind)

    @property
    def grad_bytes(self) -> int:
        """Bytes of a gradient element on the wire; composer's PURE reduces in the dtype of the computation."""
        return 2 if "mp_mode=pure" in self.options else self.stack.grad_bytes

    @property
    def optimizer(self) -> str:
        """Of `meshwright.ir.target.workload.OPTIMIZERS`."""
        return "adamw-bf16" if self.model.name in self.stack.bf16_moments else "adamw"

    @property
    def release(self) -> str:
        """Year and month of the software, where the table is named after it."""
        found = re.match(r"\d\d\.\d\d", self.table)
        return found[0] if found else ""

    @property
    def captured(self) -> bool:
        """Whole steps are graphs, by what is public of this release."""
        captured = self.stack.captured
        named = self.model.routed and captured is not None
        return bool(named and captured and captured.holds(self.release, self.precision, self.device.name))

    @property
    def graphs(self) -> str:
        """Of `meshwright.ir.target.workload.GRAPHS`."""
        stated = next((option for option in self.options if option.startswith("cuda_graph=")), "")
        return GRAPHS.get(stated.removeprefix("cuda_graph="), "step" if self.captured else "none")

    @property
    def dedupes(self) -> bool:
        """The dispatchers DeepEP and HybridEP send a token once to each host; where a configuration was read and names
        none, or tokens are dropped, the exchange is a plain all-to-all."""
        if {"dispatcher=deepep", "dispatcher=hybridep"} & self.options:
            return True
        return self.stack.dedupes and "config_read" not in self.options and not self.padded

    @property
    def padded(self) -> bool:
        """Experts take what their capacity is, and drop the rest."""
        return "moe_routing=token_drop" in self.options

    @property
    def exchanges_known(self) -> bool:
        """Whether exchanges are overlapped is said, or follows: no public recipe does both that and padding, those
        that may replay layers on a device have none there (`stacks`), and in a pipeline only an interleaved schedule
        can (Megatron-Bridge, training/comm_overlap.py)."""
        said = {"a2a_overlap", "config_read"} & self.options
        return bool(said) or self.captured or self.padded or self.graphs_open or (self.pp > 1 and self.vp == 1)

    @property
    def overlaps_experts(self) -> bool:
        return "a2a_overlap" in self.options or self.captured

    @property
    def graphs_open(self) -> bool:
        """Nothing says whether layers replay as graphs, experts too where they are padded."""
        stated = self.captured or any(option.startswith("cuda_graph=") for option in self.options)
        may = self.device.name in (self.stack.may_replay if self.padded else self.stack.may_replay_unpadded)
        return self.model.routed and may and not stated and "config_read" not in self.options

    @property
    def overlap_open(self) -> bool:
        """Nothing says whether exchanges with experts are overlapped."""
        return self.model.routed and self.stack.may_overlap_experts and not self.exchanges_known

    @property
    def cluster(self) -> Cluster:
        """Its hosts; pools of unlike ones are joined at the rate that the network of the smaller has."""
        nics = () if self.nic is None else (self.nic,)
        rest = self.hosts - sum(hosts for _, hosts in self.beside)
        pools = tuple(
            Pool(name=kind.name, hosts=hosts, device=kind, gpus_per_host=self.gpus_per_host, nics=nics)
            for kind, hosts in ((self.device, rest), *self.beside)
        )
        return Cluster(pools=pools, links=tuple(starmap(_joined, combinations(pools, 2))))


def _joined(one: Pool, other: Pool) -> PoolLink:
    slower = min((one, other), key=lambda pool: pool.host_gbps * pool.hosts)
    nic = slower.adapters[0]
    rate = given(slower.host_gbps * slower.hosts, "Gb/s")
    return PoolLink(between=(one.name, other.name), kind=nic.kind, rate=rate, latency=latency_of(nic.kind))


def readings(run: Run) -> tuple[Run, ...]:
    """The runs that the row may mean."""
    runs: tuple[Run, ...] = (run,)
    if run.recompute_open:
        runs = tuple(replace(run, recompute=recompute, recompute_open=False) for recompute in OPEN_RECOMPUTE)
    if run.overlap_open:
        runs += tuple(replace(one, options=one.options | {"a2a_overlap"}) for one in runs)
    if run.graphs_open:
        runs += tuple(replace(one, options=one.options | {"cuda_graph=transformer_engine"}) for one in runs)
    return runs


def zero_stages(run: Run) -> Iterator[Run]:
    """The run under each ZeRO stage, lowest first, if that was blank."""
    if not run.zero_open:
        yield run
        return
    for stage in range(4 if run.pp == 1 else 2):  # ZeRO-2 and -3 would repeat their communication each micro-batch
        yield replace(run, zero=Zero(stage=stage), zero_open=False)


def stage_layers(layers: int, pp: int, vp: int = 1, predicting: int = 0) -> tuple[int, ...]:
    """Layers of each virtual stage, in the order of the pipeline. `predicting`: of them those that look at further
    tokens, which follow all others and stand on the last stage, beside the loss.

    Alike if that is possible; else the ends one less, for the embedding and the loss, if that is (an end may then hold
    nothing else); else all alike but the last, which holds what is left, beside the loss, if that is anything (so do
    the recipes of Megatron-Bridge: recipes/deepseek/h100/deepseek_v3.py, _get_deepseek_v3_pipeline_layout); else the
    first ones hold one more.
    """
    stages, layers = pp * vp, layers - predicting
    each, more = divmod(layers, stages)
    left = layers - (each + 1) * (stages - 1)
    if more and more == stages - 2:
        held = (each, *(each + 1 for _ in range(stages - 2)), each)
    elif more and left > 0:
        held = (*(each + 1 for _ in range(stages - 1)), left)
    else:
        held = tuple(each + (index < more) for index in range(stages))
    return (*held[:-1], held[-1] + predicting)
