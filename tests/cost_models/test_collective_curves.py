"""Curves: cleaned by rule, built from rows, read on a law's clock; the score of left-out rows."""

from __future__ import annotations

import csv
import json
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given as for_all
from hypothesis import strategies as st

from benchmarks import kernels_nccl, kernels_nccl_fit
from benchmarks.kernels_nccl import DATA, PROFILE, rows_of, score, score_laws
from meshwright.cost_models.collectives.curves import (
    Curve,
    Curves,
    Reader,
    Row,
    built,
    ends,
    levelled,
    matching,
    spikes,
)
from meshwright.cost_models.collectives.facts import facts
from meshwright.cost_models.collectives.topology import GroupShape, Level

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


def wires(**words: Any) -> GroupShape:
    level = Level(
        tier="island",
        kind="nvlink4",
        parts=8,
        members=1,
        part_bytes_per_s=100e9,
        rank_bytes_per_s=90e9,
        pair_bytes_per_s=80e9,
        latency_s=1e-6,
    )
    return GroupShape(**{"ranks": 8, "units": 1, "levels": (level,), "devices": ("H100-80G",)} | words)


def curve(kind: str, **words: Any) -> Curve:
    told = {"device": "H100-80G", "hosts": 1, "per_host": 8, "points": ((1.0, 1.0),), "source": "s"} | words
    return Curve(kind=kind, **told)


GATHER, SEND = curve("all_gather"), curve("p2p", per_host=2)
OTHERS = (curve("all_gather", hosts=2), curve("all_gather", device="A100-80G"), curve("all_gather", per_host=4))


@pytest.mark.parametrize(
    ("kind", "change", "found"),
    [
        ("all_gather", {}, GATHER),
        ("all_reduce", {}, None),
        ("p2p", {}, SEND),  # of however many
        ("shift", {}, SEND),
        ("p2p", {"ranks": 3}, SEND),
        ("all_gather", {"ranks": 3}, None),
        ("all_gather", {"devices": ("A100-80G", "H100-80G")}, None),
        ("all_gather", {"units": 2}, None),
        ("all_gather", {"levels": wires().levels * 2}, None),
        ("all_gather", {"levels": (replace(wires().levels[0], kind="nvlink3"),)}, None),
    ],
)
def test_a_curve_speaks_for_its_device_on_its_own_wires(kind: str, change: dict[str, Any], found: Curve | None) -> None:
    """It was measured at the device's own rate, 450 GB/s."""
    shape = wires(**change)
    asked = matching(kind, shape, Curves((*OTHERS, SEND, GATHER)), "nccl")
    if found is None:
        assert asked is None
        return
    level = replace(shape.levels[0], part_bytes_per_s=450e9, rank_bytes_per_s=450e9, pair_bytes_per_s=450e9)
    assert asked == (found, replace(shape, levels=(level,)))
    assert (GATHER.ranks, OTHERS[0].ranks) == (8, 16)


def test_a_device_without_scale_up_wires_is_measured_over_its_host_link() -> None:
    level = replace(wires().levels[0], tier="host", kind="pcie4", parts=4)
    shape = wires(ranks=4, levels=(level,), devices=("L40S",))
    found = matching("all_gather", shape, Curves((curve("all_gather", device="L40S", per_host=4),)), "nccl")
    assert found is not None
    assert found[1].levels[0].part_bytes_per_s == 31.5e9


def test_a_curve_is_read_along_the_law_of_its_own_wires() -> None:
    """Measured where a byte takes a second, and asked for where it takes two: beyond the ends as long as the law."""
    reader = Reader([(2.0, 20.0), (8.0, 40.0)], lambda nbytes: 2 * nbytes, lambda nbytes: nbytes)
    assert [reader.seconds(nbytes) for nbytes in (0.5, 1, 2, 4, 8)] == pytest.approx([10, 20, 20 * 2**0.5, 40, 80])


def test_rows_that_fall_are_given_their_geometric_mean() -> None:
    """Rows of one size first: 4 and 1 are 2, which falls to 1; 8 falls to 2."""
    assert levelled([(1, 4.0), (1, 1.0), (2, 1.0), (4, 8.0), (8, 2.0), (8, 2.0)]) == (
        pytest.approx((1, 2**0.5)),
        pytest.approx((2, 2**0.5)),
        pytest.approx((4, 4.0)),
        pytest.approx((8, 4.0)),
    )
    assert levelled([(1, 2.0), (2, 8.0), (4, 4.0), (8, 1.0)]) == tuple(
        pytest.approx((size, seconds))
        for size, seconds in ((1, 2.0), (2, 32 ** (1 / 3)), (4, 32 ** (1 / 3)), (8, 32 ** (1 / 3)))
    )


def test_rows_of_several_groups_make_a_curve_each() -> None:
    """In whatever order they come. Rows of no bytes say nothing; a row that took no time, or longer by more than a
    quarter than a larger one, is named, dtype by dtype; where no row is left there is no curve."""

    def row(kind: str, hosts: int, dtype: str, nbytes: float, seconds: float, source: str = "b") -> Row:
        return Row(
            kind=kind,
            device="X",
            hosts=hosts,
            per_host=8,
            dtype=dtype,
            nbytes=nbytes,
            seconds=seconds,
            source=source,
        )

    timeless = row("all_gather", 1, "half", 2, 0.0)
    slow = row("all_gather", 1, "float", 2, 13.0)
    nothing = row("all_gather", 2, "half", 4, -1.0)
    rows = [
        row("broadcast", 1, "half", 4, 7.0),
        row("all_gather", 1, "half", 4, 8.0),
        row("all_gather", 1, "half", 0, 5.0),
        nothing,
        timeless,
        slow,
        row("all_gather", 1, "float", 4, 10.0),
        row("all_gather", 1, "half", 1, 1.0, "a"),
        row("all_gather", 1, "half", 3, 10.0),  # a quarter longer than the larger one, no more
        row("all_gather", 1, "half", 8, 8.0),
    ]
    curves, corrupt = built(rows)
    assert corrupt == (slow, timeless, nothing)
    # Of 4 bytes the geometric mean of 8 and 10, 80 ** 0.5 = 8.94; three that fall, 10, 8.94 and 8, are given theirs.
    level = (10 * 80**0.5 * 8) ** (1 / 3)
    assert [(one.kind, one.device, one.hosts, one.per_host, one.source) for one in curves] == [
        ("all_gather", "X", 1, 8, "a + b"),
        ("broadcast", "X", 1, 8, "b"),
    ]
    expected = [(1, 1.0), (3, level), (4, level), (8, level)]
    assert curves[0].points == tuple(pytest.approx(point) for point in expected)
    assert curves[1].points == (pytest.approx((4, 7.0)),)
    assert spikes([(1, 12.5), (2, 10.0)]) == ()
