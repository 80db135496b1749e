"""Published training runs, read: a row in, a `Run` out, or a `Skipped` that says why.

    read_configurations(csv, models)   every row, in order: Run | Skipped
    read_runs(csv, models)             the same, and skipped if nothing was measured

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
    ZeRO            that of the stack's recipes; else the lowest stage that fits: `runs.zero_stages`, decided by who
                    prices; none without data parallelism
    recompute       the least that fits of none, selective and full (`runs.readings`), decided by who prices
    framework       by its words (`stacks`)
    partition       as stated, modules beside the layers counted off
    precision       bf16
    hosts           8 devices each, or 4 TPUs; fewer if the devices are fewer

The target is `step_time_best_s`, or else step_time_s, or else what tokens per second per device give; `derived` says
that a time was computed rather than reported.
"""

from __future__ import annotations

import csv
import re
from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path

from benchmarks.cells import (
    SCHEDULES,
    Recompute,
    Zero,
    default_seq_in,
    finite,
    memory_bytes,
    nic_of,
    number_in,
    options_of,
    partition_in,
    precision_of,
    recompute_of,
    zero_of,
)
from benchmarks.models import Model
from benchmarks.runs import Run, Skipped, stage_layers
from benchmarks.stacks import stack_of
from meshwright.cost_models.hardware.devices import Device, device
from meshwright.cost_models.hardware.parts import Nic
from meshwright.cost_models.hardware.quantity import Quantity
from meshwright.ir.errors import DeviceUnknown

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


class _Unreadable(Exception):
    """Why a row cannot be priced."""


def read_configurations(path: Path, models: Mapping[str, Model]) -> tuple[Run | Skipped, ...]:
    """Every row of a table of runs, whatever was measured."""
    with path.open(newline="", encoding="utf-8-sig") as file:
        return tuple(
            read_configuration(index, {key: (cell or "").strip() for key, cell in row.items() if key}, models)
            for index, row in enumerate(csv.DictReader(file))
        )


def read_runs(path: Path, models: Mapping[str, Model]) -> tuple[Run | Skipped, ...]:
    """Every row of a table of runs."""
    return tuple(map(measured, read_configurations(path, models)))


def read_row(index: int, row: Mapping[str, str], models: Mapping[str, Model]) -> Run | Skipped:
    """One row."""
    return measured(read_configuration(index, row, models))


def measured(row: Run | Skipped) -> Run | Skipped:
    """The row, or why nothing can be held against it."""
    if isinstance(row, Skipped) or row.measured:
        return row
    return Skipped(row=row.row, source=row.source, model=row.model.name, reason="no step time, memory or outcome")


def read_configuration(index: int, row: Mapping[str, str], models: Mapping[str, Model]) -> Run | Skipped:
    """One row, whatever was measured."""
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


class _Reader:
    """One row; the order of the methods is the order in which blanks can be filled."""

    def __init__(self, row: Mapping[str, str], models: Mapping[str, Model]) -> None:
        self.row, self.models = row, models
        self.readings: list[str] = []
        self.options = options_of(self.cell("notes"), self.cell("moe_routing"))
        self.stack = stack_of(self.cell("framework"), self.cell("gpu"))
        if self.stack.name != self.cell("framework").strip().lower():
            self.read(f"framework: {self.stack.name}, by the words of {self.cell('framework')!r}")

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
        one, beside, hosts, gpus = self.machines()
        devices = hosts * gpus
        tp, pp, cp, dp = self.degrees(devices)
        ep, etp = self.expert_degrees(model, tp)
        zero, zero_open = self.zero(dp, pp)
        micro_batch, global_batch = self.batches(devices, pp, dp, zero)
        vp, schedule = self.pipeline(model, pp)
        own_schedule = self.cell("schedule").lower().endswith("_custom")
        if own_schedule:
            self.read(f"schedule: {schedule}, as far as theirs is known")
        recompute, recompute_open = self.recompute(stage_layers(int(model.sizes["layers"]), pp)[0])
        step_time_s, derived = self.step_time()
        text = self.cell("recompute")
        offloaded = re.search(r"layers:(\d+)", self.cell("offload"))
        if offloaded:
            self.read(f"offload of {offloaded[1]} layers: of the first ones of every stage")
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
            beside=beside,
            hosts=hosts,
            gpus_per_host=gpus,
            nic=self.nic(one, beside, gpus),
            tp=tp,
            pp=pp,
            vp=vp,
            cp=cp,
            ep=ep,
            etp=etp,
            dp=dp,
            degrees_open=not any(self.cell(key) for key in ("tp", "pp", "dp")),
            zero=zero,
            zero_open=zero_open,
            recompute=recompute,
            recompute_open=recompute_open,
            sequence_parallel=tp > 1 and (self.stack.sequence_parallel or "seqpar" in text),
            schedule=schedule,
            own_schedule=own_schedule,
            partition=self.partition(int(model.sizes["layers"]), pp),
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

    def machines(self) -> tuple[Device, tuple[tuple[Device, int], ...], int, int]:
        """A device, others with the number of their hosts, all hosts, and devices of each."""
        (first, one), *others = self.kinds()
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
        hosts = devices // gpus
        if not others:
            return one, (), hosts, gpus
        counts = [first, *(count for count, _ in others)]
        if sum(counts) != hosts:
            each, left = divmod(hosts, len(counts))
            if left or not each:
                raise _Unreadable(f"{hosts} hosts are not shared by {len(counts)} kinds of device alike")
            counts = [each] * len(counts)
            self.read(f"hosts of each kind of device: {each}")
        return one, tuple((kind, count) for (_, kind), count in zip(others, counts[1:], strict=True)), hosts, gpus

    def kinds(self) -> list[tuple[int, Device]]:
        """Devices with numbers of hosts: `H100`, `mixed:V100+T4`, `2xV100 + 6xT4`; 1 where none is said."""
        text = re.sub(r"\(.*?\)|^mixed:", "", self.cell("gpu"))
        found = []
        for part in text.split("+"):
            number, name = re.fullmatch(r"(?s)\s*(?:([1-9]\d*)\s*x\s*)?(.*?)\s*", part).groups()  # type: ignore[union-attr]
            try:
                found.append((int(number or 1), device(name)))
            except DeviceUnknown:
                raise _Unreadable(f"device {name!r} is unknown" if name else "no device") from None
        return found

    def nic(self, one: Device, beside: tuple[tuple[Device, int], ...], gpus: int) -> Nic | None:
        usual = one.nic if all(other.nic for other, _ in beside) else None
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

    def zero(self, dp: int, pp: int) -> tuple[Zero, bool]:
        stated = zero_of(self.cell("zero"), self.cell("dist_opt"))
        if stated is not None and stated.stage == 3 and pp > 1 and self.stack.gathers_once and stated.regather:
            self.read("ZeRO-3: parameters stay gathered in pipelines")
            stated = replace(stated, regather=False)
        if stated is None and self.stack.zero is not None and dp > 1:
            self.read(f"ZeRO: {self.stack.zero}, as in recipes of {self.stack.name}")
            stated = Zero(stage=self.stack.zero)
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

    def partition(self, layers: int, pp: int) -> tuple[int, ...]:
        """Layers of each stage, where that is stated."""
        found = partition_in(self.cell("notes"), layers)
        if found and (len(found) != pp or sum(found) != layers or not all(found)):
            self.read(f"partition {found}: not one of {layers} layers over {pp} stages, hence left out")
            return ()
        return found

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


def _virtual(layers: int, pp: int) -> int:
    """The largest divisor, up to MOST_VIRTUAL, of the layers of a stage."""
    each = (layers if layers % pp == 0 else layers + 2) // pp
    return next(size for size in range(min(MOST_VIRTUAL, max(each, 1)), 0, -1) if each % size == 0)
