"""Degrees: a configuration as people write it, and the mesh that it stands for.

Sizes are counted as trainers count them. One pipeline stage has dp x cp x tp ranks, arranged twice: *outside* the
experts as dp, cp, tp, and *inside* them as dp', ep, etp, each time with the last varying fastest, so that

    ranks = dp * cp * tp * pp        dp counts every copy, those that expert parallelism takes too
    ep * etp divides dp * cp * tp    what is left, dp', is the number of copies of the experts

This is the arrangement of Megatron-Core's parallel folding (order tp-cp-ep-dp-pp, arXiv 2504.14960). A mesh axis is a
piece of the stage on which both arrangements are of one mind; its name says what it does outside and, if that is not
the usual counterpart (dp, ep for dp; dp for cp; tp for tp), inside:

    dp=16 ep=4                    dp=4 ep=4             4 copies of the experts
    dp=4 tp=8 ep=8 etp=1          dp=4 tp_ep=8          tensor parallel outside, expert parallel inside
    dp=4 tp=4 ep=4 etp=2          dp=2 ep=2 tp_ep=2 tp=2

Storage is sharded over `shard` of the ranks that hold copies, the nearest ones (HSDP, hierarchical ZeRO; 0: over all).
Pieces that hold copies for one use and are stored differently are told apart: dp (replicates), dp_shard (shards).
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, replace
from functools import lru_cache
from math import prod
from typing import Any

from meshwright.ir.decisions.offload import Offload
from meshwright.ir.decisions.sharding import ZERO, Sharding
from meshwright.ir.errors import DegreeImpossible
from meshwright.ir.names import counts
from meshwright.ir.sharding.layouts import CONTIGUOUS, ZIGZAG, Plain
from meshwright.ir.sharding.mesh import Mesh, MeshAxis


@dataclass(frozen=True, slots=True)
class ContextKind:
    """One way in which attention meets the tokens of other ranks, under context parallelism."""

    splits: tuple[str, ...]
    """The factors of attention that the axis splits meanwhile."""
    called: str
    """The use of the axis, as plans show it."""
    said: str
    """For people, behind "attention"."""

    @property
    def heads(self) -> bool:
        """Whether the axis splits heads while attention runs, so that each rank has whole sequences of some."""
        return self.splits == ("hk",)


CONTEXTS: Mapping[str, ContextKind] = {
    "all_gather": ContextKind(("sq",), "cp", "keys and values gathered"),
    "ring": ContextKind(("sq", "sk"), "cp (ring)", "in a ring"),
    "ulysses": ContextKind(("hk",), "cp (ulysses)", "by heads, all-to-all (Ulysses)"),
}
CONTEXT = tuple(CONTEXTS)
"""The words for them, the usual one first."""

RECOMPUTE = ("none", "full", "selective", "selective_op")
"""What is computed again in the backward pass, beside `selective:` and modules; see `meshwright.ir.names.recompute`."""

FIRST_LAYERS = "full_layers"
"""Before a colon and a number: that many layers of every (virtual) stage in full, the others not at all."""

MODULES = ("core_attn", "layernorm", "moe_act", "mla_up_proj")
"""The parts of a block that selective recomputation knows."""

SPLITS = ("even", "ends", "spread")
"""How layers are shared out among stages; see `meshwright.ir.names.stages`."""

SEQUENCE = "s"
BATCH = "b"
"""The loops over positions of a sequence, and over sequences."""


@dataclass(frozen=True, slots=True)
class Degree:
    """One named way to use a mesh axis: the loops it splits, by preference, and what to call it in words."""

    name: str
    loops: tuple[str, ...]
    meaning: str


TABLE = (
    Degree("dp", ("b", "slots"), "data parallelism"),
    Degree("cp", ("s", "slots"), "context parallelism"),
    Degree("tp", ("heads", "group", "ffn", "vocab", "channels"), "tensor parallelism"),
    Degree("ep", ("b", "experts", "slots"), "expert parallelism"),
)
"""Every named degree, one line each."""


@dataclass(frozen=True, slots=True)
class Use:
    """The use of one mesh axis: outside the experts, inside them, and whether storage is sharded over it."""

    name: str
    size: int
    outside: str
    inside: str
    stores: bool

    def holds_copies(self, *, expert: bool) -> bool:
        """Whether parameters of this kind are copied along the axis because it splits nothing of them: the copies that
        ZeRO cuts."""
        return self.inside == "dp" if expert else self.outside in ("dp", "cp")


@dataclass(frozen=True, slots=True)
class Degrees:
    """A configuration as people write it.

    - All sizes must be at least 1; `etp` of 0 is Megatron's default, as much of tp as the ranks of a stage allow.
    - ep * etp must divide dp * cp * tp, and every boundary between axes outside the experts must fit those inside.
    - `shard` of 0 shards storage over all copies; otherwise over that many, the nearest.
    - `stage_blocks` gives the layers of every (virtual) stage; without it `split` says how they are shared out.
    """

    dp: int = 1
    tp: int = 1
    cp: int = 1
    ep: int = 1
    pp: int = 1
    vp: int = 1
    etp: int = 0
    sequence_parallel: bool = False
    context: str = "all_gather"
    zigzag: bool = False
    zero: int = 0
    shard: int = 0
    regather: bool = True
    recompute: str = "none"
    schedule: str = "gpipe"
    microbatches: int = 1
    split: str = "even"
    stage_blocks: tuple[int, ...] = ()
    offload: str = "none"
    """What waits in the host's memory; see `meshwright.ir.decisions.offload`."""

    def __post_init__(self) -> None:
        for name in ("dp", "tp", "cp", "ep", "pp", "vp", "microbatches"):
            if getattr(self, name) < 1:
                raise DegreeImpossible(place=name, cause=f"{name}={getattr(self, name)}", fix="use at least 1")
        if self.recompute not in RECOMPUTE and not self.first_layers:
            recompute_parts(self.recompute)
        for name, known in (("context", CONTEXT), ("split", SPLITS)):
            if getattr(self, name) not in known:
                raise DegreeImpossible(
                    place=name, cause=f"{name}={getattr(self, name)!r}", fix=f"use one of {', '.join(known)}"
                )
        if self.zero not in ZERO:
            raise DegreeImpossible(place="zero", cause=f"ZeRO-{self.zero}", fix="use 0, 1, 2 or 3")
        if self.stage_blocks and len(self.stage_blocks) != self.stages:
            raise DegreeImpossible(
                place="stage_blocks",
                cause=f"{len(self.stage_blocks)} numbers of layers for pp * vp = {self.stages} stages",
                fix=f"give {self.stages}",
            )
        Offload.parse(self.offload)
        uses(self)

    def __hash__(self) -> int:
        """A hash of the values that tell most degrees apart: degrees are keys everywhere."""
        return hash((self.dp, self.tp, self.cp, self.ep, self.pp, self.zero, self.recompute, self.microbatches))

    @staticmethod
    def of(*, ranks: int, global_batch: int, mbs: int = 1, **pins: Any) -> Degrees:
        """Degrees from pins, on a cluster of `ranks` with a global batch in sequences: dp is what the others leave,
        unless it is pinned; micro-batches make up the batch."""
        others = prod(int(pins.get(name, 1)) for name in ("tp", "cp", "pp"))
        dp = int(pins.get("dp", max(1, ranks // others)))
        counts.check_ranks({name: int(pins.get(name, 1)) for name in ("tp", "cp", "pp")} | {"dp": dp}, ranks)
        return Degrees(**pins | {"dp": dp, "microbatches": counts.microbatches(global_batch, dp, mbs)})

    def check_ranks(self, ranks: int) -> None:
        """Check that the degrees multiply to the ranks of the cluster."""
        counts.check_ranks({"tp": self.tp, "cp": self.cp, "pp": self.pp, "dp": self.dp}, ranks)

    @property
    def first_layers(self) -> int:
        """The number of layers of every stage that are recomputed in full, under "full_layers:N"; 0 if all are treated
        alike."""
        word, _, number = self.recompute.partition(":")
        return int(number) if word == FIRST_LAYERS and number.isdecimal() else 0

    @property
    def sharding(self) -> Sharding:
        """The tensors of a parameter that copies share out (ZeRO)."""
        return ZERO[self.zero]

    @property
    def stages(self) -> int:
        """The number of stages, virtual ones counted."""
        return self.pp * self.vp

    @property
    def stage_ranks(self) -> int:
        return self.dp * self.cp * self.tp

    @property
    def ranks(self) -> int:
        return self.stage_ranks * self.pp

    @property
    def expert_tp(self) -> int:
        """Tensor parallelism inside the experts: as given, else tp if a stage has room for ep times it, else 1."""
        return self.etp or (self.tp if self.stage_ranks % (self.ep * self.tp) == 0 else 1)

    @property
    def order(self) -> str:
        """The schedule by its full name: 1F1B over several virtual stages is the interleaved one. On one stage there is
        nothing to fill: the backward pass of each of several micro-batches follows at once."""
        if self.pp == self.vp == 1 and self.microbatches > 1:
            return "1f1b"
        return "interleaved" if self.vp > 1 and self.schedule == "1f1b" else self.schedule

    def of_body(self) -> Degrees:
        """The degrees that concern a body: the same for every pipeline, schedule and number of micro-batches."""
        alike: dict[str, Any] = {"pp": 1, "vp": 1, "schedule": "gpipe", "microbatches": 1, "offload": "none"}
        return replace(self, split="even", stage_blocks=(), **alike)

    def of_compute(self) -> Degrees:
        """The degrees that concern the operators of a body: the same for every storage and recomputation."""
        return _of_compute(self)

    def mesh(self) -> Mesh:
        """The mesh of one stage: slow axes outside, tensor parallelism innermost. Sizes of 1 leave an axis out."""
        return _mesh(tuple((use.name, use.size) for use in uses(self)))

    def use(self, axis: str) -> Use:
        return next(use for use in uses(self) if use.name == axis)

    def preferences(self, axis: str, *, expert: bool = False) -> tuple[str, ...]:
        """The loops that an axis splits, best first, in an operator outside or inside (`expert`) the experts."""
        use = self.use(axis)
        sequence = (SEQUENCE,) if use.outside == "tp" and self.sequence_parallel else ()
        if not expert:
            return (*_DENSE[use.outside], *sequence)
        tokens = sequence if use.outside == "tp" else _DENSE[use.outside]
        return (*tokens, *_EXPERT[use.inside])

    def layout(self, axis: str) -> Plain:
        return ZIGZAG if self.use(axis).outside == "cp" and self.zigzag else CONTIGUOUS


def recompute_parts(kind: str) -> tuple[str, ...]:
    """The modules that a selective recomputation names; core attention, if none."""
    word, colon, named = kind.partition(":")
    parts = tuple(named.split("+")) if colon else ("core_attn",)
    if word != "selective" or not set(parts) <= set(MODULES):
        raise DegreeImpossible(
            place="recompute",
            cause=f"recompute={kind!r}",
            fix=f"use one of {', '.join(RECOMPUTE)}, {FIRST_LAYERS}:N, or selective: and some of {'+'.join(MODULES)}",
        )
    return parts


_DENSE = {"dp": ("b",), "cp": (SEQUENCE,), "tp": ("heads", "group", "ffn", "vocab", "channels")}
_EXPERT = {"dp": ("slots",), "ep": ("experts", "slots"), "tp": ("ffn",)}
_USUAL = {("dp", "dp"): "dp", ("dp", "ep"): "ep", ("cp", "dp"): "cp", ("tp", "tp"): "tp"}


@lru_cache(maxsize=4096)
def _mesh(axes: tuple[tuple[str, int], ...]) -> Mesh:
    """One object for equal meshes: as a key, that is quicker to compare."""
    return Mesh(tuple(MeshAxis(name, size) for name, size in axes))


@lru_cache(maxsize=4096)
def _of_compute(degrees: Degrees) -> Degrees:
    return replace(degrees.of_body(), zero=0, regather=True, recompute="none")


def uses(degrees: Degrees) -> tuple[Use, ...]:
    """The axes of a stage's mesh, major to minor."""
    return _uses(degrees.dp, degrees.tp, degrees.cp, degrees.ep, degrees.expert_tp, degrees.shard)


@lru_cache(maxsize=4096)
def _uses(dp: int, tp: int, cp: int, ep: int, etp: int, shard: int) -> tuple[Use, ...]:
    """The axes of a stage's mesh follow from these sizes, whatever the schedule and the number of micro-batches."""
    found = list(_pieces(dp, tp, cp, ep, etp, shard))
    names = [use.name for use in found]
    told = [
        replace(use, name=f"{use.name}_shard") if use.stores and names.count(use.name) > 1 else use for use in found
    ]
    return tuple(reversed(told))


def _pieces(dp: int, tp: int, cp: int, ep: int, etp: int, shard: int) -> Iterator[Use]:
    """The axes between neighbouring boundaries of the two arrangements and of storage, minor to major."""
    ranks = dp * cp * tp
    outside = (("tp", tp), ("cp", tp * cp), ("dp", ranks))
    inside = (("tp", etp), ("ep", etp * ep), ("dp", ranks))
    stored = tp * shard if shard else ranks
    if ranks % (ep * etp):
        raise DegreeImpossible(
            place="ep",
            cause=f"ep * etp = {ep} * {etp} does not divide dp * cp * tp = {ranks}",
            fix=f"use an ep * etp that divides {ranks}, the ranks of one pipeline stage",
        )
    if dp * cp % (shard or 1):
        raise DegreeImpossible(
            place="shard",
            cause=f"storage over {shard} of dp * cp = {dp * cp} copies",
            fix=f"use a divisor of {dp * cp}",
        )
    low = 1
    for high in sorted({stored, *(to for _, to in (*outside, *inside))} - {1}):
        if high % low:
            raise DegreeImpossible(
                place="ep",
                cause=f"runs of {low} and of {high} ranks do not nest (tp={tp} cp={cp} dp={dp} outside the "
                f"experts, etp={etp} ep={ep} inside, storage over {shard or 'all'})",
                fix="use degrees that divide one another, powers of two for instance",
            )
        one, other = _at(outside, high), _at(inside, high)
        name = _USUAL.get((one, other), f"{one}_{other}")
        yield Use(name, high // low, one, other, high <= stored)
        low = high


def _at(arrangement: tuple[tuple[str, int], ...], high: int) -> str:
    """The axis of an arrangement that reaches up to this boundary."""
    return next(name for name, to in arrangement if high <= to)
