"""Scripts in fp16, run on two processes; and in float8, as text: torchao is no dependency of the tests. docs/emit.md
says what of these was run."""

from __future__ import annotations

import re
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace
from typing import Any, cast

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor, nn
from torch.distributed.tensor import DTensor
from torch.func import functional_call

from benchmarks.emitted_matrix import Made, Small
from meshwright.backends.torch_.capabilities import TORCH_GLOO
from meshwright.backends.torch_.emit import Subject, emit
from meshwright.backends.torch_.emit.printed.language.moves import used_by
from meshwright.backends.torch_.emit.write.steps.scaling import TEXT
from meshwright.ir.errors import EmissionSoftware
from meshwright.ir.names import Degrees
from tests.backends.torch_.emitted import MIXED, ROOT, job, subject, unclean, written
from tests.backends.torch_.measured import assert_planned
from tests.backends.torch_.proved import proved
from tests.backends.torch_.test_emit_unlike import ONE, TWO, Case
from tests.backends.torch_.test_emit_unlike import subject as unlike

FLOAT8 = replace(MIXED, precision="fp8_tensorwise")
MIXTURE = f"{ROOT / 'tests' / 'backends' / 'torch_' / 'mixtures.py'}:tiny"
FP16: dict[str, dict[str, Any]] = {
    "fsdp": {"dp": 2, "zero": 2, "microbatches": 2},
    "tp+sp, states on the host": {"tp": 2, "sequence_parallel": True, "offload": "optimizer"},
    "1f1b": {"pp": 2, "microbatches": 2, "schedule": "1f1b"},
}


@pytest.mark.e2e
def test_in_fp16_losses_are_scaled(tmp_path: Path) -> None:
    """Ranks also tell one another whether gradients are finite."""
    workload = replace(MIXED, precision="fp16")
    plans = {kind: subject(workload=workload, **degrees) for kind, degrees in FP16.items()}
    plans["unlike meshes"] = unlike(Case((Degrees(dp=2, zero=1), ONE), (2, 2), TWO, workload))
    scripts = {kind: (plan, written(plan, tmp_path / str(number))) for number, (kind, plan) in enumerate(plans.items())}
    assert unclean(tmp_path) == ""
    for kind, one in proved("fp16", scripts, steps=2, limit_s=300).items():
        assert one.differences == ()
        assert_planned(plans[kind], one)


def test_a_step_with_infinite_gradients_is_left_out() -> None:
    ranks = SimpleNamespace(all_reduce=lambda wrong, op: wrong, ReduceOp=SimpleNamespace(MAX=None))
    names: dict[str, Any] = {"Any": Any, "torch": torch, "nn": nn, "Tensor": Tensor, "DTensor": DTensor, "dist": ranks}
    exec(TEXT, names)  # noqa: S102 - as it stands in scripts
    scale, model = names["SCALE"], nn.Linear(2, 2)
    before = scale.now

    def step(worst: float) -> bool:
        model.weight.grad, model.bias.grad = torch.full((2, 2), worst), torch.full((2,), 2 * scale.now)
        return bool(scale.undo(model))

    assert step(1.0)
    assert model.bias.grad.tolist() == [2.0, 2.0]
    assert not step(torch.inf)
    assert (scale.now, scale.good) == (before / 2, 0)
    assert all(step(1.0) for _ in range(2000))
    assert scale.now == before


def test_products_of_blocks_are_in_float8_before_they_are_sharded(tmp_path: Path) -> None:
    plan = replace(subject(workload=MIXED, dp=2, zero=3), workload=FLOAT8)
    text = written(plan, tmp_path).read_text()
    (line,) = [line for line in text.splitlines() if "convert_to_float8_training(" in line]
    assert text.index("model_file.tiny().float()") < text.index(line) < text.index("def parallelize")
    assert 'name.startswith("blocks.")' in text
    assert "MixedPrecisionPolicy(param_dtype=torch.bfloat16" in text
    assert unclean(tmp_path) == ""
    assert "float8" not in written(subject(workload=MIXED, dp=2), tmp_path / "bf16").read_text()


STAND_IN = """\
import torch.nn as nn


class Float8Linear(nn.Linear):
    pass


def convert_to_float8_training(module, module_filter_fn=None):
    module.__class__ = Float8Linear
    return module
"""
"""Of torchao: a module of another class, which multiplies as any."""


@pytest.mark.e2e
def test_printed_products_of_blocks_are_in_float8(tmp_path: Path) -> None:
    degrees = {"tp": 2, "dp": 2, "zero": 3, "sequence_parallel": True}
    plan = subject(workload=MIXED, **degrees)
    script = written(replace(plan, workload=FLOAT8), tmp_path / "llama")
    text = script.read_text()
    assert unclean(tmp_path) == ""
    assert text.count("linear_in_float8(") == 1 + 7  # it, and a block's products
    assert "F.linear(" in text[text.index("def head_forward") :]
    assert text.count("convert_to_float8_training(") == 1
    scripts = {"tp+sp x zero 3": (plan, script), "zero 3, weights as [in, out]": turned(tmp_path)}
    for _, file in scripts.values():
        (file.parent / "torchao").mkdir()
        (file.parent / "torchao" / "float8.py").write_text(STAND_IN)
    for kind, one in proved("float8", scripts, steps=2, limit_s=300).items():
        assert one.differences == ()
        assert_planned(scripts[kind][0], one)


def turned(folder: Path) -> tuple[Subject, Path]:
    """GPT-2, which torchao converts no modules of: it is printed."""
    plan = Small("gpt2", folder, dtype="bf16").subject("zero 3", Degrees(dp=2, zero=3))
    assert isinstance(plan, Subject)
    low = replace(plan, workload=replace(plan.workload, precision=FLOAT8.precision))
    script = written(low, folder / "gpt2")
    assert len(re.findall(r"linear_in_float8\(.*\.t\(\), ", script.read_text())) == 4
    return plan, script


def test_a_product_in_float8_is_that_of_the_module_on_what_a_rank_has() -> None:
    def convert(module: nn.Linear) -> nn.Linear:
        module.forward = lambda x: F.linear(x.round(), module.weight.round())  # type: ignore[method-assign]
        return module

    names: dict[str, Any] = {"nn": nn, "F": F, "Tensor": Tensor, "cast": cast, "functional_call": functional_call}
    names["convert_to_float8_training"] = convert
    exec("\n".join(used_by(["linear_in_float8"], "")), names)  # noqa: S102 - as it stands in scripts
    x, weight, bias = torch.randn(2, 4, 48), torch.randn(32, 48, requires_grad=True), torch.randn(32)
    made = names["linear_in_float8"](x, weight * 3, bias)
    assert torch.equal(made, F.linear(x.round(), (weight * 3).round()) + bias)
    assert made.requires_grad


@pytest.mark.parametrize(
    ("workload", "says"),
    [
        (replace(MIXED, precision="mxfp8"), "dtype mxfp8: it is not emitted yet"),
        (replace(FLOAT8, recipe="megatron"), "recipe megatron"),
    ],
)
def test_what_no_code_is_written_for_is_refused(workload: object, says: str, tmp_path: Path) -> None:
    with pytest.raises(EmissionSoftware, match=says):
        emit(replace(subject(workload=MIXED, dp=2), workload=workload), tmp_path)


def test_experts_are_not_emitted_in_float8(tmp_path: Path) -> None:
    plan = subject(workload=MIXED, dp=2, zero=3, reference=MIXTURE)
    with pytest.raises(EmissionSoftware, match="it is no linear layer") as refused:
        emit(replace(plan, workload=FLOAT8), tmp_path)
    (told,) = TORCH_GLOO.unwritten(FLOAT8, plan.fold)  # what a plan says beforehand
    assert str(told) == str(refused.value)


@pytest.mark.e2e
def test_a_parameter_of_four_names_is_cast_as_one(tmp_path: Path) -> None:
    """T5 has one parameter under four names, of which no module reads one. What rounds otherwise in its products is as
    near to the gradients in fp32 as what one device makes."""
    small = Small("t5", tmp_path, dtype="bf16")
    made = {kind: small.made(kind, tmp_path / kind) for kind in ("dp", "tp")}
    scripts = {kind: (one.subject, one.script) for kind, one in made.items() if isinstance(one, Made)}
    copies, cut = proved("t5_bf16", scripts, steps=2, limit_s=300).values()
    assert copies.differences == cut.differences == ()
    assert copies.rounded == 0 < cut.rounded


def test_what_rounding_does_not_explain_differs(tmp_path: Path) -> None:
    plan = subject(workload=MIXED, dp=2)
    reference = job(plan, written(plan, tmp_path)).reference
    low = reference.step(0, {}).grads
    reference.model, reference.cast = reference.model.float(), False
    reference._hold(reference.before)
    full = reference.step(0, {}).grads
    reference.cast = True
    for factor, explained in ((1.5, len(full)), (2.5, 0)):
        found = {name: one + factor * (low[name] - one) for name, one in full.items()}
        assert len(reference.rounded(0, found, low)) == explained
    halves = {name: one / 2 for name, one in low.items()}
    assert reference.rounded(0, halves, low) == {}
