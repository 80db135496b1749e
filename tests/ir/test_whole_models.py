"""Whole tiny models: what a trace says they keep and compute, and what torch does when it runs them."""

from __future__ import annotations

import copy
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor, nn
from torch.utils.flop_counter import FlopCounterMode

from meshwright.ir.analysis.saved import saved_bytes
from meshwright.ir.frontends.torch_.operators.moe import use_with_transformers
from meshwright.ir.frontends.torch_.sources.factory import Hooks, TorchSource, load_factory
from meshwright.ir.frontends.torch_.tracing.export import Step, trace
from meshwright.ir.graph.graph import Graph
from meshwright.ir.rules import rule_of

EXAMPLES = Path(__file__).parents[2] / "examples"
BATCH, SEQ = 2, 32
SMALL = {"hidden_size": 64, "num_hidden_layers": 2, "num_attention_heads": 4, "vocab_size": 256, "use_cache": False}

ATTENTION = {"q_lora_rank": 32, "kv_lora_rank": 16, "qk_rope_head_dim": 8, "qk_nope_head_dim": 16, "v_head_dim": 16}
EXPERTS = {"n_routed_experts": 8, "n_group": 2, "topk_group": 1, "num_experts_per_tok": 2, "first_k_dense_replace": 1}

CONFIGS: dict[str, tuple[str, dict[str, Any]]] = {
    "LlamaForCausalLM": ("LlamaConfig", {**SMALL, "intermediate_size": 128, "num_key_value_heads": 4}),
    "GPT2LMHeadModel": (
        "GPT2Config",
        {"n_embd": 64, "n_layer": 2, "n_head": 4, "vocab_size": 256, "use_cache": False, "n_positions": 64}
        | {"bos_token_id": 0, "eos_token_id": 0},
    ),
    "T5ForConditionalGeneration": (
        "T5Config",
        {"d_model": 64, "d_kv": 16, "d_ff": 128, "num_layers": 2, "num_heads": 4, "vocab_size": 256},
    ),
    "DeepseekV3ForCausalLM": (
        "DeepseekV3Config",
        {**SMALL, **ATTENTION, **EXPERTS, "intermediate_size": 128, "moe_intermediate_size": 32}
        | {"num_key_value_heads": 4},
    ),
}


def inputs(batch: int, seq: int) -> dict[str, Tensor]:
    return {
        "input_ids": torch.zeros(batch, seq, dtype=torch.long),
        "targets": torch.zeros(batch, seq, dtype=torch.long),
    }


def encoder_decoder_inputs(batch: int, seq: int) -> dict[str, Tensor]:
    return inputs(batch, seq) | {"decoder_input_ids": torch.zeros(batch, seq, dtype=torch.long)}


def loss(outputs: Any, batch: dict[str, Tensor]) -> Tensor:
    return F.cross_entropy(outputs.logits.float().flatten(0, 1), batch["targets"].flatten())


def hugging_face(name: str) -> TorchSource:
    transformers = pytest.importorskip("transformers")
    config, settings = CONFIGS[name]
    model = getattr(transformers, name)(getattr(transformers, config)(**settings))
    model.config.use_cache = False
    implementation = use_with_transformers()
    for module in model.modules():
        if hasattr(module, "config"):
            module.config._experts_implementation = implementation
    make = encoder_decoder_inputs if name.startswith("T5") else inputs
    return TorchSource(model, Hooks(example_inputs=make, loss=loss), name)


def example(reference: str) -> TorchSource:
    """An example model, with weights."""
    source = load_factory(f"{EXAMPLES}/{reference}")
    model = source.module.to_empty(device="cpu")
    for tensor in (*model.parameters(), *model.buffers()):
        torch.nn.init.uniform_(tensor.data) if tensor.is_floating_point() else tensor.data.zero_()
    return replace(source, module=model)


def batch_of(source: TorchSource) -> dict[str, Tensor]:
    assert source.hooks.example_inputs is not None
    return dict(source.hooks.example_inputs(BATCH, SEQ))


def kept_by_hooks(model: nn.Module, source: TorchSource, batch: Any) -> int:
    """Bytes of unique storages, parameters and buffers excluded."""
    ours = {tensor.untyped_storage().data_ptr() for tensor in (*model.parameters(), *model.buffers())}
    storages: dict[int, int] = {}

    def pack(x: Tensor) -> Tensor:
        if x.untyped_storage().data_ptr() not in ours:
            storages[x.untyped_storage().data_ptr()] = x.untyped_storage().nbytes()
        return x

    with torch.autograd.graph.saved_tensors_hooks(pack, lambda x: x):
        result = Step(replace(source, module=model))(batch)
        del result
    return sum(storages.values())


MODELS: dict[str, Callable[[], TorchSource]] = {
    **{name: lambda name=name: hugging_face(name) for name in CONFIGS},
    **{name: lambda name=name: example(name) for name in ("unet.py:tiny", "llama.py:tiny", "lora_llama.py:tiny")},
}


def traced(source: TorchSource, batch: dict[str, Tensor]) -> tuple[Graph, TorchSource, dict[str, Tensor]]:
    """The graph, and the model and batch on meta that it was traced with."""
    on_meta = {key: torch.empty_like(value, device="meta") for key, value in batch.items()}
    source.module.train()
    bare = replace(source, module=copy.deepcopy(source.module).to("meta"))
    return trace(bare, on_meta).graph, bare, on_meta


@pytest.mark.parametrize("name", MODELS)
@pytest.mark.filterwarnings("ignore")
def test_a_trace_keeps_what_torch_keeps(name: str) -> None:
    source = MODELS[name]()
    batch = batch_of(source)
    graph, _, _ = traced(source, batch)
    assert saved_bytes(graph, "eager", "cpu") == pytest.approx(kept_by_hooks(source.module, source, batch), rel=0.01)


def work(graph: Graph, *, backward: bool) -> float:
    total = 0.0
    for op in graph.ops:
        wanted = [slot for slot, value in enumerate(op.operands) if value in graph.differentiable]
        total += rule_of(op, graph.types).flops(needs=wanted if backward else None)
    return total


@pytest.mark.parametrize("name", ["unet.py:tiny", "llama.py:tiny", "lora_llama.py:tiny", "T5ForConditionalGeneration"])
@pytest.mark.filterwarnings("ignore")
def test_a_trace_computes_what_torch_counts(name: str) -> None:
    """Exactly, forward and backward; frozen weights cost no gradient."""
    source = MODELS[name]()
    graph, bare, on_meta = traced(source, batch_of(source))
    with FlopCounterMode(display=False) as forward:
        result = Step(bare)(on_meta)
    with FlopCounterMode(display=False) as backward:
        result.backward()
    counted = forward.get_total_flops(), backward.get_total_flops()
    assert (work(graph, backward=False), work(graph, backward=True)) == counted
