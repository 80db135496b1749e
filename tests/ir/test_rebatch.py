"""The same model at another batch: the oracle is a capture at that batch."""

from __future__ import annotations

import re
import sys
from collections.abc import Callable
from pathlib import Path

import pytest

from meshwright.ir.errors import CannotRebatch
from meshwright.ir.fold import Body, Fold, FromInput, FromPrevious, Segment
from meshwright.ir.frontends.capture import capture
from meshwright.ir.frontends.contract import Source
from meshwright.ir.frontends.load import load_model
from meshwright.ir.rebatch import batch_of, with_batch
from meshwright.ir.text import fold_text
from meshwright.ir.verify import verify_fold
from tests.build import Builder
from tests.e2e.spine import BATCH, BY_NAME, EXAMPLES, SEQ, STRUCTURES, SpineModel, captured

OTHER = 6
REAL = ("own-llama-8b", "gpt2", "mixtral-8x7b", "lora-llama-8b")
ROUTED = ("mixtral-8x7b", "deepseek-v3")


def at(source: Source, batch: int, seq: int = SEQ) -> Fold:
    return capture(source, batch=batch, seq=seq).fold


def text(fold: Fold) -> str:
    """Without the digests that name the expressions of constants: they tell traces apart, not models."""
    return re.sub(r'law="(\w+):\w+"', r'law="\1"', fold_text(fold))


def agree(fold: Fold, other: Fold) -> None:
    old, new = batch_of(fold), batch_of(other)
    changed = with_batch(fold, new)
    verify_fold(changed)
    assert text(changed) == text(other)
    assert with_batch(changed, old) == fold


@pytest.mark.parametrize("model", STRUCTURES, ids=str)
def test_tiny_twins_agree_with_a_capture(model: SpineModel, tmp_path: Path) -> None:
    source = model.tiny(tmp_path)
    agree(at(source, BATCH), at(source, OTHER))


@pytest.mark.parametrize("name", REAL)
def test_real_widths_agree_with_a_capture(name: str, tmp_path: Path) -> None:
    source = BY_NAME[name].shallow(tmp_path)
    agree(at(source, BATCH), at(source, OTHER))


@pytest.mark.parametrize("name", ROUTED)
def test_slots_that_were_rounded_up_are_counted_again(name: str, tmp_path: Path) -> None:
    """15 tokens a sample do not divide by the experts."""
    source = BY_NAME[name].tiny(tmp_path)
    agree(at(source, 3, seq=15), at(source, 4, seq=15))


def test_runs_of_tokens_keep_their_slots() -> None:
    source = load_model(f"{EXAMPLES / 'mixture.py'}:limited")
    agree(at(source, 3, seq=16), at(source, 4, seq=16))


def test_down_to_one_sample(tmp_path: Path) -> None:
    """From one sample there is no way back: its loop is not to be seen."""
    source = BY_NAME["own-llama-8b"].tiny(tmp_path)
    one = at(source, 1)
    assert text(with_batch(at(source, 3), 1)) == text(one)
    with pytest.raises(CannotRebatch, match="more than one sample"):
        with_batch(one, 3)


def test_the_same_batch_is_the_same_fold() -> None:
    fold = captured(BY_NAME["gpt2"]).fold
    assert with_batch(fold, BATCH) is fold


def test_it_is_quick() -> None:
    """Every micro-batch of a search asks for it: it takes some thousand calls of Python, a few milliseconds, however
    many layers there are."""
    fold = capture(load_model(BY_NAME["own-llama-8b"].reference, dtype="bf16"), batch=2, seq=4096).fold
    with_batch(fold, 4)
    calls = 0

    def count(frame: object, event: str, argument: object) -> None:
        nonlocal calls
        calls += event == "call"

    sys.setprofile(count)
    try:
        with_batch(fold, 6)
    finally:
        sys.setprofile(None)
    assert calls < 20_000


# Small models, each with something of its own -------------------------------------------------------------------------


def one_body(g: Builder) -> Fold:
    graph = g.graph()
    sources = tuple(FromInput(item.value) for item in graph.inputs)
    return Fold(
        bodies=(Body("model", graph),),
        segments=(Segment(("model",), ("",), sources, (sources,), glue=True),),
        inputs=tuple((item, graph.types[item.value]) for item in graph.inputs),
        outputs=tuple(FromPrevious(index) for index in range(len(graph.outputs))),
    )


def squares(batch: int) -> Fold:
    """Everything is 2 wide, so that every extent equals a batch of 2."""
    g = Builder()
    x = g.input((batch, 2, 2), labels=("b", "s", ""))
    y = g.op("linear", x, g.param("w", (2, 2)))
    y = g.op("view", y, shape=(batch, 2, 2, 1))
    y = g.op("permute", y, perm=(2, 0, 1, 3))
    y = g.op("expand", g.op("view", y, shape=(2, batch * 2, 1)), shape=(2, batch * 2, 2))
    y = g.op("slice", y, dim=1, start=0, end=batch * 2)
    y = g.op("add", y, g.op("full", shape=(2, batch * 2, 2), value=1.0))
    g.output(y, g.op("mul", x, scalar=2.0))
    return one_body(g)


def test_extents_that_equal_the_batch_by_chance_stay() -> None:
    agree(squares(2), squares(6))


def averaged(scalar: float) -> Callable[[], Fold]:
    def build() -> Fold:
        g = Builder()
        x = g.input((4, 8), labels=("b", "s"))
        total = g.op("sum", x, dim=(0, 1))
        g.output(g.op("div", total, scalar=scalar))
        return one_body(g)

    return build


def with_parameter() -> Fold:
    g = Builder()
    g.output(g.op("add", g.input((4, 8), labels=("b", "s")), g.param("per_sample", (4, 8))))
    return one_body(g)


def with_opaque() -> Fold:
    g = Builder()
    g.output(g.op("opaque", g.input((4, 8), labels=("b", "s")), target="ns::unknown", types="f32[4, 8]"))
    return one_body(g)


def in_parts() -> Fold:
    g = Builder()
    g.output(g.op("view", g.input((4, 8), labels=("b", "s")), shape=(2, 2, 8)))
    return one_body(g)


def with_limit() -> Fold:
    """Three slots an expert for a batch of 2: a capacity that is a share only for even batches."""
    g = Builder()
    x = g.input((2, 8), labels=("b", ""))
    idx = g.input((2, 1), name="idx", labels=("b", ""), dtype="i64")
    g.output(g.op("dispatch", x, idx, num_experts=4, capacity=3))
    return one_body(g)


def cut() -> Fold:
    """All samples but the last, or the first three? The trace does not say."""
    g = Builder()
    g.output(g.op("slice", g.input((4, 8), labels=("b", "s")), dim=0, start=0, end=3))
    return one_body(g)


def divided() -> Fold:
    g = Builder()
    g.output(*g.many("split", g.input((4, 8), labels=("b", "s")), dim=0, sizes=(1, 3)))
    return one_body(g)


REFUSED: tuple[tuple[Callable[[], Fold], str], ...] = (
    (averaged(32.0), "may count"),
    (averaged(1 / 32), "may count"),
    (with_parameter, "holds the batch"),
    (with_opaque, "opaque"),
    (in_parts, "parts"),
    (with_limit, "whole number"),
    (cut, "cuts the batch"),
    (divided, "sizes"),
)


@pytest.mark.parametrize(("build", "why"), REFUSED)
def test_what_does_not_follow_is_refused(build: Callable[[], Fold], why: str) -> None:
    with pytest.raises(CannotRebatch, match=why):
        with_batch(build(), 7)


def test_a_scalar_that_counts_no_samples_is_left_alone() -> None:
    fold = averaged(7.0)()
    assert with_batch(with_batch(fold, 12), 4) == fold


def test_no_samples_are_refused() -> None:
    with pytest.raises(CannotRebatch, match="at least 1"):
        with_batch(squares(2), 0)
