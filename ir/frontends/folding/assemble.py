"""Assembly of traced calls to segments: walked lists written out to their full depth, and repeats found."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence, Set
from dataclasses import dataclass, replace

from meshwright.ir.frontends.folding.stacks import LONG_WALK, Stack
from meshwright.ir.graph.fold import Body, Fold, FromInput, FromPrevious, FromSegment, Segment, Source
from meshwright.ir.graph.graph import Graph
from meshwright.ir.graph.paths import counted_by, counting


class NotFoldable(Exception):
    """The trace does not repeat in the way that its stacks promise."""


@dataclass(frozen=True, slots=True)
class FromCall:
    """Output `output` of an earlier call of the trace, not the one just before."""

    call: int
    output: int


Wire = FromInput | FromPrevious | FromCall


@dataclass(frozen=True, slots=True)
class Use:
    """A call with its body and wires, which is written out, and grouped into segments."""

    body: str
    path: str
    wires: tuple[Wire, ...]
    trace: int
    numbers: tuple[float, ...] = ()


def expanded(uses: Sequence[Use], stacks: Sequence[Stack]) -> list[Use]:
    """The calls of the full model: walked lists written out."""
    written: list[Use] = []
    done: set[str] = set()
    for use in uses:
        stack = next((s for s in stacks if s.holds(use.path)), None)
        if stack is None or not stack.shortened:
            written.append(use)
        elif stack.prefix not in done:
            done.add(stack.prefix)
            written += _written_out(stack, uses)
    return written


def _written_out(stack: Stack, uses: Sequence[Use]) -> list[Use]:
    walked = [use for use in uses if stack.holds(use.path)]
    if [use.path for use in walked] != [stack.block(p) for p in stack.walk]:
        raise NotFoldable(f"the blocks of {stack.path} do not run one after another")
    if [use.trace for use in walked] != list(range(walked[0].trace, walked[0].trace + len(walked))):
        raise NotFoldable(f"other blocks run between those of {stack.path}")
    by_step: dict[tuple[int | None, int], Use] = {}
    second: Use | None = None
    before: int | None = None
    for position, use in zip(stack.walk, walked, strict=True):
        step = (before, stack.classes[position])
        known = by_step.setdefault(step, use)
        if known.numbers != use.numbers:
            raise NotFoldable(f"{known.path} and {use.path} look alike but compute with different numbers")
        if (known.body, known.wires) != (use.body, use.wires) and not _same_entry(known, use):
            if known is walked[1] and _is_second(known, use, stack, len(walked)):
                second, by_step[step] = known, use
                before = stack.classes[position]
                continue
            raise NotFoldable(f"{known.path} and {use.path} look alike but compute different things")
        before = stack.classes[position]
    steps = zip((None, *stack.classes), stack.classes, strict=False)
    written = [by_step[step] for step in steps]
    if second is not None:
        written[1] = second
    return [replace(use, path=stack.block(position)) for position, use in enumerate(written)]


def _is_second(known: Use, use: Use, stack: Stack, walked: int) -> bool:
    """Whether the second block stands apart only because it reads, of the first, what later ones read of its like: in
    `x = x + block(x)`, the sum belongs to the block that follows, and the second adds to what the first was given. Two
    more blocks must agree on the rest."""
    changed = [later for first, later in zip(known.wires, use.wires, strict=False) if first != later]
    return (
        known.body == use.body
        and stack.classes[0] == stack.classes[1]
        and walked >= LONG_WALK
        and all(isinstance(wire, FromPrevious) for wire in changed)
    )


def _same_entry(known: Use, use: Use) -> bool:
    """The entry of a body whose inputs come from the same places, where "the call before" is also a call that can be
    named."""
    named = [
        [FromCall(u.trace - 1, w.output) if isinstance(w, FromPrevious) else w for w in u.wires] for u in (known, use)
    ]
    return known.body == use.body and named[0] == named[1]


def read_beyond(uses: Sequence[Use], stacks: Sequence[Stack]) -> frozenset[str]:
    """Blocks with a value that others than the next one read. For a shortened list it is not known which they are."""
    short = [stack for stack in stacks if stack.shortened]
    read = {uses[wire.call].path for use in uses for wire in use.wires if isinstance(wire, FromCall)}
    return frozenset(path for path in read if path and not any(stack.holds(path) for stack in short))


def assembled(
    graph: Graph, calls: Sequence[Use], bodies: Mapping[str, Body], traced: Sequence[Use], kept: Set[str]
) -> Fold:
    """The calls grouped into segments, with their wires resolved. Calls that are `kept` end a segment, or are in its
    last round."""
    spans = _spans(calls, kept)
    place = {
        _name(calls[start + offset]): (number, offset % period, offset >= period * (repeats - 1))
        for number, (start, period, repeats) in enumerate(spans)
        for offset in range(period * repeats)
    }

    def source(wire: Wire) -> Source:
        if not isinstance(wire, FromCall):
            return wire
        segment, position, last = place[_name(traced[wire.call])]
        if not last:
            raise NotFoldable(f"a value of {traced[wire.call].path} skips over blocks that are traced for others")
        return FromSegment(segment, position, wire.output)

    def resolved(use: Use) -> tuple[Source, ...]:
        return tuple(source(wire) for wire in use.wires)

    kinds = {(use.body, use.numbers) for use in calls}
    differing = {body for body, times in Counter(body for body, _ in kinds).items() if times > 1}
    segments = []
    for start, period, repeats in spans:
        members = calls[start : start + period * repeats]
        looping = members[period] if repeats > 1 else members[0]
        segments.append(
            Segment(
                period=tuple(use.body for use in members[:period]),
                paths=tuple(use.path for use in members),
                entry=resolved(members[0]),
                wires=(resolved(looping), *(resolved(use) for use in members[1:period])),
                glue=not members[0].path,
                numbers=tuple(use.numbers for use in members) if any(use.body in differing for use in members) else (),
            )
        )
    used = {use.body for use in calls}
    return Fold(
        bodies=tuple(body for name, body in bodies.items() if name in used),
        segments=tuple(segments),
        inputs=tuple((item, graph.types[item.value]) for item in graph.inputs),
        outputs=tuple(source(wire) for wire in _outputs(graph, calls[-1], bodies)),
        loss=None if graph.loss is None else graph.outputs.index(graph.loss),
    )


def _name(use: Use) -> str:
    return use.path or f"glue {use.trace}"


def _siblings(paths: Sequence[str]) -> int:
    """How many of the first blocks are counted by one number of their paths: where another list follows, blocks that
    are alike are a segment of their own."""
    return max((len(counting(paths, before, after)) for before, after in counted_by(paths[0])), default=1)


def _spans(calls: Sequence[Use], kept: Set[str]) -> list[tuple[int, int, int]]:
    """Segments as (start, period, repeats)."""
    spans: list[tuple[int, int, int]] = []
    start = 0
    while start < len(calls):
        run = next((n for n, use in enumerate(calls[start:]) if not use.path), len(calls) - start)
        paths = [use.path for use in calls[start : start + run]]
        best = (1, 1)
        for period in range(1, run // 2 + 1):
            repeats = _repeats(calls[start : start + run], period, kept)
            if repeats > 1:
                repeats = min(repeats, *(_siblings(paths[offset::period]) for offset in range(period)))
            if repeats > 1 and period * repeats > best[0] * best[1]:
                best = (period, repeats)
        spans.append((start, *best))
        start += best[0] * best[1]
    return spans


def _repeats(calls: Sequence[Use], period: int, kept: Set[str]) -> int:
    """The number of repeats of the first `period` calls. The very first call may be wired otherwise: it is the
    entry."""
    length = period
    while length < len(calls):
        now, then = calls[length], calls[length - period]
        if length % period == 0 and any(call.path in kept for call in calls[length - period : length]):
            break
        if now.body != then.body or (length > period and now.wires != then.wires):
            break
        length += 1
    return length // period


def _outputs(graph: Graph, last: Use, bodies: Mapping[str, Body]) -> tuple[Wire, ...]:
    """The sources of the model's outputs: the closing glue, whose body passes them on in the order of the graph."""
    passed = bodies[last.body].graph.outputs
    if len(passed) != len(graph.outputs):
        raise NotFoldable("an output of the model is computed before its last glue")
    return tuple(FromPrevious(index) for index in range(len(passed)))
