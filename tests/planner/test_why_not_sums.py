"""`--why-not`: what the best plan with a pin costs more, share by share, adds up to the difference of both prices."""

from __future__ import annotations

from math import fsum
from pathlib import Path

import pytest

import meshwright
from meshwright.planner.plan.types import Plan
from tests.planner.refused.cases import shape

MODELS = {
    "deep": shape(layers=8, hidden=512, ffn_hidden=2048, vocab=8192, heads=8, kv_heads=8),
    "wide": shape(layers=4, hidden=4096, ffn_hidden=16384, vocab=32000, heads=32, kv_heads=8),
    "experts": shape(layers=8, hidden=1024, ffn_hidden=2048, vocab=32000, heads=16, kv_heads=4, experts=8, topk=2),
}
PINS = ("tp=2", "pp=2", "dp=2", "zero=3", "recompute=full")


@pytest.fixture(scope="module", params=MODELS)
def plan(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Plan:
    path: Path = tmp_path_factory.mktemp("model") / f"{request.param}.toml"
    path.write_text(MODELS[request.param])
    return meshwright.plan(str(path), "1x2xH100", global_batch=8, seq=512)


@pytest.mark.slow
@pytest.mark.parametrize("pin", PINS)
def test_shares_add_up_to_the_difference(plan: Plan, pin: str) -> None:
    name, value = pin.split("=")
    verdict = meshwright.explain(plan, why_not=pin).to_json()["why_not"]
    rival = verdict["rival"]
    assert str(rival["config"][name]) == value
    more_s = rival["step_time_s"] - plan.prediction.step_time_s
    assert fsum(rival["differences"].values()) == pytest.approx(more_s, rel=1e-9, abs=1e-12)
    assert (verdict["verdict"] == "slower") == (more_s > 0)
    assert len(rival["differences"]) > 1 or not more_s
