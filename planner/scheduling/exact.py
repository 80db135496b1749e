"""A small job as an integer program: an order with a proof that none is shorter, or a bound on how much shorter.

    s[a] >= 0            when action a starts
    y[a, b] in {0, 1}    a runs before b, both of one group; only where nothing else decides it
    r[a] >= 0            when the result of action a is there, where it crosses to another group beside compute
    T                    the step

    minimise    T
    subject to  T >= s[a] + d[a] + ending                                   d: seconds of an action
                s[b] >= s[a] + d[a], or r[a] >= s[a] + d[a] + lag           b waits for the result of a
                r[b] >= r[a] + lag - M (1 - y[a, b])                        a link carries one result at a time
                s[b] >= s[a] + d[a] - M (1 - y[a, b])                       one at a time on a group
                s[a] >= s[b] + d[b] - M y[a, b]
                sum of what ran before a changes in bytes + a's own <= room
                y[a, b] <= y[a-, b],  y[a, b] <= y[a, b+]               micro-batches in order: a- before a, b+ after b

and, which the rest implies but the relaxation does not know, an action starts after all work that runs before it on its
group, and the step ends after all that runs behind it. M is as small as an order that is known makes it: nothing starts
so late that the step would become longer.

Micro-batches run in order within a stage and kind (see `job`). Groups that roll on into the next step are not covered:
there a later end may be the better one.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from math import frexp

from meshwright.ir.schedules import FORWARD, WEIGHT
from meshwright.planner.block_solver.programs.linear import Linear, Row, Solution
from meshwright.planner.block_solver.programs.process import solve_linear
from meshwright.planner.scheduling.floor import floor_s
from meshwright.planner.scheduling.greedy import tails
from meshwright.planner.scheduling.job import ROUNDING, Job, Lists, Ordered, all_fit, ordered

SPREAD = 2.0**8
"""About the step as the solver sees it."""

TOLERATED = 1e-6
"""Relative: what a start, an order or a bound of the solver's may be off by."""


@dataclass(frozen=True, slots=True)
class Certificate:
    """The best order that is known, and a lower bound on all orders."""

    best: Ordered
    bound_s: float

    @property
    def proved(self) -> bool:
        """Whether nothing is better, as far as a solver's tolerances reach."""
        return self.best.step_s <= self.bound_s * (1 + 10 * TOLERATED)


def certified(job: Job, known: Ordered, limit_s: float | None = None) -> Certificate:
    """The certificate of an order that fits, by the integer program. Must: the job does not roll."""
    return all_certified([(job, known)], limit_s)[0]


def all_certified(known: Sequence[tuple[Job, Ordered]], limit_s: float | None = None) -> list[Certificate]:
    """The certificates of several jobs, within one time limit."""
    models = [_Model(job, order) for job, order in known]
    solutions = solve_linear([model.linear() for model in models], limit_s=limit_s)
    return [model.certificate(solution) for model, solution in zip(models, solutions, strict=True)]


@dataclass(frozen=True, slots=True)
class _Action:
    """One action, with the place of its start among the variables and the window that it starts in."""

    code: int
    index: int
    stage: int
    kind: int
    microbatch: int
    seconds: float
    first_s: float
    last_s: float


class _Model:
    """The integer program of a job."""

    def __init__(self, job: Job, known: Ordered) -> None:
        self.job, self.known = job, known
        self.unit_s = 2.0 ** frexp(known.step_s)[1] / SPREAD
        self.step_s = known.step_s * (1 + TOLERATED) / self.unit_s
        self.lower, self.upper, self.whole = [floor_s(job) / self.unit_s], [self.step_s], [False]
        self.rows: list[Row] = []
        self.actions = {action.code: action for action in self._actions()}
        self.groups = [
            [action for action in self.actions.values() if job.group_of[action.stage] == group]
            for group in range(len(job.shape.stages))
        ]
        self.before: dict[tuple[int, int], int | bool] = {}
        """For two actions of a group, by their codes in order: whether the first runs first, or the variable that says
        so."""

    def linear(self) -> Linear:
        for group, actions in enumerate(self.groups):
            self._orders(actions)
            self._monotone(actions)
            for action in actions:
                self._room(group, action, actions)
                self._load(group, action, actions)
        self._waits()
        costs = (1.0,) + (0.0,) * (len(self.lower) - 1)
        return Linear(
            costs=costs,
            lower=tuple(self.lower),
            upper=tuple(self.upper),
            whole=tuple(self.whole),
            rows=tuple(self.rows),
        )

    def certificate(self, solution: Solution) -> Certificate:
        """The certificate that a solution amounts to."""
        best, bound_s = self.known, floor_s(self.job)
        if solution.values is not None:
            found = ordered(self.job, lists := self.read(solution.values))
            if found is not None and found.step_s < best.step_s and all_fit(self.job, lists):
                best = found
        if solution.bound is not None:
            bound_s = max(bound_s, solution.bound * self.unit_s)
        return Certificate(best, min(bound_s, best.step_s))

    def read(self, values: tuple[float, ...]) -> Lists:
        """The orders of the groups, by when actions start."""
        return tuple(
            tuple(one.code for one in sorted(actions, key=lambda one: (values[one.index] + one.seconds / 2, one.code)))
            for actions in self.groups
        )

    def _variable(self, low: float, high: float, *, whole: bool = False) -> int:
        self.lower.append(low)
        self.upper.append(high)
        self.whole.append(whole)
        return len(self.lower) - 1

    def _actions(self) -> Iterator[_Action]:
        job, unit, count = self.job, self.unit_s, self.job.shape.microbatches
        heads, ways = self._heads(), tails(job)
        for stage in range(job.shape.depth):
            for kind in job.kinds:
                taken = job.taken_s[stage][kind] / unit
                for microbatch in range(count):
                    first = heads[stage, kind] / unit + microbatch * taken
                    last = self.step_s - ways[stage][kind] / unit - (count - 1 - microbatch) * taken
                    code = 4 * (microbatch * job.shape.depth + stage) + kind
                    last = max(first, last)
                    index = self._variable(first, last)
                    yield _Action(code, index, stage, kind, microbatch, taken, first, last)

    def _heads(self) -> Mapping[tuple[int, int], float]:
        """The earliest start, by stage and kind."""
        job, found, at = self.job, dict[tuple[int, int], float](), 0.0
        for stage in range(job.shape.depth):
            at = max(at, job.release_s[job.group_of[stage]])
            found[stage, FORWARD] = at
            at += job.taken_s[stage][FORWARD] + job.lag_s[stage][FORWARD]
        for stage in reversed(range(job.shape.depth)):
            found[stage, job.back] = at
            if job.apart:
                found[stage, WEIGHT] = at + job.taken_s[stage][job.back]
            at += job.taken_s[stage][job.back] + job.lag_s[stage][job.back]
        return found

    def _leads(self, one: _Action, other: _Action) -> bool:
        """Whether `one` runs before `other` whatever is decided: within one micro-batch, or because micro-batches run
        in order."""
        if one.microbatch > other.microbatch or one.code == other.code:
            return False
        if (one.stage, one.kind) == (other.stage, other.kind):
            return True
        if one.kind == FORWARD:
            return other.kind != FORWARD or one.stage < other.stage
        if one.kind == WEIGHT or other.kind == FORWARD:
            return False
        return one.stage >= other.stage if other.kind == WEIGHT else one.stage > other.stage

    def _orders(self, actions: list[_Action]) -> None:
        for one in actions:
            for other in actions:
                if one.code >= other.code:
                    continue
                if self._leads(one, other) or other.first_s + other.seconds > one.last_s:
                    self.before[one.code, other.code] = True
                    self._after(one, other)
                elif self._leads(other, one) or one.first_s + one.seconds > other.last_s:
                    self.before[one.code, other.code] = False
                    self._after(other, one)
                else:
                    order = self._variable(0.0, 1.0, whole=True)
                    self.before[one.code, other.code] = order
                    self._apart(one, other, order)

    def _after(self, one: _Action, other: _Action) -> None:
        """Rows for: the other action starts when this one has ended."""
        self.rows.append((((one.index, 1.0), (other.index, -1.0)), -one.seconds))

    def _apart(self, one: _Action, other: _Action, order: int) -> None:
        """Rows for: two actions never overlap; with `order` set `one` runs first, else `other`."""
        first = one.last_s + one.seconds - other.first_s
        second = other.last_s + other.seconds - one.first_s
        self.rows.append((((one.index, 1.0), (other.index, -1.0), (order, first)), first - one.seconds))
        self.rows.append((((other.index, 1.0), (one.index, -1.0), (order, -second)), -other.seconds))

    def _first(self, one: _Action, other: _Action) -> tuple[list[tuple[int, float]], float]:
        """Whether `one` runs before `other`, as terms and a constant."""
        flipped = one.code > other.code
        found = self.before[(other.code, one.code) if flipped else (one.code, other.code)]
        if isinstance(found, bool):
            return [], float(found != flipped)
        return ([(found, -1.0)], 1.0) if flipped else ([(found, 1.0)], 0.0)

    def _monotone(self, actions: list[_Action]) -> None:
        """Rows for: where one runs before another, its predecessor in the micro-batch before does too, and it runs
        before the other's successor."""
        for one in actions:
            for other in actions:
                if (one.stage, one.kind) == (other.stage, other.kind):
                    continue
                if one.microbatch:
                    self._implies((one, other), (self._beside(one, -1), other))
                if other.microbatch + 1 < self.job.shape.microbatches:
                    self._implies((one, other), (one, self._beside(other, 1)))

    def _beside(self, action: _Action, by: int) -> _Action:
        return self.actions[action.code + 4 * self.job.shape.depth * by]

    def _implies(self, one: tuple[_Action, _Action], other: tuple[_Action, _Action]) -> None:
        terms, constant = self._first(*one)
        then, more = self._first(*other)
        if terms and (then or not more):
            self.rows.append(((*terms, *((index, -factor) for index, factor in then)), more - constant))

    def _room(self, group: int, action: _Action, actions: list[_Action]) -> None:
        """Rows for memory: what earlier actions leave, and the action's own needs."""
        holding, stages = self.job.holdings[group], self.job.shape.stages[group]
        at = stages.index(action.stage)
        kept, waiting = holding.kept_bytes[at], holding.waiting_bytes[at]
        own = 0.0 if action.kind == FORWARD else waiting if action.kind == WEIGHT else kept
        room = holding.room_bytes * (1 + ROUNDING)
        terms, constant = list[tuple[int, float]](), holding.working_bytes[at][action.kind] - own
        for other in actions:
            if other.code == action.code:
                continue
            place = stages.index(other.stage)
            kept, waiting = holding.kept_bytes[place], holding.waiting_bytes[place]
            change = (kept, -kept, waiting - kept, -waiting)[other.kind]
            first, always = self._first(other, action)
            terms += [(index, factor * change) for index, factor in first]
            constant += always * change
        unit = max(room, 1e-300) / SPREAD
        self.rows.append((tuple((index, factor / unit) for index, factor in terms), (room - constant) / unit))

    def _load(self, group: int, action: _Action, actions: list[_Action]) -> None:
        """Rows for load: an action starts after all earlier work on its group, and the step ends after all later
        work."""
        job, unit = self.job, self.unit_s
        earliest = min(one.first_s for one in actions)
        early, late = [(action.index, -1.0)], [(action.index, 1.0), (0, -1.0)]
        sure, rest = earliest, action.seconds + job.ending_s[group] / unit
        for other in actions:
            if other.code == action.code:
                continue
            first, always = self._first(other, action)
            early += [(index, factor * other.seconds) for index, factor in first]
            sure += always * other.seconds
            late += [(index, -factor * other.seconds) for index, factor in first]
            rest += (1 - always) * other.seconds
        self.rows.append((tuple(early), -sure))
        self.rows.append((tuple(late), -rest))

    def _waits(self) -> None:
        """Rows for dependencies: results that other actions wait for, on whichever group."""
        links: dict[tuple[int, int], list[tuple[_Action, int, _Action]]] = {}
        for action in self.actions.values():
            for other in self._readers(action):
                here, there = (self.job.group_of[one.stage] for one in (action, other))
                if here == there or not self._lag(action):
                    self._after(action, other)
                    continue
                arrival = self._variable(action.first_s + action.seconds + self._lag(action), other.last_s)
                self.rows.append((((action.index, 1.0), (arrival, -1.0)), -action.seconds - self._lag(action)))
                self.rows.append((((arrival, 1.0), (other.index, -1.0)), 0.0))
                links.setdefault((here, there), []).append((action, arrival, other))
        for sent in links.values():
            self._one_by_one(sent)

    def _one_by_one(self, sent: list[tuple[_Action, int, _Action]]) -> None:
        """Rows for links: one result at a time, in the order in which they are made."""
        for one, arrival, reader in sent:
            for other, later, _ in sent:
                if other is one:
                    continue
                first, always = self._first(one, other)
                lag = self._lag(other)
                slack = max(0.0, reader.last_s + lag - self.lower[later])
                terms = [(index, factor * slack) for index, factor in first]
                if first or always:
                    self.rows.append(((*terms, (arrival, 1.0), (later, -1.0)), slack - always * slack - lag))

    def _readers(self, action: _Action) -> Iterator[_Action]:
        """The actions that wait for the result of one."""
        depth, back = self.job.shape.depth, self.job.back
        wanted = []
        if action.kind == FORWARD:
            wanted.append((action.stage + 1, FORWARD) if action.stage + 1 < depth else (action.stage, back))
        if action.kind == back and action.stage:
            wanted.append((action.stage - 1, back))
        if action.kind == back and self.job.apart:
            wanted.append((action.stage, WEIGHT))
        for stage, kind in wanted:
            yield self.actions[4 * (action.microbatch * depth + stage) + kind]

    def _lag(self, action: _Action) -> float:
        return self.job.lag_s[action.stage][action.kind] / self.unit_s
