"""Operators without a rule of ours, and rules that users write.

An *opaque* operator is taken as it is: its operands are wanted whole, its result types stand in attribute `types`, its
bytes are counted, and reports list it. Nothing unknown is free: it is taken to keep its operands and results for the
backward pass, which costs twice the forward work, if attribute `flops` tells that. How it was called is kept
(`meshwright.ir.graph.invocation`), so it can be run again. What trials of a front end show stands in attributes `rule`,
`whole`, `reduce` and `linear` (`flops` is per point of its loops then); what a front end knows to be kept stands in
`saved` and `left`, the numbers of operands and results, and in `kept`, bytes at each point of loops (`n0 n1:64`); how
many kernels run one after the other, at least, forward and for gradients, in `kernels`.

A user who knows more says it in one line:

    register_rule("mylib::rotary", "b s (h d), s d -> b s (h d)", whole=("d",), linear=(0,), saved=(1,))

The left side gives the dimensions of every operand as named loops, `(h d)` composes one dimension of two (major to
minor), `1` is a dimension of extent 1, `()` alone is a scalar. Every loop that a result lacks must be listed in
`reduce`, unless it is `whole`; operands are nonlinear unless listed in `linear`. `flops` is the forward work per point
of the loop nest, done by `engine`; `saved` lists the operands that eager execution keeps.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from math import prod

from meshwright.ir.errors import BadOperand, RuleRegistered
from meshwright.ir.graph.graph import Attr, Type
from meshwright.ir.rules.base import Dims, Engine, Factor, Law, Role, Rule, Save, Signature, Work
from meshwright.ir.rules.dims import Shape, law
from meshwright.ir.rules.registry import infer, rule

_TYPE = re.compile(r"^(?P<dtype>\w+)\[(?P<shape>[\d, ]*)\]$")
_WORD = re.compile(r"\(([\w ]*)\)|(\w+)")


@dataclass(frozen=True, slots=True)
class Spec:
    """A user's description of one framework operator."""

    operands: tuple[Dims, ...]
    results: tuple[Dims, ...]
    linear: tuple[int, ...] = ()
    whole: tuple[str, ...] = ()
    reduce: tuple[str, ...] = ()
    flops: float = 0.0
    engine: Engine = Engine.MEMORY
    saved: tuple[int, ...] | None = None
    """None: all operands and results."""
    left: tuple[int, ...] = ()
    """The results that are saved beside these operands."""
    kept: tuple[tuple[tuple[str, ...], int], ...] = ()
    """Bytes that are saved besides, at each point of these loops."""
    counted: bool = True
    """Whether `flops` is per point of all loops, or of those that split."""


_SPECS: dict[str, Spec] = {}


def register_rule(
    target: str,
    spec: str,
    *,
    linear: Sequence[int] = (),
    whole: Sequence[str] = (),
    reduce: Sequence[str] = (),
    flops: float = 0.0,
    engine: str = "memory",
    saved: Sequence[int] | None = None,
) -> None:
    """Give the framework operator `target` ("ns::op") a rule: `spec` names the loops of operands and results."""
    if target in _SPECS:
        raise RuleRegistered(place=target, cause="this operator has a rule already", fix="remove one of the two")
    left, arrow, right = spec.partition("->")
    if not arrow:
        raise BadOperand(place=f"{target}: {spec!r}", cause="there is no ->", fix='write such as "b s d -> b s d"')
    operands, results = _side(left), _side(right)
    _SPECS[target] = Spec(
        operands,
        results,
        linear=tuple(linear),
        whole=tuple(whole),
        reduce=tuple(reduce),
        flops=flops,
        engine=Engine(engine),
        saved=None if saved is None else tuple(saved),
    )
    infer.cache_clear()


def registered(target: str) -> bool:
    """Whether a user gave this operator a rule."""
    return target in _SPECS


def any_registered() -> bool:
    """Whether a user gave any operator a rule."""
    return bool(_SPECS)


def ruled(target: str, attrs: Mapping[str, Attr]) -> bool:
    """Whether the loops of an opaque operator with these attributes are known, from a user or from trials."""
    return registered(target) or "rule" in attrs


def unregister_rule(target: str) -> None:
    """Remove a user's rule; the operator is opaque again."""
    del _SPECS[target]
    infer.cache_clear()


def _side(text: str) -> tuple[Dims, ...]:
    return tuple(_dims(tensor) for tensor in text.split(",")) if text.strip() else ()


def _dims(text: str) -> Dims:
    if text.strip() == "()":
        return ()
    words = [(found[1].split() if found[2] is None else [found[2]]) for found in _WORD.finditer(text)]
    return tuple(() if words == ["1"] else tuple(words) for words in words)


@rule("opaque")
def opaque(signature: Signature) -> Rule:
    """A user's rule for attribute `target` if there is one, else everything whole."""
    types = tuple(_type(signature, text) for text in _texts(signature))
    spec = _SPECS.get(str(signature.attr("target"))) or _tried(signature)
    return _unknown(signature, types) if spec is None else _known(signature, types, spec)


def _tried(signature: Signature) -> Spec | None:
    """The rule that trials found, as attributes say it, if they do."""
    told = signature.attr("rule")
    if not isinstance(told, str):
        return None
    left, _, right = told.partition("->")
    flops = signature.attr("flops", 0)

    def words(key: str) -> tuple[str, ...]:
        given = signature.attr(key, ())
        return tuple(map(str, given)) if isinstance(given, tuple) else ()

    return Spec(
        _side(left),
        _side(right),
        linear=signature.integers("linear") if signature.attr("linear") is not None else (),
        whole=words("whole"),
        reduce=words("reduce"),
        flops=float(flops) if isinstance(flops, (int, float)) else 0.0,
        counted=False,
        saved=signature.integers("saved") if signature.attr("saved") is not None else None,
        left=signature.integers("left") if signature.attr("left") is not None else (),
        kept=tuple(map(_bytes_at, words("kept"))),
    )


def _bytes_at(text: str) -> tuple[tuple[str, ...], int]:
    """Loops, and bytes at each of their points, as `n0 n1:64` says it."""
    loops, _, size = text.partition(":")
    return tuple(loops.split()), int(size)


def _texts(signature: Signature) -> tuple[str, ...]:
    given = signature.attr("types")
    if isinstance(given, str):
        return (given,)
    if not isinstance(given, tuple):
        raise signature.error(f"attribute types is {given!r}", 'give result types such as "bf16[2, 3]"')
    return tuple(str(text) for text in given)


def _type(signature: Signature, text: str) -> Type:
    found = _TYPE.match(text)
    if not found:
        raise signature.error(f"result type {text!r}", 'write such as "bf16[2, 3]"')
    return Type(tuple(int(extent) for extent in found["shape"].split(",") if extent.strip()), found["dtype"])


def _unknown(signature: Signature, types: tuple[Type, ...]) -> Rule:
    def dims(side: str, index: int, shape: Shape) -> Dims:
        return tuple((f"{side}{index}_{dim}",) for dim in range(len(shape)))

    operands = tuple(dims("i", index, type_.shape) for index, type_ in enumerate(signature.operands))
    results = tuple(dims("o", index, type_.shape) for index, type_ in enumerate(types))
    factors = tuple(
        Factor(name, extent, Role.WHOLE)
        for tensor, type_ in zip((*operands, *results), (*signature.operands, *types), strict=True)
        for (name,), extent in zip(tensor, type_.shape, strict=True)
    )
    laws = tuple(law(type_, Law.NONLINEAR) for type_ in signature.operands)
    flops = signature.attr("flops", 0)
    return Rule(
        factors=factors,
        operands=operands,
        results=results,
        types=types,
        laws=laws,
        work=_work(signature, float(flops) if isinstance(flops, (int, float)) else 0.0, ()),
        saves=_everything(signature, types),
    )


def _known(signature: Signature, types: tuple[Type, ...], spec: Spec) -> Rule:
    if len(spec.operands) != len(signature.operands) or len(spec.results) != len(types):
        raise signature.error("the registered rule has another number of tensors", "name each operand and result")
    sizes = _sizes(signature, (*spec.operands, *spec.results), (*signature.operands, *types))

    def role(name: str) -> Role:
        return Role.WHOLE if name in spec.whole else (Role.SUM if name in spec.reduce else Role.PARALLEL)

    return Rule(
        factors=tuple(Factor(name, size, role(name)) for name, size in sizes.items()),
        operands=spec.operands,
        results=spec.results,
        types=types,
        laws=tuple(
            law(type_, Law.LINEAR if index in spec.linear else Law.NONLINEAR)
            for index, type_ in enumerate(signature.operands)
        ),
        engine=spec.engine,
        work=_work(signature, spec.flops, tuple(name for name in sizes if spec.counted or name not in spec.whole)),
        saves=_everything(signature, types) if spec.saved is None else tuple(_told(spec)),
    )


def _told(spec: Spec) -> Iterator[Save]:
    """What a description says to be saved."""
    yield from (Save("operand", index) for index in spec.saved or ())
    yield from (Save("result", index) for index in spec.left)
    yield from (Save("extra", dims=tuple((name,) for name in loops), each_bytes=each) for loops, each in spec.kept)


def _everything(signature: Signature, types: tuple[Type, ...]) -> tuple[Save, ...]:
    operands = tuple(Save("operand", index) for index in range(len(signature.operands)))
    return operands + tuple(Save("result", index) for index in range(len(types)))


def _work(signature: Signature, flops: float, factors: tuple[str, ...]) -> tuple[Work, ...]:
    """Work of an operator with a user's rule: backward costs twice forward, shared evenly by the operands that carry a
    gradient."""
    if not flops:
        return ()
    carrying = [index for index, type_ in enumerate(signature.operands) if type_.floating]
    share = 2 * flops / max(len(carrying), 1)
    return (Work(flops, factors), *(Work(share, factors, grad_of=index) for index in carrying))


def _sizes(signature: Signature, tensors: Sequence[Dims], types: Sequence[Type]) -> Mapping[str, int]:
    """Factor sizes, from the dimensions that name one loop first, then from what composed ones leave over."""
    sizes: dict[str, int] = {}
    dims = [pair for tensor, type_ in zip(tensors, types, strict=True) for pair in _paired(signature, tensor, type_)]
    for names, extent in sorted(dims, key=lambda pair: len(pair[0])):
        open_names = [name for name in names if name not in sizes]
        known = prod(sizes[name] for name in names if name in sizes)
        if len(open_names) > 1 or (known and extent % known):
            raise signature.error(f"({' '.join(names)}) is {extent}", "name each loop alone in some dimension")
        if open_names:
            sizes[open_names[0]] = extent // known
    return sizes


def _paired(signature: Signature, tensor: Dims, type_: Type) -> list[tuple[tuple[str, ...], int]]:
    if len(tensor) != len(type_.shape):
        raise signature.error(f"the registered rule gives {type_} {len(tensor)} dims", "name every dimension")
    return list(zip(tensor, type_.shape, strict=True))
