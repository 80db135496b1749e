"""`plan estimate`: what a configuration costs on a cluster.

    arguments -> Ask -> Setting (planner.pricing) -> Prediction -> Estimate -> tables or JSON

One configuration is priced here; `--configs` prices many, in `planner.estimate_many`. Every number that is printed is
the evaluator's (`meshwright.cost_models.evaluate`), of the program that the configuration lowers to. The JSON schema is
documented in docs/estimate.md.
"""

from __future__ import annotations

import gc
import json
import sys
from argparse import Namespace
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from meshwright import __version__
from meshwright.cost_models.cluster import Cluster, suspicions
from meshwright.cost_models.cluster_text import read_cluster
from meshwright.cost_models.prediction import Held, Prediction
from meshwright.cost_models.quantity import Kind, weakest_kind
from meshwright.ir.account import parameters
from meshwright.ir.capabilities import Capabilities
from meshwright.ir.digest import digest
from meshwright.ir.errors import PinRepeated, UnknownStep, WorkloadImpossible, WorkloadMissing
from meshwright.ir.fold import Fold, unfold
from meshwright.ir.frontends.load import in_dtype, load_model
from meshwright.ir.plan_text import decisions_text
from meshwright.ir.program import Action, Program
from meshwright.ir.program_text import program_text
from meshwright.ir.text import fold_text, graph_text
from meshwright.ir.workload import STACK_OF_STYLE, Workload, stack_named, traced_in
from meshwright.planner import pricing
from meshwright.planner.module_pins import ModulePin, apart
from meshwright.planner.pins import Config, Pins, fill, parse
from meshwright.planner.pricing import Folds, Setting, target_of
from meshwright.planner.space import Wishes

FORMAT_VERSION = 1
NOTHING_FITS = 3

USUAL = ("bf16", "fp32")
"""The precisions that are taken where none is asked for, the preferred one first."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Ask:
    """What the command line asks for, read and checked before the model is touched."""

    model: str
    cluster_reference: str
    cluster: Cluster
    workload: Workload
    """Where --global-batch is left to the lines of --configs, of one sequence."""
    global_batch: int | None
    target: Capabilities
    pins: Pins
    seed: int
    modules: tuple[ModulePin, ...] = ()
    """What is asked of single modules of what is priced."""
    notes: tuple[str, ...] = ()
    """What was chosen otherwise than usual, and why."""

    def setting(self) -> Setting:
        """Load the model. It is captured when a batch is asked for."""
        traced = traced_in(self.workload.precision)
        source = in_dtype(load_model(self.model, dtype=traced), traced)
        gc.freeze()  # frameworks stay: a collection that walks them takes longer than a configuration
        folds = Folds(source, self.workload.seq, self.seed)
        price = pricing.price_of(self.cluster)
        return Setting(
            folds,
            self.cluster.ranks,
            self.workload,
            self.target,
            price,
            modules=self.modules,
            wishes=Wishes.of(self.pins),
        )


@dataclass(frozen=True, slots=True, kw_only=True)
class StageWork:
    """What a stage runs: layers, and micro-batches under way (forward done, backward not) at most."""

    layers: int
    in_flight: int


@dataclass(frozen=True, kw_only=True)
class Estimate:
    """Everything that `plan estimate` prints of one configuration."""

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
        return tuple((one.stage, lack(one.memory)) for one in self.prediction.stages if not one.memory.fits)

    @property
    def weakest(self) -> Kind:
        """The weakest that any number stands on."""
        return weakest_kind(*(kind for _, kind in self.prediction.provenance))


def lack(memory: Held) -> float:
    """The bytes by which a stage is too full."""
    return memory.peak_bytes - memory.capacity_bytes


def run(args: Namespace) -> int:
    """The verb."""
    dump = _dump_step(args.dump_after)
    ask = asked(args)
    if args.configs is not None:
        from meshwright.planner.estimate_many import run_many

        return run_many(ask, args)
    if ask.global_batch is None:
        raise missing("--global-batch", "256", "the sequences of one optimizer step")
    config = fill(ask.pins, ranks=ask.cluster.ranks, global_batch=ask.global_batch)
    config.workable(Config.degrees)  # what degrees refuse, they refuse before the model is touched
    setting = ask.setting()
    config = setting.settled(config, ask.global_batch)
    if dump is not None:
        sys.stdout.write(f"{dump(setting, config)}\n")
        return 0
    found = estimate(ask, setting, config)
    if args.json:
        sys.stdout.write(f"{json.dumps(to_json(found), indent=2)}\n")
    else:
        from meshwright.planner.estimate_view import show

        show(found)
    return NOTHING_FITS if args.check and not found.prediction.fits else 0


def asked(args: Namespace) -> Ask:
    """Read the arguments."""
    if args.seq is None:
        raise missing("--seq", "4096", "the tokens of one sequence", f"plan {args.verb}")
    plain, modules = apart({"fix": args.fix})
    pins = parse(plain["fix"])
    if args.micro_batch is not None:
        if pins.mbs not in (None, args.micro_batch):
            raise PinRepeated(
                place=f"--micro-batch {args.micro_batch}", cause=f"--fix says mbs={pins.mbs}", fix="give one of them"
            )
        pins = Pins(mbs=args.micro_batch).over(pins)
    target, cluster = target_of(args.target), read_cluster(args.cluster)
    precision, notes = precision_of(args.dtype, cluster)
    return Ask(
        model=args.model,
        cluster_reference=args.cluster,
        cluster=cluster,
        workload=_workload(args, precision),
        global_batch=args.global_batch,
        target=target,
        pins=pins,
        seed=args.seed,
        modules=modules,
        notes=notes,
    )


def precision_of(asked: str | None, cluster: Cluster) -> tuple[str, tuple[str, ...]]:
    """The precision as asked for, whatever the devices can; else the first usual one that all of them have a peak for,
    and what is to be said of it."""
    devices = {pool.device.name: pool.device.dtypes for pool in cluster.pools}
    usual = next((one for one in USUAL if all(one in known for known in devices.values())), USUAL[0])
    if asked is not None or usual == USUAL[0]:
        return asked or usual, ()
    without = ", ".join(name for name, known in devices.items() if USUAL[0] not in known)
    return usual, (f"precision {usual} instead of {USUAL[0]}, which {without} has no matrix peak for",)


def missing(option: str, example: str, what: str, place: str = "plan estimate") -> WorkloadMissing:
    """The refusal of a workload that lacks something."""
    return WorkloadMissing(place=place, cause=f"{option} is missing", fix=f"give {what}: {option} {example}")


def _workload(args: Namespace, precision: str) -> Workload:
    stack = args.stack or STACK_OF_STYLE[args.style or "eager"]
    workload = Workload(
        global_batch=args.global_batch or 1,
        seq=args.seq,
        precision=precision,
        optimizer=args.optimizer,
        stack=stack_named(stack),
        recipe=args.recipe or ("fp32" if traced_in(precision) == "fp32" else ""),
        imbalance=args.imbalance,
    )
    if args.style not in (None, workload.stack.style):
        raise WorkloadImpossible(
            place="workload, style",
            cause=f"stack {stack} runs {workload.stack.style}, not {args.style}",
            fix=f"give one of them, or --stack {STACK_OF_STYLE[args.style]}",
        )
    return workload


# One configuration ---------------------------------------------------------------------------------------------------


def estimate(ask: Ask, setting: Setting, config: Config) -> Estimate:
    """Price one configuration, and say what it runs."""
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
    """What every stage runs, from its range of calls and its rank's list of actions."""
    layers = [not fold.segments[call.segment].glue for call in fold.calls()]
    most: dict[int, int] = {}
    for _, actions in program.actions:
        most |= in_flight(actions)
    return tuple(
        StageWork(layers=sum(layers[stage.first : stage.last]), in_flight=most.get(index, 0))
        for index, stage in enumerate(program.stages)
    )


def in_flight(actions: Sequence[Action]) -> dict[int, int]:
    """For every stage of a list of actions, the most micro-batches between their forward and the end of their backward
    (of its weights' part, where that comes apart)."""
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


def _dump_step(name: str | None) -> Callable[[Setting, Config], str] | None:
    if name is None:
        return None
    if name not in STEPS:
        raise UnknownStep(place=f"--dump-after {name}", cause="no such step", fix=f"use one of {', '.join(STEPS)}")
    return STEPS[name]


# JSON ----------------------------------------------------------------------------------------------------------------


def to_json(found: Estimate) -> dict[str, Any]:
    """The estimate as docs/estimate.md describes it."""
    ask, cluster, workload = found.ask, found.ask.cluster, found.workload
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
        "config": found.config.to_json(),
        "predicted": found.prediction.to_json(),
        "fits": found.prediction.fits,
        "short": [{"stage": stage, "bytes": nbytes} for stage, nbytes in found.short],
        "work": [{"layers": one.layers, "in_flight": one.in_flight} for one in found.work],
        "notes": list(found.notes),
    }
