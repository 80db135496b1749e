"""Everything that a script says: the plan, and what `axes`, `styles`, `storage` and `recompute` found in it."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from functools import cached_property

from meshwright.backends.torch_.emit.axes import Axes
from meshwright.backends.torch_.emit.context import Context
from meshwright.backends.torch_.emit.recompute import recomputed
from meshwright.backends.torch_.emit.storage import Kept
from meshwright.backends.torch_.emit.styles import Style, Styles
from meshwright.backends.torch_.emit.subject import Piece, Subject


@dataclass(frozen=True)
class Parts:
    """Everything that a script says."""

    subject: Subject
    axes: Axes
    styles: Mapping[str, Styles]
    kept: Kept
    context: Context | None
    model: str
    """The model file, from the folder of the script."""

    @cached_property
    def recomputed(self) -> tuple[Piece, ...]:
        return recomputed(self.subject)

    @property
    def styled(self) -> tuple[tuple[Piece, Mapping[str, Style]], ...]:
        """The pieces that a tensor axis cuts, with their styles; those to be applied first come first."""
        found = [(piece, self.styles[piece.plan.name]) for piece in self.subject.pieces if self.styles]
        return tuple((piece, styles) for piece, of in found for styles in (of.before, of.modules) if styles)

    @property
    def wrapped(self) -> bool:
        """Whether DDP sums the gradients of copies."""
        return self.axes.copied is not None and not self.kept.units and self.axes.tensor is None

    @property
    def summed(self) -> bool:
        """Whether the script sums the gradients of copies itself: DDP knows nothing of DTensors."""
        return self.axes.copied is not None and not self.kept.units and self.axes.tensor is not None

    @property
    def cut_again(self) -> str | None:
        """The tensor axis, where it cuts sequences that the context axis has cut."""
        cuts = any("Shard(1)" in str(style) for _, styles in self.styled for style in styles.values())
        return self.axes.tensor if cuts else None

    @property
    def sharded_loss(self) -> bool:
        return any(styles.sharded_loss for styles in self.styles.values())

    @property
    def partial_gradients(self) -> bool:
        """Whether parameters are left with gradients that are sums over the tensor axis. `fully_shard` reduces its
        own."""
        norms = any(style.name == "SequenceParallel" for _, styles in self.styled for style in styles.values())
        return norms and not self.kept.units

    @property
    def flattened(self) -> tuple[tuple[str, ...], ...]:
        """Axes of the mesh that the script makes one, to communicate over them together."""
        copies, tensor = self.axes.copies, (self.axes.tensor,) if self.axes.tensor is not None else ()
        both = [(*copies, *tensor)] if self.summed and self.partial_gradients else []
        return tuple(axes for axes in dict.fromkeys((self.axes.batch, copies, *both)) if len(axes) > 1)
