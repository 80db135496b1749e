"""Constants by the operators of ATen that made them, in their dtypes: what their lines are compared with."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor

from meshwright.ir.frontends.folding.terms import Term
from meshwright.ir.frontends.torch_.sources.dtypes import TORCH_DTYPES
from meshwright.ir.graph.constants import Constant, Held
from tests.ir.frontends.run import lines_run


def drawn(held: Held, shape: tuple[int, ...], dtype: torch.dtype) -> Tensor:
    """A tensor of the model: values that are nobody else's."""
    draw = torch.Generator().manual_seed(sum(map(ord, repr(held))))
    if dtype.is_floating_point or dtype.is_complex:
        return (torch.rand(shape, generator=draw, dtype=torch.float64) + 0.1).to(dtype)
    return torch.randint(0, 2, shape, generator=draw).to(dtype)


def reference(root: Term, held: Callable[[Term], Held | None]) -> Tensor:
    """What torch computes, operator by operator."""
    made: dict[int, Any] = {}

    def value(item: Any) -> Any:
        if isinstance(item, list | tuple):
            return [value(part) for part in item]
        if isinstance(item, torch.device):
            return torch.device("cpu")
        if not isinstance(item, Term):
            return item
        if id(item) not in made:
            made[id(item)] = own(item)
        return made[id(item)]

    def own(term: Term) -> Tensor:
        place, dtype = held(term), TORCH_DTYPES[term.dtype]
        if place is not None:
            return drawn(place, term.shape, dtype)
        if term.data is not None:
            return torch.as_tensor(term.data.copy()).to(dtype)
        packet, _, index = term.op.partition("[")
        like = torch.empty(term.shape, dtype=dtype)
        args = [like if item is None and at == 0 else value(item) for at, item in enumerate(term.args)]
        kwargs = {name: value(item) for name, item in term.kwargs.items() if item is not None}
        overload = term.target.partition(".")[2]
        if packet.startswith("new_"):
            kwargs = {name: item for name, item in kwargs.items() if name not in ("dtype", "device")}
        found: Any = getattr(getattr(torch.ops.aten, packet), overload)(*args, **kwargs)
        found = found[int(index[:-1])] if index else found
        assert isinstance(found, Tensor)
        return found.to(dtype)

    return value(root)


def compared(root: Term, held: Callable[[Term], Held | None], constant: Constant) -> str:
    """How the lines of a constant differ from what torch computes; empty if in no bit."""
    shapes = {held(term): (term.shape, TORCH_DTYPES[term.dtype]) for term in leaves(root) if held(term)}
    expected = reference(root, held)
    found = lines_run(constant, lambda one: drawn(one, *shapes[one]))
    if (found.dtype, found.shape) != (expected.dtype, expected.shape):
        return f"{found.dtype} {tuple(found.shape)} for {expected.dtype} {tuple(expected.shape)}"
    if (found.dtype, tuple(found.shape)) != (TORCH_DTYPES[constant.dtype], constant.shape):
        return f"{found.dtype} {tuple(found.shape)} for {constant.dtype} {constant.shape}"
    same = bits(found) == bits(expected)
    return "" if bool(same.all()) else f"{int((~same).sum())} of {found.numel()} values differ"


def bits(tensor: Tensor) -> Tensor:
    """The bytes of a tensor; every NaN is like every other, and so are zeros of either sign like themselves."""
    whole = torch.view_as_real(tensor) if tensor.is_complex() else tensor
    plain = whole.contiguous().clone()
    if plain.is_floating_point():
        plain = torch.where(torch.isnan(plain.float()), torch.full_like(plain, float("nan")), plain)
    return plain.reshape(-1).view(torch.uint8)


def leaves(root: Term) -> list[Term]:
    """Every term of an expression."""
    found: dict[int, Term] = {}
    pending: list[Any] = [root]
    while pending:
        item = pending.pop()
        if isinstance(item, list | tuple):
            pending += item
        elif isinstance(item, Term) and id(item) not in found:
            found[id(item)] = item
            pending += [*item.args, *item.kwargs.values()]
    return list(found.values())
