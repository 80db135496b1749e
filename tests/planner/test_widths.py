"""Every view on consoles of every width: no line is too wide, and figures stay whole."""

from __future__ import annotations

import re
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import pytest
from rich.cells import cell_len

from meshwright.cost_models.compute.known import all_known, known
from meshwright.ir.errors import pages
from meshwright.planner.answer.explain import Verdict
from meshwright.planner.answer.relax import Relaxation
from meshwright.planner.cli.views.code import inspect, verify
from meshwright.planner.cli.views.machines import cluster, gpus, profile
from meshwright.planner.cli.views.plans import (
    compare,
    diff,
    estimate,
    exchange,
    explain,
    nothing,
    plan,
    scaled,
    what_if,
)
from meshwright.planner.cli.views.reference import errors
from meshwright.planner.question.clusters import look
from meshwright.planner.search.search import Found
from tests.cost_models.measured_cpu import hand
from tests.planner import (
    test_compare,
    test_diff,
    test_estimate_view,
    test_explain_view,
    test_inspect_view,
    test_plan_view,
    test_verify,
)
from tests.planner.changed import test_views as changed
from tests.planner.exchange import test_view
from tests.planner.handmade import config, prediction, rival
from tests.planner.handmade import plan as made
from tests.planner.traced import test_verbs as traced

TWO_POOLS = Path(__file__).parents[2] / "examples" / "clusters" / "two_pools.toml"
WIDTHS = (40, 60, 80, 100, 140, 200)
FIGURE = re.compile(r"(?<![A-Za-z\d])\d[\d,.]*(?: (?:µs|ms|s|%|[KMGT]iB))?")


def compared(monkeypatch: pytest.MonkeyPatch) -> None:
    diff.show_diff(test_diff.compared(monkeypatch, made(), test_diff.OTHER))


def explained(_: object) -> None:
    other = replace(rival("", "tp=8,zero=0", "lost", slower=1.5), differences=(("publish", 1.5), ("bubble", -0.5)))
    explain.show_explained(test_explain_view.reloaded(), "tp=8", Verdict(word="slower", why="so it is", rival=other))


def ranked(_: object) -> None:
    estimate.show_ranked(test_estimate_view.asked("H100"), (1, 3, 4, 5, 7), test_estimate_view.MANY, 9)


def estimated(_: object) -> None:
    estimate.show(test_estimate_view.estimate(test_estimate_view.asked("H100", "A100", hosts=1024, ranks=4096)))


def lacking(_: object) -> None:
    helps = Found(config("tp=4,zero=0", 8), prediction(step_time_s=3.0))
    change = Relaxation(kind="constraint", what="ask nothing of a name: with recompute=full it fits", found=helps)
    nothing.show_nothing(test_plan_view.nothing(change))


VIEWS: dict[str, Callable[[pytest.MonkeyPatch], None]] = {
    "page": lambda _: plan.show(made()),
    "whole": lambda _: plan.show_whole(made()),
    "exchanged": lambda _: exchange.show_exchanged(test_view.written(), ("set/ds_config.json",)),
    "beside": lambda _: exchange.show_beside(test_view.beside(), made()),
    "diff": compared,
    "explain": explained,
    "estimate": estimated,
    "ranked": ranked,
    "nothing": lacking,
    "scale": lambda _: scaled.show(changed.SIZES, (), brief=False),
    "what if": lambda _: what_if.show_what_ifs(changed.ROWS),
    "compare": lambda _: compare.show(made(), test_compare.measured()),
    "traced": lambda _: compare.show_traced(made(), traced.run(traced.rank("rank 0", 0.0, traced.GEMM))),
    "verify": lambda _: verify.say(verify.shown(test_verify.found(off=("a tensor is off " * 9,)), ())),
    "errors": lambda _: errors.show_families(pages()),
    "all errors": lambda _: errors.show_all(pages()),
    "error": lambda _: errors.show_one(next(page for page in pages() if page.code == "MW6007")),
    "inspect": lambda _: inspect.show(test_inspect_view.FOUND),
    "cluster": lambda _: cluster.show(look(str(TWO_POOLS))),
    "whole cluster": lambda _: cluster.show_whole(look(str(TWO_POOLS))),
    "gpus": lambda _: gpus.show_all(all_known()),
    "gpu": lambda _: gpus.show_one(known("GB200")),
    "profile": lambda _: profile.show(hand(), "profile.json"),
}


@pytest.mark.parametrize("view", VIEWS)
def test_it_fits(view: str, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch) -> None:
    """What is printed at any width has no figure that the widest has not."""
    figures: set[str] = set()
    for width in (400, *reversed(WIDTHS)):
        monkeypatch.setenv("COLUMNS", str(width))
        VIEWS[view](monkeypatch)
        lines = capsys.readouterr().out.splitlines()
        assert lines
        for line in lines:
            assert cell_len(line) <= width, line
            line.encode("latin-1")
        found = {figure for line in lines for figure in FIGURE.findall(line)}
        figures = figures or found
        assert not found - figures
