"""The loss: the calls of a fold one after the other, blocks of a scan in `jax.lax.scan`."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from functools import cached_property
from itertools import groupby

from meshwright.backends.jax_.emit.model import changes, draws, invoked, rest_paths
from meshwright.backends.jax_.emit.printed.bodies import Printed, PrintedBody
from meshwright.backends.jax_.emit.printed.dialect import CHANGED, KEY, PARAMS
from meshwright.backends.jax_.emit.recompute import inputs_that_wait, keeps
from meshwright.backends.jax_.emit.shardings import Shardings
from meshwright.backends.printing.naming import free
from meshwright.backends.printing.wires import At, Wires, wires_of
from meshwright.ir.errors import EmissionPrinted
from meshwright.ir.graph.calls import Scanned
from meshwright.ir.graph.fold import Call
from meshwright.ir.quoting import literal

CARRIED = "x"
"""What goes from block to block."""


@dataclass
class Pass:
    """The forward pass of a whole model."""

    printed: Printed
    shardings: Shardings
    names: dict[At, str] = field(default_factory=dict)

    @cached_property
    def calls(self) -> tuple[Call, ...]:
        return tuple(self.printed.subject.fold.calls())

    @cached_property
    def wires(self) -> Wires:
        return wires_of(self.printed.subject.fold)

    def lines(self) -> Iterator[str]:
        """The statements, and the return."""
        for (scan, _), run in groupby(
            range(len(self.calls)), key=lambda number: (self.scan_of(number), self.again(number))
        ):
            numbers = list(run)
            if scan is None:
                yield from (line for number in numbers for line in self.call(number))
            else:
                yield from self.scanned(self.scan_at(numbers[0]), numbers)
        loss, subject = self.name(self.wires.results[self.printed.subject.fold.loss or 0]), self.printed.subject
        held = 'rest["held"]' if draws(subject) else "rest"
        updated = any(body.updates for body in subject.program.bodies)
        left = f"tree_map_with_path(lambda keys, _: left[path_of(keys)], {held})" if updated else held
        if draws(subject):
            yield 'rngs = {**rngs, "count": rngs["count"] + 1}'
            own = bool(rest_paths(invoked(subject)))
            left = f'{{"held": {left}, "rngs": rngs}}' if own else '{"rngs": rngs}'
        yield f"return {loss}{f', {left}' * changes(subject)}"

    def scan_of(self, number: int) -> str | None:
        """The place of the loop that a call is a run of."""
        scan = self.shardings.scan(self.calls[number].path)
        return scan.place if scan is not None else None

    def scan_at(self, number: int) -> Scanned:
        scan = self.shardings.scan(self.calls[number].path)
        assert scan is not None
        return scan

    def body(self, number: int) -> PrintedBody:
        return self.printed.bodies[self.calls[number].body.name]

    def name(self, at: At | str) -> str:
        return f"batch[{literal(at)}]" if isinstance(at, str) else self.names[at]

    # calls

    def call(self, number: int) -> Iterator[str]:
        """The statement of a call, and what becomes of the buffers that it changes."""
        call = self.calls[number]
        own = f"inside({PARAMS}, {literal(f'{call.path}.')})" if call.path else PARAMS
        key = [f"jax.random.fold_in({KEY}, {number})"] * self.body(number).draws
        given = [own, *key, *(self.name(at) for at in self.wires.sources[number])]
        made = self.made(number, {self.names[at] for at in self.read_after(number) if at in self.names})
        changed = [CHANGED] * bool(self.body(number).writes)
        yield f"{', '.join((*made, *changed))} = {self.function(number)}({', '.join(given)})"
        room = f"{call.path}." if call.path else ""
        own = f"{{{literal(room)} + path: one for path, one in {CHANGED}.items()}}" if room else CHANGED
        yield from [f"left |= {own}"] * bool(changed)

    def function(self, number: int) -> str:
        """The function of a call's body, which the backward pass may run again."""
        name = self.body(number).name
        if self.again(number):
            there = inputs_that_wait(self.body(number).piece, self.shardings)
            return f"waiting({name}, {there})" if there else f"jax.checkpoint({name})"
        piece = self.body(number).piece
        if self.shardings.gathers_again(piece):
            return f"jax.checkpoint({name}, policy=but_parameters)"
        return f"jax.checkpoint({name}, policy=but_cheap)" if keeps(piece) else name

    def again(self, number: int) -> bool:
        """Whether a call is computed again, whole."""
        piece = self.body(number).piece
        if piece.ahead is None:
            return bool(piece.plan.recompute)
        return self.calls[number].path in piece.segment.paths[: piece.ahead.first]

    def made(self, number: int, later: set[str]) -> list[str]:
        """Names for the values that a call makes."""
        call = self.calls[number]
        graph = call.body.graph
        returns = self.body(number).function.returns[: len(graph.outputs)]
        taken, found = {*self.printed.names, *later}, []
        for output, (value, name) in enumerate(zip(graph.outputs, returns, strict=True)):
            scalar, carried = not graph.types[value].shape, value in graph.differentiable
            found.append(free("loss" if scalar else CARRIED if carried else name, taken))
            self.names[number, output] = found[-1]
        return found

    def read_after(self, number: int) -> set[At]:
        """Values that later calls read, and those that the model returns."""
        later = {at for sources in self.wires.sources[number + 1 :] for at in sources if isinstance(at, tuple)}
        return {*later, *(at for at in self.wires.results if isinstance(at, tuple))}

    # loops

    def scanned(self, scan: Scanned, numbers: Sequence[int]) -> Iterator[str]:
        """The calls of a loop over stacked parameters."""
        first, last, body = numbers[0], numbers[-1], self.body(numbers[0])
        if any(self.calls[number].body is not self.calls[first].body for number in numbers):
            raise EmissionPrinted(place=f"the scan {scan.place}", cause="its blocks are of several kinds")
        outputs = range(len(self.calls[first].body.graph.outputs))
        if body.writes:
            raise EmissionPrinted(place=f"the scan {scan.place}", cause="its blocks change what is not trained")
        carried = self.carried(first)
        later = self.read_after(last)
        if any((number, output) in later for number in numbers[:-1] for output in outputs) or set(carried) != set(
            outputs
        ):
            raise EmissionPrinted(
                place=f"the scan {scan.place}", cause="something reads what its blocks give one by one"
            )
        begins = [self.name(self.wires.sources[first][carried[output]]) for output in outputs]
        inner = self.made(last, {self.names[at] for at in later if at in self.names})
        given = [
            inner[next(output for output, slot in carried.items() if slot == at)]
            if at in carried.values()
            else self.name(source)
            for at, source in enumerate(self.wires.sources[first])
        ]
        several = len(inner) > 1
        name = free(f"one_of_{body.name.removesuffix('_forward')}", set(self.printed.names))
        carry, start = (f"({', '.join(one)})" if several else one[0] for one in (inner, begins))
        yield ""
        own, kind = ("*own", "Any") if body.draws else ("own", "Params")
        yield f"def {name}({'carry' if several else carry}: Any, own: {kind}) -> tuple[Any, None]:"
        yield from [f"    {carry} = carry"] * several
        yield f"    return {self.function(first)}({', '.join([own, *given])}), None"
        yield ""
        stacked = self.stacked(scan, numbers)
        if body.draws:
            stacked = f"({stacked}, jax.random.split(jax.random.fold_in({KEY}, {first}), {len(numbers)}))"
        yield f"{carry}, _ = jax.lax.scan({name}, {start}, {stacked})"

    def carried(self, first: int) -> Mapping[int, int]:
        """Of every output of a loop's block that the next one reads, the input that it is there."""
        around = [at for at in range(len(self.calls)) if self.scan_of(at) == self.scan_of(first)]
        found: dict[int, int] = {}
        for at, source in enumerate(self.wires.sources[around[1]] if len(around) > 1 else ()):
            if isinstance(source, tuple) and source[0] == around[0]:
                found[source[1]] = at
        return found

    def stacked(self, scan: Scanned, numbers: Sequence[int]) -> str:
        """The stacked parameters of some runs of a loop, by their paths in a block, as code."""
        around = [at for at in range(len(self.calls)) if self.scan_of(at) == scan.place]
        whole = _stacked(scan)
        if len(numbers) == len(around):
            return whole
        first = around.index(numbers[0])
        return f"jax.tree.map(lambda rows: rows[{first}:{first + len(numbers)}], {whole})"


def _stacked(scan: Scanned) -> str:
    """The stacked parameters of a loop, by their paths in a block, as code."""
    paths = {own: stacked for own, (_, stacked) in scan.operands.items()}
    rooms = {stacked.removesuffix(own) for own, stacked in paths.items() if stacked.endswith(own)}
    if len(rooms) == 1 and all(stacked.endswith(own) for own, stacked in paths.items()) and (room := rooms.pop()):
        return f"inside({PARAMS}, {literal(room)})"
    each = (f"{literal(own)}: {PARAMS}[{literal(stacked)}]" for own, stacked in paths.items())
    return f"{{{', '.join(each)}}}"
