"""`plan.json`: a `Plan` (`planner.plan_types`) as text, and back.

Keys are those of docs/plan.md, and writing is deterministic: a plan holds no time of day, no duration of the search,
and nothing in the order of a set. Reading trusts nothing (`read_plan`): what cannot be a plan is refused with the path
of the key at fault.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from meshwright.cost_models.prediction import Held, Prediction, StagePrediction
from meshwright.cost_models.quantity import KINDS, Kind
from meshwright.ir.errors import (
    MeshwrightError,
    PlanBroken,
    PlanNotJson,
    PlanOfAnotherRelease,
    PlanUnreadable,
)
from meshwright.ir.plan_json import KEYS, At, decisions_from_json, decisions_to_json
from meshwright.ir.workload import Workload, stack_named
from meshwright.planner.module_pins import OPTIONS, ModulePin, read_module_pin
from meshwright.planner.pins import NAMES, Config, read
from meshwright.planner.plan_types import Binding, Bounds, Machines, Model, Plan, Provenance, Rival

FORMAT_VERSION = 1
FILE = "plan.json"


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
        cut = isinstance(error, json.JSONDecodeError) and _ends_in(error, text)
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


def _ends_in(error: json.JSONDecodeError, text: str) -> bool:
    """Whether a text ends in the middle of what could not be read: a string, or a word as long as "false"."""
    return error.msg.startswith("Unterminated") or error.pos >= len(text.rstrip()) - len("false")


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
