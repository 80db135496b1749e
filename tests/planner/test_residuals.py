"""What whole steps take beyond kernels: each overhead falls on what it is called after, and steps say how much."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest

from meshwright.backends.door import measurer
from meshwright.planner.answer.measured import residuals
from meshwright.planner.answer.measured.residuals import Plan, Vector, fitted, least_squares, with_values
from tests.cost_models.measured_cpu import hand
from tests.planner.reference_plans import narrow_plans


@pytest.fixture(scope="module")
def plans(tmp_path_factory: pytest.TempPathFactory) -> list[Plan]:
    return narrow_plans(tmp_path_factory.mktemp("plans"))


def values(scale: float = 1.0, **named: float) -> Vector:
    """What is fitted, with these values and no others."""
    return np.array([({"scale": scale} | named).get(name, 0.0) for name in residuals.CHANGES])


TRUTH = values(
    scale=1.7,
    launch_s=3e-5,
    action_s=4e-4,
    weights_s=2e-3,
    sharing_s=6e-4,
    copying_s_per_byte=1e-9,
    moving_s=3e-4,
    again_s=2e-3,
    choosing_s=3e-3,
    step_s=1e-3,
)


def prices(plans: list[Plan], x: Vector) -> dict[str, float]:
    found = residuals.prices(with_values(hand(), x), plans)
    return {str(plan.case.words[1]): float(price) for plan, price in zip(plans, found, strict=True)}


def test_there_are_scripts_of_every_kind_of_plan(plans: list[Plan]) -> None:
    assert [plan.case.words[1] for plan in plans] == [pins.format(n=2) for pins in residuals.PINS]
    assert all(plan.script.is_file() for plan in plans)


def test_overheads_fall_on_what_they_are_called_after(plans: list[Plan]) -> None:
    """At a millisecond each, or a microsecond for a byte, by how much every plan takes longer, in milliseconds."""
    plain = prices(plans, values())
    found: dict[str, dict[str, float]] = {}
    for name in residuals.CHANGES:
        if name != "scale":
            more = prices(plans, values(**{name: 1e-6 if name.endswith("_per_byte") else 1e-3}))
            found[name] = {pins: (price - plain[pins]) * 1e3 for pins, price in more.items()}
    apart = {pins for pins in plain if "zb" in pins}
    staged = {pins for pins in plain if "pp=" in pins}
    shared = set(plain) - staged  # gradients of norms are summed over tensor parallel ranks, too
    touched = {name: {pins for pins, more in of.items() if more > 1e-6} for name, of in found.items()}
    assert all(more > 100 for more in found["launch_s"].values())
    assert touched["cold_s_per_byte"] == set(plain)
    assert touched["action_s"] == staged
    assert touched["weights_s"] == apart
    assert touched["sharing_s"] == shared
    assert touched["copying_s_per_byte"] == {pins for pins in plain if "dp=" in pins}
    assert touched["again_s"] == {pins for pins in plain if "recompute" in pins}
    assert touched["choosing_s"] == {pins for pins in plain if "selective" in pins}
    cut = {pins for pins in plain if "tp=" in pins}
    assert min(found["moving_s"][pins] for pins in cut) > 5 * max(found["moving_s"][pins] for pins in set(plain) - cut)
    assert all(more == pytest.approx(1) for more in found["step_s"].values())
    # Four forward and four backward passes on each stage, of which the last waits for one of each.
    assert found["action_s"]["pp=2,microbatches=4,schedule=gpipe"] == pytest.approx(10, rel=0.01)


def test_values_are_found_from_the_steps_that_follow_from_them(plans: list[Plan]) -> None:
    seconds = list(residuals.prices(with_values(hand(), TRUTH), plans))
    found = fitted(hand(), plans, seconds)
    again = residuals.prices(found, plans)
    assert again == pytest.approx(seconds, rel=0.02)
    assert found.busy[-1].scale == pytest.approx(1.7, rel=0.1)
    assert found.overheads.weights_s == pytest.approx(2e-3, rel=0.1)
    assert found.overheads.again_s == pytest.approx(2e-3, rel=0.1)
    assert found.overheads.choosing_s == pytest.approx(3e-3, rel=0.1)
    assert found.busy[0] == hand().busy[0]
    assert {one.family: one.plans for one in found.spreads} == {"one stage": 9, "pipeline": 6}
    assert all(0.9 < one.low <= 1 <= one.high < 1.1 for one in found.spreads)
    assert fitted(hand(), [], []) == hand()


def test_intervals_hold_what_the_fit_has_not_seen(plans: list[Plan]) -> None:
    """One kind of plan in three is half as slow again as any fit would have it: its family's interval says so."""
    seconds = residuals.prices(with_values(hand(), TRUTH), plans)
    odd = np.array([1.5 if "gpipe" in plan.case.words[1] else 1.0 for plan in plans])
    spreads = {one.family: one for one in fitted(hand(), plans, list(seconds * odd)).spreads}
    assert spreads["pipeline"].high > 1.2


def test_the_least_squares_are_not_negative() -> None:
    rows = np.array([[1.0, 1.0], [1.0, 2.0], [1.0, 4.0]])
    assert least_squares(rows, rows @ np.array([2.0, 3.0])) == pytest.approx([2, 3], rel=1e-6)
    assert least_squares(rows, rows @ np.array([2.0, -1.0]))[1] == 0
    assert least_squares(rows, rows @ np.array([-2.0, 1.0]))[0] == residuals.LEAST_SCALE


def test_a_script_that_fails_is_told_of(tmp_path: Path) -> None:
    from meshwright.ir.errors import RanksFailed

    script = tmp_path / "train.py"
    script.write_text("raise ValueError('no such thing')\n")
    with pytest.raises(RanksFailed, match="no such thing"):
        measurer("torch-gloo").steps([script], ranks=2, threads=1, rounds=1, each=1, limit_s=60)
