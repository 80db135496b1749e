"""A model that has no file of its own, as one: `model.py`, which code that is written for the model loads like a user's
file (`meshwright.ir.frontends.contract`). It builds the very modules that the model was traced from, and stands beside
a copy of its configuration.

    file.py:factory              the user's file, nothing is written
    config.json                  model.py and config.json: transformers' classes, unmodified
    shape.toml                   refused: the reference decoder is ours, and code that people keep imports none of it
"""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import Any

from meshwright.ir.errors import EmissionModel
from meshwright.ir.frontends.torch_.sources.factory import TorchSource
from meshwright.ir.frontends.torch_.sources.language import TARGETS
from meshwright.ir.quoting import literal

MODEL, CONFIG = "model.py", "config.json"

HUGGING_FACE = '''\
"""{model} of {config}, as transformers has it, and how it is trained: to tell the next token."""

from functools import cache
from pathlib import Path
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor, nn
from transformers import {imported}

VOCABULARY = {vocabulary}


def model() -> {model}:
    """The model of the configuration, with random weights."""
    config = {settings}.from_json_file(Path(__file__).resolve().parent / "{config}")
    config.use_cache = False
    return {model}(config)


def draw_weights(module: nn.Module) -> None:
    """Draw what a module holds itself, as transformers does."""
    whole()._init_weights(module)


@cache
def whole() -> {model}:
    """The model without weights."""
    with torch.device("meta"):
        return model()


def example_inputs(batch: int, seq: int) -> dict[str, Tensor]:
    """One batch: tokens, and for every position the token that follows it (-100: no target)."""
    text = torch.randint(0, VOCABULARY, (batch, seq + 1))
    return {{{entries}}}


def loss(outputs: Any, batch: dict[str, Tensor]) -> Tensor:
    """Mean cross entropy over the positions that have a target."""
    return F.cross_entropy(outputs.logits.flatten(0, 1).float(), batch["{targets}"].flatten(), ignore_index=-100)
'''


@dataclass(frozen=True, slots=True, kw_only=True)
class ModelFile:
    """The file that has a model's factory: the user's, or one that is written, with what it needs `beside` it.

    - A `file` that is written is a name in the folder of the script; a user's is a whole path.
    """

    file: Path
    factory: str
    beside: tuple[tuple[str, str], ...] = ()
    draws: bool = False
    """Whether it has `draw_weights`."""


def model_file(source: TorchSource, reference: str) -> ModelFile:
    """The file of the model that a reference names. Raises `EmissionModel`."""
    file, colon, factory = reference.rpartition(":")
    if colon and file.endswith(".py"):
        return ModelFile(file=Path(file).resolve(), factory=factory)
    if Path(reference).is_dir() or reference.endswith(".json"):
        return _hugging_face(source)
    raise EmissionModel(
        place=reference,
        cause="it is numbers only, and has no factory",
        fix="write it as file.py:factory or as a Hugging Face config.json, and plan that",
    )


def _hugging_face(source: TorchSource) -> ModelFile:
    module: Any = source.module
    model, settings = type(module).__name__, type(module.config).__name__
    entries = [name for name in source.hooks.dims if name != TARGETS]
    text = HUGGING_FACE.format(
        model=model,
        settings=settings,
        imported=", ".join(sorted((model, settings))),
        config=CONFIG,
        vocabulary=f"{_words(module.config.get_text_config())}",
        entries=", ".join([*(f"{literal(name)}: text[:, :-1]" for name in entries), f'"{TARGETS}": text[:, 1:]']),
        targets=TARGETS,
    )
    return ModelFile(
        file=Path(MODEL),
        factory="model",
        beside=((MODEL, text), (CONFIG, Path(source.place).read_text())),
        draws=True,
    )


def _words(config: Any) -> int:
    """Tokens that a model takes, and tells: fewer than it has rows for, where some of these are padding."""
    sizes = {name: size for name, size in vars(config).items() if name.endswith("vocab_size") and size}
    return int(min({"vocab_size": config.vocab_size, **sizes}.values()))
