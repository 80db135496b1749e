"""The digest of a model, by which a saved plan recognises it.

It covers what a plan refers to and nothing that another version of a framework would trace otherwise: the names,
shapes, dtypes and tying of parameters and buffers, which blocks the model is folded into, and its configuration.
Traced operators are not in it.
"""

from __future__ import annotations

import hashlib
from collections.abc import Iterator

from meshwright.ir.graph.fold import Fold, joined

LENGTH = 16
"""Hexadecimal digits shown; 64 bits tell models apart."""


def digest(fold: Fold, config: str = "") -> str:
    """A short hexadecimal digest."""
    text = "\n".join([*sorted(set(_parameters(fold))), *_blocks(fold), config])
    return hashlib.sha256(text.encode()).hexdigest()[:LENGTH]


def _parameters(fold: Fold) -> Iterator[str]:
    for call in fold.calls():
        for param in call.body.graph.params:
            paths = " = ".join(sorted(joined(call.path, path) for path in param.paths))
            yield f"{paths}: {call.body.graph.types[param.value]}" + (" trained" if param.requires_grad else "")


def _blocks(fold: Fold) -> Iterator[str]:
    for segment in fold.segments:
        classes = " ".join(fold.body[name].module_class for name in segment.period)
        yield f"{'glue' if segment.glue else 'stack'} {classes} x {segment.repeats}"
