"""A plan that may become the answer.

What ranks candidates is `Prediction.worth`: bytes that stages lack, then how long a step takes. The evaluator's price
of the lowered program is the only judge.
"""

from __future__ import annotations

from dataclasses import dataclass
from operator import attrgetter

from meshwright.cost_models.hardware.cluster import Cluster
from meshwright.cost_models.prediction import Prediction, Worth
from meshwright.ir.decisions.decisions import Decisions
from meshwright.ir.graph.fold import Fold
from meshwright.ir.names.stages import layer_calls
from meshwright.planner.question.pins import Config

Counts = tuple[int, ...]
"""The layers of every stage, along the model."""

WORTH = attrgetter("worth")


@dataclass(frozen=True, slots=True)
class Custom:
    """A schedule made for a plan (`planner.refine.schedule`), compared with what it replaces.

    - `before` is the schedule in whose place it is; `before_s` the step with that, 0 where it does not fit.
    """

    before: str
    before_s: float
    least_s: float
    """What no order of the plan's work takes less than."""


@dataclass(frozen=True, slots=True)
class Candidate:
    """A plan, its price, and what it came of.

    - `counts` are the layers of its stages, `idle` the ranks of the cluster that it does not use.
    - `origin` is the configuration that it was made of, `config` the same with these layers; None where its stages have
      different meshes.
    """

    decisions: Decisions
    prediction: Prediction
    counts: Counts = ()
    idle: tuple[int, ...] = ()
    config: Config | None = None
    origin: Config | None = None
    changed: tuple[str, ...] = ()
    """Bodies in which axes do something else than names say (`planner.refine.operators`)."""
    custom: Custom | None = None
    """If the schedule was made for it."""

    @property
    def step_s(self) -> float:
        return self.prediction.step_time_s

    @property
    def worth(self) -> Worth:
        return self.prediction.worth

    @property
    def named(self) -> Config:
        """The configuration that names the plan best: its own, or else the one that it was made of."""
        config = self.config or self.origin
        assert config is not None, "it was made of one"
        return config


def counts_of(decisions: Decisions, fold: Fold) -> Counts:
    """The layers of every stage of a plan."""
    layers = layer_calls(fold)
    return tuple(sum(stage.first <= call < stage.last for call in layers) for stage in decisions.stages)


def idle_ranks(decisions: Decisions, cluster: Cluster) -> tuple[int, ...]:
    """The ranks of the cluster that a plan leaves without work."""
    used = {rank for group in decisions.groups for rank in group}
    return tuple(rank for rank in range(cluster.ranks) if rank not in used)
