"""What can be said on a command line, as data: verbs, their options, and what completes a value.

What a value is follows from how its option is declared. Choices are words, and so are those that are declared in the
rooms below (targets, objectives, steps of --dump-after, devices, codes of errors); else it is a folder, a file, or
anything at all.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

from meshwright.backends.door import TARGETS
from meshwright.cost_models.hardware.devices import NIC_KINDS, device_names
from meshwright.ir.errors import catalogue
from meshwright.ir.target.workload import OPTIMIZERS, PRECISIONS, RECIPES, STACKS, STYLES
from meshwright.planner.answer import estimate
from meshwright.planner.cli.declared import Declare, Declared, Option, declared
from meshwright.planner.cli.verbs.plans.plan import AFTER, BEFORE
from meshwright.planner.question import inspection
from meshwright.planner.question.changed.changes import KEYS
from meshwright.planner.question.objective import OBJECTIVES
from meshwright.planner.question.pins import KNOBS


@dataclass(frozen=True, slots=True)
class Words:
    """One of some words."""

    words: tuple[str, ...]


@dataclass(frozen=True, slots=True)
class Files:
    """A file, or only a folder."""

    folders_only: bool = False


@dataclass(frozen=True, slots=True)
class Clusters:
    """HOSTSxGPUSxGPU with one of these GPUs, or a file."""

    gpus: tuple[str, ...]


@dataclass(frozen=True, slots=True)
class Pins:
    """NAME=VALUE, several of them with commas in between; the words of a name, where it has some."""

    words: Mapping[str, tuple[str, ...]]


@dataclass(frozen=True, slots=True)
class Anything:
    """A number, or a text of one's own."""


Value = Words | Files | Clusters | Pins | Anything


@dataclass(frozen=True, slots=True, kw_only=True)
class Place:
    """A verb, or an action of one: `cluster show`."""

    path: tuple[str, ...]
    told: str
    options: tuple[tuple[Option, Value | None], ...]
    """Each with what its value is; None: it takes none."""
    positionals: tuple[tuple[Option, Value], ...]
    actions: tuple[tuple[str, str], ...] = ()
    """Its actions, and what they are for."""


@dataclass(frozen=True, slots=True)
class Grammar:
    """All that can be said: the places, verbs first; what begins without a verb is of the first one."""

    places: tuple[Place, ...]

    @property
    def named(self) -> dict[str, tuple[str, ...]]:
        """The words of the names of all options that take NAME=VALUE, for names that have some."""
        values = (value for place in self.places for _, value in place.options if isinstance(value, Pins))
        return {name: words for value in values for name, words in value.words.items() if words}

    @property
    def verbs(self) -> tuple[Place, ...]:
        return tuple(place for place in self.places if len(place.path) == 1)


STEPS: Mapping[str, tuple[str, ...]] = {
    "plan": (*BEFORE, *AFTER),
    "estimate": tuple(estimate.STEPS),
    "inspect": tuple(inspection.STEPS),
}
"""What --dump-after takes, by verb."""
NAMED: Mapping[str, tuple[str, ...]] = {
    "target": tuple(TARGETS),
    "objective": OBJECTIVES,
    "gpus name": device_names(),
    "like": device_names(),
    "code": tuple(name for kind in catalogue() for name in (kind.code, kind.__name__)),
}
"""Words of options whose choices the rooms below declare; of one verb's, where others have one of the name."""
CHANGED: Mapping[str, tuple[str, ...]] = {
    "gpu": device_names(), "nic": NIC_KINDS, "dtype": PRECISIONS, "optimizer": tuple(OPTIMIZERS),
    "stack": tuple(STACKS), "style": STYLES, "recipe": tuple(RECIPES), "target": tuple(TARGETS),
}  # fmt: skip
"""Words of what --what-if changes, by key."""
FOLDERS = ("DIR",)
FILES = ("FILE", "FILES", "MODEL", "PLAN", "LOG", "PATH", "PROFILE", "A", "B")
"""Values by what they are called in help."""


def grammar(verbs: tuple[tuple[str, str, Declare], ...]) -> Grammar:
    """What can be said with these verbs: each with its name, its help and what declares its options."""
    places: list[Place] = []
    for name, told, declare in verbs:
        found = declared(declare)
        places.append(_place((name,), told, found))
        places += [_place((name, action), inner.told, inner) for action, inner in found.actions.items()]
    return Grammar(tuple(places))


def _place(path: tuple[str, ...], told: str, found: Declared) -> Place:
    options = tuple((one, None if one.flag else value_of(path[0], one)) for one in found.options if one.names)
    positionals = tuple((one, value_of(path[0], one)) for one in found.options if not one.names)
    actions = tuple((name, inner.told) for name, inner in found.actions.items())
    return Place(path=path, told=told, options=options, positionals=positionals, actions=actions)


def value_of(verb: str, option: Option) -> Value:
    """What completes the value of an option of a verb."""
    if option.choices:
        return Words(option.choices)
    if option.dest == "dump_after":
        return Words(STEPS[verb])
    if option.dest == "cluster":
        return Clusters(device_names())
    if option.dest in ("fix", "allow", "forbid", "why_not"):
        return Pins({name: knob.kind.words for name, knob in KNOBS.items()})
    if option.dest == "what_if":
        return Pins({key: CHANGED.get(key, ()) for key in KEYS})
    if words := NAMED.get(option.dest) or NAMED.get(f"{verb} {option.dest}"):
        return Words(words)
    if option.metavar in FOLDERS:
        return Files(folders_only=True)
    return Files() if option.metavar in FILES else Anything()
