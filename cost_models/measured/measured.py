"""What a calibration found on one machine: times of kernels, of launches, of collectives, and where they are from.

A rank that shares its host with others is slower than one alone, for they share caches, memory and, where there are
more ranks than cores, the cores. So kernels are measured with several numbers of ranks at work at once (`Busy`), and a
cluster is priced by the entry with as many ranks as one of its hosts has, or the nearest.

Times are medians (`p50_s`), with the 90th percentile beside them (`p90_s`).
"""

from __future__ import annotations

from dataclasses import astuple, dataclass
from math import log

from meshwright.cost_models.collectives.curves import Curve
from meshwright.ir.errors import BadQuantity

Shape4 = tuple[int, int, int, int]
Shape7 = tuple[int, int, int, int, int, int, int]


@dataclass(frozen=True, slots=True, kw_only=True)
class Identity:
    """The machine and the software that were measured.

    - `device` is a name of the table of devices; `processor` is what the machine calls itself.
    """

    device: str
    processor: str
    driver: str
    libraries: tuple[tuple[str, str], ...]
    cores: int
    """Of one host, that its ranks may use."""
    threads: int
    """Of one rank."""

    def __str__(self) -> str:
        used = ", ".join(f"{name} {version}" for name, version in self.libraries)
        threads = "1 thread" if self.threads == 1 else f"{self.threads} threads"
        return f"{self.processor}, {self.cores} cores, {threads} a rank, {used}"


@dataclass(frozen=True, slots=True, kw_only=True)
class ProductTime:
    """A matrix product of (groups, m, n, k)."""

    dtype: str
    shape: Shape4
    p50_s: float
    p90_s: float

    @property
    def flops(self) -> float:
        g, m, n, k = self.shape
        return 2.0 * g * m * n * k


@dataclass(frozen=True, slots=True, kw_only=True)
class AttentionTime:
    """Fused attention of (batch, heads, kv_heads, sq, sk, d_qk, d_v); `work` is forward or backward."""

    dtype: str
    work: str
    causal: bool
    shape: Shape7
    p50_s: float
    p90_s: float


@dataclass(frozen=True, slots=True, kw_only=True)
class StreamTime:
    """A kernel that only moves bytes."""

    nbytes: float
    p50_s: float
    p90_s: float


@dataclass(frozen=True, slots=True, kw_only=True)
class Busy:
    """Times on one rank while so many ranks of its host are at work.

    - Times must be positive; no product, attention or size of a stream occurs twice.
    """

    ranks: int
    products: tuple[ProductTime, ...]
    attention: tuple[AttentionTime, ...]
    streams: tuple[StreamTime, ...]
    launch_s: float
    """Host seconds of a launch in a training step, beyond those inside the times of kernels."""
    scale: float
    """Seconds of kernels inside a training step over those of kernels measured one by one."""
    cold_s_per_byte: float = 0.0
    """What a product takes longer in a step, by the bytes that it reads and writes: measured again and again, it finds
    them in caches."""

    def __post_init__(self) -> None:
        rows: tuple[ProductTime | AttentionTime | StreamTime, ...] = (*self.products, *self.attention, *self.streams)
        keys = [(type(row), getattr(row, "dtype", ""), _what(row)) for row in rows]
        if (
            self.ranks < 1
            or len(set(keys)) < len(keys)
            or not all(0 < row.p50_s <= row.p90_s for row in rows)
            or self.launch_s < 0
            or not self.scale > 0
            or not (self.products and self.streams)
        ):
            raise BadQuantity(
                place=f"measurements with {self.ranks} busy ranks",
                cause="a time is not positive, a case occurs twice, or there are no products or streams",
                fix="calibrate again",
            )

    def peak_flops_per_s(self, dtype: str) -> float:
        """The best rate of any product; 0 where none was measured in this precision."""
        return max((row.flops / row.p50_s for row in self.products if row.dtype == dtype), default=0.0)

    @property
    def dtypes(self) -> tuple[str, ...]:
        return tuple(dict.fromkeys(row.dtype for row in self.products))

    @property
    def bytes_per_s(self) -> float:
        """The rate of the largest stream."""
        largest = max(self.streams, key=lambda row: row.nbytes)
        return largest.nbytes / largest.p50_s

    def hull(self) -> str:
        """The range of shapes that were measured, in words."""
        sides = zip(*(row.shape[1:] for row in self.products), strict=True)
        spans = (f"{name} {min(side):,} to {max(side):,}" for name, side in zip("mnk", sides, strict=True))
        return f"products {', '.join(spans)}"


def _what(row: ProductTime | AttentionTime | StreamTime) -> object:
    if isinstance(row, StreamTime):
        return row.nbytes
    return (row.work, row.causal, row.shape) if isinstance(row, AttentionTime) else row.shape


@dataclass(frozen=True, slots=True, kw_only=True)
class Overheads:
    """Seconds of a training step beside launches, kernels and wires, by what the runtime does."""

    action_s: float = 0.0
    """Of an action of a pipeline: a forward or a backward pass of one micro-batch on one stage."""
    weights_s: float = 0.0
    """Of an action that makes gradients of weights apart."""
    sharing_s: float = 0.0
    """Of a collective of parameters or of their gradients: hooks around it."""
    copying_s_per_byte: float = 0.0
    """Of one that gathers or scatters them: copies into and out of its buffer, by its bytes."""
    moving_s: float = 0.0
    """Of a collective that operators wait for: the call, and the wait."""
    again_s: float = 0.0
    """Of a module's call that keeps what it is given, and runs again in the backward pass."""
    choosing_s: float = 0.0
    """Of one that also keeps some of what it makes: each operator asks whether."""
    step_s: float = 0.0
    """Of a step, once."""

    def __post_init__(self) -> None:
        if min(astuple(self)) < 0:
            raise BadQuantity(place="overheads", cause="one is negative", fix="calibrate again")


NO_OVERHEADS = Overheads()
FAMILIES = ("one stage", "pipeline")
"""Families of plans whose predictions are off alike."""


def family_of(stages: int) -> str:
    """The family of a plan."""
    return "pipeline" if stages > 1 else "one stage"


@dataclass(frozen=True, slots=True, kw_only=True)
class Spread:
    """How far whole steps of one family of plans are from what is predicted of them.

    - Quantiles of measured over predicted seconds, of plans that the prediction was not fitted on; the prediction
      itself lies between them.
    """

    family: str
    plans: int
    low: float
    high: float

    def __post_init__(self) -> None:
        if self.family not in FAMILIES or self.plans < 1 or not 0 < self.low <= 1 <= self.high:
            raise BadQuantity(
                place=f"the spread of plans of {self.family}",
                cause=f"{self.low} to {self.high}, of {self.plans} plans",
                fix="calibrate again",
            )


@dataclass(frozen=True, slots=True, kw_only=True)
class Learned:
    """A run of a plan that was taken in (`plan compare --learn`): the seconds of its step, and what was predicted then.

    - `config` is the plan, in its names.
    """

    config: str
    made: str
    """The day, as YYYY-MM-DD."""
    steps: int
    measured_s: float
    predicted_s: float


@dataclass(frozen=True, slots=True, kw_only=True)
class Measured:
    """All measurements of one machine.

    - There is at least one `Busy`, in rising order of ranks.
    """

    name: str
    made: str
    """The day, as YYYY-MM-DD."""
    forced: bool
    """Whether something else was running, and measuring was forced."""
    identity: Identity
    synchronous: bool
    """Whether a launch returns when the kernel is done, so that host and device take turns."""
    covered: float
    """Share of compute that collectives in the background run behind."""
    slowdown: float
    """Slow-down of compute while they do."""
    busy: tuple[Busy, ...]
    curves: tuple[Curve, ...]
    overheads: Overheads = NO_OVERHEADS
    spreads: tuple[Spread, ...] = ()
    """Of each family of plans that whole steps were measured of."""
    learned: tuple[Learned, ...] = ()
    """Runs of plans that were taken in since, in order."""

    def __post_init__(self) -> None:
        ranks, families = [one.ranks for one in self.busy], [one.family for one in self.spreads]
        usual = ranks == sorted(set(ranks)) and len(families) == len(set(families))
        if not ranks or not usual or not (0 <= self.covered <= 1 and self.slowdown >= 0):
            raise BadQuantity(
                place=f"profile {self.name}",
                cause=f"busy ranks {ranks}, spreads {families}, covered {self.covered}, slowdown {self.slowdown}",
                fix="calibrate again",
            )

    def with_ranks(self, ranks: int) -> Busy:
        """The measurements with so many busy ranks, or the nearest number, the larger one first."""
        return min(self.busy, key=lambda one: (abs(log(one.ranks / ranks)), -one.ranks))

    def spread(self, family: str) -> tuple[float, float]:
        """The ends of the interval of a family, as shares of the prediction: those of all families where nothing of
        this one was measured; the prediction itself where nothing was."""
        known = [one for one in self.spreads if one.family == family] or self.spreads
        return min((one.low for one in known), default=1.0), max((one.high for one in known), default=1.0)
