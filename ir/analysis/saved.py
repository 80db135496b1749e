"""Saved tensors: values of the forward pass that are kept for the backward pass.

In: a graph (a block, or a whole model), an execution style, a device and a kind of attention. Out: the tensors kept,
each storage once, parameters and buffers left out, since they are there anyway. Only operators that a gradient flows
through keep anything; what a `no_grad` operator computes is kept if a differentiable one needs it.

`eager`
    The union of what every operator keeps by itself (`Rule.saved`, by device), counted by storage: keeping a slice
    keeps all of the tensor that it is a view of.
`fused`
    Chains of elementwise operators run as one kernel, which keeps what comes in from outside. A value that an
    elementwise operator or view made and that only such operators read is *interior*: where eager would keep it, its
    nearest ancestors that are not interior are kept, and the chain runs again in the backward pass. With a fused loss
    a kernel also takes in the chain before a reduction: scores stay in the dtype in which they came.
`compiled`, `xla`
    A compiler sees forward and backward together and keeps the cheapest set of values from which the backward pass can
    start. Values that the backward pass reads can be kept, or made again by elementwise operators and views from others
    that are. The cheapest set is a minimal cut: every value is an edge that weighs its bytes; flow enters at inputs and
    at the results of operators that are too dear to run twice (products, attention, reductions, collectives), passes
    from operand to result through cheap ones, and leaves at what the backward pass reads (the partitioner of torch's
    AOTAutograd does the same).

All but eager keep what CUDA kernels keep, on any device, with three differences. Compilers draw random masks again.
Theirs, or a fused, cross entropy keeps the scores that it was given, not their logarithms. And an operator that is
linear in its only floating operand does not read it (a gather keeps indices).

Attention written out (`math`: scale, mask and softmax fused, as Megatron-LM had it before flash kernels) keeps queries,
keys, values and probabilities, these in the dtype of the queries or that in which a model wants its scores (`scores`);
with dropout also its mask, and the probabilities after it (Korthikanti et al., arXiv 2205.05198, section 4.1:
4 s b h + 2 s b h + 5 a s² b bytes).

All of this is said of a `Tape`: what ran, of what size, and what the backward pass reads of it. A graph gives one
here, a lowered body on one rank in `meshwright.ir.program.kept`.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import cached_property

import networkx as nx
from networkx.algorithms.flow import boykov_kolmogorov

from meshwright.ir.graph.graph import Graph, Op
from meshwright.ir.program.program import Kernels
from meshwright.ir.rules.base import Engine, Law, Rule, Save, Signature
from meshwright.ir.rules.registry import rules_of, signature_of
from meshwright.ir.same import Same
from meshwright.ir.target.workload import STYLES

__all__ = ["STYLES", "Need", "SavedTensor", "Step", "Tape", "kept_of", "made_again", "reads", "saved", "saved_bytes"]

REDUCTIONS = ("sum", "mean", "amax", "max", "logsumexp", "gather", "cross_entropy", "nll_loss")
"""Kinds that take the elementwise chain before them into their kernel."""


@dataclass(frozen=True, slots=True)
class SavedTensor:
    """One storage kept: a value, or an extra tensor (log-sum-exp, statistics, a mask) of an operator.

    `owner` is the value whose storage it is, the operator's name for an extra one; `op` kept it first.
    """

    value: str
    owner: str
    nbytes: int
    op: str
    extra: bool = False


@dataclass(frozen=True, slots=True)
class Step:
    """Something that ran forward, of a sort: "cheap" to run twice (elementwise, or a view), "reduction", or "dear"."""

    operands: tuple[str, ...]
    results: tuple[str, ...]
    sort: str = "dear"

    @property
    def cheap(self) -> bool:
        return self.sort == "cheap"

    @classmethod
    def of(cls, rule: Rule, signature: Signature, operands: tuple[str, ...], results: tuple[str, ...]) -> Step:
        """The step of an operator."""
        if rule.elementwise or rule.engine is Engine.VIEW:
            return cls(operands, results, "cheap")
        return cls(operands, results, "reduction" if signature.kind in REDUCTIONS else "dear")


@dataclass(frozen=True, slots=True)
class Need:
    """A read by the backward pass: of a value, or of an extra tensor of `op` (then with its bytes; `value` names
    it)."""

    value: str
    op: str
    extra_bytes: int | None = None


@dataclass(frozen=True)
class Tape:
    """The forward pass in order, with the reads of the backward pass.

    - `owner` names the value whose storage a value shares, where that is another one.
    - `resident` values stay where they are, and `again` are made once more in any case: neither costs anything.
    - Values of one `same` are one tensor.
    """

    steps: tuple[Step, ...]
    nbytes: Mapping[str, int]
    needs: tuple[Need, ...]
    owner: Mapping[str, str]
    outputs: frozenset[str]
    resident: frozenset[str]
    again: frozenset[str] = frozenset()
    same: Mapping[str, object] = field(default_factory=dict)

    @cached_property
    def maker(self) -> Mapping[str, Step]:
        return {value: step for step in self.steps for value in step.results}

    def owns(self, value: str) -> str:
        return self.owner.get(value, value)

    def there(self, value: str) -> bool:
        """Whether a value is available without being saved."""
        return value in self.again or value in self.resident or self.owns(value) in self.resident


def saved(graph: Graph, style: str, device: str = "cuda", attention: str = "flash2") -> tuple[SavedTensor, ...]:
    """The saved tensors, in the order in which operators first save them."""
    kernels = Kernels(style, device, attention)
    return kept_of(_tape(graph, kernels), kernels)


def saved_bytes(graph: Graph, style: str, device: str = "cuda", attention: str = "flash2") -> int:
    return sum(kept.nbytes for kept in saved(graph, style, device, attention))


def kept_of(tape: Tape, kernels: Kernels) -> tuple[SavedTensor, ...]:
    """The saved tensors of a tape: values, then extras (in eager, as they come)."""
    if kernels.style == "eager":
        return tuple(_by_storage(tape, (_saved(tape, need) for need in tape.needs)))
    values = [need for need in tape.needs if need.extra_bytes is None]
    extras = (_saved(tape, need) for need in tape.needs if need.extra_bytes is not None)
    chosen = _without_interiors(tape, values, kernels) if kernels.style == "fused" else _cut(tape, values)
    return (*_by_storage(tape, chosen), *extras)


# What operators need -------------------------------------------------------------------------------------------------


def reads(rule: Rule, signature: Signature, wanted: Iterable[int], kernels: Kernels) -> tuple[Save, ...]:
    """Reads of one operator's derivatives for its operands `wanted`, under the kernels given."""
    slots = set(wanted)
    if signature.kind == "attention" and kernels.attention == "math":
        return tuple(save for save in _written_out(rule, signature) if save.kept(kernels.device, slots))
    if kernels.style == "eager":
        return rule.saved(kernels.device, slots)
    found = rule.saved("cuda", slots)
    if signature.kind == "cross_entropy" and (kernels.fused_loss or kernels.style != "fused"):
        return (Save("operand", 0), *(save for save in found if save.what == "operand"))
    drawn = kernels.style != "fused" and (rule.elementwise or rule.engine is Engine.VIEW)
    floats = [slot for slot, law in enumerate(rule.laws) if law is not Law.INDEX]
    linear = floats if [rule.laws[slot] for slot in floats] == [Law.LINEAR] else []
    return tuple(
        save
        for save in found
        if not (drawn and save.what == "extra") and not (save.what == "operand" and save.index in linear)
    )


def _written_out(rule: Rule, signature: Signature) -> tuple[Save, ...]:
    """Whether attention runs as products and a softmax: see the module docstring."""
    queries, keys = rule.operands[:2]
    through = (0, 1, *range(3, len(signature.operands)))
    rows = (*queries[:3], keys[2])
    dtype = str(signature.attr("scores", signature.operands[0].dtype))
    probabilities = Save("extra", needs=through, dims=rows, dtype=dtype)
    operands = (Save("operand", 0, needs=(1,)), Save("operand", 1, needs=(0,)), Save("operand", 2, needs=through))
    if not signature.attr("dropout", 0.0):
        return (*operands, replace(probabilities, needs=()))
    mask = Save("extra", dims=rows, dtype="bool")
    return (*operands, probabilities, mask, replace(probabilities, needs=(2,)))


def _tape(graph: Graph, kernels: Kernels) -> Tape:
    """A graph as it runs whole."""
    rules = rules_of(Same(graph))
    return Tape(
        steps=tuple(
            Step.of(rules[op.name], signature_of(op, graph.types), op.operands, op.results) for op in graph.ops
        ),
        nbytes={value: type_.nbytes for value, type_ in graph.types.items()},
        needs=tuple(need for op in graph.ops for need in _needed(graph, op, rules[op.name], kernels)),
        owner=graph.storage,
        outputs=frozenset(graph.outputs),
        resident=frozenset(graph.param),
        same={op.name: op.attrs for op in graph.ops if op.kind == "constant" and not op.operands},
    )


def _needed(graph: Graph, op: Op, rule: Rule, kernels: Kernels) -> Iterator[Need]:
    """Every value and extra tensor that the derivative of an operator reads, if it has one."""
    wanted = [slot for slot, value in enumerate(op.operands) if value in graph.differentiable]
    if op.no_grad or not wanted or not any(value in graph.differentiable for value in op.results):
        return
    signature = signature_of(op, graph.types)
    for save in reads(rule, signature, wanted, kernels):
        if save.what == "extra":
            yield Need(op.name, op.name, int(rule.save_bytes(save, signature)))
        else:
            yield Need((op.operands if save.what == "operand" else op.results)[save.index], op.name)


def _saved(tape: Tape, need: Need) -> SavedTensor:
    if need.extra_bytes is not None:
        return SavedTensor(need.value, need.value, need.extra_bytes, need.op, extra=True)
    owner = tape.owns(need.value)
    return SavedTensor(need.value, owner, tape.nbytes[owner], need.op)


def _by_storage(tape: Tape, kept: Iterable[SavedTensor]) -> Iterator[SavedTensor]:
    """Tensors by storage, each once, without those that are available anyway."""
    seen: set[str] = set()
    like: dict[object, str] = {}
    for one in kept:
        if one.extra:
            yield one
            continue
        owner = like.setdefault(tape.same.get(one.owner, one.owner), one.owner)
        if owner not in seen and not tape.there(one.value):
            seen.add(owner)
            yield one if owner == one.owner else replace(one, owner=owner)


# Fused chains --------------------------------------------------------------------------------------------------------


def _without_interiors(tape: Tape, needs: Iterable[Need], kernels: Kernels) -> Iterator[SavedTensor]:
    """Needs with interior values replaced by what their chain reads from outside."""
    interior = made_again(tape.steps, tape.outputs, kernels)
    for need in needs:
        for value in _sources(tape, need.value, interior):
            yield _saved(tape, Need(value, need.op))


def made_again(steps: Sequence[Step], outputs: Iterable[str], kernels: Kernels) -> frozenset[str]:
    """Values that a style recomputes from their operands: none, those interior to kernels, or all cheap ones."""
    if kernels.style == "eager":
        return frozenset()
    cheap = {value: step for step in steps if step.cheap for value in step.results}
    if kernels.style != "fused":
        return frozenset(cheap)
    readers: dict[str, set[str]] = {}
    for step in steps:
        for value in step.operands:
            readers.setdefault(value, set()).add(step.sort)

    def taken_in(value: str, step: Step) -> bool:
        taking = {"cheap"} | ({"reduction"} if kernels.fused_loss else set())
        return value in readers and readers[value] <= taking

    return frozenset(value for value, step in cheap.items() if taken_in(value, step)).difference(outputs)


def _sources(tape: Tape, value: str, interior: frozenset[str]) -> Iterator[str]:
    """The nearest ancestors that are not interior, each once, in operand order."""
    seen: set[str] = set()
    stack = [value]
    while stack:
        at = stack.pop()
        if at in seen:
            continue
        seen.add(at)
        if at in interior and not tape.there(at):
            stack.extend(reversed(tape.maker[at].operands))
        else:
            yield at


# Minimal cut ---------------------------------------------------------------------------------------------------------

_SOURCE, _SINK = ("source", ""), ("sink", "")
_Node = tuple[str, str]


def _cut(tape: Tape, needs: Iterable[Need]) -> Iterator[SavedTensor]:
    """The cheapest values from which everything that is needed can be computed."""
    wanted: dict[str, str] = {}
    for need in needs:
        wanted.setdefault(need.value, need.op)
    if not wanted:
        return
    _, (before, after) = nx.minimum_cut(_network(tape, wanted), _SOURCE, _SINK, flow_func=boykov_kolmogorov)
    for value, nbytes in tape.nbytes.items():
        if ("in", value) in before and ("out", value) in after and not tape.there(value):
            yield SavedTensor(value, value, nbytes, wanted.get(value, value))


def _network(tape: Tape, wanted: Iterable[str]) -> nx.DiGraph:
    """A flow network of values as edges weighted by their bytes. Values that are available anyway need no edge: no flow
    enters at them. An edge without a capacity cannot be cut."""
    network = nx.DiGraph()
    network.add_nodes_from((_SOURCE, _SINK))
    for value, nbytes in tape.nbytes.items():
        network.add_edge(("in", value), ("out", value), capacity=nbytes)
        if value not in tape.maker and not tape.there(value):
            network.add_edge(_SOURCE, ("in", value))
    for step in tape.steps:
        starts: list[_Node] = [("out", value) for value in step.operands] if step.cheap else [_SOURCE]
        made = [value for value in step.results if not tape.there(value)]
        network.add_edges_from((start, ("in", value)) for start in starts for value in made)
    network.add_edges_from((("out", value), _SINK) for value in wanted)
    return network
