"""The estimate of one configuration on a cluster.

    arguments -> Ask -> Setting (planner.question.pricing) -> Prediction -> Estimate -> tables or JSON

One configuration is priced here; `--configs` prices many, in `planner.answer.estimates`. Every number that is printed
is the evaluator's (`meshwright.cost_models.evaluate`), of the program that the configuration lowers to. The JSON schema
is documented in docs/estimate.md.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from meshwright import __version__
from meshwright.cost_models.hardware.cluster import suspicions
from meshwright.cost_models.hardware.quantity import Kind, weakest_kind
from meshwright.cost_models.prediction import Prediction
from meshwright.ir.analysis.account import parameters
from meshwright.ir.decisions.text import decisions_text
from meshwright.ir.graph.digest import digest
from meshwright.ir.graph.fold import Fold, unfold
from meshwright.ir.graph.text import fold_text, graph_text
from meshwright.ir.program.program import Action, Program
from meshwright.ir.program.text import program_text
from meshwright.ir.target.workload import Workload
from meshwright.planner.plan.units import nbytes, seconds
from meshwright.planner.question.annotated import LEFT
from meshwright.planner.question.ask import Ask
from meshwright.planner.question.pins import Config
from meshwright.planner.question.pricing import Setting

FORMAT_VERSION = 1


@dataclass(frozen=True, slots=True, kw_only=True)
class StageWork:
    """The work of a stage: layers, and the most micro-batches under way (forward done, backward not)."""

    layers: int
    in_flight: int


@dataclass(frozen=True, kw_only=True, repr=False)
class Estimate:
    """The output of `plan estimate` for one configuration. As text it is one line."""

    ask: Ask
    workload: Workload
    digest: str
    parameters: int
    config: Config
    prediction: Prediction
    work: tuple[StageWork, ...]
    notes: tuple[str, ...]

    @property
    def short(self) -> tuple[tuple[int, float], ...]:
        """Stages that do not fit, with the bytes that they lack."""
        return tuple((one.stage, one.memory.lacks_bytes) for one in self.prediction.stages if not one.memory.fits)

    def __repr__(self) -> str:
        fits = "fits" if self.prediction.fits else "does not fit"
        peak = nbytes(self.prediction.peak_memory_bytes)
        return f"Estimate({self.config}; {seconds(self.prediction.step_time_s)}; peak memory {peak}, {fits})"

    @property
    def weakest(self) -> Kind:
        """The weakest provenance of any number."""
        return weakest_kind(*(kind for _, kind in self.prediction.provenance))


# One configuration ---------------------------------------------------------------------------------------------------


def estimate(ask: Ask, setting: Setting, config: Config) -> Estimate:
    """Price one configuration, and describe what it runs."""
    workload = setting.workload
    fold = setting.fold(config)
    program = setting.program(config, workload.global_batch)
    held = parameters(fold)
    cautions = setting.cautions() if config.microbatches > 1 else ()
    return Estimate(
        ask=ask,
        workload=workload,
        digest=digest(fold, setting.folds.source.config),
        parameters=sum(type_.elements for param, type_ in held.values() if not param.buffer),
        config=config,
        prediction=setting.price(program),
        work=stage_work(program, fold),
        notes=(
            *ask.notes,
            *map(str, ask.modules),
            *suspicions(ask.cluster),
            *setting.folds.first(config.batch).notes,
            *cautions,
        ),
    )


def stage_work(program: Program, fold: Fold) -> tuple[StageWork, ...]:
    """The work of every stage, from its range of calls and its rank's list of actions."""
    layers = [not fold.segments[call.segment].glue for call in fold.calls()]
    most: dict[int, int] = {}
    for _, actions in program.actions:
        most |= in_flight(actions)
    return tuple(
        StageWork(layers=sum(layers[stage.first : stage.last]), in_flight=most.get(index, 0))
        for index, stage in enumerate(program.stages)
    )


def in_flight(actions: Sequence[Action]) -> dict[int, int]:
    """The most micro-batches between forward and the end of backward, for every stage of a list of actions (the end of
    the weights' part, where that comes apart)."""
    now: dict[int, int] = {}
    most: dict[int, int] = {}
    for action in actions:
        change = {"F": 1, "B": -1, "W": -1}.get(action.kind, 0)
        now[action.stage] = now.get(action.stage, 0) + change
        most[action.stage] = max(most.get(action.stage, 0), now[action.stage])
    return most


STEPS: Mapping[str, Callable[[Setting, Config], str]] = {
    "load": lambda setting, config: graph_text(unfold(setting.fold(config))),
    "fold": lambda setting, config: fold_text(setting.fold(config)),
    "decide": lambda setting, config: decisions_text(setting.decisions(config, setting.workload.global_batch)),
    "lower": lambda setting, config: program_text(_program(setting, config)),
    "evaluate": lambda setting, config: json.dumps(setting.price(_program(setting, config)).to_json(), indent=2),
}
"""What --dump-after can print, in the order of the data path."""


def _program(setting: Setting, config: Config) -> Program:
    return setting.program(config, setting.workload.global_batch)


# JSON ----------------------------------------------------------------------------------------------------------------


def to_json(found: Estimate) -> dict[str, Any]:
    """The estimate as docs/estimate.md describes it."""
    ask, cluster, workload, left = found.ask, found.ask.cluster, found.workload, found.config.to_json()
    return {
        "format_version": FORMAT_VERSION,
        "provenance": {
            "meshwright": __version__,
            "weakest": found.weakest,
            "calibrated": found.weakest == "measured",
        },
        "model": {"ref": ask.model, "digest": found.digest, "parameters": found.parameters},
        "cluster": {
            "ref": ask.cluster_reference,
            "hosts": cluster.hosts,
            "ranks": cluster.ranks,
            "devices": list(dict.fromkeys(pool.device.name for pool in cluster.pools)),
        },
        "workload": {
            "global_batch": workload.global_batch,
            "seq": workload.seq,
            "precision": workload.precision,
            "optimizer": workload.optimizer,
            "stack": workload.stack.name,
            "style": workload.stack.style,
            "recipe": workload.recipe or workload.stack.recipe,
            "imbalance": workload.imbalance,
            "target": ask.target.target,
        },
        "config": found.config.to_json() if ask.annotated is None else {name: left[name] for name in LEFT},
        **({} if ask.annotated is None else {"annotated": {axis.name: axis.size for axis in ask.annotated.axes}}),
        "predicted": found.prediction.to_json(),
        "fits": found.prediction.fits,
        "short": [{"stage": stage, "bytes": nbytes} for stage, nbytes in found.short],
        "work": [{"layers": one.layers, "in_flight": one.in_flight} for one in found.work],
        "notes": list(found.notes),
    }
