"""Saved tensors of the spine models: `saved(eager, cpu)` per block against what torch really keeps.

Each model, tiny, runs one training step on the CPU in fp32. `saved_tensors_hooks` shows every tensor that autograd
keeps; it is booked on the block whose forward pass is running, or on the glue between blocks. On both sides a block
counts every storage once, parameters and buffers never; a storage that several blocks keep (tables of positions, the
result of the block before) counts in each of them.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable, Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor, nn
from transformers import AutoConfig, AutoModelForCausalLM, AutoModelForSeq2SeqLM

from meshwright.ir.analysis.saved import saved_bytes
from meshwright.ir.frontends.door import capture
from meshwright.ir.frontends.torch_.sources.factory import Hooks, TorchSource
from meshwright.ir.graph.fold import Fold
from tests.e2e.spine import BATCH, SEQ, STRUCTURES, SpineModel, step

GLUE = ""
TOLERANCE = 0.01


@pytest.mark.parametrize("model", STRUCTURES, ids=str)
def test_blocks_keep_what_torch_keeps(model: SpineModel, tmp_path: Path) -> None:
    source = model.tiny(tmp_path)
    predicted = by_block(capture(source, batch=BATCH, seq=SEQ).fold)
    real = with_values(source, tmp_path)
    assert real.hooks.example_inputs is not None
    with kept(real.module, blocks=[path for path in predicted if path != GLUE]) as seen:
        step(real, real.hooks.example_inputs(BATCH, SEQ))
    assert predicted == pytest.approx(seen, rel=TOLERANCE)


class ByHand(nn.Module):
    """Attention whose author writes the mask, rather than `is_causal`."""

    def __init__(self) -> None:
        super().__init__()
        self.project = nn.Linear(16, 3 * 16)

    def forward(self, x: Tensor) -> Tensor:
        q, k, v = self.project(x).unflatten(-1, (3, 4, 4)).permute(2, 0, 3, 1, 4)
        seen = torch.ones(SEQ, SEQ, dtype=torch.bool, device=x.device).tril()
        return F.scaled_dot_product_attention(q, k, v, attn_mask=seen)


def test_a_mask_that_the_model_writes_is_kept() -> None:
    hooks = Hooks(lambda batch, seq: {"x": torch.zeros(batch, seq, 16)}, lambda outputs, batch: outputs.sum())
    fold = capture(TorchSource(ByHand().to("meta"), hooks, "ByHand"), batch=BATCH, seq=SEQ).fold
    real = TorchSource(ByHand(), hooks, "ByHand")
    with kept(real.module, blocks=[]) as seen:
        step(real, {"x": torch.zeros(BATCH, SEQ, 16)})
    assert by_block(fold) == pytest.approx(seen, rel=TOLERANCE)


def by_block(fold: Fold) -> dict[str, int]:
    """What each block is predicted to keep, by its path; all glue together."""
    found: dict[str, int] = defaultdict(int)
    for call in fold.calls():
        found[call.path] += saved_bytes(call.body.graph, "eager", "cpu")
    return dict(found)


@contextmanager
def kept(module: nn.Module, blocks: Iterable[str]) -> Iterator[Mapping[str, int]]:
    """Bytes that autograd keeps inside this context, by the block that runs."""
    found: dict[str, int] = defaultdict(int)
    own = {tensor.untyped_storage().data_ptr() for tensor in (*module.parameters(), *module.buffers())}
    held: dict[tuple[str, int], Tensor] = {}
    """Tensors by block and storage; holding them keeps their addresses from being used again."""
    running = [GLUE]

    def pack(tensor: Tensor) -> Tensor:
        storage = tensor.untyped_storage()
        key = running[-1], storage.data_ptr()
        if storage.data_ptr() not in own and key not in held:
            held[key] = tensor
            found[running[-1]] += storage.nbytes()
        return tensor

    def enter(path: str) -> None:
        running.append(path)

    def leave(*_: object) -> None:
        running.pop()

    handles = []
    for path in blocks:
        block = module.get_submodule(path)
        handles.append(block.register_forward_pre_hook(lambda *_, path=path: enter(path)))
        handles.append(block.register_forward_hook(leave))
    with torch.autograd.graph.saved_tensors_hooks(pack, lambda tensor: tensor):
        yield found
    for handle in handles:
        handle.remove()


def with_values(source: TorchSource, folder: Path) -> TorchSource:
    """The model with numbers in it: made by transformers from the configuration in the folder, or ours filled in."""
    torch.manual_seed(0)
    if (folder / "config.json").exists():
        config = AutoConfig.from_pretrained(folder, use_cache=False)
        config._experts_implementation = source.module.config._experts_implementation
        auto = AutoModelForSeq2SeqLM if config.is_encoder_decoder else AutoModelForCausalLM
        return TorchSource(auto.from_config(config, dtype=torch.float32), source.hooks, source.place)
    module = source.module.float().to_empty(device="cpu")
    for tensor in module.state_dict().values():
        tensor.copy_(torch.rand(tensor.shape))
    return TorchSource(module, source.hooks, source.place)
