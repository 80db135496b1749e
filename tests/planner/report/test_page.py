"""The page of a report: a whole document that asks for nothing, with user's words harmless, and small however large the
plan."""

from __future__ import annotations

import re
from dataclasses import replace

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from meshwright.cost_models.prediction import HELD, SHARES
from meshwright.planner.report.facts.memory import PARTS, GroupMemory
from meshwright.planner.report.facts.timeline import KINDS
from meshwright.planner.report.page import colours
from meshwright.planner.report.page.assets import SCRIPT, STYLE
from meshwright.planner.report.page.document import SECTIONS, document
from meshwright.planner.report.page.first import NAMES
from meshwright.planner.report.page.markup import escape, tag
from meshwright.planner.report.page.timeline import LANES, SLICES, shown_lanes, window_of
from meshwright.planner.report.page.tradeoff import tradeoff
from tests.planner.report.checked import Page, check_page, report, timeline, with_every_text

HOSTILE = """</script></style></title><b onclick="x()">'"&lt;<!--"""
GIB = 2.0**30


def test_a_page_is_whole_and_asks_for_nothing() -> None:
    page = check_page(document(report()))
    sections = [one["id"] for one in page.all("section")]
    assert sections == [name for name, _ in SECTIONS]
    assert [text for tag, text in page.words if tag == "h2"] == [title for _, title in SECTIONS]
    assert [one["href"] for one in page.all("a")] == ["#main", *(f"#{name}" for name in sections)]


def test_what_a_reader_sees_first() -> None:
    said = " ".join(check_page(document(report())).said().split())
    for words in (
        "Plan of small.toml",
        "One optimizer step of 2,048 sequences of 4,096 tokens in bf16, with adamw takes 2 s, between 1.5 s and 4 s.",
        "It is 1.50 times as fast as the best plan that a person would write (fsdp, 3 s), and saves 33.33 % of that.",
        "of 3.75 GiB, 256 MiB left: stage 2, at the optimizer",
        "The interval is meant to hold four of five measurements.",
        "heads: tp=8: 4 heads",
    ):
        assert words in said


def test_users_words_are_harmless() -> None:
    """Every text of a report is followed by markup: the page has the same elements as without, and shows it."""
    plain = Page(document(report()))
    changed = with_every_text(report(), HOSTILE, but=("kind", "tier", "parts"))
    page = check_page(document(changed).replace(str(escape(HOSTILE)), "&lt;"))
    assert [tag for tag, _ in page.elements] == [tag for tag, _ in plain.elements]
    hostile = Page(document(changed))
    assert not hostile.all("b")
    assert hostile.said("h1") == f"Plan of small.toml{HOSTILE}"
    assert hostile.said("title").startswith(f"Plan of small.toml{HOSTILE}")
    assert [text for tag, text in hostile.words if tag == "script"] == [SCRIPT]
    assert [text for tag, text in hostile.words if tag == "style"] == [STYLE]


@settings(max_examples=200)
@given(st.text())
def test_whatever_is_escaped_comes_back_as_text(text: str) -> None:
    page = Page(tag("p", text, title=text))
    (attributes,) = page.all("p")
    shown = "".join(data for _, data in page.words)
    kept = re.sub(r"[\x00-\x1f\x7f-\x9f\ufdd0-\ufdef\ufffe\uffff\ud800-\udfff\ufffd\r\n]", "", text)
    assert re.sub(r"[\x00-\x1f\ufffd\r\n]", "", shown) == kept
    assert re.sub(r"[\x00-\x1f\ufffd\r\n]", "", attributes["title"] or "") == kept


@pytest.mark.parametrize("theme", ["LIGHT", "DARK"])
def test_colours_have_the_contrast_that_is_asked_for(theme: str) -> None:
    known = getattr(colours, theme)
    for text, ground in colours.TEXT_ON:
        assert colours.contrast(known[text], known[ground]) >= 4.5, (text, ground)
    for shape, ground in colours.SHAPES_ON:
        assert colours.contrast(known[shape], known[ground]) >= 3, (shape, ground)


def test_contrast_is_that_of_wcag() -> None:
    """By the worked examples of the technique G18, and the ends of the scale."""
    assert colours.contrast("#000000", "#ffffff") == pytest.approx(21)
    assert colours.contrast("#777777", "#ffffff") == pytest.approx(4.48, abs=0.005)
    assert colours.contrast("#ff0000", "#ff0000") == 1


def test_both_themes_have_the_same_colours_and_every_colour_is_one_of_them() -> None:
    assert list(colours.LIGHT) == list(colours.DARK)
    assert set(re.findall(r"var\(--([a-z]+)\)", STYLE)) <= set(colours.LIGHT)
    assert set(colours.KINDS) == set(KINDS)
    assert set(colours.PARTS) == set(PARTS)
    for named in (colours.KINDS, colours.PARTS):
        assert set(named.values()) <= {*colours.SHAPES, "wait"}
        assert len(set(named.values())) == len(named)


def test_every_share_and_every_part_of_memory_has_a_name() -> None:
    assert set(NAMES) == set(SHARES)
    assert sorted(part for parts in PARTS.values() for part in parts) == sorted(HELD)


def test_a_page_of_a_large_plan_is_small_and_says_what_is_not_drawn() -> None:
    """16,384 ranks in 128 groups, with 500 micro-batches."""
    large = timeline(groups=128, microbatches=500, ranks=128)
    memory = tuple(group_memory(number, 30.0 + number % 7) for number in range(128))
    text = document(report(timeline=large, memory=memory))
    assert len(text.encode()) < 400_000
    page = check_page(text)
    said = " ".join(page.said().split())
    assert "Groups 8 to 119 are not drawn: 112 groups" in said
    assert "112 groups between are not drawn" in said
    assert re.search(r"From [\d,.]+ s to [\d,.]+ s nothing is drawn: 9\d\.\d\d % of the step", said)
    assert "all of micro-batches 20 to 480" in said or re.search(r"all of micro-batches \d+ to \d+", said)
    drawn = re.findall(r"<title>(\d+)F(\d+): ", text)
    assert {int(group) for group, _ in drawn} <= {*range(8), *range(120, 128)}
    assert ("0", "0") in drawn
    assert "127B499: " in text


def test_a_small_step_is_drawn_whole() -> None:
    step = timeline(groups=3, microbatches=4)
    assert window_of(step.lanes, step.end_s).whole
    assert shown_lanes(step.lanes) == (step.lanes, ())
    text = document(report(timeline=step))
    assert sorted(re.findall(r"<title>(\d[FB]\d): ", text)) == sorted(
        f"{group}{kind}{number}" for group in range(3) for kind in "FB" for number in range(4)
    )
    assert "nothing is drawn" not in text


@settings(max_examples=50, deadline=None)
@given(groups=st.integers(1, 40), microbatches=st.integers(1, 120))
def test_what_is_drawn_is_the_beginning_and_the_end(groups: int, microbatches: int) -> None:
    step = timeline(groups=groups, microbatches=microbatches)
    first, last = shown_lanes(step.lanes)
    assert len(first) + len(last) <= LANES
    assert first[0] == step.lanes[0]
    assert (last or first)[-1] == step.lanes[-1]
    window = window_of((*first, *last), step.end_s)
    assert window.spans()[0][0] == 0
    assert window.spans()[-1][1] == step.end_s
    drawn = sum(
        one.start_s < window.head_s or one.end_s > window.tail_s for lane in (*first, *last) for one in lane.slices
    )
    assert drawn <= SLICES + 2 * LANES
    assert all(0 <= window.x(at) <= 1200 for span in window.spans() for at in span)


@pytest.mark.parametrize(("gib", "near"), [(9.0, True), (90.0, False)])
def test_what_may_be_used_is_a_line_where_that_is_near(gib: float, near: bool) -> None:
    """The plan holds 6 GiB."""
    page = Page(tradeoff(report().priced, gib * GIB))
    assert any(one.get("class") == "limit" for one in page.all("path")) == near
    assert (f"All are far below what may be used of a device, {gib:.1f} GiB" in page.said()) != near


def test_points_that_are_close_have_one_label() -> None:
    one = report().priced[0]
    page = Page(tradeoff((one, replace(one, kind="frontier"), replace(one, kind="baseline", step_s=3.0)), 9 * GIB))
    numbers = [text for tag, text in page.words if tag == "text" and re.fullmatch(r"[\d, ]+", text)]
    assert numbers == ["0, 1", "2"]
    assert len(page.all("circle")) == 2
    assert len(page.all("rect")) == 1


def test_a_plan_that_is_priced_again_says_so() -> None:
    one = report()
    said = check_page(document(replace(one, summary=replace(one.summary, changed=("cluster is another",))))).said()
    assert "Priced again: cluster is another" in said


def group_memory(number: int, gib: float) -> GroupMemory:
    """A stage that holds so much, of 80 GiB."""
    parts = tuple((name, gib / len(PARTS) * GIB) for name in PARTS)
    return GroupMemory(
        first=number,
        last=number,
        several=False,
        ranks=128,
        parts=parts,
        peak_bytes=gib * GIB,
        capacity_bytes=72 * GIB,
        device_bytes=80 * GIB,
        instant="backward",
        host_bytes=0.0,
    )
