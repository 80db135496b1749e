"""Captured models: the fold of a training step, and how its constants are made."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field, replace
from functools import cached_property

from meshwright.ir.analysis.rebatch import in_proportion
from meshwright.ir.annotated.annotations import Annotations
from meshwright.ir.errors import CannotRebatch
from meshwright.ir.frontends.folding.stacks import Stack
from meshwright.ir.graph.constants import Constant, resized
from meshwright.ir.graph.fold import Fold
from meshwright.ir.verify.graphs import verify_fold


@dataclass(frozen=True, slots=True)
class Captured:
    """A captured model."""

    fold: Fold
    parameters: int
    stacks: tuple[Stack, ...]
    """As they were traced."""
    notes: tuple[str, ...] = ()
    constants: Mapping[str, Constant] = field(default_factory=dict)
    """How the constants of the fold are made, by their laws."""
    annotations: Annotations = field(default_factory=Annotations)
    """Where the model's own code says that values and parameters lie."""


def at_batch(few: Captured, more: Captured, rows: int, batch: int) -> dict[str, Constant]:
    """The constants at this batch, from their laws at a batch of `rows`, and at twice that in `more`.

    The two captures are of one model, so their constants stand in the same places. One whose lines differ in more than
    sizes is made of something else at every batch; it has a problem. So has one law of which there are two at twice.
    """
    own, other = _laws(few.fold), _laws(more.fold)
    pairs = set(zip(own, other, strict=True)) if len(own) == len(other) else set()
    times = Counter(law for law, _ in pairs)
    twice = {law: at_twice for law, at_twice in pairs if times[law] == 1}
    return {
        law: resized(one, more.constants.get(twice.get(law, "")), rows, batch) if one.batched else one
        for law, one in few.constants.items()
    }


@dataclass(frozen=True, eq=False)
class ConstantsAtBatch(Mapping[str, Constant]):
    """The constants at this batch, of which those that grow with it are made when one of them is read.

    `few` is the capture at `rows` sequences; `more`, the one at twice as many, is asked for then only: most code has no
    constant in it.
    """

    few: Captured
    more: Callable[[], Captured]
    rows: int
    batch: int

    def __getitem__(self, law: str) -> Constant:
        one = self.few.constants[law]
        return self._resized[law] if one.batched else one

    def __iter__(self) -> Iterator[str]:
        return iter(self.few.constants)

    def __len__(self) -> int:
        return len(self.few.constants)

    @cached_property
    def _resized(self) -> dict[str, Constant]:
        return at_batch(self.few, self.more(), self.rows, self.batch)


@dataclass(frozen=True, eq=False)
class ConstantsOfAnySize(ConstantsAtBatch):
    """The constants as captured, for who asks whether code with them can be written, and throws that code away.

    What code is refused for has no sizes in it: what a constant reads of the model, and whether lines make it at all.
    Only where these list values does that depend on how many there are at this batch.
    """

    def __getitem__(self, law: str) -> Constant:
        one = self.few.constants[law]
        return super().__getitem__(law) if one.listed else one


def rebatched(few: Captured, more: Captured, rows: int, batch: int) -> Captured:
    """The model at this batch, from captures at `rows` and at twice as many sequences. Raises a refusal where that does
    not follow."""
    fold, constants = in_proportion(few.fold, more.fold, rows, batch), at_batch(few, more, rows, batch)
    verify_fold(fold)
    for law, other in zip(_laws(few.fold), _laws(more.fold), strict=True):
        one = few.constants[law]
        if constants[law].problem != one.problem or (law != other and not one.batched):
            raise CannotRebatch(
                place=f"constant {law}",
                cause=f"at another batch than {rows}, it is made of something else",
                fix="capture the model at the batch that is wanted",
            )
    return replace(few, fold=fold, constants=constants)


def _laws(fold: Fold) -> list[str]:
    ops = (op for body in fold.bodies for op in body.graph.ops)
    return [str(op.attr("law")) for op in ops if op.kind == "constant"]
