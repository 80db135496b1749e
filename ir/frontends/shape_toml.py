"""A model that exists only as numbers: a shape file.

    layers = 32
    hidden = 4096
    ffn_hidden = 14336
    heads = 32
    kv_heads = 8
    vocab = 128256

In: TOML with the keys of `decoder.Shape` (and `name`, which is for people). Out: the reference decoder of that shape,
built on the meta device; from there it takes the path of any other model. Nothing is ignored and nothing guessed: an
unknown key is refused with the nearest known one, and numbers that contradict one another are refused with both in the
message.
"""

from __future__ import annotations

import tomllib
from collections.abc import Iterator, Mapping
from dataclasses import MISSING, asdict, fields
from pathlib import Path
from typing import Any

import torch

from meshwright.ir.errors import (
    ModelFileMissing,
    ShapeFileNotToml,
    ShapeImpossible,
    ShapeKeyMissing,
    ShapeKeyUnknown,
    nearest,
)
from meshwright.ir.frontends import language
from meshwright.ir.frontends.contract import Source
from meshwright.ir.frontends.decoder import Decoder, Shape
from meshwright.ir.frontends.dtypes import TORCH_DTYPES

FLOATS = ("bf16", "f16", "f32", "f64")

_KINDS = {field.name: int if field.default is MISSING else type(field.default) for field in fields(Shape)}
_ZERO_ALLOWED = frozenset(field.name for field in fields(Shape) if field.default == 0)


def load_shape(path: Path) -> Source:
    """The reference decoder of a shape file."""
    return build(read_shape(path), str(path))


def of_settings(given: Mapping[str, Any], place: str) -> Decoder:
    """The model of keys and values, in its dtype."""
    return _model(validated({key: value for key, value in given.items() if key != "name"}, place))


def _model(shape: Shape) -> Decoder:
    model: Decoder = Decoder(shape).to(TORCH_DTYPES[shape.dtype])
    return model


def build(shape: Shape, place: str) -> Source:
    with torch.device("meta"):
        model = _model(shape)
    settings = ", ".join(f"{key}={value}" for key, value in asdict(shape).items())
    return Source(model, language.hooks("tokens"), place, settings)


def read_shape(path: Path) -> Shape:
    """A shape file, validated."""
    if not path.is_file():
        raise ModelFileMissing(place=str(path), cause="there is no such file", fix="give the path of a shape file")
    try:
        given = tomllib.loads(path.read_text())
    except (tomllib.TOMLDecodeError, UnicodeDecodeError) as error:
        raise ShapeFileNotToml(place=str(path), cause=str(error), fix="correct the line; strings need quotes") from None
    given.pop("name", None)
    return validated(given, str(path))


def validated(given: Mapping[str, Any], place: str) -> Shape:
    """A shape from plain values; every error names the key."""
    known = {field.name: field for field in fields(Shape)}
    for key, value in given.items():
        if key not in known:
            meant = nearest(key, known)
            raise ShapeKeyUnknown(
                place=f"{place}, key {key!r}",
                cause="no shape has this key",
                fix=f"did you mean {meant!r}?" if meant else f"use keys among {', '.join(known)}",
            )
        _check_value(place, key, value)
    for key, field in known.items():
        if field.default is MISSING and key not in given:
            raise ShapeKeyMissing(
                place=f"{place}, key {key!r}", cause="it has no default", fix=f"add a line `{key} = …`"
            )
    shape = Shape(**given)
    for key, cause, fix in _contradictions(shape):
        raise ShapeImpossible(place=f"{place}, key {key!r}", cause=cause, fix=fix)
    return shape


def _check_value(place: str, key: str, value: Any) -> None:
    kind = _KINDS[key]
    where = f"{place}, key {key!r}"
    if type(value) is not kind:
        wanted = {bool: "true or false", str: "a name in quotes", int: "a whole number"}[kind]
        raise ShapeImpossible(place=where, cause=f"{value!r} is not {wanted}", fix=f"give {wanted}")
    if kind is str and value not in FLOATS:
        raise ShapeImpossible(place=where, cause=f"unknown dtype {value!r}", fix=f"use one of {', '.join(FLOATS)}")
    if isinstance(value, int) and kind is int and not (0 if key in _ZERO_ALLOWED else 1) <= value <= 10**9:
        raise ShapeImpossible(place=where, cause=f"{value} is no size", fix="give a number between 1 and a billion")


def _contradictions(shape: Shape) -> Iterator[tuple[str, str, str]]:
    """(key, cause, fix) for numbers that cannot stand together."""
    kv_heads = shape.kv_heads or shape.heads
    if not shape.head_dim and shape.hidden % shape.heads:
        yield "heads", f"{shape.heads} heads do not divide hidden = {shape.hidden}", "set head_dim, or correct one"
    if shape.heads % kv_heads:
        yield "kv_heads", f"{kv_heads} key-value heads do not divide heads = {shape.heads}", "give a divisor of heads"
    if not shape.latent and not shape.learned_positions and shape.head % 2:
        yield "head_dim", f"{shape.head} is odd, and rotary positions pair the halves of a head", "make it even"
    if shape.experts and not 1 <= shape.topk <= shape.experts:
        yield "topk", f"each token goes to {shape.topk} of {shape.experts} experts", "give 1 <= topk <= experts"
    if not shape.experts and (shape.topk or shape.moe_ffn or shape.shared_experts):
        yield (
            "experts",
            "there are settings for experts, but none are counted",
            "set experts, or drop topk, moe_ffn, shared_experts",
        )
    if shape.first_dense_layers > shape.layers:
        yield "first_dense_layers", f"{shape.first_dense_layers} of {shape.layers} layers", "give at most layers"
    if shape.moe_layer_freq < 1:
        yield "moe_layer_freq", f"{shape.moe_layer_freq}", "give 1 for experts in every layer, 2 for every other one"
    if shape.full_attention_every and not shape.sliding_window:
        yield "full_attention_every", "there is no sliding_window to alternate with", "set sliding_window"
    latent = {k: getattr(shape, k) for k in ("qk_nope_head_dim", "qk_rope_head_dim", "v_head_dim")}
    if shape.latent and not all(latent.values()):
        yield next(k for k, v in latent.items() if not v), "latent attention (kv_lora_rank) needs it", "give its size"
    if shape.latent and shape.qk_rope_head_dim % 2:
        yield "qk_rope_head_dim", f"{shape.qk_rope_head_dim} is odd, and rotary positions pair halves", "make it even"
    if not shape.latent and (any(latent.values()) or shape.q_lora_rank):
        yield "kv_lora_rank", "there are settings of latent attention, but no latent", "set kv_lora_rank, or drop them"
