"""The collectives of a Program as XLA executes them, by a closed list of rewrites.

    executed      what the target's library runs for a step (`Capabilities.executed`): CPUs reduce the whole for a
                  reduce-scatter
    read_whole    tokens and labels are not cut along axes that the script's batch is whole on
    at_once       a sum of a gradient over several axes may be one all-reduce over all, or one over each
    whole_sums    where the gradient of a parameter is summed step by step, every step sums the whole of it
    by_bytes      what concerns parameters, and scalars, by kind and axes in all: XLA may join them, and writes the
                  two terms of a mean as it likes

Everything else is compared one by one: kind, mesh axes, bytes of each.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass

from meshwright.backends.jax_.verify.hlo import Collective
from meshwright.ir.graph.fold import Fold, FromInput
from meshwright.ir.program.program import BodyProgram, Move, Program, Statement
from meshwright.ir.target.capabilities import Capabilities

REWRITES = ("executed", "read_whole", "at_once", "whole_sums", "by_bytes")


@dataclass(frozen=True, slots=True)
class Predicted:
    """What a step communicates: values one by one, the rest by kind and axes in bytes, and how many collectives of the
    plan are of tokens and labels, which are read whole."""

    values: Mapping[Collective, int]
    packed: Mapping[tuple[str, tuple[str, ...]], int]
    whole: int
    at_once: bool = True

    def differences(self, executed: Mapping[Collective, int]) -> Iterator[str]:
        """What was executed and is not planned, or planned and not executed."""
        left = Counter(executed)
        for key, number in sorted(self.values.items()):
            found = min(number, left[key])
            left[key] -= found
            if found < number:
                kind, axes, size = key
                yield f"{number - found} {kind} over {'.'.join(axes)} of {size} bytes are planned and not executed"
        rest: Counter[tuple[str, tuple[str, ...]]] = Counter()
        for (kind, axes, size), number in left.items():
            for each in _each(kind, axes) if self.at_once else (axes,):
                rest[kind, each] += number * size
        planned: Counter[tuple[str, tuple[str, ...]]] = Counter()
        for (kind, axes), size in self.packed.items():
            for each in _each(kind, axes) if self.at_once else (axes,):
                planned[kind, each] += size
        for where in sorted({*rest, *planned}):
            if rest[where] != planned[where]:
                kind, axes = where
                sizes = {size: n for (k, a, size), n in left.items() if (k, a) == where and n}
                said = ", ".join(f"{n} of {size}" for size, n in sorted(sizes.items())) or "none"
                yield (
                    f"{kind} over {'.'.join(axes)}: {rest[where]} bytes beside values, "
                    f"{planned[where]} planned ({said})"
                )


def predicted(program: Program, fold: Fold, target: Capabilities, rewrites: tuple[str, ...] = REWRITES) -> Predicted:
    """The collectives of one step, by these rewrites."""
    values: Counter[Collective] = Counter()
    packed: Counter[tuple[str, tuple[str, ...]]] = Counter()
    whole = 0
    calls = list(fold.calls())
    executed: Callable[[str], str] = target.executed if "executed" in rewrites else str
    for stage in program.stages:
        for number, name in stage.calls():
            body, call = program.body(name), calls[number]
            given = {
                item.value
                for item, source in zip(call.body.graph.inputs, call.sources, strict=True)
                if isinstance(source, FromInput)
            }
            summed = _summed(body) if "whole_sums" in rewrites else {}
            for statement, times in _all(body, program.microbatches):
                if not isinstance(statement, Move) or statement.step.free:
                    continue
                kind, axes = executed(statement.step.kind), tuple(sorted(statement.step.axes))
                size = int(body.nbytes[summed.get(statement.operand, statement.operand)])
                if "read_whole" in rewrites and _stem(statement.operand) in given:
                    whole += times
                elif "by_bytes" in rewrites and (
                    statement.reason not in ("value", "gradient") or body.elements[statement.operand] == 1
                ):
                    packed[kind, axes] += size * times
                else:
                    values[kind, axes, size] += times
    return Predicted(values, packed, whole, "at_once" in rewrites)


def _each(kind: str, axes: tuple[str, ...]) -> tuple[tuple[str, ...], ...]:
    """The axes of a sum one by one."""
    return tuple((axis,) for axis in axes) if kind == "all_reduce" else (axes,)


def _summed(body: BodyProgram) -> dict[str, str]:
    """For every name on the way of a gradient to where it is summed, the name that it began with."""
    found: dict[str, str] = {}
    for statement in (*body.backward, *body.sync):
        if isinstance(statement, Move) and statement.reason == "sync":
            found[statement.result] = found.setdefault(statement.operand, statement.operand)
    return found


def _all(body: BodyProgram, microbatches: int) -> Iterator[tuple[Statement, int]]:
    """All statements, and how often each runs in a step."""
    yield from ((statement, microbatches) for statement in (*body.forward, *body.backward))
    yield from ((statement, 1) for statement in (*body.sync, *body.publish))


def _stem(name: str) -> str:
    return name.partition("@")[0]
