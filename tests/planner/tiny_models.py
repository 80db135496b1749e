"""Tiny models of many architectures, whose plans are made and emitted: configurations of transformers, and files."""

from __future__ import annotations

import json
from pathlib import Path

from tests.planner.solved import TINY

SEQ = 64

LLAMA_LIKE = {
    "hidden_size": 64,
    "intermediate_size": 128,
    "num_hidden_layers": 4,
    "num_attention_heads": 4,
    "num_key_value_heads": 4,
    "vocab_size": 256,
    "max_position_embeddings": 256,
}
EXPERTS = {"num_experts_per_tok": 2, "num_key_value_heads": 2}

CONFIGS: dict[str, dict[str, object]] = {
    "GptOssForCausalLM": LLAMA_LIKE
    | EXPERTS
    | {
        "model_type": "gpt_oss",
        "num_local_experts": 4,
        "head_dim": 16,
        "sliding_window": 32,
        "layer_types": ["sliding_attention", "full_attention"] * 2,
    },
    "OlmoeForCausalLM": LLAMA_LIKE | EXPERTS | {"model_type": "olmoe", "num_experts": 4},
    "MixtralForCausalLM": LLAMA_LIKE | EXPERTS | {"model_type": "mixtral", "num_local_experts": 4},
    "Olmo2ForCausalLM": LLAMA_LIKE | {"model_type": "olmo2"},
    "GemmaForCausalLM": LLAMA_LIKE | {"model_type": "gemma", "head_dim": 16},
    "BloomForCausalLM": {
        "model_type": "bloom",
        "hidden_size": 64,
        "n_layer": 4,
        "n_head": 4,
        "vocab_size": 256,
        "hidden_dropout": 0.0,
        "attention_dropout": 0.0,
    },
    "GPTJForCausalLM": {
        "model_type": "gptj",
        "n_embd": 64,
        "n_layer": 4,
        "n_head": 4,
        "rotary_dim": 8,
        "n_positions": 256,
        "vocab_size": 257,
        "n_inner": 128,
    },
    "T5ForConditionalGeneration": {
        "model_type": "t5",
        "d_model": 64,
        "d_kv": 16,
        "d_ff": 128,
        "num_layers": 2,
        "num_decoder_layers": 2,
        "num_heads": 4,
        "vocab_size": 256,
        "dropout_rate": 0.0,
        "decoder_start_token_id": 0,
        "pad_token_id": 0,
    },
}

CLASSIFIER = """
import torch
import torch.nn.functional as F
from torch import nn


class Model(nn.Module):
    def __init__(self):
        super().__init__()
        self.embed = nn.Embedding(64, 32)
        blocks = (nn.Sequential(nn.LayerNorm(32), nn.Linear(32, 64), nn.GELU(), nn.Linear(64, 32)) for _ in range(4))
        self.blocks = nn.ModuleList(blocks)
        self.head = nn.Linear(32, 2)

    def forward(self, tokens):
        x = self.embed(tokens)
        for block in self.blocks:
            x = x + block(x)
        return self.head(x.mean(1))


def model():
    return Model()


def example_inputs(batch, seq):
    return {"tokens": torch.randint(0, 64, (batch, seq)), "label": torch.randint(0, 2, (batch,))}


def loss(outputs, batch):
    return F.cross_entropy(outputs.float(), batch["label"])


dims = {"tokens": ("b", "s"), "label": ("b",)}
"""
"""Its head has two classes: four ranks have no even shares of it."""

ENCODER = """
import torch
import torch.nn.functional as F
from torch import nn


class Model(nn.Module):
    def __init__(self):
        super().__init__()
        self.embed = nn.Embedding(64, 32)
        layers = (nn.TransformerEncoderLayer(32, 4, 64, dropout=0.0, batch_first=True) for _ in range(2))
        self.layers = nn.ModuleList(layers)
        self.head = nn.Linear(32, 64)

    def forward(self, tokens):
        x = self.embed(tokens)
        for layer in self.layers:
            x = layer(x)
        return self.head(x)


def model():
    return Model()


def example_inputs(batch, seq):
    text = torch.randint(0, 64, (batch, seq + 1))
    return {"tokens": text[:, :-1], "labels": text[:, 1:]}


def loss(outputs, batch):
    return F.cross_entropy(outputs.flatten(0, 1).float(), batch["labels"].flatten())


dims = {"tokens": ("b", "s"), "labels": ("b", "s")}
"""


def written(folder: Path) -> dict[str, str]:
    """References of all of them, by name."""
    found = {"llama": TINY}
    for name, config in CONFIGS.items():
        (folder / name).mkdir()
        (folder / name / "config.json").write_text(json.dumps(config | {"architectures": [name]}), encoding="utf-8")
        found[name] = str(folder / name)
    for name, text in (("classifier", CLASSIFIER), ("encoder", ENCODER)):
        (folder / f"{name}.py").write_text(text, encoding="utf-8")
        found[name] = f"{folder / name}.py:model"
    return found
