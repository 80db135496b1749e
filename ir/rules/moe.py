"""Mixtures of experts: tokens to experts and back.

    dispatch(x[t…, d], idx[t…, k]) -> rows[e, c, d]         combine(rows[e, c, d], idx[t…, k], w[t…, k]) -> y[t…, d]

Tokens are one loop t, or several (t0, t1: batch and sequence). `idx` says which k experts each token goes to. Every
expert has c slots; tokens take them in order, and what does not fit is dropped. Attribute `dropless` says that nothing
is dropped: c is then not a limit but an estimate, the mean t * k / e rounded up, from which an expert's true number of
rows deviates by the imbalance, and cutting the tokens, into micro-batches too, changes no result. Otherwise slots are
counted per *routing group*: `groups` cuts every loop over tokens into equal runs, and each combination of runs owns an
equal share of the slots of every expert. That makes a split of the tokens exact as long as it does not cut a group; a
finer split routes within each shard, which changes what is dropped but nothing else.

Splitting e gives each rank its experts' rows from all tokens; coming back, the ranks' contributions add up. Resharding
rows from tokens to experts is the all-to-all of expert parallelism.
"""

from __future__ import annotations

from math import prod

from meshwright.ir.graph import Type
from meshwright.ir.rules.base import Dims, Factor, Law, Role, Rule, Save, Signature, rule


def tokens(idx: Type) -> tuple[str, ...]:
    """The loops over tokens."""
    rank = len(idx.shape) - 1
    return ("t",) if rank == 1 else tuple(f"t{index}" for index in range(rank))


def routing_groups(signature: Signature, rank: int) -> tuple[int, ...]:
    """How many groups each loop over tokens is cut into; one integer is for the first loop."""
    if signature.attr("groups") is None:
        return (1,) * rank
    given = signature.integers("groups")
    return (*given, *(1 for _ in range(rank - len(given))))


def _routed(signature: Signature, idx: Type, rows: Type, *, back: bool) -> Rule:
    """The rule of dispatch, or (back) of combine."""
    names = tokens(idx)
    groups = routing_groups(signature, len(names))
    if len(groups) != len(names) or any(size % count for size, count in zip(idx.shape, groups, strict=False)):
        raise signature.error(f"groups {groups} of tokens {idx.shape[:-1]}", "give numbers that divide the tokens")
    if rows.shape[1] % prod(groups):
        raise signature.error(f"{rows.shape[1]} slots in groups {groups}", "give groups that divide the slots")
    lead = tuple((name,) for name in names)
    slots: Dims = (("e",), names, ("d",))
    chosen = (*lead, ("k",))
    return Rule(
        factors=(
            *(Factor(name, size) for name, size in zip(names, idx.shape, strict=False)),
            Factor("k", idx.shape[-1], Role.WHOLE),
            Factor("e", rows.shape[0], Role.SUM if back else Role.PARALLEL),
            Factor("d", rows.shape[2]),
        ),
        operands=(slots, chosen, chosen) if back else ((*lead, ("d",)), chosen),
        results=((*lead, ("d",)),) if back else (slots,),
        types=(Type((*idx.shape[:-1], rows.shape[2]), rows.dtype) if back else rows,),
        laws=(Law.LINEAR, Law.INDEX, *((Law.LINEAR,) if back else ())),
        saves=tuple(Save("operand", index) for index in range(3)) if back else (Save("operand", 1),),
        slots=(("operand" if back else "result", 0, 1, groups),),
    )


@rule("dispatch")
def dispatch(signature: Signature) -> Rule:
    """Each expert's tokens in its slots, zeros in empty ones (`num_experts`, `capacity`, `groups`, `dropless`)."""
    x, idx = signature.operands
    shape = signature.integer("num_experts"), signature.integer("capacity"), x.shape[-1]
    return _routed(signature, idx, Type(shape, x.dtype), back=False)


@rule("combine")
def combine(signature: Signature) -> Rule:
    """Each token's rows, weighted and summed; slots are counted as in `dispatch` (attributes alike)."""
    rows, idx, _ = signature.operands
    return _routed(signature, idx, rows, back=True)
