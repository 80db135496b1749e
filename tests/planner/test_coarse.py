"""What no shape of a base undercuts, in numbers: two bodies, `a` called twice and `b` three times."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable
from dataclasses import replace
from math import inf
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from meshwright.cost_models.collectives.collective import collective
from meshwright.cost_models.collectives.topology import group_shape
from meshwright.cost_models.cost import Cost
from meshwright.cost_models.ledger.ledger import Transmission
from meshwright.cost_models.prices import Prices
from meshwright.cost_models.profile import published
from meshwright.ir.errors import LayersIndivisible, RecomputeNotExpressible
from meshwright.planner.bounds import coarse
from meshwright.planner.bounds.anchors import Anchor, Sums
from meshwright.planner.bounds.bases import Held
from meshwright.planner.bounds.coarse import CAUTION, CoarseBounds
from meshwright.planner.question.pins import Config
from tests.planner.refining import hosts
from tests.planner.told import config


def array(*rows: Any) -> Any:
    return np.array(rows, dtype=float)


def common(**changes: Any) -> Any:
    """Two bytes of each parameter are read, four are stored, eight are reduced."""
    own: dict[str, Any] = {
        "names": ["a", "b"],
        "calls": (("a", 2), ("b", 3)),
        "counts": array(2, 3),
        "routed": np.array([False, True]),
        "routed_names": ["b"],
        "held_twice": [],
        "tensor_left": 0.5,
        "expert_left": 0.25,
        "host_s": 0.125,
        "library": "nccl",
        "capacity": 100.0,
        "straggling": 2.0,
        "step": SimpleNamespace(covered=0.5),
        "pools": False,
        "prefetches": False,
        "stack": SimpleNamespace(style="eager", rolling=False, by_torch=False),
        "workload": SimpleNamespace(states=SimpleNamespace(used=2.0, stored=4.0, reduced=8.0, casts=True)),
        "with_runtime": lambda nbytes: nbytes + 40.0,
        "stages": lambda config: ((("a", 2), ("b", 1)), (("b", 2),)),
        "groups": lambda config: ((0, (0,)), (1, (1,))),
        "setting": None,
        "between": lambda base, config: {},
        "prices": Prices(hosts(2), published()),
    }
    return SimpleNamespace(**own | changes)


def space(*schedules: tuple[str, int], shapes: Iterable[Config] = (), **changes: Any) -> Any:
    own = {"schedules": lambda pp, m: iter(schedules), "shares": lambda stages: (("even", ()),), "most_sequences": 8}
    return SimpleNamespace(**own | {"pipelined": lambda base: iter(tuple(shapes))} | changes)


# Memory --------------------------------------------------------------------------------------------------------------

STATES = [
    (array(100, 10), array(50, 5), array(800, 80)),
    (array(40, 0), array(20, 0), array(160, 0)),
]
"""Parameters, gradients and states, outside the experts and inside."""


def full(*schedules: tuple[str, int], **changes: Any) -> CoarseBounds:
    own = CoarseBounds(common(**changes), space(*schedules))
    own.__dict__["states"] = STATES
    return own


@pytest.mark.parametrize(
    ("own", "offloaded", "expected"),
    [
        # Cut by two outside and by four inside; eight copies there, four here. First the optimizer's state over all
        # copies, and of parameters what is read of them; then all.
        (
            {"tp": 2, "dp": 8, "ep": 4, "etp": 1},
            False,
            [
                ((25 + 50 + 5 + 10, 2.5 + 5), (25 + 5, 2.5)),
                ((6.25 + 50 + 2.5 + 10, 0.625 + 5), (3.125 + 1.25, 0.3125)),
            ],
        ),
        (
            {"tp": 2, "dp": 8, "ep": 4, "etp": 1},
            True,
            [((25 + 5, 2.5), (25 + 5, 2.5)), ((6.25 + 2.5, 0.625), (3.125 + 1.25, 0.3125))],
        ),
        # One copy of the experts, cut by eight ranks twice over, keeps what is stored.
        (
            {"tp": 2, "dp": 8, "ep": 8, "etp": 2},
            False,
            [
                ((25 + 50 + 2.5 + 10, 7.5), (25 + 1.25, 2.5)),
                ((6.25 + 50 + 2.5 + 10, 5.625), (3.125 + 1.25, 0.3125)),
            ],
        ),
        ({}, False, [((100 + 800 + 40 + 160, 90), (70, 5))] * 2),
    ],
)
def test_state_of_bodies(own: Any, offloaded: bool, expected: Any) -> None:
    found = full().state_bytes(config(**own), offloaded=offloaded)
    assert [(tuple(held), tuple(graded)) for held, graded in found] == [
        (pytest.approx(held), pytest.approx(graded)) for held, graded in expected
    ]


def test_reduced_gradients_are_there_all_the_time_where_pools_keep_them() -> None:
    """Those that copies share out: not those of experts that no other rank has."""
    degrees = config(tp=2, dp=8, ep=8, etp=2)
    (held, graded), (pooled, left) = (list(full(pools=pools).state_bytes(degrees))[1] for pools in (False, True))
    assert tuple(pooled - held) == pytest.approx((3.125, 0.3125))
    assert tuple(left) == pytest.approx((1.25, 0))
    assert tuple(graded) == pytest.approx((3.125 + 1.25, 0.3125))


@pytest.mark.parametrize(
    ("changes", "whole", "shards"),
    [
        # Two bytes of each: 12 outside, cut by two, and 8 inside, cut by four. What is cast is read in every case.
        ({}, 12 + 4, 12 + 4),
        ({"pools": True, "prefetches": True}, 12 + 4, 2 * (12 + 4)),  # and its message is held besides
        ({"pools": True, "prefetches": True, "casts": False}, 0, 2 * (12 + 4)),
        ({"casts": False}, 0, 12 + 4),
        ({"by_torch": False}, 0, 0),
    ],
)
def test_parameters_as_operators_read_them(changes: dict[str, Any], whole: float, shards: float) -> None:
    casts, by_torch = changes.pop("casts", True), changes.pop("by_torch", True)
    own = full(
        stack=SimpleNamespace(by_torch=by_torch),
        workload=SimpleNamespace(states=SimpleNamespace(used=2.0, casts=casts)),
        **changes,
    )
    own.__dict__["whole"] = ((Held(12), Held()), (Held(8), Held()))
    found = list(own.unit_bytes(config(tp=2, dp=8, ep=4, etp=1)))
    assert [tuple(one) for one in found] == [pytest.approx((CAUTION * size, 0)) for size in (whole, shards)]


FIRST, THEN = [2, 1, 2, 1, 0, 0, 0, 0, 0, 0], [0, 2, 0, 2, 0, 0, 0, 0, 0, 0]
"""What a stage holds when nothing else is there: two calls of `a` and one of `b`; two of `b`."""


@pytest.mark.parametrize(
    ("schedule", "microbatches", "stack", "rows", "waits"),
    [
        # The first stage has two micro-batches in flight, the last one, and `b` is the last of either to run backward.
        (
            "1f1b",
            4,
            {},
            [FIRST, [2, 1, 2, 1, 4, 2, 0, 0, 0, 1], THEN, [0, 2, 0, 2, 0, 2, 0, 0, 0, 1]],
            [[0] * 10, [2, 1, 2, 1, 2, 1, 2, 1, 0, 0]],
        ),
        # With one micro-batch there are no gradients before its backward pass, unless kernels are fused.
        (
            "1f1b",
            1,
            {},
            [FIRST, [2, 1, 0, 0, 2, 1, 0, 0, 0, 1], THEN, [0, 2, 0, 0, 0, 2, 0, 0, 0, 1]],
            [[0] * 10, [2, 1, 2, 1, 2, 1, 2, 1, 0, 0]],
        ),
        (
            "1f1b",
            1,
            {"style": "fused"},
            [FIRST, [2, 1, 2, 1, 2, 1, 0, 0, 0, 1], THEN, [0, 2, 0, 2, 0, 2, 0, 0, 0, 1]],
            [[0] * 10, [2, 1, 2, 1, 2, 1, 2, 1, 0, 0]],
        ),
        # All are in flight: before any gradient, and once some are there one less.
        (
            "gpipe",
            3,
            {"rolling": True},
            [
                FIRST,
                [2, 1, 2, 1, 4, 2, 0, 0, 0, 1],
                [2, 1, 0, 0, 6, 3, 0, 0, 0, 1],
                THEN,
                [0, 2, 0, 2, 0, 4, 0, 0, 0, 1],
                [0, 2, 0, 0, 0, 6, 0, 0, 0, 1],
            ],
            [[0] * 10, [2, 1, 2, 1, 2, 1, 2, 1, 0, 0]],
        ),
    ],
)
def test_what_a_schedule_holds_and_waits_for(
    schedule: str, microbatches: int, stack: Any, rows: Any, waits: Any
) -> None:
    own = full((schedule, 1), stack=SimpleNamespace(**{"style": "eager", "rolling": False} | stack))
    found = own.pipelines(config(pp=2, microbatches=microbatches))
    assert sorted(found.rows.tolist()) == sorted(rows)
    assert (found.waits.tolist(), found.work.tolist()) == (waits, [[2, 1], [0, 2]])
    assert (found.starts.tolist(), found.firsts.tolist()) == ([0], [0])


@pytest.mark.parametrize(("rolling", "waits"), [(False, [2, 1, *[0] * 8]), (True, [0] * 10)])
def test_what_waits_where_weights_are_apart(rolling: bool, waits: list[float]) -> None:
    """Only forward passes; nothing where groups roll on."""
    own = full(("1f1b", 1), ("zb-h1", 1), stack=SimpleNamespace(style="eager", rolling=rolling))
    found = own.pipelines(config(pp=2, microbatches=4))
    assert found.waits.tolist() == [[0] * 10, [2, 1, 2, 1, 2, 1, 2, 1, 0, 0], [0] * 10, waits]
    assert (found.starts.tolist(), found.firsts.tolist()) == ([0, 4], [0, 2])


def test_stages_of_a_group_are_held_together() -> None:
    """Folded to a V: the first and the last of four stages on one group. Of three micro-batches at most are two in
    flight on each, and what waits are calls before the first one."""
    stages = ((("a", 2),), (("b", 1),), (("b", 1),), (("b", 1), ("a", 1)))
    changes = {"stages": lambda config: stages, "groups": lambda config: ((0, (0, 3)), (1, (1, 2)))}
    own = full(("zbv", 2), **changes)
    found = own.pipelines(config(pp=2, microbatches=4))
    assert found.work.tolist() == [[3, 1], [0, 2]]
    assert found.waits.tolist() == [[0] * 10, [2, 0, *[0] * 8]]
    held = {tuple(row[:2]) for row in found.rows.tolist()}
    assert held == {(3, 1), (0, 2)}
    last = {tuple(row[8:]) for row in found.rows.tolist() if row[0] == 3}
    assert last <= {(0, 0), (1, 0)}, "the last call of either stage is one of `a`"


def test_the_fullest_group_of_every_schedule() -> None:
    """Of eight copies each of 2,000 bytes; 1F1B holds two micro-batches of 10 and 1 bytes where GPipe holds four."""
    own = full(("1f1b", 1), ("gpipe", 1))
    asked = config(pp=2, dp=8, microbatches=4)
    used = array([10, 1], [4, 0], [7, 3])
    # On the first stage two calls of `a` and one of `b`: parameters by half and states by eight, then gradients; or all
    # by eight. In flight are two or three with gradients, four without; `b` runs.
    whole = 2 * (100 * 0.5 + 800 / 8 + 40 * 0.5 + 160 / 8) + 10 * 0.5 + 80 / 8
    graded = 2 * (50 + 20) + 5
    cut = (2 * 140 + 10) / 8 + (2 * 960 + 80) / 8
    few, many = 2 * 21 + 3, 4 * 21 + 3
    assert own.fullest(asked, used) is not None
    assert np.asarray(own.fullest(asked, used)) == pytest.approx(
        array(
            [whole + graded + few, max(whole + graded + 3 * 21 + 3, whole + many)],
            [cut + graded / 8 + few, max(cut + graded / 8 + 3 * 21 + 3, cut + many)],
        )
    )
    kept = array(10, 1)
    assert own.fullest_bytes(asked, kept, sharded=True) == pytest.approx(cut + graded / 8 + few - 3)
    assert own.fullest_bytes(asked, kept, sharded=False) == pytest.approx(whole + graded + few - 3)
    none = full()
    assert none.fullest(asked, used) is None
    assert none.fullest_bytes(asked, kept, sharded=True) == inf


def test_what_the_leanest_configuration_lacks(monkeypatch: pytest.MonkeyPatch) -> None:
    """Of two pipelines whose fullest groups are given, by storage; 40 bytes are the runtime's, 100 there are."""
    given = {2: array([90, 80], [70, 75]), 4: array([85, 99], [88, 65]), 8: None}
    own = full(("1f1b", 1))
    monkeypatch.setattr(own, "used_bytes", lambda base, sequences: sequences)
    monkeypatch.setattr(own, "fullest", lambda asked, used: given[asked.pp])
    space: Any = SimpleNamespace(most_sequences=4, pipelined=lambda base: [replace(base, pp=pp) for pp in given])
    own.space = space
    assert own.lacks_bytes(config()) == 65 + 40 - 100
    del given[2], given[4]
    assert own.lacks_bytes(config()) == inf


# Time ----------------------------------------------------------------------------------------------------------------


def test_the_group_that_is_done_last() -> None:
    """Phases of `a` take 1, 2, 3 and 4 s, those of `b` ten times as long; between copies 5 and 50 s. The first group
    works 4 x (2 x 15 + 150) s; the second waits for a call of each phase but the last, and works 4 x 2 x 150 s."""
    own = full(("1f1b", 1), ("zb-h1", 1))
    phases = array([1, 10], [2, 20], [3, 30], [4, 40], [5, 50])
    asked = config(pp=2, microbatches=4)
    assert own.longest_s(asked, phases).tolist() == [2 * 10 + 100 + 1200, 2 * 1 + 10 + 1200]
    few = config(pp=2, microbatches=1)
    assert own.longest_s(few, 0 * phases + array(1, 0)).tolist() == [max(2 * 5, 2 * 4), max(2 * 5, 2)]


class Told(CoarseBounds):
    """Sums of anchors that are told: each has a number, in the order in which they are asked for first."""

    def sums(self, anchor: Anchor) -> Any:
        if anchor not in self._sums:
            n = 10.0 ** len(self._sums)
            made: Any = SimpleNamespace(
                device=n * np.ones((4, 2)),
                attention=2 * n * np.ones((4, 2)),
                tensor=3 * n * np.ones((4, 2)),
                routed=5 * n * np.ones((4, 2)),
                awaited=7 * n * np.ones((4, 2)),
                used=n * array([8, 16], [4, 2], [1, 1]),
                exchanges={},
            )
            self._sums[anchor] = made
        return self._sums[anchor]


@pytest.mark.parametrize(
    ("own", "anchors", "seconds", "awaited"),
    [
        # On two ranks each has half of what a copy computes; collectives of a copy so split.
        ({"tp": 2}, [Anchor(1, 1, "none", 4), Anchor(2, 1, "none", 4, etp=2)], 0.5 + 1 + 30, 7),
        # Over a sequence that two share attention is another one; the rest is shared by four.
        (
            {"tp": 2, "cp": 2, "context": "ring"},
            [Anchor(1, 1, "none", 4), Anchor(1, 1, "none", 4, 2, "ring"), Anchor(2, 1, "none", 4, etp=2)],
            0.25 + 10 + 150,
            7,
        ),
        # Collectives of experts inside a copy are those of the most sequences, which are twice as many.
        (
            {"tp": 2, "ep": 4, "etp": 1, "dp": 4, "recompute": "full"},
            [Anchor(1, 4, "full", 4), Anchor(2, 1, "none", 4, etp=2), Anchor(2, 2, "none", 8, etp=1)],
            0.5 + 1 + 30 + 500 / 2,
            7,
        ),
        # Tensor parallel experts wait for no host.
        (
            {"tp": 2, "ep": 1, "etp": 2},
            [Anchor(1, 1, "none", 4), Anchor(2, 1, "none", 4, etp=2), Anchor(2, 1, "none", 8, etp=2)],
            0.5 + 1 + 30 + 500 / 2,
            0,
        ),
    ],
)
def test_anchors_that_a_base_is_put_together_from(own: Any, anchors: Any, seconds: float, awaited: float) -> None:
    """Of two sequences by anchors of four."""
    found = Told(common(), space())
    asked = config(mbs=2, **own)
    phases = found.phases_s(asked, 4)
    assert list(found._sums)[: len(anchors)] == anchors
    assert phases[:4] == pytest.approx((CAUTION * 0.5 * seconds + awaited) * np.ones((4, 2)))
    assert phases[4].tolist() == [0, 0]
    assert found.work_s(asked, 4) == pytest.approx(4 * 5 * (CAUTION * 0.5 * seconds + awaited))


@pytest.mark.parametrize(
    ("own", "expected"),
    [
        ({"tp": 2, "cp": 2, "ep": 4, "etp": 1, "context": "ring"}, Anchor(2, 4, "none", 3, 2, "ring", 1)),
        ({"tp": 2, "ep": 4, "etp": 2}, Anchor(2, 1, "none", 3, etp=2)),
        ({"tp": 2, "ep": 8, "etp": 1}, Anchor(2, 2, "none", 3, etp=1)),
        ({"tp": 6, "ep": 4, "etp": 1}, Anchor(6, 2, "none", 3, etp=1)),
        ({"tp": 4, "ep": 2, "etp": 2}, Anchor(4, 2, "none", 3, etp=2)),
        ({"tp": 2, "ep": 1, "etp": 4}, Anchor(2, 1, "none", 3, etp=4)),
    ],
)
def test_the_ranks_of_one_copy(own: Any, expected: Anchor) -> None:
    """With as many experts apart as lie within."""
    assert CoarseBounds(common(), space()).inside(config(**own), 3) == expected


def test_what_a_micro_batch_keeps() -> None:
    """Of two sequences by four, and of that a half on each rank that tensor parallelism has; of ranks that share a
    sequence the less of half of one's own and what is known to be kept so."""
    own = Told(common(), space())
    assert own.used_bytes(config(tp=2, mbs=2), 4) == pytest.approx(CAUTION / 4 * array([8, 16], [4, 2], [1, 1]))
    assert own.kept_bytes(config(tp=2, mbs=2), 4) == pytest.approx(CAUTION / 4 * array(8, 16))
    assert own.used_bytes(config(cp=2, mbs=4), 4) == pytest.approx(CAUTION / 2 * array([8, 16], [4, 2], [1, 1]))
    both = Told(common(), space())
    both.sums(Anchor(1, 1, "none", 4, 2))
    assert both.used_bytes(config(cp=2, mbs=4), 4) == pytest.approx(CAUTION * array([8, 16], [4, 2], [1, 1]))


class Bound(CoarseBounds):
    """One whose parts are told."""

    def __init__(self, shapes: dict[Config, tuple[Any, Any]], **changes: Any) -> None:
        super().__init__(common(**changes), space(shapes=shapes))
        self.shapes, self.asked = shapes, list[int]()

    def phases_s(self, base: Config, sequences: int) -> Any:
        self.asked.append(sequences)
        return array([1, 2], [0, 0], [0, 0], [0, 0], [1, 0])  # 2 x 2 + 3 x 2 s

    def used_bytes(self, base: Config, sequences: int) -> Any:
        return sequences

    def fullest(self, config: Config, used: Any, *, offloaded: bool = False) -> Any:
        return self.shapes[config][0]

    def longest_s(self, config: Config, phases: Any) -> Any:
        return self.shapes[config][1]

    def reduced_s(self, base: Config, config: Config) -> float:
        return 7.0


ROOMY, TIGHT = array([50, 60], [50, 60]), array([61, 60.5], [50, 61])
"""Of two schedules: without and with gradients in shards. Devices have room for sixty bytes."""


@pytest.mark.parametrize(
    ("shapes", "expected"),
    [
        # Four micro-batches of 10 s on two stages; the quicker schedule's longest group takes longer.
        ({config(pp=2, microbatches=4): (ROOMY, array(25, 30))}, 25),
        ({config(pp=2, microbatches=4): (ROOMY, array(15, 30))}, 20),
        # Gradients must be sharded, and are reduced with every micro-batch: half of the work covers 5 of the 7 s. The
        # second schedule has no room even so.
        ({config(pp=2, microbatches=4): (TIGHT, array(15, 1))}, 2 * (10 + 2)),
        ({config(pp=2, microbatches=4): (TIGHT, array(25, 1))}, 25),
        # Only where that is so.
        ({config(pp=2, microbatches=4): (array([50, 61], [50, 50]), array(15, 1))}, 20),
        ({config(pp=2, microbatches=4): (array([61, 61], [61, 61]), array(15, 1))}, inf),
        ({config(pp=2, microbatches=4): (None, None)}, inf),
        ({}, inf),
        # The best of all shapes.
        (
            {
                config(pp=2, microbatches=4): (ROOMY, array(25, 30)),
                config(pp=4, microbatches=4): (ROOMY, array(12, 11)),
                config(pp=1, microbatches=1): (None, None),
            },
            11,
        ),
    ],
)
def test_the_bound_of_a_base(shapes: Any, expected: float) -> None:
    """Ranks that straggle double it; the fine one takes anchors of its own sequences, the coarse one of the most."""
    own = Bound(shapes)
    assert own.bound_s(config(mbs=2)) == pytest.approx(2 * expected)
    assert own.bound_s(config(mbs=2), fine=True) == pytest.approx(2 * expected)
    assert own.asked == [8, 2]


@given(batch=st.integers(1, 64), below=st.floats(1, 500), fine=st.booleans())
def test_an_answer_that_work_alone_rules_out_is_early(batch: int, below: float, fine: bool) -> None:
    """What is asked for the time below a limit is no more than the whole bound, and no less than the limit where it is
    another: 10 s of work, which takes twice as long where ranks straggle, for every share of the batch."""
    ranks, mbs = 4, 2
    known = {config(pp=2, microbatches=batch): (ROOMY, array(5 * batch, 5 * batch))}
    own = Bound(known)
    own.space = SimpleNamespace(**vars(own.space), global_batch=batch * ranks, ranks=ranks)
    whole, early = own.bound_s(config(mbs=mbs), fine=fine), own.bound_s(config(mbs=mbs), fine=fine, below_s=below)
    assert early in (whole, pytest.approx(2 * 10 * batch / mbs))
    assert early <= whole * (1 + 1e-9)
    assert early == whole or early >= below


def test_what_copies_exchange_is_part_of_the_work() -> None:
    """In both calls of one body a second, of which half is left: so much more than 10 s, less the caution."""
    between = {"a": {"forward": Cost(values=(0.75, 0, 0)), "inputs": Cost(values=(0.25, 0, 0))}}
    own = Bound({config(pp=2, microbatches=4): (ROOMY, array(15, 30))}, between=lambda base, config: between)
    assert own.bound_s(config(mbs=2)) == pytest.approx(2 * 2 * (10 + CAUTION))


def test_reductions_that_are_covered_add_nothing() -> None:
    own = Bound({config(pp=2, microbatches=4): (TIGHT, array(15, 1))}, step=SimpleNamespace(covered=0.8))
    assert own.bound_s(config()) == 2 * 20


@pytest.mark.parametrize(
    ("own", "loads"),
    [
        # 1,000 million parameters outside the experts in all calls, 300 million inside: 8 bytes each, in two stages.
        ({"dp": 4, "pp": 2}, {"dp": 8 * 1300 / 2}),
        ({"dp": 2, "tp": 2, "etp": 2, "pp": 2}, {"dp": 8 * 1300 / 2 / 2}),
        ({"dp": 4, "ep": 2, "etp": 1, "pp": 2}, {"dp ep": 8 * 1000 / 2, "dp": 8 * 300 / 2 / 2}),
        ({"pp": 2}, {}),
    ],
)
def test_to_reduce_all_gradients_once(own: Any, loads: dict[str, float]) -> None:
    coarse = CoarseBounds(common(), space())
    coarse.__dict__["whole"] = (
        (Held(elements=2e8), Held(elements=2e8)),
        (Held(elements=0.0), Held(elements=1e8)),
    )
    asked = config(**own)
    mesh = asked.degrees().mesh()
    ranks = tuple(range(mesh.size))
    expected = sum(
        collective("reduce_scatter", 1e6 * size, group_shape(hosts(2), ranks, mesh, axes.split()), "nccl").seconds
        for axes, size in loads.items()
    )
    assert coarse.reduced_s(asked, asked) == pytest.approx(2 * expected)


# Anchors -------------------------------------------------------------------------------------------------------------


def piece(n: float, **changes: Any) -> Any:
    """A body whose phases take n seconds times one, two, three and four of everything."""
    phases = ("forward", "recompute", "inputs", "weights")
    costs = {
        name: Cost((n * at, 10 * n * at, 100 * n * at), awaited=at, values=(2 * n * at, 5 * n * at, 1e9))
        for at, name in enumerate(phases, 1)
    }
    kept = SimpleNamespace(total=100 * n)
    passes = SimpleNamespace(
        kept=kept,
        left=changes.pop("left", ()),
        entered=changes.pop("entered", ()),
        weight_kept=changes.pop("weight_kept", 30 * n),
        backward=SimpleNamespace(held=SimpleNamespace(total=changes.pop("backward", 170 * n))),
    )
    own = {"costs": costs, "memory": SimpleNamespace(passes=passes), "asked": changes.pop("asked", {})}
    return SimpleNamespace(**own | changes)


def test_what_an_anchor_says() -> None:
    """By phase and body: kernels, attention, collectives of which half of the tensor parallel ones show, waits."""
    pieces = {"a": piece(1.0), "b": piece(2.0)}
    sums = Sums(common(), pieces.get)  # type: ignore[arg-type]
    each = array([1, 2], [2, 4], [3, 6], [4, 8])
    assert sums.device.tolist() == (101 * each).tolist()
    assert sums.attention.tolist() == (10 * each).tolist()
    assert sums.waited.tolist() == (6 * each).tolist()
    assert sums.tensor.tolist() == (6 * each * [1, 0]).tolist()
    assert sums.routed.tolist() == (6 * each * [0, 1]).tolist()
    assert sums.awaited.tolist() == [[n / 8, n / 8] for n in (1, 2, 3, 4)]
    assert sums.used.tolist() == [[100, 200], [30, 60], [70, 140]]
    alone = Sums(common(), {"a": piece(1.0)}.get)  # type: ignore[arg-type]
    assert alone.device.tolist() == (101 * each * [1, 0]).tolist(), "nothing of what cannot be had so"
    assert alone.used.tolist() == [[100, 0], [30, 0], [70, 0]]


def test_what_a_call_before_keeps_is_not_counted_again() -> None:
    """What enters `b` is left by `a`, but for one value; weights need no more than all that is kept, and a backward
    pass that holds less than that adds nothing."""
    pieces = {
        "a": piece(1.0, left=(("x", 40.0), ("y", 5.0)), entered=(("z", 7.0),)),
        "b": piece(1.0, entered=(("x", 60.0), ("y", 10.0), ("w", 1.0)), weight_kept=90.0, backward=50.0),
    }
    sums = Sums(common(), pieces.get)  # type: ignore[arg-type]
    assert sums.used.tolist() == [[100, 30], [30, 30], [70, 0]]


def test_state_that_is_held_twice_counts_once() -> None:
    """`b` holds again what `a` holds: outside the experts one parameter, inside another."""
    states = Held(parameters=50, gradients=5, optimizer=500), Held(parameters=20, gradients=2, optimizer=200)
    slots = {"x": (Held(parameters=8, gradients=4, optimizer=16), False), "y": (Held(parameters=3), True)}
    pieces = {name: piece(1.0, states=states, slot=slots.__getitem__) for name in "ab"}
    own = common(held_twice=[("x", "b"), ("y", "b")])
    dense, expert = Sums(own, pieces.get).states  # type: ignore[arg-type]
    assert dense == (states[0], Held(parameters=42, gradients=1, optimizer=484))
    assert expert == (states[1], Held(parameters=17, gradients=2, optimizer=200))
    alone = Sums(own, {"a": pieces["a"]}.get).states  # type: ignore[arg-type]
    assert alone == ((states[0], Held()), (states[1], Held()))


def test_exchanges_of_bodies_with_experts() -> None:
    """Of all phases, and nothing but these."""
    sent, other = Transmission("all_to_all", ("ep",), 8.0, "value"), Transmission("all_reduce", ("tp",), 8.0, "value")
    phase = SimpleNamespace(transmissions=Counter({sent: 2, other: 1}))
    asked = dict.fromkeys(("forward", "recompute", "inputs", "weights", "update"), phase)
    pieces = {"a": piece(1.0, asked=asked), "b": piece(1.0, asked=asked)}
    assert Sums(common(), pieces.get).exchanges == {"b": {sent: 8}}  # type: ignore[arg-type]
    assert Sums(common(), {"a": pieces["a"]}.get).exchanges == {}  # type: ignore[arg-type]


@pytest.mark.parametrize(
    ("own", "expected"),
    [
        # Twice the seconds of 8 bytes for each of two sequences out of four, on two ranks of a copy; a quarter is left.
        ({"dp": 4, "ep": 4, "etp": 1}, 2 * 8 * 2 / 4 * 3 / 4),
        ({"dp": 4, "ep": 8, "etp": 1, "tp": 2}, 2 * 8 * 2 / 4 / 2 * 3 / 4),
        ({"dp": 4, "ep": 8, "etp": 1, "cp": 2}, 2 * 8 * 2 / 4 / 2 * 3 / 4),
        ({"tp": 4, "ep": 4, "etp": 1}, 0.0),  # within a copy
    ],
)
def test_exchanges_between_copies(own: Any, expected: float) -> None:
    """Three seconds a byte, over the group that they have here."""
    sent = Transmission("all_to_all", ("dp",), 8.0, "value")
    asked: list[Any] = []

    def phase(one: Any, ranks: Any, mesh: Any, workload: Any) -> Any:
        ((found, count),) = one.transmissions.items()
        asked.append(found.axes)
        return SimpleNamespace(values=(1.0 * count * found.nbytes, 2.0 * count * found.nbytes, 0.0))

    prices = SimpleNamespace(least=SimpleNamespace(cluster=hosts(2), phase=phase))
    coarse = Told(common(prices=prices), space())
    base = config(mbs=2, **own)
    coarse.sums(Anchor(1, base.dp, "none", 4)).exchanges = {"b": {sent: 2}}
    assert coarse.exchanged_s(base, 4).tolist() == pytest.approx([0, expected])
    assert set(asked) == ({("ep",)} if expected else set())


def test_bases_are_priced_once_and_refusals_remembered(monkeypatch: pytest.MonkeyPatch) -> None:
    """Whatever is computed again, unless that itself is what is refused."""
    asked: list[Config] = []

    def priced(setting: Any, prices: Any, own: Config, *, known: Any) -> Any:
        asked.append(own)
        if own.recompute == "full":
            raise RecomputeNotExpressible(place="here", cause="full", fix="none")
        if own.tp == 3:
            raise LayersIndivisible(place="here", cause="three", fix="two")
        return own.mbs

    monkeypatch.setattr(coarse, "priced", priced)
    own = CoarseBounds(common(), space())
    assert own.priced(config(mbs=2)) == own.priced(config(mbs=2)) == 2  # type: ignore[comparison-overlap]
    for _ in range(2):
        with pytest.raises(RecomputeNotExpressible):
            own.priced(config(recompute="full"))
    for recompute in ("none", "selective"):
        with pytest.raises(LayersIndivisible):
            own.priced(config(tp=3, recompute=recompute))
    assert [(one.mbs, one.tp, one.recompute) for one in asked] == [
        (2, 1, "none"),
        *[(1, 1, "full")] * 2,
        (1, 3, "none"),
    ]
