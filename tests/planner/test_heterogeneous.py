"""Pipelines over unlike meshes: they are right, they are priced, and unlike pools are better off with them."""

from __future__ import annotations

from math import prod
from types import SimpleNamespace
from typing import Any

import pytest

from meshwright.backends.torch_.verify.interpreted.step import step_differences
from meshwright.cost_models.traffic import tied
from meshwright.ir.decisions.decisions import Schedule
from meshwright.ir.decisions.text import decisions_text, parse_decisions
from meshwright.ir.names import Degrees
from meshwright.ir.program.lower import lower
from meshwright.ir.program.ties import ends_of, exchanged
from meshwright.ir.target.workload import Workload
from meshwright.ir.verify.meaning import verify_meaning
from meshwright.ir.verify.programs import verify_program
from meshwright.planner.refine import heterogeneous
from meshwright.planner.refine.candidate import counts_of
from meshwright.planner.refine.fitted import Mixed
from meshwright.planner.refine.heterogeneous import Part, Way, _inside, mixes, neighbours, over_parts
from meshwright.planner.refine.order import FITTING, improved
from tests.llama_block import model
from tests.planner.refining import LLAMA, Case, example, hosts

FOUR = Schedule("1f1b", 4)


def test_like_parts_are_the_template(small: str) -> None:
    """Under other names of plans, at the same price."""
    case = Case(small, hosts(2), batch=8)
    config = case.config("tp=2,pp=2,stage_blocks=3+5")
    fold, wanted = case.setting.fold(config), case.setting.decisions(config, 8)
    inside = config.degrees()
    found = over_parts(fold, neighbours(inside, inside), (3, 5), wanted.schedule, "any")
    found = case.setting.allowed(found, fold)
    assert [(one.first, one.last, one.mesh, one.ranks) for one in found.stages] == [
        (one.first, one.last, one.mesh, one.ranks) for one in wanted.stages
    ]
    assert case.price(fold, found) == case.price(fold, wanted)


PAIRS = (
    (Degrees(tp=4), Degrees(dp=4, zero=1)),
    (Degrees(dp=4, zero=3), Degrees(tp=2, sequence_parallel=True)),
    (Degrees(dp=2, tp=2, zero=1), Degrees()),
    (Degrees(dp=2), Degrees(dp=4, tp=2, sequence_parallel=True, zero=2)),
)


@pytest.mark.parametrize("shared", [False, True], ids=["untied", "tied"])
@pytest.mark.parametrize(("first", "second"), PAIRS)
def test_a_step_over_unlike_parts_is_exact(first: Degrees, second: Degrees, shared: bool) -> None:
    """Every gradient and parameter, as autograd has them on the whole model; embedding and head may share a table over
    unlike meshes."""
    fold = model(tied=shared)
    plan = over_parts(fold, neighbours(first, second, first, second), (1, 1, 1, 1), Schedule("1f1b", 3), "any")
    assert not step_differences(fold, plan)


def test_what_unlike_parts_send_of_a_shared_table() -> None:
    """A rank that has it whole, and four that have two halves of it: each of these is given its half of the other's
    gradient, by the one; and that one is given both halves, once."""
    fold, inside = model(tied=True), (Degrees(), Degrees(dp=2, tp=2))
    plan = over_parts(fold, neighbours(*inside), (2, 2), Schedule("1f1b", 2), "any")
    program = lower(fold, plan, workload=Workload(global_batch=8, seq=16, recipe="fp32"))
    (tie,) = program.ties
    ((shape, _), _) = ends_of(program, tie).values()
    half, sent = prod(shape) // 2, list(exchanged(program, tie))
    assert sent[:4] == [((0, 1), (0, rank), half) for rank in range(4)]
    assert sorted(rank for _, (rank, _), _ in sent[4:]) == [0, 1]
    assert {(ends, there, elements) for ends, (_, there), elements in sent[4:]} == {((1, 0), 0, half)}
    assert program.workload is not None
    (priced,) = tied(program, program.workload)
    assert (priced.busiest, priced.received) == (4 * half * 4, 6 * half * 4)


@pytest.mark.parametrize(("first", "second"), PAIRS)
def test_unlike_parts_mean_the_model(small: str, first: Degrees, second: Degrees) -> None:
    """The program is right by its own statements and by the model's; the text form reads back; the price exists, and
    what crosses takes at least as long as the larger shard on the wire."""
    case = Case(small, hosts(4), batch=16)
    fold = case.setting.folds.at(4)
    plan = case.setting.allowed(over_parts(fold, neighbours(first, second), (3, 5), FOUR, "any"), fold)
    program = case.lowered(fold, plan)
    verify_program(program)
    verify_meaning(program, fold)
    assert parse_decisions(decisions_text(plan)) == plan
    assert counts_of(plan, fold) == (3, 5)
    found = case.price(fold, plan)
    assert 0 < found.step_time_s < 60
    assert [one.ranks for one in found.stages] == [first.ranks, second.ranks]


def test_three_generations_of_gpus_get_stages_of_their_own() -> None:
    """Eight A100, eight V100 and sixteen T4: at least 1.3 times as fast as equal shares, each stage on one kind."""
    case = Case(LLAMA, example("three_generations"), fp16=True)
    config = case.config("tp=4,pp=4,mbs=2")
    equal = case.setting.predict(config, case.batch).step_time_s
    found = improved([case.start(config)], FITTING[:2], case.bench())
    assert found == sorted(found, key=lambda one: one.worth)
    assert {one.config is None for one in found} == {False, True}
    best = next(one for one in found if one.config is None)
    assert best.prediction.fits
    assert equal >= 1.3 * best.prediction.step_time_s
    assert equal >= 1.3 * found[0].prediction.step_time_s
    assert all(len({case.cluster.device(rank).name for rank in ranks}) == 1 for ranks in best.decisions.groups)
    assert sum(best.counts) == 32
    assert not Mixed().accepts(found[0], Case(LLAMA, hosts(2)).bench())


def test_groups_with_fewer_ranks_than_experts_are_apart_on_are_left_out() -> None:
    """Pools are cut into groups of every size; those of four cannot hold experts apart on eight ranks."""
    inside = list(_inside(Degrees(dp=8, ep=8), 4))
    assert inside == []
    assert [one.dp for one in _inside(Degrees(dp=8, ep=4), 8)] == [8, 4, 2, 1]


@pytest.mark.parametrize(
    ("degrees", "size", "expected"),
    [
        # tp, dp, ZeRO, sequence parallelism: copies store in shards, and who had no tensor parallelism gets the last
        (Degrees(), 4, [(1, 4, 1, False), (2, 2, 1, True), (4, 1, 0, True)]),
        (Degrees(tp=2, zero=3), 4, [(1, 4, 3, False), (2, 2, 3, False), (4, 1, 0, False)]),
        (Degrees(tp=2, sequence_parallel=True, zero=2), 2, [(1, 2, 2, False), (2, 1, 0, True)]),
        (Degrees(cp=2, zero=3), 4, [(1, 2, 3, False), (2, 1, 3, True)]),
        (Degrees(cp=2), 1, []),
        (Degrees(), 1, [(1, 1, 0, False)]),
    ],
)
def test_degrees_inside_a_group(degrees: Degrees, size: int, expected: list[tuple[int, int, int, bool]]) -> None:
    found = [(one.tp, one.dp, one.zero, one.sequence_parallel) for one in _inside(degrees, size)]
    assert found == expected
    assert {one.cp for one in _inside(degrees, size)} <= {degrees.cp}


def test_pools_are_mixed_by_how_fast_they_are_together(monkeypatch: pytest.MonkeyPatch) -> None:
    """Eight layers, four micro-batches. A pool in one group takes 1 s for a layer, in two 1.5 s each; the other 2 s.
    (3 + 3) x 8 / (2 / 1.5 + 1 / 2) = 26.2 s, (3 + 2) x 8 / (1 + 1 / 2) = 26.7 s, and the first pool in two alone
    (3 + 2) x 8 / (2 / 1.5) = 30 s; one group is no pipeline, and nine have no layer each."""
    whole, first, second, other = (Part((rank,), Degrees()) for rank in range(4))
    ways = {0: [Way((whole,), 1.0), Way((first, second), 1.5)], 4: [Way((other,), 2.0), Way((other,) * 9, 0.001)]}
    monkeypatch.setattr(heterogeneous, "_ways", lambda fold, batch, degrees, ranks, *_: ways[ranks[0]])
    monkeypatch.setattr(heterogeneous, "layer_calls", lambda fold: range(8))
    monkeypatch.setattr(
        heterogeneous, "over_parts", lambda fold, parts, counts, schedule, *_: (parts, counts, schedule)
    )
    pools = SimpleNamespace(pools=(SimpleNamespace(ranks=4), SimpleNamespace(ranks=2)))
    given: Any = None, 8, Degrees(microbatches=4), pools, None, None, "any"
    found: Any = list(mixes(*given))
    assert found == [
        ([first, second, other], (3, 3, 2), FOUR),
        ([other, first, second], (2, 3, 3), FOUR),
        ([whole, other], (5, 3), FOUR),
        ([other, whole], (3, 5), FOUR),
        ([first, second], (4, 4), FOUR),
    ]


def test_the_fastest_ways_of_every_number_of_groups(monkeypatch: pytest.MonkeyPatch) -> None:
    """Four ranks from the fourth on, in one, two and four groups. Three ways of each at most, and six in all, by groups
    per second: 4 / 1.6 = 2.5, 2 / 0.9 = 2.2, 1 / 0.5 = 2, 1 / 0.75 = 1.3, 1 / 1, 2 / 3; then 2 / 4 would follow."""
    taken = {"4a": 1.0, "4b": 0.5, "4c": None, "4d": 0.75, "4e": 1.25, "2a": 4.0, "2b": 0.9, "2c": 3.0, "2d": 5.0}
    taken["1a"] = 1.6
    monkeypatch.setattr(
        heterogeneous, "_inside", lambda degrees, size: [word for word in taken if word[0] == str(size)]
    )
    monkeypatch.setattr(
        heterogeneous, "_layer_s", lambda fold, batch, part, *_: asked.append(part) or taken[part.degrees]
    )
    asked: list[Any] = []
    given: Any = None, 8, "degrees", (4, 5, 6, 7), None, None, "any", None
    found = heterogeneous._ways(*given)
    cut = {"1": ((4,), (5,), (6,), (7,)), "2": ((4, 5), (6, 7)), "4": ((4, 5, 6, 7),)}
    words: list[Any] = ["1a", "2b", "4b", "4d", "4a", "2c"]
    assert found == [Way(tuple(Part(ranks, word) for ranks in cut[word[0]]), taken[word] or 0.0) for word in words]
    assert {(one.degrees, one.ranks) for one in asked} == {(word, cut[word[0]][0]) for word in taken}


def test_more_pools_than_a_few_stay_in_the_order_of_the_cluster(monkeypatch: pytest.MonkeyPatch) -> None:
    """Five pools, each a group that takes a second for a layer: 7 x 8 / 4 = 14 s with any four of them, in 24 orders
    each; 8 x 8 / 5 = 12.8 s with all, in one. Six choices are answered."""
    parts = [Part((rank, rank + 1), Degrees()) for rank in range(0, 10, 2)]
    monkeypatch.setattr(
        heterogeneous, "_ways", lambda fold, batch, degrees, ranks, *_: [Way((parts[ranks[0] // 2],), 1.0)]
    )
    monkeypatch.setattr(heterogeneous, "layer_calls", lambda fold: range(8))
    monkeypatch.setattr(heterogeneous, "over_parts", lambda fold, parts, counts, *_: (parts, counts))
    pools = SimpleNamespace(pools=(SimpleNamespace(ranks=2),) * 5)
    given: Any = None, 8, Degrees(microbatches=4), pools, None, None, "any"
    found: Any = list(mixes(*given))
    assert found[0] == (parts, (2, 2, 2, 1, 1))
    assert [len(own) for own, _ in found] == [5] + [4] * 5 * 24
    assert {sum(counts) for _, counts in found} == {8}
