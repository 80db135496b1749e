"""--fix, --allow and --forbid: what they leave, and what they refuse together."""

from __future__ import annotations

import pytest

from meshwright.ir.combined import contexts
from meshwright.ir.errors import PinRepeated, PinUnknown, PinValue, WishesContradict
from meshwright.ir.names import Degrees, template
from meshwright.planner.finalists import _attends_as_asked
from meshwright.planner.pins import Pins, parse
from meshwright.planner.wishes import asked
from tests.llama_block import model


def test_what_each_option_leaves() -> None:
    found = asked(parse(["pp=2"]), ["tp=2|4,recompute=none|full"], ["tp=2", "zero=3|2,cp", "sp"])
    assert found.wishes.only == {"tp": (4,), "pp": (2,), "cp": (1,), "recompute": ("none", "full"), "sp": (False,)}
    assert found.wishes.never["zero"] == (3, 2)
    assert found.pins == Pins(pp=2, tp=4, cp=1, sp=False)  # what has one value left is as good as pinned
    assert not found.wishes.grants("zero", 3)
    assert found.wishes.grants("zero", 1)


@pytest.mark.parametrize(
    ("fix", "allow", "forbid", "said"),
    [
        (["tp=8"], ["tp=2|4"], [], "--fix tp=8 --allow tp=2|4"),
        (["tp=8"], [], ["tp=8"], "--fix tp=8 --forbid tp=8"),
        (["cp=2"], [], ["cp"], "--fix cp=2 --forbid cp"),
        ([], ["zero=1|2"], ["zero=1,mbs=1", "pp"], ""),
        ([], ["zero=1|2"], ["zero=2|1"], "--allow zero=1|2 --forbid zero=2|1"),
        ([], ["recompute=full"], ["recompute"], "--allow recompute=full --forbid recompute"),
    ],
)
def test_contradictions_are_named(fix: list[str], allow: list[str], forbid: list[str], said: str) -> None:
    if not said:
        assert asked(parse(fix), allow, forbid).wishes.only["zero"] == (2,)
        return
    with pytest.raises(WishesContradict) as refused:
        asked(parse(fix), allow, forbid)
    assert refused.value.place == said


@pytest.mark.parametrize(
    ("allow", "forbid", "kind"),
    [
        (["tp"], [], PinValue),
        ([], ["mbs"], PinValue),
        (["tp=two"], [], PinValue),
        (["tpp=2"], [], PinUnknown),
        ([], ["tpp"], PinUnknown),
        (["tp=2", "tp=4"], [], PinRepeated),
    ],
)
def test_values_are_read_as_pins_are(allow: list[str], forbid: list[str], kind: type[Exception]) -> None:
    with pytest.raises(kind):
        asked(Pins(), allow, forbid)


def test_a_name_can_be_taken_back_or_pinned_anew() -> None:
    found = asked(parse(["tp=2"]), ["pp=1|2"], ["zero=3"])
    assert found.names == ("tp", "pp", "zero")
    assert found.without("tp").names == ("pp", "zero")
    assert found.without("tp").pins == Pins()
    again = found.pinned(Pins(tp=4, zero=3))
    assert again.wishes.only == {"pp": (1, 2), "tp": (4,), "zero": (3,)}
    assert again.wishes.never == {}
    assert found.text == "tp=2, pp=1|2, not zero=3"


@pytest.mark.parametrize(("way", "kept"), [("ring", True), ("all_gather", False)])
def test_attention_that_was_not_wished_for_is_not_taken(way: str, kept: bool) -> None:
    """What the block solver made of attention is held against `context=`."""
    fold = model()
    ring = template(fold, Degrees(cp=2, context="ring"))
    assert contexts(ring, fold) == {"ring"}
    assert _attends_as_asked(ring, fold, asked(parse([f"context={way}"]))) is kept
    assert _attends_as_asked(ring, fold, asked(parse([])))
