"""How a user's model is called: what code written for it must know and a graph of
operators does not say. Plain data; the front end fills it in.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path

from meshwright.ir.graph.constants import Constant
from meshwright.ir.graph.graph import Type


@dataclass(frozen=True, slots=True, kw_only=True)
class Scanned:
    """A loop over stacked parameters: where it stands in the traced step, and for every parameter of a block, by its
    path in the block, which operand of the loop's body it is, and the path of the stacked one; `stacks`: of what blocks
    give besides what they hand on, and is read, the number of the loop's result, and its type, all blocks in one."""

    place: str
    stacks: tuple[tuple[int, Type], ...]
    operands: Mapping[str, tuple[int, str]]


@dataclass(frozen=True, slots=True)
class TracedEquation:
    """An equation of the traced step: what it does, as a number, and which values it reads and makes, by number; a
    value that stands in the code, as its text."""

    does: int
    reads: tuple[int | str, ...]
    makes: tuple[int, ...]
    types: tuple[Type, ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class TracedStep:
    """The outermost equations of the traced step, in order.

    - `params` are the paths of parameters, by value; `given` are entries of the batch, and what else is no parameter;
      `keys` are those of random numbers.
    """

    equations: tuple[TracedEquation, ...]
    params: Mapping[int, str]
    given: frozenset[int]
    loss: int | str
    keys: frozenset[int] = frozenset()


@dataclass(frozen=True, slots=True, kw_only=True)
class Places:
    """Where values are made in the program that the model's framework traces: what code finds them by that runs it.

    A place is `17/3:0`: the equation's number, after those of the equations whose bodies it lies in, and which result
    of it is meant. In a block that is written out, the first number is counted from where the block begins: `+3:0`.
    """

    values: Mapping[str, Mapping[str, str]]
    """Of every body the values that have a place."""
    apart: Mapping[str, tuple[tuple[int, ...], ...]]
    """Where dimensions stand apart that are one in the graph, by place: of every dimension there, the extents here."""
    products: Mapping[str, str]
    """Of places at which a bias is added, those of the products that it is added to."""
    begins: Mapping[str, int]
    """Where every block begins that is written out, by its path: what its places are counted from."""
    spans: Mapping[str, tuple[int, int]]
    """The number of the first equation that is known to lie in it, and that after the last."""
    scans: Mapping[str, Scanned]
    """The loops over blocks, by the path of their stack."""
    check: int
    """What tells this program from others: the sum (CRC-32) over its primitives' names."""
    check_alone: int
    """The same of the program for a batch of one sample, which JAX may trace otherwise."""
    step: TracedStep
    """The program itself."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Invoked:
    """How a factory makes a model that is no object with a state, and how this is called on a batch."""

    way: str
    """What it returns: `nnx`, `linen`, `equinox` or `pair`."""
    arguments: tuple[tuple[str, str], ...]
    """What of a batch the forward pass is given: the parameter, empty for one by position, and the entry."""
    modes: tuple[tuple[str, bool], ...] = ()
    """The parameters that say that this is training."""
    keys: tuple[str, ...] = ()
    """The parameters that get random keys."""
    forward: bool = False
    """Whether the file has `forward(model, batch)`, which calls it instead."""
    paths: tuple[str, ...] = ()
    """The paths of all trained arrays, in the order of the state's leaves."""
    rest: tuple[str, ...] = ()
    """The paths of the state's other arrays: statistics, tables, keys of random numbers."""
    named: bool = False
    """Whether its parameters carry names of mesh axes of their own, for which NNX wants a mesh as it makes them."""
    keyed: bool = False
    """Whether every step is given a key of its own, made of a key and a count that are the last of the rest."""
    draws: bool = False
    """Whether a step draws random numbers, and changes what later steps draw from."""


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
    places: Places | None = None
    """Where values are made, where a framework traces whole programs."""
    invoked: Invoked | None = None
    """How the model is made and called, where its framework has several ways."""
