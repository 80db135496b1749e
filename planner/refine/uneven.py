"""Copies on different devices: each takes as much of a batch, and holds as much of the state, as its devices can.

    configurations -> those whose copies lie on different devices -> micro-batches large enough to be shared out
    unequally
                   -> shares of the batch by speed -> shares of the state by room -> the best first

Equal shares make fast devices wait. A copy that needs t seconds for a sequence has a rate of 1/t, and shares x have a
pace of the largest x t: giving the sequences out one by one, each to the copy that would be done with it first, makes
that least. The evaluator then prices the plan, and one sequence after another moves from the slowest kind of copy to
another as long as it finds that better. Where a copy's memory is too full, what ZeRO cuts is shared out by the room
that each copy has beside it (`ir.sharding.shares`).
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from heapq import heapify, heapreplace
from math import inf

from meshwright.cost_models.memory.peak import held_by_class
from meshwright.cost_models.prediction import Held
from meshwright.cost_models.step import Step
from meshwright.ir.decisions.decisions import Decisions
from meshwright.ir.decisions.sharding import Sharding
from meshwright.ir.errors import MeshwrightError
from meshwright.ir.graph.fold import Fold
from meshwright.ir.program.program import Program
from meshwright.ir.sharding.shares import axis_of, batch_shares, shares_of, state_shares
from meshwright.planner.question.pins import Config
from meshwright.planner.refine.candidate import WORTH, Candidate
from meshwright.planner.refine.improvement import Bench, climb

LAYOUT = "shares"
"""What a target must be able to do (`ir.target.capabilities`)."""

MOST_SHARED = 24
"""Configurations that are looked at, the quickest."""

MOST_KINDS = 3
"""Configurations whose batch is shared out, with all their micro-batches."""

TIMES = (1, 0.5, 2, 0.25)
"""A configuration's own micro-batch, that are tried."""

LEAST = 2
"""Sequences that a copy must have on average, for shares to differ."""

PROMISES = 0.95
"""Of an estimate, what pricing may find at best."""

MOST_MOVES = 6
FEW_MOVES = 2
"""Times that sequences are moved, of plans that fit and of others."""

LEAST_ROOM = 1e-3
"""Of the roomiest copy's, what a copy without room counts as having: each holds a part of everything."""

HELD_AS = {"optimizer": "optimizer", "grads": "gradients", "params": "parameters"}
"""The parts of memory that are what ZeRO cuts."""

SLACK = 0.98
"""Of the room that a copy has for states, the part that is meant to be filled: shards are whole rows."""


@dataclass(frozen=True, slots=True)
class Uneven:
    """Unequal shares of the batch for copies on different devices: the best plan that becomes of what was priced, if it
    may be faster than the plan that is given."""

    def accepts(self, plan: Candidate, bench: Bench) -> bool:
        """Whether devices differ, and the target can have it."""
        can = LAYOUT in {line.name for line in bench.setting.target.layouts}
        return len(bench.cluster.pools) > 1 and can

    def neighbours(self, plan: Candidate, bench: Bench) -> Iterator[Candidate]:
        kinds: dict[tuple[object, ...], tuple[float, Config]] = {}
        ranked = sorted(bench.search.found.values(), key=lambda one: (one.step_s, str(one.config)))
        for config in (one.config for one in ranked[:MOST_SHARED]):
            if config.dp > 1 and not bench.stop():
                for case in _cases(config, bench):
                    found = (case.shared_s, config)
                    kinds[_kind(config)] = min(kinds.get(_kind(config), found), found, key=lambda one: one[0])
        best: Candidate | None = None
        below_s = plan.step_s if plan.prediction.fits else inf
        for _, config in sorted(kinds.values(), key=lambda one: (one[0], str(one[1])))[:MOST_KINDS]:
            for variant in _variants(config, bench.global_batch):
                granted = bench.search.space.grants(variant) and not bench.stop()
                for case in _cases(variant, bench) if granted else ():
                    if case.shared_s * PROMISES < below_s:
                        best = min(filter(None, (best, case.answer(below_s))), key=WORTH, default=None)
                        below_s = min(below_s, best.step_s) if best and best.prediction.fits else below_s
        if best is not None:
            yield bench.candidate(best.decisions, best.prediction, bench.fold(best), config=best.config)


def _kind(config: Config) -> tuple[object, ...]:
    """The values of a configuration without the size and the number of micro-batches, as a key."""
    return tuple(value for name, value in config.to_json().items() if name not in ("mbs", "microbatches"))


def _variants(config: Config, global_batch: int) -> Iterator[Config]:
    """The configuration with other micro-batches, of at least two sequences a copy on average, as far as the batch
    divides."""
    for times in TIMES:
        mbs = int(config.mbs * times)
        if mbs >= LEAST and mbs == config.mbs * times and global_batch % (config.dp * mbs) == 0:
            yield replace(config, mbs=mbs, microbatches=global_batch // (config.dp * mbs))


def _cases(config: Config, bench: Bench) -> Iterator[_Case]:
    """The configuration in the orders of ranks that put copies on different devices: as it is, and with each copy, all
    its stages, on neighbouring ranks."""
    try:
        fold, decisions = bench.setting.fold(config), bench.decisions(config)
    except MeshwrightError:
        return
    if axis_of(decisions):
        for order in (decisions, *([_copy_by_copy(decisions)] if config.pp > 1 else [])):
            case = _Case(bench, config, fold, order)
            if len(set(case.copies_s)) > 1:
                yield case


def _copy_by_copy(decisions: Decisions) -> Decisions:
    """The plan with the ranks of every copy next to each other."""
    axis, groups = axis_of(decisions), decisions.groups
    mesh = decisions.stages[0].mesh
    copies, size = mesh.axis(axis).size, mesh.size
    places: dict[int, list[tuple[int, int]]] = {copy: [] for copy in range(copies)}
    for number in range(len(groups)):
        for place in range(size):
            places[mesh.coordinates(place)[axis]].append((number, place))
    ranks = {where: rank for rank, where in enumerate(where for copy in places.values() for where in copy)}
    seats = {own: tuple(ranks[number, place] for place in range(size)) for number, own in enumerate(groups)}
    return replace(decisions, stages=tuple(replace(stage, ranks=seats[stage.ranks]) for stage in decisions.stages))


class _Case:
    """One configuration in one order of ranks, whose sequences are moved from copy to copy."""

    def __init__(self, bench: Bench, config: Config, fold: Fold, even: Decisions) -> None:
        self.bench, self.config, self.fold, self.even, self.axis = bench, config, fold, even, axis_of(even)
        self.program = bench.lowered(even, fold)
        self.copies_s = self._copies_s()
        """What a micro-batch takes on each copy, of equal shares."""

    def _copies_s(self) -> tuple[float, ...]:
        workload = self.program.workload
        assert workload is not None
        prices = self.bench.prices
        step, known = Step(prices, self.program, workload), dict[tuple[object, ...], float]()
        taken = [0.0] * self.even.stages[0].mesh.axis(self.axis).size
        for index, stage in enumerate(self.program.stages):
            for copy, ranks in enumerate(_by_copy(stage.mesh.coordinates, stage.ranks, self.axis, len(taken))):
                devices = tuple(device.name for device in prices.devices(ranks))
                key = (index, *devices)
                if key not in known:
                    known[key] = step.seconds_on(index, ranks)
                taken[copy] = max(taken[copy], known[key])
        return tuple(taken)

    @cached_property
    def shared_s(self) -> float:
        """An estimate of the step time with shares by speed: all copies have the mean pace, not the slowest one's."""
        mean = len(self.copies_s) / sum(1 / seconds for seconds in self.copies_s)
        return self.bench.setting.price(self.program).step_time_s * mean / max(self.copies_s)

    def answer(self, below_s: float) -> Candidate | None:
        """The best shares, priced; None where they are equal. What is far from `below_s` is not moved."""
        best = self.tried(by_speed(self.config.batch, self.copies_s))
        if best is None or best.step_s * PROMISES > below_s:
            return best
        moves = MOST_MOVES if best.prediction.fits else FEW_MOVES
        return climb(best, self, self.bench, steepest=True, moves=moves)

    def accepts(self, plan: Candidate, bench: Bench) -> bool:
        return True

    def neighbours(self, plan: Candidate, bench: Bench) -> Iterator[Candidate | None]:
        return map(self.tried, self._moves(plan))

    def tried(self, sizes: tuple[int, ...]) -> Candidate | None:
        """The plan with these shares of the batch and, where it does not fit, with shares of states that do."""
        if len(set(sizes)) == 1:
            return None
        try:
            plan = self.bench.setting.allowed(batch_shares(self.even, self.fold, sizes), self.fold)
            program = self.bench.lowered(plan, self.fold)
            prediction = self.bench.setting.price(program)
        except MeshwrightError:
            return None
        found = Candidate(plan, prediction, config=self.config)
        return found if prediction.fits or not self.config.sharding.kinds else self._roomier(found, program)

    def _roomier(self, found: Candidate, program: Program) -> Candidate:
        """The plan with states shared out by room, if the target can have that and it helps."""
        try:
            shared = state_shares(found.decisions, self.fold, self._rooms(program))
            plan = self.bench.setting.allowed(shared, self.fold)
        except MeshwrightError:
            return found
        again = replace(found, decisions=plan, prediction=self.bench.judged(plan, self.fold))
        return min(found, again, key=WORTH)

    def _moves(self, best: Candidate) -> Iterator[tuple[int, ...]]:
        """Shares with one sequence moved from each copy of the slowest kind (of any kind where the plan does not fit)
        to as many copies of another kind; and from one copy to one."""
        sizes = sizes_of(best.decisions, self.config.batch)
        kinds = sorted(set(self.copies_s), key=lambda seconds: -self._pace_s(sizes, seconds))
        for giver in kinds[:1] if best.prediction.fits else kinds:
            for taker in kinds:
                givers = [at for at, own in enumerate(self.copies_s) if own == giver and sizes[at] > 1]
                takers = [at for at, own in enumerate(self.copies_s) if own == taker and taker != giver]
                for few in dict.fromkeys((min(len(givers), len(takers)), 1 if givers and takers else 0)):
                    moved = list(sizes)
                    for one, other in zip(givers[-few:], takers[:few], strict=True) if few else ():
                        moved[one], moved[other] = moved[one] - 1, moved[other] + 1
                    if few:
                        yield tuple(moved)

    def _pace_s(self, sizes: Sequence[int], seconds: float) -> float:
        return max(size * seconds for size, own in zip(sizes, self.copies_s, strict=True) if own == seconds)

    def _rooms(self, program: Program) -> list[float]:
        """Bytes that the ranks of every copy have for what is stored in shards."""
        cluster = self.bench.cluster
        held = held_by_class(program, cluster, self.bench.prices.profile.memory)
        rooms = [inf] * len(self.copies_s)
        for stage, own in zip(program.stages, held, strict=True):
            by_copy = _by_copy(stage.mesh.coordinates, stage.ranks, self.axis, len(rooms))
            for copy, ranks in enumerate(by_copy):
                kinds = {cluster.device(rank).name for rank in ranks}
                for ranks_alike, one in own:
                    if kinds & {cluster.device(rank).name for rank in ranks_alike.ranks}:
                        rooms[copy] = min(rooms[copy], _room_bytes(one, self.config.sharding))
        return [max(room, LEAST_ROOM * max(rooms)) for room in rooms]


def sizes_of(decisions: Decisions, batch: int) -> tuple[int, ...]:
    """The number of sequences that each copy takes of a batch."""
    shares = shares_of(decisions)
    return tuple(share * batch // sum(shares) for share in shares)


def _by_copy(
    coordinates: Callable[[int], dict[str, int]], ranks: Sequence[int], axis: str, copies: int
) -> list[tuple[int, ...]]:
    """The ranks of every copy."""
    found: list[list[int]] = [[] for _ in range(copies)]
    for place, rank in enumerate(ranks):
        found[coordinates(place)[axis]].append(rank)
    return [tuple(own) for own in found]


def _room_bytes(held: Held, sharding: Sharding) -> float:
    """Bytes that a rank has for states that ZeRO cuts."""
    stored = dict(held.parts)
    cut = sum(stored[HELD_AS[kind]] for kind in sharding.kinds)
    return held.left_bytes * SLACK + cut


def by_speed(batch: int, copies_s: Sequence[float]) -> tuple[int, ...]:
    """Sequences shared out so that the slowest copy is done first: one to each, and every other one to the copy that
    would be done with it first. `copies_s`: seconds of each copy for equal shares."""
    sizes = [1] * len(copies_s)
    waiting = [(2 * seconds, copy) for copy, seconds in enumerate(copies_s)]
    heapify(waiting)
    for _ in range(batch - len(sizes)):
        _, copy = waiting[0]
        sizes[copy] += 1
        heapreplace(waiting, ((sizes[copy] + 1) * copies_s[copy], copy))
    return tuple(sizes)
