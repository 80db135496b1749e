"""Mixtures of experts: tokens to experts and back.

    dispatch(x[t…, d], idx[t…, k]) -> rows[e, c, d]         combine(rows[e, c, d], idx[t…, k], w[t…, k]) -> y[t…, d]

Tokens are one loop t, or several (t0, t1: batch and sequence). `idx` says which k experts each token goes to. Every
expert has c slots; tokens take them in order, and what does not fit is dropped. Slots are counted per *routing group*:
`groups` cuts every loop over tokens into equal runs, and each combination of runs owns an equal share of the slots of
every expert. Tokens split along groups, so that what is dropped does not depend on the plan.

Attribute `dropless` says that nothing is dropped: c is then not a limit but an estimate, the mean t * k / e rounded up
for short runs of tokens (`dropless_capacity`), from which an expert's true number of rows deviates by the imbalance;
and cutting the tokens, into micro-batches too, changes no result. As any groups would do, they are the finest for
which slots can be counted.

Splitting e gives each rank its experts' rows from all tokens; coming back, the ranks' contributions add up. Resharding
rows from tokens to experts is the all-to-all of expert parallelism.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from math import ceil, gcd, prod

from meshwright.ir.graph.graph import Attr, Type
from meshwright.ir.rules.base import Dims, Factor, Law, Role, Rule, Save, Signature
from meshwright.ir.rules.registry import rule

ROUNDED = 1 / 16
"""By how much more than the mean, at most, dropless routing counts so that tokens can be cut."""


def dropless_capacity(tokens: int, topk: int, experts: int) -> int:
    """Slots of an expert for these tokens, where nothing is dropped: as many for every run of so many tokens, so that
    ranks can take whole runs each. Runs are as short as rounding up allows; where the experts divide the choices of a
    run, this is the mean. Must not depend on how many runs there are: then what can be cut does not either."""
    run = 1
    while tokens % (2 * run) == 0 and ceil(run * topk / experts) > run * topk / experts * (1 + ROUNDED):
        run *= 2
    if ceil(run * topk / experts) > run * topk / experts * (1 + ROUNDED):
        run = tokens
    return tokens // run * ceil(run * topk / experts)


def tokens(rank: int) -> tuple[str, ...]:
    """The loops over tokens, `rank` of them."""
    return ("t",) if rank == 1 else tuple(f"t{index}" for index in range(rank))


def routing_groups(attrs: Mapping[str, Attr], lead: Sequence[int], capacity: int) -> tuple[int, ...]:
    """The number of groups of each loop over tokens (of extents `lead`); one integer is for the first loop."""
    given = attrs.get("groups")
    if given is None and attrs.get("dropless"):
        return _finest(lead, capacity)
    counts = given if isinstance(given, tuple) else (1 if given is None else given,)
    whole = tuple(count for count in counts if isinstance(count, int))
    return (*whole, *(1 for _ in range(len(lead) - len(whole))))


def _finest(lead: Sequence[int], capacity: int) -> tuple[int, ...]:
    counts = []
    for extent in lead:
        counts.append(gcd(extent, capacity))
        capacity //= counts[-1]
    return tuple(counts)


def _routed(signature: Signature, idx: Type, rows: Type, *, back: bool) -> Rule:
    """The rule of dispatch, or, in the other direction, of combine."""
    names = tokens(len(idx.shape) - 1)
    groups = routing_groups(dict(signature.attrs), idx.shape[:-1], rows.shape[1])
    if len(groups) != len(names) or any(size % count for size, count in zip(idx.shape, groups, strict=False)):
        raise signature.error(f"groups {groups} of tokens {idx.shape[:-1]}", "give numbers that divide the tokens")
    if rows.shape[1] % prod(groups):
        raise signature.error(f"{rows.shape[1]} slots in groups {groups}", "give groups that divide the slots")
    lead = tuple((name,) for name in names)
    slots: Dims = (("e",), names, ("d",))
    chosen = (*lead, ("k",))
    places = Save("extra", dims=chosen, dtype="i64")
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
        saves=(*(Save("operand", index) for index in ((0, 1, 2) if back else (1,))), places),
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
    """Each token's rows, weighted and summed; slots are counted as in `dispatch` (attributes alike). Experts may be
    `looped` over, one by one."""
    rows, idx, _ = signature.operands
    return _routed(signature, idx, rows, back=True)
