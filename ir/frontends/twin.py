"""The small twin of a model: the same code with small numbers, so that what a plan does to the model runs anywhere.

    file.py:factory     `twin()` beside the factory, if there is one. Else the model must have been made of one value,
                        its `config` (a dataclass), or the factory take sizes as arguments that have defaults: a file is
                        written that makes it of small ones (`twin.py`)
    config.json         the configuration with small numbers
    shape.toml          the shape with small numbers

Numbers are known by their names (`KINDS`): what is not in the table stays. Whether the twin has the structure of the
model is not believed: `meshwright.ir.project` compares all operators of both.
"""

from __future__ import annotations

import dataclasses
import inspect
import json
import os
from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from meshwright.ir.errors import NoTwin
from meshwright.ir.frontends import hf_schema, shape
from meshwright.ir.frontends.contract import Source
from meshwright.ir.frontends.foreign import TIME_LIMIT_S, guarded
from meshwright.ir.quoting import is_name, literal, said

TWIN = "twin"
"""The hook, and the factory of a written file."""
HOOKS = ("example_inputs", "loss", "dims", "optimizer")
HOW = "define twin() beside the factory: the same model, small enough for a CPU"

HEADS, HEAD, WIDTH, INNER, VOCABULARY = 8, 8, 64, 128, 256
"""Every size divides by 2 and 4."""

KINDS: Mapping[str, tuple[str, ...]] = {
    "width": ("hidden_size", "n_embd", "d_model", "width", "dim", "hidden", "embed_dim"),
    "heads": ("num_attention_heads", "n_head", "num_heads", "heads", "n_heads"),
    "kv_heads": ("num_key_value_heads", "kv_heads", "n_kv_heads", "num_kv_heads"),
    "head": ("head_dim", "d_kv", "qk_nope_head_dim", "qk_rope_head_dim", "v_head_dim"),
    "inner": (
        "intermediate_size", "n_inner", "d_ff", "ffn", "ffn_dim", "ffn_hidden", "mlp_dim", "hidden_dim",
        "moe_intermediate_size", "moe_ffn", "q_lora_rank", "kv_lora_rank",
    ),
    "vocabulary": ("vocab_size", "vocab", "vocabulary"),
    "layers": ("num_hidden_layers", "num_layers", "num_decoder_layers", "n_layer", "n_layers", "layers", "depth"),
    "first": ("first_k_dense_replace", "first_dense_layers"),
    "experts": ("num_local_experts", "num_experts", "n_routed_experts", "experts"),
    "topk": ("num_experts_per_tok", "topk", "top_k"),
    "groups": ("n_group", "topk_group"),
    "window": ("sliding_window",),
    "each": ("layer_types",),
    "token": ("bos_token_id", "eos_token_id", "pad_token_id", "decoder_start_token_id"),
    "dropout": (
        "attn_pdrop", "embd_pdrop", "resid_pdrop", "attention_dropout", "dropout", "dropout_rate", "hidden_dropout",
        "hidden_dropout_prob", "attention_probs_dropout_prob",
    ),
}  # fmt: skip
"""What numbers of a configuration mean, by their names in Hugging Face's configurations, in shapes and elsewhere."""

KIND = {name: kind for kind, names in KINDS.items() for name in names}


@dataclass(frozen=True, slots=True, kw_only=True)
class Scale:
    """How small: blocks of every stack, and tokens, which windows are measured by."""

    layers: int
    seq: int
    tokens: int
    """Of the model's own workload."""
    vocabulary: int = VOCABULARY
    """At least as many words as the model's batches have."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Twin:
    """A twin as the command line names models; and the files that had to be written for it, if any."""

    reference: str
    files: tuple[tuple[str, str], ...] = ()


def twin_of(source: Source, reference: str, scale: Scale, folder: Path) -> Twin:
    """The twin of the model that `reference` names. Files that it needs are for `folder`, and are not written here."""
    path = Path(reference)
    if path.suffix == ".toml":
        settings = shape.settings_of(path)
        lines = "".join(f"{key} = {json.dumps(value)}\n" for key, value in scaled(settings, scale).items())
        return Twin(reference="twin.toml", files=(("twin.toml", lines),))
    if path.is_dir() or path.suffix == ".json":
        settings = hf_schema.settings_of(Path(source.place))
        return Twin(
            reference="config.json", files=(("config.json", json.dumps(scaled(settings, scale), indent=2) + "\n"),)
        )
    file, _, factory = reference.rpartition(":")
    if callable(source.beside.get(TWIN)):
        return Twin(reference=f"{file}:{TWIN}")
    text = _written(source, Path(file), factory, replace(scale, vocabulary=_vocabulary(source, scale.seq)), folder)
    return Twin(reference=f"{TWIN}.py:{TWIN}", files=((f"{TWIN}.py", text),))


def scaled(settings: Mapping[str, Any], scale: Scale) -> dict[str, Any]:
    """The same settings with small numbers."""
    heads = next((settings[name] for name in KINDS["heads"] if isinstance(settings.get(name), int)), HEADS)
    made = {name: _small(KIND.get(name, ""), value, heads, scale) for name, value in settings.items()}
    if "head_dim" not in settings and made.keys() & set(KINDS["width"]):
        width = min(heads, HEADS) * HEAD
        made |= {name: width for name in KINDS["width"] if name in made}
    return made


def _small(kind: str, value: Any, heads: int, scale: Scale) -> Any:
    if kind == "each" and isinstance(value, list):
        return value[: scale.layers]
    if kind == "dropout":
        return type(value)(0) if isinstance(value, int | float) else value
    if isinstance(value, bool) or not isinstance(value, int) or value <= 0:
        return value
    few = min(heads, HEADS)
    sizes = {
        "width": WIDTH,
        "heads": few,
        "kv_heads": few if value == heads else min(value, few // 2),
        "head": HEAD,
        "inner": INNER,
        "vocabulary": min(value, scale.vocabulary),
        "layers": scale.layers,
        "first": min(value, 2),
        "experts": min(value, 8),
        "topk": min(value, 2),
        "groups": min(value, 2),
        "window": scale.seq // 2 if value < scale.tokens else value,
        "token": value if value < VOCABULARY else 0,
    }
    return sizes.get(kind, value)


# Models of a file ----------------------------------------------------------------------------------------------------

FILE = '''\
"""A small twin of {shown}: the same code, small numbers."""

import sys
from pathlib import Path

sys.path.append(str(Path(__file__).resolve().parent / {folder}))

{imported}

__all__ = [{listed}]


def twin() -> {kind}:
    return {made}
'''


def _vocabulary(source: Source, seq: int) -> int:
    """The words that a batch of the user's may have."""
    make = source.hooks.example_inputs
    with guarded(source.place, TIME_LIMIT_S):
        made = make(2, seq) if make is not None else {}
    tensors = made.values() if isinstance(made, dict) else []
    largest = max((int(one.max()) for one in tensors if not one.is_floating_point()), default=0)
    return VOCABULARY if largest < VOCABULARY else largest * 2


def _written(source: Source, file: Path, factory: str, scale: Scale, folder: Path) -> str:
    """A file that makes the twin of the user's own classes."""
    made, names = _from_arguments(source.beside[factory], factory, scale) or _from_config(source, scale)
    kind = type(source.module).__name__
    hooks = [name for name in HOOKS if source.beside.get(name) is not None]
    missing = [name for name in (kind, *names) if name not in source.beside]
    if missing:
        raise _none(source, f"{missing[0]}, which it is made of, is not named in the file")
    if odd := [name for name in (kind, *names) if not is_name(name)]:
        raise _none(source, f"{odd[0]!r}, which it is made of, is no name that code may have")
    listed = sorted({*names, *hooks, kind}, key=lambda name: (not name.isupper(), not name[0].isupper(), name))
    return FILE.format(
        shown=said(f"{file.name}:{factory}"),
        folder=literal(Path(os.path.relpath(file.resolve().parent, folder.resolve())).as_posix()),
        imported=_imported(file, listed),
        listed=", ".join(map(literal, [*sorted(hooks), TWIN])),
        kind=kind,
        made=made,
    )


LOADED = """\
from importlib.machinery import SourceFileLoader  # noqa: E402
from types import ModuleType  # noqa: E402

_file = str(Path(sys.path[-1]) / {file})
_model = sys.modules[{module}] = ModuleType({module})
_model.__file__ = _file
SourceFileLoader({module}, _file).exec_module(_model)
"""


def _imported(file: Path, names: list[str]) -> str:
    """The names of a file's module; a file may be called what no statement can import."""
    if is_name(file.stem):
        return f"from {file.stem} import {', '.join(names)}  # noqa: E402"
    loaded = LOADED.format(file=literal(file.name), module=literal(file.stem))
    return loaded + "\n".join(f"{name} = _model.{name}" for name in names)


def _from_arguments(made: Callable[..., Any], factory: str, scale: Scale) -> tuple[str, list[str]] | None:
    """The factory, called with small sizes."""
    found = inspect.signature(made).parameters.values()
    given = {one.name: one.default for one in found if one.default is not one.empty}
    small = {name: value for name, value in scaled(given, scale).items() if value != given[name]}
    if not small:
        return None
    return f"{factory}({', '.join(f'{name}={value!r}' for name, value in small.items())})", [factory]


def _from_config(source: Source, scale: Scale) -> tuple[str, list[str]]:
    """The model's class, called with its configuration of small sizes."""
    config: Any = getattr(source.module, "config", None)
    if not dataclasses.is_dataclass(config) or isinstance(config, type):
        raise _none(source, "its factory takes no sizes, and the model has no dataclass `config` that it was made of")
    kind, settings = type(source.module), {one.name: getattr(config, one.name) for one in dataclasses.fields(config)}
    if list(inspect.signature(kind).parameters) != ["config"]:
        raise _none(source, f"{kind.__name__}{inspect.signature(kind)} is not made of its config alone")
    small = scaled(settings, scale)
    given = ", ".join(f"{name}={value!r}" for name, value in small.items())
    return f"{kind.__name__}({type(config).__name__}({given}))", [kind.__name__, type(config).__name__]


def _none(source: Source, cause: str) -> NoTwin:
    return NoTwin(place=source.place, cause=f"no small twin of it can be made: {cause}", fix=HOW)
