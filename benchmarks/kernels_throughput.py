"""Published throughputs of other kernels, beside the law.

- Matrix products, single and grouped, of `kernels.csv`. The benchmark ran them alone, so that they are priced at the
  ceiling itself, without what a long training step loses (`isolated`). The law's constants have seen the rows of
  `FITTED_ON`, so that here its fit is shown, not its skill; other sources are predictions. Rows that are the best of a
  search are left out: ceilings are made of them.
- Copies within device memory, whose traffic is the bytes copied.
"""

from __future__ import annotations

from pathlib import Path

from benchmarks.kernel_scores import Scored, Skip, number, read_each, report
from meshwright.cost_models.compute.kernels import Compute, Kernel
from meshwright.cost_models.compute.profile import constants
from meshwright.cost_models.hardware.devices import device
from meshwright.ir.rules.base import Engine

FITTED_ON = ("deepgemm_readme_202503", "tpu_recipes_ironwood")
_PRODUCTS = ("gemm", "grouped_gemm_contiguous", "grouped_gemm_masked")


def score(path: Path) -> dict[str, object]:
    """Of the rows (kernel, device, dtype, m, n, k, groups, tflops | mem_gb_per_s) of products and copies."""
    return report(*read_each(path, _scored))


def _scored(row: dict[str, str]) -> Scored:
    kind = row.get("kernel", "")
    if kind in _PRODUCTS:
        kernel, measured_s = _product(row)
    elif kind == "hbm_copy":
        nbytes = number(row, "m")
        kernel = Kernel(Engine.MEMORY, "forward", "bf16", 0.0, nbytes)
        measured_s = nbytes / (number(row, "mem_gb_per_s") * 1e9)
    else:
        raise Skip(f"a row of {kind}")
    prices = Compute(device(row["device"]), values=constants().isolated())
    fitted = ", fitted on" if row.get("source") in FITTED_ON else ""
    return Scored(f"{kind}{fitted}", prices.seconds(kernel).seconds, measured_s)


def _product(row: dict[str, str]) -> tuple[Kernel, float]:
    """As a wgrad: benchmarks of low precision hand over operands that are cast already."""
    m, n, k = (int(number(row, name)) for name in "mnk")
    groups = int(number(row, "groups")) if row.get("groups") else 1
    flops = 2.0 * groups * m * n * k
    kernel = Kernel(Engine.MATMUL, "wgrad", row["dtype"], flops, 0.0, (groups, m, n, k))
    return kernel, flops / (number(row, "tflops") * 1e12)
