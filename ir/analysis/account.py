"""Accounts: the costs of a graph or a fold on one device, by the rules: floating-point work, bytes moved, coverage.

The work of a matrix product, an attention or a convolution is what FlopCounterMode counts (two per multiply-add,
nothing halved for masks); elementwise operators have bytes but no counted work. Backward work is booked on the operands
that want a gradient, so frozen weights cost nothing. Bytes are those of one forward execution without fusion. A folded
model costs its bodies times how often they run; its unfolded graph is never made.
"""

from __future__ import annotations

from dataclasses import dataclass

from meshwright.ir.graph.fold import Fold, joined
from meshwright.ir.graph.graph import Graph, Param, Type
from meshwright.ir.rules.opaque import ruled
from meshwright.ir.rules.registry import rule_of, signature_of
from meshwright.ir.sharding.adjoint import needs

OPAQUE = "opaque"


@dataclass(frozen=True, slots=True)
class Opaque:
    """An operator without a rule, ours or a user's: it runs whole on every device."""

    target: str
    module: str
    source: str
    count: int = 1


@dataclass(frozen=True, slots=True)
class Account:
    """Costs of one training step on one device."""

    ops: int = 0
    forward_flops: float = 0.0
    backward_flops: float = 0.0
    nbytes: float = 0.0
    opaque_flops: float = 0.0
    opaque_bytes: float = 0.0
    opaque: tuple[Opaque, ...] = ()

    def times(self, count: int) -> Account:
        return Account(
            self.ops * count,
            self.forward_flops * count,
            self.backward_flops * count,
            self.nbytes * count,
            self.opaque_flops * count,
            self.opaque_bytes * count,
            tuple(Opaque(o.target, o.module, o.source, o.count * count) for o in self.opaque),
        )

    def plus(self, other: Account) -> Account:
        return Account(
            self.ops + other.ops,
            self.forward_flops + other.forward_flops,
            self.backward_flops + other.backward_flops,
            self.nbytes + other.nbytes,
            self.opaque_flops + other.opaque_flops,
            self.opaque_bytes + other.opaque_bytes,
            self.opaque + other.opaque,
        )

    @property
    def covered_flops(self) -> float:
        """The share of the forward work that is under rules; 1 where there is none."""
        return 1 - self.opaque_flops / self.forward_flops if self.forward_flops else 1.0

    @property
    def covered_bytes(self) -> float:
        return 1 - self.opaque_bytes / self.nbytes if self.nbytes else 1.0


def account(graph: Graph) -> Account:
    """The costs of running a graph once, forward and backward."""
    total = Account(ops=len(graph.ops))
    for op in graph.ops:
        rule, signature = rule_of(op, graph.types), signature_of(op, graph.types)
        forward, moved = rule.flops(), rule.nbytes(signature)
        trained = not op.no_grad and graph.differentiable.intersection(op.results)
        wanted = needs([value in graph.differentiable for value in op.operands]) if trained else ()
        opaque = op.kind == OPAQUE and not ruled(str(op.attr("target")), dict(op.attrs))
        total = total.plus(
            Account(
                forward_flops=forward,
                backward_flops=rule.flops(needs=wanted) if wanted else 0.0,
                nbytes=moved,
                opaque_flops=forward if opaque else 0.0,
                opaque_bytes=moved if opaque else 0.0,
                opaque=(Opaque(str(op.attr("target", "?")), op.module, op.source),) if opaque else (),
            )
        )
    return total


def account_fold(fold: Fold) -> Account:
    """The costs of the whole model: every body times its uses."""
    total = Account()
    for body in fold.bodies:
        total = total.plus(account(body.graph).times(fold.count(body.name)))
    return total


def parameters(fold: Fold) -> dict[str, tuple[Param, Type]]:
    """Every parameter and buffer of the unfolded model by its path, tied ones once."""
    found: dict[str, tuple[Param, Type]] = {}
    known: set[str] = set()
    for call in fold.calls():
        for param in call.body.graph.params:
            paths = tuple(joined(call.path, path) for path in param.paths)
            if known.isdisjoint(paths):
                found[paths[0]] = (param, call.body.graph.types[param.value])
            known.update(paths)
    return found
