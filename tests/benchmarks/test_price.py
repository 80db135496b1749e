"""What the precision of a row does to its price."""

from __future__ import annotations

from pathlib import Path

from benchmarks.price import Pricer
from benchmarks.runs import Run
from benchmarks.scores import Priced
from benchmarks.scoring import read_and_score
from tests.benchmarks.rows import MODEL, ROW, table

OLD = ROW | {"framework": "megatron_deepspeed", "zero": "zero0", "tp": "1", "pp": "1", "dp": "16"}


def runs(folder: Path, *precisions: str) -> list[Run]:
    found: list[Run] = []

    def price(run: Run) -> Priced:
        found.append(run)
        return Priced(step_time_s=1.0, peak_bytes=1.0, fits=True)

    rows = [OLD | {"precision": precision} for precision in precisions]
    read_and_score(table(folder / "runs.csv", rows), table(folder / "models.csv", [MODEL]), price)
    return found


def test_nothing_is_held_in_half_precision_in_fp32(tmp_path: Path) -> None:
    """Activations take twice the bytes of fp16, but for what is in fp32 or an index anyway. Of states, parameters,
    gradients and Adam's two moments take 4 bytes each; fp16 has 2, 2, and 12 with a copy of the parameters."""
    half, full = (dict(Pricer().predicted(run).stages[0].memory.parts) for run in runs(tmp_path, "fp16", "fp32"))
    elements = half["optimizer"] / 12
    assert [full[part] / elements for part in ("parameters", "gradients", "optimizer")] == [4.0, 4.0, 8.0]
    assert 1.75 < full["activations"] / half["activations"] <= 2
