"""`plan.json`: a `Plan` (`planner.plan.types`) as text, and back.

Keys are those of docs/plan.md, and writing is deterministic: a plan holds no time of day, no duration of the search,
and nothing in the order of a set. Reading trusts nothing (`read_plan`): what every key may be stands in `plan_schema`,
parts of a plan are held against each other, and what has been read must be what is written of it.
"""

from __future__ import annotations

import json
import os
from collections.abc import Iterator
from functools import partial
from pathlib import Path
from typing import Any

from meshwright.cost_models.measured.file import measured_of, measured_to_json
from meshwright.ir.decisions.json import check_version, decisions_of, decisions_to_json
from meshwright.ir.errors import (
    MeshwrightError,
    PlanBroken,
    PlanNotJson,
    PlanOfAnotherRelease,
    PlanUnwritable,
    PlanVersion,
)
from meshwright.ir.files.documents import Fault, differences, shown
from meshwright.ir.files.schema import at_
from meshwright.ir.target.workload import Workload, stack_named
from meshwright.planner.plan.schema import (
    FORM,
    PlanTable,
    PointTable,
    RivalTable,
    WorkloadTable,
    contradictions,
)
from meshwright.planner.plan.types import Binding, Bounds, Machines, Model, Plan, Point, Provenance, Rival
from meshwright.planner.question.module_pins import read_module_pin
from meshwright.planner.question.pin_schema import config_of, constraints_of

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
            "profile": profile_to_json(made),
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
            "operators": {
                "lower_s": bounds.operators_s,
                "gap": 1 - bounds.operators_s / plan.prediction.step_time_s,
                "more_axes_lower_s": bounds.more_axes_s,
            },
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
        **({"frontier": [point_to_json(one) for one in plan.frontier]} if plan.frontier else {}),
        "binding_constraints": [{"kind": one.kind, "what": one.what} for one in plan.binding],
        "notes": list(plan.notes),
    }


def profile_to_json(made: Provenance) -> dict[str, Any]:
    """The profile, with all measurements where there are any."""
    named = {"name": made.profile, "digest": made.profile_digest}
    return named if made.measured is None else {**named, "measured": measured_to_json(made.measured)}


def workload_to_json(workload: Workload) -> dict[str, Any]:
    """The workload without its target, which the decisions name."""
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
    """A plan that another is compared with."""
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


def point_to_json(one: Point) -> dict[str, Any]:
    """A configuration of the frontier."""
    return {
        "config": one.config.to_json(),
        "step_time_s": one.step_time_s,
        "peak_memory_bytes": one.peak_memory_bytes,
        "fits": one.fits,
    }


def plan_text(plan: Plan) -> str:
    """The bytes of `plan.json`."""
    return json.dumps(plan_to_json(plan), indent=1, ensure_ascii=False) + "\n"


def save_plan(plan: Plan, folder: str | Path) -> Path:
    """Write the `plan.json` of a folder, which is made if it is missing."""
    file = Path(folder) / FILE
    try:
        file.parent.mkdir(parents=True, exist_ok=True)
        file.write_text(plan_text(plan), encoding="utf-8")
    except OSError as error:
        cause = (error.strerror or "it cannot be written").lower()
        raise PlanUnwritable(place=f"--out {file}", cause=cause, fix="name a directory to write to") from None
    return file


# Reading -------------------------------------------------------------------------------------------------------------


def load_plan(path: str | Path) -> Plan:
    """Load the plan of a file, or of the `plan.json` of a directory."""
    file = os.path.join(path, FILE) if os.path.isdir(path) else path  # noqa: PTH112, PTH118 - names that no file can have
    return read_plan(FORM.text(file), str(file))


def read_plan(text: str, place: str = FILE) -> Plan:
    """Read the text that `plan_text` writes. Anything that is no plan is refused with the path of the key at fault."""
    return plan_from_json(FORM.json(text, place), place)


def plan_from_json(data: object, place: str = "plan") -> Plan:
    """Rebuild a plan, and check its parts against each other."""
    try:
        return _checked(data, place)
    except (PlanNotJson, PlanBroken):
        raise
    except PlanVersion as error:
        raise PlanOfAnotherRelease(place=error.place, cause=error.cause, fix=error.fix) from None
    except MeshwrightError as error:
        where = error.place if error.place.startswith(place) else f"{place}: {error.place}"
        raise PlanBroken(place=where, cause=f"{error.cause} ({error.code})", fix=error.fix) from error


def _checked(data: object, place: str) -> Plan:
    check_version(data, place)
    plan = plan_of(FORM.read(data, place), place)
    for faults in (contradictions, partial(unlike_itself, data)):
        for fault in faults(plan):
            raise PlanBroken(place=at_(place, fault.path), cause=fault.cause, fix=fault.fix)
    return plan


def plan_of(table: PlanTable, place: str) -> Plan:
    """The plan of a checked table."""
    made, bounds, space = table.provenance, table.bounds, table.bounds.space
    return Plan(
        decisions=decisions_of(table, place),
        config=config_of(table.config),
        model=Model(
            ref=table.model.ref,
            digest=table.model.digest,
            parameters=table.model.parameters,
            tensors=tuple(table.model.tensors.items()),
        ),
        machines=Machines(**dict(table.cluster)),
        workload=_workload(table.workload),
        prediction=table.predicted.made(),
        bounds=Bounds(
            objective=bounds.objective.name,
            lower=bounds.objective.lower,
            upper=bounds.objective.upper,
            gap=bounds.gap,
            operators_s=bounds.operators.lower_s,
            more_axes_s=bounds.operators.more_axes_lower_s,
            complete=space.complete,
            only=constraints_of(space.only),
            never=constraints_of(space.never),
            modules=tuple(read_module_pin(one.pin, one.option) for one in space.modules),
            truncated=space.truncated,
            counts=space.counts,
        ),
        baselines=tuple(map(_rival, table.baselines)),
        alternatives=tuple(map(_rival, table.alternatives)),
        frontier=tuple(map(_point, table.frontier)),
        binding=tuple(Binding(kind=one.kind, what=one.what) for one in table.binding_constraints),
        provenance=Provenance(
            meshwright=made.meshwright,
            profile=made.profile.name,
            profile_digest=made.profile.digest,
            weakest=made.weakest,  # type: ignore[arg-type]
            seed=made.seed,
            measured=None
            if (own := made.profile.measured) is None
            else measured_of(own, f"{place}: provenance.profile.measured"),
        ),
        blocks=tuple(tuple(stage.blocks.items()) for stage in table.stages),
        notes=table.notes,
    )


def _workload(table: WorkloadTable) -> Workload:
    given = dict(table)
    stack = stack_named(table.stack)
    return Workload(**given | {"stack": stack, "recipe": "" if table.recipe == stack.recipe else table.recipe})


def _rival(table: RivalTable) -> Rival:
    config: Any = table.config
    return Rival(
        name=table.name,
        config=config_of(config) if config else None,
        step_time_s=table.step_time_s,
        peak_memory_bytes=table.peak_memory_bytes,
        short_stage=table.short.stage if table.short else -1,
        short_bytes=table.short.bytes if table.short else 0.0,
        slower=table.slower,
        differences=tuple(table.differences.items()),
        lost=table.lost,
    )


def _point(table: PointTable) -> Point:
    config: Any = table.config
    return Point(
        config=config_of(config),
        step_time_s=table.step_time_s,
        peak_memory_bytes=table.peak_memory_bytes,
        fits=table.fits,
    )


def unlike_itself(data: object, plan: Plan) -> Iterator[Fault]:
    """The place where a file differs from the text of the plan that was read from it: a number that follows from
    others, or another way to write the same."""
    for path, said, follows in differences(data, plan_to_json(plan)):
        yield Fault(path, f"it is {shown(said)}, and {shown(follows)} by the rest of the plan", "make the plan again")
