"""Curves: cleaned by rule, built from rows, read on a law's clock; the score of left-out rows."""

from __future__ import annotations

import csv
import json
from pathlib import Path

import pytest
from hypothesis import given as for_all
from hypothesis import strategies as st

from benchmarks import kernels_nccl, kernels_nccl_fit
from benchmarks.kernels_nccl import DATA, PROFILE, rows_of, score, score_laws
from meshwright.cost_models.collective_curves import Reader, Row, built, ends, levelled, spikes
from meshwright.cost_models.collective_facts import facts

POINTS = st.lists(
    st.tuples(st.integers(1, 10**9).map(float), st.floats(1e-6, 1.0)),
    min_size=2,
    max_size=12,
    unique_by=lambda point: point[0],
).map(sorted)


def affine(nbytes: float) -> float:
    return 1e-5 + nbytes / 1e11


@for_all(POINTS)
def test_levelled_points_never_fall_and_keep_the_mean(points: list[tuple[float, float]]) -> None:
    found = levelled(points)
    seconds = [second for _, second in found]
    assert seconds == sorted(seconds)
    assert [size for size, _ in found] == [size for size, _ in points]
    rising = [point for point in points if points.index(point) == sorted(s for _, s in points).index(point[1])]
    if len(rising) == len(points):
        assert seconds == pytest.approx([second for _, second in points])


@for_all(POINTS, st.floats(1, 1e10), st.floats(1, 1e10))
def test_a_curve_meets_its_points_and_never_falls(points: list[tuple[float, float]], one: float, other: float) -> None:
    clean = levelled(points)
    reader = Reader(clean, affine)
    for nbytes, seconds in clean:
        assert reader.seconds(nbytes) == pytest.approx(seconds, rel=1e-6)
    few, many = sorted((one, other))
    assert reader.seconds(few) <= reader.seconds(many) * (1 + 1e-9)


@for_all(st.floats(1, 1e10), st.floats(0.1, 10))
def test_what_follows_the_law_is_read_without_error(nbytes: float, factor: float) -> None:
    """A machine that is `factor` slower than the law, known from two points: known everywhere, beyond them too."""
    reader = Reader([(size, factor * affine(size)) for size in (1e4, 1e8)], affine)
    assert reader.seconds(nbytes) == pytest.approx(factor * affine(nbytes), rel=1e-9)


def test_a_spike_is_what_a_larger_message_proves_wrong() -> None:
    assert spikes([(1, 10.0), (2, 13.0), (4, 11.0), (8, 20.0)]) == ()
    assert spikes([(1, 10.0), (2, 14.0), (4, 11.0), (8, 20.0)]) == (1,)
    assert spikes([(1, 1348.0), (2, 15.0), (4, 1591.0), (8, 16.0)]) == (0, 2)


def test_two_dtypes_make_one_curve_without_the_spikes_of_either() -> None:
    def row(dtype: str, nbytes: float, seconds: float) -> Row:
        return Row(
            kind="all_gather",
            device="X",
            hosts=1,
            per_host=8,
            dtype=dtype,
            nbytes=nbytes,
            seconds=seconds,
            source="s",
        )

    rows = [row("half", 1, 4.0), row("half", 2, 9.0), row("half", 4, 6.0), row("float", 1, 1.0), row("float", 4, 6.0)]
    (curve,), corrupt = built(rows)
    assert corrupt == (rows[1],)
    assert curve.points == (pytest.approx((1, 2.0)), pytest.approx((4, 6.0)))


def test_a_clock_from_its_own_ends() -> None:
    clock = ends([(1.0, 2.0), (100.0, 50.0)])
    assert clock(0) == 2.0
    assert clock(200) == 2.0 + 100.0


def test_left_out_rows_are_met_within_the_bar() -> None:
    found = score(DATA / "nccl_curves.csv")
    assert found["mape"] <= 0.10
    assert found["priced"] > 400
    assert {"curve", "size_kib", "time_us", "reason"} == set(found["corrupt"][0])
    json.dumps(found)


def test_a_file_never_seen_is_scored(tmp_path: Path) -> None:
    """An unknown GPU that follows a straight line, with one spike: named, and no error elsewhere."""
    path = tmp_path / "new.csv"
    with path.open("w", encoding="utf-8", newline="") as file:
        writer = csv.writer(file)
        writer.writerow(["source", "collective", "gpu", "n_nodes", "gpus_per_node", "dtype", "size_kib", "time_us"])
        for step in range(19):
            time = 20 + 2**step / 4
            for kind, gpu, hosts in (("all_gather", "Z9", 3), ("reduce", "H100", 1)):
                writer.writerow(["new", kind, gpu, hosts, 5, "half", 2**step, {4: 900, 7: 0}.get(step, time)])
        writer.writerow(["new", "all_gather", "Z9", 3, 5, "half", 8192, ""])
    found = score(path)
    assert sorted(row["size_kib"] for row in found["corrupt"]) == [16, 16, 128, 128]
    assert {row["reason"] for row in found["corrupt"]} >= {"took no time"}
    assert found["mape"] < 0.01


def test_laws_alone_on_published_rows() -> None:
    found = score_laws(DATA / "collectives.csv")
    peaks = [score for name, score in found["by_source"].items() if "H200" in name]
    assert all(score["mape"] < 0.03 for score in peaks)
    assert sum(score["rows"] for score in found["by_source"].values()) > 130
    assert all(": " in reason for reason in found["skipped"])


def test_the_shipped_curves_are_those_of_the_data(tmp_path: Path) -> None:
    kernels_nccl.write_profile(DATA / "nccl_curves.csv", tmp_path / "again.json")
    assert (tmp_path / "again.json").read_text() == PROFILE.read_text()


def test_the_fitted_constants_are_those_that_the_fit_gives(capsys: pytest.CaptureFixture[str]) -> None:
    assert kernels_nccl_fit.main([]) == 0
    again = json.loads(capsys.readouterr().out)
    kept = {name: entry["value"] for name, entry in facts()["fits"].items()}
    assert again == {name: pytest.approx(value, rel=0.01) for name, value in kept.items()}
    assert len(rows_of(DATA / "nccl_curves.csv")) > 800
