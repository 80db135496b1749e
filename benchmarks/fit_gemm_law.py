"""``python -m benchmarks.fit_gemm_law``: how the constants of the law of matrix products were chosen.

A grid over `tile_penalty`, `kernel_floor_s` and the ceiling of V100, with `hbm_efficiency` as copies show it: the law
alone, without the table, on every `EVERY`-th V100 row above `LONG_S` and on the DeepGEMM rows of `kernels.csv`. Each
point of the grid gets the sum of the two mean absolute relative errors; the first line printed is what is shipped.
Short V100 rows are left out: they hold the timer's overhead, `V100_TIMER_S`, which is no price.
"""

from __future__ import annotations

import sys
from collections.abc import Sequence
from dataclasses import dataclass
from itertools import product
from pathlib import Path

from benchmarks.kernel_scores import number, read_each
from meshwright.cost_models.compute.gemm import Product, Rates, law_s
from meshwright.cost_models.compute.gemm_table import shipped_rows
from meshwright.cost_models.compute.profile import chip_of, constants
from meshwright.cost_models.hardware.devices import device

DATA = Path(__file__).parent / "data" / "kernels.csv"
EVERY, LONG_S, V100_TIMER_S = 3, 50e-6, 14e-6
FP8_CEILING = 1402.6 / 1979
"""Of H100, by search over shapes (`hardware.csv`, mamf_fp8_tflops); H800 is the same die."""
PENALTIES = (0.0, 0.1, 0.2, 0.3, 0.4)
FLOORS_S = (1.5e-6, 2e-6, 2.5e-6, 3e-6)
V100_CEILINGS = (0.76, 0.78, 0.80)

Rows = Sequence[tuple[Product, float]]


@dataclass(frozen=True, slots=True, order=True)
class Point:
    """One point of the grid, and its errors."""

    error: float
    v100_error: float
    deepgemm_error: float
    tile_penalty: float
    kernel_floor_s: float
    v100_ceiling: float


def main(argv: Sequence[str]) -> int:
    v100, deepgemm = v100_rows(), deepgemm_rows()
    found: list[Point] = []
    share = constants().hbm_efficiency
    for penalty in PENALTIES:
        on_v100 = {
            top: _error(v100, _rates("V100-PCIe", "fp16", top, penalty, share, V100_TIMER_S)) for top in V100_CEILINGS
        }
        on_h800 = {
            floor_s: _error(deepgemm, _rates("H800", "fp8", FP8_CEILING, penalty, share, floor_s))
            for floor_s in FLOORS_S
        }
        for (top, first), (floor_s, second) in product(on_v100.items(), on_h800.items()):
            found.append(Point(first + second, first, second, penalty, floor_s, top))
    for point in sorted(found)[:10]:
        print(point)
    return 0


def v100_rows() -> Rows:
    _, _, rows = shipped_rows()
    kept = [(shape, seconds) for shape, seconds in rows if seconds > LONG_S]
    return [(Product(1, *shape, 2.0, 2.0), seconds) for shape, seconds in kept[::EVERY]]


def deepgemm_rows() -> Rows:
    found = []
    for row in read_each(DATA, dict)[0]:
        if row["impl"] == "deepgemm":
            m, n, k = (int(number(row, name)) for name in "mnk")
            one = Product(int(row["groups"] or 1), m, n, k, 1 + 4 / 128, 2.0)
            found.append((one, one.flops / (number(row, "tflops") * 1e12)))
    return found


def _rates(name: str, dtype: str, ceiling: float, penalty: float, share: float, floor_s: float) -> Rates:
    one = device(name)
    return Rates(
        flops_per_s=one.peak(dtype).value * ceiling,
        bytes_per_s=one.memory_bandwidth.value * share,
        units=chip_of(one).units,
        tile_penalty=penalty,
        floor_s=floor_s,
    )


def _error(rows: Rows, rates: Rates) -> float:
    return sum(abs(law_s(one, rates) / seconds - 1) for one, seconds in rows) / len(rows)


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
