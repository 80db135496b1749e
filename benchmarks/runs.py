"""Published training runs, read: a row in, a `Run` out, or a `Skipped` that says why.

    read_runs(csv, models)   every row, in order: Run | Skipped
    readings(run)            the runs that the row may mean: one, or one for each recomputation if that is blank

A row can be priced if it names a model of known shape, a known device and their number, a sequence length and a global
batch; it can be scored if it also has a step time, a peak memory or an outcome. Nothing is looked up by source, row or
configuration. Blanks are unknown, not zero; they are read like this, and each reading is written in `Run.readings`:

    sequence        what the notes call the default
    global batch    number of micro-batches in the notes x micro-batch x dp; per-device batch in the notes x devices
    degrees         1, tensor and expert degrees from the notes first; dp: the devices that are left
    expert tp       tp, or 1 in stacks that do not cut experts
    virtual stages  2 for zb-v; else 1, or if the schedule says interleaved the largest divisor, up to 8, of the
                    layers of a stage
    schedule        1F1B, interleaved if there are virtual stages
    micro-batch     1 in a pipeline; the whole share of a rank under ZeRO-3; else the largest of 4, 2, 1 that divides it
    sequence par.   on for tp > 1 except in stacks of 2021 (`stacks`)
    ZeRO            the lowest stage that fits: `zero_open`, decided by who prices; none without data parallelism
    recompute       an interval: none, selective and full (`readings`)
    precision       bf16
    hosts           8 devices each, or 4 TPUs; fewer if the devices are fewer

The target is `step_time_best_s`, or else step_time_s, or else what tokens per second per device give; `derived` says
that a time was computed rather than reported.
"""

from __future__ import annotations

import csv
import re
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, replace
from pathlib import Path

from benchmarks.cells import (
    SCHEDULES,
    Recompute,
    Zero,
    default_seq_in,
    finite,
    memory_bytes,
    memory_meaning,
    nic_of,
    number_in,
    options_of,
    precision_of,
    recompute_of,
    zero_of,
)
from benchmarks.models import Model, shape_of
from benchmarks.stacks import Stack, stack_of
from meshwright.cost_models.cluster import Cluster, Nic, Pool
from meshwright.cost_models.hardware import Device, device
from meshwright.cost_models.quantity import Quantity
from meshwright.ir.errors import DeviceUnknown
from meshwright.ir.frontends.decoder import Shape

MOST_VIRTUAL = 8
"""The most virtual stages that a blank is read as (the issue's reading of an interleaved schedule)."""

USUAL_HOST = 8
USUAL_TPU_HOST = 4
NO_USUAL_NIC = Nic(
    kind="ethernet",
    rate=Quantity(value=50.0, unit="Gb/s", source="as the table says of TPU v5p", date="2026-11", kind="assumed"),
    count=USUAL_TPU_HOST,
)
"""Beside devices whose table names no NIC."""
BLANK_MICRO_BATCHES = (4, 2, 1)
OPEN_RECOMPUTE = (
    Recompute(kind="none"),
    Recompute(kind="selective", modules=("core_attention",)),
    Recompute(kind="full"),
)


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
    - At least one of `step_time_s`, `peak_bytes` and `outcome` must be given.
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
    zero: Zero
    zero_open: bool
    recompute: Recompute
    recompute_open: bool
    sequence_parallel: bool
    schedule: str
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
        if self.step_time_s is None and self.peak_bytes is None and not self.outcome:
            raise ValueError("no step time, memory or outcome")

    @property
    def devices(self) -> int:
        return self.hosts * self.gpus_per_host

    @property
    def micro_batches(self) -> int:
        return self.global_batch // (self.micro_batch * self.dp)

    @property
    def shape(self) -> Shape:
        """The decoder of the run; `models.fold_of` traces it."""
        mtp = int("mtp" in self.options)
        return shape_of(self.model, seq=self.seq, mtp=mtp, parallel_block="parallel_block" in self.options)

    @property
    def settings(self) -> tuple[object, ...]:
        """What makes two rows of the same or of different sources replicates of one run."""
        same = (self.model.name, self.task, self.seq, self.global_batch, self.micro_batch, self.precision)
        where = (self.device.name, self.hosts, self.gpus_per_host, self.nic)
        degrees = (self.tp, self.pp, self.vp, self.cp, self.ep, self.etp, self.dp, self.zero, self.zero_open)
        how = (self.recompute, self.recompute_open, self.sequence_parallel, self.schedule, self.offload_layers)
        return (*same, *where, *degrees, *how, self.stack.name, self.style, self.options)

    @property
    def work(self) -> tuple[object, ...]:
        """What rows share whose times may be compared: the same job on the same devices, by the same people."""
        job = (self.model.name, self.task, self.seq, self.global_batch, self.precision)
        return (self.source, *job, self.device.name, self.devices)

    @property
    def host_share(self) -> float:
        """The share of kept activations that waits in the host's memory."""
        return 1.0 if self.recompute.on_host else min(1.0, self.offload_layers / self.shape.layers)

    @property
    def memory_meaning(self) -> str:
        """What `peak_bytes` counts."""
        return memory_meaning(self.memory_kind)

    @property
    def grad_bytes(self) -> int:
        """Bytes of a gradient element on the wire; composer's PURE reduces in the dtype of the computation."""
        return 2 if "mp_mode=pure" in self.options else self.stack.grad_bytes

    @property
    def cluster(self) -> Cluster:
        nics = () if self.nic is None else (self.nic,)
        pool = Pool(
            name=self.device.name, hosts=self.hosts, device=self.device, gpus_per_host=self.gpus_per_host, nics=nics
        )
        return Cluster(pools=(pool,))


class _Unreadable(Exception):
    """Why a row cannot be priced."""


def read_runs(path: Path, models: Mapping[str, Model]) -> tuple[Run | Skipped, ...]:
    """Every row of a table of runs."""
    with path.open(newline="", encoding="utf-8-sig") as file:
        return tuple(
            read_row(index, {key: (cell or "").strip() for key, cell in row.items() if key}, models)
            for index, row in enumerate(csv.DictReader(file))
        )


def read_row(index: int, row: Mapping[str, str], models: Mapping[str, Model]) -> Run | Skipped:
    reader = _Reader(row, models)
    try:
        return reader.run(index)
    except (_Unreadable, ValueError) as reason:
        return Skipped(
            row=index,
            source=row.get("source", ""),
            model=row.get("model", ""),
            reason=str(reason),
            timed=reader.step_time()[0] is not None,
        )


def readings(run: Run) -> tuple[Run, ...]:
    """The runs that the row may mean."""
    if not run.recompute_open:
        return (run,)
    return tuple(replace(run, recompute=recompute, recompute_open=False) for recompute in OPEN_RECOMPUTE)


def zero_stages(run: Run) -> Iterator[Run]:
    """The run under each ZeRO stage, lowest first, if that was blank."""
    if not run.zero_open:
        yield run
        return
    for stage in range(4 if run.pp == 1 else 2):  # ZeRO-2 and -3 would repeat their communication each micro-batch
        yield replace(run, zero=Zero(stage=stage), zero_open=False)


class _Reader:
    """One row; the order of the methods is the order in which blanks can be filled."""

    def __init__(self, row: Mapping[str, str], models: Mapping[str, Model]) -> None:
        self.row, self.models = row, models
        self.readings: list[str] = []
        self.options = options_of(self.cell("notes"), self.cell("moe_routing"))
        self.stack = stack_of(self.cell("framework"))

    def cell(self, key: str) -> str:
        return self.row.get(key, "")

    def number(self, key: str) -> float | None:
        return finite(self.cell(key)) or None

    def positive(self, key: str) -> float | None:
        value = self.number(key)
        return value if value and value > 0 else None

    def count(self, key: str) -> int | None:
        value = self.number(key)
        if value is None:
            return None
        if value < 1 or value != int(value):
            raise _Unreadable(f"{key} is {value:g}")
        return int(value)

    def read(self, what: str) -> None:
        self.readings.append(what)

    def run(self, index: int) -> Run:
        model = self.known_model()
        one, hosts, gpus = self.machines()
        devices = hosts * gpus
        tp, pp, cp, dp = self.degrees(devices)
        ep, etp = self.expert_degrees(model, tp)
        zero, zero_open = self.zero(dp)
        micro_batch, global_batch = self.batches(devices, pp, dp, zero)
        vp, schedule = self.pipeline(model, pp)
        recompute, recompute_open = self.recompute(stage_layers(int(model.sizes["layers"]), pp)[0])
        step_time_s, derived = self.step_time()
        text = self.cell("recompute")
        offloaded = re.search(r"layers:(\d+)", self.cell("offload"))
        if offloaded:
            self.read(f"offload of {offloaded[1]} layers: its time is not priced")
        return Run(
            row=index,
            source=self.cell("source"),
            table=self.cell("table"),
            model=model,
            task=self.cell("task") or "pretrain",
            seq=self.seq(),
            global_batch=global_batch,
            micro_batch=micro_batch,
            precision=self.precision(),
            device=one,
            hosts=hosts,
            gpus_per_host=gpus,
            nic=self.nic(one, gpus),
            tp=tp,
            pp=pp,
            vp=vp,
            cp=cp,
            ep=ep,
            etp=etp,
            dp=dp,
            zero=zero,
            zero_open=zero_open,
            recompute=recompute,
            recompute_open=recompute_open,
            sequence_parallel=tp > 1 and (self.stack.sequence_parallel or "seqpar" in text),
            schedule=schedule,
            offload_layers=int(offloaded[1]) if offloaded else 0,
            stack=self.stack,
            style=self.style(),
            options=self.options,
            step_time_s=step_time_s,
            derived=derived,
            peak_bytes=memory_bytes(self.cell("peak_mem_gb"), self.cell("mem_kind")),
            memory_kind=self.cell("mem_kind"),
            outcome=self.cell("outcome").lower(),
            confidence=self.cell("confidence"),
            readings=tuple(self.readings),
        )

    def known_model(self) -> Model:
        name = self.cell("model")
        if name not in self.models:
            raise _Unreadable(f"model {name!r} is not in the model table")
        model = self.models[name]
        if model.missing:
            raise _Unreadable(f"the model table lacks {', '.join(model.missing)} of {name}")
        return model

    def machines(self) -> tuple[Device, int, int]:
        name = re.sub(r"\(.*?\)", "", self.cell("gpu"))
        try:
            one = device(name)
        except DeviceUnknown:
            raise _Unreadable(f"device {name!r} is unknown" if name else "no device") from None
        devices = self.count("n_gpus")
        if devices is None:
            raise _Unreadable("no number of devices")
        gpus = self.count("gpus_per_node")
        if gpus is None:
            gpus = USUAL_TPU_HOST if one.name.startswith("TPU") else USUAL_HOST
            self.read(f"devices per host: {gpus}")
        if devices % gpus:
            gpus = next(size for size in range(min(gpus, devices), 0, -1) if devices % size == 0)
            self.read(f"devices per host: {gpus}, so that hosts are alike")
        return one, devices // gpus, gpus

    def nic(self, one: Device, gpus: int) -> Nic | None:
        usual = one.nic
        return nic_of(
            self.cell("interconnect"),
            gpus_per_host=gpus,
            usual_kind=usual.kind if usual else "infiniband",
            usual_gbps=usual.rate.value if usual else None,
        ) or (None if usual else NO_USUAL_NIC)

    def degrees(self, devices: int) -> tuple[int, int, int, int]:
        tp = self.count("tp") or number_in(self.options, "ici_tensor_parallelism") or 0
        if tp < 1:
            self.read("tp: 1")
        tp, pp, cp = max(tp, 1), self.count("pp") or 1, self.count("cp") or 1
        dp = self.count("dp")
        if dp is None:
            if devices % (tp * pp * cp):
                raise _Unreadable(f"tp {tp} x pp {pp} x cp {cp} does not divide {devices} devices")
            dp = devices // (tp * pp * cp)
            self.read(f"dp: {dp}, the devices that are left")
        return tp, pp, cp, dp

    def expert_degrees(self, model: Model, tp: int) -> tuple[int, int]:
        if not model.routed:
            return 1, 1
        ep = self.count("ep") or number_in(self.options, "ici_expert_parallelism") or 1
        return ep, self.count("etp") or (tp if self.stack.expert_tp and ep == 1 else 1)

    def zero(self, dp: int) -> tuple[Zero, bool]:
        stated = zero_of(self.cell("zero"), self.cell("dist_opt"))
        if stated is not None:
            return stated, False
        if dp > 1:
            self.read("ZeRO: the lowest stage that fits")
        return Zero(stage=0), dp > 1

    def seq(self) -> int:
        seq = self.count("seq_len")
        if seq is None:
            seq = default_seq_in(self.cell("notes"))
            if seq is None:
                raise _Unreadable("no sequence length")
            self.read(f"sequence: {seq}, the default by the notes")
        return seq

    def batches(self, devices: int, pp: int, dp: int, zero: Zero) -> tuple[int, int]:
        """Micro-batch and global batch."""
        micro, whole = self.count("mbs"), self.count("gbs")
        if whole is None:
            number = number_in(self.options, "num_microbatches", "micro_num")
            each = number_in(self.options, "per_device_batch_size", "per_device_batch")
            if micro and number:
                whole = micro * number * dp
            elif each:
                whole = each * devices
            else:
                raise _Unreadable("no global batch")
            self.read(f"global batch: {whole}, by the notes")
        if micro is None:
            if whole % dp:
                raise _Unreadable(f"{dp} replicas do not divide global batch {whole}")
            share = whole // dp
            micro = (
                1 if pp > 1 else share if zero.stage == 3 else next(n for n in BLANK_MICRO_BATCHES if share % n == 0)
            )
            self.read(f"micro-batch: {micro}")
        return micro, whole

    def pipeline(self, model: Model, pp: int) -> tuple[int, str]:
        """Virtual stages and schedule."""
        text = self.cell("schedule").lower()
        schedule = SCHEDULES.get(text)
        if text and schedule is None:
            raise _Unreadable(f"schedule {text!r} is unknown")
        vp = self.count("vp")
        if vp is None:
            vp = 2 if schedule == "zb-v" else 1
            if schedule == "interleaved":
                vp = _virtual(int(model.sizes["layers"]), pp)
                self.read(f"virtual stages: {vp}")
        if schedule is None:
            schedule = "interleaved" if vp > 1 and pp > 1 else "1f1b"
            if pp > 1:
                self.read(f"schedule: {schedule}")
        return vp, schedule

    def share_of_layers(self, recompute: Recompute, layers: int) -> Recompute:
        """Where both utilisations are published, they say how much ran twice: hardware counts a layer that is
        recomputed four times its forward pass, the model three times."""
        model, hardware = self.positive("mfu_pct"), self.positive("hfu_pct")
        if not (model and hardware and hardware >= model):
            return recompute
        share = min(1.0, 3 * (hardware / model - 1))
        self.read(f"recompute: {share:.0%} of the layers, by HFU over MFU")
        return replace(recompute, layers=round(share * layers)) if round(share * layers) else Recompute(kind="none")

    def recompute(self, layers: int) -> tuple[Recompute, bool]:
        recompute, how = recompute_of(self.cell("recompute"), self.stack.selective)
        if how:
            self.read(how)
        if recompute is None:
            self.read("recompute: between none and full")
        if recompute is not None and recompute.kind == "selective_layer":
            recompute = self.share_of_layers(recompute, layers)
        return recompute or Recompute(kind="none"), recompute is None

    def precision(self) -> str:
        text = self.cell("precision")
        precision = precision_of(text or "bf16")
        if precision is None:
            raise _Unreadable(f"precision {text!r} is unknown")
        if not text:
            self.read("precision: bf16")
        return precision

    def style(self) -> str:
        if "eager" in self.options:
            return "eager"
        return "compiled" if "compile" in self.options else self.stack.style

    def step_time(self) -> tuple[float | None, bool]:
        """The target, and whether it was computed from a rate."""
        best, reported = self.positive("step_time_best_s"), self.positive("step_time_s")
        rate, seq, whole = self.positive("tokens_per_s_per_gpu"), self.positive("seq_len"), self.positive("gbs")
        devices = self.positive("n_gpus")
        derived = reported is None or "step_time_derived" in self.options
        if best is None:
            best = reported
        if best is None and rate and seq and whole and devices:
            best = whole * seq / devices / rate
        return best, best is not None and derived


def stage_layers(layers: int, pp: int, vp: int = 1) -> tuple[int, ...]:
    """Layers of each virtual stage, in the order of the pipeline.

    Alike if that is possible; else the ends one less, for the embedding and the loss, if that is (an end may then hold
    nothing else); else the first ones hold one more.
    """
    stages = pp * vp
    if layers % stages and (layers + 2) % stages == 0 and stages > 1:
        each = (layers + 2) // stages
        return (each - 1, *(each for _ in range(stages - 2)), each - 1)
    each, more = divmod(layers, stages)
    return tuple(each + (index < more) for index in range(stages))


def _virtual(layers: int, pp: int) -> int:
    """The largest divisor, up to MOST_VIRTUAL, of the layers of a stage."""
    each = (layers if layers % pp == 0 else layers + 2) // pp
    return next(size for size in range(min(MOST_VIRTUAL, max(each, 1)), 0, -1) if each % size == 0)
