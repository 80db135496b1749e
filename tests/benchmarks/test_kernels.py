"""The benchmark of kernel prices: its bars, on a sample, and what it says of rows it cannot price. Tables that are
shipped are the published rows."""

from __future__ import annotations

import csv
import json
from pathlib import Path
from typing import Any

import pytest

from benchmarks import kernels, kernels_attention, kernels_gemm
from benchmarks.kernel_scores import Scored, summary
from meshwright.cost_models.compute.attention import shipped_curves
from meshwright.cost_models.compute.gemm_table import shipped_rows
from meshwright.cost_models.compute.profile import chip_of
from meshwright.cost_models.hardware.devices import device

DATA = Path(kernels.__file__).parent / "data"


def read(name: str) -> list[dict[str, str]]:
    with (DATA / name).open(newline="", encoding="utf-8") as file:
        return list(csv.DictReader(file))


def write(path: Path, rows: list[dict[str, str]]) -> Path:
    with path.open("w", newline="", encoding="utf-8") as file:
        writer = csv.DictWriter(file, list(rows[0]))
        writer.writeheader()
        writer.writerows(rows)
    return path


def test_products_never_fitted_are_within_five_percent(tmp_path: Path) -> None:
    scores: Any = kernels_gemm.score(write(tmp_path / "sample.csv", read("gemm_v100.csv")[::8]))
    assert scores["priced"] == 750
    assert scores["mape"] <= 0.05
    assert abs(scores["bias"]) <= 0.02


def test_attention_left_out_is_within_six_percent() -> None:
    scores: Any = kernels_attention.score(DATA / "kernels.csv")
    assert scores["priced"] == sum(row["kernel"] == "attention" for row in read("kernels.csv"))
    assert scores["mape"] <= 0.06


def test_the_shipped_products_are_the_published_rows() -> None:
    name, dtype, rows = shipped_rows()
    published = {(int(row["m"]), int(row["n"]), int(row["k"])): float(row["time_us"]) for row in read("gemm_v100.csv")}
    assert {shape: round(seconds * 1e6, 6) for shape, seconds in rows} == published
    assert (name, dtype) == ("V100-PCIe-16G", "fp16")


def test_the_shipped_curves_hold_every_published_attention_row() -> None:
    measured, _ = shipped_curves()
    published = sum(row["kernel"] == "attention" for row in read("kernels.csv"))
    assert sum(len(curve.points) for curve in measured) == published


def test_ceilings_are_the_published_searches() -> None:
    for row in read("hardware.csv"):
        for dtype in ("bf16", "fp8"):
            if row[f"mamf_{dtype}_tflops"] and row["device"] not in ("Gaudi2", "Gaudi3"):
                share = float(row[f"mamf_{dtype}_tflops"]) / float(row[f"peak_{dtype}_tflops_dense"])
                assert chip_of(device(row["device"])).ceiling(dtype).value == pytest.approx(share, abs=1e-3), row[
                    "device"
                ]


def test_a_row_that_cannot_be_priced_is_skipped_with_the_reason(tmp_path: Path) -> None:
    good = {"source": "s", "gpu": "A100", "dtype": "bf16", "m": "4096", "k": "4096", "n": "4096", "time_us": "600"}
    bad = [{**good, "gpu": "A1000000"}, {**good, "dtype": "int3"}, {**good, "m": "many"}, {**good, "time_us": "0"}]
    scores: Any = kernels_gemm.score(write(tmp_path / "new.csv", [good, *bad]))
    assert (scores["rows"], scores["priced"]) == (5, 1)
    assert abs(scores["mape"]) < 0.2
    assert {"dtype 'int3' is not known", "m is 'many'", "time_us is '0'"} < set(scores["skipped"])
    assert any("A1000000" in reason for reason in scores["skipped"])


def test_json_has_every_part(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    sample = write(tmp_path / "sample.csv", read("gemm_v100.csv")[::200])
    assert kernels.main(["--gemm", str(sample), "--json"]) == 0
    found = json.loads(capsys.readouterr().out)
    for part in kernels.PARTS:
        assert {"rows", "priced", "skipped", "mape", "bias", "p50", "p90"} <= set(found[part])
    assert kernels.main(["--gemm", str(sample)]) == 0
    assert "flash_attn_3" in capsys.readouterr().out


def test_a_summary_counts_relative_errors() -> None:
    found = summary([Scored("a", 1.1, 1.0), Scored("a", 0.9, 1.0), Scored("b", 1.3, 1.0)])
    assert found["mape"] == pytest.approx(0.5 / 3)
    assert found["bias"] == pytest.approx(0.3 / 3)
    assert found["p50"] == pytest.approx(0.1)
    assert summary([])["mape"] is None
