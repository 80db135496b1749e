"""Torch dtypes by our names."""

from __future__ import annotations

from collections.abc import Mapping

import torch
from torch import Tensor

from meshwright.ir.errors import UnsupportedDtype
from meshwright.ir.graph.graph import ITEMSIZE, Type

DTYPES: Mapping[torch.dtype, str] = {
    torch.float64: "f64",
    torch.float32: "f32",
    torch.bfloat16: "bf16",
    torch.float16: "f16",
    torch.float8_e4m3fn: "f8e4m3",
    torch.float8_e5m2: "f8e5m2",
    torch.int64: "i64",
    torch.int32: "i32",
    torch.int16: "i16",
    torch.int8: "i8",
    torch.uint8: "u8",
    torch.bool: "bool",
    torch.complex64: "c64",
    torch.complex128: "c128",
}

TORCH_DTYPES: Mapping[str, torch.dtype] = {name: dtype for dtype, name in DTYPES.items()}

WORKLOAD_DTYPES: Mapping[str, torch.dtype] = {"bf16": torch.bfloat16, "fp16": torch.float16, "fp32": torch.float32}
"""By the names that a workload gives them (`--dtype`)."""


def type_of(tensor: Tensor, place: str) -> Type:
    """Our type of a tensor; `place` names it in the error for dtypes that we have no rules for."""
    dtype = DTYPES.get(tensor.dtype)
    if dtype is None:
        raise UnsupportedDtype(
            place=place,
            cause=f"dtype {str(tensor.dtype).removeprefix('torch.')}",
            fix=f"use one of {', '.join(sorted(ITEMSIZE))}; cast before the model",
        )
    return Type(tuple(int(extent) for extent in tensor.shape), dtype)
