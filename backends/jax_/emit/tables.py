"""Shardings as the tables of a script.

PARAMS    where every parameter is stored, by path; `*` is any number
REST      where what the model holds besides lies, where it is cut or a step changes it
USED      where operators read it, if that differs
STATES    where its optimizer's state lies, if that differs from PARAMS
GRADS     where micro-batches add up to its gradient, if that differs from both
VALUES    the placements that a value passes through, by its place in the traced loss

Of blocks that are run again (`recompute`):

AGAIN     the equations that they reach from and to
GATHERED  where they read parameters that they gather themselves
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping, Sequence

from meshwright.backends.jax_.emit.accumulation import EACH
from meshwright.backends.jax_.emit.model import changes
from meshwright.backends.jax_.emit.shardings import Constraint, Pin, Shardings
from meshwright.backends.jax_.emit.specs import Spec
from meshwright.backends.turns import counted
from meshwright.ir.quoting import literal, said


def params_tables(shardings: Shardings, *, used: bool) -> Iterator[str]:
    """PARAMS, and what differs from it; where operators read parameters, if that is `used`."""
    held = shardings.params
    yield from table("PARAMS", {path: one.stored for path, one in held.items()}, "where parameters are stored, by path")
    if shardings.rest and (not used or changes(shardings.subject)):
        yield from table("REST", shardings.rest, "where what the model holds besides lies")
    if used and shardings.used_apart:
        yield from table("USED", {path: one.used for path, one in held.items()}, "where operators read them")
    if shardings.states_apart:
        yield from table("STATES", {path: one.states for path, one in held.items()}, "where the optimizer's states lie")
    if gradients_table(shardings) == "GRADS":
        yield from table("GRADS", {path: one.grads for path, one in held.items()}, "where gradients are added up")


def states_table(shardings: Shardings) -> str:
    """The name of the table of where the optimizer's states lie."""
    return "STATES" if shardings.states_apart else "PARAMS"


def gradients_table(shardings: Shardings) -> str:
    """The name of the table of where gradients are added up, of micro-batches that all devices share; empty where none
    is needed."""
    held = shardings.params.values()
    if shardings.form != EACH:
        return ""
    if all(one.grads == one.states for one in held):
        return states_table(shardings)
    return "PARAMS" if all(one.grads == one.stored for one in held) else "GRADS"


def table(name: str, specs: Mapping[str, Spec], what: str) -> Iterator[str]:
    """Shardings by path; those of numbered siblings that are alike as one."""
    alike: dict[str, set[Spec]] = {}
    for path, spec in specs.items():
        alike.setdefault(pattern(path), set()).add(spec)
    rows = {(pattern(path) if len(alike[pattern(path)]) == 1 else path): spec for path, spec in specs.items()}
    yield f"{name} = {{  # {what}"
    yield from (f"    {literal(path)}: {written(spec)}," for path, spec in rows.items())
    yield "}"


def pattern(path: str) -> str:
    """A path with any number for its numbers."""
    return re.sub(r"(?<![^.])\d+(?![^.])", "*", path)


def written(spec: Spec) -> str:
    """A PartitionSpec as code."""
    axes = ([literal(axis) for axis in dim] for dim in spec)
    dims = (f"({', '.join(dim)})" if len(dim) > 1 else dim[0] if dim else "None" for dim in axes)
    return f"P({', '.join(dims)})"


def values_tables(shardings: Shardings) -> Iterator[str]:
    """VALUES, with what blocks have alike."""
    blocks = shardings.blocks
    for number, block in enumerate(blocks):
        yield f"{_block(number, blocks)} = {{  # by place, counted from where a block begins"
        yield from _rows(block.pins)
        yield "}"
    once = {
        **shardings.values,
        **{place: Pin("a parameter, gathered", (Constraint(spec, spec),)) for place, spec in shardings.gathers.items()},
    }
    if not once and not blocks:
        yield "VALUES: dict[str, list[tuple[P | None, P | None]]] = {}"
        return
    yield "VALUES: dict[str, list[tuple[P | None, P | None]]] = {  # of values and their gradients, by place"
    yield from _rows(once)
    yield "}"
    for number, block in enumerate(blocks):
        yield f"for first in {counted(tuple(sorted(block.begins)))}:"
        yield f"    VALUES |= {{moved(place, first): specs for place, specs in {_block(number, blocks)}.items()}}"


def _block(number: int, blocks: Sequence[object]) -> str:
    return f"BLOCK_{number}" if len(blocks) > 1 else "BLOCK"


def _rows(pins: Mapping[str, Pin]) -> Iterator[str]:
    for place, pin in pins.items():
        yield f'    "{place}": [{", ".join(map(_constraint, pin.constraints))}],  # {said(pin.value)}'


def _constraint(one: Constraint) -> str:
    """A pair of a value's PartitionSpec and its gradient's."""
    value, gradient = (written(spec) if spec is not None else "None" for spec in (one.value, one.gradient))
    return f"({value}, {gradient})"
