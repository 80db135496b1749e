"""Attention, written out: a product of queries and keys, its softmax, and a product with values.

    einsum(v, softmax(where(mask, scale · einsum(q, k) + bias, -∞)))

in any order of dimensions, with casts and transposes between. Which dimension is what follows from where it occurs:

    keys        what the softmax runs over, summed with the values
    batch       in queries, keys and values: the first is the batch, the others are key-value heads
    queries     in the queries only; the last of them, as scores have it, are positions, the others groups of heads
    width       summed between queries and keys; of values, what is in the result only

The mask becomes a law where it has one, else what it hides is a bias of minus infinity.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from math import prod

from meshwright.ir.frontends.folding.masks import MaskLaw
from meshwright.ir.frontends.recognise.rewriting import Sweep
from meshwright.ir.graph.graph import Attr, Op, Type

VERY_NEGATIVE = -1e4
"""What a number must be below to mean minus infinity in a mask."""

LawOf = Callable[[str], MaskLaw | None]
"""The law of a mask, by the name of its value; None if it has none."""


@dataclass
class Scores:
    """What stands between the product of queries and keys and the softmax."""

    product: Op
    order: tuple[int, ...]
    """Of every dimension of the softmax, the one of the product."""
    scale: float = 1.0
    hidden: list[str] = field(default_factory=list)
    """Masks, true where keys are seen, broadcast to the softmax's dimensions."""
    added: list[str] = field(default_factory=list)
    """What is added to scores, broadcast alike."""


@dataclass(frozen=True, slots=True)
class Roles:
    """Letters of the two products by what they are."""

    batch: tuple[str, ...]
    groups: tuple[str, ...]
    queries: str
    keys: str
    width: tuple[str, ...]


def attention(law_of: LawOf) -> Callable[[Sweep, Op], str | None]:
    """The pattern, given what tells laws of masks."""

    def pattern(s: Sweep, op: Op) -> str | None:
        if op.kind != "einsum":
            return None
        for slot in (0, 1):
            found = _probabilities(s, op.operands[slot])
            if found is not None and (made := _attended(s, op, slot, *found, law_of)) is not None:
                return made
        return None

    return pattern


def _probabilities(s: Sweep, value: str) -> tuple[Op, tuple[int, ...], float] | None:
    """The softmax that a value is, the order of its dimensions there, and how much is dropped out."""
    order = tuple(range(len(s.shape(value))))
    dropped = 0.0
    while (op := s.made(value, "softmax", "permute", "cast", "dropout")) is not None:
        if op.kind == "softmax":
            return op, order, dropped
        if op.kind == "permute":
            perm = op.integers("perm")
            order = tuple(perm[dim] for dim in order)
        if op.kind == "dropout":
            rate = op.attr("p")
            dropped = float(rate) if isinstance(rate, (int, float)) else 0.0
        value = op.operands[0]
    return None


def _scores(s: Sweep, value: str) -> Scores | None:
    """What a softmax is taken of, back to a product."""
    rank = len(s.shape(value))
    order = tuple(range(rank))  # of the softmax's dimensions, where they are in `value`
    scale, hidden, added = 1.0, list[str](), list[str]()

    def lined_up(operand: str) -> str:
        shape = s.shape(operand)
        wide = s.view(operand, (*(1 for _ in range(rank - len(shape))), *shape))
        return s.permute(wide, order)

    while True:
        op = s.made(value, "where", "mul", "div", "add", "permute", "cast", "einsum", "masked_fill")
        if op is None:
            return None
        if op.kind == "einsum":
            return Scores(op, order, scale, hidden, added)
        scalar, reverse = op.attr("scalar"), bool(op.attr("reverse"))
        number = float(scalar) if isinstance(scalar, (int, float)) else None
        following = op.operands[0]
        if op.kind == "permute":
            perm = op.integers("perm")
            order = tuple(perm[dim] for dim in order)
        elif op.kind == "where" and len(op.operands) == 2 and number is not None and not reverse:
            if number > VERY_NEGATIVE:
                return None
            hidden.append(lined_up(op.operands[0]))
            following = op.operands[1]
        elif op.kind in ("mul", "div") and number is not None and not reverse:
            scale *= number if op.kind == "mul" else 1 / number
        elif op.kind == "add" and len(op.operands) == 2 and scale == 1.0:
            whole = [one for one in op.operands if s.shape(one) == s.shape(value) and _is_product(s, one)]
            if len(whole) != 1:
                return None
            other = op.operands[1] if whole[0] == op.operands[0] else op.operands[0]
            added.append(lined_up(other))
            following = whole[0]
        elif op.kind != "cast":
            return None
        value = following


def _is_product(s: Sweep, value: str) -> bool:
    while (op := s.made(value, "permute", "cast", "mul", "div", "where", "add")) is not None:
        value = op.operands[1 if op.kind == "where" else 0]
    return s.made(value, "einsum") is not None


def _letters(op: Op) -> tuple[str, str, str]:
    inputs, _, output = str(op.attr("equation")).partition("->")
    left, right = inputs.split(",")
    return left, right, output


def _attended(
    s: Sweep, op: Op, slot: int, soft: Op, order: tuple[int, ...], dropped: float, law_of: LawOf
) -> str | None:
    before = len(s.ops)
    found = _scores(s, soft.operands[0])
    made = None if found is None else _written(s, op, slot, soft, order, dropped, found, law_of)
    if made is None:  # nothing that was written on the way is read
        for one in s.ops[before:]:
            del s.producer[one.name], s.types[one.name]
        del s.ops[before:]
    return made


def _written(
    s: Sweep, op: Op, slot: int, soft: Op, order: tuple[int, ...], dropped: float, found: Scores, law_of: LawOf
) -> str | None:
    dim = soft.integer("dim")
    inputs = _letters(op)
    outer, value_letters, result = inputs[slot], inputs[1 - slot], inputs[2]
    first, second, product = _letters(found.product)
    letter_of = {at: outer[order.index(at)] for at in range(len(order))}  # softmax dim -> letter of the second product
    inner_of = {at: product[found.order[at]] for at in range(len(order))}  # softmax dim -> letter of the first
    keys = inner_of[dim]
    if (keys in first) == (keys in second):
        return None
    q_at = 1 if keys in first else 0
    q, k = found.product.operands[q_at], found.product.operands[1 - q_at]
    q_letters, k_letters = (second, first) if q_at else (first, second)
    v = op.operands[1 - slot]
    roles = _roles(inner_of, letter_of, dim, q_letters, k_letters, value_letters)
    if roles is None or letter_of[dim] not in value_letters or letter_of[dim] in result:
        return None
    renamed = {letter_of[at]: inner_of[at] for at in inner_of}
    if any(letter in renamed.values() and letter not in renamed for letter in value_letters):
        fresh = iter("ABCDEFGHIJKLMNOPQRSTUVWXYZ")
        renamed |= {one: f"{next(fresh)}'" for one in value_letters if one not in renamed}
    v_letters = [renamed.get(letter, letter) for letter in value_letters]
    out_letters = [renamed.get(letter, letter) for letter in result]
    wide = [letter for letter in v_letters if letter not in (*roles.batch, roles.keys)]
    if any(letter not in out_letters for letter in (*roles.batch, *roles.groups, roles.queries, *wide)):
        return None
    return _emitted(s, op, found, roles, (q, q_letters), (k, k_letters), (v, v_letters), wide, out_letters,
                    _mask(s, found, roles, inner_of, law_of), dropped)  # fmt: skip


def _roles(inner_of: dict[int, str], letter_of: dict[int, str], dim: int, q: str, k: str, v: str) -> Roles | None:
    batch, only = [], []
    for at in sorted(inner_of):
        if at == dim:
            continue
        letter = inner_of[at]
        if letter in q and letter in k and letter_of[at] in v:
            batch.append(letter)
        elif letter in q and letter not in k and letter_of[at] not in v:
            only.append(letter)
        else:
            return None
    keys = inner_of[dim]
    width = tuple(letter for letter in q if letter in k and letter not in inner_of.values())
    known = {*batch, keys, *width}
    if not only or not width or set(k) != known or set(q) != {*batch, *only, *width}:
        return None
    batch.sort(key=q.index)
    return Roles(tuple(batch), tuple(only[:-1]), only[-1], keys, width)


Bias = tuple[MaskLaw, str | None]


def _mask(s: Sweep, found: Scores, roles: Roles, inner_of: dict[int, str], law_of: LawOf) -> Bias | None:
    """The law, and what is added to the scores, as [b, h, queries, keys]; None if that cannot be said."""
    law, added = MaskLaw("full"), list[str]()
    for mask in (*found.hidden, *found.added):
        known = law_of(mask)
        if known is not None and (law.kind == "full" or known == law):
            law = known
            continue
        if mask in found.added:
            added.append(mask)
            continue
        added.append(s.emit("where", [mask], Type(s.shape(mask), "f32"), {"scalar": 0.0, "other": float("-inf")}))
    if not added:
        return law, None
    target = (*roles.batch, *roles.groups, roles.queries, roles.keys)
    order = [next(at for at, letter in inner_of.items() if letter == wanted) for wanted in target]
    total: str | None = None
    for one in added:
        shape = tuple(s.shape(one)[at] for at in order)
        seen = s.permute(one, order)
        b, heads = shape[:1] if roles.batch else (1,), shape[len(roles.batch[:1]) : -2]
        whole = [
            e for e, size in zip(heads, _sizes(s, found, target)[len(roles.batch[:1]) : -2], strict=True) if e != size
        ]
        if whole and any(extent != 1 for extent in heads):
            return None
        four = s.view(seen, (*b, prod(heads), *shape[-2:]))
        if shape[-1] == 1:
            return None
        total = four if total is None else _summed(s, total, four)
    return law, total


def _sizes(s: Sweep, found: Scores, letters: Sequence[str]) -> tuple[int, ...]:
    product = _letters(found.product)[2]
    shape = s.shape(found.product.name)
    return tuple(shape[product.index(letter)] for letter in letters)


def _summed(s: Sweep, one: str, other: str) -> str:
    shape = tuple(max(a, b) for a, b in zip(s.shape(one), s.shape(other), strict=True))
    return s.emit("add", [one, other], Type(shape, s.types[one].dtype))


Side = tuple[str, Sequence[str]]


def _emitted(
    s: Sweep, op: Op, found: Scores, roles: Roles, q_side: Side, k_side: Side, v_side: Side,
    wide: Sequence[str], result: Sequence[str], mask: Bias | None, dropped: float,
) -> str | None:  # fmt: skip
    if mask is None:
        return None
    law, bias = mask
    size = {letter: extent for value, letters in (q_side, k_side, v_side)
            for letter, extent in zip(letters, s.shape(value), strict=True)}  # fmt: skip
    b, kv = prod(size[one] for one in roles.batch[:1]), prod(size[one] for one in roles.batch[1:])
    g, d, dv = (prod(size[one] for one in letters) for letters in (roles.groups, roles.width, wide))
    q_value, scale = _unscaled(s, q_side[0], found.scale)
    keys, values = _few(s, k_side, roles), _few(s, v_side, roles)
    repeated = keys and values and not roles.groups and len(roles.batch) == 2
    if repeated and keys and values:
        k_side, v_side, kv = (
            (keys, k_side[1]),
            (values, v_side[1]),
            s.shape(keys)[list(k_side[1]).index(roles.batch[1])],
        )
        heads = size[roles.batch[1]]
    else:
        heads = kv * g
    dtype = s.types[op.name].dtype

    def four(value: str, letters: Sequence[str], wanted: Sequence[str], shape: tuple[int, ...]) -> str:
        return s.view(s.permute(value, [list(letters).index(one) for one in wanted]), shape)

    sq, sk = size[roles.queries], size[roles.keys]
    q = four(q_value, q_side[1], (*roles.batch, *roles.groups, roles.queries, *roles.width), (b, heads, sq, d))
    k = four(k_side[0], k_side[1], (*roles.batch, roles.keys, *roles.width), (b, kv, sk, d))
    v = four(v_side[0], v_side[1], (*roles.batch, roles.keys, *wide), (b, kv, sk, dv))
    narrow = s.types[v].dtype
    operands = [s.cast(q, narrow), s.cast(k, narrow), v]
    if bias is not None:
        operands.append(s.cast(bias, narrow))
    attrs: dict[str, Attr] = {"mask": law.kind, "width": law.width, "scale": scale, "dropout": dropped}
    if (scores := str(found.product.attr("preferred", narrow))) != narrow:
        attrs["scores"] = scores
    made = s.cast(s.emit("attention", operands, Type((b, heads, sq, dv), narrow), attrs), dtype)
    letters = (*roles.batch, *roles.groups, roles.queries, *wide)
    apart = s.view(made, [size[one] for one in letters])
    return s.permute(apart, [letters.index(one) for one in result])


def _unscaled(s: Sweep, q: str, scale: float) -> tuple[str, float]:
    """Queries before they were scaled by a number."""
    scaled = s.made(q, "mul", "div")
    number = None if scaled is None else scaled.attr("scalar")
    if scaled is None or not isinstance(number, (int, float)) or scaled.attr("reverse") or not number:
        return q, scale
    return scaled.operands[0], scale * (number if scaled.kind == "mul" else 1 / number)


def _few(s: Sweep, side: Side, roles: Roles) -> str | None:
    """Keys or values before each head was repeated for a group of queries, if it was."""
    value, letters = side
    if len(roles.batch) != 2:
        return None
    at = list(letters).index(roles.batch[1])
    merge = s.made(value, "view")
    spread = None if merge is None else s.made(merge.operands[0], "expand")
    seen = None if spread is None else s.made(spread.operands[0], "view")
    if merge is None or spread is None or seen is None:
        return None
    few, wide, shape = s.shape(seen.operands[0]), s.shape(spread.name), s.shape(value)
    times = shape[at] // max(few[at], 1) if len(few) == len(shape) else 0
    repeated = (*few[: at + 1], times, *few[at + 1 :])
    once = (*few[: at + 1], 1, *few[at + 1 :])
    return seen.operands[0] if wide == repeated and s.shape(seen.name) == once and times > 1 else None
