"""Bytes that a step sends to the host's memory, as planned and as traced.

XLA for CPUs leaves values where they are, so the compiled step does not say: the trace does. There shapes are whole
along the axes of which XLA cuts values, and parts along those that are manual.
"""

from __future__ import annotations

from collections.abc import Collection
from dataclasses import replace
from math import prod
from typing import Any

from meshwright.ir.graph.graph import ITEMSIZE
from meshwright.ir.program.program import Program, local_elements

HOST = "host"


def planned_bytes(program: Program, manual: Collection[str]) -> int:
    """What the calls of a step send, in parts along these axes."""
    found = 0
    for stage in program.stages:
        for _, name in stage.calls():
            body = program.body(name)
            for kept in (one for one in body.kept if one.host):
                local = body.locals[kept.name]
                dims = tuple(tuple(one for one in dim if one.axis in manual) for dim in local.placement.dims)
                elements = local_elements(replace(local.placement, dims=dims), local.type.shape, body.mesh)
                found += elements * int(ITEMSIZE[local.type.dtype])
    return found * program.microbatches


def traced_bytes(jaxpr: Any) -> int:
    """What the equations of a jaxpr send, as often as loops run them."""
    from jax.extend.core import jaxprs_in_params  # so that plans are read without JAX

    found = 0
    for equation in jaxpr.eqns:
        times = equation.params.get("length", 1) if equation.primitive.name == "scan" else 1
        found += times * sum(traced_bytes(body) for body in jaxprs_in_params(equation.params))
        places = equation.params.get("devices", ()) if equation.primitive.name == "device_put" else ()
        for var, place in zip(equation.outvars, places, strict=False):
            if HOST in str(place).lower():
                found += prod(var.aval.shape) * var.aval.dtype.itemsize
    return int(found)
