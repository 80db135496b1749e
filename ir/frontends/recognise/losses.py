"""Cross entropy of classes, written out.

    logsumexp(x) - x[label]            and  -log_softmax(x)[label], -sum(one_hot(label) · log_softmax(x))
    sum(loss · counts) / sum(counts)   a mean over the labels that count, where `counts` is label != k

Only as one operator can its vocabulary be split.
"""

from __future__ import annotations

import numpy as np

from meshwright.ir.frontends.recognise.activations import unshifted
from meshwright.ir.frontends.recognise.rewriting import Sweep, dims_of
from meshwright.ir.graph.graph import Attr, Op, Type

NO_LABEL = -(2**31)
"""What no label is, where all of them count."""


def cross_entropy(s: Sweep, op: Op) -> str | None:
    """One loss for every label."""
    if op.kind == "sub" and len(op.operands) == 2:
        return _difference(s, op)
    if op.kind == "gather":
        scores = s.made(op.operands[0], "log_softmax")
        labels = None if scores is None else _labels(s, op)
        if scores is None or labels is None:
            return None
        loss = _written(s, scores.operands[0], labels)
        return s.view(s.emit("neg", [loss], s.types[loss]), s.types[op.name].shape)
    if op.kind == "sum":
        return _one_hot(s, op)
    return None


def _difference(s: Sweep, op: Op) -> str | None:
    lse = s.made(s.through(op.operands[0], "view"), "logsumexp")
    picked = s.made(s.through(op.operands[1], "view", "slice"), "gather")
    if lse is None or picked is None:
        return None
    z, rank = lse.operands[0], len(s.shape(lse.operands[0]))
    if dims_of(lse) != (rank - 1,):
        return None
    x = unshifted(s, z, rank - 1)
    labels = _labels(s, picked)
    alike = (
        s.through(picked.operands[0], "view") == s.through(z, "view")
        and s.shape(picked.operands[0])[-1:] == s.shape(z)[-1:]
    )
    if labels is None or not alike or s.types[op.name].elements != s.types[labels].elements:
        return None
    return s.view(_written(s, x, s.view(labels, s.shape(x)[:-1])), s.types[op.name].shape)


def _labels(s: Sweep, picked: Op) -> str | None:
    """The labels [...] of a look-up x[..., label[...]] along the last dimension."""
    x, index = picked.operands
    shape = s.shape(x)
    if picked.attr("dim") != len(shape) - 1 or s.shape(index) != (*shape[:-1], 1):
        return None
    return s.view(s.through(index, "view"), shape[:-1])


def _written(s: Sweep, x: str, labels: str) -> str:
    type_ = Type(s.shape(labels), s.types[x].dtype)
    attrs: dict[str, Attr] = {"reduction": "none", "ignore_index": NO_LABEL, "label_smoothing": 0.0}
    return s.emit("cross_entropy", [x, labels], type_, attrs)


def _one_hot(s: Sweep, op: Op) -> str | None:
    """sum(one_hot · log_softmax(x)) over the last dimension."""
    product = s.made(op.operands[0], "mul")
    if product is None or len(product.operands) != 2 or op.attr("keepdim"):
        return None
    for one, other in (product.operands, product.operands[::-1]):
        scores, hot = s.made(other, "log_softmax"), s.made(s.through(one, "cast"), "eq")
        if scores is None or hot is None or len(hot.operands) != 2:
            continue
        shape = s.shape(other)
        if dims_of(op) != (len(shape) - 1,) or dims_of(scores) != dims_of(op):
            continue
        for index, line in (hot.operands, hot.operands[::-1]):
            if s.shape(index) == (*shape[:-1], 1) and _counts(s, line, shape[-1]):
                loss = _written(s, scores.operands[0], s.view(s.through(index, "view"), shape[:-1]))
                return s.emit("neg", [loss], s.types[loss])
    return None


def _counts(s: Sweep, value: str, extent: int) -> bool:
    """Whether a constant counts 0, 1, 2 … along its last dimension."""
    term = s.constants.get(value)
    if term is None or s.shape(value)[-1] != extent:
        return False
    at = np.array(sorted({0, 1, extent // 2, extent - 1}))
    try:
        found = term.at((*(np.zeros_like(at) for _ in s.shape(value)[:-1]), at))
    except Exception:  # noqa: BLE001 - what cannot be evaluated is not known to count
        return False
    return bool(np.array_equal(np.broadcast_to(found, at.shape), at))


def averaged(s: Sweep, op: Op) -> str | None:
    """The mean of all losses, or of those that count."""
    if op.kind == "mean":
        loss = s.made(s.through(op.operands[0], "cast", "view"), "cross_entropy")
        whole = len(dims_of(op)) == len(s.shape(op.operands[0])) and not op.attr("keepdim")
        if loss is None or loss.attr("reduction") != "none" or not whole:
            return None
        attrs: dict[str, Attr] = {**dict(loss.attrs), "reduction": "mean"}
        made = s.emit("cross_entropy", loss.operands, Type((), s.types[loss.name].dtype), attrs)
        return s.cast(made, s.types[op.name].dtype)
    if op.kind != "div" or len(op.operands) != 2 or s.types[op.name].shape:
        return None
    counted = s.made(s.through(_uncapped(s, op.operands[1]), "cast"), "sum")
    total = s.made(s.through(op.operands[0], "cast"), "sum")
    if counted is None or total is None:
        return None
    counts = s.through(counted.operands[0], "cast")
    loss = _that_counts(s, total.operands[0], counts)
    return None if loss is None else _over(s, op, loss, counts)


def _uncapped(s: Sweep, value: str) -> str:
    """A count before it was made one at least."""
    value = s.through(value, "cast")
    cap = s.made(value, "maximum")
    return cap.operands[0] if cap is not None and cap.attr("scalar") == 1 else value


def _that_counts(s: Sweep, value: str, counts: str) -> Op | None:
    """The losses, of which those that do not count are zero."""
    chosen = s.made(s.through(value, "cast"), "where", "mul")
    if chosen is None or len(chosen.operands) != 2:
        return None
    for one, other in (chosen.operands, chosen.operands[::-1]):
        loss = s.made(s.through(one, "cast"), "cross_entropy")
        if loss is not None and s.through(other, "cast") == counts and loss.attr("reduction") == "none":
            zero = chosen.kind == "mul" or (chosen.attr("scalar") == 0 and not chosen.attr("reverse"))
            return loss if zero else None
    return None


def _over(s: Sweep, op: Op, loss: Op, counts: str) -> str | None:
    test = s.made(counts, "ne")
    x, labels = loss.operands
    ignored = None if test is None else test.attr("scalar")
    if test is None or not isinstance(ignored, int):
        return None
    chosen = s.made(s.through(labels, "view"), "where")
    own = labels if chosen is None else next((v for v in chosen.operands[1:] if v == test.operands[0]), "")
    if own != test.operands[0] or (chosen is not None and chosen.operands[0] != counts):
        return None
    attrs = {**dict(loss.attrs), "reduction": "mean", "ignore_index": ignored}
    own = s.view(own, s.shape(labels))
    made = s.emit("cross_entropy", [x, own], Type((), s.types[loss.name].dtype), attrs)
    return s.cast(made, s.types[op.name].dtype)
