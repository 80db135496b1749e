"""Emitted scripts of meshes that no degrees name: sequences over two axes, an idle axis, axes in another order."""

from __future__ import annotations

import re
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from meshwright.backends.results import Verified
from meshwright.backends.torch_.capabilities import TORCH_GLOO
from meshwright.backends.torch_.emit import Subject
from meshwright.ir.decisions.text import decisions_text, parse_decisions
from meshwright.planner.plan.needs import planned_memory
from tests.backends.torch_.emitted import TINY, lowered, subject, written
from tests.backends.torch_.measured import assert_planned
from tests.backends.torch_.proved import proved
from tests.backends.torch_.test_emit_checkpoints import TIED_MODEL


def over_two(text: str) -> str:
    """What one axis of four ranks cuts, cut by two of two."""
    text = text.replace("cp=4", "cp=2 inner=2").replace("[-, cp", "[-, cp.inner")
    return re.sub(r"cp=(d\d|f\d|sq)", r"cp=\1 inner=\1", text)


def turned(text: str) -> str:
    """Ranks that have samples of their own are neighbours, not those that share sequences."""
    return text.replace("dp=2 cp=2", "cp=2 dp=2")


def idle(text: str) -> str:
    """An axis along which all ranks do the same."""
    return text.replace("(dp=2) ranks 0..1", "(alike=2 dp=2) ranks 0..3")


def alike(text: str) -> str:
    """All ranks compute the whole logits of all samples, and so the whole gradient of a weight that is a table, too."""
    before, head = text.split("  plan head for head")
    head = head.replace("%in1  [dp, -]", "%in1  [-, -]").replace("%linear  dp=d0", "%linear")
    return f"{before}  plan head for head{head.replace('%cross_entropy  dp=d0', '%cross_entropy')}"


def summed_inside(text: str) -> str:
    """The inner axis cuts samples of all but the embedding, whose table the head has, too: along it the embedding
    has its whole gradient, and the head a part."""
    words = {"dp": "tp", "tp": "dp"}
    stages, plans = text.split("  plan embed")
    plans = re.sub(r"\b[dt]p\b", lambda found: words[found[0]], plans)
    plans = plans.replace("%in0  [tp, -]\n", "%in0  [-, -]\n").replace("%embedding  tp=d0 dp=v", "%embedding")
    plans = plans.replace("%in1  [tp, -]\n", "%in1  [-, -]\n").replace("%cross_entropy  tp=d0 dp=v", "%cross_entropy")
    before, head = plans.split("  plan head for head")
    return f"{stages}  plan embed{before}  plan head for head{head.replace('%linear  tp=d0 dp=n', '%linear  tp=d0')}"


def as_it_is(text: str) -> str:
    """Blocks of two kinds in turn: what those of one kind share is read by none before them, and the first part of the
    model hands it on. Where they read it sequences are cut, and their gradients of it are summed there."""
    return text


LENT = f"{Path(__file__).parent / 'lent.py'}:decoder"
TIED: dict[str, Any] = {"dp": 2, "reference": TIED_MODEL}
CASES: dict[str, tuple[dict[str, Any], Callable[[str], str]]] = {
    "sequences over two axes": ({"cp": 4}, over_two),
    "copies": ({"dp": 2, "cp": 2}, turned),
    "shards": ({"dp": 2, "cp": 2, "zero": 3}, turned),
    "an idle axis": ({"dp": 2}, idle),
    "an idle axis, shards": ({"dp": 2, "zero": 3}, idle),
    "a whole gradient beside sums": (TIED, alike),
    "a whole gradient beside shards": ({**TIED, "zero": 3}, alike),
    "a whole gradient beside sums inside": ({**TIED, "tp": 2}, summed_inside),
    "whole gradients of what the first part hands on": ({"cp": 2, "reference": LENT}, as_it_is),
    "whole gradients of what the first part hands on, shards": ({"cp": 2, "zero": 3, "reference": LENT}, as_it_is),
    "a whole gradient beside sums, stages": ({**TIED, "pp": 2, "vp": 2, "schedule": "zbv", "microbatches": 2}, alike),
}

BUCKETS = (
    "an idle axis",
    "a whole gradient beside sums",
    "whole gradients of what the first part hands on",
)
"""What is planned has the buckets of DDP, and these scripts sum gradients of copies themselves."""


def plan_of(case: str) -> Subject:
    degrees, change = CASES[case]
    plan = subject(**degrees)
    decisions = parse_decisions(change(decisions_text(plan.decisions)))
    assert change is as_it_is or decisions != plan.decisions
    return replace(plan, decisions=decisions, program=lowered(decisions, reference=degrees.get("reference", TINY)))


@pytest.fixture(scope="module")
def found(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Verified]:
    """All plans in one launch."""
    plans = {case: plan_of(case) for case in CASES}
    scripts = {case: (plan, written(plan, tmp_path_factory.mktemp("plan"))) for case, plan in plans.items()}
    return proved("axes", scripts, steps=2, limit_s=240)


@pytest.mark.e2e
@pytest.mark.parametrize("case", CASES)
def test_axes_that_no_degrees_name_are_exact(case: str, found: dict[str, Verified]) -> None:
    plan = plan_of(case)
    TORCH_GLOO.check(plan.decisions, plan.fold)
    assert found[case].differences == ()
    if case in BUCKETS:
        assert max(found[case].memory) < min(planned_memory(plan.program))
    else:
        assert_planned(plan, found[case])
