"""Routing and experts in PyTorch: slots, of which a token may find none left, or rows sorted by expert."""

from __future__ import annotations

import re
from math import prod

from meshwright.backends.printing import LocalOp
from meshwright.backends.printing.expressions import Writer, called, every, refuse, value
from meshwright.backends.printing.rows import PRODUCTS
from meshwright.backends.torch_.emit.printed.language.expressions import ranks_of
from meshwright.ir.rules.families.moe import routing_groups, tokens


def dispatch(call: LocalOp) -> str:
    if not call.attrs.get("dropless"):
        return called("to_slots", "%0", "%1", *_slots(call, call.made[0].shape[1]))
    if "e" not in call.cuts:
        return f"dispatch(%0, %1, {call.sizes['e']})"
    return f"dispatch(%0, %1, {call.sizes['e'] // call.parts['e']}, {ranks_of(call, 'e')})"


def combine(call: LocalOp) -> str:
    if not call.rows:
        return called("from_slots", *every(call), *_slots(call, call.given[0].shape[1]))
    return f"combine(%0, %2, %3{', part=True' * ('e' in call.cuts)})"


def _slots(call: LocalOp, slots: int) -> list[str]:
    """Numbers for slots: experts of a rank, tokens of a run that shares slots, along each dimension of tokens, and
    slots of such a run at each expert."""
    chosen, cut = call.given[1].shape[:-1], call.cuts.get("e", ())
    names = tokens(len(chosen))
    whole, parts = [call.sizes[name] for name in names], prod(call.parts.get(name, 1) for name in names)
    runs = routing_groups(call.attrs, whole, slots * parts)
    lengths = tuple(extent // count for extent, count in zip(whole, runs, strict=True))
    experts, room = call.sizes["e"] // call.parts.get("e", 1), slots * parts // prod(runs)
    return [str(experts), value(lengths), str(room), *([ranks_of(call, "e")] if cut else [])]


def of_rows(call: LocalOp, write: Writer) -> str:
    """An operator on rows of experts, where `write` writes it for any operand. Its other operands are the same for all
    rows, or each expert's own."""
    if call.op.kind == "combine":
        return combine(call)
    ends = f"%{len(call.given)}"
    if call.op.kind in PRODUCTS:
        if call.rows[1] or not call.rows[0]:
            raise refuse(call.op, "a product of rows of experts")
        turned = call.op.kind == "grouped_linear" and not call.attrs.get("transposed")
        product = f"products(%0, %1{'.transpose(1, 2)' * turned}, {ends})"
        return f"{product} + by_row(%2[:, None], {ends})" if len(call.given) > 2 else product
    text = write(call)
    for slot, (own, type_) in enumerate(zip(call.rows, call.whole, strict=True)):
        if not own and len(type_.shape) == len(call.made[0].shape) + 1:
            each = f"by_row(%{slot}, {ends})" if type_.shape[0] > 1 else f"%{slot}[0]"
            text = re.sub(rf"%{slot}(?!\d)", each, text)
    return text
