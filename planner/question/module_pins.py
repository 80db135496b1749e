"""Pins by module pattern: what a person asks of single modules, read, and held against a model.

    --fix 'model.layers.*.mlp:sharding=column'         the only value
    --allow 'model.layers.*.self_attn:split=b|heads'   the only values
    --forbid 'lm_head.weight:sharding=row'             values that must not be

    PATTERN:WHAT=VALUE     `*`, `?` and `[…]` stand inside one name of a dotted path, `**` for any number of names.
                           A pattern means the modules of such a path with all that is inside them, or a parameter

What can be asked, and which words there are, is `ir.names.pinned`. Nothing is asked of operators that can have none of
the values: `sharding` means those with a weight, `split=heads` those that run over heads. Blocks of a stack share one
plan, so a pattern must mean all of them or none.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from fnmatch import fnmatchcase
from functools import lru_cache

from meshwright.ir.analysis.loops import stem
from meshwright.ir.decisions.decisions import Decisions
from meshwright.ir.errors import (
    ConstraintsContradict,
    ModulePinUneven,
    ModulePinUnmatched,
    ModulePinUnmet,
    PinUnknown,
    PinValue,
    nearest,
)
from meshwright.ir.graph.fold import Body, Fold, joined
from meshwright.ir.graph.graph import Op
from meshwright.ir.names.cache import loops_of
from meshwright.ir.names.pinned import NO_CUT, SHARDING, SWITCH, WHAT, Allowed, Pinned, Words, of_weights, refused
from meshwright.ir.same import Same

OPTIONS = ("fix", "allow", "forbid")
MOST_NAMED = 6
"""Modules that a refusal names where none is close."""


@dataclass(frozen=True, slots=True, order=True)
class ModulePin:
    """A pin of the modules that a pattern matches; `option` is one of `OPTIONS`."""

    option: str
    pattern: str
    what: str
    values: tuple[str, ...]

    def __str__(self) -> str:
        """The pin as the command line takes it."""
        return f"--{self.option} {self.text}"

    @property
    def text(self) -> str:
        return f"{self.pattern}:{self.what}={'|'.join(self.values)}"

    @property
    def only(self) -> bool:
        """Whether the pin lists the only values allowed, rather than values ruled out."""
        return self.option != "forbid"


# Reading -------------------------------------------------------------------------------------------------------------


def is_module_pin(word: str) -> bool:
    """Whether a word of --fix, --allow or --forbid is a pin of modules: names of configurations contain no colon."""
    return ":" in word.partition("=")[0]


def apart(given: Mapping[str, Iterable[str]]) -> tuple[dict[str, list[str]], tuple[ModulePin, ...]]:
    """Separate, per option, what is asked of configurations from what is asked of modules."""
    plain: dict[str, list[str]] = {}
    found: dict[ModulePin, None] = {}
    for option, texts in given.items():
        words = [word for text in texts for word in text.split(",")]
        plain[option] = [word for word in words if not is_module_pin(word)]
        found |= dict.fromkeys(read_module_pin(word.strip(), option) for word in words if is_module_pin(word))
    return plain, tuple(found)


def read_module_pin(word: str, option: str) -> ModulePin:
    """Read one pin; `resolved` checks that the model has such modules."""
    place = f"--{option} {word}"
    head, _, listed = (part.strip() for part in word.partition("="))
    pattern, _, what = (part.strip() for part in head.rpartition(":"))
    values = tuple(dict.fromkeys(value.strip() for value in listed.split("|") if value.strip()))
    if what not in WHAT:
        meant = nearest(what, WHAT)
        raise PinUnknown(
            place=place,
            cause=f"{what!r} cannot be pinned of a module",
            fix=f"did you mean {meant!r}?" if meant else f"use {', '.join(WHAT)}",
        )
    if not pattern:
        raise PinValue(place=place, cause="there is no module", fix=f"write model.layers.*.mlp:{what}, for instance")
    known = {"sharding": SHARDING, "recompute": SWITCH}.get(what, ())
    if not values:
        raise PinValue(place=place, cause="there is no value", fix=f"write {head}={(*known, 'heads')[0]}, for instance")
    if option == "fix" and len(values) > 1:
        raise PinValue(place=place, cause=f"{len(values)} values are fixed", fix=f"write --allow '{word}'")
    _known_values(values, known or values, place)
    return ModulePin(option, pattern, what, values)


def _known_values(values: Iterable[str], known: Sequence[str], place: str) -> None:
    for value in values:
        if value not in known:
            meant = nearest(value, known)
            raise PinValue(
                place=place,
                cause=f"{value!r} is no value of it",
                fix=f"did you mean {meant!r}?" if meant else f"use {', '.join(known)}",
            )


# Paths ---------------------------------------------------------------------------------------------------------------


def covers(pattern: str, path: str) -> bool:
    """Whether a pattern matches a module path, or a module that contains it."""
    return _covers(tuple(pattern.split(".")), tuple(path.split(".")), inside=True)


def _covers(pattern: tuple[str, ...], path: tuple[str, ...], *, inside: bool) -> bool:
    if not pattern:
        return inside or not path
    if pattern[0] == "**":
        return _covers(pattern[1:], path, inside=inside) or (bool(path) and _covers(pattern, path[1:], inside=inside))
    return bool(path) and fnmatchcase(path[0], pattern[0]) and _covers(pattern[1:], path[1:], inside=inside)


@dataclass(frozen=True, eq=False)
class _Place:
    """One operator of a body, as patterns see it: its words, its module, and the weights that it reads, by their paths
    inside the block."""

    op: Op
    words: Words
    module: str
    weights: tuple[str, ...]

    def meant(self, pattern: str, block: str) -> bool:
        """Whether a pattern matches the operator, or one of its weights, in one block."""
        if covers(pattern, joined(block, self.module)):
            return True
        own = tuple(pattern.split("."))
        return any(_covers(own, tuple(joined(block, path).split(".")), inside=False) for path in self.weights)


def _places(fold: Fold, body: Body) -> Iterator[_Place]:
    """Operators that pins may address: all but tables, which are replicated everywhere, and values computed from
    parameters alone, which lie as their readers want."""
    graph, found = body.graph, loops_of(Same(fold))[body.name]
    words, weights = Words(graph, found), of_weights(Same(graph))
    sampled = {value for value in graph.types if any(stem(name) == "b" for dim in found.dims[value] for name in dim)}
    behind: dict[str, tuple[str, ...]] = {param.value: (param.path,) for param in graph.params}
    for op in graph.ops:
        read = tuple(dict.fromkeys(path for value in op.operands for path in behind.get(value, ())))
        if weights.issuperset(op.results):
            behind |= dict.fromkeys(op.results, read)
        elif any(value in sampled or value in graph.differentiable for value in op.results):
            yield _Place(op, words, op.module, read)


def _blocks(fold: Fold) -> Mapping[str, tuple[str, ...]]:
    """The paths that every body is called at."""
    found: dict[str, list[str]] = {}
    for call in fold.calls():
        found.setdefault(call.body.name, []).append(call.path)
    return {name: tuple(paths) for name, paths in found.items()}


def module_paths(fold: Fold) -> tuple[str, ...]:
    """The modules of a model, numbers of repeated blocks written `*`, in running order."""
    found: dict[str, None] = {}
    for name, blocks in _blocks(fold).items():
        parts = [path.split(".") for path in blocks]
        alike = [len(set(names)) == 1 for names in zip(*parts, strict=False)]
        own = ".".join(part if same else "*" for part, same in zip(parts[0], alike, strict=False))
        for place in _places(fold, fold.body[name]):
            path = joined(own, place.module).split(".")
            found |= dict.fromkeys(".".join(path[:end]) for end in range(1, len(path) + 1))
    return tuple(path for path in found if path)


# Resolving -----------------------------------------------------------------------------------------------------------


def resolved(pins: Sequence[ModulePin], fold: Fold) -> Pinned:
    """The options that pins leave to every operator of a model."""
    return _resolved(tuple(pins), Same(fold))


@lru_cache(maxsize=256)
def _resolved(pins: tuple[ModulePin, ...], held: Same[Fold]) -> Pinned:
    fold = held.of
    blocks, asks = _blocks(fold), {pin: _Asks(pin, fold) for pin in pins}
    bodies: dict[str, dict[str, Allowed]] = {}
    for body in fold.bodies:
        for place in _places(fold, body):
            own = [pin for pin in pins if asks[pin].of(place, blocks[body.name])]
            left = {what: _left(what, place, own, blocks[body.name][0]) for what in {pin.what for pin in own}}
            if any(words is not None for words in left.values()):
                bodies.setdefault(body.name, {})[place.op.name] = Allowed(**left)
    for one in asks.values():
        one.check()
    return Pinned(bodies)


class _Asks:
    """One pin, and the operators of the model that it has matched."""

    def __init__(self, pin: ModulePin, fold: Fold) -> None:
        self.pin, self.fold = pin, fold
        self.met, self.known = False, dict[str, None]()
        if pin.what == "split":
            loops = (stem(loop.name) for found in loops_of(Same(fold)).values() for loop in found.loops)
            _known_values(pin.values, (*dict.fromkeys(loops), NO_CUT["split"]), str(pin))

    def of(self, place: _Place, blocks: Sequence[str]) -> bool:
        """Whether the pin matches an operator. It must match in all blocks that share the operator's plan, or in
        none."""
        meant = [place.meant(self.pin.pattern, block) for block in blocks]
        if any(meant) and not all(meant):
            first, other = (joined(blocks[meant.index(which)], place.module) for which in (True, False))
            raise ModulePinUneven(
                place=str(self.pin),
                cause=f"it means {first} and not {other}; the {len(blocks)} blocks share one plan",
                fix="write * for the number of the block",
            )
        known = place.words.known(place.op, self.pin.what) if meant[0] else ()
        self.known |= dict.fromkeys(known)
        self.met = self.met or not set(known).isdisjoint(self.pin.values)
        return not set(known).isdisjoint(self.pin.values)

    def check(self) -> None:
        """Check that the pin has matched something."""
        if self.met:
            return
        if self.known:
            raise ModulePinUnmatched(
                place=str(self.pin),
                cause=f"nothing there can have {self.pin.what}={'|'.join(self.pin.values)}",
                fix=f"use {', '.join(self.known)}",
            )
        paths = module_paths(self.fold)
        if any(covers(self.pin.pattern, path.replace("*", "0")) for path in paths):
            raise ModulePinUnmatched(
                place=str(self.pin), cause="nothing there has a weight of two dimensions", fix="pin its split instead"
            )
        meant = nearest(self.pin.pattern, paths)
        some = ", ".join(sorted(paths, key=lambda path: path.count("."))[:MOST_NAMED])
        raise ModulePinUnmatched(
            place=str(self.pin),
            cause="the model has no module or parameter of such a path",
            fix=f"did you mean {meant!r}?" if meant else f"name one of its modules: {some}",
        )


def _left(what: str, place: _Place, pins: Sequence[ModulePin], block: str) -> frozenset[str] | None:
    """The words that pins leave to an operator; None if they leave all."""
    known, own = place.words.known(place.op, what), [pin for pin in pins if pin.what == what]
    left = set(known)
    for pin in own:
        left = left & set(pin.values) if pin.only else left - set(pin.values)
    if not left:
        raise ConstraintsContradict(
            place=" ".join(map(str, own)),
            cause=f"together they leave no {what} of {joined(block, place.module)}",
            fix="take one of them back",
        )
    return None if left == set(known) else frozenset(left)


def check_held(decisions: Decisions, fold: Fold, pins: Sequence[ModulePin]) -> None:
    """Check that a plan does what pins ask of every operator, whoever made the plan. Raises `ModulePinUnmet`."""
    asked, found = resolved(pins, fold), loops_of(Same(fold))
    meshes = {name: stage.mesh for stage in decisions.stages for name in stage.plans}
    for plan in decisions.plans:
        own, mesh = asked.of(plan.body), meshes.get(plan.name)
        for op in refused(plan, fold.body[plan.body].graph, found[plan.body], own, mesh) if mesh else ():
            raise ModulePinUnmet(
                place=f"plan {plan.name}, %{op.name} of {op.module or 'the block'}",
                cause=f"it is to have {own[op.name]}, and has not",
                fix="take a pin back, or make the plan again",
            )
