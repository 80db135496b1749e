"""A Hugging Face model from its `config.json`: no weights, no network, no remote code.

In: a directory that holds a `config.json`, or the path of one. Out: the model of that configuration, built on the meta
device at full depth (which costs milliseconds), with the hooks of a language model. Only code that is part of the
installed transformers is run: a configuration that names code of its own (`auto_map`) is refused.

Two things are set that a configuration leaves open: no key-value cache, since this is training; and routed experts
through our static operators (`moe.py`).
"""

from __future__ import annotations

import inspect
import json
import os
from collections.abc import Mapping
from copy import deepcopy
from dataclasses import replace
from pathlib import Path
from typing import Any

import torch

from meshwright.ir.errors import (
    ConfigValueBad,
    DependencyMissing,
    FactoryRaised,
    UnknownModelType,
    nearest,
)
from meshwright.ir.frontends.foreign import TIME_LIMIT_S, guarded
from meshwright.ir.frontends.hf_schema import check_sizes, settings_of
from meshwright.ir.frontends.torch_.operators import moe
from meshwright.ir.frontends.torch_.sources import language
from meshwright.ir.frontends.torch_.sources.factory import TorchSource, counted_modules

LANGUAGE_HEADS = frozenset(("CausalLM", "MaskedLM", "ConditionalGeneration", "PreTraining"))
"""What architectures of language models are called, after `For`."""

_INCIDENTAL = frozenset(("_name_or_path", "transformers_version", "architectures", "torch_dtype", "dtype"))


def load_hf(path: Path, *, dtype: torch.dtype | None = None) -> TorchSource:
    """The model of a Hugging Face directory or `config.json`, in its own dtype unless one is given."""
    file = path / "config.json" if os.path.isdir(path) else path  # noqa: PTH112 - Path raises where a name is too long
    settings, place = settings_of(file), str(file)
    with counted_modules(place), torch.device("meta"):
        model = of_settings(settings, place, dtype=dtype)
    told = {key: value for key, value in sorted(settings.items()) if key not in _INCIDENTAL}
    return TorchSource(model, language.hooks(*_inputs(model.config)), place, json.dumps(told))


def of_settings(settings: Mapping[str, Any], place: str, *, dtype: torch.dtype | None = None) -> Any:
    """The model of a configuration, on the device that torch has as its default."""
    transformers = _transformers(place)
    from transformers.models.auto.configuration_auto import CONFIG_MAPPING

    kind = settings.get("model_type", "")
    if kind not in CONFIG_MAPPING:
        meant = nearest(str(kind), CONFIG_MAPPING)
        raise UnknownModelType(
            place=f"{place}, model_type",
            cause=f"transformers {transformers.__version__} has no {kind!r}",
            fix=(f"did you mean {meant!r}? If not, " if meant else "") + "write a model file with a factory",
        )
    _check_head(settings, place)
    try:
        with guarded(place, TIME_LIMIT_S):
            config = CONFIG_MAPPING[kind].from_dict(deepcopy(dict(settings)))  # which it changes
            check_sizes(config.get_text_config(), place)
            _keep_no_cache(config)
            config._experts_implementation = moe.use_with_transformers()
            wanted = dtype or getattr(config, "dtype", None) or torch.float32
            return _build(config, getattr(torch, wanted) if isinstance(wanted, str) else wanted, place)
    except FactoryRaised as error:
        fix = "correct the value that it names; transformers builds the model, on the meta device"
        raise ConfigValueBad(place=place, cause=error.cause, fix=fix) from None


def with_defaults(settings: Mapping[str, Any]) -> dict[str, Any]:
    """The settings of a configuration, with numbers that it leaves to their defaults."""
    from transformers.models.auto.configuration_auto import CONFIG_MAPPING

    taken = inspect.signature(CONFIG_MAPPING[settings["model_type"]]).parameters.values()
    given = {one.name: one.default for one in taken if isinstance(one.default, int | float | list | tuple)}
    return given | dict(settings)


def adopted(source: TorchSource) -> TorchSource:
    """A Hugging Face language model that a factory made, trained like one from a configuration unless hooks say
    otherwise."""
    config: Any = getattr(source.module, "config", None)
    if not hasattr(config, "model_type") or not hasattr(config, "is_encoder_decoder"):
        return source
    _keep_no_cache(config)
    config._experts_implementation = moe.use_with_transformers(getattr(config, "_experts_implementation", None))
    moe.limit(source.module)
    generates = type(source.module).__name__.endswith(("ForCausalLM", "ForConditionalGeneration", "LMHeadModel"))
    if not generates or source.hooks.example_inputs is not None or source.hooks.loss is not None:
        return source
    return replace(source, hooks=language.hooks(*_inputs(config)))


def _keep_no_cache(config: Any) -> None:
    """Switch caches off for training; in a model of several parts, each has a configuration of its own."""
    config.use_cache = False
    for one in vars(config).values():
        if hasattr(one, "model_type") and getattr(one, "use_cache", False):
            one.use_cache = False


def _inputs(config: Any) -> tuple[str, ...]:
    return ("input_ids", "decoder_input_ids") if config.is_encoder_decoder else ("input_ids",)


def _check_head(settings: Mapping[str, Any], place: str) -> None:
    """Refuse the configuration of a classifier: as a language model it would have other parameters."""
    named = settings.get("architectures") or [""]
    head = str(named[0]).rpartition("For")[2]
    if head in named or not head or head in LANGUAGE_HEADS:
        return
    raise UnknownModelType(
        place=f"{place}, architectures",
        cause=f"{named[0]} is not a language model, and no other is built from a configuration",
        fix="write a model file with a factory that builds it, example_inputs and loss; or, for the language model of "
        "the same backbone, delete architectures",
    )


def _transformers(place: str) -> Any:
    """The transformers library, told before its import to stay off the network."""
    for switch in ("HF_HUB_OFFLINE", "TRANSFORMERS_OFFLINE"):
        os.environ.setdefault(switch, "1")
    try:
        import transformers
    except ImportError as error:
        raise DependencyMissing(
            place=place,
            cause=f"a Hugging Face configuration needs transformers: {error}",
            fix="pip install 'meshwright[hf]'",
        ) from None
    return transformers


def _build(config: Any, dtype: torch.dtype, place: str) -> torch.nn.Module:
    """Build the language model of a configuration, without drawing random numbers."""
    from transformers.models.auto import modeling_auto as auto

    for factory, known, translates in (
        (auto.AutoModelForSeq2SeqLM, auto.MODEL_FOR_SEQ_TO_SEQ_CAUSAL_LM_MAPPING, True),
        (auto.AutoModelForCausalLM, auto.MODEL_FOR_CAUSAL_LM_MAPPING, False),
        (auto.AutoModelForMaskedLM, auto.MODEL_FOR_MASKED_LM_MAPPING, False),
    ):
        if type(config) in known and config.is_encoder_decoder == translates:
            model: torch.nn.Module = factory.from_config(config, dtype=dtype)
            return model
    raise UnknownModelType(
        place=f"{place}, model_type",
        cause=f"transformers has no language model for {config.model_type!r}",
        fix="write a model file with a factory, example_inputs and loss",
    )
