"""Floating-point work of the spine models: the rules against torch's own counter.

The real module, shallow but at real widths, runs forward and backward on the meta device under `FlopCounterMode`, train
mode, loss included. The work that `account_fold` finds for its fold must be the same number, forward and backward.

What the counter does not see, and what it is compared with instead:

    routed experts    their shapes depend on the routing, so torch cannot run them on meta. In the counted module they
                      are replaced by a product with the routing weights, which the counter counts as nothing; their
                      own work is `Experts.forward_flops`, twice that backward.
    everything else   elementwise operators, norms, reductions, softmax, losses, lookups: no work in either count.
"""

from __future__ import annotations

from typing import Any

import pytest
import torch
from torch import Tensor
from torch.utils.flop_counter import FlopCounterMode
from transformers.integrations.moe import ALL_EXPERTS_FUNCTIONS

from meshwright.ir.analysis.account import account_fold
from meshwright.ir.frontends.door import capture
from meshwright.ir.frontends.torch_.sources.factory import TorchSource, example_batch
from tests.e2e.spine import BATCH, SEQ, SPINE, SpineModel, step

UNCOUNTED = "uncounted"
"""The name of the experts implementation that costs nothing."""


@pytest.fixture(autouse=True)
def uncounted_experts(monkeypatch: pytest.MonkeyPatch) -> None:
    """Experts of which only the routing weights' gradient is left, in Hugging Face's registry."""

    def weigh(self: Any, hidden: Tensor, idx: Tensor, weights: Tensor) -> Tensor:
        return hidden * weights.sum(-1, keepdim=True).to(hidden.dtype)

    monkeypatch.setitem(ALL_EXPERTS_FUNCTIONS, UNCOUNTED, weigh)


def counted(source: TorchSource) -> tuple[int, int]:
    """What the counter sees of one step: forward, and both ways.

    Decoders of transformers are handed their mask: without one they read values to see whether sequences are packed.
    """
    batch = example_batch(source, BATCH, SEQ)
    if "input_ids" in batch and "decoder_input_ids" not in batch:
        batch["attention_mask"] = torch.empty(BATCH, 1, SEQ, SEQ, dtype=torch.bool, device="meta")
    with FlopCounterMode(display=False) as counter:
        loss = step(source, batch)
        forward = counter.get_total_flops()
        loss.backward()
    return forward, counter.get_total_flops()


@pytest.mark.parametrize("model", SPINE, ids=str)
def test_work_is_what_torch_counts(model: SpineModel, tmp_path: Any) -> None:
    source = model.shallow(tmp_path)
    found = account_fold(capture(source, batch=BATCH, seq=SEQ).fold)
    routed = model.experts.forward_flops(BATCH * SEQ) if model.experts else 0
    if model.experts:
        source.module.config._experts_implementation = UNCOUNTED
    forward, total = counted(source)
    assert found.forward_flops == forward + routed
    assert found.forward_flops + found.backward_flops == total + 3 * routed
