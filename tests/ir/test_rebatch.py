"""The same model at another batch: the oracle is a capture at that batch."""

from __future__ import annotations

import re
import sys
from collections.abc import Callable
from pathlib import Path

import pytest

from meshwright.ir.analysis.rebatch import batch_of, in_proportion, with_batch
from meshwright.ir.errors import CannotRebatch
from meshwright.ir.frontends.door import capture, load_model
from meshwright.ir.frontends.torch_.sources.factory import TorchSource
from meshwright.ir.graph.fold import Body, Fold, FromInput, FromPrevious, Segment
from meshwright.ir.graph.text import fold_text
from meshwright.ir.rules import register_rule, unregister_rule
from meshwright.ir.verify.graphs import verify_fold
from tests.build import Builder
from tests.e2e.spine import BATCH, BY_NAME, EXAMPLES, SEQ, STRUCTURES, SpineModel, captured

OTHER = 6
REAL = ("own-llama-8b", "gpt2", "mixtral-8x7b", "lora-llama-8b")
ROUTED = ("mixtral-8x7b", "deepseek-v3")


def at(source: TorchSource, batch: int, seq: int = SEQ) -> Fold:
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


# Attributes that carry sizes: what a builder writes at another batch is what must come out ---------------------------


def masked(batch: int, *shape: int) -> Fold:
    g = Builder()
    x = g.input((batch, 4, 8, 4), labels=("b", "", "s", ""))
    g.output(g.op("attention", x, x, x, mask="window", width=2, mask_shape=shape))
    return one_body(g)


def numbered(batch: int, **attrs: float) -> Fold:
    """Samples with numbers of their own."""
    g = Builder()
    x = g.input((batch, 4), labels=("b", ""))
    numbers = g.op("view", g.op("arange", **attrs), shape=(batch, 1))
    g.output(g.op("add", x, numbers))
    return one_body(g)


def sliced(batch: int, dim: int, end: int) -> Fold:
    g = Builder()
    g.output(g.op("slice", g.input((batch, 8), labels=("b", "s")), dim=dim, start=0, end=end))
    return one_body(g)


def routed(batch: int, capacity: int, seq: int = 8, **attrs: int | bool) -> Fold:
    """Some tokens a sample, two of four experts each, there and back."""
    g = Builder()
    x = g.input((batch, seq, 4), labels=("b", "s", ""))
    idx = g.input((batch, seq, 2), name="idx", labels=("b", "s", ""), dtype="i64")
    weights = g.input((batch, seq, 2), name="weights", labels=("b", "s", ""))
    flat, at, by = (g.op("view", v, shape=(batch * seq, g.types[v].shape[2])) for v in (x, idx, weights))
    rows = g.op("dispatch", flat, at, num_experts=4, capacity=capacity, **attrs)
    g.output(g.op("combine", rows, at, by, num_experts=4, capacity=capacity, **attrs))
    return one_body(g)


FOLLOWS: list[tuple[Fold, Fold]] = [
    (masked(2, 2, 1, 8, 8), masked(6, 6, 1, 8, 8)),
    (masked(2, 1, 1, 8, 8), masked(6, 1, 1, 8, 8)),
    (masked(4, 8, 8), masked(6, 8, 8)),
    (masked(2, 1, 2, 8, 8), masked(6, 1, 2, 8, 8)),
    (numbered(2, end=2), numbered(6, end=6)),
    (numbered(2, start=4, end=12, step=4), numbered(6, start=4, end=28, step=4)),
    (numbered(4, start=1, end=5), numbered(2, start=1, end=3)),
    (numbered(3, start=1, end=4), numbered(2, start=1, end=3)),
    (sliced(2, 0, 2), sliced(6, 0, 6)),
    (sliced(2, 0, 9), sliced(6, 0, 9)),
    (sliced(2, 1, 8), sliced(6, 1, 8)),
    (sliced(2, 1, 3), sliced(6, 1, 3)),
    (sliced(8, 1, 8), sliced(6, 1, 8)),
    # Two of eight tokens a sample go to each of four experts: four slots a sample are the mean.
    (routed(2, 8, dropless=True), routed(6, 24, dropless=True)),
    (routed(2, 10, dropless=True), routed(6, 30, dropless=True)),
    # Of 15 tokens each has 7.5, which is counted as eight: no share of the five that it has of ten.
    (routed(2, 5, seq=5, dropless=True), routed(3, 8, seq=5, dropless=True)),
    (routed(3, 8, seq=5, dropless=True), routed(2, 5, seq=5, dropless=True)),
    (routed(2, 6), routed(6, 18)),
    (routed(2, 8, groups=2), routed(6, 24, groups=6)),
    (routed(2, 8, groups=4), routed(3, 12, groups=6)),
    (routed(4, 16, groups=4), routed(2, 8, groups=2)),
]


@pytest.mark.parametrize(("fold", "other"), FOLLOWS)
def test_attributes_that_carry_sizes_follow(fold: Fold, other: Fold) -> None:
    assert with_batch(fold, batch_of(other)) == other


@pytest.mark.parametrize(
    ("fold", "batch", "why"),
    [
        (routed(2, 4, groups=1), 3, "1 runs of tokens with slots of their own at 4 slots, for 6 slots"),
        (routed(2, 3), 3, "3 slots for a batch of 2 are not a whole number for 3"),
        (numbered(2, start=0, end=5, step=3), 3, "would be .*, its rule derives"),
        (numbered(2, start=0.0, end=2.0), 3, "would be .*, its rule derives"),
        (sliced(4, 0, 3), 6, "it cuts the batch to 3 of 4"),
    ],
)
def test_attributes_that_do_not_follow_are_refused(fold: Fold, batch: int, why: str) -> None:
    with pytest.raises(CannotRebatch, match=why):
        with_batch(fold, batch)


@pytest.mark.parametrize("scalar", [4, 4.0, 32, -8, 12, 0.25, 1 / 12, -1 / 4, 32.00001, 4e6])
def test_scalars_that_may_count_samples_are_refused(scalar: float) -> None:
    """Multiples of a batch of four, and one over them, to rounding."""
    with pytest.raises(CannotRebatch, match="may count what is summed over a batch of 4"):
        with_batch(averaged(scalar)(), 6)


@pytest.mark.parametrize("scalar", [0, 1, 2, 3, 6, 0.5, 1 / 3, 0.3, 5.9, 32.001, 1 / 6])
def test_scalars_that_count_something_else_are_not(scalar: float) -> None:
    with_batch(averaged(scalar)(), 6)


def summed(dim: tuple[int, ...], then: str, kind: str = "mul") -> Fold:
    """A sum, what is done with it, and a scalar of 32."""
    g = Builder()
    x = g.input((4, 8), labels=("b", "s"))
    total = g.op("sum", x, dim=dim, keepdim=True)
    total = g.op(then, total) if then else total
    g.output(g.op(kind, total, scalar=32.0), g.op("mul", x, scalar=32.0))
    return one_body(g)


@pytest.mark.parametrize(
    ("fold", "refused"),
    [
        (summed((0,), ""), True),
        (summed((0,), "relu"), True),
        (summed((0,), "relu", "div"), True),
        (summed((1,), ""), False),
        (summed((0,), "", "add"), False),
    ],
)
def test_only_products_of_sums_over_the_batch_may_count_samples(fold: Fold, refused: bool) -> None:
    if not refused:
        assert batch_of(with_batch(fold, 6)) == 6
        return
    with pytest.raises(CannotRebatch, match="may count"):
        with_batch(fold, 6)


def test_all_inputs_have_one_batch() -> None:
    g = Builder()
    x, y = g.input((2, 4), labels=("b", "")), g.input((3, 4), name="y", labels=("b", ""))
    g.output(g.op("relu", x), g.op("relu", y))
    with pytest.raises(CannotRebatch, match=r"its batches are \[2, 3\]"):
        batch_of(one_body(g))
    g = Builder()
    g.output(g.op("relu", g.input((1, 4), labels=("b", ""))))
    with pytest.raises(CannotRebatch, match="no input has a dimension 'b' of more than one sample"):
        batch_of(one_body(g))


def test_operators_with_a_rule_of_a_user_may_see_the_batch() -> None:
    def build(batch: int) -> Fold:
        g = Builder()
        x = g.input((batch, 8), labels=("b", "s"))
        g.output(g.op("opaque", g.op("sum", x, dim=0), target="mylib::tail", types="f32[8]"), x)
        return one_body(g)

    assert with_batch(build(4), 6) == build(6)
    g = Builder()
    x = g.input((4, 8), labels=("b", "s"))
    g.output(g.op("opaque", x, target="mylib::known", types="f32[8]"))
    register_rule("mylib::known", "b s -> s", reduce=("b",))
    try:
        assert with_batch(one_body(g), 6).bodies[0].graph.types["x"].shape == (6, 8)
    finally:
        unregister_rule("mylib::known")
    with pytest.raises(CannotRebatch, match="it is opaque and sees the batch"):
        with_batch(one_body(g), 6)


def test_operators_with_a_rule_of_trials_may_see_the_batch() -> None:
    """Where the batch is a loop of theirs. One that they need in one place is lost there: nothing says what becomes of
    it."""

    def build(batch: int, rule: str, whole: tuple[str, ...]) -> Fold:
        g = Builder()
        x = g.input((batch, 8), labels=("b", "s"))
        g.output(g.op("opaque", x, target="mylib::tried", types=(f"f32[{batch}, 8]",), rule=rule, whole=whole))
        return one_body(g)

    known = "n0 w0 -> n0 w1", ("w0", "w1")
    assert with_batch(build(4, *known), 6) == build(6, *known)
    with pytest.raises(CannotRebatch, match="it needs the batch in one place"):
        with_batch(build(4, "w0 n0 -> w1 n0", ("w0", "w1")), 6)


def test_of_two_captures_sizes_that_double_are_in_proportion() -> None:
    """Whatever the operators are: here one that needs the batch in one place, and constants of other laws."""

    def build(batch: int, scalar: float = 2.0, law: str = "") -> Fold:
        g = Builder()
        x = g.input((batch, 8), labels=("b", "s"))
        attrs = {"target": "mylib::tried", "rule": "w0 n0 -> w1 n0", "whole": ("w0", "w1")}
        y = g.op("opaque", x, types=(f"f32[{batch}, 8]",), **attrs)
        made = g.op("constant", shape=(batch, 8), dtype="f32", law=law or f"arange:{batch}")
        g.output(g.op("mul", g.op("add", y, made), scalar=scalar))
        return one_body(g)

    few = build(4)
    with pytest.raises(CannotRebatch):
        with_batch(few, 6)
    assert in_proportion(few, build(8), 4, 6) == build(6, law="arange:4")
    for other in (build(8, scalar=4.0), build(12)):
        with pytest.raises(CannotRebatch, match="at 8 sequences it is another than at 4"):
            in_proportion(few, other, 4, 6)
