"""Constants at single points: every law says what torch's operator says, at all points and where indices broadcast."""

from __future__ import annotations

from typing import Any

import numpy
import pytest
import torch
from torch import Tensor

from meshwright.ir.frontends.folding import terms as constants
from meshwright.ir.frontends.folding.terms import NotEvaluable, Term, evaluable

X = torch.tensor([[0.5, -1.0, 2.0, 3.5], [4.0, 0.25, -6.0, 7.5], [8.0, -9.5, 0.0, 1.5]])
Y = torch.tensor([[1.0, -1.0, 4.0, 0.5], [-4.0, 2.0, 6.0, 3.0], [2.0, 9.5, 1.0, -1.5]])
ROW = torch.tensor([2.0, -1.0, 0.5, 3.0])
COLUMN = torch.tensor([[1.0], [2.0], [-3.0]])
N = torch.arange(-6, 6).reshape(3, 4)
M = torch.tensor([[1, -2, 3, 2], [2, 5, -3, 1], [4, 2, 7, -2]])
B = X > 0
CUBE = torch.arange(24.0).reshape(2, 3, 4)

CASES: list[tuple[str, tuple[Any, ...], dict[str, Any]]] = [
    *((name, (N, M), {}) for name in ("eq", "ne", "lt", "le", "gt", "ge", "minimum", "maximum", "min", "max")),
    ("floor_divide", (N, M), {}),
    *((name, (N, 2), {}) for name in ("eq", "ne", "lt", "le", "gt", "ge", "remainder", "bitwise_and", "__and__")),
    *((name, (N, M), {}) for name in ("bitwise_or", "__or__", "remainder")),
    *((name, (B, Y > 0), {}) for name in ("logical_and", "logical_or", "logical_xor", "bitwise_and")),
    *((name, (X, ROW), {}) for name in ("mul", "add", "sub", "div", "lt")),
    *((name, (COLUMN, ROW), {}) for name in ("mul", "add", "sub", "div", "maximum")),
    *((name, (X,), {}) for name in ("neg", "abs", "exp", "tanh", "floor", "ceil", "cos", "sin", "reciprocal")),
    *((name, (X.abs() + 1,), {}) for name in ("log", "sqrt", "rsqrt")),
    *((name, (B,), {}) for name in ("logical_not", "bitwise_not")),
    ("pow", (X.abs() + 1, Y), {}),
    ("pow", (2, Y), {}),
    ("rsub", (X, 3.0), {}),
    ("add", (X, Y), {"alpha": 3}),
    ("sub", (X, Y), {"alpha": 3}),
    ("div", (X, 4.0), {"rounding_mode": "floor"}),
    ("div", (X, 4.0), {"rounding_mode": "trunc"}),
    ("where", (B, X, ROW), {}),
    ("masked_fill", (X, B, -7.0), {}),
    *((name, (X,), {}) for name in ("alias", "clone", "detach", "lift_fresh_copy")),
    ("_to_copy", (X,), {"dtype": torch.int64}),
    ("_to_copy", (X,), {"dtype": torch.bool}),
    ("_to_copy", (B,), {"dtype": torch.float32}),
    ("expand", (COLUMN, [3, 5]), {}),
    ("expand", (ROW, [2, 3, 4]), {}),
    ("view", (X, [4, 3]), {}),
    ("view", (X, [2, 1, 6]), {}),
    ("view", (CUBE, [6, 4]), {}),
    ("unsqueeze", (X, 1), {}),
    ("squeeze", (X.reshape(3, 1, 4), 1), {}),
    ("ones", ([2, 3],), {}),
    ("ones_like", (X,), {}),
    ("zeros", ([2, 3],), {}),
    ("new_zeros", (X, [2]), {}),
    ("full", ([2, 3], 7.0), {}),
    ("full_like", (X, 7.0), {}),
    ("new_full", (X, [2, 2], 5.0), {}),
    ("eye", (3,), {}),
    ("scalar_tensor", (4.0,), {}),
    ("outer", (ROW, torch.tensor([1.0, 10.0])), {}),
    ("arange", (5,), {}),
    ("arange", (2, 7), {}),
    ("arange", (2, 9, 3), {}),
    ("permute", (CUBE, [2, 0, 1]), {}),
    ("permute", (CUBE, [0, -1, 1]), {}),
    ("transpose", (CUBE, 0, 2), {}),
    ("transpose", (CUBE, -1, -2), {}),
    ("t", (X,), {}),
    ("copy", (X, ROW), {}),
    ("fill", (X, 3.0), {}),
    ("slice", (X,), {}),
    ("slice", (X, 0, 1, 3), {}),
    ("slice", (X, 1, -3, 9), {}),
    ("slice", (X, -1, None, None, 2), {}),
    ("slice", (X, 1, -9, 2), {}),
    ("slice", (X, 1, 1, 4, 2), {}),
    ("slice_scatter", (X, Y[:, :2], 1, 1, 3, 1), {}),
    ("slice_scatter", (X, Y[:, :2], 1, 0, 4, 2), {}),
    ("slice_scatter", (X, Y[:2], 0, 1, 3, 1), {}),
    ("select", (CUBE, 1, 2), {}),
    ("select", (CUBE, -1, -1), {}),
    ("cat", ([X, Y, X[:1]],), {}),
    ("cat", ([X, COLUMN, Y], -1), {}),
    ("cat", ([X[:, :0], Y], 1), {}),
    ("tril", (X,), {}),
    ("tril", (X, 1), {}),
    ("triu", (CUBE,), {}),
    ("triu", (X, -1), {}),
    ("cumsum", (ROW, 0), {}),
    ("cumsum", (X, 1), {}),
    ("cumsum", (CUBE, 0), {}),
    ("cumsum", (CUBE, -2), {}),
    ("diff", (X,), {}),
    ("diff", (X, 1, 0), {}),
    ("diff", (X, 1, -1, COLUMN), {}),
    ("diff", (X, 1, 0, Y[:2]), {}),
    ("index", (X, [torch.tensor([2, -1, 0])]), {}),
    ("index", (CUBE, [torch.tensor([[1], [0]]), torch.tensor([2, 0, -3])]), {}),
]


def term(value: Any) -> Any:
    """Tensors among operands as terms that hold their data."""
    if isinstance(value, list):
        return [term(one) for one in value]
    if not isinstance(value, Tensor):
        return value
    return Term("", tuple(value.shape), "", data=value.numpy())


def asked(op: str, args: tuple[Any, ...], kwargs: dict[str, Any]) -> tuple[Term, Tensor]:
    """A constant, and what torch makes of it."""
    expected: Tensor = getattr(torch.ops.aten, op)(*args, **kwargs)
    dtype = {torch.bool: "bool", torch.int64: "i64"}.get(expected.dtype, "f32")
    kept = {name: one for name, one in kwargs.items() if name != "dtype"}
    return Term(op, tuple(expected.shape), dtype, tuple(map(term, args)), kept), expected


@pytest.mark.parametrize("case", CASES, ids=lambda case: case[0])
def test_laws_are_torchs(case: tuple[str, tuple[Any, ...], dict[str, Any]]) -> None:
    constant, expected = asked(*case)
    everywhere = numpy.indices(expected.shape, sparse=True)
    found = numpy.broadcast_to(constant.at(tuple(everywhere)), expected.shape)
    numpy.testing.assert_allclose(found, expected.numpy(), rtol=1e-6)
    dense = numpy.broadcast_arrays(*everywhere) if expected.ndim else []
    numpy.testing.assert_array_equal(constant.at(tuple(dense)), found)
    if expected.dtype in (torch.bool, torch.int64):
        assert found.dtype.kind == ("b" if expected.dtype == torch.bool else "i")


def test_laws_are_put_together() -> None:
    """A causal mask of positions that begin anew at every 1 of a table."""
    starts = torch.tensor([0, 0, 1, 0, 1, 0])
    document = Term("cumsum", (6,), "i64", (term(starts), 0))
    rows = Term("unsqueeze", (6, 1), "i64", (document, 1))
    same = Term("eq", (6, 6), "bool", (rows, document))
    mask = Term("bitwise_and", (6, 6), "bool", (same, Term("tril", (6, 6), "bool", (Term("ones", (6, 6), "bool"),))))
    found = mask.at(tuple(numpy.indices((6, 6), sparse=True)))
    assert ["".join(str(int(one)) for one in row) for row in found] == [
        "100000",
        "110000",
        "001000",
        "001100",
        "000010",
        "000011",
    ]


def test_what_has_no_law_is_left_alone() -> None:
    here = (numpy.zeros(1, dtype=numpy.int64),)
    assert evaluable("tril")
    assert not evaluable("svd")
    for refused in (
        Term("svd", (1,), "f32"),
        Term("", (1,), "f32"),
        Term("diff", (1,), "f32", (term(ROW), 2)),
        Term("diff", (1,), "f32", (term(ROW), 1, -1, None, term(ROW))),
        Term("index", (1,), "f32", (term(X), [None, torch.tensor([0])])),
    ):
        with pytest.raises(NotEvaluable):
            refused.at(here)


def test_sums_over_too_much_are_left_alone(monkeypatch: pytest.MonkeyPatch) -> None:
    """Three rows of four are twelve points."""
    constant, expected = asked("cumsum", (X, 1), {})
    points = tuple(numpy.indices((3, 4), sparse=True))
    monkeypatch.setattr(constants, "_MAX_POINTS", 12)
    numpy.testing.assert_allclose(constant.at(points), expected.numpy())
    monkeypatch.setattr(constants, "_MAX_POINTS", 11)
    with pytest.raises(NotEvaluable):
        constant.at(points)
