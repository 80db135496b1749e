"""Chains: the memory-bound operators of a list of statements as the kernels that run them, by the bytes that they move.

An eager stack runs each by itself. Others run chains of elementwise operators as one kernel, which reads what comes
from outside the chain and writes what is read outside it; compilers (`compiled`, `xla`) join the normalisations to the
chain that feeds them. Views and the derivative of a plain sum move nothing. A fused loss is one kernel, whatever it is
written as.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from functools import lru_cache

from meshwright.ir.program.program import Add, BodyProgram, Compute, Gradient, Move, Ring, Statement, Zero, results_of
from meshwright.ir.rules.base import Engine, Law, Rule, Signature
from meshwright.ir.rules.registry import infer

NORMS = frozenset(("layer_norm", "rms_norm", "group_norm", "batch_norm", "softmax", "log_softmax"))
"""Row reductions that a compiler runs in one kernel with the elementwise chain around them."""


def local_bytes(body: BodyProgram, name: str) -> float:
    """Bytes of a value or gradient on one rank, as traced."""
    return body.nbytes[name]


@dataclass(slots=True)
class _Node:
    """A memory-bound statement: the storages that it reads and writes, and whether it may join a chain."""

    reads: tuple[str, ...]
    writes: tuple[str, ...]
    joins: bool


class Chains:
    """The memory-bound statements of one list, grouped into kernels."""

    def __init__(
        self,
        body: BodyProgram,
        statements: Sequence[Statement],
        style: str,
        sums: Iterable[tuple[str, ...]],
        leaving: Iterable[Move] = (),
        *,
        one_loss: bool,
    ) -> None:
        """`sums`: names that stand for one tensor, summed where it is made. `leaving`: what moves results of the list
        after it."""
        self.body, self.style, self.one_loss = body, style, one_loss
        self.alias: dict[str, str] = {name: first for first, *others in sums for name in others}
        self.nodes: list[_Node] = []
        self.outside: Counter[str] = Counter(self.root(name) for name in body.outputs)
        for kept in body.kept:
            self.outside[kept.name] += 1
        for name in body.input_grads:
            if name:
                self.outside[name] += 1
        for statement in (*statements, *leaving):
            self.enter(statement)
        for node in self.nodes:
            node.reads = tuple(dict.fromkeys(self.root(name) for name in node.reads))

    def root(self, name: str) -> str:
        while name in self.alias:
            name = self.alias[name]
        return name

    def enter(self, statement: Statement) -> None:
        if isinstance(statement, Zero):
            return
        if isinstance(statement, Add):
            operands = tuple(dict.fromkeys(self.root(name) for name in statement.operands))
            if len(operands) == 1:
                self.alias[statement.result] = operands[0]
            else:
                self.nodes.append(_Node(operands, (statement.result,), True))
            return
        if isinstance(statement, Move):
            self.outside[self.root(statement.operand)] += 1
            return
        rule = infer(statement.signature)
        if rule.engine is Engine.VIEW:
            self.view(statement)
        elif rule.engine is not Engine.MEMORY:
            self.outside.update(self.root(name) for name in _read(statement, rule))
        elif isinstance(statement, Gradient):
            self.derivative(statement, rule)
        else:
            reads = tuple(name for i, name in enumerate(statement.operands) if i not in rule.gathered)
            writes = (*statement.results, *(statement.results if rule.gathered else ()))
            self.nodes.append(_Node(reads, writes, self.joins(statement.signature.kind, rule)))

    def view(self, statement: Compute | Gradient | Ring) -> None:
        source = statement.operands[0] if isinstance(statement, Compute) else _arriving(statement)
        if source and len(results_of(statement)) == 1:
            self.alias[results_of(statement)[0]] = source
        elif isinstance(statement, Compute):
            self.alias |= dict.fromkeys(statement.results, statement.operands[0])
        else:
            self.nodes.append(_Node(tuple(g for g in statement.grads if g), statement.results, True))

    def derivative(self, statement: Gradient, rule: Rule) -> None:
        """Note what a derivative reads and makes: a plain sum passes its gradient on; others read it, and saved
        values."""
        grads = tuple(name for name in statement.grads if name)
        if (
            statement.signature.kind in ("add", "sub")
            and rule.elementwise
            and grads
            and all(rule.laws[slot] in (Law.ADDITIVE, Law.LINEAR) for slot in statement.wanted)
            and all(self.size(result) == self.size(grads[0]) for result in statement.results)
            and not rule.reads(statement.wanted)
        ):
            self.alias |= dict.fromkeys(statement.results, grads[0])
            return
        reads = (*grads, *_read(statement, rule))
        self.nodes.append(_Node(reads, statement.results, self.joins(statement.signature.kind, rule)))

    def joins(self, kind: str, rule: Rule) -> bool:
        if self.one_loss and kind not in NORMS:
            return True
        if self.style == "eager":
            return False
        return rule.elementwise or kind in ("cat", "constant") or (self.style in ("compiled", "xla") and kind in NORMS)

    def size(self, name: str) -> float:
        return local_bytes(self.body, name)

    def kernels(self) -> Iterator[float]:
        """Bytes of every kernel."""
        everywhere = Counter(name for node in self.nodes for name in node.reads)
        for members in self.chains():
            written = left = {name for node in members for name in node.writes}
            read = {name for node in members for name in node.reads} - written
            if len(members) > 1:
                inside = Counter(name for node in members for name in node.reads)
                left = {
                    name
                    for name in written
                    if self.outside[name] or everywhere[name] > inside[name] or not inside[name]
                }
            repeated = sum(self.size(name) for node in members for name in node.writes[1:] if name == node.writes[0])
            nbytes = sum(self.size(name) for name in (*sorted(read), *sorted(left))) + repeated
            if nbytes:
                yield nbytes

    def chains(self) -> Iterable[list[_Node]]:
        """Connected statements that may join, in order of their first member."""
        if not any(node.joins for node in self.nodes):
            return [[node] for node in self.nodes]
        leader = list(range(len(self.nodes)))

        def find(index: int) -> int:
            while leader[index] != index:
                leader[index] = leader[leader[index]]
                index = leader[index]
            return index

        maker = {name: index for index, node in enumerate(self.nodes) for name in node.writes}
        for index, node in enumerate(self.nodes):
            for name in node.reads:
                made = maker.get(name)
                if made is not None and node.joins and self.nodes[made].joins:
                    one, other = sorted((find(made), find(index)))
                    leader[other] = one
        groups: dict[int, list[_Node]] = {}
        for index, node in enumerate(self.nodes):
            groups.setdefault(find(index), []).append(node)
        return groups.values()


def _read(statement: Compute | Gradient | Ring, rule: Rule) -> tuple[str, ...]:
    """The forward names that a statement reads."""
    if isinstance(statement, Compute) or not statement.wanted:
        return statement.operands
    slots, kept = _slots(statement.signature, statement.wanted)
    reads = (*(statement.operands[slot] for slot in slots), *(statement.outputs[index] for index in kept))
    return (*reads, *(name for name in statement.grads if name))


@lru_cache(maxsize=65536)
def _slots(signature: Signature, wanted: tuple[int, ...]) -> tuple[tuple[int, ...], tuple[int, ...]]:
    """The operands and the results that derivatives read."""
    rule = infer(signature)
    saved = rule.saved("cuda", wanted)
    kept = tuple(save.index for save in saved if save.what == "result")
    if rule.reruns(wanted):
        return tuple(sorted({save.index for save in saved if save.what == "operand"})), kept
    return tuple(rule.reads(wanted)), kept


def _arriving(statement: Gradient | Ring) -> str | None:
    return next((name for name in statement.grads if name), None)
