"""Emitted lines at the width that they may have, and one longer: where they break is worked out by hand."""

from __future__ import annotations

from collections.abc import Callable, Iterable

import pytest

from meshwright.backends.lines import WIDTH, call, fitted, wrapped
from meshwright.backends.torch_.emit.write.frame.lines import loss_of

Layout = Callable[[int, str], Iterable[str]]


def test_lines_are_as_wide_as_those_of_this_project() -> None:
    assert WIDTH == 120


@pytest.mark.parametrize("deep", [0, 8])
def test_a_call_breaks_before_its_arguments_then_between_them(deep: int) -> None:
    """`function_of_model(X, y)` with X so long that the line, or that of the arguments, has 120 letters, or 121."""
    indent, name = " " * deep, "function_of_model"
    fits = "x" * (120 - deep - len(name) - len("(, y)"))
    assert list(call(deep, name, [fits, "y"])) == [f"{indent}{name}({fits}, y)"]
    longer = f"{fits}x"
    assert list(call(deep, name, [longer, "y"])) == [f"{indent}{name}(", f"{indent}    {longer}, y", f"{indent})"]
    most = "x" * (120 - deep - 4 - len(", y"))
    assert list(call(deep, name, [most, "y"])) == [f"{indent}{name}(", f"{indent}    {most}, y", f"{indent})"]
    apart = [f"{indent}{name}(", f"{indent}    {most}x,", f"{indent}    y,", f"{indent})"]
    assert list(call(deep, name, [f"{most}x", "y"])) == apart


def test_arguments_that_are_calls_or_lists_break_too() -> None:
    """Those that fit on a line of their own with a comma, of 120 letters, do not; a name of any length does not."""
    long = "x" * 100
    fits, longer = (f"made({'y' * count}, [z, w])" for count in (101, 102))
    assert len(f"    {fits},") == 120
    assert list(call(0, "f", [long, fits])) == ["f(", f"    {long},", f"    {fits},", ")"]
    broken = ["f(", f"    {long},", "    made(", f"        {'y' * 102}, [z, w]", "    ),", ")"]
    assert list(call(0, "f", [long, longer])) == broken
    listed = f"[{'y' * 60}(a, b), {'z' * 60}]"
    apart = ["    [", f"        {'y' * 60}(a, b),", f"        {'z' * 60},", "    ],"]
    assert list(call(0, "f", [long, listed])) == ["f(", f"    {long},", *apart, ")"]
    name = "n" * 130
    assert list(call(0, "f", [name, "a"])) == ["f(", f"    {name},", "    a,", ")"]


def test_a_list_loses_its_brackets_only_if_they_are_not_kept() -> None:
    """`    made = (a, b)`: without brackets a line has one letter less on either side."""
    assert list(wrapped("    made = (", ["a", "b"], ")")) == ["    made = a, b"]
    assert list(wrapped("    made = (", ["a", "b"], ")  # why", keep=True)) == ["    made = (a, b)  # why"]
    for keep, room in ((False, 120 - len("    made = , b")), (True, 120 - len("    made = (, b)"))):
        fits = "x" * room
        (line,) = wrapped("    made = (", [fits, "b"], ")", keep=keep)
        assert len(line) == 120
        broken = ["    made = (", f"        {fits}x,", "        b,", "    )"]
        assert list(wrapped("    made = (", [f"{fits}x", "b"], ")", keep=keep)) == broken


START, REST = "    loss: Tensor = model_file.loss(model(", "), batch)"


def test_a_loss_is_on_as_few_lines_as_it_fits_on() -> None:
    """A weight in brackets breaks in these, as long as what is before it fits."""
    for weight, product in (("", ""), ("share", " * share"), ("(one / other)", " * (one / other)")):
        fits = "x" * (120 - len(f"{START}{REST}{product}"))
        assert list(loss_of(4, fits, "batch", weight)) == [f"{START}{fits}{REST}{product}"]
        longer = f"{fits}x"
        if not weight:
            expected = ["    loss: Tensor = model_file.loss(", f"        model({longer}), batch", "    )"]
        elif weight == "share":
            inside = f"        model_file.loss(model({longer}), batch) * share"
            expected = ["    loss: Tensor = (", inside, "    )"]
        else:
            expected = [f"{START}{longer}{REST} * (", "        one / other", "    )"]
        assert list(loss_of(4, longer, "batch", weight)) == expected


def test_a_longer_loss_breaks_between_what_it_is_given() -> None:
    most = "x" * (120 - len(f"{START}{REST} * ("))
    assert list(loss_of(4, most, "batch", "(one / other)"))[1] == "        one / other"
    assert list(loss_of(4, f"{most}x", "batch", "(one / other)")) == [
        "    loss: Tensor = model_file.loss(",
        f"        model({most}x), batch",
        "    ) * (one / other)",
    ]
    fits = "x" * (120 - len("        model_file.loss(model(), batch) * share"))
    inside = f"        model_file.loss(model({fits}), batch) * share"
    assert list(loss_of(4, fits, "batch", "share")) == ["    loss: Tensor = (", inside, "    )"]
    whole = f"        model_file.loss(model({fits}x), batch)"
    assert list(loss_of(4, f"{fits}x", "batch", "share")) == ["    loss: Tensor = (", whole, "        * share", "    )"]


INPUTS = [f'{name}=batch["{name}"]' for name in ("input_ids", "attention_mask", "decoder_input_ids")]


@pytest.mark.parametrize("weight", ["", "share", "(count / targets)"])
def test_a_model_of_many_inputs_is_given_all_of_them(weight: str) -> None:
    """One a line, if a line does not hold them."""
    called = ", ".join((*INPUTS, *(one.replace("decoder", "other") for one in INPUTS[2:])))
    text = "\n".join(loss_of(4, called, "batch", weight))
    assert max(map(len, text.splitlines())) <= 120
    product = f"*{weight}" if weight else ""
    found = "".join(text.split()).replace(",)", ")").replace("=(model_file", "=model_file")
    expected = "".join(f"loss: Tensor = model_file.loss(model({called}), batch){product}".split())
    assert found == expected + ")" * (weight == "share")


def test_a_line_breaks_at_the_last_call_that_no_other_is_around() -> None:
    """Commas inside of other brackets stay; a line that ends otherwise, or that has no call, stays as it is."""
    fits = "x" * (120 - len("    made = first(a) + last(, [b, c], d(e, f))"))
    line = f"    made = first(a) + last({fits}, [b, c], d(e, f))"
    assert list(fitted(line)) == [line]
    longer = line.replace(fits, f"{fits}x")
    assert list(fitted(longer)) == ["    made = first(a) + last(", f"        {fits}x, [b, c], d(e, f)", "    )"]
    much = "y" * 115
    apart = ["    return last(", f"        {much},", "        (b, c),", "    )"]
    assert list(fitted(f"    return last({much}, (b, c))")) == apart
    for other in (f"    made = last({much}, b).of", f"    made = {much}, b + c", f"    made = [{much}(a)]"):
        assert list(fitted(other)) == [other]
