"""The timeline of a step: what every group of ranks does, and when, as the evaluator prices it.

In: a `Step` of the evaluator. Out: a `Timeline` with a *lane* for each group of ranks that share a list of actions. A
lane is whole: its slices follow each other without a gap from the beginning of its step to the end, so that each lane
adds up to the step time. On the lane that ends last, seconds by share are those of the prediction.

    [publish]  what the step before left to gather        [wait | action]*  the list of actions, as `schedule` times it
    gradients, optimizer, publish, …                      what follows the list (`Step.ending`)
    wait                                                  for the other groups, and for the slowest of many ranks

An action's slice has parts, by what is done: an evaluator says how long kernels, what runs again and communication take
in an action, not in which order, so the order of the parts is by convention. Communication is what nothing hides.
Groups that roll on into the next step (`Step.rolling`) each begin theirs with their first action.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass
from math import isclose

from meshwright.cost_models.cost import Taken
from meshwright.cost_models.schedule import Seconds, Simulated
from meshwright.cost_models.step import Step
from meshwright.ir.errors import SecondsImpossible
from meshwright.ir.schedules import KINDS as ACTIONS
from meshwright.ir.schedules import action_of

KINDS = ("recompute", "forward", "backward", "weights", "communication", "optimizer", "host", "bubble")
"""What is done in a part of a slice, in the order in which parts of one action stand."""

COMMUNICATION = frozenset(("tensor", "context", "expert", "parameters", "transfers", "gradients", "publish"))
OWN = {"recompute": "recompute", "host": "host", "optimizer": "optimizer", "bubble": "bubble"}
"""Shares of a step that are the same whatever action they belong to."""


@dataclass(frozen=True, slots=True)
class Part:
    """Seconds of one kind, and what they are spent on, by share of the step."""

    kind: str
    seconds: float
    shares: tuple[tuple[str, float], ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class Slice:
    """Something that a group of ranks does, or waits for.

    - The seconds of its parts add up to its own.
    - `stage` and `microbatch` are -1 where it is no action.
    """

    name: str
    start_s: float
    end_s: float
    parts: tuple[Part, ...]
    stage: int = -1
    microbatch: int = -1

    def __post_init__(self) -> None:
        taken = sum(part.seconds for part in self.parts)
        if not isclose(taken, self.seconds, rel_tol=1e-6, abs_tol=1e-9 * max(1.0, self.end_s)):
            cause = f"parts of {taken} s in a slice of {self.seconds} s"
            raise SecondsImpossible(place=f"slice {self.name}", cause=cause, fix="let the parts add up")

    @property
    def seconds(self) -> float:
        return self.end_s - self.start_s


@dataclass(frozen=True, slots=True, kw_only=True)
class Lane:
    """What one group of ranks does in a step, without a gap."""

    group: int
    ranks: tuple[int, ...]
    stages: tuple[int, ...]
    slices: tuple[Slice, ...]

    def by_kind(self) -> dict[str, float]:
        """Seconds by what is done."""
        found = dict.fromkeys(KINDS, 0.0)
        for one in self.slices:
            for part in one.parts:
                found[part.kind] += part.seconds
        return found


@dataclass(frozen=True, slots=True, kw_only=True)
class Transfer:
    """The result of an action on its way to another group, beside compute."""

    name: str
    source: int
    target: int
    start_s: float
    end_s: float


@dataclass(frozen=True, slots=True, kw_only=True)
class Timeline:
    """A step in time."""

    step_s: float
    schedule: str
    microbatches: int
    lanes: tuple[Lane, ...]
    transfers: tuple[Transfer, ...]
    last: int
    """The lane that ends last."""
    straggling_s: float
    """What all wait for the slowest of many ranks, at the end."""
    rolling: bool

    @property
    def end_s(self) -> float:
        """When the last lane ends."""
        return max(lane.slices[-1].end_s for lane in self.lanes)


def timeline_of(step: Step, step_s: float, schedule: str) -> Timeline:
    """The timeline of a priced step; `step_s` and `schedule` are its time, and the name of the order of its work."""
    ran, seconds = step.ran(), step.seconds()
    ends, before_s, actions = step.endings(ran), step.before_s(ran), _actions(step, ran, seconds)
    lanes = []
    for group, (ranks, _) in enumerate(step.program.actions):
        released = [] if step.rolling else _one_by_one({"publish": ran.release_s[group]}, 0.0)
        at_s = actions[group][-1].end_s if actions[group] else before_s[group]
        own_slices = (*released, *actions[group], *_one_by_one(ends[group], at_s))
        slices = tuple(_without_gaps(own_slices, before_s[group], before_s[group] + step_s))
        lanes.append(Lane(group=group, ranks=ranks, stages=tuple(step.group_stages(group)), slices=slices))
    finish = [ran.finish_s[g] + sum(ends[g].values()) - before_s[g] for g in range(len(ends))]
    return Timeline(
        step_s=step_s,
        schedule=schedule,
        microbatches=step.program.microbatches,
        lanes=tuple(lanes),
        transfers=tuple(_transfers(ran, seconds)),
        last=max(range(len(finish)), key=finish.__getitem__),
        straggling_s=step_s - max(finish),
        rolling=step.rolling,
    )


def _actions(step: Step, ran: Simulated, seconds: Seconds) -> list[list[Slice]]:
    """The actions of every group, in order."""
    parts = {
        (kind, stage): tuple(_parts_of(step, seconds, ran, kind, stage))
        for stage in range(len(step.program.stages))
        for kind in ACTIONS
    }
    found: list[list[Slice]] = [[] for _ in step.program.actions]
    for group, kind, stage, microbatch, start_s, end_s in ran.timeline():
        own = Slice(
            name=f"{stage}{kind}{microbatch}",
            start_s=start_s,
            end_s=end_s,
            parts=parts[kind, stage],
            stage=stage,
            microbatch=microbatch,
        )
        found[group].append(own)
    return found


def _parts_of(step: Step, seconds: Seconds, ran: Simulated, kind: str, stage: int) -> Iterator[Part]:
    """The parts of every action of a kind on a stage."""
    inputs, weights = ("backward", step.inputs[stage]), ("weights", step.weights[stage])
    done: dict[str, tuple[tuple[str, Taken], ...]] = {
        "F": (("forward", step.forwards[stage]),),
        "B": (inputs, weights),
        "I": (inputs,),
        "W": (weights,),
    }
    found: dict[str, dict[str, float]] = {}
    for doing, taken in done[kind]:
        for share, taken_s in taken.shares:
            of_kind = found.setdefault(_kind(share, doing), {})
            of_kind[share] = of_kind.get(share, 0.0) + taken_s
    number = ACTIONS.index(kind)
    if seconds.exposed and ran.compiled.link(stage, number) is not None:
        found.setdefault("communication", {})["transfers"] = seconds.leaving(stage, number)
    for name in KINDS:
        if taken_s := sum(found.get(name, {}).values()):
            yield Part(name, taken_s, tuple((share, own_s) for share, own_s in found[name].items() if own_s))


def _kind(share: str, doing: str) -> str:
    """What is done in a share of the step."""
    return "communication" if share in COMMUNICATION else OWN.get(share, doing)


def _one_by_one(shares: Mapping[str, float], at_s: float) -> Iterator[Slice]:
    """Slices of what is no action, one after another."""
    for share, taken_s in shares.items():
        if taken_s > 0:
            part = Part(_kind(share, "optimizer"), taken_s, ((share, taken_s),))
            yield Slice(name=share, start_s=at_s, end_s=at_s + taken_s, parts=(part,))
            at_s += taken_s


def _without_gaps(slices: Iterable[Slice], begin_s: float, end_s: float) -> Iterator[Slice]:
    """Slices in order, and waits between them."""
    at_s, rounding_s = begin_s, 1e-9 * max(end_s - begin_s, 1e-9)
    for one in slices:
        if one.start_s > at_s + rounding_s:
            yield _wait(at_s, one.start_s)
        yield one
        at_s = one.end_s
    if end_s > at_s + rounding_s:
        yield _wait(at_s, end_s)


def _wait(start_s: float, end_s: float) -> Slice:
    part = Part("bubble", end_s - start_s, (("bubble", end_s - start_s),))
    return Slice(name="wait", start_s=start_s, end_s=end_s, parts=(part,))


def _transfers(ran: Simulated, seconds: Seconds) -> Iterator[Transfer]:
    """Results on their way beside compute, in the order in which they are made."""
    made = ran.compiled
    for code, of, there_s in zip(made.codes, made.classes, ran.arrivals[1:], strict=True):
        stage, kind = divmod(of, 4)
        link, taken_s = made.link(stage, kind), seconds.leaving(stage, kind)
        if link is not None and not seconds.exposed and taken_s > 0:
            action = action_of(code, made.shape.depth)
            yield Transfer(
                name=f"{action.stage}{action.kind}{action.microbatch}",
                source=link[0],
                target=link[1],
                start_s=there_s - taken_s,
                end_s=there_s,
            )
