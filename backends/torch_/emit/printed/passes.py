"""Forward passes: the calls of a fold, or of one stage of it, one after the other.

Bodies that are not repeated are functions that are called with the model; blocks are called as modules, in loops where
one call is like the other.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from functools import cached_property
from itertools import groupby

from meshwright.backends.printing.naming import free
from meshwright.backends.printing.wires import At, Wires, wires_of
from meshwright.backends.subject import Instances, Stack
from meshwright.backends.torch_.emit.printed.bodies import Printed
from meshwright.backends.torch_.emit.read.pipeline import FIRST, FOLLOWING
from meshwright.ir.graph.fold import Call
from meshwright.ir.quoting import literal

CARRIED = "x"
"""What goes from block to block."""
BLOCK = "block"


@dataclass
class Pass:
    """The forward pass of the calls from `first` to `last`, exclusive. `names` has its inputs, by where they are
    made."""

    printed: Printed
    first: int
    last: int
    names: dict[At, str] = field(default_factory=dict)
    entries: list[str] = field(default_factory=list)
    """The entries of the batch that it reads."""
    behind: set[At] = field(default_factory=set)
    """What is to lie behind what enters, for torch to find the gradients of weights apart; what does is added."""
    follows: dict[int, list[str]] = field(default_factory=dict)
    """The lines that put it there, by the call that they follow."""

    @cached_property
    def calls(self) -> tuple[Call, ...]:
        return tuple(self.printed.subject.fold.calls())

    @cached_property
    def wires(self) -> Wires:
        return wires_of(self.printed.subject.fold)

    @property
    def loss(self) -> At | str:
        return self.wires.results[self.printed.subject.fold.loss or 0]

    def name(self, at: At | str) -> str:
        if isinstance(at, str):
            if at not in self.entries:
                self.entries.append(at)
            return self.printed.entry_names[at]
        return self.names[at]

    def lines(self) -> Iterator[str]:
        """The lines of the pass, without the return."""
        steps = [(number, self.call(number)) for number in range(self.first, self.last)]
        for block, run in groupby(steps, key=lambda step: self.looped(*step)):
            members = list(run)
            if block is None or len(members) == 1:
                for number, text in members:
                    yield text.replace(f"{BLOCK}(", f"{self.module(number)}(", 1)
                    yield from self.follows.get(number, ())
            else:
                yield from self.loop([number for number, _ in members], members[0][1])

    # calls

    def call(self, number: int) -> str:
        """The statement of a call."""
        call = self.calls[number]
        body = self.printed.bodies[call.body.name]
        given = [self.name(at) for at in self.wires.sources[number]]
        made = self.made(number)
        if call.path:
            text = f"{BLOCK}({', '.join(given)})"
        else:
            own = {name: body.number(name, call.numbers) for name in body.numbers}
            named = [f"{name}={own.get(name, name)}" for name in body.given(body.function, self.printed)]
            text = f"{body.name}({', '.join(['self', *given, *named])})"
        return f"{', '.join(made)} = {text}" if made else text

    def made(self, number: int) -> list[str]:
        """Names for the values that a call makes."""
        call = self.calls[number]
        graph, returns = call.body.graph, self.printed.bodies[call.body.name].function.returns
        taken = {*self.printed.reserved, *self.printed.entry_names.values()}
        taken |= {self.names[at] for at in self.read_after(number) if at in self.names}
        found = []
        for output, (value, name) in enumerate(zip(graph.outputs, returns, strict=True)):
            scalar, carried = not graph.types[value].shape, value in graph.differentiable
            found.append(free("loss" if scalar else CARRIED if carried else name, taken))
            self.names[number, output] = found[-1]
        if self.behind:
            self.put_behind(number)
        return found

    def put_behind(self, number: int) -> None:
        """Make values of parameters alone follow the inputs."""
        call = self.calls[number]
        graph, body = call.body.graph, self.printed.bodies[call.body.name]
        given = dict(zip((item.value for item in graph.inputs), self.wires.sources[number], strict=True))
        for output, value in enumerate(graph.outputs):
            if value not in graph.differentiable:
                continue
            if self.behind.isdisjoint(given[name] for name in body.inputs_of((output,))):
                name = self.names[number, output]
                self.follows.setdefault(number, []).append(f"{name} = {FOLLOWING}.apply({name}, {FIRST})")
            self.behind.add((number, output))

    def read_after(self, number: int) -> set[At]:
        """Values that later calls read, and those that the model returns."""
        later = {at for sources in self.wires.sources[number + 1 :] for at in sources if isinstance(at, tuple)}
        return {*later, *(at for at in self.wires.results if isinstance(at, tuple))}

    # loops

    def looped(self, number: int, text: str) -> tuple[Stack, str] | None:
        """The parts that calls of blocks in a loop have in common."""
        call = self.calls[number]
        if not call.path or number in self.follows:
            return None
        return self.printed.subject.stack_of[call.path], text

    def module(self, number: int) -> str:
        return f"self.get_submodule({literal(self.calls[number].path)})"

    def loop(self, numbers: Sequence[int], text: str) -> Iterator[str]:
        paths = tuple(self.calls[number].path for number in numbers)
        stack = self.printed.subject.stack_of[paths[0]]
        here = {call.path for call in self.calls[self.first : self.last]}.intersection(stack.instances.paths)
        whole = self.first == 0 and self.last == len(self.calls)
        of = "" if whole or here != set(paths) else f"{stack.constant}[self.index]"
        first, second = (Instances.of(paths) if not of else stack.instances).loop(BLOCK, of=of)
        yield from (first, second.replace(" = model.", " = self.", 1), f"    {text}")
