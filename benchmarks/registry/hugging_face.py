"""The architectures of the installed transformers, each once, by the first trainable head that it has.

    names()               every model type that an auto class has a head for, in the order of `HEADS`
    write(name, folder)   the model as users give it; raises `NotBuilt` if transformers itself cannot build it

Language models are given by a `config.json` of their defaults, if transformers runs that on sequences of tokens alone.
Others, and other heads, are given by a file with a factory, which takes the numbers and switches of the configuration
as arguments, so that it can be made small. What such a head takes is found by trying (`_TAKES`): the first batch that
its forward pass accepts, without values, and returns logits for. Nothing here needs weights or a network.
"""

from __future__ import annotations

import contextlib
import inspect
import json
import os
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import cache
from math import isfinite
from pathlib import Path
from typing import Any

from meshwright.ir.errors import ConfigValueBad
from meshwright.ir.frontends.torch_.sources.factory import TorchSource, example_batch
from meshwright.ir.frontends.torch_.sources.hf_config import load_hf
from meshwright.ir.frontends.torch_.tracing.export import Step
from meshwright.ir.frontends.torch_.tracing.stand_ins import without_values
from meshwright.ir.quoting import as_code

CONFIG, FILE, FACTORY = "config.json", "model.py", "build"
BATCH, SEQ = 2, 16
"""Of steps that are tried."""
SAID = (AssertionError, AttributeError, LookupError, TypeError, ValueError)
"""What code raises of what it is given."""


class NotBuilt(Exception):
    """Transformers cannot build it from its defaults."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Head:
    """A mapping of transformers from model types to classes with a head.

    - `translates`: whether it is for encoder-decoders, where a configuration alone gives the model; else None.
    """

    name: str
    mapping: str
    translates: bool | None = None
    configured: bool = False


HEADS = (
    Head(name="causal language model", mapping="CAUSAL_LM", translates=False, configured=True),
    Head(name="translation", mapping="SEQ_TO_SEQ_CAUSAL_LM", translates=True, configured=True),
    Head(name="masked language model", mapping="MASKED_LM", translates=False, configured=True),
    Head(name="sequence classification", mapping="SEQUENCE_CLASSIFICATION"),
    Head(name="token classification", mapping="TOKEN_CLASSIFICATION"),
    Head(name="image classification", mapping="IMAGE_CLASSIFICATION"),
    Head(name="audio classification", mapping="AUDIO_CLASSIFICATION"),
    Head(name="speech recognition", mapping="CTC"),
    Head(name="speech to text", mapping="SPEECH_SEQ_2_SEQ"),
    Head(name="video classification", mapping="VIDEO_CLASSIFICATION"),
    Head(name="image and text, on text alone", mapping="IMAGE_TEXT_TO_TEXT"),
)


def names() -> Mapping[str, str]:
    """Every model type, and the first mapping that has it."""
    auto = _auto()
    found: dict[str, str] = {}
    for head in HEADS:
        for name in getattr(auto, f"MODEL_FOR_{head.mapping}_MAPPING_NAMES"):
            found.setdefault(name, head.name)
    return found


def write(name: str, folder: Path) -> str:
    """Write a model into a folder, and return its reference."""
    config, why = _config(name), f"no auto class has a head for {name}"
    for head in HEADS:
        kind = _class(head, name, config)
        if kind is None:
            continue
        if head.configured and config.is_encoder_decoder != head.translates:
            continue
        for way in (_configured, _factory) if head.configured else (_factory,):
            try:
                return way(kind, config, head, folder)
            except Exception as error:  # noqa: BLE001 - whatever it is, transformers said it of its own defaults
                why = f"{type(error).__name__}: {error}".splitlines()[0][:200]
    raise NotBuilt(why)


@cache
def _auto() -> Any:
    os.environ.setdefault("HF_HUB_OFFLINE", "1")
    from transformers.models.auto import modeling_auto

    return modeling_auto


def _config(name: str) -> Any:
    from transformers.models.auto.configuration_auto import CONFIG_MAPPING

    _auto()
    try:
        return CONFIG_MAPPING[name]()
    except Exception as error:
        raise NotBuilt(f"{type(error).__name__}: {error}".splitlines()[0][:200]) from error


def _class(head: Head, name: str, config: Any) -> Any:
    """The class of a head, if this model type has one."""
    import transformers

    named = getattr(_auto(), f"MODEL_FOR_{head.mapping}_MAPPING_NAMES").get(name)
    kinds = [named] if isinstance(named, str) else list(named or ())
    found = [getattr(transformers, kind, None) for kind in kinds]
    return next((one for one in found if one is not None and one.config_class is type(config)), None)


# Language models ------------------------------------------------------------------------------------------------------


def _configured(kind: Any, config: Any, _head: Head, folder: Path) -> str:
    import torch

    told, file = _whole(config), folder / CONFIG
    with torch.device("meta"):
        kind(type(config).from_dict(dict(told)))
    file.write_text(json.dumps(told, indent=2) + "\n")
    try:
        _run(load_hf(file))
    except (ConfigValueBad, *SAID):
        file.unlink()
        raise
    return str(folder)


def _run(source: TorchSource) -> None:
    """Run a training step without values: what models raise of their own is no matter of plans."""
    batch = example_batch(source, BATCH, SEQ)
    source.module.train()
    with contextlib.suppress(RuntimeError), without_values():  # torch's, of values that code asks for
        Step(source)(batch)


def _whole(config: Any) -> dict[str, Any]:
    """All numbers of a configuration, if it can be read back from them; else those that are not its defaults."""
    told: dict[str, Any] = json.loads(config.to_json_string(use_diff=False))
    short: dict[str, Any] = json.loads(config.to_json_string(use_diff=True))
    try:
        type(config).from_dict(dict(told))
    except Exception:  # noqa: BLE001 - its checks refuse what it wrote itself
        return short
    return told


# Other heads ----------------------------------------------------------------------------------------------------------

TEXT = '''\
"""{head}: {kind} of transformers, with the numbers of its default configuration."""

import torch
import torch.nn.functional as F
from torch import Tensor
from transformers import {config}, {kind}


def build({parameters}) -> {kind}:
    return {kind}({config}({arguments}))


def example_inputs(batch: int, seq: int) -> dict[str, Tensor]:
    return {{{inputs}, "labels_": torch.randint(0, {classes}, ({labels}))}}


def loss(outputs, batch: dict[str, Tensor]) -> Tensor:
    logits = outputs.logits.float()
    return F.cross_entropy({logits}, batch["labels_"]{flat})
'''

WORDS = 256
"""Indices in a batch are below this: a twin has as many words as the batches of its model need."""
_TAKES = (
    '"input_ids": {tokens}',
    '"input_ids": {tokens}, "attention_mask": torch.ones(batch, seq, dtype=torch.long), "decoder_input_ids": {tokens}',
    '"pixel_values": torch.randn(batch, {channels}, {image}, {image})',
    '"pixel_values": torch.randn(batch, {frames}, {channels}, {image}, {image})',
    '"input_values": torch.randn(batch, 16000)',
    '"input_features": torch.randn(batch, {mels}, 3000)',
    '"input_features": torch.randn(batch, {mels}, 3000), "decoder_input_ids": {tokens}',
    '"input_features": torch.randn(batch, 128, {mels})',
    '"input_features": torch.randn(batch, 128, {mels}), "decoder_input_ids": {tokens}',
    '"input_values": torch.randn(batch, {length}, {mels})',
    '"input_values": torch.randn(batch, 16000), "decoder_input_ids": {tokens}',
    '"input_ids": {tokens}, "mm_token_type_ids": torch.zeros(batch, seq, dtype=torch.long)',
)
"""Entries of a batch; tried in this order."""


def _factory(kind: Any, config: Any, head: Head, folder: Path) -> str:
    import torch

    batch, seq = BATCH, SEQ
    with torch.device("meta"):
        model = kind(config)
    takes, logits = _taken(model, config, batch, seq)
    *around, classes = logits
    channels_first = len(logits) == 4
    if channels_first:
        around, classes = [logits[0], *logits[2:]], logits[1]
    labels = ", ".join(["batch", *("seq" if extent == seq else str(extent) for extent in around[1:])])
    flat = len(around) > 1 and not channels_first
    parameters = _numbers(config)
    text = TEXT.format(
        head=head.name.capitalize(),
        kind=kind.__name__,
        config=type(config).__name__,
        parameters=", ".join(f"{name}={as_code(value)}" for name, value in parameters.items()),
        arguments=", ".join(f"{name}={name}" for name in parameters),
        inputs=takes,
        classes=min(classes, WORDS),
        labels=f"{labels},",
        logits=f"logits.flatten(0, {len(around) - 1})" if flat else "logits",
        flat=".flatten()" if flat else "",
    )
    (folder / FILE).write_text(text)
    return f"{folder / FILE}:{FACTORY}"


def _taken(model: Any, config: Any, batch: int, seq: int) -> tuple[str, tuple[int, ...]]:
    """The first batch that a model takes, and the shape of its logits."""
    import torch

    errors = []
    for text in _candidates(config):
        try:
            with without_values():
                given = eval(f"{{{text}}}", {"torch": torch, "batch": batch, "seq": seq})  # noqa: S307 - our own text
                logits = model.eval()(**given).logits  # in training, some leave out layers by chance
                with contextlib.suppress(RuntimeError):  # torch's, of values that code asks for
                    model.train()(**given)  # some want more of a batch then
        except Exception as error:  # noqa: BLE001 - it does not take this one
            errors.append(f"{type(error).__name__}: {error}".splitlines()[0])
            continue
        if logits.shape[0] == batch and logits.ndim in (2, 3, 4):
            return text, tuple(logits.shape)
        errors.append(f"logits of shape {tuple(logits.shape)}")
    raise NotBuilt(f"none of {len(_TAKES)} kinds of batches is taken: {'; '.join(dict.fromkeys(errors))[:160]}")


def _candidates(config: Any) -> Iterator[str]:
    sizes = {
        "tokens": f"torch.randint(0, {WORDS}, (batch, seq))",
        "channels": _first(config, ("num_channels", "in_channels"), 3),
        "image": _first(config, ("image_size", "img_size"), 224),
        "frames": _first(config, ("num_frames", "frames_per_clip"), 8),
        "mels": _first(config, ("num_mel_bins", "input_feat_per_channel", "feature_size"), 80),
        "length": _first(config, ("max_length",), 1024),
    }
    for text in _TAKES:
        yield text.format(**sizes)


def _first(config: Any, named: Sequence[str], otherwise: int) -> int:
    """The first of these sizes that a configuration, or one inside of it, has."""
    inside = [one for one in vars(config).values() if hasattr(one, "model_type")]
    for one in (config, *inside):
        for name in named:
            value = getattr(one, name, None)
            value = value[0] if isinstance(value, list | tuple) and value else value
            if isinstance(value, int) and not isinstance(value, bool):
                return value
    return otherwise


def _numbers(config: Any) -> dict[str, Any]:
    """What of a configuration is a number or a switch, a list of numbers, or a configuration inside of it."""
    told, found = config.to_dict(), dict[str, Any]()
    taken = inspect.signature(type(config)).parameters
    for name in taken:
        value = told.get(name)
        if isinstance(value, tuple):
            value = list(value)
        if (
            isinstance(value, bool)
            or _is_number(value)
            or (isinstance(value, list) and value and all(map(_is_number, value)))
        ):
            found[name] = value
        elif isinstance(value, dict) and "model_type" in value:
            found[name] = json.loads(json.dumps(value, default=str))
    return found


def _is_number(value: Any) -> bool:
    return isinstance(value, int | float) and not isinstance(value, bool) and isfinite(value)
