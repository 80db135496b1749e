"""A target: the settings of another training framework, as tables.

    Line    options <-> fields of a run, both ways, for runs that the target can say
    Limit   any run -> the nearest one that the target can say, and why it cannot say this one

`projected` goes through the limits in their order, `said` and `meant` through the lines. A line says options only where
they differ from what the target takes by itself, or where people look for them. `Unpriced` options are published ones
that change a step, and of which a price knows nothing: those that change how a model is cut are refused (`refused`),
for a price of something else is worth nothing; the rest is told.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field
from typing import Any

from meshwright.ir.errors import SettingNotPriced, SettingsContradict
from meshwright.planner.exchange.options import COUNT, Given, Option
from meshwright.planner.exchange.run import Room, Run, settled, unlike, worded

REASONS = {
    "no option": "it has no option for it",
    "not together": "it has the option, but not together with the rest",
    "its own way": "it always does this in a way of its own",
    "software": "it brings its own kernels and overlaps",
    "precision": "it does not multiply in it, or does not store so",
    "file": "its command line can say it, its files cannot",
    "beyond names": "the plan decides more than names of a configuration say",
}
"""Everything by which a target cannot say a plan."""

Says = Callable[[Run, Room], Mapping[str, Any]]
Means = Callable[[Given, Mapping[str, Any], Room], Mapping[str, Any]]


@dataclass(frozen=True, slots=True)
class Line:
    """Options of a target, and the fields of a run that they say together.

    - `says` gives options by name; `means` fields by name, from a file and what earlier lines found in it.
    """

    options: tuple[Option, ...]
    says: Says
    means: Means


@dataclass(frozen=True, slots=True)
class Limit:
    """A rule that a target cannot go beyond: the reason (of `REASONS`), what it lacks, and the nearest run within."""

    reason: str
    what: str
    nearest: Callable[[Run, Room], Run]


@dataclass(frozen=True, slots=True)
class Unpriced:
    """A published option of which prices know nothing, with the values at which it changes nothing.

    - `refused`: it changes how a model is cut, so that nothing is priced with it.
    """

    name: str
    harmless: tuple[object, ...] = (None, False, "false", 0, "0", 1, "1", "")
    refused: bool = False


@dataclass(frozen=True, slots=True, kw_only=True)
class Target:
    """A framework's settings.

    - `elsewhere` has fields of a run that its scripts say, and not its files: what they are is told beside the file.
    - `stacks` are the names of the software that it is; the first is what it is usually.
    """

    name: str
    called: str
    """For people."""
    file: str
    """The name of the file that is written."""
    lines: tuple[Line, ...]
    limits: tuple[Limit, ...]
    unpriced: tuple[Unpriced, ...]
    stacks: tuple[str, ...]
    elsewhere: tuple[str, ...] = ()
    aliases: Mapping[str, str] = field(default_factory=dict)
    """Other published names of options."""
    layers: str = ""
    """The option that says how many layers the model has."""
    how: str = ""
    """How the file is used, in a sentence."""

    @property
    def options(self) -> tuple[Option, ...]:
        return tuple(option for line in self.lines for option in line.options)


@dataclass(frozen=True, slots=True, kw_only=True)
class Lost:
    """A field of a run that a target cannot say: as it was, the nearest that it can, and why (of `REASONS`)."""

    name: str
    was: str
    becomes: str
    reason: str
    why: str


@dataclass(frozen=True, slots=True, kw_only=True)
class Projection:
    """The run that a target can say, and what it is not of the run that was asked for."""

    run: Run
    lost: tuple[Lost, ...]


def projected(target: Target, run: Run, room: Room) -> Projection:
    """The nearest run that a target can say."""
    lost: dict[str, Lost] = {}
    now = settled(run, room)
    for limit in target.limits:
        after = settled(limit.nearest(now, room), room)
        for name in unlike(now, after):
            first = lost[name].was if name in lost else worded(getattr(now, name))
            lost[name] = Lost(
                name=name,
                was=first,
                becomes=worded(getattr(after, name)),
                reason=limit.reason,
                why=limit.what,
            )
        now = after
    return Projection(run=now, lost=tuple(one for one in lost.values() if one.was != one.becomes))


def said(target: Target, run: Run, room: Room) -> dict[str, Any]:
    """The options of a run that the target can say, in the order of its table."""
    return {name: value for line in target.lines for name, value in line.says(run, room).items() if value is not None}


def meant(target: Target, given: Given, room: Room) -> dict[str, Any]:
    """What a file says of a run, by fields: those that it leaves to others are missing. `notes` says what is priced
    otherwise than it is written: lines give a `note`."""
    for option in target.options:
        given[option]  # whatever has no use for it: a value that it cannot have is a slip
    for refusal in refused(target, given):
        raise refusal
    _of_this_model(target, given, room)
    known: dict[str, Any] = {}
    notes: list[str] = []
    for line in target.lines:
        found = dict(line.means(given, known, room))
        notes += [found.pop("note")] if "note" in found else []
        known |= found
    return known | {"notes": tuple(notes)}


def _of_this_model(target: Target, given: Given, room: Room) -> None:
    """Check that the model has the layers that the file says, if it says so."""
    layers = Option(target.layers, COUNT)
    if target.layers and room.layers and given.has(layers) and given[layers] != room.layers:
        raise SettingsContradict(
            place=given.at(layers.name),
            cause=f"{given[layers]} layers, and the model has {room.layers}",
            fix="name the model that these settings are of",
        )


def refused(target: Target, given: Given) -> Iterator[SettingNotPriced]:
    """Options of a file that change how a model is cut, and of which prices know nothing."""
    for one in target.unpriced:
        if one.refused and one.name in given.entries and not _harmless(one, given):
            yield SettingNotPriced(
                place=given.at(one.name),
                cause="it changes how the model is cut or run, and prices know nothing of it",
                fix="take it out of the file, if it is to be priced without it",
            )


def unpriced(target: Target, given: Given) -> tuple[str, ...]:
    """Options of a file that change a step otherwise, and of which prices know nothing."""
    return tuple(one.name for one in target.unpriced if one.name in given.entries and not _harmless(one, given))


def _harmless(one: Unpriced, given: Given) -> bool:
    value = given.entries[one.name].value
    return any(value == known and type(value) is type(known) for known in one.harmless)


# Lines that many targets have -----------------------------------------------------------------------------------------


def equal(option: Option, name: str, *, always: bool = False) -> Line:
    """An option that is a field. It is left out where it says what the target takes by itself, unless `always`."""

    def says(run: Run, room: Room) -> Mapping[str, Any]:
        value = getattr(run, name)
        return {} if value == option.default and not always else {option.name: value}

    return Line((option,), says, lambda given, known, room: {name: given[option]})
