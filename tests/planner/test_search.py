"""The search against every configuration of small spaces, each priced by the evaluator."""

from __future__ import annotations

from dataclasses import replace
from math import inf
from pathlib import Path

import pytest

from benchmarks.searches import Case, disagreements, exhausted, opened, searched
from meshwright.planner.question.constraints import Constraints
from meshwright.planner.search.search import Waiting

ROOT = Path(__file__).parents[2]
LLAMA = f"{ROOT / 'examples' / 'llama.py'}:tiny"
"""Four blocks, four key-value heads."""
MOE = str(ROOT / "examples" / "tiny_decoder.toml")
"""One dense block and five of experts."""

CLUSTERS = ("1x4xA100", "2x1xH100,inter=100G", "1x2xL40S", "1x3xA100")
BATCHES = ((8, 4096), (6, 2048))
FEW = Constraints({"mbs": (1, 2), "recompute": ("none", "full"), "context": ("all_gather",), "regather": (True,)})
"""So that all can be priced in a second; whole spaces take minutes (`python -m benchmarks.bound_check --exhaust`)."""
FEWER = Constraints({**FEW.only, "schedule": ("1f1b", "zbv"), "zero": (0, 1, 3)})
FEWEST = Constraints({**FEWER.only, "recompute": ("none",), "mbs": (1,)})
STACKS = ("torch", "megatron", "jax", "megatron-2021")
MARGINS = (None, TIGHT := 0.985)
"""Of memory that is left free: as usual, and so much that little fits."""
CASES = tuple(
    Case(model=model, cluster=cluster, batch=batch, seq=seq, stack=stack, margin=margin)
    for number, model in enumerate((LLAMA, MOE))
    for at, cluster in enumerate(CLUSTERS)
    for batch, seq in BATCHES[(number + at) % 2 :][:1]
    for stack in STACKS[(number + at) % 2 :: 2]
    for margin in MARGINS
)


@pytest.mark.parametrize("case", CASES, ids=str)
def test_the_answer_is_the_best_of_all_configurations(case: Case) -> None:
    own = opened(case, FEWEST if case.model == MOE else FEWER)
    found, _ = exhausted(own)
    search = searched(own)
    assert not disagreements(search, found)
    assert search.counts.left == 0


def test_there_are_spaces_enough_and_tight_ones_among_them() -> None:
    assert len(CASES) >= 30
    assert sum(case.margin == TIGHT for case in CASES) >= 10


def test_a_narrower_space_is_never_faster() -> None:
    case = CASES[0]
    whole = searched(opened(case, FEW)).upper_s
    for name, values in (("tp", (1,)), ("pp", (2,)), ("zero", (1, 3)), ("schedule", ("1f1b",))):
        assert searched(opened(case, Constraints({**FEW.only, name: values}))).upper_s >= whole


def test_more_memory_and_faster_links_never_make_it_slower() -> None:
    """Along a chain of clusters, each no worse than the one before."""
    tight = replace(CASES[0], model=LLAMA, cluster="2x1xH100,inter=50G", margin=TIGHT)
    roomy = replace(tight, margin=None)
    faster = replace(roomy, cluster="2x1xH100,inter=400G")
    times = [searched(opened(case, FEW)).upper_s for case in (tight, roomy, faster)]
    assert times == sorted(times, reverse=True)


def test_a_search_that_has_no_time_says_so() -> None:
    """It has looked at nothing, and claims nothing; with time, it proves its answer."""
    own = opened(CASES[0], FEW)
    search = own.search()
    for _ in search.run((), until_s=0.0):
        pass
    assert (search.best, search.counts.priced, search.lower_s, search.expanded) == (None, 0, 0.0, False)
    assert (search.upper_s, search.gap) == (inf, 1.0)
    ended = searched(own)
    assert ended.expanded
    assert 0.0 < ended.lower_s == ended.upper_s
    assert ended.gap == 0.0
    ended.lower_s /= 4
    assert ended.gap == 0.75
    assert ended.best is not None
    assert not ended.better(ended.best), "of equals the first stays"
    assert search.better(ended.best)


@pytest.mark.parametrize(("least_s", "queued"), [(0.75, [0.75]), (1.0, []), (2.0, [])])
def test_what_computes_again_is_queued_only_below_the_answer(least_s: float, queued: list[float]) -> None:
    """Nothing computed again took so long already; a plan takes one second."""
    own = opened(CASES[0], FEW)
    search, config = own.search(), next(base for base in own.space.bases() if base.recompute == "full")
    family = config.tp, config.cp, config.ep, config.etp, config.context
    search.ceiling_s, search.quickest[(*family, config.mbs)] = 1.0, least_s
    search.expand(Waiting(0.5, 0, config))
    assert [one.bound_s for one in search.heap] == queued
    assert search.counts.bases == 0
