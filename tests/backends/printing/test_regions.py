"""Regions: what stands in the function of a module that must be called."""

from __future__ import annotations

from meshwright.backends.printing.items import Item
from meshwright.backends.printing.regions import Region, regions_of


def names(region: Region) -> list[str]:
    """What the items of a region itself make."""
    return [name for one in region.members if isinstance(one, Item) for name in one.made]


def test_a_parameter_is_moved_in_the_call_that_gathers_it() -> None:
    """Before it, a rank has but its shard."""
    items = [
        Item(made=("bias",), text="", param="bias"),
        Item(made=("bias@0",), text="moved(%0)", reads=("bias",), moves=True),
        Item(made=("made",), text="add(%0, %1)", reads=("x", "bias@0"), module="inner"),
    ]
    body = regions_of(items, ["x"], ["made"], ["inner"], lambda value, path: f"{path}:{value}")
    (inner,) = (one for one in body.members if isinstance(one, Region))
    assert names(body) == []
    assert names(inner) == ["bias", "bias@0", "made"]
    assert inner.reads == ("x",)


def test_a_value_that_a_body_is_given_is_moved_outside() -> None:
    items = [
        Item(made=("x@0",), text="moved(%0)", reads=("x",), moves=True),
        Item(made=("made",), text="f(%0)", reads=("x@0",), module="inner"),
    ]
    body = regions_of(items, ["x"], ["made"], ["inner"], lambda value, path: value)
    assert names(body) == ["x@0"]
