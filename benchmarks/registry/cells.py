"""The questions that are asked of every model.

Those of the published size have no values; those of its small twin end in a run of what was emitted. A cell names the
verb's own words, so that it can be asked again by hand.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

BATCH, SEQ = 8, 16
"""Of the twins: sequences of a step, tokens of each."""
LAYERS, TOKENS = 4, 4096
"""Blocks of every stack of a twin; tokens that windows are measured by."""
PUBLISHED_BATCH, PUBLISHED_SEQ = 512, 96
"""Of the published size: fewer tokens than any table of positions has rows."""

INSPECT, PLAN, TWIN = "inspect", "plan", "twin"


@dataclass(frozen=True, slots=True, kw_only=True)
class Cell:
    """One question."""

    name: str
    says: str
    words: tuple[str, ...] = ()
    """Of `plan plan`, for a twin."""
    bar: float | None = None
    """The least share of the models that must be exact."""
    cpu_s: float | None = None
    """The most that it may take."""


_LISTED = (
    Cell(name=INSPECT, says="`plan inspect`, of the published size", cpu_s=10.0),
    Cell(name=PLAN, says="`plan` for 8x8xH100, of the published size", cpu_s=15.0),
    Cell(name=TWIN, says="the small twin of the model"),
    Cell(name="dp", says="two copies", words=("--cluster", "cpu:2", "--fix", "dp=2,zero=0"), bar=0.9),
    Cell(name="zero3", says="two shards of everything", words=("--cluster", "cpu:2", "--fix", "dp=2,zero=3"), bar=0.9),
    Cell(name="tp", says="operators cut in two", words=("--cluster", "cpu:2", "--fix", "tp=2"), bar=0.8),
    Cell(name="pp", says="two stages", words=("--cluster", "cpu:2", "--fix", "pp=2"), bar=0.8),
    Cell(name="cp", says="sequences cut in two", words=("--cluster", "cpu:2", "--fix", "cp=2")),
    Cell(name="free", says="the plan that is found for four", words=("--cluster", "cpu:4"), bar=0.9),
)

CELLS: Mapping[str, Cell] = {cell.name: cell for cell in _LISTED}
TWINS: Mapping[str, Cell] = {cell.name: cell for cell in _LISTED if cell.words}
"""Those that end in a run."""


def inspected(reference: str) -> list[str]:
    """The command line of the first cell. Norms over a batch do not train on one sample."""
    return ["inspect", reference, "--batch", "2", "--seq", str(PUBLISHED_SEQ), "--json"]


def inspected_small(reference: str) -> list[str]:
    """The command line that inspects a twin."""
    return ["inspect", reference, "--batch", str(BATCH), "--seq", str(SEQ), "--dtype", "fp32", "--json"]


def planned(reference: str) -> list[str]:
    """The command line of the second cell."""
    workload = ["--global-batch", str(PUBLISHED_BATCH), "--seq", str(PUBLISHED_SEQ)]
    return ["plan", reference, "--cluster", "8x8xH100", *workload]


def of_twin(cell: Cell, reference: str, out: str) -> list[str]:
    """The command line of a cell of a twin."""
    workload = ["--global-batch", str(BATCH), "--seq", str(SEQ), "--dtype", "fp32"]
    return ["plan", reference, *cell.words, "--target", "torch-gloo", *workload, "--out", out, "--force"]
