"""Numbers of a model made small by what they size, whatever they are called.

    Recipe: settings, and how a model is built of them  ->  the same settings with small numbers

What a number means is found by changing it: the model is built anew on the meta device, runs one step there, and what
came of it is held against what was before (`Run`):

    blocks     with fewer of them, some parameters are gone, and the others are as they were: as many as `Scale.layers`
    sizes      dimensions of parameters or of results change, and nothing else
    chances    with 0 instead of a part of 1, fewer random operators run, and all others as before (dropout)
    nothing    it stays

Blocks come first, since every build is cheap then. Sizes shrink one after the other, from small to large ones and until
none does: a number takes the least of its candidates (`_candidates`) with which the step still runs the same operators
and every dimension keeps what it divides by, up to `UNIT`: that of four heads of eight is 32, if a product of both is.
What a number must divide or must not exceed is thus asked of the model, not known. Where a number alone cannot, those
that are its multiples follow it; where it was the limit of indices that size nothing (the token that pads), these do.

At last the small model runs with numbers in it, which shows what shapes do not: tables that are too short for what is
looked up in them; and limits on positions (`_limits`), which windows are. How often a model is built is limited
(`TRIALS`), not how long that takes, so that the same model has the same twin everywhere.
"""

from __future__ import annotations

import contextlib
import logging
import warnings
from collections import Counter
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from math import gcd, prod
from typing import Any

import torch
from torch import Tensor, nn
from torch._subclasses.fake_tensor import FakeTensorMode
from torch.utils import _pytree as pytree
from torch.utils._python_dispatch import TorchDispatchMode

from meshwright.ir.frontends.contract import Hooks, Source, example_batch
from meshwright.ir.frontends.foreign import TIME_LIMIT_S, contained
from meshwright.ir.frontends.torch_export import Step as TrainingStep

UNIT = 8
"""What divides a dimension, up to this, divides it in the twin: no axis of a twin has more ranks."""
BATCH = 2
TRIALS = 600
"""Models that are built at most."""
MOST = 2**27
"""Numbers that a model holds and makes in a step at most, for it to be computed with values."""

Path = tuple[str | int, ...]
Settings = dict[str, Any]
Kinds = Mapping[str, Counter[tuple[str, ...]]]
"""Of every list of modules by path: how many it has of each kind, by class and by what these hold."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Scale:
    """How small: blocks of every stack, and tokens, which windows are measured by."""

    layers: int
    seq: int
    tokens: int
    """Of the model's own workload."""
    words: int = 0
    """Indices that the model's own batches have are below this."""

    def rows(self, step: Step) -> int:
        """What a table keeps that an operator looks up in: twice the tokens, and the words of a batch."""
        return max(2 * self.seq, self.words if step.in_words else 0)


@dataclass(frozen=True, slots=True, kw_only=True)
class Recipe:
    """How a model is built of settings, on the device that torch has as its default; the whole one; what it is trained
    on, and where errors say that it stands."""

    settings: Settings
    build: Callable[[Settings], nn.Module]
    whole: nn.Module
    hooks: Hooks
    place: str


@dataclass(frozen=True, slots=True)
class Step:
    """An operator that ran: what came of it, the chances of a random one, the rows of what it looked up in, and whether
    an entry of the batch says which."""

    name: str
    shapes: tuple[tuple[int, ...], ...]
    chances: tuple[float, ...] | None
    rows: int | None
    in_words: bool


@dataclass(frozen=True, slots=True)
class Run:
    """A model and one step of it: parameters and buffers by path, its lists of modules, operators in order."""

    held: Mapping[str, tuple[int, ...]]
    kinds: Kinds
    steps: tuple[Step, ...]

    @property
    def size(self) -> int:
        """Numbers that it holds and makes."""
        return sum(map(prod, self.held.values())) + sum(prod(shape) for one in self.steps for shape in one.shapes)


def shrunk(recipe: Recipe, scale: Scale) -> Settings:
    """The settings with small numbers."""
    return _Search(recipe, scale).result() if any(numbers(recipe.settings)) else recipe.settings


# Settings ------------------------------------------------------------------------------------------------------------


def numbers(settings: Any, at: Path = ()) -> Iterator[tuple[Path, int | float]]:
    """All numbers, and where they are."""
    if isinstance(settings, Mapping):
        for name, one in settings.items():
            yield from numbers(one, (*at, name))
    elif isinstance(settings, list | tuple):
        for index, one in enumerate(settings):
            yield from numbers(one, (*at, index))
    elif isinstance(settings, int | float) and not isinstance(settings, bool):
        yield at, settings


def _put(settings: Any, changed: Mapping[Path, Any], at: Path = ()) -> Any:
    """The settings, with other values in these places."""
    if at in changed:
        return changed[at]
    if isinstance(settings, Mapping):
        return {name: _put(one, changed, (*at, name)) for name, one in settings.items()}
    if isinstance(settings, list | tuple):
        return type(settings)(_put(one, changed, (*at, index)) for index, one in enumerate(settings))
    return settings


def _cut(settings: Any, length: int, few: int) -> Any:
    """The settings, with all lists of this length cut off: they have an entry for every block."""
    if isinstance(settings, Mapping):
        return {name: _cut(one, length, few) for name, one in settings.items()}
    if isinstance(settings, list | tuple):
        return settings[:few] if len(settings) == length else settings
    return settings


def _alike(one: int, other: int) -> bool:
    """Whether as much divides both."""
    return one == other or (gcd(one, UNIT) == gcd(other, UNIT) and (one == 1) == (other == 1))


def _candidates(value: int, others: Sequence[int]) -> list[int]:
    """What a number may become, from small to large: whatever divides it, up to `UNIT`, divides these; multiples of its
    divisors among the others too."""
    found = set()
    for base in {1, *(other for other in others if 1 < other < value and value % other == 0)}:
        times = 1
        while base * times < value:
            least = base * times if base > 1 else _least(times, value)
            found.add(least)
            times *= 2
    return sorted(one for one in found if UNIT <= one < value and _alike(one, value))


def _least(start: int, value: int) -> int:
    """The first number from there on that as much divides as the value."""
    return next(one for one in range(max(start, UNIT), max(start, UNIT) + 2 * UNIT) if _alike(one, value))


# Runs ----------------------------------------------------------------------------------------------------------------


class _Log(TorchDispatchMode):
    """Every operator that runs, in order."""

    def __init__(self) -> None:
        super().__init__()
        self.steps: list[Step] = []
        self.batch: list[Tensor] = []

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        made = func(*args, **(kwargs or {}))
        shapes = tuple(tuple(one.shape) for one in pytree.tree_leaves(made) if isinstance(one, Tensor))
        random = torch.Tag.nondeterministic_seeded in func.tags
        given = tuple(float(one) for one in (*args, *(kwargs or {}).values()) if isinstance(one, float))
        words = "loss" in func.name() or any(one is entry for one in args[1:2] for entry in self.batch)
        self.steps.append(Step(func.name(), shapes, given if random else None, _rows(func.name(), args), words))
        return made


def _rows(name: str, args: Sequence[Any]) -> int | None:
    """The length of what an operator looks up in, which no shape of its result shows."""
    if name in ("aten::embedding", "aten::index.Tensor"):
        return int(args[0].shape[0])
    if name in ("aten::gather", "aten::index_select"):
        return int(args[0].shape[args[1]])
    if name in ("aten::nll_loss_forward", "aten::nll_loss2d_forward"):
        return int(args[0].shape[1 if args[0].dim() > 1 else 0])
    return None


def _held(model: nn.Module) -> dict[str, tuple[int, ...]]:
    """Parameters and buffers, by path."""
    every = (*model.named_parameters(remove_duplicate=False), *model.named_buffers(remove_duplicate=False))
    return {path: tuple(one.shape) for path, one in every}


def _stepped(model: nn.Module, hooks: Hooks, place: str, seq: int) -> tuple[Step, ...]:
    """One step of a model on the meta device."""
    batch = example_batch(Source(model, hooks, place), BATCH, seq)
    model.train()
    with FakeTensorMode(allow_non_fake_inputs=True) as mode, torch.no_grad(), _Log() as log:  # it is asked no values
        fake = pytree.tree_map_only(Tensor, mode.from_tensor, batch)
        log.steps.clear()
        log.batch = [one for one in pytree.tree_leaves(fake) if isinstance(one, Tensor)]
        TrainingStep(model, hooks, place)(fake)
    return tuple(log.steps)


def _kinds(model: nn.Module) -> Kinds:
    found: dict[str, Counter[tuple[str, ...]]] = {}
    for path, modules in model.named_modules():
        if isinstance(modules, nn.ModuleList | nn.Sequential):
            found[path] = Counter((type(one).__name__, *dict(one.named_parameters())) for one in modules.children())
    return found


# What one run says of another ----------------------------------------------------------------------------------------


def _fewer_blocks(after: Run, before: Run) -> bool:
    """Whether parameters are gone, and all others are as they were; and of every kind of block two are left, if there
    were two."""
    gone = after.held.keys() < before.held.keys()
    same = gone and all(after.held[path] == before.held[path] for path in after.held)
    kinds = ((after.kinds[path], kinds) for path, kinds in before.kinds.items() if path in after.kinds)
    return same and all(its[kind] >= min(2, number) for its, kinds in kinds for kind, number in kinds.items())


def _smaller(after: Run, before: Run, scale: Scale) -> bool:
    """Whether it is the same with smaller dimensions: see the module."""
    if after.held.keys() != before.held.keys() or len(after.steps) != len(before.steps):
        return False
    pairs = [(after.held[path], shape) for path, shape in before.held.items()]
    for one, other in zip(after.steps, before.steps, strict=True):
        if one.name != other.name or len(one.shapes) != len(other.shapes):
            return False
        pairs += zip(one.shapes, other.shapes, strict=True)
    same = all(len(one) == len(other) and all(map(_alike, one, other)) for one, other in pairs)
    return same and after != before and after.size <= before.size and _long_enough(after, before, scale)


def _long_enough(after: Run, before: Run, scale: Scale) -> bool:
    """Whether tables that are looked up in still have so many rows."""
    pairs = zip(after.steps, before.steps, strict=True)
    return all(
        one.rows is None or other.rows is None or one.rows >= min(other.rows, scale.rows(other)) for one, other in pairs
    )


def _less_random(after: Run, before: Run) -> bool:
    """Whether fewer operators are random, or with other chances, and all others are as they were."""
    if after.held != before.held or [one.chances for one in after.steps] == [one.chances for one in before.steps]:
        return False
    left = iter(before.steps)
    return all(any(one.name == other.name and one.shapes == other.shapes for other in left) for one in after.steps)


# Search --------------------------------------------------------------------------------------------------------------


class _Search:
    """Settings on their way to small ones, and what their model holds and runs."""

    def __init__(self, recipe: Recipe, scale: Scale) -> None:
        self.recipe, self.scale, self.settings = recipe, scale, recipe.settings
        self.trials = 0
        self.now = Run(_held(recipe.whole), _kinds(recipe.whole), ())
        self.inert: set[Path] = set()
        self.known: dict[str, Run | None] = {}

    def result(self) -> Settings:
        """All steps: see the module."""
        with _unseen():
            self.fewer_blocks()
            now = self.run(self.settings)
            if now is None:  # it asks for values, or does not run with so few blocks
                return self.recipe.settings
            self.now = now
            self.find_inert()
            while self.smaller_sizes():
                pass
            self.no_chances()
            self.until_it_runs()
            self.limits()
        return self.settings

    def fewer_blocks(self) -> None:
        """Numbers that are the length of a list of modules. What else counts blocks is cheap to try afterwards."""
        lengths = {kinds.total() for kinds in self.now.kinds.values()}
        for path, value in self.integers(self.scale.layers):
            for settings in self.with_fewer(path, value) if value in lengths else ():
                model = self.built(settings)
                run = None if model is None else Run(_held(model), _kinds(model), ())
                if run is not None and _fewer_blocks(run, self.now):
                    self.settings, self.now = settings, run
                    break

    def with_fewer(self, path: Path, value: int) -> Iterator[Settings]:
        """The settings with as few blocks as the twin has, or some more; lists that have an entry for each are cut off,
        or not."""
        for few in range(self.scale.layers, min(self.scale.layers + UNIT, value)):
            put = _put(self.settings, {path: few})
            cut = _cut(put, value, few)
            yield from (cut, put) if cut != put else (put,)

    def find_inert(self) -> None:
        """Numbers that change nothing by themselves: they stay."""
        for path, value in self.integers(UNIT):
            least = _candidates(value, ())[:1]
            if least and self.run(_put(self.settings, {path: least[0]})) == self.now:
                self.inert.add(path)

    def smaller_sizes(self) -> bool:
        """One round over all numbers; whether one shrank."""
        before = self.settings
        for path, value in self.integers(self.scale.layers):
            if path not in self.inert:
                self.shrink(path, value)
        return self.settings != before

    def shrink(self, path: Path, value: int) -> None:
        """As few blocks as the twin has, if a number counts some, or the least candidate that will do."""
        first = self.run(_put(self.settings, {path: self.scale.layers}))
        if first is not None and first.held.keys() < self.now.held.keys() and self.blocks(path, value):
            return
        for candidate in _candidates(value, [one for _, one in self.integers(1)]):
            for settings in self.with_size(path, value, candidate):
                run = self.run(settings)
                if run is not None and _smaller(run, self.now, self.scale):
                    self.settings, self.now = settings, run
                    return

    def blocks(self, path: Path, value: int) -> bool:
        """Whether a number counts blocks, which are fewer then."""
        for settings in self.with_fewer(path, value):
            run = self.run(settings)
            if run is not None and _fewer_blocks(run, self.now):
                self.settings, self.now = settings, run
                return True
        return False

    def with_size(self, path: Path, value: int, candidate: int) -> Iterator[Settings]:
        """The settings with another size: alone; with its equals; with its multiples, in proportion; or with what
        indexes it and sizes nothing below it."""
        sized = {at: its for at, its in self.integers(1) if at not in self.inert}
        one = {path: candidate}
        yield _put(self.settings, one)
        equals = {at: candidate for at, its in sized.items() if its == value}
        multiples = {at: its // value * candidate for at, its in sized.items() if its % value == 0}
        for also in dict.fromkeys((tuple(equals.items()), tuple(multiples.items()))):
            if len(also) > 1:
                yield _put(self.settings, dict(also))
        indices = [at for at, its in self.integers(1) if candidate <= its < value and at in self.inert]
        for at in indices:
            yield _put(self.settings, one | {at: candidate - 1})
        if len(indices) > 1:
            yield _put(self.settings, one | dict.fromkeys(indices, candidate - 1))

    def no_chances(self) -> None:
        """Nothing random, as far as a number says how much."""
        for path, value in list(numbers(self.settings)):
            if isinstance(value, float) and 0 < value < 1:
                settings = _put(self.settings, {path: 0.0})
                run = self.run(settings)
                if run is not None and _less_random(run, self.now):
                    self.settings, self.now = settings, run

    def until_it_runs(self) -> None:
        """A number as it was, if the model runs with values only then; whether it does is not believed here."""
        if self.computed(self.settings) is not None:
            return
        whole = dict(numbers(self.recipe.settings))
        for path, value in numbers(self.settings):
            if whole.get(path) != value:
                settings = _put(self.settings, {path: whole[path]})
                if self.computed(settings) is not None:
                    self.settings = settings
                    return

    def limits(self) -> None:
        """Limits on positions that the model's own workload meets, and a short one does not: twice as much changes
        nothing, and half of the tokens does. They become that half, so that they are met."""
        few = self.scale.seq // 2
        expected = self.computed(self.settings)
        for path, value in self.integers(self.scale.seq):
            if value < self.scale.tokens and path in self.inert and expected is not None:
                more, less = (self.computed(_put(self.settings, {path: one})) for one in (2 * value, few))
                if more is not None and less is not None and more.equal(expected) and not less.equal(expected):
                    self.settings = _put(self.settings, {path: few})
                    expected = less

    def integers(self, least: int) -> list[tuple[Path, int]]:
        """Integers above that, from small to large."""
        found = [(path, one) for path, one in numbers(self.settings) if isinstance(one, int) and one > least]
        return sorted(found, key=lambda one: (one[1], str(one[0])))

    def built(self, settings: Settings) -> nn.Module | None:
        """The model of settings on the meta device, if they are possible and not all trials are used."""
        self.trials += 1
        if self.trials > TRIALS:
            return None
        with contextlib.suppress(Exception), contained(self.recipe.place, TIME_LIMIT_S), torch.device("meta"):
            return self.recipe.build(settings)
        return None

    def run(self, settings: Settings) -> Run | None:
        """What the model of settings holds and runs, if it does. Most of a last round was tried in the one before."""
        key = repr(settings)
        if key not in self.known:
            self.known[key] = self.tried(settings)
        return self.known[key]

    def tried(self, settings: Settings) -> Run | None:
        """The same, found by running it."""
        model = self.built(settings)
        if model is None:
            return None
        with contextlib.suppress(Exception), contained(self.recipe.place, TIME_LIMIT_S):
            return Run(
                _held(model), _kinds(model), _stepped(model, self.recipe.hooks, self.recipe.place, self.scale.seq)
            )
        return None

    def computed(self, settings: Settings) -> Tensor | None:
        """The loss of the model of settings, with values, if it can be computed in a moment."""
        make, run = self.recipe.hooks.example_inputs, self.run(settings)
        if make is None or run is None or run.size > MOST:
            return None
        with contextlib.suppress(Exception), contained(self.recipe.place, TIME_LIMIT_S), torch.random.fork_rng():
            torch.manual_seed(0)
            model = self.recipe.build(settings).float().train()
            batch = pytree.tree_map_only(Tensor, _drawn, make(BATCH, self.scale.seq))
            with torch.no_grad():
                loss: Tensor = TrainingStep(model, self.recipe.hooks, self.recipe.place)(batch)
            return loss
        return None


def _drawn(tensor: Tensor) -> Tensor:
    """An entry of a batch; of indices that are all alike, some that are not."""
    alike = not tensor.is_floating_point() and tensor.unique().numel() == 1
    return torch.randint_like(tensor, UNIT) if alike and tensor.dtype is not torch.bool else tensor


@contextlib.contextmanager
def _unseen() -> Iterator[None]:
    """What models say of numbers that are tried is not told."""
    before = logging.root.manager.disable
    logging.disable(logging.CRITICAL)
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            yield
    finally:
        logging.disable(before)
