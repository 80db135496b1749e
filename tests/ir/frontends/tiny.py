"""The spine models, small enough to run: the same code and structure, with little widths and depths."""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import torch

from meshwright.ir.frontends import door
from meshwright.ir.frontends.torch_.sources.factory import TorchSource, load_factory
from meshwright.ir.frontends.torch_.sources.hf_config import load_hf

ROOT = Path(__file__).resolve().parents[3]
CONFIGS = ROOT / "examples" / "configs"
EXAMPLES = ROOT / "examples"

SMALL: Mapping[str, dict[str, Any]] = {
    "llama-3.1-8b": {
        "hidden_size": 32,
        "intermediate_size": 48,
        "num_attention_heads": 4,
        "num_key_value_heads": 2,
        "head_dim": 8,
        "vocab_size": 64,
    },
    "gpt2": {
        "n_embd": 32,
        "n_head": 4,
        "vocab_size": 64,
        "n_positions": 64,
        "attn_pdrop": 0,
        "embd_pdrop": 0,
        "resid_pdrop": 0,
    },
    "phi-3-mini": {
        "hidden_size": 32,
        "intermediate_size": 48,
        "num_attention_heads": 4,
        "num_key_value_heads": 4,
        "vocab_size": 64,
        "sliding_window": 5,
        "pad_token_id": 0,
    },
    "gemma-3-1b": {
        "hidden_size": 32,
        "intermediate_size": 48,
        "num_attention_heads": 4,
        "num_key_value_heads": 2,
        "head_dim": 8,
        "vocab_size": 64,
        "sliding_window": 5,
        "query_pre_attn_scalar": 8,
    },
    "mixtral-8x7b": {
        "hidden_size": 32,
        "intermediate_size": 48,
        "num_attention_heads": 4,
        "num_key_value_heads": 2,
        "vocab_size": 64,
        "num_local_experts": 4,
    },
    "deepseek-v3": {
        "hidden_size": 32,
        "intermediate_size": 48,
        "moe_intermediate_size": 16,
        "num_attention_heads": 4,
        "num_key_value_heads": 4,
        "q_lora_rank": 16,
        "kv_lora_rank": 16,
        "qk_nope_head_dim": 8,
        "qk_rope_head_dim": 4,
        "v_head_dim": 8,
        "n_routed_experts": 8,
        "n_group": 4,
        "topk_group": 2,
        "num_experts_per_tok": 2,
        "vocab_size": 64,
    },
    "t5-large": {"d_model": 32, "d_kv": 8, "d_ff": 48, "num_heads": 4, "vocab_size": 64, "dropout_rate": 0},
}
"""Overrides that make each configuration small. Dropout is off, so that two runs can be compared."""

DEPTHS = ("num_hidden_layers", "n_layer", "num_layers", "num_decoder_layers")

OWN: Mapping[str, str] = {
    "llama": "llama.py:tiny",
    "unet": "unet.py:tiny",
    "lora": "lora_llama.py:tiny",
    "shape": "tiny_decoder.toml",
}


def write_config(folder: Path, name: str, layers: int | None = None, **changes: Any) -> Path:
    """A configuration of `examples`, made small."""
    settings = json.loads((CONFIGS / name / "config.json").read_text()) | SMALL[name] | changes
    if layers is not None:
        settings |= {key: layers for key in DEPTHS if key in settings}
    folder.mkdir(parents=True, exist_ok=True)
    (folder / "config.json").write_text(json.dumps(settings))
    return folder


def small(
    name: str, folder: Path, layers: int | None = None, dtype: torch.dtype | None = torch.float64, **changes: Any
) -> TorchSource:
    """A spine model, small, on the meta device."""
    if name in OWN:
        return door.load_model(str(EXAMPLES / OWN[name]))
    return load_hf(write_config(folder, name, layers, **changes), dtype=dtype)


def with_values(source: TorchSource, dtype: torch.dtype = torch.float64) -> TorchSource:
    """The model with numbers in it: parameters drawn, buffers computed anew by the model's own code."""
    module = source.module
    generator = torch.Generator().manual_seed(0)
    rotary = [m for m in module.modules() if hasattr(m, "rope_type")]
    module.to_empty(device="cpu")
    for path, parameter in module.named_parameters():
        drawn = torch.randn(parameter.shape, generator=generator, dtype=torch.float64)
        with torch.no_grad():
            parameter.copy_(drawn * 0.2 + (1 if "norm" in path and "bias" not in path else 0))
    for path, buffer in module.named_buffers():
        buffer.fill_(1 if path.endswith(("running_var", "embed_scale")) else 0)
    for one in rotary:
        _rotate(one)
    return TorchSource(module.to(dtype), source.hooks, source.place, source.config)


def _rotate(module: Any) -> None:
    """Inverse frequencies, as a rotary module would compute them; any values do, as long as both runs use the same."""
    for _, buffer in module.named_buffers():
        buffer.copy_(10000.0 ** (-torch.arange(buffer.numel(), dtype=torch.float64) / buffer.numel()))


def batch_of(source: TorchSource, batch: int, seq: int, vocab: int = 64) -> Any:
    """A batch with values."""
    assert source.hooks.example_inputs is not None
    torch.manual_seed(0)
    made = source.hooks.example_inputs(batch, seq)
    generator = torch.Generator().manual_seed(1)
    return {
        name: t.double()
        if t.is_floating_point()
        else torch.randint(0, 4 if "image" in made else vocab, t.shape, generator=generator)
        for name, t in made.items()
    }


Factory = Callable[[], torch.nn.Module]

__all__ = ["CONFIGS", "EXAMPLES", "OWN", "SMALL", "batch_of", "load_factory", "small", "with_values", "write_config"]
