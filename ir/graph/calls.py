"""How a user's model is called: what code written for it must know and a graph of
operators does not say. Plain data; the front end fills it in.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path

from meshwright.ir.graph.constants import Constant


@dataclass(frozen=True, slots=True, kw_only=True)
class Calls:
    """A model file and the calls inside its forward pass.

    - `entries` are the keys of a batch that the forward pass receives, in the order of its parameters.
    - `called` are the paths of the modules that the forward pass calls; empty if it was not watched.
    - `undrawn` modules hold parameters or buffers and have no `reset_parameters`, while the file has no `draw_weights`.
    - A `file` that is not whole is one of those to be written `beside` the code, by name.
    """

    file: Path
    factory: str
    entries: tuple[str, ...]
    called: frozenset[str]
    has_optimizer: bool
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
    unsaid: tuple[str, ...] = ()
    """What of its training step the graph does not say, so that nothing can be printed of that."""
    written: tuple[str, ...] = ()
    """The parameters that the forward pass writes into."""
    constants: Mapping[str, Constant] = field(default_factory=dict)
    """How the constants of the model's graph are made, by their laws."""
