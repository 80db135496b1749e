"""Counts of what a loss is a mean over, as code: `(batch["labels"] != -100).sum()`.

The text fits tensors of torch and arrays of JAX alike; padding, which each writes in its own way, is the caller's.
"""

from __future__ import annotations

from collections.abc import Callable

from meshwright.ir.analysis.weights import Step, Weight

INFIX = {"ne": "!=", "eq": "==", "lt": "<", "le": "<=", "gt": ">", "ge": ">="}
Padded = Callable[[str, Step], str]
"""The code of a text that is padded as a step says."""


def counted(weight: Weight, entry: str, padded: Padded) -> str:
    """The number of elements of an entry of the batch, or a part of it, that count, as code."""
    text = entry
    for step in weight.steps:
        text = padded(text, step) if step.kind == "pad" else _stepped(step, text)
    return f"{text if text == entry or text.endswith((')', ']')) else f'({text})'}.sum()"


def _stepped(step: Step, text: str) -> str:
    attrs = dict(step.attrs)
    inner = text if text.isidentifier() or text.endswith((")", "]")) else f"({text})"
    if step.kind == "not":
        return f"(~{inner})"
    if step.kind == "slice":
        dim, start, end, by = (attrs[name] for name in ("dim", "start", "end", "step"))
        assert isinstance(dim, int)
        stride = f":{by}" if by not in (None, 1) else ""
        return f"{inner}[{':, ' * dim}{start or ''}:{end}{stride}]"
    return f"({inner} {INFIX[step.kind]} {attrs['scalar']})"
