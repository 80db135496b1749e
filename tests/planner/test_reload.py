"""A saved plan taken up again: what it is asked with, what is refused at which key, and what is told as changed."""

from __future__ import annotations

from dataclasses import dataclass, replace
from types import SimpleNamespace
from typing import Any

import pytest

from meshwright.cost_models.hardware.text import read_cluster
from meshwright.ir.errors import (
    HeadsIndivisible,
    MeshwrightError,
    ModulePinUnmet,
    PinUnmet,
    PlanBroken,
    PlanOfAnotherCluster,
    PlanOfAnotherModel,
)
from meshwright.ir.target.capabilities import ANY
from meshwright.planner.plan import reload as module
from meshwright.planner.plan.reload import Reloaded, on_target, reload
from meshwright.planner.plan.types import Machines, Model, Plan, changes, same_model
from meshwright.planner.question.constraints import Asked, Constraints
from meshwright.planner.question.module_pins import ModulePin
from meshwright.planner.question.pins import Pins
from meshwright.planner.question.pricing import target_of
from meshwright.planner.search.search import Found
from tests.planner.handmade import bounds, plan, prediction

MODULE = ModulePin("fix", "layers.*.mlp", "sharding", ("column",))
CLUSTER = read_cluster("2x4xA100")


def saved(**words: Any) -> Plan:
    """Of eight ranks, with constraints."""
    asked = bounds(only={"tp": (2,)}, never={"zero": (3,)}, modules=(MODULE,))
    provenance = replace(plan().provenance, seed=7)
    return plan(machines=Machines.of("c", CLUSTER), bounds=asked, provenance=provenance, **words)


@dataclass(frozen=True)
class Set:
    """A setting: what it is asked is what it answers."""

    folds: Any
    target: Any
    workload: Any = "workload"
    bodies: Any = "bodies"
    found: Any = None

    def fold(self, config: Any) -> str:
        return f"fold at {config.batch}"

    def price(self, program: object) -> Any:
        return self.found


def again(monkeypatch: pytest.MonkeyPatch, one: Plan, *named: str | None, **words: Any) -> Reloaded:
    """The plan taken up again, where the model, the stages and what was asked are as in `words`."""
    usual: dict[str, Any] = {"model": one.model, "blocks": one.blocks, "unmet": None, "unheld": None, "lower": None}
    usual |= {"found": one.prediction, "changed": ()} | words

    def refuse(error: MeshwrightError | None, *what: Any) -> Any:
        if error:
            raise error
        return what

    first = SimpleNamespace(fold="first fold")
    folds = SimpleNamespace(first=lambda batch: first, source=SimpleNamespace(config="{}"))
    target = SimpleNamespace(lowering=lambda: SimpleNamespace(for_stack=lambda stack: f"lowering for {stack.name}"))
    setting = Set(folds, target, found=usual["found"])
    monkeypatch.setattr(module.Ask, "setting", lambda self: setting)
    monkeypatch.setattr(module.Model, "of", staticmethod(lambda ref, fold, config: replace(usual["model"], ref=ref)))
    monkeypatch.setattr(module, "lower", lambda *what: refuse(usual["lower"], *what))
    monkeypatch.setattr(module, "blocks_of", lambda decisions, fold: usual["blocks"])
    monkeypatch.setattr(module, "resolved", lambda modules, fold: modules)
    monkeypatch.setattr(module, "check_held", lambda *what: refuse(usual["unheld"]))
    monkeypatch.setattr(module, "check_constraints", lambda *what: refuse(usual["unmet"]))
    monkeypatch.setattr(module, "changes", lambda plan, machines: usual["changed"])
    return reload(one, *named)


def test_a_plan_is_asked_for_what_it_was_made_for(monkeypatch: pytest.MonkeyPatch) -> None:
    one = saved()
    found = again(monkeypatch, one)
    assert (found.ask.model, found.ask.cluster_reference, found.ask.cluster) == ("small.toml", "c", CLUSTER)
    assert (found.ask.workload, found.ask.global_batch) == (one.workload, 2048)
    assert (found.ask.target, found.ask.pins, found.ask.seed) == (target_of("torch-cuda"), Pins(), 7)
    assert found.ask.modules == (MODULE,)
    assert found.asked == Asked(Constraints({"tp": (2,)}, {"zero": (3,)}), modules=(MODULE,))
    assert (found.plan, found.changed) == (one, ())
    assert found.found == Found(one.config, one.prediction)


def test_another_place_of_the_model_and_another_cluster(monkeypatch: pytest.MonkeyPatch) -> None:
    found = again(monkeypatch, saved(), "elsewhere", "1x8xH100")
    assert (found.ask.model, found.ask.cluster_reference) == ("elsewhere", "1x8xH100")
    assert found.ask.cluster == read_cluster("1x8xH100")
    with pytest.raises(PlanOfAnotherCluster) as refused:
        again(monkeypatch, saved(), None, "1x4xH100")
    assert (refused.value.place, refused.value.cause) == ("a cluster of 4 ranks", "the plan is for 8")


@pytest.mark.parametrize(
    ("words", "changed"),
    [
        ({"found": prediction(mfu=0.5)}, "predicted.mfu is 0.4 in plan.json, and 0.5 by its decisions"),
        ({"found": prediction(mfu=0.4 * (1 + 5e-7))}, None),
        ({"found": prediction(mfu=0.5, step_time_s=3.0)}, "predicted.step_time_s is 2.0 in plan.json, and 3.0 by"),
        ({"found": prediction(mfu=0.5), "changed": ("the cluster has changed",)}, "the cluster has changed"),
    ],
)
def test_what_changed_is_told(monkeypatch: pytest.MonkeyPatch, words: dict[str, Any], changed: str | None) -> None:
    """The first figure that differs by more than rounding; it is to be expected where something else did change."""
    told = again(monkeypatch, saved(), **words).changed
    assert len(told) == (changed is not None)
    assert changed is None or told[0].startswith(changed)


BLOCKS = ((("Block", 2),), (("Head", 1), ("Block", 3)), (("Block", 1), ("Head", 1)))
UNMET = PinUnmet(place="config.tp", cause="it is 4", fix="make it anew")
UNHELD = ModulePinUnmet(place="plan block, %op", cause="it is cut", fix="take a pin back")
MODEL = plan().model
CASES: dict[str, tuple[dict[str, Any], str, str]] = {
    "parameters": (
        {"model": replace(MODEL, parameters=7)},
        "plan.json: model.parameters",
        "it is not what the model of this digest has, 7",
    ),
    "tensors": (
        {"model": replace(MODEL, tensors=(("b", "bf16[2]"),))},
        "plan.json: model.tensors",
        "it is not what the model of this digest has",
    ),
    "blocks": ({"blocks": BLOCKS}, "plan.json: stages[1].blocks", "its calls are 1 Head, 3 Block"),
    "names": ({"unmet": UNMET}, "plan.bounds.space.only, config.tp", f"it is 4 ({PinUnmet.code})"),
    "modules": (
        {"unheld": UNHELD, "unmet": UNMET},
        "plan.bounds.space.modules, plan block, %op",
        f"it is cut ({ModulePinUnmet.code})",
    ),
    "decisions": (
        {"lower": HeadsIndivisible(place="heads", cause="there are 3", fix="take 2")},
        "plan.json: heads",
        f"there are 3 ({HeadsIndivisible.code})",
    ),
}


def test_what_the_plan_says_otherwise_is_refused_at_its_key(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module, "key_of", lambda place: place)
    found = {}
    for what, (words, _, _) in CASES.items():
        with pytest.raises(PlanBroken) as refused:
            again(monkeypatch, saved(), **words)
        found[what] = words, refused.value.place, refused.value.cause
    assert found == CASES


def test_the_order_of_blocks_in_a_stage_is_nothing(monkeypatch: pytest.MonkeyPatch) -> None:
    swapped = (*plan().blocks[:2], (("Head", 1), ("Block", 1)))
    assert again(monkeypatch, saved(), blocks=swapped).changed == ()


def test_the_order_of_tensors_is_nothing(monkeypatch: pytest.MonkeyPatch) -> None:
    """Traces of two batch sizes may have them in different orders."""
    tensors = (("a", "bf16[2]"), ("b", "bf16[3]"))
    one = replace(saved(), model=replace(MODEL, tensors=tensors))
    assert again(monkeypatch, one, model=replace(MODEL, tensors=tensors[::-1])).changed == ()


def test_another_target_is_held_to_what_it_can(monkeypatch: pytest.MonkeyPatch) -> None:
    """But for `any`, which can all; bodies are made anew."""
    found = again(monkeypatch, saved())
    checked: list[object] = []
    lowering = SimpleNamespace(lowering=lambda: SimpleNamespace(for_stack=lambda stack: "lowering"))
    gloo = SimpleNamespace(check=lambda *what: checked.append(what), lowering=lowering.lowering)
    monkeypatch.setattr(module, "target_of", lambda name: ANY if name == "any" else gloo)
    other = on_target(found, "torch-gloo")
    assert checked == [(other.plan.decisions, f"fold at {found.plan.config.batch}", "workload")]
    assert other.plan.decisions == replace(found.plan.decisions, target="torch-gloo")
    own: Any = other.setting
    assert (own.target, own.bodies, other.prediction) == (gloo, {}, found.prediction)
    assert on_target(found, "any").setting.target is ANY
    assert len(checked) == 1


# Models and clusters -------------------------------------------------------------------------------------------------


def model(*tensors: tuple[str, str], digest: str = "1", parameters: int = 5) -> Model:
    return Model(ref="m", digest=digest, parameters=parameters, tensors=tensors)


A, B, C = ("a", "bf16[2]"), ("b", "bf16[3]"), ("c", "bf16[4]")
UNLIKE = [
    (model(A, C), model(A, B, digest="2"), "there is no c here"),
    (model(A, B), model(A, ("b", "f32[3]"), digest="2"), "b was bf16[3], and is f32[3] here"),
    (model(A), model(A, C, B, digest="2"), "c, bf16[4], is new here"),
    (
        model(A, parameters=1234),
        model(A, digest="2", parameters=5678),
        "1,234 parameters there and 5,678 here, in other numbers of blocks",
    ),
    (
        model(A, B),
        model(B, A, digest="2"),
        "all parameters are the same; classes of blocks, which parameters are trained, or the configuration differ",
    ),
]


def test_another_model_is_refused_with_its_first_difference() -> None:
    same_model(plan(model=model(A)), model(B))  # of one digest
    for planned, now, cause in UNLIKE:
        with pytest.raises(PlanOfAnotherModel) as refused:
            same_model(plan(model=planned), now)
        assert refused.value.place == "m, digest 2"
        assert refused.value.cause == f"the plan is for m, digest 1: {cause}"


@pytest.mark.parametrize(
    ("before", "now", "said"),
    [
        ("a\nb\n", "a\nc\nd\n", "b was planned for, c is there"),
        ("a\n", "a\nb\n", "nothing was planned for, b is there"),
        ("a\nb\n", "a\n", "b was planned for, nothing is there"),
        ("a\n", "a", "its text"),
    ],
)
def test_another_cluster_is_told_by_its_first_line(before: str, now: str, said: str) -> None:
    one = saved()
    machines = replace(one.machines, toml=now)
    told = changes(replace(one, machines=replace(one.machines, toml=before)), machines)
    assert told == (f"the cluster has changed: {said}", "the profile of prices has changed")
