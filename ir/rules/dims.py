"""Dimensions in rules: helpers that every family shares.

Most operators have one loop per result dimension. Such loops are called d0, d1, … after their position, counted from
the front of the *result*; an operand that is broadcast lines up from the right. A dimension of extent 1 runs over no
loop at all: there is nothing to split, and what is broadcast from it looks alike on every rank.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from math import prod

from meshwright.ir.graph.graph import Type
from meshwright.ir.rules.base import Dims, Factor, Law, Role, Signature

Shape = tuple[int, ...]

PARALLEL: Mapping[str, Role] = {}

_CATEGORY = {"bool": 0} | dict.fromkeys(("u8", "i8", "i16", "i32", "i64"), 1) | {"c64": 3, "c128": 3}
_WIDTH = ("bool", "u8", "i8", "i16", "i32", "i64", "f4", "f8e4m3", "f8e5m2", "f16", "bf16", "f32", "f64", "c64", "c128")


def loops(shape: Shape, prefix: str = "d") -> Dims:
    """One loop per dimension, none for extent 1."""
    return aligned(shape, len(shape), prefix)


def aligned(shape: Shape, rank: int, prefix: str = "d") -> Dims:
    """The loops of an operand that is broadcast against `rank` dimensions."""
    offset = rank - len(shape)
    return tuple(() if extent == 1 else (f"{prefix}{offset + index}",) for index, extent in enumerate(shape))


def replaced(dims: Dims, changes: Mapping[int, tuple[str, ...]]) -> Dims:
    """The same dims with some positions replaced."""
    return tuple(changes.get(index, dim) for index, dim in enumerate(dims))


def declare(tensors: Iterable[tuple[Dims, Shape]], roles: Mapping[str, Role] = PARALLEL) -> tuple[Factor, ...]:
    """The factors of dims that run over one loop each, sized by the first dimension that names them; parallel unless
    `roles` says otherwise."""
    sizes: dict[str, int] = {}
    for dims, shape in tensors:
        for dim, extent in zip(dims, shape, strict=True):
            if len(dim) == 1:
                sizes.setdefault(dim[0], extent)
    return tuple(Factor(name, size, roles.get(name, Role.PARALLEL)) for name, size in sizes.items())


def whole(dims: Dims, positions: Iterable[int], role: Role = Role.WHOLE) -> dict[str, Role]:
    """One role for every loop at these positions."""
    return {name: role for position in positions for name in dims[position]}


def law(type_: Type, wanted: Law) -> Law:
    """The law of an operand; one without a gradient is an index, whatever the operator does to it."""
    return wanted if type_.floating else Law.INDEX


def broadcast(signature: Signature) -> Shape:
    """The common shape of all operands."""
    rank = max(len(type_.shape) for type_ in signature.operands)
    shape = [1] * rank
    for type_ in signature.operands:
        for index, extent in enumerate(type_.shape, rank - len(type_.shape)):
            if extent != 1 and shape[index] not in (1, extent):
                raise signature.error(f"{extent} meets {shape[index]} in dim {index}", "give shapes that broadcast")
            shape[index] = extent if shape[index] == 1 else shape[index]
    return tuple(shape)


def promoted(types: Iterable[Type], *scalars: object) -> str:
    """The dtype that operands and numbers promote to: tensors with dimensions decide, others only by category."""
    types = tuple(types)
    with_dims = _widest(type_.dtype for type_ in types if type_.shape)
    without = _widest(type_.dtype for type_ in types if not type_.shape)
    dtype = without if without and (not with_dims or _category(without) > _category(with_dims)) else with_dims
    for scalar in scalars:
        if isinstance(scalar, (bool, int, float)) and _category(_scalar_dtype(scalar)) > _category(dtype or "bool"):
            dtype = _scalar_dtype(scalar)
    return dtype or "f32"


def real(dtype: str) -> str:
    """The dtype of a transcendental function of this one."""
    return dtype if Type((), dtype).floating else "f32"


def _category(dtype: str) -> int:
    return _CATEGORY.get(dtype, 2)


def _scalar_dtype(scalar: bool | int | float) -> str:
    return "bool" if isinstance(scalar, bool) else ("i64" if isinstance(scalar, int) else "f32")


def _widest(dtypes: Iterable[str]) -> str | None:
    found = set(dtypes)
    top = max((_category(dtype) for dtype in found), default=0)
    ranked = sorted((dtype for dtype in found if _category(dtype) == top), key=_WIDTH.index)
    if {"u8", "i8"} <= found and ranked[-1] == "i8":
        return "i16"
    if {"f16", "bf16"} <= found and ranked[-1] == "bf16":
        return "f32"
    return ranked[-1] if ranked else None


@dataclass(frozen=True, slots=True)
class Refined:
    """Two shapes of one tensor, written over common factors."""

    source: Dims
    target: Dims
    factors: tuple[Factor, ...]


def refine(source: Shape, target: Shape) -> Refined:
    """Two shapes over common factors, from the right: (b, s, h·d) and (b, s, h, d) become b s h d on both sides.

    Where neither extent divides the other, the dims up to the next common boundary are WHOLE, each side for itself.
    """
    work = _Refinement(list(source), list(target))
    if prod(source):
        work.run()
    else:
        work.strand(range(len(source)), range(len(target)))
    return work.done()


class _Refinement:
    """The refinement of two shapes from the right; `left` is the rest of each dim."""

    def __init__(self, source: list[int], target: list[int]) -> None:
        self.left = (source, target)
        self.dims: tuple[list[list[int]], list[list[int]]] = ([[] for _ in source], [[] for _ in target])
        self.sizes: list[tuple[int, Role]] = []

    def run(self) -> None:
        source, target = self.left
        i, j = len(source) - 1, len(target) - 1
        while i >= 0 and j >= 0:
            if source[i] == 1 or target[j] == 1:
                i, j = i - (source[i] == 1), j - (target[j] == 1)
            elif source[i] % target[j] and target[j] % source[i]:
                i, j = self.skip(i, j)
            else:
                self.share(i, j, min(source[i], target[j]))

    def share(self, i: int, j: int, size: int) -> None:
        for side, at in ((0, i), (1, j)):
            self.dims[side][at].insert(0, len(self.sizes))
            self.left[side][at] //= size
        self.sizes.append((size, Role.PARALLEL))

    def skip(self, i: int, j: int) -> tuple[int, int]:
        """Strand the dims from (i, j) leftwards until both sides have covered equally many elements."""
        source, target = self.left
        first, second = i, j
        while (a := prod(source[first : i + 1])) != (b := prod(target[second : j + 1])):
            first, second = first - (a < b), second - (b < a)
        self.strand(range(first, i + 1), range(second, j + 1))
        return first - 1, second - 1

    def strand(self, *positions: range) -> None:
        for side, dims in enumerate(positions):
            for at in dims:
                self.dims[side][at].insert(0, len(self.sizes))
                self.sizes.append((self.left[side][at], Role.WHOLE))

    def done(self) -> Refined:
        count = len(self.sizes)
        names = [f"f{count - 1 - number}" for number in range(count)]
        source, target = (tuple(tuple(names[n] for n in dim) for dim in dims) for dims in self.dims)
        factors = tuple(Factor(name, *size) for name, size in zip(names, self.sizes, strict=True))
        return Refined(source, target, tuple(reversed(factors)))
