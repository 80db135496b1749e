"""Shapes: decoders as numbers, with the keys of a shape file and their values.

    layers = 32
    hidden = 4096
    ffn_hidden = 14336
    heads = 32
    kv_heads = 8
    vocab = 128256

Nothing is ignored and nothing guessed: an unknown key is refused with the nearest known one, and numbers that
contradict one another are refused with both in the message.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated, Any

from meshwright.ir.errors import ModelFileMissing, ShapeFileNotToml, ShapeImpossible, ShapeKeyMissing, ShapeKeyUnknown
from meshwright.ir.files.schema import KNOWN_ONLY, Count, FileForm, Flag, Most, OneOf, Whole
from meshwright.ir.limits import HEADS, LAYERS, SIZE

FLOATS = ("bf16", "f16", "f32", "f64")

Layers = Annotated[Count, Most(LAYERS)]
Heads = Annotated[Count, Most(HEADS)]
Extent = Annotated[Count, Most(SIZE)]
Width = Annotated[Whole, Most(SIZE)]
"""Zero where a shape has none."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Shape:
    """A decoder as numbers. Names are those of `benchmarks/data/models.csv`, where it has a column for them."""

    __pydantic_config__ = KNOWN_ONLY

    layers: Layers
    hidden: Extent
    ffn_hidden: Extent
    heads: Heads
    vocab: Extent
    kv_heads: Annotated[Whole, Most(HEADS)] = 0
    head_dim: Width = 0
    glu: Flag = True
    tied_embeddings: Flag = False
    dtype: Annotated[str, OneOf(FLOATS)] = "bf16"
    sliding_window: Width = 0
    full_attention_every: Annotated[Whole, Most(LAYERS)] = 0
    experts: Annotated[Whole, Most(HEADS)] = 0
    topk: Annotated[Whole, Most(HEADS)] = 0
    moe_ffn: Width = 0
    shared_experts: Annotated[Whole, Most(HEADS)] = 0
    first_dense_layers: Annotated[Whole, Most(LAYERS)] = 0
    moe_layer_freq: Layers = 1
    q_lora_rank: Width = 0
    kv_lora_rank: Width = 0
    qk_nope_head_dim: Width = 0
    qk_rope_head_dim: Width = 0
    v_head_dim: Width = 0
    learned_positions: Width = 0
    parallel_block: Flag = False
    biases: Flag = False
    """Linear layers, router and experts have biases beside a gate too (arXiv:2508.10925)."""
    dropout: Flag = False
    """Dropout of `DROPOUT` on the embedding, attention's probabilities and what each half of a block adds."""

    @property
    def head(self) -> int:
        return self.head_dim or self.hidden // self.heads

    @property
    def biased(self) -> bool:
        return self.biases or not self.glu

    @property
    def latent(self) -> bool:
        return self.kv_lora_rank > 0

    def routed(self, layer: int) -> bool:
        """Whether a layer has experts."""
        after = layer - self.first_dense_layers
        return self.experts > 0 and after >= 0 and (after + 1) % self.moe_layer_freq == 0

    def window(self, layer: int) -> int:
        """The attention window of a layer; 0: it sees everything before."""
        full = self.full_attention_every and (layer + 1) % self.full_attention_every == 0
        return 0 if full else self.sliding_window


FORM: FileForm[Shape] = FileForm(
    table=Shape,
    unreadable=ModelFileMissing,
    broken=ShapeFileNotToml,
    missing=ShapeKeyMissing,
    unknown=ShapeKeyUnknown,
    value=ShapeImpossible,
    give="give the path of a shape file",
)


OTHERS: Mapping[str, tuple[str, str]] = {
    "pool": ("a cluster", "--cluster"),
    "workload": ("a question", "--config"),
}
"""Other files in TOML, by a key that each has and no shape: what they are, and the option that takes one."""


def settings_of(path: Path) -> dict[str, Any]:
    """The settings of a shape file, without its name, which is for people."""
    given = FORM.toml(FORM.text(path), str(path))
    for key, (what, option) in OTHERS.items():
        if isinstance(given.get(key), dict | list):
            cause, fix = f"the file describes {what}, and no model", f"give it with {option} {path}"
            raise ShapeKeyUnknown(place=f"{path}: {key}", cause=cause, fix=fix)
    if not isinstance(given.pop("name", ""), str):
        raise ShapeImpossible(place=f"{path}: name", cause="it is no string", fix="give a name in quotes")
    return given


def read_shape(path: Path) -> Shape:
    """A shape file, validated."""
    return validated(settings_of(path), str(path))


def validated(given: Mapping[str, Any], place: str) -> Shape:
    """A shape from plain values; every error names the key."""
    shape = FORM.read(dict(given), place)
    for key, cause, fix in _contradictions(shape):
        raise ShapeImpossible(place=f"{place}: {key}", cause=cause, fix=fix)
    return shape


def _contradictions(shape: Shape) -> Iterator[tuple[str, str, str]]:
    """Numbers that contradict each other, as (key, cause, fix)."""
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
