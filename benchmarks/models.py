"""The models of `data/models.csv` as shapes and folds, by the path that every shape file takes.

    read_models(csv)              name -> Model: the row, typed; what the row lacks is `missing`, never guessed
    shape_of(model, seq=…)        the decoder's Shape
    fold_of(shape, seq=, batch=)  its captured training step, kept for the life of the process

What the columns leave open is read by these rules, for every row alike:

    glu blank                 plain in families named gpt…, else gated
    positions                 learned, as many as the sequence is long, in families named gpt… without a gate, unless
                              the notes say rotary (rope); rotary elsewhere
    "N local:M global"        every (N+M)-th layer sees everything; "alternating": every second one
    "parallel_block"          attention and feed-forward side by side
    "attention sinks"         the GPT-OSS block (arXiv:2508.10925): linear layers, router and experts have biases
    tied_embeddings           the column, unless it contradicts params_total_b and the other reading does not; a
                              contradiction is more than 2 % and more than half a unit of the last digit printed

The notes call the MPT models free of biases; the parameter counts that their runs print have them, to the last one, so
they have biases here.

Not expressed, and small or unknown: the sinks themselves, GLM's gated GELU (written as a plain one of the same
parameters and FLOPs), partial rotary widths, squared ReLU, the window of MegaScale's own rows. A
multi-token-prediction layer (`mtp`) is priced as one more block; its projection and its second look at the head are
left out.
"""

from __future__ import annotations

import csv
import re
from collections.abc import Callable, Mapping
from dataclasses import asdict, dataclass, replace
from functools import lru_cache
from pathlib import Path

from benchmarks.cells import finite
from meshwright.ir.frontends.door import capture
from meshwright.ir.frontends.folding.captured import Captured
from meshwright.ir.frontends.shape import Shape, validated
from meshwright.ir.frontends.torch_.sources.shape_toml import build
from meshwright.ir.graph.fold import Fold
from meshwright.ir.graph.graph import Param, Type

REQUIRED = ("layers", "hidden", "ffn_hidden", "heads", "vocab")
OPTIONAL = (
    *("kv_heads", "head_dim", "experts", "topk", "moe_ffn", "shared_experts", "first_dense_layers", "moe_layer_freq"),
    *("q_lora_rank", "kv_lora_rank", "qk_nope_head_dim", "qk_rope_head_dim", "v_head_dim", "sliding_window"),
)

CLOSE = 0.02
"""Parameter counts that differ by less agree."""

_LOCAL_GLOBAL = re.compile(r"(\d+) local:\s*(\d+) global")


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class Model:
    """One row of the model table; two are the same if they are the same object.

    - `sizes` must hold the keys of `Shape` that the row gives; `missing` the required ones that it lacks.
    - `parameters` is what the table claims, None if it claims nothing; `slack` is how far a count may be from it.
    """

    name: str
    family: str
    sizes: Mapping[str, int | bool]
    missing: tuple[str, ...]
    learned_positions: bool
    parameters: float | None
    slack: float

    @property
    def routed(self) -> bool:
        return bool(self.sizes.get("experts"))


def read_models(path: Path) -> dict[str, Model]:
    """Every row of a model table, by name."""
    with path.open(newline="", encoding="utf-8-sig") as file:
        rows = [{key: (value or "").strip() for key, value in row.items() if key} for row in csv.DictReader(file)]
    return {row["model"]: model_of(row) for row in rows if row.get("model")}


def model_of(row: Mapping[str, str]) -> Model:
    """One row, typed."""
    family, notes = row.get("family", "").lower(), row.get("hybrid_notes", "").lower()
    gpt = family.startswith("gpt")
    sizes: dict[str, int | bool] = {key: count for key in (*REQUIRED, *OPTIONAL) if (count := _count(row, key)) > 0}
    gated = row.get("glu", "")
    sizes["glu"] = gated not in ("0", "false") if gated else not gpt
    sizes["tied_embeddings"] = row.get("tied_embeddings", "") in ("1", "true")
    if "sliding_window" in sizes and (every := _full_every(notes)):
        sizes["full_attention_every"] = every
    sizes["biases"] = "attention sinks" in notes
    sizes["parallel_block"] = "parallel_block" in row.get("attention", "").lower()
    stated = row.get("params_total_b", "")
    parameters = _billions(stated)
    return Model(
        name=row["model"],
        family=family,
        sizes=sizes,
        missing=tuple(key for key in REQUIRED if key not in sizes),
        learned_positions=gpt and not sizes["glu"] and not re.search(r"\b(rotary|rope)\b", notes),
        parameters=parameters,
        slack=max(CLOSE, _half_unit(stated) / parameters) if parameters else CLOSE,
    )


def _count(row: Mapping[str, str], key: str) -> int:
    return int(finite(row.get(key, "")) or 0)


def _billions(text: str) -> float | None:
    value = finite(text)
    return value * 1e9 if value and value > 0 else None


def _half_unit(text: str) -> float:
    """Half a unit of the last digit of a number of billions."""
    return 0.5e9 * 10.0 ** -len(text.partition(".")[2])


def _full_every(notes: str) -> int:
    if found := _LOCAL_GLOBAL.search(notes):
        return int(found[1]) + int(found[2])
    return 2 if "alternating" in notes else 0


def shape_of(model: Model, *, seq: int, mtp: int = 0, parallel_block: bool = False) -> Shape:
    """The decoder of a model that lacks nothing, for sequences of `seq`."""
    shape = _shape(model, seq)
    return replace(shape, layers=shape.layers + mtp, parallel_block=shape.parallel_block or parallel_block)


def _shape(model: Model, seq: int) -> Shape:
    place = f"model {model.name}"
    given = {**model.sizes, "learned_positions": seq if model.learned_positions else 0}
    shape = validated({key: value for key, value in given.items() if value or isinstance(value, bool)}, place)
    if model.parameters is None:
        return shape
    head = shape.vocab * shape.hidden
    counted = parameters(shape)
    other = counted + (head if shape.tied_embeddings else -head)
    if abs(counted / model.parameters - 1) > model.slack >= abs(other / model.parameters - 1):
        return replace(shape, tied_embeddings=not shape.tied_embeddings)
    return shape


@lru_cache(maxsize=256)
def parameters(shape: Shape) -> int:
    """What the model built from a shape holds."""
    return sum(p.numel() for p in build(shape, "shape").module.parameters())


@lru_cache(maxsize=256)
def fold_of(shape: Shape, *, seq: int, batch: int = 1, dtype: str = "bf16") -> Captured:
    """The captured training step on `batch` sequences."""
    name = ", ".join(f"{key}={value}" for key, value in asdict(shape).items() if key in REQUIRED)
    return capture(build(shape, name, dtype), batch=batch, seq=seq)


def adapted(fold: Fold) -> Fold:
    """The fold as adapters train it: matrices of the layers are frozen. Norms stay trained, so that gradients flow as
    far down as those of adapters; the adapters' own products, small beside the rest, are left out."""
    layers = {name for segment in fold.segments if not segment.glue for name in segment.period}
    return replace(
        fold,
        bodies=tuple(
            replace(body, graph=replace(body.graph, params=tuple(map(_frozen(body.graph.types), body.graph.params))))
            if body.name in layers
            else body
            for body in fold.bodies
        ),
    )


def _frozen(types: Mapping[str, Type]) -> Callable[[Param], Param]:
    return lambda param: replace(param, requires_grad=False) if len(types[param.value].shape) > 1 else param
