"""Mixtures of experts: tokens to experts and back.

    dispatch(x[t, d], idx[t, k]) -> rows[e, c, d]           combine(rows[e, c, d], idx[t, k], w[t, k]) -> y[t, d]

`idx` says which k experts each token goes to. Every expert has c slots; tokens take them in order, and what does not
fit is dropped (dropless: c large enough). Slots are counted per *routing group*: the tokens are cut into `groups` equal
runs and each run owns c / groups slots of every expert. That makes a split of the tokens exact as long as it does not
cut a group; a finer split routes within each shard, which changes what is dropped but nothing else.

Splitting e gives each rank its experts' rows from all tokens; coming back, the ranks' contributions add up. Resharding
rows from tokens to experts is the all-to-all of expert parallelism.
"""

from __future__ import annotations

from meshwright.ir.graph import Type
from meshwright.ir.rules.base import Dims, Factor, Law, Role, Rule, Save, Signature, rule

ROWS: Dims = (("e",), ("t",), ("d",))
TOKENS: Dims = (("t",), ("d",))
CHOSEN: Dims = (("t",), ("k",))


def _factors(idx: Type, experts: int, d: int, role: Role) -> tuple[Factor, ...]:
    tokens, k = idx.shape
    return Factor("t", tokens), Factor("k", k, Role.WHOLE), Factor("e", experts, role), Factor("d", d)


@rule("dispatch")
def dispatch(signature: Signature) -> Rule:
    """Each expert's tokens in its slots, zeros in the empty ones; attributes `num_experts`, `capacity`, `groups`."""
    x, idx = signature.operands
    experts, capacity = signature.integer("num_experts"), signature.integer("capacity")
    if capacity % signature.integer("groups", 1) or x.shape[0] % signature.integer("groups", 1):
        raise signature.error(f"{signature.attr('groups')} groups", "choose a number that divides tokens and capacity")
    return Rule(
        factors=_factors(idx, experts, x.shape[1], Role.PARALLEL),
        operands=(TOKENS, CHOSEN),
        results=(ROWS,),
        types=(Type((experts, capacity, x.shape[1]), x.dtype),),
        laws=(Law.LINEAR, Law.INDEX),
        saves=(Save("operand", 1),),
    )


@rule("combine")
def combine(signature: Signature) -> Rule:
    """Each token's rows, weighted and summed; slots are counted as in `dispatch` (attributes alike)."""
    rows, idx, _ = signature.operands
    experts, _, d = rows.shape
    return Rule(
        factors=_factors(idx, experts, d, Role.SUM),
        operands=(ROWS, CHOSEN, CHOSEN),
        results=(TOKENS,),
        types=(Type((idx.shape[0], d), rows.dtype),),
        laws=(Law.LINEAR, Law.INDEX, Law.LINEAR),
        saves=(Save("operand", 0, needs=(2,)), Save("operand", 1), Save("operand", 2, needs=(0,))),
    )
