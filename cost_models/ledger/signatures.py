"""Statement signatures: what statements are on one rank, whatever the batch and the number of copies.

Twice as many copies of a model, at twice the batch, run the same lists of statements on each rank, in the same local
shapes. So does a program of another mesh wherever an axis leaves a rank the same share. Such statements have one
*signature*, and whatever is derived from a list in local terms (kernels and bytes on wires: `ledger`; what is held:
`liveness`) is derived once for all lists of the same signatures.

    signature(statement) = what it does, under which names, and for every name the elements and the dtype on this rank

What it does, of an operator: its rule without sizes, and the local size of every loop. Of a transmission: the step, and
the whole tensor of the group. Parameters and their gradients on their way from and to shards, which are as small as
there are copies, have signatures without sizes: walks of what is held do not count them, and who does asks for their
`bucketed_bytes` too.

Must: all that a ledger's lists and the walks of `storages` read of a statement follows from its signature.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from functools import lru_cache
from itertools import count
from math import prod

from meshwright.ir.program.program import BodyProgram, Compute, Gradient, Move, Ring, Statement, operands_of, results_of
from meshwright.ir.rules.base import Engine, Rule, Signature
from meshwright.ir.rules.registry import infer
from meshwright.ir.sharding.adjoint import Split, Strategy, apply
from meshwright.ir.sharding.layouts import Uneven, Zigzag
from meshwright.ir.sharding.mesh import Mesh
from meshwright.ir.sharding.placement import Placement
from meshwright.ir.sharding.reshard import given_elements

BUCKETED = frozenset(("parameter", "sync", "update"))
"""Why parameters and their gradients move: those of one body travel together, as an FSDP unit or a gradient bucket."""

MOST_STATEMENTS = 1 << 17
"""Whose signatures are remembered; each takes about a kilobyte."""

_numbers = count()
_known: dict[int, int] = {}
"""By identity: a statement that several programs hold as one object stands for the same shards in all of them."""
_holding: list[Statement] = []
"""Those statements, so that no other one takes their place."""


def statement_signatures(statements: Sequence[Statement], body: BodyProgram) -> tuple[int, ...]:
    """The signature of every statement, as a number: equal numbers are equal signatures."""
    places = tuple(map(id, statements))
    try:
        return tuple(map(_known.__getitem__, places))
    except KeyError:
        for statement in statements:
            if id(statement) not in _known:
                _known[id(statement)] = _number(_signature(statement, body))
                _holding.append(statement)
        found = tuple(map(_known.__getitem__, places))
    if len(_known) >= MOST_STATEMENTS:
        _known.clear()
        _holding.clear()
    return found


@lru_cache(maxsize=MOST_STATEMENTS)
def _number(signature: tuple[object, ...]) -> int:
    """The number of a signature, the same for equal signatures. A signature that was forgotten gets a new one, so that
    no number ever has two meanings."""
    return next(_numbers)


def _signature(statement: Statement, body: BodyProgram) -> tuple[object, ...]:
    names = (*operands_of(statement), *results_of(statement))
    if isinstance(statement, Move):
        what = (statement.step.kind, statement.step.axes, statement.reason, names)
        bucketed = statement.reason in BUCKETED
        return what if bucketed else (*what, sizes_of(names, body), group_bytes(statement, body))
    done = _done(statement, body) if isinstance(statement, Compute | Gradient | Ring) else ()
    return (type(statement), names, sizes_of(names, body), *done)


def sizes_of(names: Iterable[str], body: BodyProgram) -> tuple[object, ...]:
    """Elements and dtype of every name on one rank."""
    elements, locals_ = body.elements, body.locals
    return tuple([(elements[name], locals_[name].type.dtype) for name in names])


def group_bytes(move: Move, body: BodyProgram) -> float:
    """The whole tensor of a collective's group, as traced: the result of a gather, the operand of others. Uneven shards
    are padded to the largest."""
    kind, over, nbytes = move.step.kind, move.step.axes, body.nbytes[move.operand]
    if kind == "all_gather":
        largest = _largest(body.locals[move.operand].placement, over)
        return nbytes * largest * prod(body.mesh.axis(axis).size for axis in over)
    if kind != "reduce_scatter":
        return nbytes
    given = given_elements(move.step, body.elements[move.operand], body.elements[move.result], body.mesh)
    return nbytes * given / body.elements[move.operand] * _padding(body.locals[move.result].placement, over)


def _largest(placement: Placement, axes: tuple[str, ...]) -> float:
    """The largest shard along some axes over the first rank's."""
    return prod(max(sizes) / sizes[0] for sizes in _own_sizes(placement, axes))


def _padding(placement: Placement, axes: tuple[str, ...]) -> float:
    """The largest shards of all ranks along some axes, over the whole."""
    return prod(max(sizes) * len(sizes) / sum(sizes) for sizes in _own_sizes(placement, axes))


@lru_cache(maxsize=4096)
def _own_sizes(placement: Placement, axes: tuple[str, ...]) -> tuple[tuple[int, ...], ...]:
    """Whether the sizes of shards differ by decision. Parts that are as equal as an extent allows are pieces of a flat
    buffer, which is cut where it must be."""
    layouts = (shard.layout for dim in placement.dims for shard in dim if shard.axis in axes)
    found = (layout.sizes for layout in layouts if isinstance(layout, Uneven))
    return tuple(sizes for sizes in found if max(sizes) > min(sizes) + 1)


def bucketed_bytes(statements: Iterable[Statement], body: BodyProgram) -> tuple[tuple[float, str], ...]:
    """The group's tensors and dtypes of parameters and gradients that move, in order."""
    return tuple(
        [
            (group_bytes(statement, body), body.locals[statement.operand].type.dtype)
            for statement in statements
            if isinstance(statement, Move) and statement.reason in BUCKETED
        ]
    )


def _done(statement: Compute | Gradient | Ring, body: BodyProgram) -> tuple[object, ...]:
    """The signature of an operator: its rule, its loops, and those attributes that prices depend on."""
    wanted = () if isinstance(statement, Compute) else (statement.wanted, statement.grads, statement.outputs)
    found: tuple[object, ...] = (
        statement.op,
        statement.operands,
        wanted,
        _local(statement.signature, statement.strategy, body.mesh),
    )
    if isinstance(statement, Ring):
        found += (statement.axis, body.mesh.axis(statement.axis).size)
    return found


@lru_cache(maxsize=MOST_STATEMENTS)
def _local(signature: Signature, strategy: Strategy, mesh: Mesh) -> int:
    """The number of an operator on one rank, under whatever names."""
    rule = infer(signature)
    loops = apply(rule, signature.operands, strategy, mesh).sizes
    dtype = signature.operands[0].dtype if signature.operands else ""
    found: tuple[object, ...] = (signature.kind, _sizeless(rule), loops, dtype)
    if signature.kind == "add":
        found += (signature.operands[-1].shape[-1:],)  # the width of a bias
    if rule.engine is Engine.ATTENTION:
        over = [
            (mesh.axis(axis).size, isinstance(choice.layout, Zigzag))
            for axis, choice in strategy.choices
            if isinstance(choice, Split) and "sq" in choice.factors
        ]
        found += (signature.attr("mask"), signature.attr("width"), rule.factor("sk").size, tuple(over))
    return _number(found)


@lru_cache(maxsize=65536)
def _sizeless(rule: Rule) -> int:
    """The number of a rule without the sizes of its loops."""
    roles = tuple((factor.name, factor.role, factor.expanded) for factor in rule.factors)
    flags = (rule.engine, rule.elementwise, rule.gathered, tuple(type_.dtype for type_ in rule.types))
    return _number((roles, rule.operands, rule.results, rule.laws, rule.work, rule.saves, flags))
