"""Checkpoints of emitted scripts: saved under one plan, resumed under others, bit by bit."""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch
from torch.distributed.checkpoint.format_utils import dcp_to_torch_save

from meshwright.backends.torch_.emit import Subject
from meshwright.ir.decisions.decisions import Schedule
from meshwright.ir.names import Degrees
from tests.backends.torch_.emitted import MIXED, subject, written
from tests.backends.torch_.proved import observed
from tests.backends.torch_.test_emit_unlike import Case
from tests.backends.torch_.test_emit_unlike import subject as of_unlike

FIRST, FUSED, TIED = "tp x pp x fsdp", "tp x fsdp, fused weights", "fsdp, tied weights"
UNEVEN = "fsdp, uneven sizes"
MODEL, TIED_MODEL, UNEVEN_MODEL = (
    f"{Path(__file__).parent / f'llama_{kind}.py'}:{kind}" for kind in ("fused", "tied", "uneven")
)
PLANS: dict[str, dict[str, Any]] = {
    FIRST: {"tp": 2, "pp": 2, "dp": 2, "zero": 3, "schedule": "1f1b", "microbatches": 2},
    "fsdp": {"dp": 4, "zero": 3},
    "dp x tp": {"dp": 2, "tp": 2},
    "dp x tp, states on the host": {"dp": 2, "tp": 2, "offload": "optimizer"},
    "one device": {},
    FUSED: {"tp": 2, "dp": 2, "zero": 3, "sequence_parallel": True, "reference": MODEL},
    "one device, fused weights": {"reference": MODEL},
    TIED: {"dp": 2, "zero": 3, "reference": TIED_MODEL},
    "one device, tied weights": {"reference": TIED_MODEL},
    "1f1b, tied weights": {"pp": 2, "schedule": "1f1b", "microbatches": 2, "reference": TIED_MODEL},
    UNEVEN: {"dp": 4, "zero": 3, "reference": UNEVEN_MODEL},
    "zero 1 of two, uneven sizes": {"dp": 2, "zero": 1, "reference": UNEVEN_MODEL},
    "one device, uneven sizes": {"reference": UNEVEN_MODEL},
}
HALF = {"workload": replace(MIXED, precision="fp16")}
SCALED, SCALED_STAGES, SCALED_ANEW = "fsdp, fp16", "1f1b, fp16", "fp16 from fp32"
PLANS |= {
    SCALED: {"dp": 2, "zero": 3, **HALF},
    SCALED_STAGES: {"pp": 2, "schedule": "1f1b", "microbatches": 2, **HALF},
    SCALED_ANEW: {"dp": 2, "zero": 3, **HALF},
}
UNLIKE: dict[str, Case] = {
    "2 + 1, fused weights": Case((Degrees(tp=2), Degrees()), (1, 1), Schedule("1f1b", 2), reference=MODEL),
    "1 + 2, tied weights": Case((Degrees(), Degrees(tp=2)), (1, 3), Schedule("1f1b", 2), reference=TIED_MODEL),
}
KINDS = {FUSED: "fused", TIED: "tied", SCALED: ", fp16", UNEVEN: "uneven"}
"""The plans whose checkpoints are taken up, and what is in the names of the plans that do."""
SIZES = ("head.bias", "head.bias.exp_avg", "logit_scale")
"""Of parameters of odd sizes, and of none."""
SOON = "2.0**16, 1999"
"""How scales of losses begin where they double after the first step."""
CLIP = 0.05
"""Gradients are a hundred times larger: clipped otherwise by one plan than by another, losses would not go on alike."""
SAVES = """

_step = train_step


def train_step(model, optimizer, batch, mesh):
    loss = _step(model, optimizer, batch, mesh)
    SEEN.append(loss)
    if len(SEEN) == 1:
        save(Path("{folder}"), model, optimizer, len(SEEN))
    return loss


SEEN = []
"""
RESUMES = """

_make, _batch = make_optimizer, batch_of
FIRST = []


def make_optimizer(model):
    optimizer = _make(model)
    FIRST.append(resume(Path("{saved}"), model, optimizer))
    save(Path("{folder}"), model, optimizer, FIRST[0])
    return optimizer


def batch_of(step, mesh):
    return _batch(FIRST[0] + step, mesh)
"""


@pytest.fixture(scope="module")
def found(tmp_path_factory: pytest.TempPathFactory) -> Any:
    """Facts of all plans. The first plan of a model runs three steps and saves after one; the others go on from there,
    and save what they took up."""
    plans = {plan: subject(**given) for plan, given in PLANS.items()}
    plans |= {plan: of_unlike(case) for plan, case in UNLIKE.items()}
    scripts = {plan: written(made, tmp_path_factory.mktemp("run")) for plan, made in plans.items()}
    return observed(
        "checkpoints", {plan: (plans[plan], script) for plan, script in scripts.items()}, lambda: run(plans, scripts)
    )


def first_of(plan: str) -> str:
    """The plan whose checkpoint is taken up."""
    return next((one for one, kind in KINDS.items() if kind in plan), FIRST)


def run(plans: Mapping[str, Subject], scripts: Mapping[str, Path]) -> dict[str, Any]:
    command = [sys.executable, "-m", "meshwright.backends.torch_.verify.run.ranks", str(os.getpid()), "3"]
    for plan, script in scripts.items():
        more = SAVES if plan == first_of(plan) else RESUMES
        text = script.read_text().replace("CLIP = 0.0", f"CLIP = {CLIP}").replace("2.0**16, 0", SOON)
        folder, first = script.parent, scripts[first_of(plan)].parent
        script.write_text(text + more.format(folder=folder / "saved", saved=first / "saved"))
        command += [str(script), str(plans[plan].ranks), str(folder)]
    done = subprocess.run(
        command, capture_output=True, text=True, timeout=300, check=False, env=os.environ | {"OMP_NUM_THREADS": "1"}
    )
    assert done.returncode == 0, done.stderr[-3000:]
    return {plan: facts(script.parent, scripts[first_of(plan)].parent) for plan, script in scripts.items()}


def facts(folder: Path, first: Path) -> dict[str, Any]:
    """What a run left, beside the run whose checkpoint it took up."""
    before, after = saved(first), saved(folder)
    tensors = [name for name, one in before.items() if isinstance(one, torch.Tensor)]
    clipped = {name: grad for rank in folder.glob("[0-9].pt") for name, grad in steps(rank)[0]["grads"].items()}
    one, two = steps(folder / "0.pt")[0]["grads"], steps(first / "0.pt")[1]["grads"]
    return {
        "names": len(before.keys() ^ after.keys()),
        "unlike": [name for name in tensors if name not in after or not torch.equal(before[name], after[name])],
        "numbers": {kind: sum(kind in name for name in after) for kind in ("/model/", "exp_avg")},
        "shapes": {name: list(before[name].shape) for name in tensors if name.endswith(SIZES)},
        "scale": [after.get("/scale"), after.get("/good")],
        "norm": torch.nn.utils.get_total_norm(clipped.values()).item(),
        "losses": [step["loss"] for step in steps(last_of(folder))],
        "gradients gone": sorted(one.keys() - two.keys()),
        "gradients unlike": [
            name for name in two if name not in one or not torch.allclose(two[name], one[name], rtol=1e-4, atol=1e-6)
        ],
    }


def last_of(folder: Path) -> Path:
    """The last rank, which has the last stage."""
    return max(folder.glob("*.pt"), key=lambda path: int(path.stem) if path.stem.isdigit() else -1)


def steps(rank: Path) -> Any:
    return torch.load(rank, weights_only=False)


def saved(folder: Path) -> dict[str, Any]:
    """A checkpoint, whole, on one device; nested names joined."""
    whole = folder / "whole.pt"
    if not whole.exists():
        dcp_to_torch_save(folder / "saved", whole)
    return dict(_flat(torch.load(whole, weights_only=False), ""))


def _flat(node: Any, path: str) -> Any:
    if isinstance(node, dict):
        for name, one in node.items():
            yield from _flat(one, f"{path}/{name}")
    else:
        yield path, node


def assert_taken_up(plan: str, found: Mapping[str, dict[str, Any]]) -> None:
    """Saved again, the checkpoint is the same bit by bit."""
    assert (found[plan]["names"], found[plan]["unlike"]) == (0, [])


def assert_goes_on(plan: str, found: Mapping[str, dict[str, Any]]) -> None:
    """Its losses are those of the steps that came after the checkpoint."""
    assert found[plan]["losses"][:2] == pytest.approx(found[first_of(plan)]["losses"][1:], rel=1e-6)


@pytest.mark.e2e
@pytest.mark.parametrize("plan", ["fsdp", "dp x tp", "dp x tp, states on the host", "one device"])
def test_another_plan_takes_up_what_was_saved(plan: str, found: dict[str, dict[str, Any]]) -> None:
    assert_taken_up(plan, found)
    assert found[plan]["numbers"] == {"/model/": 39, "exp_avg": 2 * 39}
    assert found[plan]["norm"] == pytest.approx(CLIP, rel=1e-4)
    assert_goes_on(plan, found)


@pytest.mark.e2e
@pytest.mark.parametrize("plan", ["zero 1 of two", "one device"])
def test_padding_is_not_saved(plan: str, found: dict[str, dict[str, Any]]) -> None:
    """Shards of rows that four ranks do not divide are taken up by two, and by one; so are scalars."""
    plan = f"{plan}, uneven sizes"
    assert_taken_up(plan, found)
    shapes = found[UNEVEN]["shapes"]
    assert shapes["/model/head.bias"] == shapes["/optimizer/state.head.bias.exp_avg"] == [253]
    assert shapes["/model/logit_scale"] == []
    assert_goes_on(plan, found)


@pytest.mark.e2e
@pytest.mark.parametrize("kind", ["fused", "tied"])
def test_weights_are_saved_as_the_model_has_them(kind: str, found: dict[str, dict[str, Any]]) -> None:
    """One device goes on from what was saved of shards of another order, and of shards that two modules have of one
    parameter: weights and states."""
    alone = f"one device, {kind} weights"
    assert_goes_on(alone, found)
    assert set(found[alone]["gradients gone"]) <= {"head.weight"}  # whose gradient went to the embedding's
    assert found[alone]["gradients unlike"] == []


@pytest.mark.e2e
@pytest.mark.parametrize("plan", ["1f1b", "1 + 2"])
def test_a_parameter_of_two_stages_is_clipped_as_one(plan: str, found: dict[str, dict[str, Any]]) -> None:
    """Its gradient is summed before the norm is taken, in which it counts once."""
    assert_goes_on(f"{plan}, tied weights", found)


@pytest.mark.e2e
def test_stages_of_different_meshes_save_what_they_took_up(found: dict[str, dict[str, Any]]) -> None:
    """Fused weights that one of them cuts are in the model's order."""
    assert_taken_up("2 + 1, fused weights", found)
    assert_goes_on("2 + 1, fused weights", found)


@pytest.mark.e2e
def test_scales_of_losses_go_on(found: dict[str, dict[str, Any]]) -> None:
    assert found[SCALED]["scale"] == found[SCALED_STAGES]["scale"] == [2.0**17, 2000]
    assert found[SCALED_ANEW]["scale"] == [2.0**16, 1999]
    assert "/model/head.weight" not in found[SCALED_STAGES]["unlike"]
