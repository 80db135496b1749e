"""Hypothesis strategies for the types of the IR. Graphs here are well formed but mean nothing: kinds need no rule."""

from __future__ import annotations

from hypothesis import strategies as st

from meshwright.ir.graph import ITEMSIZE, Attr, Graph, Input, Op, Param, Type, Update

plain_names = st.from_regex(r"[a-z][a-z0-9_.]{0,5}", fullmatch=True)
any_names = st.one_of(plain_names, st.text(st.characters(exclude_categories=["Cs"]), max_size=4))
types = st.builds(Type, st.lists(st.integers(0, 9), max_size=4).map(tuple), st.sampled_from(sorted(ITEMSIZE)))
scalars = st.one_of(
    st.booleans(), st.integers(), st.floats(allow_nan=False), any_names, st.none(), st.sampled_from(["inf", "true"])
)
attrs: st.SearchStrategy[Attr] = st.recursive(scalars, lambda inner: st.lists(inner, max_size=3).map(tuple))


@st.composite
def graphs(draw: st.DrawFn, names: st.SearchStrategy[str] = any_names) -> Graph:
    """Graphs of up to eight values, with every optional part now and then present."""
    values = draw(st.lists(names, min_size=1, max_size=8, unique=True))
    types_ = {value: draw(types) for value in values}
    cuts = sorted(draw(st.tuples(*[st.integers(0, len(values))] * 2)))
    inputs = tuple(_input(draw, value, names) for value in values[: cuts[0]])
    params = tuple(_param(draw, value, names) for value in values[cuts[0] : cuts[1]])
    ops, known, rest = [], list(values[: cuts[1]]), values[cuts[1] :]
    while rest:
        taken = draw(st.integers(1, len(rest)))
        ops.append(_op(draw, known, tuple(rest[:taken]), names))
        known, rest = known + rest[:taken], rest[taken:]
    outputs = draw(st.lists(st.sampled_from(values), max_size=3))
    updates = [Update(draw(names), draw(st.sampled_from(values)), draw(names)) for _ in range(draw(st.integers(0, 2)))]
    scalars_ = [value for value in outputs if not types_[value].shape]
    loss = draw(st.sampled_from([None, *scalars_]))
    return Graph(types_, inputs, params, tuple(ops), tuple(outputs), tuple(updates), loss)


def _input(draw: st.DrawFn, value: str, names: st.SearchStrategy[str]) -> Input:
    return Input(value, tuple(draw(st.lists(names, max_size=3))), draw(st.booleans()))


def _param(draw: st.DrawFn, value: str, names: st.SearchStrategy[str]) -> Param:
    paths = draw(st.lists(names, min_size=1, max_size=2))
    return Param(value, tuple(paths), draw(st.booleans()), draw(st.booleans()))


def _op(draw: st.DrawFn, known: list[str], results: tuple[str, ...], names: st.SearchStrategy[str]) -> Op:
    operands = tuple(draw(st.lists(st.sampled_from(known), max_size=3))) if known else ()
    return Op(
        draw(names),
        operands,
        results,
        tuple(draw(st.dictionaries(names, attrs, max_size=2)).items()),
        draw(names),
        draw(names),
        draw(st.booleans()),
        draw(st.sampled_from([None, *range(len(operands))])),
    )
