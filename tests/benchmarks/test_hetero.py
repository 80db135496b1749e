"""Networks that are not alike: cluster files of topologies, the bars, and one topology run whole."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from benchmarks import hetero
from benchmarks.closed.figures import Figures
from benchmarks.hetero import page
from benchmarks.heterogeneous.judged import faults, judged
from benchmarks.heterogeneous.placed import placed
from benchmarks.heterogeneous.running import Failed, printed_by, steps_of
from benchmarks.heterogeneous.topologies import FLOPS_PER_S, GBPS_OF_MBITS, TOPOLOGIES, Topology
from benchmarks.testbed.hosts import hosts, lacking
from meshwright.cost_models.hardware.parts import BYTES_PER_S_OF_GBPS
from meshwright.cost_models.hardware.toml import read

LACKING = lacking()


@pytest.mark.parametrize("topology", TOPOLOGIES, ids=lambda one: one.name)
def test_a_cluster_file_says_what_the_testbed_makes(topology: Topology) -> None:
    cluster = read(topology.cluster())
    assert cluster.ranks == cluster.hosts == len(topology.mbits)
    for one, other in ((0, 1), (0, 2), (1, 3), (3, 2)):
        rate = topology.mbits_between(one, other) * GBPS_OF_MBITS * BYTES_PER_S_OF_GBPS
        assert cluster.link(one, other).bandwidth.value == pytest.approx(rate)
        assert topology.mbits_between(one, other) == topology.mbits_between(other, one)
    for rank, rate in enumerate(topology.rates):
        own = dict(cluster.device(rank).peaks)["fp32"].value
        assert rate == FLOPS_PER_S or own == pytest.approx(rate)


def run(pins: str, placement: str, step_s: float, seconds: float) -> dict[str, Any]:
    """A run whose steps differ by a thousandth."""
    steps = [seconds * (1 + part / 1000) for part in (-1, 0, 1)]
    return {
        "pins": pins,
        "config": pins,
        "placement": placement,
        "order": (0, 1),
        "step_s": step_s,
        "interval_s": (0.9 * step_s, 1.1 * step_s),
        "seconds": steps,
    }


def test_runs_that_are_as_predicted_meet_the_bars() -> None:
    runs = [run("a", "ours", 1.0, 1.05), run("a", "naive", 2.0, 2.0), run("b", "ours", 4.0, 4.1)]
    found, pairs = judged(runs)
    assert (found.tau, found.regret, found.inside) == (1.0, 0.0, 1.0)
    assert [(pair.config, pair.predicted, pair.measured) for pair in pairs] == [("a", 2.0, pytest.approx(2 / 1.05))]
    assert list(faults(found, pairs)) == []
    told = page({"here": {"runs": runs}})
    assert "| here | 3 | 3 | +1.00 | 0% | 2% | 100% |" in told
    assert "| here | a | 0 1 | naive | 2000 ms | 2000 ms | 1.90 |" in told


@pytest.mark.parametrize(
    ("predicted", "measured", "holds"),
    [(2.0, 1.55, False), (2.0, 1.65, True), (1.4, 1.0, True), (1.4, 0.96, True), (1.4, 0.94, False), (2.0, 2.5, False)],
)
def test_orders_that_are_predicted_to_be_far_apart_must_be(predicted: float, measured: float, holds: bool) -> None:
    found, pairs = judged([run("a", "ours", 1.0, 1.0), run("a", "naive", predicted, measured)])
    assert [pair.holds for pair in pairs] == [holds]
    assert any("naive order" in fault for fault in faults(found, pairs)) != holds


def test_every_bar_that_is_not_met_is_told() -> None:
    poor = Figures(pairs=3, tau=0.8, regret=0.06, error=0.13, error_left_out=0.0, inside=1.0)
    assert [fault.split()[0] for fault in faults(poor, [])] == ["tau", "regret", "error"]


def test_where_there_can_be_no_hosts_nothing_is_run(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(hetero, "lacking", lambda: "there is no tc")
    assert hetero.main([]) == 0
    assert capsys.readouterr().out == "skipped: there is no tc\n"


@pytest.mark.e2e
@pytest.mark.slow
@pytest.mark.skipif(bool(LACKING), reason=LACKING)
def test_a_plan_is_placed_and_takes_about_as_long_as_predicted(tmp_path: Path) -> None:
    """Two islands that the order of the hosts does not show, by shipped prices: ours is faster by more than half."""
    topology = next(one for one in TOPOLOGIES if one.name == "two islands")
    (tmp_path / "cluster.toml").write_text(topology.cluster())
    asked = [*hetero.MODEL, "--cluster", str(tmp_path / "cluster.toml"), "--target", "torch-gloo"]
    asked += ["--profile", "published"]
    ours, naive, *_ = placed("dp=2,pp=2,zero=0,schedule=gpipe,microbatches=2", asked, tmp_path, others=1)
    assert sorted(map(sorted, (ours.order[:2], ours.order[2:]))) == [[0, 2], [1, 3]]
    assert (naive.placement, naive.order) == ("naive", (0, 1, 2, 3))
    with hosts(topology.mbits, topology.limits) as made:
        with pytest.raises(Failed, match="no such words"):
            printed_by(made[:1], [["sh", "-c", "echo no such words; exit 3"]], [FLOPS_PER_S], 10.0)
        near, far = (min(steps_of(one.folder, made, topology.rates, 3, 120.0)) for one in (ours, naive))
    assert far > 1.4 * near
    assert json.loads((ours.folder / "ranks.json").read_text())[1]["host"] == 2
