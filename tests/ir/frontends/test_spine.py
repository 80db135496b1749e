"""The spine models, small, through the whole front end: the graph computes what the module computes.

Loss and every gradient are compared, and floating-point work and saved tensors with what torch counts.
"""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch
from torch.nn.attention import SDPBackend, sdpa_kernel
from torch.utils.flop_counter import FlopCounterMode

from meshwright.ir.analysis.saved import saved_bytes
from meshwright.ir.frontends.door import capture
from meshwright.ir.frontends.torch_.sources.factory import TorchSource, example_batch
from meshwright.ir.frontends.torch_.tracing.export import Step, trace
from meshwright.ir.graph.fold import unfold
from meshwright.ir.rules import rule_of
from meshwright.ir.verify.graphs import verify_fold
from tests.ir.frontends.run import execute
from tests.ir.frontends.tiny import OWN, SMALL, batch_of, small, with_values

EXACT = 1e-5
"""Most of these models compute their norms and losses in fp32, whatever their parameters are."""

TOLERANCE = {"deepseek-v3": 0.05, "t5-large": 0.02}
"""DeepSeek-V3: where values are narrower than keys, attention on CPU copies strided values, which rules cannot see. T5:
all blocks share one bias of zeros, which here is one in each."""

NAMES = [*OWN, *SMALL]


@pytest.fixture(scope="module", params=NAMES)
def ready(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> tuple[str, TorchSource, Any]:
    """A small model with values, and a batch."""
    name = request.param
    source = with_values(small(name, tmp_path_factory.mktemp(name), layers=2))
    return name, source, batch_of(source, 2, 16)


def test_graph_computes_loss_and_gradients(ready: tuple[str, TorchSource, Any]) -> None:
    _, source, batch = ready
    traced = trace(source, batch)
    before = {path: buffer.clone() for path, buffer in source.module.named_buffers()}
    trained = {path: p for path, p in source.module.named_parameters() if p.requires_grad}
    assert traced.graph.loss is not None
    found = execute(traced, source.module, batch)[traced.graph.loss]
    gradients = torch.autograd.grad(found, list(trained.values()), allow_unused=True)
    for path, buffer in source.module.named_buffers():
        buffer.copy_(before[path])
    expected = Step(replace(source, module=source.module.train()))(batch)
    wanted = torch.autograd.grad(expected, list(trained.values()), allow_unused=True)
    assert found.item() == pytest.approx(expected.item(), rel=EXACT)
    largest = max(g.abs().max().item() for g in wanted if g is not None)
    for path, a, b in zip(trained, gradients, wanted, strict=True):
        assert (a is None) == (b is None), path
        if a is not None and b is not None:
            assert (a - b).abs().max().item() <= EXACT * max(b.abs().max().item(), 1e-3 * largest), path


def test_work_is_what_torch_counts(ready: tuple[str, TorchSource, Any]) -> None:
    """In forward and backward, frozen parameters included. Torch counts attention only where it is written out."""
    name, source, batch = ready
    graph = trace(source, batch).graph
    forward = backward = 0.0
    for op in graph.ops:
        rule = rule_of(op, graph.types)
        needs = [i for i, value in enumerate(op.operands) if value in graph.differentiable]
        forward += rule.flops()
        backward += rule.flops(needs=needs) if not op.no_grad else 0
    with sdpa_kernel(SDPBackend.MATH), FlopCounterMode(display=False) as counter:
        loss = Step(replace(source, module=source.module.train()))(batch)
        counted = counter.get_total_flops()
        loss.backward()
    assert forward == counted
    # Of LoRA's first block only the queries' gradient is wanted; rules book half of a shared product on the keys.
    assert forward + backward == pytest.approx(counter.get_total_flops(), rel=0.002 if name == "lora" else 0)


@pytest.mark.parametrize("name", NAMES)
def test_saved_is_what_hooks_see(name: str, tmp_path: Path) -> None:
    source = with_values(small(name, tmp_path, layers=2), torch.float32)
    batch = batch_of(source, 2, 16)
    batch = {key: t.float() if t.is_floating_point() else t for key, t in batch.items()}
    graph = trace(source, batch).graph
    storages: dict[int, int] = {}
    kept: list[torch.Tensor] = []
    own = {t.untyped_storage().data_ptr() for t in (*source.module.parameters(), *source.module.buffers())}

    def pack(tensor: torch.Tensor) -> torch.Tensor:
        storage = tensor.untyped_storage()
        if storage.data_ptr() not in own:
            kept.append(tensor)
            storages[storage.data_ptr()] = storage.nbytes()
        return tensor

    with torch.autograd.graph.saved_tensors_hooks(pack, lambda tensor: tensor):
        Step(replace(source, module=source.module.train()))(batch)
    assert saved_bytes(graph, "eager", "cpu") == pytest.approx(sum(storages.values()), rel=TOLERANCE.get(name, 0.01))


def test_fold_is_valid_and_unfolds_to_the_whole_trace(ready: tuple[str, TorchSource, Any], tmp_path: Path) -> None:
    name, _, _ = ready
    source = small(name, tmp_path, layers=7)
    captured = capture(source, batch=2, seq=16)
    assert captured.notes == ()
    verify_fold(captured.fold)
    whole = trace(source, example_batch(source, 2, 16)).graph
    written_out = unfold(captured.fold)
    assert [(op.kind, op.module) for op in written_out.ops if op.kind != "constant"] == [
        (op.kind, op.module) for op in whole.ops if op.kind != "constant"
    ]
    counted = sum(written_out.types[p.value].elements for p in written_out.params if not p.buffer)
    assert counted == captured.parameters == sum(p.numel() for p in source.module.parameters())
