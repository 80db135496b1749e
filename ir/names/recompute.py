"""Named recomputation: the values that each name recomputes in the backward pass.

    none           nothing: every operator keeps what its derivative reads
    full           every block, from its inputs (Chen et al. 2016)
    full_layers:N  the first N layers of every stage (Megatron-LM's recompute method "block")
    selective      the core of attention: fused attention, or where it is written out all that handles scores, which are
                   quadratic in the sequence (Korthikanti et al. 2022, section 5)
    selective:A+B  parts of a block by the names of Megatron-Core's recompute_modules:
                   core_attn     as above
                   layernorm     the norms over the hidden width
                   moe_act       what lies between the products inside the experts
                   mla_up_proj   from the compressed queries, keys and values of latent attention to attention itself
    selective_op   everything but attention and every other matrix product, the first kept (torchtitan's selective
                   per-operator policy; its products with a bias are another operator, and are computed again)

A part that a body does not have selects nothing there. What stands outside of blocks, embedding and head, is not
computed again, unless nothing repeats and the model is one body: then all of it is, but for the loss.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Set

from meshwright.ir.analysis.loops import Loops, stem
from meshwright.ir.graph.fold import Fold
from meshwright.ir.graph.graph import Graph, Op
from meshwright.ir.names.degrees import MODULES, SEQUENCE, recompute_parts

_FUSED = ("attention",)
_NORMS = ("rms_norm", "layer_norm")
_PRODUCTS = ("grouped_linear", "grouped_mm")


def kind_of(fold: Fold, body: str, kind: str) -> str:
    """The meaning of a word for one body."""
    blocks = {name for segment in fold.segments if not segment.glue for name in segment.period}
    return kind if body in blocks or not blocks else "none"


def recomputed(graph: Graph, found: Loops, kind: str) -> tuple[str, ...]:
    """The values of a body that are computed again."""
    if kind == "none":
        return ()
    if kind not in ("full", "selective_op"):
        chosen = {op.name for part in recompute_parts(kind) for op in _PARTS[part](graph, found)}
        return tuple(value for op in graph.ops if op.name in chosen for value in op.results)
    kept = _kept(graph) if kind == "selective_op" else frozenset[str]()
    kept |= {graph.producer[value].name for value in graph.outputs if is_loss(graph, value)}
    inputs = tuple(item.value for item in graph.inputs)
    return (*inputs, *(value for op in graph.ops if op.name not in kept for value in op.results))


def is_loss(graph: Graph, value: str) -> bool:
    """Whether an output of a body is the model's loss: alone, as no sum is that blocks hand on beside other values."""
    type_ = graph.types[value]
    return graph.outputs == (value,) and type_.shape == () and type_.floating and value in graph.producer


def _kept(graph: Graph) -> frozenset[str]:
    """Values that are kept: attention, and the first, third, fifth … product without a bias."""
    products = [op.name for op in graph.ops if op.kind == "linear" and len(op.operands) == 2]
    return frozenset((*products[::2], *(op.name for op in graph.ops if op.kind in _FUSED)))


def _core_attention(graph: Graph, found: Loops) -> list[Op]:
    """Values of core attention; where no operator is it, of operators that read or make scores: values with the
    sequence in two dimensions."""

    def handles_scores(op: Op) -> bool:
        return any(_stems(found, value).count(SEQUENCE) > 1 for value in (*op.operands, *op.results))

    fused = [op for op in graph.ops if op.kind in _FUSED]
    return fused or [op for op in graph.ops if handles_scores(op)]


def _norms(graph: Graph, found: Loops) -> list[Op]:
    """Values of norms, as one operator or as a whole norm module; norms of single heads are not meant."""
    whole = [op for op in graph.ops if op.kind in _NORMS and "hidden" in _stems(found, op.name)]
    modules = {op.module for op in graph.ops if _is_norm(op.module) and "hidden" in _stems(found, op.name)}
    return [*whole, *(op for op in graph.ops if op.module in modules)]


def _is_norm(module: str) -> bool:
    return "norm" in module.rpartition(".")[2].lower()


def _expert_activations(graph: Graph, found: Loops) -> list[Op]:
    return [op for op in graph.ops if op.kind not in _PRODUCTS and {"experts", "ffn"} <= set(_stems(found, op.name))]


def _latent_projections(graph: Graph, found: Loops) -> list[Op]:
    """Values of attention, from the products that make heads out of something other than the body's inputs."""
    given = {name for item in graph.inputs for names in found.dims[item.value] for name in names}
    up = [op for op in graph.ops if op.kind == "linear" and _makes_heads(op, found, given)]
    if not up:
        return []
    before = _makers(graph, (value for op in up for value in op.operands))
    attention = (value for op in graph.ops if op.kind in _FUSED for value in op.operands)
    return [op for name, op in _makers(graph, attention).items() if name not in before]


def _makes_heads(op: Op, found: Loops, given: Set[str]) -> bool:
    made, read = found.factors[op.name]["n"], found.factors[op.name]["k"]
    return "heads" in map(stem, made) and "heads" not in map(stem, read) and given.isdisjoint(read)


def _makers(graph: Graph, values: Iterable[str]) -> dict[str, Op]:
    """Operators, by name, that some values are made of."""
    found: dict[str, Op] = {}
    waiting = list(values)
    while waiting:
        op = graph.producer.get(waiting.pop())
        if op is not None and op.name not in found:
            found[op.name] = op
            waiting.extend(op.operands)
    return found


def _stems(found: Loops, value: str) -> list[str]:
    return [stem(name) for names in found.dims[value] for name in names]


_PARTS: Mapping[str, Callable[[Graph, Loops], list[Op]]] = dict(
    zip(MODULES, (_core_attention, _norms, _expert_activations, _latent_projections), strict=True)
)
