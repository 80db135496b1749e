"""A plan as one value: decisions, what they were made for, what they cost, and how good that is.

    Plan = Decisions + what they were made for + what they cost + how good that is

The decisions alone rebuild the program; everything else is there so that a reader need not search again, and so that a
plan that is used elsewhere is recognised: another model is refused (`same_model`), another cluster or profile is
something to warn of, and to price again (`changes`). `plan_file` writes and reads it.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from html import escape
from typing import Any

from meshwright import __version__
from meshwright.cost_models.hardware.cluster import Cluster
from meshwright.cost_models.hardware.quantity import Kind
from meshwright.cost_models.hardware.toml import read as read_toml
from meshwright.cost_models.hardware.toml import write as write_toml
from meshwright.cost_models.measured.measured import Measured
from meshwright.cost_models.prediction import Prediction
from meshwright.cost_models.profile import Profile, calibrated, published
from meshwright.cost_models.profile import digest as profile_digest
from meshwright.ir.analysis.account import parameters
from meshwright.ir.decisions.decisions import Decisions
from meshwright.ir.errors import PlanOfAnotherModel
from meshwright.ir.graph.digest import digest
from meshwright.ir.graph.fold import Fold, shortened
from meshwright.ir.target.workload import Workload
from meshwright.planner.plan.units import nbytes, percent, seconds
from meshwright.planner.question.module_pins import ModulePin
from meshwright.planner.question.pins import Config


@dataclass(frozen=True, slots=True, kw_only=True)
class Model:
    """The facts by which a plan recognises its model."""

    ref: str
    digest: str
    parameters: int
    tensors: tuple[tuple[str, str], ...]
    """The parameters and buffers of the first of every repeated block, with their types."""

    @staticmethod
    def of(ref: str, fold: Fold, config: str) -> Model:
        held = parameters(fold)
        first = parameters(shortened(fold, 1))
        return Model(
            ref=ref,
            digest=digest(fold, config),
            parameters=sum(type_.elements for param, type_ in held.values() if not param.buffer),
            tensors=tuple((path, str(type_)) for path, (_, type_) in first.items()),
        )


@dataclass(frozen=True, slots=True, kw_only=True)
class Machines:
    """The facts by which a plan recognises its cluster; its text is that of a cluster file."""

    ref: str
    hosts: int
    ranks: int
    devices: tuple[str, ...]
    toml: str

    @staticmethod
    def of(ref: str, cluster: Cluster) -> Machines:
        return Machines(
            ref=ref,
            hosts=cluster.hosts,
            ranks=cluster.ranks,
            devices=tuple(dict.fromkeys(pool.device.name for pool in cluster.pools)),
            toml=write_toml(cluster),
        )

    def cluster(self) -> Cluster:
        return read_toml(self.toml, place="cluster.toml")


@dataclass(frozen=True, slots=True, kw_only=True)
class Provenance:
    """The release that made a plan, and the numbers that it used."""

    meshwright: str
    profile: str
    profile_digest: str
    weakest: Kind
    seed: int
    measured: Measured | None = None
    """What was measured on the machine itself, so that the plan can be priced again anywhere."""

    @staticmethod
    def of(weakest: Kind, seed: int, profile: Profile) -> Provenance:
        return Provenance(
            meshwright=__version__,
            profile=profile.name,
            profile_digest=profile_digest(profile.measured),
            weakest=weakest,
            seed=seed,
            measured=profile.measured,
        )

    def prices(self) -> Profile:
        """The profile of today's release that has the same measurements."""
        return published() if self.measured is None else calibrated(self.measured)


@dataclass(frozen=True, slots=True, kw_only=True)
class Rival:
    """A plan that the answer is compared with: its name, its cost, and where the difference lies.

    - `config` is None where the model, the cluster or the constraints have no such plan; then `lost` says why.
    """

    name: str
    config: Config | None
    step_time_s: float
    peak_memory_bytes: float
    short_stage: int
    """The stage that lacks most, -1 if it fits."""
    short_bytes: float
    slower: float
    """Its step time over that of the plan."""
    differences: tuple[tuple[str, float], ...]
    """Seconds that it takes longer, by what they go to; the largest first."""
    lost: str

    @property
    def fits(self) -> bool:
        return self.config is not None and self.short_stage < 0


@dataclass(frozen=True, slots=True, kw_only=True)
class Point:
    """A configuration that was priced, with its time and its memory."""

    config: Config
    step_time_s: float
    peak_memory_bytes: float
    fits: bool


@dataclass(frozen=True, slots=True, kw_only=True)
class Binding:
    """What keeps the plan from being faster, or of another kind: `kind` in a word, `what` in a sentence."""

    kind: str
    what: str


@dataclass(frozen=True, slots=True, kw_only=True)
class Bounds:
    """The bounds that were proved: nothing in the declared space is below `lower`, the plan is at `upper`.

    - Both are in the unit of the objective; `lower_s` and `upper_s` are seconds where that is time.
    """

    objective: str
    lower: float
    upper: float
    gap: float
    complete: bool
    """Whether the search ended by itself."""
    only: Mapping[str, tuple[Any, ...]]
    never: Mapping[str, tuple[Any, ...]]
    modules: tuple[ModulePin, ...]
    """What was asked of single modules: what is proved is proved of plans without."""
    truncated: tuple[str, ...]
    counts: Mapping[str, int]
    operators_s: float = 0.0
    """What no plan takes less than, whatever axes do in operators, on meshes of one or two axes; 0 where nothing is
    known."""
    more_axes_s: float = 0.0
    """The same of the declared meshes of more axes; the step itself where there are none."""

    @property
    def proved(self) -> bool:
        """Whether anything is."""
        return self.lower > 0


@dataclass(frozen=True, slots=True, kw_only=True, repr=False)
class Plan:
    """A plan with its report. As text it is one line; in a notebook a small table."""

    decisions: Decisions
    config: Config
    """The named degrees that the decisions were written from."""
    model: Model
    machines: Machines
    workload: Workload
    prediction: Prediction
    bounds: Bounds
    baselines: tuple[Rival, ...]
    alternatives: tuple[Rival, ...]
    binding: tuple[Binding, ...]
    provenance: Provenance
    blocks: tuple[tuple[tuple[str, int], ...], ...]
    """Per stage: what runs there, and how often."""
    notes: tuple[str, ...]
    frontier: tuple[Point, ...] = ()
    """Of the configurations that were priced, those that none of the others undercuts in both time and memory, the
    fastest first."""

    def facts(self) -> dict[str, str]:
        """What it is, and what it costs, in words by name."""
        predicted = self.prediction
        held = max((stage.memory for stage in predicted.stages), key=lambda memory: memory.peak_bytes)
        low, high = seconds(predicted.step_time_low_s), seconds(predicted.step_time_high_s)
        return {
            "plan": str(self.config),
            "model": self.model.ref,
            "cluster": f"{self.machines.ref}: {self.machines.ranks:,} ranks",
            "step time": f"{seconds(predicted.step_time_s)} ({low} to {high})",
            "peak memory": f"{nbytes(held.peak_bytes)} of {nbytes(held.capacity_bytes)}",
            "gap": percent(max(0.0, self.bounds.gap)) if self.bounds.proved else "unknown",
        }

    def __repr__(self) -> str:
        facts = self.facts()
        return f"Plan({facts['plan']} on {facts['cluster']}; {facts['step time']}; {facts['peak memory']})"

    def _repr_html_(self) -> str:
        left = "style='text-align:left'"
        rows = (
            f"<tr><th scope='row' {left}>{name}</th><td {left}>{escape(said)}</td></tr>"
            for name, said in self.facts().items()
        )
        return f"<table>{''.join(rows)}</table>"


def blocks_of(decisions: Decisions, fold: Fold) -> tuple[tuple[tuple[str, int], ...], ...]:
    """The classes of the calls of every stage, in order, each with its count."""
    calls = [(call.body.module_class or call.body.name).rpartition(".")[2] for call in fold.calls()]
    found = []
    for stage in decisions.stages:
        counts: dict[str, int] = {}
        for name in calls[stage.first : stage.last]:
            counts[name] = counts.get(name, 0) + 1
        found.append(tuple(counts.items()))
    return tuple(found)


# Elsewhere -----------------------------------------------------------------------------------------------------------


def same_model(plan: Plan, model: Model) -> None:
    """Check that a model is the one that a plan was made for; the cause of a refusal is the first difference."""
    if plan.model.digest != model.digest:
        raise PlanOfAnotherModel(
            place=f"{model.ref}, digest {model.digest}",
            cause=f"the plan is for {plan.model.ref}, digest {plan.model.digest}: {_difference(plan.model, model)}",
            fix="plan this model, or name the plan's with --model",
        )


def _difference(planned: Model, model: Model) -> str:
    before, now = dict(planned.tensors), dict(model.tensors)
    for path, type_ in planned.tensors:
        if path not in now:
            return f"there is no {path} here"
        if now[path] != type_:
            return f"{path} was {type_}, and is {now[path]} here"
    for path, type_ in model.tensors:
        if path not in before:
            return f"{path}, {type_}, is new here"
    if planned.parameters != model.parameters:
        return f"{planned.parameters:,} parameters there and {model.parameters:,} here, in other numbers of blocks"
    return "all parameters are the same; classes of blocks, which parameters are trained, or the configuration differ"


def changes(plan: Plan, machines: Machines) -> tuple[str, ...]:
    """Warnings where a plan is used on a changed cluster, or by another release: it has to be priced again."""
    found = []
    if plan.machines.toml != machines.toml:
        found.append(f"the cluster has changed: {_first_line(plan.machines.toml, machines.toml)}")
    if plan.provenance.profile_digest != profile_digest(plan.provenance.measured):
        found.append("the profile of prices has changed")
    return tuple(found)


def _first_line(before: str, now: str) -> str:
    old, new = before.splitlines(), now.splitlines()
    for was, is_ in zip(_padded(old, len(new)), _padded(new, len(old)), strict=True):
        if was != is_:
            return f"{was or 'nothing'!s} was planned for, {is_ or 'nothing'!s} is there"
    return "its text"


def _padded(lines: Iterable[str], length: int) -> list[str]:
    found = list(lines)
    return [*found, *[""] * (length - len(found))]
