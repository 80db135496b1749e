"""Losses.

Most compare two tensors element by element and then average: a split adds up, with the global count below. Cross
entropy and negative log-likelihood average over the tokens that are not ignored, a count that no shard knows; and the
vocabulary of the logits may be split, which needs a maximum, a sum and the target's logit from all shards. Both are
*expanded*: `expand_cross_entropy` writes the loss as simple operators whose own rules put three small all-reduces where
Megatron's vocabulary-parallel cross entropy has them.
"""

from __future__ import annotations

from collections.abc import Mapping

from meshwright.ir.graph.graph import Attr, Type
from meshwright.ir.rules.base import Dims, Expansion, Factor, Law, Role, Rule, Save, Signature
from meshwright.ir.rules.dims import declare, loops, promoted
from meshwright.ir.rules.registry import expansion, rule
from meshwright.ir.rules.writing import Writer

_BOTH = (Save("operand", 0), Save("operand", 1))

_COMPARED: Mapping[str, tuple[Save, ...]] = {
    "mse_loss": _BOTH,
    "smooth_l1_loss": _BOTH,
    "huber_loss": _BOTH,
    "binary_cross_entropy": _BOTH,
    "binary_cross_entropy_with_logits": _BOTH,
    "kl_div": (Save("operand", 1), Save("operand", 0, needs=(1,))),
}


@rule("l1_loss", *_COMPARED)
def compared(signature: Signature) -> Rule:
    """A distance of each pair of elements, then `reduction`: "mean" (by the global count), "sum", "none".

    The l1 loss is written with a subtraction, whose result it keeps."""
    x, y = signature.operands
    if x.shape != y.shape:
        raise signature.error(f"{x.shape} compared with {y.shape}", "broadcast them first")
    dims = loops(x.shape)
    kept = signature.attr("reduction", "mean") == "none"
    role = Role.PARALLEL if kept else Role.SUM
    return Rule(
        factors=declare([(dims, x.shape)], {name: role for dim in dims for name in dim}),
        operands=(dims, dims),
        results=(dims if kept else (),),
        types=(Type(x.shape if kept else (), promoted((x, y))),),
        laws=(Law.NONLINEAR, Law.NONLINEAR),
        saves=_COMPARED.get(signature.kind, (Save("extra", dims=dims, dtype=promoted((x, y))),)),
        elementwise=kept,
    )


def _classified(signature: Signature, vocabulary: Factor, saves: tuple[Save, ...], own: Law) -> Rule:
    """Scores [..., v] against labels [...]: a scalar, or one loss per label."""
    scores, labels = signature.operands
    if scores.shape[:-1] != labels.shape:
        raise signature.error(f"labels {labels.shape} for scores {scores.shape}", "give one label per row")
    lead = loops(labels.shape)
    reduction = signature.attr("reduction", "mean")
    kept = reduction == "none"
    role = Role.PARALLEL if kept else Role.SUM
    tokens = tuple(
        Factor(factor.name, factor.size, role, expanded=reduction == "mean")
        for factor in declare([(lead, labels.shape)])
    )
    return Rule(
        factors=(*tokens, vocabulary),
        operands=((*lead, ("v",)), lead),
        results=(lead if kept else (),),
        types=(Type(labels.shape if kept else (), scores.dtype),),
        laws=(own, Law.INDEX),
        saves=saves,
    )


@rule("cross_entropy")
def cross_entropy(signature: Signature) -> Rule:
    """-log softmax(logits)[label], averaged (`reduction`) over the labels that are not `ignore_index`.

    Attribute `label_smoothing`. Keeps the log-probabilities, as large as the logits, and the labels."""
    logits = signature.operands[0]
    dims: Dims = (*loops(logits.shape[:-1]), ("v",))
    kept: tuple[Save, ...] = (Save("extra", dims=dims, dtype=logits.dtype), Save("operand", 1))
    if signature.attr("label_smoothing"):
        kept = (*kept, Save("extra", dims=dims[:-1], dtype="bool"))
    vocabulary = Factor("v", logits.shape[-1], Role.PARALLEL, expanded=True)
    return _classified(signature, vocabulary, kept, Law.NONLINEAR)


@rule("nll_loss")
def nll_loss(signature: Signature) -> Rule:
    """-scores[label], averaged like `cross_entropy`; shards of the vocabulary add up."""
    vocabulary = Factor("v", signature.operands[0].shape[-1], Role.SUM)
    return _classified(signature, vocabulary, _BOTH, Law.LINEAR)


class _Rows:
    """The writing of operators over [rows…] and [rows…, v], with the splits carried along."""

    def __init__(self, signature: Signature) -> None:
        self.write = Writer(signature)
        self.signature = signature
        rows = signature.operands[1].shape
        self.rows = rows
        self.splits = {name: name for dim in loops(rows) for name in dim} | {"v": f"d{len(rows)}"}

    def __call__(self, kind: str, *values: str, no_grad: bool = False, **attrs: Attr) -> str:
        return self.write(kind, *values, attrs=attrs, splits=self.splits, no_grad=no_grad)

    def reshape(self, value: str, shape: tuple[int, ...], no_grad: bool = False) -> str:
        names = [name for dim in loops(self.rows) for name in dim]
        splits = {name: f"f{index}" for index, name in enumerate(names)}
        return self.write("view", value, attrs={"shape": shape}, splits=splits, no_grad=no_grad)

    def target(self, scores: str) -> str:
        """The score of each label, 0-th score for ignored ones; shards of the vocabulary add up."""
        ignored = self("eq", "1", no_grad=True, scalar=self.ignore)
        label = self("masked_fill", "1", ignored, no_grad=True, scalar=0)
        index = self.reshape(label, (*self.rows, 1), no_grad=True)
        splits = {name: name for name in self.splits if name != "v"} | {"v": "v"}
        picked = self.write("gather", scores, index, attrs={"dim": len(self.rows)}, splits=splits)
        return self.reshape(picked, self.rows)

    @property
    def ignore(self) -> int:
        return self.signature.integer("ignore_index", -100)

    def reduced(self, loss: str) -> Expansion:
        """The reduction over rows: ignored rows count nothing; a mean divides by how many there are on all shards."""
        reduction = self.signature.attr("reduction", "mean")
        valid = self("ne", "1", no_grad=True, scalar=self.ignore)
        weight = self("cast", valid, no_grad=True, dtype=self.signature.operands[0].dtype)
        if reduction == "mean":
            weight = self("div", weight, self("sum", weight, no_grad=True), no_grad=True)
        loss = self("mul", loss, weight)
        return self.write.done(loss if reduction == "none" else self("sum", loss))


@expansion("cross_entropy")
def expand_cross_entropy(signature: Signature) -> Expansion:
    """log(sum(exp(x - max))) - (x - max)[label]: maximum, sum and label's logit are the three reductions over v."""
    row = _Rows(signature)
    smoothing = signature.attr("label_smoothing", 0.0)
    last = len(row.rows)
    top = row("amax", "0", no_grad=True, dim=last, keepdim=True)
    shifted = row("sub", "0", top)
    total = row("log", row("sum", row("exp", shifted), dim=last))
    loss = row("sub", total, row.target(shifted))
    if smoothing and isinstance(smoothing, float):
        even = row("sub", total, row("mean", shifted, dim=last))
        loss = row("add", row("mul", loss, scalar=1 - smoothing), row("mul", even, scalar=smoothing))
    return row.reduced(loss)


@expansion("nll_loss")
def expand_nll_loss(signature: Signature) -> Expansion:
    """The label's score, negated and averaged."""
    row = _Rows(signature)
    return row.reduced(row("neg", row.target("0")))
