"""Matrix products, predicted beside measured.

The price is the production one: the shipped table, kriging between its shapes, the law outside. A row whose shape is in
the shipped table is priced without it: the shapes fall into `FOLDS` parts by a checksum of (m, k, n), and the part of
the row is taken out of the table before asking. So no row is ever priced from itself; other rows are priced as they
stand. The ceiling and the tile penalty behind the law, one number each, have seen all rows of the shipped table.
"""

from __future__ import annotations

from pathlib import Path
from zlib import crc32

from benchmarks.kernel_scores import Scored, Skip, number, read_each, report
from meshwright.cost_models.compute.gemm_table import Shape, shipped_rows
from meshwright.cost_models.compute.kernels import Compute, Kernel, table_for
from meshwright.cost_models.compute.profile import constants
from meshwright.cost_models.hardware.devices import device
from meshwright.ir.rules.base import Engine

FOLDS = 5
_DTYPES = {"half": "fp16", "fp16": "fp16", "float16": "fp16", "bf16": "bf16", "bfloat16": "bf16", "float": "fp32"}


def fold_of(shape: Shape) -> int:
    m, n, k = shape
    return crc32(f"{m},{k},{n}".encode()) % FOLDS


def score(path: Path) -> dict[str, object]:
    """Of rows (gpu, dtype, m, k, n, time_us)."""
    return report(*read_each(path, Prices().scored))


class Prices:
    """Compute by device and by what was taken out of its table, each built once."""

    def __init__(self) -> None:
        self._measured_on, self._dtype, rows = shipped_rows()
        self._rows = rows
        self._known = {shape for shape, _ in rows}
        self._built: dict[tuple[str, int], Compute] = {}

    def scored(self, row: dict[str, str]) -> Scored:
        dtype = _DTYPES.get(row.get("dtype", ""))
        if dtype is None:
            raise Skip(f"dtype {row.get('dtype')!r} is not known")
        m, n, k = (int(number(row, name)) for name in "mnk")
        measured_s = number(row, "time_us") * 1e-6
        kernel = Kernel(Engine.MATMUL, "forward", dtype, 2.0 * m * n * k, 0.0, (1, m, n, k))
        seconds = self.without(row.get("gpu", ""), dtype, (m, n, k)).seconds(kernel).seconds
        return Scored(_decade(measured_s), seconds, measured_s)

    def without(self, gpu: str, dtype: str, shape: Shape) -> Compute:
        """Prices of the device, from a table that lacks the shape's fold if it holds the shape."""
        found = device(gpu)
        held = found.name == self._measured_on and dtype == self._dtype and shape in self._known
        key = found.name, fold_of(shape) if held else -1
        if key not in self._built:
            self._built[key] = self._build(*key)
        return self._built[key]

    def _build(self, name: str, fold: int) -> Compute:
        one = device(name)
        if fold < 0:
            return Compute(one)
        kept = tuple((shape, seconds) for shape, seconds in self._rows if fold_of(shape) != fold)
        return Compute(one, table=table_for(one, constants(), kept, self._dtype, self._measured_on))


def _decade(seconds: float) -> str:
    for limit, name in ((50e-6, "a: below 50 us"), (1e-3, "b: 50 us to 1 ms"), (0.1, "c: 1 to 100 ms")):
        if seconds < limit:
            return name
    return "d: above 100 ms"
