"""Checkpoints of emitted scripts: saved under one plan, resumed under others, bit by bit."""

from __future__ import annotations

import os
import subprocess
import sys
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch
from torch.distributed.checkpoint.format_utils import dcp_to_torch_save

from meshwright.ir.decisions import Schedule
from meshwright.ir.names import Degrees
from tests.backends.torch_.emitted import MIXED, subject, written
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
def runs(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Path]:
    """The first plan of a model runs three steps and saves after one; the others go on from there, and save what they
    took up."""
    plans = {plan: subject(**given) for plan, given in PLANS.items()}
    plans |= {plan: of_unlike(case) for plan, case in UNLIKE.items()}
    folders = {plan: tmp_path_factory.mktemp("run") for plan in plans}
    command = [sys.executable, "-m", "meshwright.backends.torch_.verify.ranks", str(os.getpid()), "3"]
    for plan, folder in folders.items():
        made = plans[plan]
        script = written(made, folder)
        first = folders[next((one for one, kind in KINDS.items() if kind in plan), FIRST)]
        more = SAVES if folder == first else RESUMES
        text = script.read_text().replace("CLIP = 0.0", f"CLIP = {CLIP}").replace("2.0**16, 0", SOON)
        script.write_text(text + more.format(folder=folder / "saved", saved=first / "saved"))
        command += [str(script), str(made.ranks), str(folder)]
    done = subprocess.run(
        command, capture_output=True, text=True, timeout=300, check=False, env=os.environ | {"OMP_NUM_THREADS": "1"}
    )
    assert done.returncode == 0, done.stderr[-3000:]
    return folders


def losses(folder: Path) -> list[float]:
    """Of the last rank, which has the last stage."""
    last = max(folder.glob("*.pt"), key=lambda path: int(path.stem) if path.stem.isdigit() else -1)
    return [step["loss"] for step in torch.load(last, weights_only=False)]


def grads(rank: Path) -> dict[str, torch.Tensor]:
    """Of its first step, whole."""
    found: dict[str, torch.Tensor] = torch.load(rank, weights_only=False)[0]["grads"]
    return found


def saved(folder: Path) -> dict[str, Any]:
    """A checkpoint, whole, on one device; nested names joined."""
    dcp_to_torch_save(folder / "saved", folder / "whole.pt")
    return dict(_flat(torch.load(folder / "whole.pt", weights_only=False), ""))


def _flat(node: Any, path: str) -> Any:
    if isinstance(node, dict):
        for name, one in node.items():
            yield from _flat(one, f"{path}/{name}")
    else:
        yield path, node


@pytest.mark.e2e
@pytest.mark.parametrize("plan", ["fsdp", "dp x tp", "dp x tp, states on the host", "one device"])
def test_another_plan_takes_up_what_was_saved(plan: str, runs: dict[str, Path]) -> None:
    first = runs[FIRST]
    before, after = saved(first), saved(runs[plan])
    assert before.keys() == after.keys()
    tensors = [name for name, one in before.items() if isinstance(one, torch.Tensor)]
    assert len([name for name in tensors if name.startswith("/model/")]) == 39
    assert len([name for name in tensors if "exp_avg" in name]) == 2 * 39
    for name in tensors:
        assert torch.equal(before[name], after[name]), name
    clipped = {name: grad for rank in runs[plan].glob("[0-9].pt") for name, grad in grads(rank).items()}
    assert torch.nn.utils.get_total_norm(clipped.values()).item() == pytest.approx(CLIP, rel=1e-4)
    assert losses(runs[plan])[:2] == pytest.approx(losses(first)[1:], rel=1e-6)


@pytest.mark.e2e
@pytest.mark.parametrize("plan", ["zero 1 of two", "one device"])
def test_padding_is_not_saved(plan: str, runs: dict[str, Path]) -> None:
    """Shards of rows that four ranks do not divide are taken up by two, and by one; so are scalars."""
    first, other = runs[UNEVEN], runs[f"{plan}, uneven sizes"]
    before, after = saved(first), saved(other)
    assert before.keys() == after.keys()
    assert before["/model/head.bias"].shape == before["/optimizer/state.head.bias.exp_avg"].shape == (253,)
    assert before["/model/logit_scale"].shape == ()
    for name in (name for name, one in before.items() if isinstance(one, torch.Tensor)):
        assert torch.equal(before[name], after[name]), name
    assert losses(other)[:2] == pytest.approx(losses(first)[1:], rel=1e-6)


@pytest.mark.e2e
@pytest.mark.parametrize("kind", ["fused", "tied"])
def test_weights_are_saved_as_the_model_has_them(kind: str, runs: dict[str, Path]) -> None:
    """One device goes on from what was saved of shards of another order, and of shards that two modules have of one
    parameter: weights and states."""
    first, alone = runs[FUSED if kind == "fused" else TIED], runs[f"one device, {kind} weights"]
    assert losses(alone)[:2] == pytest.approx(losses(first)[1:], rel=1e-6)
    one = torch.load(alone / "0.pt", weights_only=False)[0]["grads"]
    two = torch.load(first / "0.pt", weights_only=False)[1]["grads"]
    assert set(one) - set(two) <= {"head.weight"}  # whose gradient went to the embedding's
    for name, grad in two.items():
        torch.testing.assert_close(grad, one[name], rtol=1e-4, atol=1e-6)


@pytest.mark.e2e
@pytest.mark.parametrize("plan", ["1f1b", "1 + 2"])
def test_a_parameter_of_two_stages_is_clipped_as_one(plan: str, runs: dict[str, Path]) -> None:
    """Its gradient is summed before the norm is taken, in which it counts once."""
    assert losses(runs[f"{plan}, tied weights"])[:2] == pytest.approx(losses(runs[TIED])[1:], rel=1e-6)


@pytest.mark.e2e
def test_stages_of_unlike_meshes_save_what_they_took_up(runs: dict[str, Path]) -> None:
    """Fused weights that one of them cuts are in the model's order."""
    before, after = saved(runs[FUSED]), saved(runs["2 + 1, fused weights"])
    assert before.keys() == after.keys()
    for name, one in before.items():
        assert not isinstance(one, torch.Tensor) or torch.equal(one, after[name]), name
    assert losses(runs["2 + 1, fused weights"])[:2] == pytest.approx(losses(runs[FUSED])[1:], rel=1e-6)


@pytest.mark.e2e
def test_scales_of_losses_go_on(runs: dict[str, Path]) -> None:
    before, after, anew = (saved(runs[plan]) for plan in (SCALED, SCALED_STAGES, SCALED_ANEW))
    assert (before["/scale"], before["/good"]) == (after["/scale"], after["/good"]) == (2.0**17, 2000)
    assert (anew["/scale"], anew["/good"]) == (2.0**16, 1999)
    assert torch.equal(after["/model/head.weight"], before["/model/head.weight"])
