"""The sweeps over all patterns."""

from __future__ import annotations

from collections.abc import Mapping
from functools import partial
from typing import Any

from meshwright.ir.frontends.folding import masks
from meshwright.ir.frontends.recognise.activations import bias, gelu, log_softmax, logsumexp, silu, softmax
from meshwright.ir.frontends.recognise.attention import attention
from meshwright.ir.frontends.recognise.losses import averaged, cross_entropy
from meshwright.ir.frontends.recognise.norms import norm
from meshwright.ir.frontends.recognise.rewriting import Sweep, kept, mean, moved, there_and_back
from meshwright.ir.frontends.recognise.strides import relaid
from meshwright.ir.graph.graph import Graph

PATTERNS = (
    there_and_back, kept, moved, mean, softmax, logsumexp, log_softmax, cross_entropy, averaged, silu, gelu, norm, bias,
)  # fmt: skip
"""In the order in which they are tried; attention comes last."""
SWEEPS = 2
"""A composite may be part of another one, as the loss of every label is of their mean."""


def recognised(graph: Graph, constants: Mapping[str, Any]) -> Graph:
    """The graph with composites as one operator each. `constants` has the terms of its constants, by value."""
    for _ in range(SWEEPS):
        sweep = Sweep(graph, constants)
        graph = sweep.run((*PATTERNS, attention(partial(_law, sweep, constants))))
    return relaid(graph)


def _law(sweep: Sweep, constants: Mapping[str, Any], mask: str) -> masks.MaskLaw | None:
    """The law of a mask that is a constant, whatever extents of 1 were put in front of it."""
    inner = mask
    while (op := sweep.made(inner, "view", "expand")) is not None:
        source, shape = sweep.shape(op.operands[0]), sweep.shape(inner)
        if source[-2:] != shape[-2:]:
            return None
        inner = op.operands[0]
    term = constants.get(inner)
    return None if term is None else masks.recognise(term)
