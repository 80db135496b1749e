"""Intervals: what was never seen makes them wider, and nothing else does."""

from __future__ import annotations

import json
from dataclasses import replace
from math import exp, hypot, log

import pytest
from hypothesis import given
from hypothesis import strategies as st

from meshwright.cost_models.evaluate import evaluate
from meshwright.cost_models.hardware.devices import device
from meshwright.cost_models.hardware.text import read_cluster
from meshwright.cost_models.intervals.seen import FAR, UNSEEN, Case, Seen
from meshwright.cost_models.intervals.widths import Intervals, Widths
from meshwright.cost_models.prices import Prices
from meshwright.cost_models.profile import published
from meshwright.cost_models.step import Step
from meshwright.ir.errors import BadQuantity
from meshwright.ir.names import Degrees
from meshwright.ir.target.workload import STACKS, Workload
from tests.cost_models.programs import DENSE, MOE, program

WIDTHS = Widths(dense=0.1, experts=0.2, precision=0.3, device=0.4, stack=0.5, ranks=0.6)
KNOWN = Case(architectures=("hopper",), precision="bf16", stack=("fused", "flash2"), experts=False, ranks=64)
SEEN = Seen.of([KNOWN])

architectures = st.sampled_from(("ampere", "hopper", "blackwell", "tpu", ""))
precisions = st.sampled_from(("bf16", "fp16", "fp8_tensorwise"))
stacks = st.tuples(st.sampled_from(("eager", "fused", "xla")), st.sampled_from(("flash2", "cudnn")))


def cases() -> st.SearchStrategy[Case]:
    return st.builds(
        Case,
        architectures=st.lists(architectures, min_size=1, max_size=2, unique=True).map(sorted).map(tuple),
        precision=precisions,
        stack=stacks,
        experts=st.booleans(),
        ranks=st.integers(1, 1 << 16),
    )


widths = st.builds(
    Widths,
    dense=st.floats(0.01, 1),
    experts=st.floats(0.01, 1),
    **{name: st.floats(0, 1) for name in UNSEEN},
)


@given(st.lists(cases(), max_size=6), st.integers(0, 6), cases(), widths)
def test_what_becomes_unseen_never_makes_an_interval_narrower(
    fitted: list[Case], fewer: int, case: Case, own: Widths
) -> None:
    some, all_ = (Intervals(seen=Seen.of(of), widths=own).around(case) for of in (fitted[:fewer], fitted))
    assert some[0] <= all_[0] < 1 < all_[1] <= some[1]
    assert log(all_[1]) == pytest.approx(-log(all_[0]))


@given(st.lists(cases(), min_size=1, max_size=6), widths)
def test_what_was_fitted_has_the_width_of_its_base(fitted: list[Case], own: Widths) -> None:
    seen = Seen.of(fitted)
    for case in fitted:
        assert seen.lacks(case) == ()
        assert own.half(case, ()) == pytest.approx(own.experts if case.experts else own.dense)


@given(st.lists(cases(), max_size=6))
def test_what_was_seen_is_read_as_it_is_written(fitted: list[Case]) -> None:
    seen = Seen.of(fitted)
    assert Seen.read(json.loads(json.dumps(seen.to_json()))) == seen


@pytest.mark.parametrize(
    ("changes", "lacks"),
    [
        ({}, ()),
        ({"experts": True}, ()),
        ({"precision": "mxfp8"}, ("precision",)),
        ({"architectures": ("blackwell",)}, ("precision", "device")),
        ({"architectures": ("blackwell", "hopper")}, ("precision", "device")),
        ({"architectures": ("",)}, ("precision", "device")),
        ({"stack": ("fused", "cudnn")}, ("stack",)),
        ({"ranks": FAR * 64 - 1}, ()),
        ({"ranks": FAR * 64, "stack": ("xla", "splash")}, ("stack", "ranks")),
    ],
)
def test_what_a_case_lacks(changes: dict[str, object], lacks: tuple[str, ...]) -> None:
    case = replace(KNOWN, **changes)  # type: ignore[arg-type]
    assert SEEN.lacks(case) == lacks
    half = hypot(WIDTHS.experts if case.experts else WIDTHS.dense, *(getattr(WIDTHS, name) for name in lacks))
    assert Intervals(seen=SEEN, widths=WIDTHS).around(case) == pytest.approx((exp(-half), exp(half)))


def test_impossible_widths_are_refused() -> None:
    for name in ("dense", "experts"):
        with pytest.raises(BadQuantity, match="bases"):
            replace(WIDTHS, **{name: 0.0})
    for name in UNSEEN:
        with pytest.raises(BadQuantity, match="widening"):
            replace(WIDTHS, **{name: -0.1})


def test_a_step_says_what_it_is_a_price_of() -> None:
    """Devices of all pools, the workload's precision and stack, experts by the program, and its own ranks."""
    for shape, experts in ((DENSE, False), (MOE, True)):
        own = program(shape, Degrees(dp=8), precision="bf16")
        assert isinstance(own.workload, Workload)
        stack = STACKS["torch"]
        found = Step(Prices(read_cluster("1x8xA100"), published()), own, own.workload).case()
        assert found == Case(
            architectures=("ampere",),
            precision="bf16",
            stack=(stack.style, stack.attention),
            experts=experts,
            ranks=8,
        )
    unlike = Case.of([device("A100"), device("H100")], own.workload, experts=False, ranks=2)
    assert unlike.architectures == ("ampere", "hopper")


def test_a_prediction_has_the_interval_of_its_case() -> None:
    own = program(DENSE, Degrees(dp=8))
    cluster = read_cluster("1x8xA100")
    case = Case.of([device("A100")], own.workload or Workload(global_batch=8, seq=1024), experts=False, ranks=8)
    unseen = replace(published(), intervals=Intervals(seen=SEEN, widths=WIDTHS))
    for profile in (published(), unseen):
        found = evaluate(own, cluster, profile)
        low, high = profile.intervals.around(case)
        assert found.step_time_low_s == pytest.approx(low * found.step_time_s)
        assert found.step_time_high_s == pytest.approx(high * found.step_time_s)


def test_the_shipped_table_has_seen_what_it_was_fitted_on() -> None:
    """Every architecture with a precision, stacks by style and attention; and all is wider where nothing was seen."""
    shipped = published().intervals
    assert shipped.seen.precisions
    assert shipped.seen.stacks
    unheard = Case(architectures=("next",), precision="int2", stack=("eager", "none"), experts=False, ranks=10**6)
    for experts in (False, True):
        case = replace(unheard, experts=experts)
        assert shipped.seen.lacks(case) == UNSEEN
        low, high = shipped.around(case)
        assert 0 < low < 1 < high
        assert high >= exp(shipped.widths.experts if experts else shipped.widths.dense)
