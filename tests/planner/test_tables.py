"""Text that fits: prose that wraps at words, tables whose columns give way in their order, pages of any width."""

from __future__ import annotations

import io
import re
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from rich.cells import cell_len

from meshwright.planner.cli.views import tables as module
from meshwright.planner.cli.views.tables import (
    LEAST_WIDTH,
    WIDTH,
    Column,
    Page,
    Table,
    Way,
    columns,
    folded,
    number,
    text,
    width_of,
)
from meshwright.planner.plan.words import ranged

# The width -----------------------------------------------------------------------------------------------------------


class Terminal(io.StringIO):
    def isatty(self) -> bool:
        return True


@pytest.mark.parametrize(
    ("said", "there", "piped"),
    [
        (None, 132, WIDTH),
        ("100", 100, 100),
        ("7", LEAST_WIDTH, LEAST_WIDTH),
        ("0", 132, WIDTH),
        ("wide", 132, WIDTH),
        ("9" * 9, 132, WIDTH),
    ],
)
def test_a_line_is_as_wide_as_is_said_or_as_the_terminal(
    monkeypatch: pytest.MonkeyPatch, said: str | None, there: int, piped: int
) -> None:
    """Through a pipe nothing is known of the terminal that reads."""
    monkeypatch.delenv("COLUMNS", raising=False)
    monkeypatch.setattr(module, "Console", lambda **words: type("Console", (), {"width": 132}))
    if said is not None:
        monkeypatch.setenv("COLUMNS", said)
    assert (width_of(Terminal()), width_of(io.StringIO())) == (there, piped)


def test_a_narrow_terminal_is_taken_for_a_wider_one(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("COLUMNS", raising=False)
    monkeypatch.setattr(module, "Console", lambda **words: type("Console", (), {"width": 12}))
    assert width_of(Terminal()) == LEAST_WIDTH


# Prose ---------------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("said", "width", "lines"),
    [
        ("", 10, [""]),
        ("one two", 10, ["one two"]),
        ("one\ntwo\tthree", 10, ["one two", "  three"]),
        ("one two three", 10, ["one two", "  three"]),
        ("it takes 274 ms of them", 13, ["it takes", "  274 ms of", "  them"]),
        ("now 1.46 GiB", 10, ["now", "  1.46 GiB"]),
        ("all < 1 %", 7, ["all", "  < 1 %"]),
        ("tp=2,pp=4,dp=8", 10, ["tp=2,pp=4,", "  dp=8"]),
        ("8,030,261,248 of them", 13, ["8,030,261,248", "  of them"]),
        ("at /home/user/plan.json", 14, ["at /home/user/", "  plan.json"]),
        ("layers 12+12+13+13+14", 11, ["layers 12+", "  12+13+13+", "  14"]),
        ("unbreakable", 5, ["unb", "  rea", "  kab", "  le"]),
    ],
)
def test_prose_is_broken_between_words(said: str, width: int, lines: list[str]) -> None:
    """A number keeps its unit; a configuration is broken after commas, what is longer than a line after its marks."""
    assert folded(said, width, "  ") == lines


WORD = st.one_of(
    st.from_regex(r"[a-z]{1,14}", fullmatch=True),
    st.from_regex(r"[0-9]{1,3}(,[0-9]{3}){0,3}", fullmatch=True),
    st.from_regex(r"[0-9]{1,3}\.[0-9]{1,2} (ms|s|GiB|%)", fullmatch=True),
    st.from_regex(r"(tp|dp|zero)=[0-9]{1,4}(,[a-z]{2,9}=[a-z0-9]{1,9}){0,6}", fullmatch=True),
    st.from_regex(r"(/[a-z]{1,12}){1,6}", fullmatch=True),
)
PROSE = st.lists(WORD, max_size=12).map(" ".join)


def plain(lines: list[str]) -> str:
    return "".join("".join(lines).split())


@given(PROSE, st.integers(LEAST_WIDTH, 120), st.sampled_from(["", "  ", " " * 12]))
def test_prose_loses_nothing_and_is_never_too_wide(said: str, width: int, indent: str) -> None:
    lines = folded(said, width, indent)
    assert all(cell_len(line) <= width for line in lines)
    assert plain(lines) == plain([said])
    assert all(line.startswith(indent) for line in lines[1:])
    for figure in re.findall(r"[0-9][0-9,.]*(?: (?:ms|s|GiB|%))?(?= |$)", said):
        assert any(figure.rstrip(",") in line for line in lines), figure


# Tables --------------------------------------------------------------------------------------------------------------


def table() -> Table:
    """Of 8 + 17 + 9 + 7 + 22 columns, and two between: 71 in all."""
    made = Table(
        "plans",
        (
            text("name", 4),
            text("configuration", 3, least=9),
            number("step time"),
            number("memory", 2),
            text("why", 1, Way.BELOW),
        ),
    )
    made.add("fsdp", "dp=64,zero=3,mbs=1", "2.6 s", "3.5 GiB", "+1 s tensor, +2 s host")
    made.add("megatron", "tp=8,mbs=1", "12.6 s", "70 GiB", "")
    return made


def shown(of: Table, width: int) -> list[str]:
    return [line for line, _ in of.lines(width)]


def test_what_fits_is_as_it_is() -> None:
    whole = [
        "plans",
        "name      configuration       step time   memory  why",
        "fsdp      dp=64,zero=3,mbs=1      2.6 s  3.5 GiB  +1 s tensor, +2 s host",
        "megatron  tp=8,mbs=1             12.6 s   70 GiB",
    ]
    assert shown(table(), 72) == whole
    assert shown(table(), 500) == whole
    assert [style for _, style in table().lines(72)] == ["bold", "bold", "", ""]


def test_columns_give_way_in_their_order() -> None:
    """First the reason goes below, then memory is dropped, then configurations are folded, then names."""
    assert shown(table(), 71) == [
        "plans",
        "name      configuration       step time   memory",
        "fsdp      dp=64,zero=3,mbs=1      2.6 s  3.5 GiB",
        "  +1 s tensor, +2 s host",
        "megatron  tp=8,mbs=1             12.6 s   70 GiB",
    ]
    assert shown(table(), 47)[1:3] == [
        "name      configuration       step time",
        "fsdp      dp=64,zero=3,mbs=1      2.6 s",
    ]
    assert shown(table(), 37)[1:] == [
        "name      configuration     step time",
        "fsdp      dp=64,zero=3,         2.6 s",
        "          mbs=1",
        "  +1 s tensor, +2 s host",
        "megatron  tp=8,mbs=1           12.6 s",
    ]


def test_what_a_dropped_column_leaves_is_given_back() -> None:
    made = Table("", (text("a", 1, least=4), number("b", 2), number("c")))
    made.add("one\ntwo", "1,234,567,890", "7")
    assert shown(made, 20) == ["a        c", "one two  7"]


def test_a_column_comes_back_where_a_later_one_left_room() -> None:
    """Of 42 characters: 36 have no room for what is dropped first; 30 have, since the reason goes below."""
    made = Table("", (text("name", 9), number("dropped", 1), text("why", 2, Way.BELOW), number("b")))
    made.add("a", "123 ms", "a reason of 24 letters..", "7")
    assert shown(made, 36) == ["name  why                       b", "a     a reason of 24 letters..  7"]
    assert shown(made, 30) == ["name  dropped  b", "a      123 ms  7", "  a reason of 24 letters.."]


def test_shortened_text_ends_in_dots() -> None:
    made = Table("", (number("a"), text("what", 1, Way.SHORTEN, least=10)))
    made.add("7", "one two three four")
    made.add("8", "one two")
    assert shown(made, 15) == ["a  what", "7  one two..", "8  one two"]


def test_a_head_alone_is_no_line_and_an_empty_column_takes_no_room() -> None:
    made = Table("title", (text("", 1), number(""), number("")))
    made.add("a", "", "7")
    assert shown(made, 40) == ["title", "a  7"]
    assert shown(Table("title", columns("", "b")), 40) == ["title", "b"]


def test_numbers_are_dropped_from_the_right() -> None:
    made = Table("", columns("name", "first", "second", "third"))
    made.add("a", "1", "2", "3")
    assert [shown(made, width)[1] for width in (26, 20, 13)] == [
        "a         1       2      3",
        "a         1       2",
        "a         1",
    ]


@st.composite
def tables(draw: st.DrawFn) -> Table:
    """Any table that a view may make: a name, numbers that stay or go, and words."""
    names = st.sampled_from(["", "name", "step time", "why it lost"])
    some: list[Column] = [text(draw(names), 99)]
    for _ in range(draw(st.integers(1, 6))):
        turn = draw(st.integers(1, 6))
        kind = draw(st.sampled_from(["stays", "drops", "fold", "below", "shorten"]))
        stays = sum(column.way is Way.STAY for column in some)
        if kind == "stays" and stays < 2:
            some.append(number(draw(names)))
        elif kind in ("stays", "drops"):
            some.append(number(draw(names), turn))
        else:
            some.append(text(draw(names), turn, Way(kind), draw(st.integers(8, 20))))
    made = Table(draw(PROSE), some)
    figures = st.from_regex(r"[0-9]{1,3}(,[0-9]{3})?\.[0-9] (ms|GiB|%)", fullmatch=True)
    for _ in range(draw(st.integers(0, 5))):
        made.add(*(draw(figures if column.right else PROSE) for column in some))
    return made


@given(tables(), st.integers(LEAST_WIDTH, 220))
def test_no_table_is_too_wide_and_no_number_is_cut(made: Table, width: int) -> None:
    lines = shown(made, width)
    assert all(cell_len(line) <= width for line in lines)
    staying = [at for at, column in enumerate(made.columns) if column.way is Way.STAY]
    for row in made.rows:
        for at in staying:
            assert any(row[at] in line for line in lines), row[at]


def test_a_row_has_a_cell_for_every_column() -> None:
    with pytest.raises(AssertionError, match="1 cells for 2 columns"):
        Table("", columns("a", "b")).add("1")


def test_ranges() -> None:
    assert [ranged(*pair) for pair in ((3, 3), (0, 15), (1024, 2047))] == ["3", "0-15", "1,024-2,047"]


# Pages ---------------------------------------------------------------------------------------------------------------


def test_a_page_is_printed_as_it_is_laid_out(capsys: pytest.CaptureFixture[str], monkeypatch: Any) -> None:
    """A label's text goes on below itself; nothing is taken for markup or an emoji."""
    monkeypatch.setenv("COLUMNS", "40")
    page = Page()
    page.blank()
    page.say("[bold]one[/] :smile: two three four five six seven", label="label  ")
    page.blank()
    page.say("one two three four five six seven eight nine")
    page.print()
    assert capsys.readouterr().out == (
        "label  [bold]one[/] :smile: two three\n"
        "       four five six seven\n"
        "\n"
        "one two three four five six seven eight\n"
        "  nine\n"
    )


@pytest.mark.parametrize("words", [{"NO_COLOR": "1"}, {"TERM": "dumb"}, {}])
def test_no_colours_in_what_is_piped(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch, words: dict[str, str]
) -> None:
    for name, value in words.items():
        monkeypatch.setenv(name, value)
    page = Page(80)
    page.table(table())
    page.print()
    assert "\x1b" not in capsys.readouterr().out
