"""Offload: activations or optimizer state that wait in the host's memory, and what that does to body programs.

    optimizer        the optimizer's state (master copies and moments) lies in the host's memory, and the host makes the
                     step: once a step, every rank's shard of the reduced gradient goes down, and the updated parameter
                     comes up (ZeRO-Offload, Ren et al. 2021, arXiv 2101.06840)
    activations      what repeated blocks keep from forward to backward waits in the host's memory in between
    activations:N    that of the first N blocks of every (virtual) stage (Megatron-LM's cpu_offloading_num_layers, by
                     Transformer Engine)

In a program it is explicit, body by body: `Kept.host` leaves the device when the forward list of its call is done, and
is back before its backward list begins; `ParamSlot.host` says the same of the state and the step of a parameter. When
that is, the action lists say: down with every F, up with every B or I, and gradients and parameters with the step. No
value changes. A body that ends in the loss, and glue between blocks, keep what they keep on the device: their backward
pass comes next. So do parameters that were gathered, and inputs without gradient, which all calls share.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, replace
from functools import lru_cache

from meshwright.ir.errors import OffloadImpossible, nearest
from meshwright.ir.graph.fold import Call, Fold
from meshwright.ir.program.program import BodyProgram, Kept, Move
from meshwright.ir.same import Same

KINDS = ("optimizer", "activations")


@dataclass(frozen=True, slots=True)
class Offload:
    """The activations or optimizer state that wait in the host's memory.

    - `blocks` counts the first blocks of every stage whose activations do; 0: all of them. It must not be negative, and
      must be 0 where no activations wait.
    """

    optimizer: bool = False
    activations: bool = False
    blocks: int = 0

    def __post_init__(self) -> None:
        if self.blocks < 0 or (self.blocks and not self.activations):
            raise OffloadImpossible(
                place="offload",
                cause=f"the first {self.blocks} blocks of {'those kept' if self.activations else 'nothing'}",
                fix="give a number of blocks with activations, such as activations:4",
            )

    @property
    def kinds(self) -> tuple[str, ...]:
        return tuple(kind for kind in KINDS if getattr(self, kind))

    @property
    def words(self) -> tuple[str, ...]:
        """The word of each kind; `of` reads them."""
        return tuple(f"{kind}:{self.blocks}" if kind == "activations" and self.blocks else kind for kind in self.kinds)

    def __str__(self) -> str:
        return "+".join(self.words) or "none"

    @staticmethod
    def of(words: Iterable[str]) -> Offload:
        """Offload from words such as `activations:4`."""
        found = Offload()
        for word in words:
            kind, colon, number = word.partition(":")
            counted = kind == "activations" and re.fullmatch(r"0*[1-9][0-9]{0,8}", number)
            if kind not in KINDS or (colon and not counted):
                meant = nearest(kind, KINDS) if not colon else None
                raise OffloadImpossible(
                    place="offload",
                    cause=f"{word!r} is nothing that can wait on the host",
                    fix=f"did you mean {meant!r}?" if meant else "use optimizer, activations or activations:N",
                )
            if getattr(found, kind):
                raise OffloadImpossible(place="offload", cause=f"{kind} is given twice", fix="give it once")
            if kind == "optimizer":
                found = replace(found, optimizer=True)
            else:
                found = replace(found, activations=True, blocks=int(number or 0))
        return found

    @staticmethod
    def parse(text: str) -> Offload:
        """Read what `str(offload)` writes."""
        return Offload.of(() if text == "none" else text.split("+"))


NOTHING = Offload()


def waiting_calls(offload: Offload, fold: Fold, calls: Sequence[Call]) -> list[bool]:
    """Whether the activations of each call of one stage wait on the host."""
    found, blocks = [], 0
    for call in calls:
        block = offload.activations and not fold.segments[call.segment].glue
        blocks += block
        found.append(block and (not offload.blocks or blocks <= offload.blocks))
    return found


@lru_cache(maxsize=1024)
def offloaded(body: Same[BodyProgram], name: str, activations: bool, optimizer: bool) -> BodyProgram:
    """A body program with its activations, or its optimizer, on the host, under a name; the same object every time.
    Statements stay those of the original; so do the saved values where none of them waits."""
    made = body.of
    ends_in_loss = all(made.locals[output].type.shape == () for output in made.outputs)  # some hand a sum on besides
    waits = activations and not ends_in_loss
    return replace(
        made,
        name=name,
        kept=_waiting(Same(made.kept), _stays(made)) if waits else made.kept,
        params=tuple(replace(slot, host=optimizer and slot.synced is not None) for slot in made.params),
    )


@lru_cache(maxsize=1024)
def _waiting(kept: Same[tuple[Kept, ...]], here: frozenset[str]) -> tuple[Kept, ...]:
    """The saved values, on the host where they may; one object for all body programs that save the same."""
    return tuple(replace(one, host=one.name not in here) for one in kept.of)


def _stays(body: BodyProgram) -> frozenset[str]:
    """Saved values that stay on the device: parameters as operators read them, and inputs without gradient."""
    found = {name for slot in body.params for name in (slot.value, slot.stored)}
    found |= {s.result for s in body.forward if isinstance(s, Move) and s.reason == "parameter"}
    return frozenset(found | {name for name, grad in zip(body.inputs, body.input_grads, strict=True) if grad is None})
