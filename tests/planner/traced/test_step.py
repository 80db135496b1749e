"""One step of several traces: which one, on which clock, and where its time goes."""

from __future__ import annotations

from dataclasses import replace
from itertools import pairwise

import pytest
from hypothesis import given
from hypothesis import strategies as st

from meshwright.cost_models.prediction import SHARES
from meshwright.ir.errors import TraceUnreadable
from meshwright.planner.answer.traced.file import Traced
from meshwright.planner.answer.traced.step import PARTS, measured_step, predicted_parts
from meshwright.planner.answer.traced.tracks import (
    COMMUNICATION,
    COMPUTE,
    Span,
    Track,
    in_order,
    length,
    segments,
    union,
    within,
)
from tests.planner.handmade import prediction


def track(*spans: tuple[str, float, float], thread: str = "stream 7") -> Track:
    return Track("gpu", thread, in_order(Span(*one) for one in spans))


def traced(place: str, rank: int | None = None, base_us: float | None = None, **words: object) -> Traced:
    """Four steps of 100, 110, 130 and 120 us, of which 60, 66, … are one kernel's."""
    at, steps, spans = 0.0, {}, []
    for number, lasts in enumerate((100.0, 110.0, 130.0, 120.0)):
        steps[number] = (at, at + lasts)
        spans.append(("gemm", at, at + 0.6 * lasts))
        at += lasts
    found = Traced(
        place=place, by="torch", rank=rank, steps=steps, tracks=(track(*spans),), base_us=base_us, on_device=True
    )
    return replace(found, **words)  # type: ignore[arg-type]


def test_the_median_of_the_steps_that_count_is_shown() -> None:
    found = measured_step([traced("a")], 1)
    assert (found.number, found.steps, found.skipped) == (3, 3, 1)
    assert (found.step_time_s, found.slowest_s) == (120e-6, 130e-6)
    (rank,) = found.ranks
    assert (rank.name, rank.start_us, rank.step_us, found.one_clock) == ("rank 0", 0.0, 120.0, True)
    assert rank.tracks[0].spans == (Span("gemm", 0.0, 72.0),)
    two = measured_step([traced("a")], 0)
    assert (two.number, two.step_time_s) == (1, 115e-6)
    with pytest.raises(TraceUnreadable, match="it has 4 marked steps, and the first 4 are left out"):
        measured_step([traced("a")], 4)


def test_ranks_are_on_one_clock_where_they_have_one() -> None:
    """A rank whose clock began 30 us later began this step 30 us later; of other hosts nothing is known."""
    ranks = [traced("a", 1, 1000.0), traced("b", 0, 1030.0)]
    found = measured_step(ranks, 1)
    assert [(rank.name, rank.start_us) for rank in found.ranks] == [("rank 1", 0.0), ("rank 0", 30.0)]
    assert [rank.tracks[0].spans[0].start_us for rank in found.ranks] == [0.0, 30.0]
    assert found.one_clock
    for other in (traced("b", 0, 9000.0), traced("b", 0)):
        apart = measured_step([ranks[0], other], 1)
        assert [rank.start_us for rank in apart.ranks] == [0.0, 0.0]
        assert not apart.one_clock


def test_a_step_is_as_long_as_on_the_slowest_rank_and_is_one_of_all() -> None:
    slow = replace(traced("b", 1), steps={2: (0.0, 500.0), 3: (500.0, 600.0), 4: (600.0, 700.0)})
    found = measured_step([traced("a", 0), slow], 0)
    assert (found.steps, found.number, found.slowest_s) == (2, 3, 500e-6)
    assert found.step_time_s == pytest.approx(310e-6)
    with pytest.raises(TraceUnreadable, match="they have 0 steps in common"):
        measured_step([traced("a", 0), replace(slow, steps={9: (0.0, 1.0)})], 0)
    with pytest.raises(TraceUnreadable, match="it is of rank 1, as a is"):
        measured_step([traced("a", 1), traced("b", 1)], 0)


def test_where_a_step_goes_by_hand() -> None:
    """Of 100 us: a product to 50, beside it an all-reduce from 40 to 70, and a copy from 80 to 90."""
    tracks = (
        track(("gemm", 0.0, 50.0), ("Memcpy DtoD", 80.0, 90.0)),
        track(("ncclDevKernel_AllReduce", 40.0, 70.0), thread="stream 20"),
    )
    busy = replace(traced("a"), steps={0: (0.0, 100.0)}, tracks=tracks)
    parts = measured_step([busy], 0).parts
    assert parts == pytest.approx({"compute": 60e-6, "communication": 20e-6, "waiting": 20e-6})
    idle = replace(busy, rank=1, tracks=(track(("gemm", 0.0, 10.0)),))
    assert measured_step([idle, replace(busy, rank=0)], 0).parts == parts


def test_an_instant_is_of_the_innermost_span() -> None:
    """A loop holds a product and a gather; what a collective calls is communication."""
    found = track(
        ("while.1", 0, 100), ("dot.2", 10, 30), ("all-gather.3", 40, 60), ("copy.4", 45, 50), ("late", 90, 120)
    )
    assert list(segments(found)) == [
        (COMPUTE, (0, 10)),
        (COMPUTE, (10, 30)),
        (COMPUTE, (30, 40)),
        (COMMUNICATION, (40, 45)),
        (COMMUNICATION, (45, 50)),
        (COMMUNICATION, (50, 60)),
        (COMPUTE, (60, 90)),
        (COMPUTE, (90, 120)),
    ]


@pytest.mark.parametrize(
    ("name", "kind"),
    [
        ("ncclDevKernel_SendRecv(ncclDevKernelArgsStorage<4096ul>)", COMMUNICATION),
        ("ncclKernel_ReduceScatter_RING_LL_Sum_bf16", COMMUNICATION),
        ("gloo:all_reduce", COMMUNICATION),
        ("c10d::allgather_", COMMUNICATION),
        ("all-reduce-start.5", COMMUNICATION),
        ("collective-permute.1", COMMUNICATION),
        ("recv", COMMUNICATION),
        ("void cutlass::Kernel2<cutlass_80_tensorop_bf16_s16816gemm>", COMPUTE),
        ("aten::sum", COMPUTE),
        ("reduce_kernel", COMPUTE),
        ("fusion.broadcasted", COMPUTE),
        ("resend_buffers", COMPUTE),
    ],
)
def test_collectives_are_known_by_name(name: str, kind: str) -> None:
    assert Span(name, 0, 1).kind == kind


SPANS = st.lists(
    st.tuples(st.sampled_from(("gemm", "all_reduce")), st.integers(0, 50), st.integers(1, 50)).map(
        lambda one: (one[0], float(one[1]), float(one[1] + one[2]))
    ),
    max_size=12,
)


@given(SPANS)
def test_segments_are_disjoint_and_cover_what_ran(spans: list[tuple[str, float, float]]) -> None:
    found = track(*spans)
    pieces = [piece for _, piece in segments(found)]
    assert all(start < end for start, end in pieces)
    assert all(one[1] <= other[0] for one, other in pairwise(pieces))
    assert union(pieces) == union((span.start_us, span.end_us) for span in found.spans)


@given(st.lists(SPANS, min_size=1, max_size=3))
def test_parts_add_up_to_the_step(several: list[list[tuple[str, float, float]]]) -> None:
    """Whatever overlaps; none is negative, and what computes is counted once."""
    tracks = tuple(track(*spans, thread=str(at)) for at, spans in enumerate(several))
    found = measured_step([replace(traced("a"), steps={0: (10.0, 70.0)}, tracks=tracks)], 0)
    assert set(found.parts) == set(PARTS)
    assert sum(found.parts.values()) == pytest.approx(60e-6)
    assert min(found.parts.values()) >= -1e-15
    inside = [within(one, 10.0, 70.0) for one in tracks]
    busy_us = length((span.start_us, span.end_us) for one in inside for span in one.spans)
    assert found.parts["waiting"] == pytest.approx((60 - busy_us) * 1e-6)


def test_a_plans_shares_are_summed_up_alike() -> None:
    """A second each of all 15: five compute, seven communicate, three wait, launches where there is a device."""
    said = prediction(shares=tuple((name, 1.0) for name in SHARES))
    assert predicted_parts(said, on_device=True) == {"compute": 5.0, "communication": 7.0, "waiting": 3.0}
    assert predicted_parts(said, on_device=False) == {"compute": 6.0, "communication": 7.0, "waiting": 2.0}
