"""What a printed function lets go of before it returns."""

from __future__ import annotations

from collections.abc import Sequence

import pytest

from meshwright.backends.printing import functions_of
from meshwright.backends.printing.items import Item, Memory
from meshwright.backends.printing.lifetimes import NEAR, as_one
from meshwright.backends.printing.regions import Region


def made(
    name: str, nbytes: int, *reads: str, text: str = "", kept: Sequence[str] = (), beside: int = 0, graded: int = 0
) -> Item:
    """An operator with a result of its own."""
    memory = Memory(lies={name: name}, nbytes={name: nbytes}, kept=tuple(kept), beside=beside, graded=graded)
    called = f"f({', '.join(f'%{slot}' for slot in range(len(reads)))})"
    return Item(made=(name,), text=text or called, reads=reads, stem=name, alone=True, memory=memory)


def view(name: str, of: str) -> Item:
    return Item(made=(name,), text="%0.T", reads=(of,), stem=name, alone=True, memory=Memory(lies={name: of}))


def lines(*items: Item, beside: int = 0, gives: Sequence[str] = ()) -> tuple[str, ...]:
    region = Region(path="", reads=("x",), gives=tuple(gives) or items[-1].made, members=items)
    lets_go = "del {}".format
    return functions_of(region, str, lambda names: lets_go(", ".join(names)), (), beside=beside).lines


def gone(*items: Item, beside: int = 0, gives: Sequence[str] = ()) -> list[str]:
    return [line for line in lines(*items, beside=beside, gives=gives) if line.startswith("del ")]


BIG, SMALL, LAST = made("big", 100, "x"), made("small", 1, "big"), made("last", 100, "small")


def test_what_is_read_no_more_is_let_go_of_before_something_as_large_is_made() -> None:
    assert lines(BIG, SMALL, LAST) == ("big = f(x)", "small = f(big)", "del big", "last = f(small)")


def test_what_a_derivative_reads_stays() -> None:
    assert not gone(BIG, made("small", 1, "big", kept=("big",)), LAST)


def test_what_is_returned_stays() -> None:
    assert not gone(BIG, SMALL, LAST, gives=("big", "last"))


def test_nothing_is_let_go_of_before_a_function_ends() -> None:
    assert not gone(made("small", 1, "x"), made("big", 100, "small"), made("last", 1, "big"))


def test_all_names_of_one_storage_let_go_together() -> None:
    half, other = view("half", "big"), view("other", "big")
    assert gone(BIG, half, made("a", 1, "half"), other, made("b", 1, "other"), made("last", 100, "a", "b")) == [
        "del big, half, other"
    ]


def test_what_something_alive_is_a_view_of_stays() -> None:
    assert not gone(BIG, view("half", "big"), SMALL, made("last", 100, "small"), gives=("last", "half"))


def test_a_variable_that_is_bound_anew_needs_no_statement() -> None:
    again = Item(made=("other",), text="f(%0)", reads=("big",), stem="big", alone=True, memory=made("other", 1).memory)
    assert not gone(BIG, again, made("last", 100, "other"))


@pytest.mark.parametrize("lambdas", ["g(lambda: %0)", "g(lambda grad: %0)"])
def test_a_variable_that_a_function_inside_reads_stays_bound(lambdas: str) -> None:
    assert not gone(BIG, made("small", 1, "big", text=lambdas), LAST)


def test_what_the_backward_pass_holds_anyway_may_be_held_before() -> None:
    """While a derivative runs: the gradients that it reads and makes, and what those to come read."""
    assert gone(BIG, SMALL, made("last", 100, "small", graded=150))
    assert not gone(BIG, SMALL, made("last", 100, "small", graded=200))
    assert gone(BIG, made("small", 1, "big", beside=40), made("last", 100, "small", graded=100))
    assert not gone(BIG, made("small", 1, "big", beside=40), made("last", 100, "small", graded=200))


def test_what_is_little_beside_what_other_calls_keep_is_not_let_go_of() -> None:
    enough = round(100 / NEAR)
    assert gone(BIG, SMALL, LAST, beside=enough - 200)
    assert not gone(BIG, SMALL, LAST, beside=enough)


def test_the_largest_goes_first_and_no_more_than_must() -> None:
    two = made("two", 1000, "x"), made("three", 30, "x")
    assert gone(*two, made("small", 1, "two", "three"), made("last", 1000, "small")) == ["del two"]


def test_a_language_that_frees_by_itself_says_nothing() -> None:
    region = Region(path="", reads=("x",), gives=("last",), members=(BIG, SMALL, LAST))
    assert functions_of(region, str, lambda _: "", (), beside=0).lines == (
        "big = f(x)",
        "small = f(big)",
        "last = f(small)",
    )


def test_an_expression_in_another_one_is_gone_with_it() -> None:
    inner = Item(made=("inner",), text="h(%0)", reads=("x",), memory=made("inner", 100).memory)
    assert lines(inner, made("small", 1, "inner"), LAST) == ("small = f(h(x))", "last = f(small)")


def test_a_function_that_is_called_keeps_what_its_operators_do() -> None:
    items = (
        made("a", 8, "x"),
        view("b", "a"),
        made("c", 4, "b", kept=("b",), beside=2),
        made("d", 16, "c", kept=("x",)),
    )
    assert as_one(items, ("d",)) == Memory(lies={"d": "d"}, nbytes={"d": 16}, kept=("a", "x"), beside=10)
    assert as_one(items, ("b",)) == Memory(lies={"b": "a"}, nbytes={"a": 8}, kept=("a", "x"), beside=2)
