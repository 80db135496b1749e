"""Keys of a workload and of the software that runs it, and what each may be: of questions in files, and of changes."""

from __future__ import annotations

from decimal import Decimal
from sys import float_info
from typing import Annotated, Any

from meshwright.backends.door import TARGETS
from meshwright.ir.files.documents import shown
from meshwright.ir.files.schema import Count, Most, OneOf, Read, Table, value_error
from meshwright.ir.limits import GLOBAL_BATCH, SEQ
from meshwright.ir.target.workload import OPTIMIZERS, PRECISIONS, RECIPES, STACKS, STYLES


def at_least(least: int) -> Read:
    """A finite number with a minimum."""

    def read(value: Any) -> float:
        if type(value) not in (int, float, Decimal) or not least <= value <= float_info.max:
            raise value_error(f"it is {shown(value)}", f"give a number of at least {least}")
        return float(value)

    return Read(read, {"type": "number", "minimum": least})


class WorkloadKeys(Table):
    """The workload."""

    global_batch: Annotated[Count, Most(GLOBAL_BATCH)] | None = None
    micro_batch: Annotated[Count, Most(GLOBAL_BATCH)] | None = None
    seq: Annotated[Count, Most(SEQ)] | None = None
    dtype: Annotated[str, OneOf(PRECISIONS)] | None = None
    optimizer: Annotated[str, OneOf(tuple(OPTIMIZERS))] | None = None
    imbalance: Annotated[float, at_least(1)] | None = None


class SoftwareKeys(Table):
    """The software that runs it."""

    target: Annotated[str, OneOf(tuple(TARGETS))] | None = None
    stack: Annotated[str, OneOf(tuple(STACKS))] | None = None
    style: Annotated[str, OneOf(STYLES)] | None = None
    recipe: Annotated[str, OneOf(tuple(RECIPES))] | None = None
