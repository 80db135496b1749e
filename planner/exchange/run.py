"""A run: a configuration and its workload as targets speak of them, in one normal form.

Two configurations that stand for the same plan have the same run: a way to share out layers has become their numbers,
"as much as there is room for" a number, and a name that says nothing of this run (a kind of attention over whole
sequences) its usual value. So runs can be compared field by field, and what differs is what a target could not say.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, fields, replace
from math import gcd
from typing import Any

from meshwright.ir.errors import BatchIndivisible, MeshwrightError
from meshwright.ir.names import CONTEXT, CONTEXTS
from meshwright.ir.names.counts import divisors
from meshwright.ir.names.degrees import FIRST_LAYERS, SPLITS
from meshwright.ir.names.stages import shared
from meshwright.ir.target.workload import Stack, Workload
from meshwright.planner.question.pins import Config, Pins

GATHERED = CONTEXT[0]
"""Attention that gathers keys and values, in a ring, and by heads."""
RING = next(kind for kind in CONTEXTS if len(CONTEXTS[kind].splits) > 1)
BY_HEADS = next(kind for kind in CONTEXTS if CONTEXTS[kind].heads)


@dataclass(frozen=True, slots=True, kw_only=True)
class Room:
    """What a run has to do with: the ranks, those of a host, those of a slice that fast links join (0: a host), the
    layers of the model (0: not known yet), and whether it has experts."""

    ranks: int
    per_host: int
    per_slice: int = 0
    layers: int = 0
    experts: bool = False


@dataclass(frozen=True, slots=True, kw_only=True)
class Run:
    """A training run in the names of a configuration (`planner.question.pins`).

    - `stages` has the layers of every (virtual) stage; it is empty where there is one.
    - `etp` is 1 where the model has no experts; `shard` counts copies, and is 0 where nothing is cut.
    - dp * mbs * microbatches are the sequences of a step.
    """

    tp: int
    pp: int
    dp: int
    cp: int
    ep: int
    etp: int
    vp: int
    zero: int
    shard: int
    regather: bool
    mbs: int
    microbatches: int
    schedule: str
    stages: tuple[int, ...]
    sp: bool
    context: str
    zigzag: bool
    recompute: str
    offload: str
    seq: int
    precision: str
    optimizer: str
    stack: Stack
    recipe: str

    @property
    def global_batch(self) -> int:
        return self.dp * self.mbs * self.microbatches

    @property
    def copies(self) -> int:
        """The ranks that hold the same parameters outside of experts."""
        return self.dp * self.cp


FIELDS = tuple(one.name for one in fields(Run))


def run_of(config: Config, workload: Workload, room: Room) -> Run:
    """The run that a configuration without open values is."""
    degrees = config.degrees()
    stages = config.pp * config.vp
    blocks = config.stage_blocks or (shared(room.layers, stages, config.split or SPLITS[0]) if stages > 1 else ())
    return settled(
        Run(
            **{name: getattr(config, name) for name in FIELDS if hasattr(config, name) and name != "etp"},
            etp=degrees.expert_tp,
            stages=blocks,
            seq=workload.seq,
            precision=workload.precision,
            optimizer=workload.optimizer,
            stack=workload.stack,
            recipe=workload.recipe or workload.stack.recipe,
        ),
        room,
    )


def settled(run: Run, room: Room) -> Run:
    """The run with usual values for names that say nothing of it."""
    own: dict[str, Any] = {}
    if run.tp == 1:
        own["sp"] = False
    if run.cp == 1:
        own |= {"context": GATHERED, "zigzag": False}
    if run.pp == 1:
        own |= {"schedule": "1f1b", "stages": (), "vp": 1}
    if not room.experts:
        own |= {"ep": 1, "etp": 1}
    if run.copies == 1:
        own["zero"] = 0
    zero = own.get("zero", run.zero)
    own["shard"] = (run.shard or run.copies) if zero else 0
    if zero < 3:
        own["regather"] = True
    if run.recompute == "selective:core_attn":
        own["recompute"] = "selective"
    most = max(own.get("stages", run.stages) or (room.layers,))
    word, _, number = run.recompute.partition(":")
    if word == FIRST_LAYERS and 0 < most <= int(number):
        own["recompute"] = "full"
    return replace(run, **own)


def with_degrees(run: Run, room: Room, **degrees: int) -> Run:
    """The run with other degrees: data parallelism takes what is left of the ranks, and micro-batches make up for it.
    Raises `BatchIndivisible` where no micro-batches do."""
    changed: dict[str, Any] = {"pp": run.pp, "tp": run.tp, "cp": run.cp} | degrees
    dp = max(1, room.ranks // (changed["pp"] * changed["tp"] * changed["cp"]))
    each, rest = divmod(run.global_batch, dp)
    if rest:
        raise BatchIndivisible(
            place="batch",
            cause=f"{run.global_batch} sequences for the dp={dp} copies that there would be",
            fix="plan with a global batch that they divide, or with more of the parallelism that the target has",
        )
    mbs = max(number for number in divisors(each) if number <= run.mbs)
    ep = gcd(run.ep, dp * changed["cp"] * changed["tp"])
    etp = run.etp if dp * changed["cp"] * changed["tp"] % (ep * run.etp) == 0 else 1
    shard = run.shard if run.shard and dp * changed["cp"] % run.shard == 0 and run.shard < run.copies else 0
    more: dict[str, Any] = {"dp": dp, "mbs": mbs, "microbatches": each // mbs, "ep": ep, "etp": etp, "shard": shard}
    zero = run.zero if run.copies > 1 else 1
    return settled(replace(run, **{**changed, **more, **degrees, "zero": zero}), room)


# What a run is priced by ---------------------------------------------------------------------------------------------


def pins_of(meant: Mapping[str, Any], room: Room) -> Pins:
    """What is pinned by what is known of a run. Names of which the run makes no use are left open."""
    known = {name: meant[name] for name in ("dp", "mbs", "microbatches", "zero") if name in meant}
    known |= {name: meant[name] for name in ("recompute", "offload") if meant.get(name, "none") != "none"}
    many = {name: meant.get(name, 1) for name in ("tp", "cp", "pp", "vp", "ep")}
    known |= {name: many[name] for name in ("tp", "cp", "pp", "ep") if many[name] > 1}
    if many["tp"] > 1 and "sp" in meant:
        known["sp"] = meant["sp"]
    if many["cp"] > 1:
        known |= {name: meant[name] for name in ("context", "zigzag") if name in meant}
    if many["pp"] > 1:
        known |= {"schedule": meant["schedule"]} if "schedule" in meant else {}
        known |= {"vp": many["vp"]} if many["vp"] > 1 else {}
        known |= _shared_out(tuple(meant.get("stages", ())), room)
    if room.experts and "etp" in meant:
        known["etp"] = meant["etp"]
    if meant.get("zero"):
        known["shard"] = meant.get("shard") or None
    if meant.get("zero") == 3 and "regather" in meant:
        known["regather"] = meant["regather"]
    return Pins(**known)


def _shared_out(stages: tuple[int, ...], room: Room) -> dict[str, Any]:
    """The word for how layers are shared out, or their numbers."""
    if not stages:
        return {}
    for split in SPLITS:
        try:
            if shared(room.layers, len(stages), split) == stages:
                return {"split": split}
        except MeshwrightError:
            continue
    return {"stage_blocks": stages}


def config_of(run: Run, room: Room) -> Config:
    """The configuration of a run."""
    known = {name: getattr(run, name) for name in FIELDS}
    pins = pins_of(known, room)
    return replace(pins.config, shard=0 if run.shard in (0, run.copies) else run.shard)


def workload_of(run: Run, like: Workload) -> Workload:
    """The workload of a run; what a run does not say is as in another one."""
    return replace(
        like,
        global_batch=run.global_batch,
        seq=run.seq,
        precision=run.precision,
        optimizer=run.optimizer,
        stack=run.stack,
        recipe=run.recipe,
    )


def unlike(one: Run, other: Run) -> tuple[str, ...]:
    """The fields in which two runs differ."""
    return tuple(name for name in FIELDS if getattr(one, name) != getattr(other, name))


def worded(value: object) -> str:
    """A value of a run as text."""
    if isinstance(value, Stack):
        return value.name
    if isinstance(value, bool):
        return "on" if value else "off"
    if isinstance(value, Iterable) and not isinstance(value, str):
        return "+".join(map(str, value)) or "none"
    return str(value)
