"""Reading the text forms of graphs and folds: a tokenizer and a recursive-descent parser.

`meshwright.ir.graph.text` has the grammar. `_tokens` cuts a text into tokens that know their line and column; `_Reader`
has one method per line of the grammar. Only the grammar is checked here, with errors that name line and column: `Graph`
and `Fold` check themselves when they are built.
"""

from __future__ import annotations

import json
import re
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from math import inf
from typing import TypeVar

from meshwright.ir.errors import GraphSyntax
from meshwright.ir.graph.fold import Body, Fold, FromInput, FromPrevious, FromSegment, Segment, Source
from meshwright.ir.graph.graph import Attr, Graph, Input, Op, Param, Type, Update

PARAM_FLAGS = {
    "param": (False, True),
    "frozen": (False, False),
    "buffer": (True, False),
    "buffer_grad": (True, True),
}
"""(buffer, requires_grad) by the keyword of a parameter's line."""

_STRING = r'"(?:[^"\\\n]|\\.)*"'
_TOKEN = re.compile(
    rf"""
    (?P<space>  [ \t\r]+ | \#[^\n]* )
  | (?P<line>   \n )
  | (?P<string> {_STRING} )
  | (?P<value>  % (?: [A-Za-z0-9_.]+ | {_STRING} ) )
  | (?P<module> @ (?: [A-Za-z0-9_.]+ | {_STRING} ) )
  | (?P<source> < (?: [^>"\n]+ | {_STRING} ) > )
  | (?P<number> -? (?: inf\b | [0-9]+ (?: \.[0-9]+ )? (?: e[+-]?[0-9]+ )? ) )
  | (?P<word>   [A-Za-z_][A-Za-z0-9_]* (?: :: [A-Za-z0-9_]+ )* )
  | (?P<mark>   \.\. | [][(){{}}=,:.-] )
    """,
    re.VERBOSE,
)

_CONSTANTS: dict[str, Attr] = {"true": True, "false": False, "none": None}

T = TypeVar("T")


@dataclass(frozen=True, slots=True)
class _Token:
    kind: str
    text: str
    line: int
    column: int

    def __str__(self) -> str:
        return "the end of the line" if self.kind in ("line", "end") else repr(self.text)


def parse_graph(text: str) -> Graph:
    """Read what `graph_text` writes. Raises `GraphSyntax`, or what `Graph` itself refuses."""
    reader = _Reader(text)
    reader.line("graph")
    graph = reader.graph()
    reader.finish()
    return graph


def parse_fold(text: str) -> Fold:
    """Read what `fold_text` writes. Raises `GraphSyntax`, or what `Fold` itself refuses."""
    reader = _Reader(text)
    reader.line("fold")
    fold = reader.fold()
    reader.finish()
    return fold


def _tokens(text: str) -> Iterator[_Token]:
    line, start, at = 1, 0, 0
    while at < len(text):
        found = _TOKEN.match(text, at)
        if not found:
            raise _error(
                line, at - start + 1, f"cannot read {text[at]!r}", "see the grammar in meshwright.ir.graph.text"
            )
        kind = str(found.lastgroup)
        if kind != "space":
            yield _Token(kind, found[0], line, at - start + 1)
        at = found.end()
        if kind == "line":
            line, start = line + 1, at
    yield _Token("line", "", line, at - start + 1)
    yield _Token("end", "", line, at - start + 1)


def _error(line: int, column: int, cause: str, fix: str) -> GraphSyntax:
    return GraphSyntax(place=f"line {line}, column {column}", cause=cause, fix=fix)


class _Reader:
    """A recursive-descent parser over the tokens of one text."""

    def __init__(self, text: str) -> None:
        self.tokens = tuple(_tokens(text))
        self.at = 0

    # Tokens.

    @property
    def next(self) -> _Token:
        return self.tokens[self.at]

    def refuse(self, wanted: str) -> GraphSyntax:
        return _error(self.next.line, self.next.column, f"found {self.next}", f"write {wanted}")

    def take(self, kind: str, wanted: str) -> str:
        if self.next.kind != kind:
            raise self.refuse(wanted)
        self.at += 1
        return self.tokens[self.at - 1].text

    def accept(self, *texts: str) -> bool:
        """Take these words or marks if they come next. Tokens of other kinds never have the same text."""
        ahead = self.tokens[self.at : self.at + len(texts)]
        found = tuple(token.text for token in ahead) == texts
        self.at += len(texts) if found else 0
        return found

    def expect(self, text: str) -> None:
        if not self.accept(text):
            raise self.refuse(repr(text))

    def skip_blank(self) -> None:
        while self.next.kind == "line":
            self.at += 1

    def end_line(self) -> None:
        self.take("line", "nothing more on this line")
        self.skip_blank()

    def line(self, word: str) -> None:
        self.skip_blank()
        self.expect(word)
        self.end_line()

    def finish(self) -> None:
        if self.next.kind != "end":
            raise self.refuse("a statement of the grammar in meshwright.ir.graph.text")

    # Names and numbers.

    def string(self, wanted: str = "a string") -> str:
        return self.unquoted(self.take("string", wanted))

    def unquoted(self, text: str) -> str:
        """The name in the token that was just taken."""
        if not text.startswith('"'):
            return text
        try:
            return str(json.loads(text, strict=False))
        except ValueError:
            self.at -= 1
            raise self.refuse("a JSON string") from None

    def word(self, wanted: str) -> str:
        return self.string() if self.next.kind == "string" else self.take("word", wanted)

    def value(self) -> str:
        return self.unquoted(self.take("value", "a value, such as %x")[1:])

    def natural(self, wanted: str = "a number of at least 0") -> int:
        token = self.next
        if not token.text.isdecimal():
            raise self.refuse(wanted)
        return int(self.take("number", wanted))

    def number(self) -> int | float:
        text = self.take("number", "an attribute")
        if text.endswith("inf"):
            return -inf if text.startswith("-") else inf
        return float(text) if re.search("[.e]", text) else int(text)

    def listed(self, item: Callable[[], T], close: str | None = None) -> tuple[T, ...]:
        """Items between commas, up to a closing mark (taken), or the end of the line (left)."""
        items: list[T] = []

        def closed() -> bool:
            return self.accept(close) if close else self.next.kind == "line"

        while not closed():
            if items:
                if not self.accept(","):
                    raise self.refuse(f"',' or {close!r}" if close else "',' or the end of the line")
                if closed():
                    break
            items.append(item())
        return tuple(items)

    # Graphs.

    def graph(self) -> Graph:
        parts = _Parts()
        while self.statement(parts):
            self.end_line()
        return parts.graph()

    def statement(self, parts: _Parts) -> bool:
        """Read one statement; None if no statement follows."""
        if self.next.kind == "value":
            self.op(parts)
        elif self.accept("input"):
            item, type_ = self.input()
            parts.types[item.value] = type_
            parts.inputs.append(item)
        elif self.next.text in PARAM_FLAGS:
            self.param(parts)
        elif self.accept("update"):
            self.update(parts)
        elif self.accept("output"):
            parts.outputs += self.listed(self.value)
        elif self.accept("loss"):
            parts.loss = self.value()
        else:
            return False
        return True

    def typed(self) -> tuple[str, Type]:
        value = self.value()
        self.expect(":")
        dtype = self.take("word", "a dtype")
        self.expect("[")
        return value, Type(self.listed(self.natural, "]"), dtype)

    def input(self) -> tuple[Input, Type]:
        value, type_ = self.typed()
        labels = self.listed(self.label, ")") if self.accept("(") else ()
        return Input(value, labels, self.accept("grad")), type_

    def label(self) -> str:
        return "" if self.accept("-") else self.word("a label or -")

    def param(self, parts: _Parts) -> None:
        buffer, requires_grad = PARAM_FLAGS[self.take("word", "param")]
        value, type_ = self.typed()
        self.expect("=")
        paths = self.listed(self.string)
        if not paths:
            raise self.refuse('a path, such as "embed.weight"')
        parts.types[value] = type_
        parts.params.append(Param(value, paths, requires_grad, buffer))

    def update(self, parts: _Parts) -> None:
        path = self.string("a buffer's path")
        self.expect("=")
        value = self.value()
        parts.updates.append(Update(path, value, self.word("a reduction") if self.accept("by") else "same"))

    def op(self, parts: _Parts) -> None:
        results = [self.typed()]
        while self.accept(","):
            results.append(self.typed())
        self.expect("=")
        kind = self.word("the kind of an operator")
        self.expect("(")
        operands = self.listed(self.value, ")")
        attrs = self.listed(self.pair, "}") if self.accept("{") else ()
        module = self.unquoted(self.take("module", "@module")[1:]) if self.next.kind == "module" else ""
        source = self.unquoted(self.take("source", "<source>")[1:-1]) if self.next.kind == "source" else ""
        no_grad = self.accept("no_grad")
        alias = self.natural("the index of an operand") if self.accept("alias", "=") else None
        parts.types.update(results)
        names = tuple(value for value, _ in results)
        parts.ops.append(Op(kind, operands, names, attrs, module, source, no_grad, alias))

    def pair(self) -> tuple[str, Attr]:
        key = self.word("an attribute, such as dim=-1")
        self.expect("=")
        return key, self.attr()

    def attr(self) -> Attr:
        if self.next.kind == "string":
            return self.string()
        if self.accept("("):
            return self.listed(self.attr, ")")
        for word, constant in _CONSTANTS.items():
            if self.accept(word):
                return constant
        return self.number()

    # Folds.

    def fold(self) -> Fold:
        inputs: list[tuple[Input, Type]] = []
        bodies: list[Body] = []
        segments: list[Segment] = []
        while self.accept("input"):
            inputs.append(self.input())
            self.end_line()
        while self.accept("body"):
            bodies.append(self.body())
        while self.accept("segment"):
            segments.append(self.segment(len(segments)))
        self.expect("output")
        outputs = self.listed(self.source)
        self.end_line()
        loss = self.natural("the index of an output") if self.accept("loss") else None
        self.skip_blank()
        return Fold(tuple(bodies), tuple(segments), tuple(inputs), outputs, loss)

    def body(self) -> Body:
        name = self.word("the name of a body")
        class_ = self.string("the name of a class") if self.accept("class") else ""
        self.end_line()
        return Body(name, self.graph(), class_)

    def segment(self, index: int) -> Segment:
        if self.natural() != index:
            self.at -= 1
            raise self.refuse(f"{index}: segments are numbered in order")
        glue = self.accept("glue")
        period = [self.word("the name of a body")]
        while self.accept(","):
            period.append(self.word("the name of a body"))
        self.expect("x")
        repeats = self.next
        count = self.natural() * len(period)
        self.end_line()
        self.expect("paths")
        paths = tuple(path for run in self.listed(self.paths) for path in run)
        if len(paths) != count:
            fix = "name every instance of every repeat"
            raise _error(repeats.line, repeats.column, f"{repeats.text} repeats, but {len(paths)} paths", fix)
        self.end_line()
        self.expect("entry")
        entry = self.listed(self.source)
        self.end_line()
        return Segment(tuple(period), paths, entry, tuple(self.wires()), glue, self.numbers())

    def numbers(self) -> tuple[tuple[float, ...], ...]:
        """Read the open numbers of every call, if they are given."""
        if not self.accept("numbers"):
            return ()
        found = self.listed(self.call_numbers)
        self.end_line()
        return found

    def call_numbers(self) -> tuple[float, ...]:
        self.expect("(")
        return tuple(map(float, self.listed(self.number, ")")))

    def wires(self) -> Iterator[tuple[Source, ...]]:
        position = 0
        while self.accept("wire"):
            if self.natural() != position:
                self.at -= 1
                raise self.refuse(f"{position}: wires are numbered in order")
            yield self.listed(self.source)
            self.end_line()
            position += 1

    def paths(self) -> tuple[str, ...]:
        stem = self.string("a module path")
        if not self.accept("["):
            return (stem,)
        first = self.natural()
        self.expect("..")
        last = self.natural()
        self.expect("]")
        return tuple(f"{stem}{number}" for number in range(first, last + 1))

    def source(self) -> Source:
        if self.next.kind == "value":
            return FromInput(self.value())
        if self.accept("previous", "."):
            return FromPrevious(self.natural())
        if not self.accept("segment"):
            raise self.refuse("a source: %input, previous.0 or segment 0[0].0")
        segment = self.natural()
        self.expect("[")
        position = self.natural()
        self.expect("]")
        self.expect(".")
        return FromSegment(segment, position, self.natural())


class _Parts:
    """The parts of a graph while it is read."""

    def __init__(self) -> None:
        self.types: dict[str, Type] = {}
        self.inputs: list[Input] = []
        self.params: list[Param] = []
        self.ops: list[Op] = []
        self.outputs: list[str] = []
        self.updates: list[Update] = []
        self.loss: str | None = None

    def graph(self) -> Graph:
        return Graph(
            types=self.types,
            inputs=tuple(self.inputs),
            params=tuple(self.params),
            ops=tuple(self.ops),
            outputs=tuple(self.outputs),
            updates=tuple(self.updates),
            loss=self.loss,
        )
