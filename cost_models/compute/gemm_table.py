"""Measured matrix products: the table's own time for its shapes, kriging between them.

A table holds the seconds of products on one device. What is joined is never time but y = log(measured / law), the
logarithm of how far efficiency lies from the law of `gemm.py`. Between the measured shapes y is predicted by local
kriging (Gaussian-process regression; Rasmussen and Williams, "Gaussian Processes for Machine Learning", 2006, ch. 2):

    y(q) = mu + k(q)ᵀ K⁻¹ (y - mu),   K = smooth + rough + noise,   mu = the neighbours' generalised mean

over the `NEIGHBOURS` nearest shapes whose m and k lie within an octave of the query. Distances are taken over log2 of
m, k and n, over what each tile wastes in its last row and its last wave (log2 of the padded work beside the real one),
and over whether n fills 128, 256 and 512: two products that waste alike behave alike, even where n differs. `smooth`
(Matern 3/2) joins the logarithms, `rough` (exponential) all of them. The lengths are grid spacings, not fitted: an
octave and a half in m and k, half of an octave where libraries change tiles.

A product outside the hull of the table (the range of each of m, k and n) is not interpolated: `None`, and the law
answers; or, where the table is of the very machine (`measured`), the law with the nearest correction (`beyond_s`).
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import cache
from math import exp, log

import numpy as np
import numpy.typing as npt

from meshwright.cost_models.compute.profile import read_json

Array = npt.NDArray[np.float64]
Shape = tuple[int, int, int]
"""(m, n, k) of a single product."""

NEIGHBOURS = 48
TIMER_S = 0.5e-6
"""Half of the step in which the shipped times were read, one microsecond."""
REPEAT = 0.03
"""What two runs of one shape differ by, relative."""
_TILES = ((128, 256), (256, 128), (128, 128), (64, 64), (128, 64), (256, 64))
_LENGTHS = np.array([1.5, 1.5, 0.8] + [0.5] * (len(_TILES) + 2) + [2.0, 2.0, 4.0])
_SMOOTH_LENGTH, _SMOOTH, _ROUGH = 2.0, 0.3, 0.1


@dataclass(frozen=True)
class Table:
    """Seconds of measured products, with their interpolation.

    - `law` gives the seconds of a shape by the fitted law on the same device.
    - `units` share a product tile by tile; 0: its library knows no tiles of this kind, as on CPUs.
    - A shape must occur once.
    """

    device: str
    dtype: str
    seconds: dict[Shape, float]
    law: Callable[[Shape], float]
    units: int
    _shapes: Array
    _features: Array
    _excess: Array
    _times: Array

    def exact_s(self, shape: Shape) -> float | None:
        return self.seconds.get(shape)

    def interpolated_s(self, shape: Shape) -> float | None:
        """Interpolated seconds; None outside the hull, and where no shape within an octave was measured."""
        query = np.array([shape], dtype=np.float64)
        if (query < self._shapes.min(0)).any() or (query > self._shapes.max(0)).any():
            return None
        asked = features(query, self.units)[0]
        near = np.abs(self._features[:, :2] - asked[:2]).max(1) <= 1.0 + 1e-9
        chosen = np.flatnonzero(near)
        if len(chosen) == 0:
            return None
        away = (((self._features[chosen] - asked) / _LENGTHS[: len(asked)]) ** 2).sum(1)
        chosen = chosen[np.argsort(away, kind="stable")[:NEIGHBOURS]]
        return self.law(shape) * exp(self._krige(asked, chosen))

    def beyond_s(self, shape: Shape) -> float:
        """Seconds of any shape: the law's, as far from the law as at the nearest place of the hull."""
        inside = np.clip(np.array([shape], dtype=np.float64), self._shapes.min(0), self._shapes.max(0))
        asked = features(inside, self.units)[0]
        away = (((self._features - asked) / _LENGTHS[: len(asked)]) ** 2).sum(1)
        return self.law(shape) * exp(self._krige(asked, np.argsort(away, kind="stable")[:NEIGHBOURS]))

    def _krige(self, asked: Array, chosen: npt.NDArray[np.intp]) -> float:
        known, excess = self._features[chosen], self._excess[chosen]
        noise = REPEAT**2 + (TIMER_S / self._times[chosen]) ** 2
        gram = _covariance(known, known) + np.diag(noise)
        solved = np.linalg.solve(gram, np.stack([excess, np.ones(len(excess))], axis=1))
        mean = solved[:, 0].sum() / solved[:, 1].sum()
        weights = solved[:, 0] - mean * solved[:, 1]
        return float(mean + (_covariance(asked[None], known) @ weights)[0])


def features(shapes: Array, units: int) -> Array:
    """Features of rows (m, n, k): logarithms of m, k, n, then waste by tile, then how n fills the usual widths. Without
    units (0) the logarithms alone."""
    m, n, k = shapes.T
    columns = [np.log2(m), np.log2(k), np.log2(n)]
    if not units:
        return np.stack(columns, axis=1)
    for tm, tn in _TILES:
        waves = np.ceil(np.ceil(m / tm) * np.ceil(n / tn) / units)
        columns.append(np.log2(waves * units * tm * tn / (m * n)))
    columns += [np.log2(np.ceil(n / width) * width / n) for width in (128, 256)]
    columns += [(n % width != 0).astype(np.float64) for width in (128, 256, 512)]
    return np.stack(columns, axis=1)


def _covariance(left: Array, right: Array) -> Array:
    between = left[:, None] - right[None]
    rough = np.sqrt(((between / _LENGTHS[: between.shape[-1]]) ** 2).sum(-1))
    smooth = np.sqrt(3.0) * np.sqrt((between[..., :3] ** 2).sum(-1)) * (_LENGTHS[0] / _SMOOTH_LENGTH)
    covariance: Array = _ROUGH * np.exp(-rough) + _SMOOTH * (1 + smooth) * np.exp(-smooth)
    return covariance


def table_of(
    rows: Sequence[tuple[Shape, float]], law: Callable[[Shape], float], units: int, device: str, dtype: str
) -> Table:
    """A table made from (shape, seconds), which is all that fitting is."""
    seconds = dict(rows)
    shapes = np.array(list(seconds), dtype=np.float64)
    times = np.array(list(seconds.values()))
    excess = np.array([log(time_s / law(shape)) for shape, time_s in seconds.items()])
    return Table(device, dtype, seconds, law, units, shapes, features(shapes, units), excess, times)


@cache
def shipped_rows() -> tuple[str, str, tuple[tuple[Shape, float], ...]]:
    """Device, dtype and rows of the shipped table: by (m, k), pairs of n / 64 and microseconds."""
    table = read_json("compute_gemm_v100.json")
    step = table["n_step"]
    rows = tuple(((m, n * step, k), time_us * 1e-6) for m, k, pairs in table["rows"] for n, time_us in pairs)
    return table["device"], table["dtype"], rows
