"""Pins: what a person fixes of a configuration, and how the rest is filled in.

    --fix tp=8,pp=4,recompute=full          words, each NAME=VALUE
    {"tp": 8, "pp": 4, "recompute": "full"} a line of --configs, the same names as keys

Both are read into `Pins`, which has what is pinned. `fill` makes a `Config` of them with the values that are
preferred, and says how else what nobody pinned may be; `Setting.settled`, which knows the model and the target, takes
the first way that works:

    tp pp cp ep        1; as many stages as `stage_blocks` has numbers
    vp                 1; 2 for schedules that are folded to a V
    etp                as much of tp as there is room for (`Degrees.expert_tp`)
    dp                 ranks / (tp pp cp): every copy counts, those that expert parallelism takes too
    mbs                1, or global batch / (dp microbatches) where micro-batches are pinned
    microbatches       global batch / (dp mbs)
    zero               1 where there are copies (dp cp > 1), else 0; another level where only that can be
    sp                 on where tp > 1 and sequences can be shared out so
    schedule           1f1b: with one stage gradients add up; interleaved where vp > 1
    context            all_gather, or another kind where only that can be
    zigzag             on where cp > 1 cuts the sequence inside attention (not Ulysses) and it can be cut so
    split              even, or ends where only that divides the layers, else spread
    stage_blocks       by split; 8+8+10+6 gives the layers of every (virtual) stage

Everything else starts as in `meshwright.ir.names.Degrees`, which knows what the names mean; `Config.degrees` is the way
there.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, fields, replace
from itertools import product
from math import prod
from operator import attrgetter
from typing import Any

from meshwright.ir.decisions.sharding import ZERO, Sharding
from meshwright.ir.errors import (
    BatchIndivisible,
    MeshwrightError,
    OffloadImpossible,
    PinRepeated,
    PinsContradict,
    PinUnknown,
    PinValue,
    nearest,
)
from meshwright.ir.names import CONTEXT, CONTEXTS, Degrees
from meshwright.ir.names.counts import check_ranks, microbatches
from meshwright.ir.names.degrees import RECOMPUTE, SPLITS
from meshwright.ir.schedules import CUSTOM, SCHEDULES
from meshwright.planner.question.knobs import COUNT, LAYERS, LEVEL, SWITCH, WAITING, knob, knobs_of, words

Value = int | str | bool

AGAIN = words(*RECOMPUTE, more="selective:A+B or full_layers:N")
"""What is given beyond the words is for `Degrees` to refuse."""
ORDER, ATTENTION, SPLIT = words(*SCHEDULES, CUSTOM), words(*CONTEXT), words(*SPLITS)


@dataclass(frozen=True, slots=True, kw_only=True)
class Config:
    """A configuration: every name that can be pinned, with its value. This is the table of knobs.

    - dp * tp * cp * pp are the ranks; dp * mbs * microbatches the global batch (`fill` sees to both).
    - `etp` and `shard` of 0 are Megatron's default and all copies, as in `Degrees`.
    """

    tp: int = knob(
        1, COUNT, "the ranks that share weights outside of experts", refills="dp microbatches etp sp", shown=True, off=1
    )
    pp: int = knob(
        1, COUNT, "the groups of ranks that stages run on", refills="dp microbatches vp schedule split stage_blocks",
        shown=True, off=1,
    )  # fmt: skip
    dp: int = knob(1, COUNT, "the ranks that share samples", refills="microbatches tp cp pp", shown=True)
    cp: int = knob(1, COUNT, "the ranks that share sequences", refills="dp microbatches context zigzag", off=1)
    ep: int = knob(1, COUNT, "the ranks that share experts", refills="etp", off=1)
    etp: int = knob(0, COUNT, "the ranks that share the weights of an expert", needs="ep", open=0)
    vp: int = knob(
        1, COUNT, "the stages of each group of ranks", needs="pp", refills="schedule split stage_blocks", off=1
    )
    shard: int = knob(0, COUNT, "the copies that share what is stored in shards", needs="zero", off=0, open=0)
    zero: int = knob(
        0, LEVEL, "how much of what copies have in common is stored in shards", needs="dp", refills="shard regather",
        shown=True, off=0,
    )  # fmt: skip
    mbs: int = knob(1, COUNT, "the sequences of a micro-batch on one copy", refills="microbatches", shown=True)
    microbatches: int = knob(1, COUNT, "the micro-batches of a step", refills="mbs", shown=True)
    recompute: str = knob("none", AGAIN, "what layers compute again in the backward pass", shown=True, off="none")
    schedule: str = knob(
        "1f1b", ORDER, "the order of a pipeline's work, and 1f1b without one", needs="pp",
        refills="vp split stage_blocks", shown=True,
    )  # fmt: skip
    sp: bool = knob(False, SWITCH, "whether tensor parallelism shares sequences too", needs="tp", off=False)
    context: str = knob(
        "all_gather", ATTENTION, "how attention meets tokens of other ranks, and all_gather without any", needs="cp",
        refills="zigzag",
    )  # fmt: skip
    zigzag: bool = knob(
        False, SWITCH, "whether ranks that share a sequence hold two pieces of it each", needs="cp", off=False
    )
    split: str = knob("even", SPLIT, "how layers are shared out among stages", open="")
    stage_blocks: tuple[int, ...] = knob((), LAYERS, "the layers of every stage", open=())
    """Layers of every (virtual) stage; without them `split` says how they are shared out."""
    regather: bool = knob(
        True, SWITCH, "whether sharded parameters are gathered again for the backward pass", needs="zero", off=False
    )
    offload: str = knob("none", WAITING, "what waits in the host's memory", off="none")
    open: tuple[tuple[str, tuple[Value, ...]], ...] = ()
    """What nobody asked for and how else it may be, the preferred value first in its field: until it is settled."""

    def workable(self, judge: Callable[[Config], object]) -> Config:
        """The first way to fill in the open values to which nothing objects, as close to the preferred way as possible.
        If all ways are refused, the refusal of the preferred one is raised."""
        refusal: MeshwrightError | None = None
        for ways in sorted(product(*(range(len(others) + 1) for _, others in self.open)), key=_otherwise):
            chosen: dict[str, Any] = {
                name: others[way - 1] for (name, others), way in zip(self.open, ways, strict=True) if way
            }
            config = replace(self, open=(), **chosen)
            try:
                judge(config)
            except MeshwrightError as error:
                refusal = refusal or error
            else:
                return config
        assert refusal is not None, "there is one way at least"
        raise refusal

    def __str__(self) -> str:
        """The configuration as --fix takes it: the degrees, and every other value that differs from its default."""
        usual = QUIET | {"sp": self.tp > 1, "zigzag": self.cp > 1}
        return ",".join(f"{name}={word(value)}" for name, value in self.to_json().items() if usual.get(name) != value)

    @property
    def batch(self) -> int:
        """Sequences that all copies process together at a time."""
        return self.mbs * self.dp

    @property
    def compute(self) -> tuple[Value, ...]:
        """The values that decide how the operators of bodies are split, as a key."""
        return self.tp, self.dp, self.cp, self.ep, self.etp, self.mbs, self.sp, self.context, self.zigzag

    @property
    def kind(self) -> tuple[Value, ...]:
        """The values that decide the plans of bodies, as a key: configurations of one kind share them."""
        return *self.compute, self.zero, self.shard, self.regather, self.recompute

    def to_json(self) -> dict[str, Value]:
        """Every field, by name."""
        return {name: plain(getattr(self, name)) for name in NAMES}

    @property
    def sharding(self) -> Sharding:
        """The tensors of a parameter that its copies share out (ZeRO)."""
        return ZERO[self.zero]

    def degrees(self) -> Degrees:
        """The degrees that the configuration's names stand for."""
        shared = dict(zip(SHARED, _shared(self), strict=True))
        shared["split"] = self.split or SPLITS[0]
        return Degrees(**shared, sequence_parallel=self.sp)


KNOBS = knobs_of(Config)
NAMES = tuple(KNOBS)
SHARED = tuple(one.name for one in fields(Degrees) if one.name in KNOBS)
"""The names that mean the same in `Degrees`."""
_shared = attrgetter(*SHARED)


def plain(value: Any) -> Value:
    """A value in the form that --fix and JSON use."""
    return "+".join(map(str, value)) if isinstance(value, tuple) else value


def word(value: object) -> str:
    """A value as text; a switch reads on or off."""
    return ("on" if value else "off") if isinstance(value, bool) else str(value)


QUIET = {name: plain(one.default) for name, one in KNOBS.items() if not one.shown}
"""What is not said where it is as it starts."""


def _otherwise(ways: tuple[int, ...]) -> tuple[int, tuple[int, ...]]:
    """Sort key of ways to fill in open values: the number of values that differ from the preferred ones, then which
    ones."""
    return sum(way > 0 for way in ways), ways


@dataclass(frozen=True, slots=True, init=False)
class Pins:
    """Pinned values, by name; a name that is missing is open. `parse` and `read` check the values."""

    given: Mapping[str, Any]

    def __init__(self, **given: Any) -> None:
        """Keep the given values; None means open."""
        if unknown := given.keys() - KNOBS:
            raise TypeError(f"no names of a configuration: {', '.join(sorted(unknown))}")
        object.__setattr__(self, "given", {name: given[name] for name in NAMES if given.get(name) is not None})

    def __contains__(self, name: str) -> bool:
        return name in self.given

    @property
    def config(self) -> Config:
        """The configuration with these values pinned, and defaults for all others."""
        return Config(**self.given)

    def over(self, others: Pins) -> Pins:
        """These pins on top of others."""
        return Pins(**{**others.given, **self.given})

    def to_json(self) -> dict[str, Value]:
        """The pinned values, by name."""
        return {name: plain(value) for name, value in self.given.items()}


_LINE_ENDS = re.compile(r"\s*\n\s*")


# Reading -------------------------------------------------------------------------------------------------------------


def parse(texts: Iterable[str]) -> Pins:
    """Read the values of --fix, which may be given several times; a long one may go on in further lines, as it is
    printed."""
    found: dict[str, str] = {}
    for word in (word.strip() for text in texts for word in _LINE_ENDS.sub("", text).split(",")):
        if not word:
            continue
        name, equals, value = (part.strip() for part in word.partition("="))
        if not equals:
            example = KNOBS[name].kind.example if name in KNOBS else "8"
            raise PinValue(
                place=f"--fix {word}", cause="there is no value", fix=f"write {name}={example}, for instance"
            )
        if name in found:
            raise PinRepeated(
                place=f"--fix {word}", cause=f"{name} is given twice: {found[name]} and {value}", fix="give it once"
            )
        found[name] = value
    return read(found, "--fix")


def read(found: Mapping[str, object], place: str) -> Pins:
    """Read pins from names and values, as text or as JSON has them."""
    return Pins(**{name: _value(name, value, place) for name, value in found.items()})


def _value(name: str, value: object, place: str) -> Any:
    if name not in KNOBS:
        meant = nearest(name, NAMES)
        raise PinUnknown(
            place=place,
            cause=f"{name!r} cannot be pinned",
            fix=f"did you mean {meant!r}?" if meant else f"use {', '.join(NAMES)}",
        )
    text, kind = word(value), KNOBS[name].kind
    try:
        found = kind.read(text)
    except OffloadImpossible as error:
        raise PinValue(place=f"{place} {name}={text}", cause=error.cause, fix=error.fix) from error
    if found is None:
        meant = nearest(text, kind.words)
        raise PinValue(
            place=f"{place} {name}={text}",
            cause=f"{text!r} is no value of {name}",
            fix=f"did you mean {name}={meant}?" if meant else f"use {kind.said}",
        )
    return found


# Filling in ----------------------------------------------------------------------------------------------------------


def fill(pins: Pins, *, ranks: int, global_batch: int, place: str = "--fix") -> Config:
    """The configuration that pins mean on a number of ranks."""
    pins = _staged(pins)
    asked = pins.config
    tp, pp, cp = asked.tp, asked.pp, asked.cp
    if asked.schedule == CUSTOM:
        raise PinsContradict(
            place=place,
            cause="schedule=custom is an order of work that the search makes for a plan; names alone do not say it",
            fix="name another schedule, or let `plan MODEL --fix schedule=custom` make one",
        )
    vp = asked.vp if "vp" in pins else 2 if pp > 1 and SCHEDULES[asked.schedule].vee else 1
    dp = _copies(asked, ranks, left="dp" not in pins)
    mbs, count = _batches(pins, asked, dp, global_batch, place)
    zero = asked.zero if "zero" in pins else int(dp * cp > 1)
    zigzag = cp > 1 and (asked.zigzag if "zigzag" in pins else not CONTEXTS[asked.context].heads)
    sp = tp > 1 and (asked.sp or "sp" not in pins)
    if vp > 1 and pp == 1:
        raise PinsContradict(
            place=place, cause=f"vp={vp} virtual stages without a pipeline (pp=1)", fix="pin pp too, or leave vp out"
        )
    if asked.shard and not zero:
        raise PinsContradict(
            place=place,
            cause=f"shard={asked.shard}, and zero={zero} cuts nothing",
            fix="pin zero=1, 2 or 3 too",
        )
    others: Mapping[str, tuple[Value, ...]] = {
        "sp": (False,) if sp else (),
        "zigzag": (False,) if zigzag else (),
        "etp": (1,) if tp > 1 else (),
        "split": SPLITS[1:] if pp > 1 and not asked.stage_blocks else (),
        "context": CONTEXT[1:] if cp > 1 else (),
        "zero": (*(level for level in ZERO if level > 1), *(() if asked.shard else (0,))) if zero else (),
    }
    return replace(
        asked,
        dp=dp,
        vp=vp,
        zero=zero,
        mbs=mbs,
        microbatches=count,
        schedule=asked.schedule if "schedule" in pins else "interleaved" if vp > 1 else "1f1b",
        sp=sp,
        zigzag=zigzag,
        open=tuple((name, ways) for name, ways in others.items() if ways and name not in pins),
    )


def _staged(pins: Pins) -> Pins:
    """The pins with as many stages as they list layers for."""
    asked = pins.config
    stages = len(asked.stage_blocks)
    if "pp" not in pins and stages and stages % asked.vp == 0:
        return Pins(pp=stages // asked.vp).over(pins)
    if "vp" not in pins and stages % asked.pp == 0 and stages > asked.pp > 1:
        return Pins(vp=stages // asked.pp).over(pins)
    return pins


def _copies(asked: Config, ranks: int, *, left: bool) -> int:
    """The degree of data parallelism: pinned, or whatever ranks remain."""
    others = {"tp": asked.tp, "cp": asked.cp, "pp": asked.pp}
    dp = max(1, ranks // prod(others.values())) if left else asked.dp
    check_ranks(others | {"dp": dp}, ranks)
    return dp


def _batches(pins: Pins, asked: Config, dp: int, global_batch: int, place: str) -> tuple[int, int]:
    """The sequences of a micro-batch, and the number of micro-batches."""
    if "microbatches" in pins and "mbs" not in pins:
        mbs, rest = divmod(global_batch, dp * asked.microbatches)
        if rest or not mbs:
            raise BatchIndivisible(
                place=place,
                cause=f"{global_batch} sequences for dp * microbatches = {dp} * {asked.microbatches}",
                fix="pin mbs instead, or numbers whose product divides the global batch",
            )
        return mbs, asked.microbatches
    count = microbatches(global_batch, dp, asked.mbs)
    if "microbatches" in pins and count != asked.microbatches:
        raise PinsContradict(
            place=place,
            cause=f"{global_batch} sequences on dp={dp} copies are {count} micro-batches of mbs={asked.mbs}, not "
            f"{asked.microbatches}",
            fix="pin one of the two",
        )
    return asked.mbs, count
