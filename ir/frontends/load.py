"""What MODEL means on the command line: which front end reads it.

file.py:factory        a torch module from a factory, with the hooks beside it       contract.py
a directory, *.json    a Hugging Face configuration                                  hf_config.py
*.toml                 a shape                                                       shape_toml.py
"""

from __future__ import annotations

import os
from dataclasses import replace
from pathlib import Path

import torch

from meshwright.ir.errors import ModelFileMissing, ModelKindUnknown
from meshwright.ir.frontends.contract import Source, find_factory, source_from
from meshwright.ir.frontends.foreign import TIME_LIMIT_S, blamed
from meshwright.ir.frontends.jax_.installed import written_in_jax
from meshwright.ir.frontends.torch_.sources.dtypes import WORKLOAD_DTYPES


def load_model(reference: str, *, dtype: str | None = None, time_limit_s: float = TIME_LIMIT_S) -> Source:
    """The model that MODEL names. `dtype` is for configurations and shapes; a factory decides for itself."""
    path = Path(reference)
    if path.suffix == ".toml":
        from meshwright.ir.frontends.torch_.sources.shape_toml import load_shape

        return load_shape(path, dtype)
    if os.path.isdir(path) or path.suffix == ".json":  # noqa: PTH112
        from meshwright.ir.frontends.torch_.sources.hf_config import load_hf

        return load_hf(path, dtype=None if dtype is None else WORKLOAD_DTYPES[dtype])
    if path.suffix == ".py" or ".py:" in reference:
        from meshwright.ir.frontends.torch_.sources.hf_config import adopted

        with blamed(reference):
            factory = find_factory(reference, time_limit_s=time_limit_s)
            if written_in_jax(factory.beside):
                from meshwright.ir.frontends.jax_.capture import load

                if (found := load(factory, time_limit_s)) is not None:
                    return found  # type: ignore[return-value]
            return adopted(source_from(factory, time_limit_s=time_limit_s))
    if not os.path.exists(path):  # noqa: PTH110 - Path raises where a name is too long
        raise ModelFileMissing(
            place=reference, cause="there is no such file", fix="give file.py:factory, a directory or a file"
        )
    raise ModelKindUnknown(
        place=reference,
        cause=f"{path.name} is no model",
        fix="give file.py:factory, a Hugging Face directory or config.json, or a .toml",
    )


def in_dtype(source: Source, dtype: str) -> Source:
    """A model whose parameters in fp32 are in this dtype; others stay. So do buffers: tables of positions lose far ones
    in half precision."""
    if not isinstance(source, Source):
        return source.in_dtype(dtype)
    made = tuple(parameter for parameter in source.module.parameters() if parameter.dtype is torch.float32)
    for parameter in made:
        parameter.data = parameter.data.to(WORKLOAD_DTYPES[dtype])
    return replace(source, cast=made if dtype != "fp32" else ())
