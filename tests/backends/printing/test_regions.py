"""Which items stand in a function of their own."""

from __future__ import annotations

from meshwright.backends.printing.items import Item
from meshwright.backends.printing.regions import Region, regions_of

WEIGHT = Item(made=("w",), text="", param="w")
BIAS = Item(made=("b",), text="", param="b")
MOVED = Item(made=("b@0",), text="on_first(%0)", reads=("b",), moves=True)


def product(module: str, *reads: str) -> Item:
    return Item(made=(f"y.{module}",), text="F.linear(%0, %1, %2)", reads=reads, module=module)


def regions(*items: Item) -> Region:
    return regions_of(items, ("x",), (items[-1].made[0],), ("up", "down"), lambda value, path: f"{path}.{value}")


def texts(region: Region) -> list[str]:
    return [member.text if isinstance(member, Item) else member.path for member in region.members]


def test_a_parameter_is_moved_in_the_module_that_reads_it() -> None:
    """It may be gathered when the module is called, and only then."""
    body = regions(WEIGHT, BIAS, MOVED, product("up", "x", "w", "b@0"))
    (up,) = (member for member in body.members if isinstance(member, Region))
    assert texts(body) == ["up"]
    assert texts(up) == ["up.b", "on_first(%0)", "up.w", "F.linear(%0, %1, %2)"]
    assert up.reads == ("x",)


def test_what_two_modules_read_is_moved_before_both() -> None:
    one, other = product("up", "x", "w", "b@0"), product("down", "y.up", "w", "b@0")
    body = regions(WEIGHT, BIAS, MOVED, one, other)
    assert texts(body) == [".b", "on_first(%0)", "up", "down"]


def test_what_is_moved_between_a_module_and_one_inside_it_stands_in_the_outer_one() -> None:
    table, norm = product("up", "x"), product("up.norm", "y@1")
    moved = Item(made=("y@1",), text="reduce_from(%0)", reads=("y.up",), moves=True)
    body = regions_of((table, moved, norm), ("x",), ("y.up.norm",), ("up", "up.norm"), lambda value, path: value)
    (up,) = (member for member in body.members if isinstance(member, Region))
    assert texts(body) == ["up"]
    assert texts(up) == ["F.linear(%0, %1, %2)", "reduce_from(%0)", "up.norm"]


def test_a_value_that_a_body_is_given_is_moved_outside() -> None:
    body = regions(Item(made=("x@0",), text="f(%0)", reads=("x",), moves=True), product("up", "x@0"))
    assert texts(body) == ["f(%0)", "up"]


def test_what_is_moved_together_stands_in_the_module_that_it_is_of() -> None:
    """Moves that are made of one another, as those of rows are of their trip."""
    trip = Item(made=("t",), text="trip(%0)", reads=("y.up",), moves=True)
    there = Item(made=("far",), text="arrive(%0, %1)", reads=("y.up", "t"), moves=True)
    made = Item(made=("z",), text="f(%0)", reads=("far",), module="up")
    back = Item(made=("near",), text="leave(%0, %1)", reads=("z", "t"), moves=True)
    last = Item(made=("sum",), text="g(%0)", reads=("near",), module="up")
    body = regions(product("up", "x", "w"), trip, there, made, back, last)
    assert texts(body) == ["up"]
