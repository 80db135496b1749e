"""Saved tensors of the spine models: `saved(eager, cpu)` per block against what torch really keeps.

Each model, tiny, runs one training step on the CPU in fp32. `saved_tensors_hooks` show every tensor that autograd
keeps; it is booked on the block whose forward pass is running, or on the glue between blocks. On both sides a block counts
every storage once, parameters and buffers never; a storage that several blocks keep (tables of positions, the result of
the block before) counts in each of them.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor, nn

from meshwright.ir.fold import Fold
from meshwright.ir.frontends.capture import capture
from meshwright.ir.frontends.contract import Source
from meshwright.ir.saved import saved_bytes
from tests.e2e.spine import BATCH, SEQ, SPINE, SpineModel, step

GLUE = ""


def with_values(source: Source, folder: Path) -> Source:
    """The model with numbers in it: made anew by transformers, or filled in where it is ours."""
    if (folder / "config.json").exists():
        from transformers import AutoConfig, AutoModelForCausalLM, AutoModelForSeq2SeqLM

        config = AutoConfig.from_pretrained(folder, use_cache=False)
        config._experts_implementation = source.module.config._experts_implementation
        auto = AutoModelForSeq2SeqLM if config.is_encoder_decoder else AutoModelForCausalLM
        module: nn.Module = auto.from_config(config, dtype=torch.float32)
    else:
        module = source.module.float().to_empty(device="cpu")
        for tensor in module.state_dict().values():
            tensor.copy_(torch.rand(tensor.shape))
    return Source(module, source.hooks, source.place)


def batch_of(source: Source) -> dict[str, Tensor]:
    assert source.hooks.example_inputs is not None
    batch: dict[str, Tensor] = source.hooks.example_inputs(BATCH, SEQ)
    return batch


@contextmanager
def kept_by(module: nn.Module, blocks: set[str]) -> Iterator[dict[str, int]]:
    """Bytes of what autograd keeps, by the block that runs."""
    found: dict[str, int] = defaultdict(int)
    own = {tensor.untyped_storage().data_ptr() for tensor in (*module.parameters(), *module.buffers())}
    seen: set[tuple[str, int]] = set()
    alive: list[Tensor] = []
    running = [GLUE]

    def pack(tensor: Tensor) -> Tensor:
        storage = tensor.untyped_storage()
        if storage.data_ptr() not in own and (running[-1], storage.data_ptr()) not in seen:
            seen.add((running[-1], storage.data_ptr()))
            alive.append(tensor)
            found[running[-1]] += storage.nbytes()
        return tensor

    handles = []
    for path in blocks:
        block = module.get_submodule(path)
        handles.append(block.register_forward_pre_hook(lambda *_, path=path: running.append(path)))
        handles.append(block.register_forward_hook(lambda *_: running.pop() and None))
    try:
        with torch.autograd.graph.saved_tensors_hooks(pack, lambda tensor: tensor):
            yield found
    finally:
        for handle in handles:
            handle.remove()


def predicted(fold: Fold) -> dict[str, int]:
    found: dict[str, int] = defaultdict(int)
    for call in fold.calls():
        found[call.path] += saved_bytes(call.body.graph, "eager", "cpu")
    return found


@pytest.mark.parametrize("model", [m for m in SPINE if "0b" not in m.name and "5b" not in m.name], ids=str)
def test_blocks_keep_what_torch_keeps(model: SpineModel, tmp_path: Any) -> None:
    source = model.tiny(tmp_path)
    source = with_values(source, tmp_path) if False else source
    expected = predicted(capture(source, batch=BATCH, seq=SEQ).fold)
    real = with_values(source, tmp_path)
    with kept_by(real.module, set(expected) - {GLUE}) as found:
        step(real, batch_of(real))
    print(model.name, {p: (expected[p], found[p], round(expected[p] / max(found[p], 1) - 1, 4)) for p in expected})
    assert expected == pytest.approx(found, rel=0.01)
