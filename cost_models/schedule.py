"""Pipeline steps in time: an event simulator for any work lists.

What happens, exactly:

1. A group carries out its list in order, one action at a time. An action starts as soon as the one before it in the
   list has ended and what it waits for has arrived: for a forward the value from the stage before, for a B or I the
   gradient from the stage behind. A W waits for nothing but its turn.
2. The result of a forward goes to the stage behind, that of a B or I to the stage before. Within a group it is there at
   once. Between two groups it takes the seconds of that boundary and direction.
3. *Overlapped* transfers run beside compute. A transfer starts when its value is made and the link is free; a link is
   one ordered pair of groups, and carries one transfer at a time, in the order in which the values are made.
4. *Exposed* transfers take the sender's compute stream: its next action starts when the transfer has ended. The
   receiver waits for the arrival and pays nothing more, as where a send and the receive of the opposite direction are
   one batched exchange (Megatron-LM's `send_forward_recv_backward`, Narayanan et al. 2021, arXiv 2104.04473).

So start(a) = max(end of the action before, arrival of what it waits for): the longest path through a graph that the
lists fix. The order in which the groups run against each other does not matter, and more seconds anywhere never make
the step shorter. All groups start at 0, or when they are released. The makespan is the last end; where groups may
begin the next step without waiting for each other (ZB-H2, ZB-V with a post-validated optimizer, arXiv 2401.10241,
section 4), a step takes the longest `span_s` instead.

`compiled` brings lists into an order in which they can run, once; `simulate` is then one pass over flat tuples.
"""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass

from meshwright.ir.errors import SecondsImpossible
from meshwright.ir.schedules import FORWARD, KINDS, WEIGHT, Shape, WorkLists, action_of, derived, running_order

Timed = Callable[[str, int, int], float]
"""Seconds of an action, by kind, stage and micro-batch."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Seconds:
    """Seconds of all actions and transfers, the same for every micro-batch.

    - One entry per stage, and one per boundary from stage s to s + 1.
    - No entry is negative, infinite or not a number.
    """

    forward_s: tuple[float, ...]
    backward_s: tuple[float, ...]
    """A whole backward (B); need not be the sum of the next two."""
    input_s: tuple[float, ...]
    weight_s: tuple[float, ...]
    value_s: tuple[float, ...]
    """From stage s to s + 1; counts only where the two are on different groups."""
    gradient_s: tuple[float, ...]
    """From stage s + 1 back to s."""
    exposed: bool
    """Whether a transfer takes the sender's compute stream, or runs beside it."""

    def __post_init__(self) -> None:
        depth = len(self.forward_s)
        for name, expected in (
            ("forward_s", depth),
            ("backward_s", depth),
            ("input_s", depth),
            ("weight_s", depth),
            ("value_s", depth - 1),
            ("gradient_s", depth - 1),
        ):
            given: tuple[float, ...] = getattr(self, name)
            if len(given) != expected:
                raise SecondsImpossible(
                    place=name, cause=f"{len(given)} entries for {depth} stages", fix=f"give {expected}"
                )
            if given and not (math.isfinite(sum(given)) and min(given) >= 0):
                raise SecondsImpossible(place=name, cause=f"it holds {given}", fix="give finite seconds, none negative")

    @property
    def depth(self) -> int:
        """The number of stages."""
        return len(self.forward_s)

    def of(self, stage: int, kind: int) -> float:
        """Seconds of an action, by stage and place of its kind in `KINDS`."""
        return (self.forward_s, self.backward_s, self.input_s, self.weight_s)[kind][stage]

    def leaving(self, stage: int, kind: int) -> float:
        """Seconds of the transfer of an action's result; 0 where none leaves."""
        if kind == FORWARD:
            return self.value_s[stage] if stage + 1 < self.depth else 0.0
        return self.gradient_s[stage - 1] if stage and kind != WEIGHT else 0.0


@dataclass(frozen=True, slots=True, eq=False)
class Compiled:
    """Work lists sorted so that they can run, ready to be timed."""

    shape: Shape
    codes: tuple[int, ...]
    """The actions (see `meshwright.ir.schedules.work`)."""
    classes: tuple[int, ...]
    """Their stages and kinds, 4 · stage + kind: what decides seconds, group and link."""
    after: tuple[int, ...]
    """For each the 1-based number of the action of another stage whose result it waits for, 0 if there is none."""
    counts: tuple[tuple[int, int], ...]
    """Every class that occurs, and how often."""
    group_of: tuple[int, ...]
    """The group of every stage."""
    first: tuple[int, ...]
    """What the first action of every group waits for, as in `after`."""

    def link(self, stage: int, kind: int) -> tuple[int, int] | None:
        """The groups between which an action's result travels; None if it stays, or goes nowhere."""
        to = stage + 1 if kind == FORWARD else stage - 1
        if kind == WEIGHT or not 0 <= to < len(self.group_of) or self.group_of[to] == self.group_of[stage]:
            return None
        return self.group_of[stage], self.group_of[to]


@derived
def makes_weights_apart(work: WorkLists) -> bool:
    """Whether weight gradients are made by actions of their own (W)."""
    return any(code & 3 == WEIGHT for one in work.lists for code in one)


@derived
def compiled(work: WorkLists) -> Compiled:
    """Order lists for `simulate`; cached, for lists that are the same object. Refuses lists that wait in a circle."""
    order, period = running_order(work), 4 * work.shape.depth
    classes = tuple([code % period for code in order.codes])
    first = {group: order.after[order.groups.index(group)] for group in set(order.groups)}
    return Compiled(
        shape=work.shape,
        codes=order.codes,
        classes=classes,
        after=order.after,
        counts=tuple(sorted(Counter(classes).items())),
        group_of=tuple(work.shape.group_of()),
        first=tuple(first.get(group, 0) for group in range(len(work.lists))),
    )


@dataclass(frozen=True, slots=True, eq=False, kw_only=True)
class Simulated:
    """A step in time. Tuples have one entry per group."""

    makespan_s: float
    """From 0 to the last end."""
    busy_s: tuple[float, ...]
    """Computing."""
    sending_s: tuple[float, ...]
    """In transfers that take the compute stream."""
    begin_s: tuple[float, ...]
    """Start of the first action."""
    finish_s: tuple[float, ...]
    """End of the last action, and of the transfer behind it where that is exposed."""
    compiled: Compiled
    seconds: tuple[float, ...]
    """Of every action, in the order of `compiled`, an exposed transfer included."""
    arrivals: tuple[float, ...]
    """When the result of every action is where it is read; one entry ahead of them, 0, for what waits for nothing."""
    release_s: tuple[float, ...]
    """When every group may begin."""

    @property
    def span_s(self) -> tuple[float, ...]:
        """From a group's first start to its last end."""
        return tuple(end - begin for begin, end in zip(self.begin_s, self.finish_s, strict=True))

    def last_start_s(self, kinds: Sequence[str]) -> tuple[float, ...]:
        """For every stage, when its last action of one of these kinds began."""
        made, arrivals, began = self.compiled, self.arrivals, [0.0] * self.compiled.shape.depth
        free = list(self.release_s)
        wanted = [kind in kinds for kind in KINDS] * len(began)
        groups = [made.group_of[of // 4] for of in range(len(wanted))]
        for of, after, seconds in zip(made.classes, made.after, self.seconds, strict=True):
            start, arrival = free[groups[of]], arrivals[after]
            if arrival > start:
                start = arrival
            free[groups[of]] = start + seconds
            if wanted[of]:
                began[of // 4] = start
        return tuple(began)

    def timeline(self) -> Iterator[tuple[int, str, int, int, float, float]]:
        """Every action with its group, kind, stage, micro-batch, start and end, exposed transfers included."""
        made = self.compiled
        free = list(self.release_s)
        for code, after, seconds in zip(made.codes, made.after, self.seconds, strict=True):
            action = action_of(code, made.shape.depth)
            group = made.group_of[action.stage]
            start = max(free[group], self.arrivals[after])
            free[group] = start + seconds
            yield group, action.kind, action.stage, action.microbatch, start, free[group]


def simulate(
    made: Compiled, seconds: Seconds, timed: Timed | None = None, release_s: Sequence[float] = ()
) -> Simulated:
    """Time the work lists. `timed` gives the seconds of actions where they differ by micro-batch; transfers are those
    of `seconds` all the same. `release_s` says when each group may begin (0 unless given)."""
    release = tuple(release_s) or (0.0,) * len(made.shape.stages)
    if seconds.depth != made.shape.depth:
        raise SecondsImpossible(
            place="simulate",
            cause=f"seconds of {seconds.depth} stages for work lists of {made.shape.depth}",
            fix="give every stage one entry",
        )
    compute = [seconds.of(stage, kind) for stage in range(seconds.depth) for kind in range(4)]
    sending, rows = _rows(made, seconds)
    if timed is None:
        taken = [busy + sent for busy, sent in zip(compute, sending, strict=True)]
        each = tuple([taken[of] for of in made.classes])
        busy = _totals(made, compute)
    else:
        own = _own_seconds(made, timed)
        each = tuple(mine + sending[of] for mine, of in zip(own, made.classes, strict=True))
        busy = [0.0] * len(made.shape.stages)
        for mine, of in zip(own, made.classes, strict=True):
            busy[made.group_of[of // 4]] += mine
    arrivals, finish = _run(made, each, rows, release)
    return Simulated(
        makespan_s=max(finish),
        busy_s=tuple(busy),
        sending_s=tuple(_totals(made, sending)),
        begin_s=tuple(max(arrivals[after], at) for after, at in zip(made.first, release, strict=True)),
        finish_s=tuple(finish),
        compiled=made,
        seconds=each,
        arrivals=tuple(arrivals),
        release_s=release,
    )


def _rows(made: Compiled, seconds: Seconds) -> tuple[list[float], list[tuple[int, int, float]]]:
    """The classes of actions: the seconds that their transfers take of the compute stream; their group, their link (-1:
    the result is there at once) and the seconds on the link."""
    links: dict[tuple[int, int], int] = {}
    sending, rows = [], []
    for stage, group in enumerate(made.group_of):
        for kind in range(len(KINDS)):
            pair = made.link(stage, kind)
            leaving = 0.0 if pair is None else seconds.leaving(stage, kind)
            sending.append(leaving if seconds.exposed else 0.0)
            beside = pair is not None and not seconds.exposed
            rows.append((group, links.setdefault(pair, len(links)) if pair and beside else -1, leaving))
    return sending, rows


def _run(
    made: Compiled, each: Sequence[float], rows: Sequence[tuple[int, int, float]], release: Sequence[float]
) -> tuple[list[float], list[float]]:
    """The arrivals of all results, and every group's last end. The hot loop: 10⁵ turns for a large schedule."""
    free = list(release)
    idle = [0.0] * len(rows)
    arrivals = [0.0]
    arrive = arrivals.append
    for after, taken, (group, link, transfer) in zip(made.after, each, [rows[of] for of in made.classes], strict=True):
        now = free[group]
        there = arrivals[after]
        if there > now:
            now = there
        now += taken
        free[group] = now
        if link >= 0:
            begin = idle[link]
            if begin > now:
                now = begin
            now += transfer
            idle[link] = now
        arrive(now)
    return arrivals, free


def _totals(made: Compiled, each: Sequence[float]) -> list[float]:
    """Seconds by class, added up by group."""
    totals = [0.0] * len(made.shape.stages)
    for of, count in made.counts:
        totals[made.group_of[of // 4]] += count * each[of]
    return totals


def _own_seconds(made: Compiled, timed: Timed) -> list[float]:
    """Seconds of every action, in order."""
    own = []
    for code in made.codes:
        action = action_of(code, made.shape.depth)
        seconds = timed(action.kind, action.stage, action.microbatch)
        if not (math.isfinite(seconds) and seconds >= 0):
            raise SecondsImpossible(
                place=f"action {action}", cause=f"it takes {seconds} s", fix="give finite seconds, none negative"
            )
        own.append(seconds)
    return own
