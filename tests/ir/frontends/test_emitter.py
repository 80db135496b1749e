"""How constants come into a graph: what they are called, where they stand, and by which law they are told apart."""

from __future__ import annotations

import re
from collections.abc import Iterator
from typing import Any

import numpy

from meshwright.ir.frontends.folding.emit import Emitter
from meshwright.ir.frontends.folding.handles import Assembly, Attribute, Names, Place
from meshwright.ir.frontends.folding.terms import Term
from meshwright.ir.frontends.torch_.constants.code import constant_of
from meshwright.ir.graph.graph import Type


def emitter(module: str = "") -> Emitter:
    """Blocks are modules of two names."""
    found = Emitter(Names(lambda path: path, lambda path: path if path.count(".") == 1 else ""))
    found.place = Place(module)
    return found


def law(term: Term, own: Emitter | None = None) -> str:
    own = own or emitter()
    return str(own.producer[own.value(own.keep(term))].attr("law"))


def row(start: int = 0, **more: Any) -> Term:
    return Term("arange", (4,), "i64", (start, 4), more)


def held(*values: float) -> Term:
    return Term("", (2,), "f32", data=numpy.array(values))


def test_laws_are_alike_for_what_is_made_alike() -> None:
    """Wherever it is made: of equal parts, from equal numbers, on whichever device."""

    def terms() -> Iterator[Term]:
        yield row()
        yield row(1)
        yield row(step=2)
        yield Term("arange", (4,), "f32", (0, 4))
        yield Term("arange", (5,), "i64", (0, 4))
        yield Term("zeros", (4,), "i64", (0, 4))
        yield Term("cat", (8,), "i64", ([row(), row()],))
        yield Term("cat", (8,), "i64", ([row(), row(1)],))
        yield Term("cat", (8,), "i64", ([row(1), row()],))
        yield Term("add", (2,), "f32", (held(1.0, 2.0), 1))
        yield Term("add", (2,), "f32", (held(1.0, 3.0), 1))
        yield Term("add", (2,), "f32", (held(1.0, 2.0), 1), {"alpha": row()})
        yield held(1.0, 2.0)

    first, again = list(map(law, terms())), list(map(law, terms()))
    assert first == again
    assert len(set(first)) == len(first)
    assert [one.partition(":")[0] for one in first] == [
        *["arange"] * 5,
        "zeros",
        *["cat"] * 3,
        *["add"] * 3,
        "buffer",
    ]
    assert all(re.fullmatch(r"\w+:[0-9a-f]{8}", one) for one in first)
    assert law(row(device="cuda")) == law(row(device="cpu")) == law(row())


def test_buffers_of_like_blocks_have_like_laws() -> None:
    """They go by their names within the block; outside of blocks by the whole name."""

    def doubled(module: str, buffer: str) -> str:
        own = emitter(module)
        leaf = own.add_constant(Term("", (2,), "f32"), buffer)
        return law(Term("mul", (2,), "f32", (leaf, 2)), own)

    assert doubled("blocks.0", "blocks.0.table") == doubled("blocks.1", "blocks.1.table")
    assert doubled("blocks.0", "blocks.0.table") != doubled("blocks.1", "blocks.1.other")
    assert doubled("blocks.0", "blocks.1.table") != doubled("blocks.1", "blocks.1.table")
    assert doubled("", "blocks.0.table") != doubled("", "blocks.1.table")


def test_a_blocks_own_buffer_is_not_the_models_of_that_name() -> None:
    own = emitter("blocks.0")
    inner, outer = (own.add_constant(Term("", (2,), "f32"), path) for path in ("blocks.0.table", "table"))
    values = [own.value(own.keep(Term("mul", (2,), "f32", (leaf, 2)))) for leaf in (inner, outer)]
    first, second = own.made(values, constant_of).values()
    assert [one.relative for one in (*first.held, *second.held)] == [True, False]
    assert [one.path for one in (*first.held, *second.held)] == ["table", "table"]


def test_attributes_are_read_in_the_block_that_holds_them() -> None:
    """Wherever else the model has them; one that no module holds is nobody's."""
    own = emitter("blocks.1")
    places = (Attribute("blocks.0.table"), Attribute("blocks.1.table", ("long",)))
    leaf = own.add_attribute(Term("", (2,), "f32"), places)
    value = own.value(leaf)
    (made,) = own.made([value], constant_of).values()
    assert made.text == 'table = block.table["long"]'
    assert own.producer[value].module == "blocks.1"
    unknown = own.value(own.add_attribute(Term("", (3,), "f32"), ()))
    assert own.made([unknown], constant_of).popitem()[1].problem


def test_where_constants_stand() -> None:
    """One that was made in a block is made anew in each that reads it, in its place; any other comes first, once. A
    buffer is no constant but a parameter under its name."""
    own = emitter("blocks.0")
    shared, leaf = own.add_constant(row()), own.add_constant(Term("", (2,), "f32"), "table")
    local = own.keep(row(1))
    first = own.value(local)
    assert own.value(local) == first
    own.emit("neg", [leaf], (Type((2,), "f32"),))
    outer = own.value(shared)
    own.place = Place("blocks.1")
    second = own.value(local)
    assert own.value(shared) == outer
    assert [(op.kind, op.results[0], op.module, op.no_grad) for op in own.ops] == [
        ("constant", outer, "", True),
        ("constant", first, "blocks.0", True),
        ("neg", "neg", "blocks.0", False),
        ("constant", second, "blocks.1", True),
    ]
    assert len({first, second, outer}) == 3
    assert set(own.constants) == {first, second, outer}
    (table,) = own.params.values()
    assert (table.paths, table.requires_grad, table.buffer) == (("table",), False, True)
    assert dict(own.producer[first].attrs) == {"law": law(row(1)), "shape": (4,), "dtype": "i64"}


def test_what_is_written_into_is_put_together() -> None:
    """Ten columns, of which 2 to 4, 4 to 5 and 7 to 10 were overwritten, in another order; and all of them."""
    zeros = Term("zeros", (3, 10), "f32", ([3, 10],))
    for spans, parts in (
        ([(7, 10), (2, 4), (4, 5)], [(0, 2), None, None, (5, 7), None]),
        ([(0, 4)], [None, (4, 10)]),
        ([(0, 10)], [None]),
    ):
        own = emitter()
        pieces = tuple(
            (start, end, own.add_input(f"x{start}", Type((3, end - start), "f32"), ())) for start, end in spans
        )
        made = own.producer[own.value(Assembly(zeros, 1, pieces))]
        assert (made.kind, made.attr("dim")) == ("cat", 1)
        found = [own.constants.get(value) for value in made.operands]
        assert [one and one.args[1:] for one in found] == [part and (1, *part) for part in parts]
        assert [own.types[value].shape[1] for value in made.operands if value in own.constants] == [
            end - start for start, end in filter(None, parts)
        ]
        assert [value for value in made.operands if value not in own.constants] == [f"x{a}" for a, _ in sorted(spans)]
        assert own.types[made.results[0]] == Type((3, 10), "f32")
