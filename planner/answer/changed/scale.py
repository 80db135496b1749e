"""How a model scales: a plan for each of several numbers of devices.

    arguments, sizes -> Sized: the question at each size, read and checked before anything is searched
    Sized -> Size: its plan, or why there is none; all of them -> Scaling

A size is a question like any other: its plan is the one that asking it alone finds, and is kept as such for the next
run. Efficiency is tokens per second and device over those of the smallest size that fits: with strong scaling (the
global batch stays) and with weak scaling (it grows with the devices) alike.
"""

from __future__ import annotations

from argparse import Namespace
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from typing import Any

from meshwright import __version__
from meshwright.ir.errors import within
from meshwright.planner.answer.changed.outcome import outcome, plan_in_short
from meshwright.planner.answer.kept import Question
from meshwright.planner.answer.solve import Stop
from meshwright.planner.plan.types import Plan
from meshwright.planner.question.ask import Ask, read_asked
from meshwright.planner.question.changed.sizes import OPTION, at_size
from meshwright.planner.question.constraints import Asked
from meshwright.planner.question.pricing import Setting
from meshwright.planner.search.phases import Told, untold

FORMAT_VERSION = 1


@dataclass(frozen=True, slots=True, kw_only=True)
class Sized:
    """A question on so many devices."""

    ranks: int
    ask: Ask
    asked: Asked


@dataclass(frozen=True, slots=True, kw_only=True)
class Size:
    """The answer on so many devices; where there is no plan, `why` says so."""

    ranks: int
    ask: Ask
    plan: Plan | None
    why: str

    @property
    def tokens_per_s(self) -> float | None:
        if self.plan is None:
            return None
        return self.plan.workload.tokens / self.plan.prediction.step_time_s

    @property
    def tokens_per_s_per_gpu(self) -> float | None:
        """Of all devices, those too that the plan has no use for."""
        return None if self.tokens_per_s is None else self.tokens_per_s / self.ranks


@dataclass(frozen=True, slots=True, kw_only=True, repr=False)
class Scaling:
    """Answers by size, the smallest first. As text it is a line for each."""

    scaling: str
    """`strong` or `weak`."""
    sizes: tuple[Size, ...]

    def efficiency(self, one: Size) -> float | None:
        """Tokens per second and device, over those of the smallest size that fits."""
        first = next((size.tokens_per_s_per_gpu for size in self.sizes if size.plan is not None), None)
        return None if first is None or one.tokens_per_s_per_gpu is None else one.tokens_per_s_per_gpu / first

    def __repr__(self) -> str:
        return "\n".join(f"{one.ranks:,}: {one.why if one.plan is None else one.plan}" for one in self.sizes)

    def to_json(self) -> dict[str, Any]:
        """The answers as docs/plan.md describes them."""
        return {
            "format_version": FORMAT_VERSION,
            "meshwright": __version__,
            "model": self.sizes[0].ask.model if self.sizes else None,
            "scaling": self.scaling,
            "sizes": [self._size(one) for one in self.sizes],
        }

    def _size(self, one: Size) -> dict[str, Any]:
        return {
            "ranks": one.ranks,
            "hosts": one.ask.cluster.hosts,
            "cluster": one.ask.cluster_reference,
            "global_batch": one.ask.workload.global_batch,
            "plan": plan_in_short(one.plan) if one.plan else None,
            "why": one.why,
            "tokens_per_s": one.tokens_per_s,
            "tokens_per_s_per_gpu": one.tokens_per_s_per_gpu,
            "efficiency": self.efficiency(one),
        }


def read_sized(args: Namespace, sizes: Sequence[int], scaling: str) -> list[Sized]:
    """The questions at these sizes; what cannot be asked is refused here."""
    found = []
    for size in sizes:
        with within(f"{OPTION} {size}"):
            ask, asked = read_asked(at_size(args, size, scaling))
        found.append(Sized(ranks=size, ask=replace(ask, given=getattr(args, "given", None)), asked=asked))
    return found


def scaled(args: Namespace, sizes: Sequence[Sized], stop: Stop, told: Told = untold) -> Iterator[Size]:
    """The answers at these sizes, one by one, until that is interrupted. The model is loaded once."""
    known: Setting | None = None
    for number, one in enumerate(sizes, 1):
        if stop.interrupted:
            return
        stop.begin(args.time_limit)

        def of_this(phase: str, search: Any = None, at: str = f"size {one.ranks:,} ({number}/{len(sizes)})") -> None:
            told(f"{at}, {phase}", search)

        with stop.loading():
            ask, known = one.ask.loaded(known)
        found = outcome(Question.of(args, ask, known, one.asked), stop, of_this, args.time_limit)
        yield Size(ranks=one.ranks, ask=ask, plan=found.plan, why=found.why)
