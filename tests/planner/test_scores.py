"""What plans are compared by, in figures; and what cannot be."""

from __future__ import annotations

import pytest

from meshwright.cost_models.hardware.text import read_cluster
from meshwright.cost_models.hardware.toml import read
from meshwright.ir.errors import ObjectiveUnknown, PriceMissing
from meshwright.planner.question.objective import check_objective, price_per_s, score
from tests.planner.handmade import GIB, prediction

POOLS = """
[[pool]]
name = "a"
hosts = 2
gpu = "A100"
gpus_per_host = 4
price_per_gpu_hour = 2
[[pool]]
name = "b"
hosts = 1
gpu = "H100"
gpus_per_host = 2
PRICE
[[link]]
between = ["a", "b"]
kind = "ethernet"
gbps = 100
latency_us = 5
"""


def test_a_step_by_each_objective() -> None:
    """Eight devices at two an hour and two at ten are 36 an hour, a hundredth a second; a step takes two."""
    cluster = read(POOLS.replace("PRICE", "price_per_gpu_hour = 10"))
    assert price_per_s(cluster) == pytest.approx(0.01)
    assert score("cost", prediction(), cluster) == pytest.approx(0.02)
    assert score("time", prediction(), cluster) == 2.0
    assert score("memory", prediction(), cluster) == 6.0 * GIB
    for name in ("cost", "time", "memory"):
        check_objective(name, cluster)


def test_the_pool_without_a_price_is_named() -> None:
    with pytest.raises(PriceMissing) as refused:
        check_objective("cost", read(POOLS.replace("PRICE", "")))
    assert refused.value.place == "cluster, pool 'b'"
    check_objective("time", read_cluster("1x4xA100"))
    check_objective("memory", read_cluster("1x4xA100"))


@pytest.mark.parametrize(
    ("name", "fix"), [("tim", "did you mean 'time'?"), ("qqqqqq", "use one of time, cost, memory")]
)
def test_an_objective_that_is_not_known(name: str, fix: str) -> None:
    with pytest.raises(ObjectiveUnknown) as refused:
        check_objective(name, read_cluster("1x4xA100"))
    assert (refused.value.place, refused.value.fix) == (f"--objective {name}", fix)
