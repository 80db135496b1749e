"""Plans on fewer ranks than a cluster has, and on numbers that nothing divides."""

from __future__ import annotations

from meshwright.planner.refine.candidate import idle_ranks
from meshwright.planner.refine.placement.idle import subsets
from tests.planner.refining import LLAMA, Case, example, hosts


def test_subsets_have_a_reason() -> None:
    """The fastest, or the largest host; the ranks behind a slow link are the first to be left out."""
    seven = example("seven_gpus")
    for needed in (6, 4):
        found = subsets(seven, needed)
        assert all(len(set(ranks)) == needed and 6 not in ranks for ranks in found)
    generations = example("three_generations")
    assert tuple(range(16)) in subsets(generations, 16)
    assert (*range(8), *range(8, 12)) in subsets(generations, 12)


def test_a_measured_straggler_is_left_out() -> None:
    rows = [[0.0 if one == other else 10.0 if 1 in (one, other) else 400.0 for other in range(4)] for one in range(4)]
    assert tuple(rank for rank in range(16) if rank // 4 != 1) in subsets(hosts(4, rows), 12)


def test_seven_gpus_on_three_unlike_hosts_have_a_plan() -> None:
    """All seven in a pipeline, and six with one left idle and named; both fit."""
    case = Case(LLAMA, example("seven_gpus"), batch=12)
    config = case.config("pp=7,split=spread")
    seven = case.refined(config)[0]
    assert seven.config is not None
    assert case.setting.decisions(seven.config, case.batch).stages[3].last == seven.decisions.stages[3].last
    assert seven.prediction.fits
    assert seven.idle == ()
    assert sum(seven.counts) == 32
    six = case.refined(case.config("tp=2,pp=3,split=spread", ranks=6))[0]
    assert six.prediction.fits
    assert six.idle == idle_ranks(six.decisions, case.cluster) == (6,)
    assert sorted(rank for group in six.decisions.groups for rank in group) == [0, 1, 2, 3, 4, 5]
