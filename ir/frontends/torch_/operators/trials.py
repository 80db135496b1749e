"""Trials of an operator on tiny tensors: the whole of it and pieces, forward and for its gradients."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from meshwright.ir.frontends.torch_.operators.aside import Board
from meshwright.ir.frontends.torch_.operators.invoked import called
from meshwright.ir.frontends.torch_.sources.dtypes import TORCH_DTYPES
from meshwright.ir.graph.graph import Attr, Type

SMALLEST = 4
"""The extent of the first loop that is tried: two pieces of two, or of one and three."""

DRAWS = 3

MOST_DRAWS = 12
"""Tried, until enough run."""

NARROW = 9
"""From this draw on, numbers are close to zero: functions may have a narrow domain."""

TOLERANCE = {torch.float64: 1e-8, torch.complex128: 1e-8, torch.float32: 1e-3, torch.complex64: 1e-3}
Shape = tuple[int, ...]

Cut = tuple[int | None, ...]
"""For each tensor, the dimension that is cut, or none."""


@dataclass(slots=True)
class Drawn:
    """Values of the operands, and the whole operator on them."""

    values: tuple[Tensor, ...]
    seeds: tuple[Tensor | None, ...]
    results: tuple[Tensor, ...]
    grads: tuple[Tensor | None, ...]


class Trial:
    """The operator on tensors of some shapes."""

    def __init__(
        self, overload: Any, call: Attr, operands: Sequence[Type], shapes: Sequence[Shape], board: Board
    ) -> None:
        self.overload, self.call, self.shapes_whole, self.board = overload, call, tuple(shapes), board
        self.dtypes = [TORCH_DTYPES[type_.dtype] for type_ in operands]
        self.random = torch.Tag.nondeterministic_seeded in overload.tags
        self.floating = torch.float64
        self.draws: list[Drawn] = []

    def shapes(self, shapes: Sequence[Shape]) -> tuple[Shape, ...] | None:
        """The shapes of the results, if it runs on operands of these shapes."""
        given = [
            torch.empty(shape, dtype=dtype, device="meta") for shape, dtype in zip(shapes, self.dtypes, strict=True)
        ]
        if not self.board.begins(f"shapes {shapes}"):
            return None
        try:
            made = called(self.overload, self.call, given, device="meta")
        except Exception:  # noqa: BLE001 - whatever an operator raises at shapes that it does not take
            return None
        return tuple(tuple(one.shape) for one in _tensors(made))

    def prepare(self) -> bool:
        """Draw values until enough of them run; in fp64 if the operator has it."""
        for self.floating in (torch.float64, torch.float32):
            self.draws = []
            for number in range(MOST_DRAWS):
                values = self._drawn(number)
                if len(self.draws) < DRAWS and (draw := self._whole(values, number)) is not None:
                    self.draws.append(draw)
            if len(self.draws) >= DRAWS - 1:
                return True
        return False

    def _drawn(self, number: int) -> tuple[Tensor, ...]:
        generator = torch.Generator().manual_seed(number)
        least = min((extent for shape in self.shapes_whole for extent in shape), default=2)
        bound = max(2, (least, 2, SMALLEST)[number % 3])
        return tuple(
            self._value(shape, dtype, number, bound, generator)
            for shape, dtype in zip(self.shapes_whole, self.dtypes, strict=True)
        )

    def _value(self, shape: Shape, dtype: torch.dtype, number: int, bound: int, generator: torch.Generator) -> Tensor:
        """Numbers around zero, of two scales; positive ones; symmetric matrices; at last, small numbers. Integers in no
        order, or sorted."""
        if dtype is torch.bool:
            return torch.rand(shape, generator=generator) < 0.5
        if not dtype.is_floating_point and not dtype.is_complex:
            drawn = torch.randint(0, bound, shape, generator=generator).to(dtype)
            if number < 6 or number >= NARROW or not shape:
                return drawn
            drawn = drawn.sort(-1).values
            drawn[..., :1] = 0
            return drawn
        floating = self.floating
        if dtype.is_complex:
            floating = torch.complex128 if self.floating is torch.float64 else torch.complex64
        drawn = torch.randn(shape, generator=generator, dtype=floating)
        if number >= NARROW:
            return drawn * 0.1
        if number % 3 == 1:
            return drawn * 3
        if number % 3 == 2:
            drawn = drawn.abs() * 0.5 + 0.05
            if len(shape) > 1 and shape[-1] == shape[-2]:
                return drawn @ drawn.mT + torch.eye(shape[-1], dtype=floating)
        return drawn

    def _whole(self, values: tuple[Tensor, ...], number: int) -> Drawn | None:
        results = self.run(values)
        if results is None or not results or any(not _finite(one) for one in results):
            return None
        if self.random and not all(map(self.same, results, self.run(values) or ())):
            return None
        if not any(bool(one.to(torch.bool).any()) for one in results if one.numel()):
            return None
        generator = torch.Generator().manual_seed(100 + number)
        seeds = tuple(
            torch.randn(one.shape, generator=generator, dtype=one.dtype) if is_differentiable(one.dtype) else None
            for one in results
        )
        return Drawn(values, seeds, results, self.gradients(values, seeds))

    def run(self, values: Sequence[Tensor]) -> tuple[Tensor, ...] | None:
        """The results, if it takes these values."""
        if not self.board.begins(f"values {[tuple(one.shape) for one in values]}"):
            return None
        try:
            with torch.no_grad():
                return _tensors(called(self.overload, self.call, [one.clone() for one in values]))
        except Exception:  # noqa: BLE001 - whatever an operator raises at values that it does not take
            return None

    def gradients(self, values: Sequence[Tensor], seeds: Sequence[Tensor | None]) -> tuple[Tensor | None, ...]:
        """The gradient of each floating operand; none where there is none."""
        given = [one.clone().requires_grad_(is_differentiable(one.dtype)) for one in values]
        wanted = [one for one in given if one.requires_grad]
        if not self.board.begins(f"gradients {[tuple(one.shape) for one in values]}"):
            return (None,) * len(given)
        try:
            results = _tensors(called(self.overload, self.call, [one.view_as(one) for one in given]))
            pairs = [(y, seed) for y, seed in zip(results, seeds, strict=True) if seed is not None and y.requires_grad]
            if not pairs or not wanted:
                return (None,) * len(given)
            made = iter(
                torch.autograd.grad([y for y, _ in pairs], wanted, [seed for _, seed in pairs], allow_unused=True)
            )
        except Exception:  # noqa: BLE001 - an operator may have no derivative
            return (None,) * len(given)
        return tuple(next(made) if one.requires_grad else None for one in given)

    def same(self, one: Tensor, other: Tensor) -> bool:
        """Whether two tensors are equal, up to rounding where they are floating."""
        if one.shape != other.shape or one.dtype != other.dtype:
            return False
        if not is_differentiable(one.dtype):
            return bool(torch.equal(one, other))
        if not one.numel():
            return True
        scale = max(1.0, float(other.abs().max()))
        return bool((one - other).abs().max() <= TOLERANCE.get(one.dtype, 3e-2) * scale)


def _tensors(made: Any) -> tuple[Tensor, ...]:
    if isinstance(made, Tensor):
        return (made,)
    return tuple(leaf for one in made for leaf in _tensors(one)) if isinstance(made, list | tuple) else ()


def is_differentiable(dtype: torch.dtype) -> bool:
    return bool(dtype.is_floating_point or dtype.is_complex)


def _finite(one: Tensor) -> bool:
    return not is_differentiable(one.dtype) or bool(torch.isfinite(one).all())
