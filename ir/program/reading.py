"""Programs read from their text form."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass
from math import inf
from typing import TypeVar

from meshwright.ir.decisions.scan import Scanner
from meshwright.ir.decisions.text import read_mesh, read_placement, read_stage
from meshwright.ir.graph.graph import Attr, Type, Update
from meshwright.ir.program.crossing import Transfer
from meshwright.ir.program.program import (
    Action,
    Add,
    BodyProgram,
    Compute,
    Entry,
    Gradient,
    Kept,
    Kernels,
    Local,
    Move,
    ParamSlot,
    Program,
    Ring,
    Run,
    Stage,
    Statement,
    Tie,
    Zero,
)
from meshwright.ir.program.text import LISTS, MARKS, NAMED
from meshwright.ir.rules.base import Signature
from meshwright.ir.sharding.adjoint import Strategy
from meshwright.ir.sharding.reshard import Step
from meshwright.ir.target.workload import Workload

T = TypeVar("T")


def parse_program(text: str) -> Program:
    """Read what `program_text` writes. Raises `PlanSyntax`."""
    scanner = Scanner(text)
    scanner.expect("program")
    scanner.expect("x")
    microbatches = scanner.natural()
    scanner.end_line()
    workload = next(_repeated(scanner, "workload", _read_workload), None)
    stages = tuple(_repeated(scanner, "stage", _read_stage))
    transfers = tuple(_repeated(scanner, "transfer", _read_transfer))
    actions = tuple(_repeated(scanner, "actions", _read_actions))
    ties = tuple(_repeated(scanner, "tie", _read_tie))
    entries = tuple(_repeated(scanner, "entry", _read_entry))
    bodies = tuple(_repeated(scanner, "body", lambda _: _BodyReader(scanner).body()))
    scanner.finish()
    return Program(bodies, stages, transfers, actions, ties, entries, microbatches, workload)


def _repeated(scanner: Scanner, keyword: str, read: Callable[[Scanner], T]) -> Iterator[T]:
    while scanner.accept(keyword):
        yield read(scanner)


def _read_workload(scanner: Scanner) -> Workload:
    workload = scanner.parsed(Workload.parse, r"[^\n]*", "a workload")
    scanner.end_line()
    return workload


def _read_stage(scanner: Scanner) -> Stage:
    first, last, mesh, ranks = read_stage(scanner)
    scanner.end_line()
    return Stage(mesh, ranks, tuple(_repeated(scanner, "run", _read_run)), first, last)


def _read_run(scanner: Scanner) -> Run:
    programs = scanner.listed(lambda: scanner.word("the name of a body program"))
    scanner.expect("x")
    repeats = scanner.natural()
    scanner.expect("at")
    call = scanner.natural()
    scanner.end_line()
    return Run(programs, repeats, call)


def _read_transfer(scanner: Scanner) -> Transfer:
    call, output = _pair(scanner)
    scanner.expect("stage")
    from_stage = scanner.natural()
    scanner.expect("->")
    to_stage = scanner.natural()
    type_, source = read_type(scanner), read_placement(scanner)
    scanner.expect("->")
    target = read_placement(scanner)
    differentiable = scanner.accept("grad")
    waiting = scanner.listed(lambda: scanner.word("an axis")) if scanner.accept("waiting") else ()
    scanner.end_line()
    return Transfer(call, output, from_stage, to_stage, type_, source, target, differentiable, waiting)


def _pair(scanner: Scanner) -> tuple[int, int]:
    first = scanner.natural()
    scanner.expect(".")
    return first, scanner.natural()


_ACTION = r"(?P<stage>\d+)(?P<kind>(?:send_|recv_)?[A-Z])(?P<mb>\d+)(?:[<>](?P<peer>\d+))?(?=\s|$)|(?P<word>[a-z]+)"


def _read_actions(scanner: Scanner) -> tuple[tuple[int, ...], tuple[Action, ...]]:
    scanner.expect("ranks")
    ranks = scanner.ranges()
    scanner.expect(":")
    actions = []
    while found := scanner.look(_ACTION):
        scanner.take(_ACTION, "an action")
        if found["word"]:
            actions.append(Action(found["word"]))
        else:
            actions.append(Action(found["kind"], int(found["stage"]), int(found["mb"]), int(found["peer"] or -1)))
    scanner.end_line()
    return ranks, tuple(actions)


def _read_tie(scanner: Scanner) -> Tie:
    path = scanner.string("a parameter's path")
    scanner.expect("held")
    holders = scanner.listed(lambda: _pair(scanner)) if scanner.look("[0-9]") else ()
    scanner.end_line()
    return Tie(path, holders)


def _read_entry(scanner: Scanner) -> Entry:
    name, type_, placement = scanner.value(), read_type(scanner), read_placement(scanner)
    scanner.expect("on")
    mesh = read_mesh(scanner)
    scanner.end_line()
    return Entry(name, type_, placement, mesh)


def read_type(scanner: Scanner) -> Type:
    """A shape with its dtype, as `str(type)` writes it."""
    dtype = scanner.take(r"\w+", "a dtype")
    scanner.expect("[")
    return Type(scanner.listed_until(scanner.natural, "]"), dtype)


@dataclass(slots=True)
class _Ports:
    names: list[str]
    grads: list[str | None]


class _BodyReader:
    """Reads one body program; the locals come first, because operands are typed by them."""

    def __init__(self, scanner: Scanner) -> None:
        self.scanner = scanner
        self.locals: dict[str, Local] = {}

    def body(self) -> BodyProgram:
        scanner = self.scanner
        name = scanner.word("the name of a body program")
        scanner.expect("for")
        body = scanner.word("the name of a body")
        scanner.expect("on")
        mesh = read_mesh(scanner)
        scanner.expect("by")
        style, device, attention = (scanner.word(what) for what in ("a style", "a device", "a kind of attention"))
        fused_loss = scanner.accept("fused_loss")
        copied = scanner.word("a precision") if scanner.accept("copied") else ""
        kernels = Kernels(style, device, attention, fused_loss, copied)
        scanner.end_line()
        self.locals = dict(_repeated(scanner, "local", self.local))
        inputs, outputs = self.ports("input"), self.ports("output")
        params = tuple(_repeated(scanner, "param", self.param))
        kept = tuple(_repeated(scanner, "kept", self.kept))
        updates = tuple(_repeated(scanner, "update", self.update))
        forward, backward, sync, publish = (self.statements(title) for title in LISTS)
        return BodyProgram(
            name=name,
            body=body,
            mesh=mesh,
            locals=self.locals,
            inputs=tuple(inputs.names),
            outputs=tuple(outputs.names),
            params=params,
            forward=forward,
            backward=backward,
            output_grads=tuple(outputs.grads),
            input_grads=tuple(inputs.grads),
            kept=kept,
            updates=updates,
            sync=sync,
            publish=publish,
            kernels=kernels,
        )

    def local(self, scanner: Scanner) -> tuple[str, Local]:
        name = scanner.value()
        local = Local(read_type(scanner), read_placement(scanner))
        scanner.end_line()
        return name, local

    def ports(self, keyword: str) -> _Ports:
        ports = _Ports([], [])
        while self.scanner.accept(keyword):
            ports.names.append(self.scanner.value())
            ports.grads.append(self.optional("grad"))
            self.scanner.end_line()
        return ports

    def optional(self, key: str) -> str | None:
        return self.scanner.value() if self.scanner.accept(key) else None

    def param(self, scanner: Scanner) -> ParamSlot:
        path = scanner.string("a parameter's path")
        scanner.expect("value")
        value = scanner.value()
        scanner.expect("stored")
        stored = scanner.value()
        grad, synced, updated, published, lent = map(self.optional, NAMED)
        scanner.expect("grads")
        grads = read_placement(scanner)
        scanner.expect("optimizer")
        optimizer = read_placement(scanner)
        buffer, host = map(scanner.accept, MARKS)
        borrowed = scanner.word("the name of a body") if scanner.accept("borrowed") else None
        scanner.end_line()
        after = (grad, synced, updated, published, buffer, host, lent, borrowed)
        return ParamSlot(path, value, stored, grads, optimizer, *after)

    def kept(self, scanner: Scanner) -> Kept:
        kept = Kept(scanner.value(), scanner.natural(), scanner.accept("host"))
        scanner.end_line()
        return kept

    def update(self, scanner: Scanner) -> Update:
        path = scanner.string("a buffer's path")
        scanner.expect("=")
        value = scanner.value()
        scanner.expect("by")
        update = Update(path, value, scanner.word("a reduction"))
        scanner.end_line()
        return update

    # Statements.

    def statements(self, title: str) -> tuple[Statement, ...]:
        self.scanner.expect(title)
        self.scanner.end_line()
        found = []
        while self.scanner.look("%"):
            found.append(self.statement())
            self.scanner.end_line()
        return tuple(found)

    def statement(self) -> Statement:
        scanner = self.scanner
        results = scanner.listed(scanner.value)
        scanner.expect("=")
        if scanner.look(r"0\s*(\n|\Z)"):
            scanner.natural()
            return Zero(results[0])
        if scanner.look("%"):
            operands = [scanner.value()]
            while scanner.accept("+"):
                operands.append(scanner.value())
            return Add(tuple(operands), results[0])
        if scanner.look(_STEP):
            return self.move(results[0])
        return self.operator(results)

    def move(self, result: str) -> Move:
        scanner = self.scanner
        step = scanner.parsed(Step.parse, _STEP, "a step of a reshard")
        operand = scanner.value()
        scanner.expect("for")
        return Move(step, operand, result, scanner.word("a reason"))

    def operator(self, results: tuple[str, ...]) -> Compute | Gradient | Ring:
        scanner = self.scanner
        axis = ""
        if scanner.look(r"ring\["):
            scanner.expect("ring")
            scanner.expect("[")
            axis = scanner.word("a mesh axis")
            scanner.expect("]")
        kind = scanner.word("the kind of an operator")
        backward = scanner.accept("'")
        attrs = scanner.listed_until(self.attribute, "]") if scanner.accept("[") else ()
        scanner.expect("(")
        typed = scanner.listed_until(self.operand, ")")
        grads: tuple[str | None, ...] = ()
        outputs: tuple[str, ...] = ()
        wanted: tuple[int, ...] = ()
        if backward:
            scanner.expect("grads")
            grads = scanner.listed(lambda: None if scanner.accept("0") else scanner.value())
            scanner.expect("of")
            outputs = scanner.listed(scanner.value)
            scanner.expect("wanted")
            wanted = () if scanner.accept("none") else scanner.listed(scanner.natural)
        strategy = self.strategy()
        scanner.expect("as")
        op = scanner.value()
        operands = tuple(name for name, _ in typed)
        signature = Signature(kind, tuple(type_ for _, type_ in typed), attrs)
        if axis:
            return Ring(signature, strategy, axis, operands, results, op, outputs, grads, wanted)
        if backward:
            return Gradient(signature, strategy, operands, outputs, grads, wanted, results, op)
        return Compute(signature, strategy, operands, results, op)

    def strategy(self) -> Strategy:
        if not self.scanner.accept("{"):
            return Strategy()
        strategy = self.scanner.parsed(Strategy.parse, r"[^}\n]*", "a strategy, such as dp=d0")
        self.scanner.expect("}")
        return strategy

    def operand(self) -> tuple[str, Type]:
        name = self.scanner.value()
        if self.scanner.accept(":"):
            return name, read_type(self.scanner)
        if name not in self.locals:
            raise self.scanner.error(f"%{name} has no type", "declare it as a local, or write its type here")
        return name, self.locals[name].type

    def attribute(self) -> tuple[str, Attr]:
        key = self.scanner.word("an attribute, such as dim=-1")
        self.scanner.expect("=")
        return key, self.attr()

    def attr(self) -> Attr:
        scanner = self.scanner
        if scanner.look('"'):
            return scanner.string("a string")
        if scanner.accept("("):
            return scanner.listed_until(self.attr, ")")
        for word, constant in _CONSTANTS.items():
            if scanner.accept(word):
                return constant
        number = scanner.take(r"-?(?:inf|[0-9]+(?:\.[0-9]+)?(?:e[+-]?[0-9]+)?)", "an attribute")
        if number.endswith("inf"):
            return -inf if number.startswith("-") else inf
        return float(number) if set(".e") & set(number) else int(number)


_CONSTANTS: dict[str, Attr] = {"true": True, "false": False, "none": None}
_STEP = r"[a-z_]+\(\w+(?:\.\w+)*(?:,[^%\n]*)?\)(?= *%)"
