"""What `plan.json` may hold: every key in turn is something else, parts contradict each other, figures are made up."""

from __future__ import annotations

import json
import re
from dataclasses import replace
from functools import partial
from typing import Any

import pytest

from meshwright.ir.errors import PlanBroken
from meshwright.ir.files.documents import Fault, check, spelled
from meshwright.planner.answer.report import plan_of
from meshwright.planner.answer.solve import solve
from meshwright.planner.plan.file import plan_from_json, plan_text, read_plan
from meshwright.planner.plan.reload import reload
from meshwright.planner.plan.types import Plan
from tests.mutations import mutated, refusal, repeated
from tests.planner.solved import ARGV, question

PINNED = "pp=2,mbs=1,recompute=none,schedule=zbv"


@pytest.fixture(scope="module")
def plan() -> Plan:
    """Of few configurations, which are looked at at once."""
    ask, setting, wished = question(*ARGV, "--fix", PINNED)
    return plan_of(solve(ask, setting, wished))


@pytest.fixture(scope="module")
def text(plan: Plan) -> str:
    return plan_text(replace(plan, baselines=plan.alternatives, alternatives=()))


OPEN_KEYS = {
    ("model", "tensors"), ("storage",), ("storage", None), ("recompute",), ("placements",),
    ("placements", None, "states"), ("placements", None, "strategies"), ("stages", None, "blocks"),
    ("predicted", "shares"), ("predicted", "traffic"), ("predicted", "provenance"),
    ("predicted", "stages", None, "memory"), ("bounds", "space", "counts"), ("baselines", None, "differences"),
}  # fmt: skip
"""Objects whose keys are alike: one of each is changed."""


def alike(path: tuple[str | int, ...]) -> tuple[Any, ...]:
    """A path without what makes it one of many."""
    found: tuple[Any, ...] = ()
    for step in path:
        found = (*found, None if isinstance(step, int) or found in OPEN_KEYS else step)
    return found


def read_document(document: object) -> Plan:
    """What `read_plan` does of a text."""
    try:
        check(document)
    except Fault as fault:
        raise PlanBroken(place=f"plan.json: {spelled(fault.path)}", cause=fault.cause, fix=fault.fix) from None
    return plan_from_json(document, "plan.json")


FREE = (
    r"provenance\.(meshwright|profile|seed)",
    r"model\.",
    r"cluster\.ref",
    r"workload\.imbalance",
    r"placements\.\w+\.(body|first|states|strategies)|storage",
    r"predicted\.(mfu|step_time_high_s|stages|traffic|provenance)",
    r"stages\[\d\]\.plans",
    r"bounds\.(space|operators\.more_axes_lower_s)|binding_constraints|notes",
    r"frontier(\[\d+\](\.(step_time_s|peak_memory_bytes|fits|config\.zero))?)?$",
    r"baselines\[0\](\.(name|config\.zero|peak_memory_bytes|lost)|$)",
)
"""What may have another value as far as the file alone can tell. A digest is held against the model, and all that is
predicted against the price of the decisions, where a plan is used (`reload`)."""

NEVER = ("nan", "infinite", "endless")
"""What no key may be."""


def test_every_key_is_held_to_its_schema(text: str) -> None:
    """Each key in turn is dropped, unknown or something else: refused with a key as its place, or another plan."""
    document = json.loads(text)
    document["baselines"] = document["baselines"][:1]
    assert read_document(document)
    wrong: list[object] = []
    for path, how, changed in mutated(document, alike):
        refused = refusal(partial(read_document, changed))
        free = any(re.match(one, spelled(path)) for one in FREE)
        if refused is None and (how in NEVER or not free):
            wrong.append((spelled(path), how))
        if refused is not None and not re.match(r"plan\.json: [a-z_]+", refused.place):
            wrong.append((spelled(path), how, refused))
        if refused is not None and how in NEVER and spelled(path) not in refused.place:
            wrong.append((spelled(path), how, refused))
    assert not wrong


def test_a_key_that_is_given_twice_is_refused(text: str) -> None:
    for path, twice in [found for found in repeated(json.loads(text)) if len(found[0]) < 4][::5]:
        with pytest.raises(PlanBroken, match="given twice") as refused:
            read_plan(twice)
        assert spelled(path) in refused.value.place


LIES: dict[str, tuple[tuple[str | int, ...], Any]] = {
    "a step": (("predicted", "step_time_s"), 1e-9),
    "speed": (("predicted", "tokens_per_s_per_gpu"), 1e12),
    "a share": (("predicted", "shares", "matmul"), 5.0),
    "a peak": (("predicted", "peak_memory_bytes"), 1.0),
    "fits": (("predicted", "fits"), False),
    "a part of memory": (("predicted", "stages", 0, "memory", "logits"), 1e15),
    "ranks": (("predicted", "stages", 0, "ranks"), 3),
    "a gap": (("bounds", "gap"), 0.5),
    "a lower bound": (("bounds", "objective", "lower"), 1e9),
    "an upper bound": (("bounds", "upper_s"), 1e9),
    "how much slower": (("baselines", 0, "slower"), 99.0),
    "calibration": (("provenance", "calibrated"), True),
    "the weakest number": (("provenance", "weakest"), "measured"),
    "devices": (("cluster", "devices", 0), "B200"),
    "a cluster": (("cluster", "ranks"), 8),
    "copies": (("config", "dp"), 7),
    "a switch": (("config", "sp"), True),
    "a stage": (("stages", 1, "first"), 1),
    "what runs there": (("stages", 0, "blocks"), {"Block": 99}),
    "lists of actions": (("schedule", "actions"), [["F0"], ["F0"]]),
    "micro-batches": (("schedule", "microbatches"), 2),
    "stages": (("config", "vp"), 4),
    "a plan of a stage": (("stages", 0, "plans"), ["Block", "embed", "Block"]),
}


@pytest.mark.parametrize("what", LIES)
def test_parts_that_contradict_one_another_are_refused(text: str, what: str) -> None:
    path, value = LIES[what]
    document = inside = json.loads(text)
    for step in path[:-1]:
        inside = inside[step]
    assert inside[path[-1]] != value
    inside[path[-1]] = value
    with pytest.raises(PlanBroken) as refused:
        read_plan(json.dumps(document), "plan.json")
    assert str(path[0]) in refused.value.place or path[0] == "schedule"


def test_stages_with_meshes_of_their_own_are_not_counted_by_the_configuration(text: str) -> None:
    """It is the one that the plan was made of, and may have more stages."""
    document = json.loads(text)
    config = document["config"]
    config |= {"pp": config["pp"] * config["dp"], "mbs": config["mbs"] * config["dp"], "dp": 1}
    found = read_plan(json.dumps(document)).config
    assert found.pp * found.vp > len(document["stages"])


IMPOSSIBLE: dict[str, tuple[tuple[str | int, ...], Any, str]] = {
    "a body (MW4080)": (("placements", "head", "body"), "tail", "placements.head"),
    "another body": (("placements", "head", "body"), "embed", "stages[3]"),
    "an operator": (("placements", "head", "strategies", "nonsense"), "dp=d0", "placements.head"),
    "an axis": (("placements", "head", "strategies", "linear"), "tp=n", "placements.head"),
    "a factor": (("placements", "head", "strategies", "linear"), "dp=d9", "placements.head"),
    "an axis of a state": (("placements", "head", "states", "in0"), "[tp, -, -]", "placements.head"),
    "a value": (("placements", "head", "states", "nonsense"), "[-]", "placements.head"),
    "dimensions": (("placements", "head", "states", "in0"), "[dp]", "placements.head"),
    "an axis of storage": (("storage", "head", "head.weight", "grads"), "[tp, -]", "placements.head, head.weight"),
    "a parameter": (
        ("storage", "head", "nonsense"), dict.fromkeys(("params", "grads", "optimizer"), "[-]"), "placements.head"
    ),
    "what is recomputed": (("recompute", "head"), ["nonsense"], "placements.head"),
    "blocks": (("stages", 0, "blocks"), {"nonsense": 1, "Block": 1}, "stages[0].blocks"),
}  # fmt: skip
"""What decisions name, another name, and the key that is refused."""


@pytest.mark.parametrize("what", IMPOSSIBLE)
def test_decisions_that_name_what_the_model_lacks_are_refused_at_their_key(text: str, what: str) -> None:
    path, value, place = IMPOSSIBLE[what]
    document = inside = json.loads(text)
    for step in path[:-1]:
        inside = inside.setdefault(step, {}) if isinstance(inside, dict) else inside[step]
    if "storage" in path and isinstance(value, str):
        inside |= {"params": "[-, -]", "grads": "[-, -]", "optimizer": "[-, -]"}
    inside[path[-1]] = value
    with pytest.raises(PlanBroken) as refused:
        reload(read_plan(json.dumps(document), "plan.json"))
    assert refused.value.place.startswith(f"plan.json: {place}")


def test_figures_that_are_not_those_of_the_decisions_are_told(plan: Plan) -> None:
    """They are within their ranges, and agree with each other; only the price of the decisions shows what they are."""
    made_up = replace(plan, prediction=replace(plan.prediction, mfu=0.9))
    again = reload(read_plan(plan_text(made_up)))
    assert "predicted.mfu is 0.9 in plan.json" in again.changed[0]
    assert again.prediction == plan.prediction
    assert reload(read_plan(plan_text(plan))).changed == ()


def test_a_model_that_is_described_otherwise_is_refused(plan: Plan) -> None:
    for change in ({"parameters": 1}, {"tensors": plan.model.tensors[1:]}):
        with pytest.raises(PlanBroken, match="of this digest"):
            reload(replace(plan, model=replace(plan.model, **change)))
