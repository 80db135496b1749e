"""JAX's dtypes in our words."""

from __future__ import annotations

from typing import Any

from meshwright.ir.errors import UnsupportedDtype
from meshwright.ir.graph.graph import Type

DTYPES = {
    "float64": "f64", "float32": "f32", "bfloat16": "bf16", "float16": "f16", "float8_e4m3fn": "f8e4m3",
    "float8_e5m2": "f8e5m2", "int64": "i64", "int32": "i32", "int16": "i16", "int8": "i8", "uint8": "u8",
    "uint16": "i16", "uint32": "i32", "uint64": "i64", "bool": "bool", "complex64": "c64", "complex128": "c128",
}  # fmt: skip
"""Unsigned integers, of which we have only the shortest, stand as signed ones of the same size: they are random bits,
or indices."""
NUMPY = {ours: theirs for theirs, ours in DTYPES.items() if not theirs.startswith("u") or theirs == "uint8"} | {
    "bool": "bool_", "c64": "complex64",
}  # fmt: skip
"""What they are called in NumPy, and in `jax.numpy`."""


def is_key(one: Any) -> bool:
    """Whether an array holds keys of random numbers (`jax.random.key`)."""
    return str(one.dtype).startswith("key<")


def dtype_named(dtype: Any, place: str) -> str:
    """Our name for a dtype. Keys of random numbers are integers."""
    name = str(dtype)
    if name.startswith("key<"):
        return "i32"
    if name not in DTYPES:
        raise UnsupportedDtype(
            place=place, cause=f"dtype {name} has no size here", fix=f"use one of {', '.join(sorted(DTYPES))}"
        )
    return DTYPES[name]


def type_of(aval: Any, place: str = "") -> Type:
    """The type of what has a shape and a dtype."""
    shape = tuple(int(extent) for extent in aval.shape)
    return Type(shape, dtype_named(aval.dtype, place))
