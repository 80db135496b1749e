"""Pins: what a person fixes of a configuration, and how the rest is filled in.

    --fix tp=8,pp=4,recompute=full          words, each NAME=VALUE
    {"tp": 8, "pp": 4, "recompute": "full"} a line of --configs, the same names as keys

Both are read into `Pins`, where what is not pinned is None. `fill` makes a `Config` of them with the values that are
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
    context            all_gather, or ring or ulysses where only that can be
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
from typing import Any

from meshwright.ir.decisions.offload import NOTHING, Offload
from meshwright.ir.decisions.sharding import ZERO as SHARDING
from meshwright.ir.decisions.sharding import Sharding
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
from meshwright.ir.names import CONTEXT, Degrees
from meshwright.ir.names.counts import check_ranks, microbatches
from meshwright.ir.names.degrees import RECOMPUTE, SPLITS
from meshwright.ir.schedules import CUSTOM, SCHEDULES

Value = int | str | bool

COUNTS = ("tp", "pp", "dp", "cp", "ep", "etp", "vp", "mbs", "microbatches", "shard")
SWITCHES = ("sp", "zigzag", "regather")
WORDS: Mapping[str, tuple[str, ...]] = {
    "recompute": RECOMPUTE,
    "schedule": (*SCHEDULES, CUSTOM),
    "context": CONTEXT,
    "split": SPLITS,
}
DIGITS = 9
"""Of a count, at most."""
BLOCKS = re.compile(r"\d{1,9}(\+\d{1,9})*", re.ASCII)
"""The layers of stages, as --fix takes them."""
ZERO = tuple(map(str, SHARDING))
_SWITCH = {"on": True, "off": False}


@dataclass(frozen=True, slots=True, kw_only=True)
class Pins:
    """What is fixed; None is open. Sizes are at least 1, words are among those known (`parse` and `read` see to it)."""

    tp: int | None = None
    pp: int | None = None
    dp: int | None = None
    cp: int | None = None
    ep: int | None = None
    etp: int | None = None
    vp: int | None = None
    shard: int | None = None
    """Ranks that share one copy of what ZeRO cuts (HSDP)."""
    zero: int | None = None
    mbs: int | None = None
    """Sequences of one micro-batch on one data-parallel copy."""
    microbatches: int | None = None
    recompute: str | None = None
    schedule: str | None = None
    sp: bool | None = None
    """Sequence parallelism beside tp."""
    context: str | None = None
    zigzag: bool | None = None
    split: str | None = None
    stage_blocks: tuple[int, ...] | None = None
    regather: bool | None = None
    offload: str | None = None
    """What waits in the host's memory (`meshwright.ir.decisions.offload`)."""

    def over(self, others: Pins) -> Pins:
        """These pins, and the others where these leave something open."""
        return Pins(**{**_given(others), **_given(self)})

    def to_json(self) -> dict[str, Value]:
        """What is pinned."""
        return {name: _plain(value) for name, value in _given(self).items()}


def _given(pins: Pins) -> dict[str, Any]:
    return {name: value for name in NAMES if (value := getattr(pins, name)) is not None}


NAMES = tuple(field.name for field in fields(Pins))


# Reading -------------------------------------------------------------------------------------------------------------


def parse(texts: Iterable[str]) -> Pins:
    """The values of --fix, one or more."""
    found: dict[str, str] = {}
    for word in (word.strip() for text in texts for word in text.split(",")):
        if not word:
            continue
        name, equals, value = (part.strip() for part in word.partition("="))
        if not equals:
            example = _values(name).partition(" ")[0] if name in NAMES else "8"
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
    """Pins from names and values, text or as JSON has them."""
    return Pins(**{name: _value(name, value, place) for name, value in found.items()})


def _value(name: str, value: object, place: str) -> Any:
    if name not in NAMES:
        meant = nearest(name, NAMES)
        raise PinUnknown(
            place=place,
            cause=f"{name!r} cannot be pinned",
            fix=f"did you mean {meant!r}?" if meant else f"use {', '.join(NAMES)}",
        )
    text = word(value)
    if name in SWITCHES and text in _SWITCH:
        return _SWITCH[text]
    if name in WORDS and (text in WORDS[name] or (name == "recompute" and ":" in text)):
        return text  # selective:A+B and full_layers:N are for `Degrees` to refuse
    if name == "stage_blocks" and BLOCKS.fullmatch(text):
        return tuple(map(int, text.split("+")))
    if name == "offload":
        return _offload(text, place)
    if name == "zero" and text in ZERO:
        return int(text)
    if name in COUNTS and text.isascii() and text.isdigit() and len(text) <= DIGITS and int(text):
        return int(text)
    meant = nearest(text, WORDS[name]) if name in WORDS else None
    raise PinValue(
        place=f"{place} {name}={text}",
        cause=f"{text!r} is no value of {name}",
        fix=f"did you mean {name}={meant}?" if meant else f"use {_values(name)}",
    )


def _offload(text: str, place: str) -> str:
    """What waits on the host, as `Offload` writes it."""
    try:
        return str(Offload.parse(text))
    except OffloadImpossible as error:
        raise PinValue(place=f"{place} offload={text}", cause=error.cause, fix=error.fix) from error


def _values(name: str) -> str:
    """What a pin may be, in words."""
    if name == "offload":
        return "none, or optimizer, activations or activations:N, joined by +"
    if name in COUNTS:
        return "1 or any greater whole number"
    if name == "stage_blocks":
        return "the layers of every stage, 8+8+10+6 for instance"
    return " or ".join(("on", "off") if name in SWITCHES else ZERO if name == "zero" else WORDS[name])


# Filling in ----------------------------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True, kw_only=True)
class Config:
    """A configuration without anything open.

    - dp * tp * cp * pp are the ranks; dp * mbs * microbatches the global batch (`fill` sees to both).
    - `etp` and `shard` of 0 are Megatron's default and all copies, as in `Degrees`.
    """

    tp: int
    pp: int
    dp: int
    cp: int
    ep: int
    etp: int
    vp: int
    shard: int
    zero: int
    mbs: int
    microbatches: int
    recompute: str
    schedule: str
    sp: bool
    context: str
    zigzag: bool
    split: str
    regather: bool
    offload: str
    stage_blocks: tuple[int, ...] = ()
    """Layers of every (virtual) stage; without them `split` says how they are shared out."""
    open: tuple[tuple[str, tuple[Value, ...]], ...] = ()
    """What nobody asked for and how else it may be, the preferred value first in its field: until it is settled."""

    def workable(self, judge: Callable[[Config], object]) -> Config:
        """The first way to fill in what is open that nothing speaks against, with as little as possible otherwise than
        preferred. Raises what speaks against the preferred way if something does against all."""
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
        """As --fix takes it: the degrees, and whatever else is not as it starts."""
        quiet: dict[str, Value] = {"etp": 0, "shard": 0, "context": CONTEXT[0], "split": SPLITS[0], "regather": True}
        quiet |= {"offload": str(NOTHING), "stage_blocks": ""}
        quiet |= {"sp": self.tp > 1, "zigzag": self.cp > 1, "cp": 1, "ep": 1, "vp": 1}
        shown = {name: value for name, value in self.to_json().items() if quiet.get(name) != value}
        return ",".join(f"{name}={word(value)}" for name, value in shown.items())

    @property
    def batch(self) -> int:
        """Sequences that all copies together run at a time."""
        return self.mbs * self.dp

    @property
    def compute(self) -> tuple[Value, ...]:
        """What decides how the operators of bodies are split: equal ones share that."""
        return self.tp, self.dp, self.cp, self.ep, self.etp, self.mbs, self.sp, self.context, self.zigzag

    @property
    def kind(self) -> tuple[Value, ...]:
        """What decides the plans of bodies: equal kinds share them."""
        return *self.compute, self.zero, self.shard, self.regather, self.recompute

    @property
    def sharding(self) -> Sharding:
        """What copies share out."""
        return SHARDING[self.zero]

    def to_json(self) -> dict[str, Value]:
        """Every field."""
        return {name: _plain(getattr(self, name)) for name in NAMES}

    def degrees(self) -> Degrees:
        """What the names mean."""
        return Degrees(
            dp=self.dp,
            tp=self.tp,
            cp=self.cp,
            ep=self.ep,
            pp=self.pp,
            vp=self.vp,
            etp=self.etp,
            sequence_parallel=self.sp,
            context=self.context,
            zigzag=self.zigzag,
            zero=self.zero,
            shard=self.shard,
            regather=self.regather,
            recompute=self.recompute,
            schedule=self.schedule,
            microbatches=self.microbatches,
            split=self.split or SPLITS[0],
            stage_blocks=self.stage_blocks,
            offload=self.offload,
        )


def _otherwise(ways: tuple[int, ...]) -> tuple[int, tuple[int, ...]]:
    """How many names are otherwise than preferred; then the names of the first ones last."""
    return sum(way > 0 for way in ways), ways


def _plain(value: Any) -> Value:
    """A value as --fix and JSON have it."""
    return "+".join(map(str, value)) if isinstance(value, tuple) else value


def word(value: object) -> str:
    """A value as text; a switch is on or off."""
    return ("on" if value else "off") if isinstance(value, bool) else str(value)


def fill(pins: Pins, *, ranks: int, global_batch: int, place: str = "--fix") -> Config:
    """The configuration that these pins mean on so many ranks."""
    pins = _staged(pins)
    tp, pp, cp, ep = (size or 1 for size in (pins.tp, pins.pp, pins.cp, pins.ep))
    if pins.schedule == CUSTOM:
        raise PinsContradict(
            place=place,
            cause="schedule=custom is an order of work that the search makes for a plan; names alone do not say it",
            fix="name another schedule, or let `plan MODEL --fix schedule=custom` make one",
        )
    vee = pp > 1 and pins.schedule is not None and SCHEDULES[pins.schedule].vee
    vp = pins.vp or (2 if vee else 1)
    dp = _copies(pins, ranks)
    mbs, count = _batches(pins, dp, global_batch, place)
    zero = pins.zero if pins.zero is not None else int(dp * cp > 1)
    context = pins.context or CONTEXT[0]
    zigzag = cp > 1 and (context != "ulysses" if pins.zigzag is None else pins.zigzag)
    sp = tp > 1 if pins.sp is None else pins.sp and tp > 1
    if vp > 1 and pp == 1:
        raise PinsContradict(
            place=place, cause=f"vp={vp} virtual stages without a pipeline (pp=1)", fix="pin pp too, or leave vp out"
        )
    if pins.shard and not zero:
        raise PinsContradict(
            place=place, cause=f"shard={pins.shard}, and zero={zero} cuts nothing", fix="pin zero=1, 2 or 3 too"
        )
    return Config(
        tp=tp,
        pp=pp,
        dp=dp,
        cp=cp,
        ep=ep,
        etp=pins.etp or 0,
        vp=vp,
        shard=pins.shard or 0,
        zero=zero,
        mbs=mbs,
        microbatches=count,
        recompute=pins.recompute or RECOMPUTE[0],
        schedule=pins.schedule or ("interleaved" if vp > 1 else "1f1b"),
        sp=sp,
        context=context,
        zigzag=zigzag,
        split=pins.split or SPLITS[0],
        regather=True if pins.regather is None else pins.regather,
        stage_blocks=pins.stage_blocks or (),
        offload=pins.offload or str(NOTHING),
        open=tuple(
            (name, others)
            for name, others in (
                ("sp", (False,) if sp else ()),
                ("zigzag", (False,) if zigzag else ()),
                ("etp", (1,) if tp > 1 else ()),
                ("split", SPLITS[1:] if pp > 1 and not pins.stage_blocks else ()),
                ("context", CONTEXT[1:] if cp > 1 else ()),
                ("zero", (2, 3, *(() if pins.shard else (0,))) if zero else ()),
            )
            if others and getattr(pins, name) is None
        ),
    )


def _staged(pins: Pins) -> Pins:
    """With as many stages as layers are given for."""
    stages = len(pins.stage_blocks or ())
    if pins.pp is None and stages and stages % (pins.vp or 1) == 0:
        return Pins(pp=stages // (pins.vp or 1)).over(pins)
    if pins.pp and pins.vp is None and stages % pins.pp == 0 and stages > pins.pp > 1:
        return Pins(vp=stages // pins.pp).over(pins)
    return pins


def _copies(pins: Pins, ranks: int) -> int:
    """dp, as pinned or as it is left over."""
    others = {name: getattr(pins, name) or 1 for name in ("tp", "cp", "pp")}
    dp = pins.dp or max(1, ranks // prod(others.values()))
    check_ranks(others | {"dp": dp}, ranks)
    return dp


def _batches(pins: Pins, dp: int, global_batch: int, place: str) -> tuple[int, int]:
    """Sequences of a micro-batch, and the number of micro-batches."""
    if pins.mbs is None and pins.microbatches is not None:
        mbs, rest = divmod(global_batch, dp * pins.microbatches)
        if rest or not mbs:
            raise BatchIndivisible(
                place=place,
                cause=f"{global_batch} sequences for dp * microbatches = {dp} * {pins.microbatches}",
                fix="pin mbs instead, or numbers whose product divides the global batch",
            )
        return mbs, pins.microbatches
    mbs = pins.mbs or 1
    count = microbatches(global_batch, dp, mbs)
    if pins.microbatches not in (None, count):
        raise PinsContradict(
            place=place,
            cause=f"{global_batch} sequences on dp={dp} copies are {count} micro-batches of mbs={mbs}, not "
            f"{pins.microbatches}",
            fix="pin one of the two",
        )
    return mbs, count
