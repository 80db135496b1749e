"""How a user's model is called, and how its modules call one another: what code written for it must know and a graph of
operators does not say. Plain data; `meshwright.ir.frontends.calls` fills it in.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path

from meshwright.ir.constants import Constant
from meshwright.ir.route import Route

UNWATCHED = Route(problem="the forward pass was not watched")


@dataclass(frozen=True, slots=True, kw_only=True)
class Calls:
    """A model file and the calls inside its forward pass.

    - `entries` are the keys of a batch that the forward pass receives, in the order of its parameters.
    - `arguments` has one entry per module that is called: for each positional argument the path of the innermost module
      that made it, or None where it was not the result of a module.
    - `keywords` has the same of arguments that are given by name.
    - `positioned` modules are given tables of all positions, and make none of their own while they run.
    - `undrawn` modules hold parameters or buffers and have no `reset_parameters`, while the file has no `draw_weights`.
    - A `file` that is not whole is one of those to be written `beside` the code, by name.
    """

    file: Path
    factory: str
    entries: tuple[str, ...]
    arguments: Mapping[str, tuple[str | None, ...]]
    has_optimizer: bool
    keywords: Mapping[str, Mapping[str, str | None]] = field(default_factory=dict)
    positioned: frozenset[str] = frozenset()
    again: Mapping[str, str] = field(default_factory=dict)
    """The other paths of modules that have several, each with the first one."""
    buffers: tuple[str, ...] = ()
    """The paths of buffers that checkpoints hold."""
    beside: tuple[tuple[str, str], ...] = ()
    undrawn: tuple[str, ...] = ()
    untrained: frozenset[str] = frozenset()
    """The parameters that the model itself does not train, by all names."""
    own_loss: str | None = None
    """Where the loss is in what the model returns, as code that follows it; None where the file has a hook for it."""
    draws: bool = False
    """Whether the file has `draw_weights(module)`."""

    route: Route = UNWATCHED
    """The forward pass as lines, where the model may be cut into stages."""
    constants: Mapping[str, Constant] = field(default_factory=dict)
    """How the constants of the model's graph are made, by their laws."""

    @property
    def read(self) -> tuple[str, ...]:
        """What the route calls the entries of the batch that its lines may read: those of the forward pass, and those
        of a loss that is among the lines."""
        read = dict.fromkeys((*self.entries, *(self.route.targets if self.route.inside else ())))
        return tuple(map(self.named, read))

    def named(self, entry: str) -> str:
        """What the route calls an entry of the batch."""
        return dict(self.route.renamed).get(entry, entry)

    def entry(self, name: str) -> str:
        """The entry of the batch that the route calls so."""
        return next((entry for entry, other in self.route.renamed if other == name), name)
