"""`plan.json` key by key, of a plan made by hand."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from meshwright.ir.decisions.json import decisions_to_json
from meshwright.ir.errors import PlanBroken
from meshwright.ir.target.workload import Workload
from meshwright.planner.plan.file import FILE, load_plan, plan_text, plan_to_json, read_plan, rival_to_json
from meshwright.planner.question.module_pins import ModulePin
from tests.planner.handmade import GIB, bounds, config, plan, point, prediction, rival
from tests.planner.test_contradictions import agreed, slower

MODULE = ModulePin("allow", "layers.*.mlp", "sharding", ("row", "column"))
FRONTIER = (point("zero=1", 1.5, 9.5, fits=False), point("zero=3", 2.5, 4.0))
ASKED: dict[str, Any] = {"only": {"tp": (2, 4)}, "never": {"zero": (3,)}, "modules": (MODULE,)}


def test_every_key_of_a_plan() -> None:
    one = plan(
        workload=Workload(global_batch=2048, seq=4096, precision="fp16", optimizer="sgd", imbalance=1.25),
        bounds=bounds(**ASKED),
        provenance=replace(plan().provenance, seed=7),
    )
    decided = decisions_to_json(one.decisions)
    told = plan_to_json(one)
    stages = [own.pop("blocks") for own in told["stages"]]
    assert stages == [{"Block": 2}, {"Block": 2}, {"Block": 1, "Head": 1}]
    own = {key: told.pop(key) for key in decided if key != "format_version"}
    assert own == {key: value for key, value in decided.items() if key != "format_version"}
    lost = {"fits": False, "short": None, "slower": 0.0, "differences": {}, "lost": "not possible"}
    none = {"name": "data parallel", "config": None, "step_time_s": 0.0, "peak_memory_bytes": 0.0} | lost
    assert told == {
        "format_version": 1,
        "provenance": {
            "meshwright": "1",
            "profile": {"name": "published", "digest": "cd34"},
            "weakest": "datasheet",
            "calibrated": False,
            "seed": 7,
        },
        "model": {"ref": "small.toml", "digest": "ab12", "parameters": 1_234_567, "tensors": {"a": "bf16[2]"}},
        "cluster": {
            "ref": "big.toml",
            "hosts": 1024,
            "ranks": 8192,
            "devices": ["H100", "A100"],
            "toml": "hosts = 1024\n",
        },
        "workload": {
            "global_batch": 2048,
            "seq": 4096,
            "precision": "fp16",
            "optimizer": "sgd",
            "stack": "torch",
            "recipe": "fsdp",
            "imbalance": 1.25,
        },
        "config": one.config.to_json(),
        "predicted": prediction().to_json(),
        "bounds": {
            "lower_s": 1.5,
            "upper_s": 2.0,
            "gap": 0.25,
            "operators": {"lower_s": 1.0, "gap": 0.5, "more_axes_lower_s": 1.0},
            "objective": {"name": "time", "lower": 1.5, "upper": 2.0},
            "space": {
                "only": {"tp": [2, 4]},
                "never": {"zero": [3]},
                "modules": [{"option": "allow", "pin": "layers.*.mlp:sharding=row|column"}],
                "truncated": ["context parallel"],
                "complete": True,
                "counts": {"bases": 1200, "full": 0, "priced": 3},
            },
        },
        "baselines": [none, rival_to_json(one.baselines[1])],
        "alternatives": [rival_to_json(one.alternatives[0])],
        "binding_constraints": [
            {"kind": "heads", "what": "tp=8: 4 heads"},
            {"kind": "constraint", "what": "tp was to be 2"},
        ],
        "notes": ["a note", "another"],
    }


def test_another_objective_proves_nothing_of_time() -> None:
    told = plan_to_json(plan(bounds=bounds(objective="memory", lower=1.0, upper=4.0)))["bounds"]
    assert (told["lower_s"], told["upper_s"]) == (0.0, 2.0)
    assert told["objective"] == {"name": "memory", "lower": 1.0, "upper": 4.0}
    measured = plan(provenance=replace(plan().provenance, weakest="measured"))
    assert plan_to_json(measured)["provenance"]["calibrated"] is True
    own = plan(workload=Workload(global_batch=8, seq=64, recipe="fp32"))
    assert plan_to_json(own)["workload"]["recipe"] == "fp32"


def test_a_rival_that_does_not_fit() -> None:
    """Its stage may be the first."""
    full = replace(rival("fsdp", "zero=3", "lost", slower=1.5), short_stage=0, short_bytes=GIB / 2)
    assert rival_to_json(replace(full, differences=(("tensor", 1.0), ("host", 0.5)))) == {
        "name": "fsdp",
        "config": config("zero=3", 8).to_json(),
        "step_time_s": 3.0,
        "peak_memory_bytes": 3.0 * GIB,
        "fits": False,
        "short": {"stage": 0, "bytes": GIB / 2},
        "slower": 1.5,
        "differences": {"tensor": 1.0, "host": 0.5},
        "lost": "lost",
    }
    assert rival_to_json(rival("fsdp", "zero=3", "lost"))["fits"] is True


def test_a_frontier_is_told_where_there_is_one() -> None:
    one = point("zero=3", 1.5, 4.0, fits=False)
    (told,) = plan_to_json(plan(frontier=(one,)))["frontier"]
    assert told == {
        "config": one.config.to_json(),
        "step_time_s": 1.5,
        "peak_memory_bytes": 4.0 * GIB,
        "fits": False,
    }
    assert "frontier" not in plan_to_json(plan())


def saved() -> Any:
    """A plan that agrees with itself, with all that may be asked, a rival that does not fit and one that cannot be."""
    other = slower(config=replace(config("zero=3", 8), open=()))
    full = replace(other, short_stage=0, short_bytes=GIB / 2)
    own = replace(config("tp=2,pp=3", 6), open=())
    return agreed(config=own, bounds=bounds(**ASKED), alternatives=(other, full), frontier=FRONTIER)


def test_a_plan_is_read_back_whole(tmp_path: Path) -> None:
    """From its text, from a file, and from the folder that the file is in."""
    one = saved()
    text = plan_text(one)
    assert text == json.dumps(plan_to_json(one), indent=1, ensure_ascii=False) + "\n"
    assert read_plan(text) == one
    (tmp_path / FILE).write_text(text)
    assert load_plan(tmp_path) == load_plan(tmp_path / FILE) == load_plan(str(tmp_path)) == one
    other = replace(one, workload=replace(one.workload, recipe="fp32"))
    assert read_plan(plan_text(other)) == other


def test_what_follows_from_the_rest_must_be_so() -> None:
    """It is said at its key, with what it is and what it would be."""
    document = json.loads(plan_text(saved()))
    document["bounds"]["upper_s"] = 2.5
    with pytest.raises(PlanBroken) as refused:
        read_plan(json.dumps(document), "here.json")
    assert refused.value.place == "here.json: bounds.upper_s"
    assert refused.value.cause == "it is 2.5, and 2.0 by the rest of the plan"
    document = json.loads(plan_text(saved()))
    document["bounds"]["gap"] = 0.5
    with pytest.raises(PlanBroken) as contradicted:
        read_plan(json.dumps(document), "here.json")
    assert contradicted.value.place == "here.json: bounds.gap"
    document = json.loads(plan_text(saved()))
    document["stages"][0]["mesh"] = "tp=x"
    with pytest.raises(PlanBroken) as broken:
        read_plan(json.dumps(document), "here.json")
    assert broken.value.place == "here.json: stages[0].mesh (mesh 'tp=x')"
