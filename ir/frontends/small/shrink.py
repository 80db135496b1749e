"""Numbers of a model made small, by the sizes that they decide, whatever they are called.

    Recipe: settings, and how a model is built of them  ->  the same settings with small numbers

What a number means is found by changing it and comparing what the model then holds and runs (`runs`) with what it held
and ran before:

    blocks     some parameters are gone, and the others are as they were: as many as `Scale.layers`
    repeats    nothing that is held changes, and the same operators run fewer times (iterations, blocks that share their
               parameters): as many
    sizes      dimensions of parameters or of results change, and nothing else
    chances    with 0 instead of a part of 1, fewer random operators run, and all others as before (dropout)
    limits     no shape changes, but the loss does: see `_Search.limits`
    nothing    it stays

Blocks come first, since every trial is cheap then. Sizes shrink one after the other, from small to large ones, until
none does: a number takes the least of its candidates with which the same operators run, and every dimension that it
changes

- is at least what its kind needs (`LEAST`), or what it was;
- is divided by what divided it, up to `UNIT`: the most ranks that may cut it in the twin;
- makes no matrix square that was not, which would hide that rows are taken for columns;
- is free where nothing reads the parameter.

Relations need no rule. What a number must divide or must not exceed is asked of the model: it refuses what breaks them,
runs other operators, or has no loss, as it looks past the end of a table (`_Search.enough_rows`). Where a number alone
cannot shrink, those that are equal to it or its multiples, all or those beside it, follow it; and where it was the
limit of indices that size nothing (the token that pads), these do.

What a model holds is asked first, which takes a small part of the time of a run (`_Search.bound`). How much is tried is
limited (`WORK`), not how long that takes: a model has the same twin everywhere. Where the model is large even so, as a
run may be so dear that the limit comes early, there is more (`MORE_WORK`), for numbers in the order of how much they
size. Then one multiple of a number may follow it, where others are small enough; and entries of a list, which may be
the parts of a dimension.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import replace
from math import inf, prod
from typing import Any

from meshwright.ir.frontends.small.runs import MOST_VALUES, Recipe, Run, Settings, unseen
from meshwright.ir.frontends.small.same import (
    UNIT,
    changes_between,
    divides_alike,
    has_fewer_blocks,
    has_fewer_repeats,
    is_enough,
    is_less_random,
    is_smaller,
    least_of,
    runs_the_same,
)
from meshwright.ir.frontends.small.settings import Path, cut, numbers, put, value_at
from meshwright.ir.frontends.twin import Scale

WORK = 300_000
"""Tensors that are built and operators that are run at most in all trials: about 40 CPU seconds, on one core (November
2026)."""
MORE_WORK = 1_200_000
"""The same where a model is large after that."""
LARGE = 2**24
"""Numbers that such a model holds, for it to be tried on."""


def shrunk(recipe: Recipe, scale: Scale) -> Settings:
    """The settings with small numbers."""
    if not any(numbers(recipe.settings)):
        return recipe.settings
    with unseen():
        return _Search(recipe, scale).result()


# Candidates ----------------------------------------------------------------------------------------------------------


def _candidates(value: int, others: Sequence[int]) -> list[int]:
    """Smaller values for a number, from small to large: small multiples of 8, then doubles, and those of its divisors
    among the others; whatever divides it, up to 8, divides these."""
    unit = UNIT[True]
    found = {_least(unit * times, value) for times in range(1, 2 * unit)}
    for base in (1, *(other for other in others if 1 < other < value and value % other == 0)):
        times = 2 * unit * unit if base == 1 else 1
        while base * times < value:
            found.add(base * times if base > 1 else _least(times, value))
            times *= 2
    return sorted(one for one in found if unit <= one < value and divides_alike(one, value, unit))


def _least(start: int, value: int) -> int:
    """The first number from there on that as much divides as the value."""
    unit = UNIT[True]
    return next(one for one in range(max(start, unit), max(start, unit) + 2 * unit) if divides_alike(one, value, unit))


def _held(run: Run) -> int:
    """The numbers that a model holds."""
    return sum(map(prod, run.parameters.values()))


# Search --------------------------------------------------------------------------------------------------------------


class _Search:
    """The search from settings to small ones, with what their model holds and runs."""

    def __init__(self, recipe: Recipe, scale: Scale) -> None:
        self.recipe, self.scale, self.settings = recipe, scale, recipe.settings
        self.now = recipe.skeleton(recipe.whole)
        self.work, self.most, self.with_parts = 0, WORK, False
        self.listed: set[Path] = set()
        self.inert: dict[Path, bool] = {}
        self.known: dict[str, Run | None] = {}
        self.skeletons: dict[str, Run | None] = {}
        self.last: dict[str, Any] = {}

    def result(self) -> Settings:
        """The result of all steps: see the module."""
        self.listed_blocks()
        now = self.run(self.settings)
        exact = self.recipe.exactly() if now is None else None
        if exact is not None:
            self.recipe, self.known = exact, {}
            now = self.run(self.settings)
        if now is None:  # it asks for values, or does not run with so few blocks
            return self.recipe.settings
        self.now = now
        while self.smaller_sizes(self.integers(2)):
            pass
        if self.is_large():
            self.most, self.with_parts = MORE_WORK, True
            self.inert = {path: True for path, same in self.inert.items() if same}  # others may not have been run
            while self.is_large() and self.smaller_sizes(self.by_weight()):
                pass
        self.enough_rows()
        self.no_chances()
        self.limits()
        return self.settings

    def integers(self, above: int) -> list[tuple[Path, int]]:
        """Integers above that, from small to large."""
        found = [(path, one) for path, one in numbers(self.settings) if type(one) is int and one > above]
        return sorted(found, key=lambda one: (one[1], str(one[0])))

    def built(self, settings: Settings) -> Any | None:
        """The model of settings, if they are possible and not all work is done. The last one is kept, to run it after
        what it holds was asked."""
        key, model = repr(settings), self.last.get(repr(settings))
        if key not in self.last and self.work <= self.most:
            model = self.recipe.built(settings)
            self.work += len(self.now.held)
            self.last = {key: model}
            self.skeletons[key] = self.recipe.skeleton(model) if model is not None else None
        return model

    def held(self, settings: Settings) -> Run | None:
        """The tensors that the model of settings holds, which say much in a small part of the time that a run takes."""
        if repr(settings) not in self.skeletons:
            self.built(settings)
        return self.skeletons.get(repr(settings))

    def run(self, settings: Settings) -> Run | None:
        """The tensors and operators of the model of settings, if it runs and not all work is done."""
        key = repr(settings)
        if key not in self.known:
            model = self.built(settings) if self.skeletons.get(key, self.now) is not None else None
            if model is None:
                return None
            self.known[key], work = self.recipe.run(model, settings, self.scale.seq)
            self.work += work
        return self.known[key]

    def adopt(self, settings: Settings, run: Run) -> None:
        self.settings, self.now = settings, run

    # Blocks

    def listed_blocks(self) -> None:
        """Numbers that are the length of a list of modules, by what is held alone: the whole model does not run."""
        lengths = {kinds.total() for kinds in self.now.kinds.values()}
        for path, value in self.integers(self.scale.layers):
            for settings in self.with_fewer(path, value) if value in lengths else ():
                found = self.held(settings)
                if found is not None and has_fewer_blocks(found, self.now):
                    self.adopt(settings, found)
                    self.listed.add(path)
                    break

    def with_fewer(self, path: Path, value: int) -> Iterator[Settings]:
        """The settings with as few blocks as the twin has, or some more, as many as it takes where kinds alternate;
        lists that have an entry for each are cut off: all, those beside the number (another stack may have as many
        blocks), or none."""
        few, some = self.scale.layers, self.scale.layers + UNIT[True]
        for number in (*range(few, min(some, value)), *range(some, value, UNIT[False])):
            fewer = put(self.settings, {path: number})
            beside = put(fewer, {path[:-1]: cut(value_at(fewer, path[:-1]), value, number)})
            ways = (cut(fewer, value, number), beside, fewer)
            yield from (way for at, way in enumerate(ways) if way not in ways[:at])

    def repeats(self, settings: Settings) -> bool:
        """Whether these run the same operators fewer times."""
        found = self.run(settings)
        return found is not None and has_fewer_repeats(found, self.now)

    def blocks(self, path: Path, value: int) -> bool:
        """Whether a number counts blocks or repeats, which are fewer then if they were more than the twin's blocks."""
        probe = put(self.settings, {path: self.candidates(value)[0]})
        held = self.held(probe)
        if held is None:
            return False
        in_blocks = held.held.keys() < self.now.held.keys()
        if not in_blocks and (held.held != self.now.held or not self.repeats(probe)):
            return False
        for settings in self.with_fewer(path, value):
            held = self.held(settings)
            if held is None or (in_blocks and not has_fewer_blocks(held, self.now)):
                continue
            if (in_blocks or self.repeats(settings)) and (found := self.run(settings)) is not None:
                self.adopt(settings, found)
                break
        return True

    # Sizes

    def is_large(self) -> bool:
        """Whether the model holds more than is soon computed."""
        return _held(self.now) > LARGE

    def by_weight(self) -> list[tuple[Path, int]]:
        """Integers by how much of what the model holds they size, most first; those that cannot be less by themselves
        come last."""

        def left(number: tuple[Path, int]) -> tuple[float, int]:
            path, value = number
            found = self.held(put(self.settings, {path: self.candidates(value)[0]}))
            return _held(found) if found is not None else inf, -value

        return sorted(self.integers(2), key=left)

    def smaller_sizes(self, among: Sequence[tuple[Path, int]]) -> bool:
        """One round over these numbers; whether one shrank."""
        before = self.settings
        for path, value in among:
            if dict(numbers(self.settings)).get(path) != value:  # it followed another one
                continue
            if path not in self.listed and not self.is_inert(path, value) and not self.blocks(path, value):
                self.shrink(path, value)
        return self.settings != before

    def is_inert(self, path: Path, value: int) -> bool:
        """Whether a number changes nothing by itself: it stays, or follows another one."""
        if path not in self.inert:
            settings = put(self.settings, {path: self.candidates(value)[0]})
            probe = self.held(settings)
            same = probe is not None and probe.held == self.now.held
            self.inert[path] = same and self.run(settings) == self.now
        return self.inert[path]

    def shrink(self, path: Path, value: int) -> None:
        """The least candidate that will do, alone or with others, from where dimensions are large enough on."""
        bounds: dict[tuple[Path, ...], int] = {}
        for candidate in self.candidates(value):
            for changed in self.with_size(path, value, candidate, bounds):
                numbers, settings = tuple(changed), put(self.settings, changed)
                if candidate < bounds.get(numbers, 0):
                    continue
                bounds[numbers] = self.bound(settings, candidate, value)
                found = self.run(settings) if bounds[numbers] == candidate else None
                if found is not None and is_smaller(found, self.now, self.scale):
                    self.adopt(settings, found)
                    self.follow(path, value, candidate)
                    return

    def follow(self, path: Path, value: int, candidate: int) -> None:
        """Where blocks have an entry of a list each, those that are equal become the same at once, if they can."""
        equal = (at for at, its in self.integers(2) if its == value and at[:-1] == path[:-1])
        others = dict.fromkeys(equal if isinstance(path[-1], int) else (), candidate)
        settings = put(self.settings, others)
        found = self.run(settings) if others else None
        if found is not None and is_smaller(found, self.now, self.scale):
            self.adopt(settings, found)

    def bound(self, settings: Settings, candidate: int, value: int) -> int:
        """The least value of a number, by settings in which it is the candidate: by what their model holds, and only
        where that is large enough by what it runs."""
        for find, now in ((self.held, replace(self.now, steps=())), (self.run, self.now)):
            found = find(settings)
            if found is None or not runs_the_same(found, now):
                return candidate
            changes = changes_between(found, now)
            bound = least_of(candidate, value, changes, self.scale)
            if bound > candidate or not is_enough(found, now, changes, self.scale):
                return max(bound, candidate + 1)
        return candidate

    def candidates(self, value: int) -> list[int]:
        """Smaller values for a number above 2, from small to large; one that sizes a selection may be less than what
        ranks share out."""
        selected = {number for one in self.now.steps for number in one.chosen or ()}
        shared = {number for shape in self.now.parameters.values() for number in shape}
        few = [one for one in (2, 4) if one < value and value in selected - shared]
        few += [UNIT[False]] if self.with_parts and value == UNIT[True] else []
        return [*few, *_candidates(value, [one for _, one in self.integers(1)])] or [2]

    def with_size(
        self, path: Path, value: int, candidate: int, bounds: Mapping[tuple[Path, ...], int]
    ) -> Iterator[Mapping[Path, int]]:
        """Changes that go with a number: none; where that is impossible, its equals; its multiples, in proportion; or
        what indexes it and sizes nothing below it."""
        alone = {path: candidate}
        yield alone
        found = self.run(put(self.settings, alone)) if candidate >= bounds[path,] else self.now
        if found is not None and runs_the_same(found, self.now):
            return
        sized = {at: its for at, its in self.integers(2) if its % value == 0 and not self.is_inert(at, its)}
        equals = {at: candidate for at, its in sized.items() if its == value}
        multiples = {at: its // value * candidate for at, its in sized.items()}
        beside = {at: its for at, its in multiples.items() if at[:-1] == path[:-1]}
        ways = (equals, multiples, beside if beside != multiples else {})
        yield from (also for also in ways if len(also) > 1)
        if self.with_parts:
            yield from ({path: candidate, at: its} for at, its in multiples.items() if at != path)
            yield from self.parts(alone, value, candidate)
        indices = [at for at, its in self.integers(2) if candidate <= its < value and self.is_inert(at, its)]
        for at in indices:
            yield alone | {at: candidate - 1}
        if len(indices) > 1:
            yield alone | dict.fromkeys(indices, candidate - 1)

    def parts(self, alone: Mapping[Path, int], value: int, candidate: int) -> Iterator[Mapping[Path, int]]:
        """A number, and the entries of a list, in proportion: parts that a dimension has."""
        lists: dict[Path, list[tuple[Path, int]]] = {}
        for at, its in self.integers(0):
            if isinstance(at[-1], int):
                lists.setdefault(at[:-1], []).append((at, its))
        for entries in lists.values():
            if len(entries) > 1 and all(its * candidate % value == 0 for _, its in entries):
                yield {**alone, **{at: its * candidate // value for at, its in entries}}

    def enough_rows(self) -> None:
        """Where the loss cannot be computed, what is looked up may lie past the end of a table, which only values tell:
        the numbers with which it can stay as they were; as few of them as will do, of those that size such tables."""
        if self.now.size > MOST_VALUES or self.computed(self.settings) is not None:
            return
        small = dict(numbers(self.settings))
        before = {
            path: value
            for path, value in numbers(self.recipe.settings)
            if small.get(path) not in (None, value) and self.has_rows({path: value})
        }
        for restored in (*({path: value} for path, value in before.items()), before):
            if self.restored(restored):
                break
        else:
            return
        for path in restored if len(restored) > 1 else ():
            self.restored({path: small[path]})

    def has_rows(self, changed: Mapping[Path, Any]) -> bool:
        """Whether other tables are looked up in with these settings."""
        found = self.run(put(self.settings, changed))
        return found is not None and [one.rows for one in found.steps] != [one.rows for one in self.now.steps]

    def restored(self, changed: Mapping[Path, Any]) -> bool:
        """Whether the loss can be computed with these settings, which become the current ones then."""
        settings = put(self.settings, changed)
        found = self.run(settings)
        if found is None or found.size > MOST_VALUES or self.computed(settings) is None:
            return False
        self.adopt(settings, found)
        return True

    # Chances and limits

    def no_chances(self) -> None:
        """The settings with nothing random, as far as a number or a switch controls it."""
        for path, value in sorted(numbers(self.settings), key=lambda one: type(one[1]) is bool):
            if all(one.chances is None for one in self.now.steps):
                return
            if value is True or (isinstance(value, float) and 0 < value < 1):
                settings = put(self.settings, {path: False if value is True else 0.0})
                found = self.run(settings)
                if found is not None and is_less_random(found, self.now):
                    self.adopt(settings, found)

    def limits(self) -> None:
        """Limits on positions that the model's own workload meets, and a short one does not (windows): twice as much
        changes no shape and no value, and half of the tokens changes values, and of what the same operators make no
        shape. They become that half, so that they are met."""
        few, expected = self.scale.seq // 2, self.computed(self.settings)
        for path, value in self.integers(self.scale.seq) if expected is not None else ():
            more, less = (put(self.settings, {path: one}) for one in (2 * value, few))
            if value < self.scale.tokens and self.run(more) == self.now and not self.resized(less):
                same, other = self.computed(more), self.computed(less)
                if same == expected and other not in (None, expected):
                    self.settings, expected = less, other

    def resized(self, settings: Settings) -> bool:
        """Whether the same operators run with other shapes."""
        found = self.run(settings)
        return found is not None and found != self.now and runs_the_same(found, self.now)

    def computed(self, settings: Settings) -> float | None:
        """The loss, if it can be computed in a moment."""
        small = self.now.size <= MOST_VALUES
        return self.recipe.computed(settings, self.scale.seq) if small else None
