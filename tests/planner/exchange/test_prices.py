"""Settings of five models for every target: as they are on file, and priced as what they were written from.

`python -m tests.planner.exchange.golden` writes the files anew.
"""

from __future__ import annotations

import json
from functools import lru_cache
from typing import Any

import pytest

from meshwright.planner.answer.estimate import Estimate, estimate
from meshwright.planner.cli.main import build_parser, main
from meshwright.planner.exchange.run import config_of
from meshwright.planner.question import ask, pricing
from meshwright.planner.question.pins import fill
from tests.planner.exchange.golden import CASES, CLUSTER, GOLDEN, MODELS, WORKLOAD, Case, written

EVERY = [(target, model) for target in CASES for model in MODELS]
loaded = lru_cache(ask.read_again)
captured: dict[object, Any] = {}


@pytest.fixture(autouse=True)
def _captured_once(monkeypatch: pytest.MonkeyPatch) -> None:
    """What was captured once is not captured again, as it takes seconds."""
    real = pricing.capture

    def capture(source: Any, **shape: int) -> Any:
        key = (id(source), *shape.items())
        if key not in captured:
            captured[key] = real(source, **shape), source  # held, so that no other has its identity
        return captured[key][0]

    monkeypatch.setattr(
        ask, "read_again", lambda reference, dtype, mesh, store: loaded(reference, dtype=dtype, mesh=mesh)
    )
    monkeypatch.setattr(pricing, "capture", capture)


def planned(case: Case) -> tuple[Estimate, Any]:
    """What the configuration of a case costs, and its setting."""
    words = ["estimate", case.model, *CLUSTER, *WORKLOAD, *case.software, "--fix", case.pins]
    asked = ask.asked(build_parser().parse_args(words))
    config = fill(asked.pins, ranks=asked.cluster.ranks, global_batch=asked.global_batch or 0)
    asked, setting = asked.loaded()
    return estimate(asked, setting, setting.settled(config, asked.global_batch or 0)), setting


@pytest.mark.slow
@pytest.mark.parametrize(("target", "model"), EVERY)
def test_settings_cost_what_the_plan_costs(target: str, model: str, capsys: pytest.CaptureFixture[str]) -> None:
    """The target can say all of the plan; what is on file is what it says; and that has the same price, figure by
    figure."""
    case = CASES[target][model]
    found, setting = planned(case)
    projection, room, text = written(target, case, found, setting)
    assert projection.lost == ()
    file = GOLDEN / target / f"{model}{case.ending(target)}"
    assert text == file.read_text(encoding="utf-8")
    words = ["estimate", case.model, *CLUSTER, "--from", str(file), "--json", *case.beside(target)]
    assert main(words) == 0
    again = json.loads(capsys.readouterr().out)
    assert again["predicted"] == json.loads(json.dumps(found.prediction.to_json()))
    assert again["config"] == found.config.to_json() | {
        name: value for name, value in again["config"].items() if name in ("split", "stage_blocks", "etp", "shard")
    }
    assert config_of(projection.run, room).degrees().mesh() == found.config.degrees().mesh()
