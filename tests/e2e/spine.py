"""The spine models: the table that the end-to-end tests go through.

Each model comes in three sizes. *Real*: what a person would give on the command line. *Shallow*: real widths, few
blocks, so that running it on the meta device is quick. *Tiny*: the same structure small enough to run on a CPU,
dropout off. Numbers in the table come from outside (papers, published checkpoints) or from arithmetic that is written
beside them, never from a run.
"""

from __future__ import annotations

import inspect
import json
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from typing import Any

from torch import Tensor

from meshwright.ir.frontends.door import capture, load_model
from meshwright.ir.frontends.folding.captured import Captured
from meshwright.ir.frontends.torch_.sources.dtypes import WORKLOAD_DTYPES
from meshwright.ir.frontends.torch_.sources.factory import TorchSource
from meshwright.ir.frontends.torch_.sources.hf_config import load_hf
from tests.ir.frontends.tiny import SMALL

EXAMPLES = Path(__file__).resolve().parents[2] / "examples"
CONFIGS = EXAMPLES / "configs"

BATCH, SEQ = 2, 64
"""Of every capture and run. Also the side of the U-Net's images, which four poolings halve to 4."""

Load = Callable[[Path], TorchSource]
Changes = Mapping[str, Any]


@dataclass(frozen=True, slots=True, kw_only=True)
class Experts:
    """The shape of the routed experts of one block, and how many blocks of the shallow model have them."""

    hidden: int
    ffn: int
    topk: int
    blocks: int

    def forward_flops(self, tokens: int) -> int:
        """Gate, up and down projection for each of a token's experts; two per multiply-add."""
        return self.blocks * tokens * self.topk * 3 * 2 * self.hidden * self.ffn


@dataclass(frozen=True, slots=True, kw_only=True)
class SpineModel:
    """One row of the table. `stacks` are the repeated segments in running order: (blocks in the period, repeats)."""

    name: str
    reference: str
    parameters: int
    stacks: tuple[tuple[int, int], ...]
    shallow: Load
    tiny: Load
    trained: int | None = None
    """How many of the parameters are trained, where not all are."""
    experts: Experts | None = None
    split_by: str = ""
    """The kind of operator that forbids micro-batches, where one does."""

    def __str__(self) -> str:
        return self.name


# How the sizes are made ----------------------------------------------------------------------------------------------


def changed(config: str, changes: Changes, dtype: str) -> Load:
    """A configuration of `examples` with some settings changed."""

    def load(folder: Path) -> TorchSource:
        settings = json.loads((CONFIGS / config / "config.json").read_text()) | changes
        (folder / "config.json").write_text(json.dumps(settings))
        return load_hf(folder, dtype=WORKLOAD_DTYPES[dtype])

    return load


def hf(config: str, shallow: Changes, tiny: Changes) -> dict[str, Any]:
    return {
        "reference": str(CONFIGS / config),
        "shallow": changed(config, shallow, "bf16"),
        "tiny": changed(config, tiny, "fp32"),
    }


def own(file: str, factory: str, stack: str = "") -> dict[str, Any]:
    """A model of our own; shallow: the first two blocks of its stack."""

    def shallow(folder: Path) -> TorchSource:
        source = load_model(f"{EXAMPLES / file}:{factory}")
        if stack:
            del source.module.get_submodule(stack)[2:]
        return source

    return {
        "reference": f"{EXAMPLES / file}:{factory}",
        "shallow": shallow,
        "tiny": lambda folder: load_model(f"{EXAMPLES / file}:tiny"),
    }


LLAMA_TINY: Changes = {
    "hidden_size": 32,
    "intermediate_size": 48,
    "num_hidden_layers": 3,
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
    "head_dim": 8,
    "vocab_size": 64,
}


def llama(name: str, reference: Mapping[str, Any], *, h: int, ffn: int, layers: int, heads: int) -> SpineModel:
    """Untied embedding and head, 8 key-value heads, no bias; a norm before attention, feed-forward and head."""
    block = 2 * h * h + 2 * h * (h // heads * 8) + 3 * h * ffn + 2 * h
    return SpineModel(name=name, parameters=2 * 128_256 * h + layers * block + h, stacks=((1, layers),), **reference)


LLAMA_SIZES = {
    "8b": {"h": 4096, "ffn": 14_336, "layers": 32, "heads": 32},
    "70b": {"h": 8192, "ffn": 28_672, "layers": 80, "heads": 64},
    "405b": {"h": 16_384, "ffn": 53_248, "layers": 126, "heads": 128},
}
"""Table 3 of arXiv 2407.21783."""

SPINE: tuple[SpineModel, ...] = (
    *(
        llama(f"own-llama-{size}", own("llama.py", f"llama_{size}", "blocks"), **shape)
        for size, shape in LLAMA_SIZES.items()
    ),
    *(
        llama(f"hf-llama-{size}", hf(f"llama-3.1-{size}", {"num_hidden_layers": 2}, LLAMA_TINY), **shape)
        for size, shape in LLAMA_SIZES.items()
    ),
    SpineModel(
        name="gpt2",
        parameters=124_439_808,  # published: 124M
        stacks=((1, 12),),
        **hf(
            "gpt2",
            {"n_layer": 2},
            {"n_embd": 32, "n_head": 4, "n_layer": 3, "vocab_size": 64, "n_positions": 64}
            | dict.fromkeys(("attn_pdrop", "embd_pdrop", "resid_pdrop"), 0),
        ),
    ),
    SpineModel(
        name="phi-3-mini",
        parameters=3_821_079_552,  # the published checkpoint
        stacks=((1, 32),),
        **hf(
            "phi-3-mini",
            {"num_hidden_layers": 2},
            LLAMA_TINY | {"num_key_value_heads": 4, "sliding_window": 5, "pad_token_id": 0},
        ),
    ),
    SpineModel(
        name="gemma-3-1b",
        parameters=999_885_952,  # the published checkpoint
        stacks=((6, 4), (1, 2)),  # five local layers and a global one; the last two are local
        **hf(
            "gemma-3-1b",
            {"num_hidden_layers": 6},
            LLAMA_TINY | {"num_hidden_layers": 8, "sliding_window": 5, "query_pre_attn_scalar": 8},
        ),
    ),
    SpineModel(
        name="gemma-3-27b",
        parameters=27_009_346_304,  # the published checkpoint without its vision tower and projector
        stacks=((6, 10), (1, 2)),
        **hf(
            "gemma-3-27b",
            {"num_hidden_layers": 6},
            LLAMA_TINY | {"num_hidden_layers": 8, "sliding_window": 5, "query_pre_attn_scalar": 8},
        ),
    ),
    SpineModel(
        name="mixtral-8x7b",
        parameters=46_702_792_704,  # the published checkpoint
        stacks=((1, 32),),
        experts=Experts(hidden=4096, ffn=14_336, topk=2, blocks=2),
        **hf(
            "mixtral-8x7b",
            {"num_hidden_layers": 2},
            {key: value for key, value in LLAMA_TINY.items() if key != "head_dim"} | {"num_local_experts": 4},
        ),
    ),
    SpineModel(
        name="deepseek-v3",
        # The published 671,026,419,200 (without the extra prediction layer) less 58 x 256 balancing biases of the
        # routers, which are buffers: they are not trained by gradients.
        parameters=671_026_419_200 - 58 * 256,
        stacks=((1, 3), (1, 58)),
        experts=Experts(hidden=7168, ffn=2048, topk=8, blocks=1),
        **hf(
            "deepseek-v3",
            {"num_hidden_layers": 4},
            SMALL["deepseek-v3"] | {"num_hidden_layers": 6},
        ),
    ),
    SpineModel(
        name="t5-large",
        parameters=737_668_096,  # the published checkpoint
        stacks=((1, 1), (1, 23), (1, 1), (1, 23)),  # the first block of each stack makes the bias that all share
        **hf(
            "t5-large",
            {"num_layers": 2, "num_decoder_layers": 2},
            {
                "d_model": 32,
                "d_kv": 8,
                "d_ff": 48,
                "num_heads": 4,
                "num_layers": 3,
                "num_decoder_layers": 4,
                "vocab_size": 64,
                "dropout_rate": 0,
            },
        ),
    ),
    SpineModel(
        name="unet",
        # Two 3x3 convolutions and two norms per block, 2x2 up-convolutions with bias, a 1x1 head with bias.
        parameters=sum(
            9 * (a * w + w * w) + 4 * w for a, w in ((3, 64), (64, 128), (128, 256), (256, 512), (512, 1024))
        )
        + sum((4 * 2 * w * w + w) + (9 * (2 * w * w + w * w) + 4 * w) for w in (512, 256, 128, 64))
        + (64 * 21 + 21),
        stacks=(),
        split_by="batch_norm",
        **own("unet.py", "small"),
    ),
    SpineModel(
        name="lora-llama-8b",
        parameters=8_030_261_248 + 32 * 16 * ((4096 + 4096) + (4096 + 1024)),
        trained=32 * 16 * ((4096 + 4096) + (4096 + 1024)),  # rank 16 on every q_proj and v_proj
        stacks=((1, 1), (1, 31)),  # nothing before the first adapter is trained, so the first block keeps less
        **own("lora_llama.py", "lora_8b", "blocks"),
    ),
)

BY_NAME = {model.name: model for model in SPINE}

STRUCTURES = tuple(model for model in SPINE if not model.name.endswith(("-70b", "-405b", "-27b")))
"""One of each: sizes of a family differ in numbers only, and their tiny models not at all."""


# What tests share ----------------------------------------------------------------------------------------------------


@cache
def captured(model: SpineModel) -> Captured:
    """The real model, captured once for all tests."""
    return capture(load_model(model.reference, dtype="bf16"), batch=BATCH, seq=SEQ)


def step(source: TorchSource, batch: Mapping[str, Tensor]) -> Tensor:
    """One training step as a person would write it: the model on its inputs, the loss on what comes out."""
    assert source.hooks.loss is not None
    module = source.module.train()
    accepted = inspect.signature(module.forward).parameters
    return source.hooks.loss(module(**{name: batch[name] for name in batch if name in accepted}), batch)
