"""Plans: what a search answers, as one value, and as `plan.json`.

    Plan = Decisions + what they were made for + what they cost + how good that is

The decisions alone rebuild the program; everything else is there so that a reader need not search again, and so that a
plan that is used elsewhere is recognised: the model by its digest, and parameter by parameter; the cluster by its text;
the profile by its digest. Keys are those of docs/plan.md, and writing is deterministic: a plan holds no time of day, no
duration of the search, and nothing in the order of a set.

Reading trusts nothing (`read_plan`). What cannot be a plan is refused with the path of the key at fault; another model
is refused too (`same_model`); another cluster or profile is something to warn of, and to price again (`changes`).
"""

from __future__ import annotations

import json
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from meshwright import __version__
from meshwright.cost_models.cluster import Cluster
from meshwright.cost_models.cluster_toml import read as read_toml
from meshwright.cost_models.cluster_toml import write as write_toml
from meshwright.cost_models.prediction import Held, Prediction, StagePrediction
from meshwright.cost_models.profile import digest as profile_digest
from meshwright.cost_models.quantity import KINDS, Kind
from meshwright.ir.account import parameters
from meshwright.ir.decisions import Decisions
from meshwright.ir.digest import digest
from meshwright.ir.errors import (
    MeshwrightError,
    PlanBroken,
    PlanNotJson,
    PlanOfAnotherModel,
    PlanOfAnotherRelease,
    PlanUnreadable,
)
from meshwright.ir.fold import Fold, shortened
from meshwright.ir.plan_json import KEYS, At, decisions_from_json, decisions_to_json
from meshwright.ir.workload import Workload, stack_named
from meshwright.planner.module_pins import OPTIONS, ModulePin, read_module_pin
from meshwright.planner.pins import NAMES, Config, read

FORMAT_VERSION = 1
FILE = "plan.json"


@dataclass(frozen=True, slots=True, kw_only=True)
class Model:
    """What a plan recognises its model by."""

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
    """What a plan recognises its cluster by: its text is that of a cluster file."""

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
        return read_toml(self.toml, place="plan.cluster.toml")


@dataclass(frozen=True, slots=True, kw_only=True)
class Provenance:
    """Who made a plan, and from which numbers."""

    meshwright: str
    profile: str
    profile_digest: str
    weakest: Kind
    seed: int

    @staticmethod
    def of(weakest: Kind, seed: int) -> Provenance:
        return Provenance(
            meshwright=__version__,
            profile="published",
            profile_digest=profile_digest(),
            weakest=weakest,
            seed=seed,
        )


@dataclass(frozen=True, slots=True, kw_only=True)
class Rival:
    """A plan that the answer is held against: what it is, what it costs, and where the difference lies.

    - `config` is None where the model, the cluster or the wishes have no such plan; then `lost` says why.
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
class Binding:
    """What keeps the plan from being faster, or of another kind: `kind` in a word, `what` in a sentence."""

    kind: str
    what: str


@dataclass(frozen=True, slots=True, kw_only=True)
class Bounds:
    """What is proved: nothing in the declared space is below `lower`, the plan is at `upper`.

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

    @property
    def proved(self) -> bool:
        """Whether anything is."""
        return self.lower > 0


@dataclass(frozen=True, slots=True, kw_only=True)
class Plan:
    """A plan."""

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


def blocks_of(decisions: Decisions, fold: Fold) -> tuple[tuple[tuple[str, int], ...], ...]:
    """What every stage runs: the classes of its calls, in order, and how often each."""
    calls = [(call.body.module_class or call.body.name).rpartition(".")[2] for call in fold.calls()]
    found = []
    for stage in decisions.stages:
        counts: dict[str, int] = {}
        for name in calls[stage.first : stage.last]:
            counts[name] = counts.get(name, 0) + 1
        found.append(tuple(counts.items()))
    return tuple(found)


# Writing -------------------------------------------------------------------------------------------------------------


def plan_to_json(plan: Plan) -> dict[str, Any]:
    """The plan as docs/plan.md describes it."""
    decided = decisions_to_json(plan.decisions)
    for stage, blocks in zip(decided["stages"], plan.blocks, strict=True):
        stage["blocks"] = dict(blocks)
    machines, made, bounds = plan.machines, plan.provenance, plan.bounds
    return {
        "format_version": FORMAT_VERSION,
        "provenance": {
            "meshwright": made.meshwright,
            "profile": {"name": made.profile, "digest": made.profile_digest},
            "weakest": made.weakest,
            "calibrated": made.weakest == "measured",
            "seed": made.seed,
        },
        "model": {
            "ref": plan.model.ref,
            "digest": plan.model.digest,
            "parameters": plan.model.parameters,
            "tensors": dict(plan.model.tensors),
        },
        "cluster": {
            "ref": machines.ref,
            "hosts": machines.hosts,
            "ranks": machines.ranks,
            "devices": list(machines.devices),
            "toml": machines.toml,
        },
        "workload": workload_to_json(plan.workload),
        "config": plan.config.to_json(),
        **{key: value for key, value in decided.items() if key != "format_version"},
        "predicted": plan.prediction.to_json(),
        "bounds": {
            "lower_s": bounds.lower if bounds.objective == "time" else 0.0,
            "upper_s": plan.prediction.step_time_s,
            "gap": bounds.gap,
            "objective": {"name": bounds.objective, "lower": bounds.lower, "upper": bounds.upper},
            "space": {
                "only": {name: list(values) for name, values in bounds.only.items()},
                "never": {name: list(values) for name, values in bounds.never.items()},
                "modules": [{"option": pin.option, "pin": pin.text} for pin in bounds.modules],
                "truncated": list(bounds.truncated),
                "complete": bounds.complete,
                "counts": dict(bounds.counts),
            },
        },
        "baselines": [rival_to_json(one) for one in plan.baselines],
        "alternatives": [rival_to_json(one) for one in plan.alternatives],
        "binding_constraints": [{"kind": one.kind, "what": one.what} for one in plan.binding],
        "notes": list(plan.notes),
    }


def workload_to_json(workload: Workload) -> dict[str, Any]:
    """What is trained, without the target, which the decisions say."""
    return {
        "global_batch": workload.global_batch,
        "seq": workload.seq,
        "precision": workload.precision,
        "optimizer": workload.optimizer,
        "stack": workload.stack.name,
        "recipe": workload.recipe or workload.stack.recipe,
        "imbalance": workload.imbalance,
    }


def rival_to_json(one: Rival) -> dict[str, Any]:
    """A plan that another is held against."""
    return {
        "name": one.name,
        "config": one.config.to_json() if one.config else None,
        "step_time_s": one.step_time_s,
        "peak_memory_bytes": one.peak_memory_bytes,
        "fits": one.fits,
        "short": {"stage": one.short_stage, "bytes": one.short_bytes} if one.short_stage >= 0 else None,
        "slower": one.slower,
        "differences": dict(one.differences),
        "lost": one.lost,
    }


def plan_text(plan: Plan) -> str:
    """The bytes of `plan.json`."""
    return json.dumps(plan_to_json(plan), indent=1, ensure_ascii=False) + "\n"


# Reading -------------------------------------------------------------------------------------------------------------


def load_plan(path: str | Path) -> Plan:
    """The plan of a file, or of the `plan.json` of a directory."""
    file = Path(path) / FILE if Path(path).is_dir() else Path(path)
    try:
        text = file.read_text(encoding="utf-8")
    except (OSError, UnicodeDecodeError) as error:
        cause = error.strerror if isinstance(error, OSError) else "it is no text"
        raise PlanUnreadable(
            place=str(file), cause=f"{cause}".lower(), fix="name the plan.json that `plan MODEL … --out DIR` wrote"
        ) from None
    return read_plan(text, str(file))


def read_plan(text: str, place: str = FILE) -> Plan:
    """Read what `plan_text` writes."""
    try:
        data = json.loads(text)
    except (json.JSONDecodeError, RecursionError) as error:
        at = f":{error.lineno}:{error.colno}" if isinstance(error, json.JSONDecodeError) else ""
        cut = isinstance(error, json.JSONDecodeError) and error.pos >= len(text.rstrip()) - 1
        raise PlanNotJson(
            place=f"{place}{at}",
            cause="the file ends in the middle" if cut else getattr(error, "msg", "it is nested too deep"),
            fix="make the plan again, or copy the whole file" if cut else "correct the line",
        ) from None
    try:
        return plan_from_json(data)
    except PlanOfAnotherRelease as error:
        raise PlanOfAnotherRelease(place=place, cause=error.cause, fix=error.fix) from None
    except MeshwrightError as error:
        raise PlanBroken(
            place=f"{place}: {error.place}", cause=f"{error.cause} ({error.code})", fix=error.fix
        ) from error


def plan_from_json(data: object) -> Plan:
    """Rebuild a plan. Raises `PlanOfAnotherRelease`, or what a key's reader refuses."""
    at = At("plan", data)
    version = at.key("format_version").integer()
    if version != FORMAT_VERSION:
        raise PlanOfAnotherRelease(
            place="plan.format_version",
            cause=f"format {version}; this release reads {FORMAT_VERSION}",
            fix="make the plan again, or use the release that made it",
        )
    at.keys(*PLAN_KEYS)
    decided, blocks = _decided(at)
    return Plan(
        decisions=decisions_from_json(decided),
        config=_config(at.key("config")),
        model=_model(at.key("model")),
        machines=_machines(at.key("cluster")),
        workload=_workload(at.key("workload")),
        prediction=_prediction(at.key("predicted")),
        bounds=_bounds(at.key("bounds")),
        baselines=tuple(_read_rival(one) for one in at.key("baselines").items()),
        alternatives=tuple(_read_rival(one) for one in at.key("alternatives").items()),
        binding=tuple(
            Binding(kind=one.key("kind").string(), what=one.key("what").string())
            for one in at.key("binding_constraints").items()
        ),
        provenance=_provenance(at.key("provenance")),
        blocks=blocks,
        notes=at.key("notes").strings(),
    )


REPORT_KEYS = ("provenance", "model", "cluster", "workload", "config", "predicted", "bounds", "baselines")
PLAN_KEYS = (*KEYS, *REPORT_KEYS, "alternatives", "binding_constraints", "notes")


def _decided(at: At) -> tuple[dict[str, object], tuple[tuple[tuple[str, int], ...], ...]]:
    """The part that decisions are read from; and what the stages run."""
    decided = {key: at.key(key).value for key in KEYS}
    stages, blocks = [], []
    for stage in at.key("stages").items():
        blocks.append(tuple((name, one.integer()) for name, one in stage.key("blocks").entries().items()))
        stages.append({key: value for key, value in stage.table().items() if key != "blocks"})
    return decided | {"stages": stages}, tuple(blocks)


def _config(at: At) -> Config:
    at.keys(*NAMES)
    values: dict[str, Any] = dict(OPEN)
    for name in NAMES:
        value = at.key(name).value
        if type(value) not in (int, str, bool):
            raise at.key(name).refuse("a number, a word or a switch")
        if name not in OPEN or value not in (0, ""):
            values[name] = getattr(read({name: value}, at.path), name)
    return Config(**values)


OPEN: Mapping[str, Any] = {"etp": 0, "shard": 0, "split": "", "stage_blocks": ()}
"""Names that a configuration may leave open, and how it holds that."""


def _model(at: At) -> Model:
    at.keys("ref", "digest", "parameters", "tensors")
    return Model(
        ref=at.key("ref").string(),
        digest=at.key("digest").string(),
        parameters=at.key("parameters").integer(),
        tensors=tuple((path, one.string()) for path, one in at.key("tensors").entries().items()),
    )


def _machines(at: At) -> Machines:
    at.keys("ref", "hosts", "ranks", "devices", "toml")
    return Machines(
        ref=at.key("ref").string(),
        hosts=at.key("hosts").integer(),
        ranks=at.key("ranks").integer(),
        devices=at.key("devices").strings(),
        toml=at.key("toml").string(),
    )


def _workload(at: At) -> Workload:
    at.keys("global_batch", "seq", "precision", "optimizer", "stack", "recipe", "imbalance")
    stack, recipe = stack_named(at.key("stack").string()), at.key("recipe").string()
    return Workload(
        global_batch=at.key("global_batch").integer(),
        seq=at.key("seq").integer(),
        precision=at.key("precision").string(),
        optimizer=at.key("optimizer").string(),
        stack=stack,
        recipe="" if recipe == stack.recipe else recipe,
        imbalance=at.key("imbalance").number(),
    )


def _provenance(at: At) -> Provenance:
    profile = at.key("profile")
    return Provenance(
        meshwright=at.key("meshwright").string(),
        profile=profile.key("name").string(),
        profile_digest=profile.key("digest").string(),
        weakest=_kind(at.key("weakest")),
        seed=at.key("seed").integer(),
    )


def _kind(at: At) -> Kind:
    for kind in KINDS:
        if kind == at.string():
            return kind
    raise at.refuse(f"one of {', '.join(KINDS)}")


def _numbers(at: At) -> tuple[tuple[str, float], ...]:
    return tuple((name, one.number()) for name, one in at.entries().items())


def _prediction(at: At) -> Prediction:
    return Prediction(
        step_time_s=at.key("step_time_s").number(),
        step_time_low_s=at.key("step_time_low_s").number(),
        step_time_high_s=at.key("step_time_high_s").number(),
        tokens_per_s_per_gpu=at.key("tokens_per_s_per_gpu").number(),
        mfu=at.key("mfu").number(),
        stages=tuple(_stage(one) for one in at.key("stages").items()),
        shares=_numbers(at.key("shares")),
        traffic=_numbers(at.key("traffic")),
        provenance=tuple((name, _kind(one)) for name, one in at.key("provenance").entries().items()),
    )


def _stage(at: At) -> StagePrediction:
    return StagePrediction(
        stage=at.key("stage").integer(),
        ranks=at.key("ranks").integer(),
        forward_s=at.key("forward_s").number(),
        backward_s=at.key("backward_s").number(),
        weight_s=at.key("weight_s").number(),
        memory=Held(
            peak_bytes=at.key("peak_memory_bytes").number(),
            device_bytes=at.key("device_bytes").number(),
            margin_bytes=at.key("margin_bytes").number(),
            instant=at.key("instant").string(),
            parts=_numbers(at.key("memory")),
            host_bytes=at.key("host_bytes").number(),
        ),
    )


def _bounds(at: At) -> Bounds:
    space, objective = at.key("space"), at.key("objective")

    def wishes(key: str) -> dict[str, tuple[Any, ...]]:
        return {name: tuple(item.value for item in one.items()) for name, one in space.key(key).entries().items()}

    return Bounds(
        objective=objective.key("name").string(),
        lower=objective.key("lower").number(),
        upper=objective.key("upper").number(),
        gap=at.key("gap").number(),
        complete=space.key("complete").boolean(),
        only=wishes("only"),
        never=wishes("never"),
        modules=tuple(_module_pin(one) for one in space.key("modules").items()) if "modules" in space.table() else (),
        truncated=space.key("truncated").strings(),
        counts={name: one.integer() for name, one in space.key("counts").entries().items()},
    )


def _module_pin(at: At) -> ModulePin:
    option = at.key("option").string()
    if option not in OPTIONS:
        raise at.key("option").refuse(f"one of {', '.join(OPTIONS)}")
    return read_module_pin(at.key("pin").string(), option)


def _read_rival(at: At) -> Rival:
    at.keys("name", "config", "step_time_s", "peak_memory_bytes", "fits", "short", "slower", "differences", "lost")
    short = at.key("short") if at.key("short").value is not None else None
    return Rival(
        name=at.key("name").string(),
        config=_config(at.key("config")) if at.key("config").value is not None else None,
        step_time_s=at.key("step_time_s").number(),
        peak_memory_bytes=at.key("peak_memory_bytes").number(),
        short_stage=short.key("stage").integer() if short else -1,
        short_bytes=short.key("bytes").number() if short else 0.0,
        slower=at.key("slower").number(),
        differences=_numbers(at.key("differences")),
        lost=at.key("lost").string(),
    )


# Elsewhere -----------------------------------------------------------------------------------------------------------


def same_model(plan: Plan, model: Model) -> None:
    """Must: the model that the plan was made for. The cause of a refusal is the first difference."""
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
    """What is to be warned of when a plan is used on this cluster, by this release: it has to be priced again."""
    found = []
    if plan.machines.toml != machines.toml:
        found.append(f"the cluster has changed: {_first_line(plan.machines.toml, machines.toml)}")
    if plan.provenance.profile_digest != profile_digest():
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
