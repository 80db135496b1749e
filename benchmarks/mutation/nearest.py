"""The tests nearest to a fault: those that enter its block, cheapest first, within a budget of CPU time.

Of every function of tests the cheapest case comes first, then the second of each, and so on: cases of one function see
much the same, functions ask different things. What is left of the budget goes to tests that use a value which one of
these made, since it may remember what it computed.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from typing import Any

import numpy

from benchmarks.mutation.reach import Reached

IMPORT_S = 0.4
"""To collect one more file of tests."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Nearest:
    """Tests by file, in the order in which they are run, and what they cost without a fault."""

    tests: dict[str, tuple[str, ...]]
    seconds: float


@dataclass(frozen=True, slots=True, kw_only=True)
class _Test:
    file: str
    name: str
    own_s: float
    setups: tuple[tuple[int, float], ...]

    @property
    def alone_s(self) -> float:
        return self.own_s + sum(seconds for _, seconds in self.setups)


def nearest(block: str, digest: str, known: Sequence[Reached], budget_s: float) -> Nearest:
    """Tests for a fault in ``block`` of a module whose text has this digest."""
    direct, sharing = list[_Test](), list[_Test]()
    for reached in known:
        entering = _entering(block, digest, reached)
        made = {setup for at in numpy.flatnonzero(entering) for setup in reached.setups[at]}
        for at in range(len(reached.tests)):
            if entering[at]:
                direct.append(_test(reached, at))
            elif made & set(reached.setups[at]):
                sharing.append(_test(reached, at))
    chosen, seconds = _within([*_in_rounds(direct), *_in_rounds(sharing)], budget_s)
    return Nearest(tests=_by_file(chosen), seconds=seconds)


def _entering(block: str, digest: str, reached: Reached) -> Any:
    """Which tests enter the block; the function where the module has changed; the module for what it does on import."""
    module, _, rest = block.partition(":")
    function = rest.rpartition("#")[0]
    if function and reached.modules.get(module) == digest:
        columns = [reached.names[block]] if block in reached.names else []
    elif function:
        columns = [at for name, at in reached.names.items() if name.startswith(f"{module}:{function}#")]
    else:
        columns = [at for name, at in reached.names.items() if name.startswith(f"{module}:")]
    return reached.entered[:, columns].any(axis=1) if columns else numpy.zeros(len(reached.tests), dtype=bool)


def _test(reached: Reached, at: int) -> _Test:
    setups = tuple((setup, reached.setup_seconds[setup]) for setup in reached.setups[at])
    return _Test(file=reached.file, name=reached.tests[at], own_s=reached.seconds[at], setups=setups)


def _in_rounds(tests: Iterable[_Test]) -> Iterator[_Test]:
    functions: dict[str, list[_Test]] = defaultdict(list)
    for test in sorted(tests, key=lambda test: (test.alone_s, test.name)):
        functions[test.name.partition("[")[0]].append(test)
    rounds = max(map(len, functions.values()), default=0)
    for turn in range(rounds):
        of_turn = [cases[turn] for cases in functions.values() if turn < len(cases)]
        yield from sorted(of_turn, key=lambda test: (test.alone_s, test.name))


def _within(tests: Iterable[_Test], budget_s: float) -> tuple[list[_Test], float]:
    """As many as the budget pays for, and one at least; what several need is set up once."""
    chosen, spent, ready, files = list[_Test](), 0.0, set[tuple[str, int]](), set[str]()
    for test in tests:
        needs = {(test.file, setup): seconds for setup, seconds in test.setups}
        cost = test.own_s + sum(seconds for key, seconds in needs.items() if key not in ready)
        cost += 0.0 if test.file in files else IMPORT_S
        if chosen and spent + cost > budget_s:
            continue
        chosen.append(test)
        spent += cost
        ready |= set(needs)
        files.add(test.file)
    return chosen, spent


def _by_file(tests: Iterable[_Test]) -> dict[str, tuple[str, ...]]:
    """Files in the order of the dearest test that they need, so that quick ones are not kept waiting."""
    files: dict[str, list[_Test]] = defaultdict(list)
    for test in tests:
        files[test.file].append(test)
    cost = {
        file: sum(test.own_s for test in chosen) + max(test.alone_s for test in chosen)
        for file, chosen in files.items()
    }
    return {
        file: tuple(test.name for test in files[file]) for file in sorted(files, key=lambda file: (cost[file], file))
    }
