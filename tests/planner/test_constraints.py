"""--fix, --allow and --forbid: what they leave, and what they refuse together."""

from __future__ import annotations

from typing import Any

import pytest

from meshwright.ir.errors import ConstraintsContradict, PinRepeated, PinUnknown, PinValue
from meshwright.ir.names import Degrees, template
from meshwright.ir.target.combined import contexts
from meshwright.planner.question.constraints import Asked, Constraints, asked
from meshwright.planner.question.module_pins import ModulePin
from meshwright.planner.question.pins import Pins, parse
from meshwright.planner.refine.operators.operators import attends_as_asked
from tests.llama_block import model


def test_what_each_option_leaves() -> None:
    found = asked(parse(["pp=2"]), ["tp=2|4,recompute=none|full"], ["tp=2", "zero=3|2,cp", "sp"])
    assert found.constraints.only == {"tp": (4,), "pp": (2,), "cp": (1,), "recompute": ("none", "full"), "sp": (False,)}
    assert found.constraints.never["zero"] == (3, 2)
    assert found.pins == Pins(pp=2, tp=4, cp=1, sp=False)  # what has one value left is as good as pinned
    assert not found.constraints.grants("zero", 3)
    assert found.constraints.grants("zero", 1)


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
        assert asked(parse(fix), allow, forbid).constraints.only["zero"] == (2,)
        return
    with pytest.raises(ConstraintsContradict) as refused:
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
    assert again.constraints.only == {"pp": (1, 2), "tp": (4,), "zero": (3,)}
    assert again.constraints.never == {}
    assert found.text == "tp=2, pp=1|2, not zero=3"


@pytest.mark.parametrize(("way", "kept"), [("ring", True), ("all_gather", False)])
def test_attention_that_was_not_wished_for_is_not_taken(way: str, kept: bool) -> None:
    """What the block solver made of attention is held against `context=`."""
    fold = model()
    ring = template(fold, Degrees(cp=2, context="ring"))
    assert contexts(ring, fold) == {"ring"}
    assert attends_as_asked(ring, fold, asked(parse([f"context={way}"]))) is kept
    assert attends_as_asked(ring, fold, asked(parse([])))


# By hand -------------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("fix", "allow", "forbid", "only", "never", "pins"),
    [
        # what is fixed is all that is left, and pinned
        ("tp=2", [], [], {"tp": (2,)}, {}, Pins(tp=2)),
        # in the order of names, and of values as they are given, each once
        ("", ["zero=3|1|3|2, tp=4|2"], [], {"tp": (4, 2), "zero": (3, 1, 2)}, {}, Pins()),
        # of what is allowed, what is not forbidden; values are kept as forbidden too
        ("", ["tp=2|4|8"], ["tp=4"], {"tp": (2, 8)}, {"tp": (4,)}, Pins()),
        ("", ["tp=2|4"], ["tp=4"], {"tp": (2,)}, {"tp": (4,)}, Pins(tp=2)),
        ("tp=4", ["tp=2|4"], [], {"tp": (4,)}, {}, Pins(tp=4)),
        # forbidden altogether: the value that uses nothing
        (
            "",
            [],
            ["cp,zero , sp", "offload"],
            {"zero": (0,), "cp": (1,), "sp": (False,), "offload": ("none",)},
            {},
            Pins(zero=0, cp=1, sp=False, offload="none"),
        ),
        ("", ["cp=1|2"], ["cp"], {"cp": (1,)}, {}, Pins(cp=1)),
        # values alone leave the rest open
        (
            "",
            [],
            ["tp=8|16", "zero=3,recompute=full"],
            {},
            {"tp": (8, 16), "zero": (3,), "recompute": ("full",)},
            Pins(),
        ),
        ("", [""], ["", " , "], {}, {}, Pins()),
        # 1F1B over several virtual stages goes by its own name
        (
            "",
            ["vp=2|4,schedule=1f1b|interleaved|zbv"],
            [],
            {"vp": (2, 4), "schedule": ("interleaved", "zbv")},
            {},
            Pins(),
        ),
        ("", ["vp=1|2,schedule=1f1b|zbv"], [], {"vp": (1, 2), "schedule": ("1f1b", "zbv")}, {}, Pins()),
    ],
)
def test_what_options_leave_together(
    fix: str, allow: list[str], forbid: list[str], only: dict[str, Any], never: dict[str, Any], pins: Pins
) -> None:
    found = asked(parse([fix]), allow, forbid)
    assert (found.constraints.only, found.constraints.never, found.pins) == (only, never, pins)


def test_refusals_of_wishes_in_full() -> None:
    for allow, place, cause, fix in (
        (["tp=2", "tp=4"], "--allow tp=4", "tp is given twice", "write tp=A|B once"),
        (["tp"], "--allow tp", "there is no value", "write tp=A|B, with values of it"),
    ):
        with pytest.raises((PinRepeated, PinValue)) as refused:
            asked(Pins(), allow)
        assert (refused.value.place, refused.value.cause, refused.value.fix) == (place, cause, fix)
    with pytest.raises(ConstraintsContradict) as contradicted:
        asked(parse(["cp=2"]), ["cp=1|2"], ["cp=2", "cp"])
    assert contradicted.value.place == "--fix cp=2 --allow cp=1|2 --forbid cp --forbid cp=2"
    assert contradicted.value.cause == "together they leave no value of cp"
    assert contradicted.value.fix == "take --fix or --allow or --forbid of cp back"


def test_modules_are_asked_anew_by_pattern_and_what() -> None:
    mlp, attention = (ModulePin("fix", name, "sharding", ("column",)) for name in ("mlp", "attn"))
    rows = ModulePin("forbid", "mlp", "sharding", ("row",))
    again = ModulePin("fix", "mlp", "recompute", ("on",))
    found = Asked(Constraints({"tp": (2, 4)}, {"zero": (3,)}), modules=(mlp, again, attention), operators=True)
    assert found.with_modules([rows]).modules == (again, attention, rows)
    assert found.without_module(mlp).modules == (again, attention)
    assert found.without("tp").modules == found.modules
    assert found.without("tp").operators
    said = "tp=2|4, not zero=3, --fix mlp:sharding=column, --fix mlp:recompute=on, --fix attn:sharding=column"
    assert found.text == said
    both = Asked(Constraints({"tp": (2,), "pp": (1,)}, {"tp": (8,), "zero": (3,)}), Pins(tp=2, pp=1))
    assert both.names == ("tp", "pp", "zero")
    assert (both.without("tp").constraints, both.without("tp").pins) == (
        Constraints({"pp": (1,)}, {"zero": (3,)}),
        Pins(pp=1),
    )
    assert both.pinned(Pins(zero=1)).pins == Pins(tp=2, pp=1, zero=1)
    assert both.pinned(Pins(zero=1)).constraints == Constraints({"tp": (2,), "pp": (1,), "zero": (1,)}, {"tp": (8,)})
