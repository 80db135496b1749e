"""Text forms of graphs and folds, for `--dump-after`, tests and readers.

Writing and reading are inverse: ``parse_graph(graph_text(graph)) == graph``, and the same for folds. One operator is
one line, in running order, so that a diff of two dumps shows which operators differ. The grammar, with one statement a
line, comments from ``#`` to the end of the line, and every name that is not plain written as a JSON string:

    graph     "graph" statement*
    statement "input" typed ["(" label, … ")"] ["grad"]          label: a name, or "-" for none
            | "param" | "frozen" | "buffer"  typed "=" path, …   frozen: a parameter without gradient
            | typed, … "=" kind "(" value, … ")" ["{" key "=" attr, … "}"] ["@" module] ["<" source ">"]
              ["no_grad"] ["alias" "=" index]
            | "update" path "=" value ["by" reduction]
            | "output" value, …
            | "loss" value
    typed     value ":" dtype "[" extent, … "]"
    value     "%" name
    attr      number | string | "true" | "false" | "none" | "(" attr, … ")"

    fold      "fold" input* body* segment* "output" source, … ["loss" index]
    body      "body" name ["class" string] statement*
    segment   "segment" index ["glue"] name, … "x" repeats
              "paths" path, …                                    "layers."[0..125] stands for 126 paths
              "entry" source, …
              ("wire" position source, …)*
              ["numbers" "(" number, … ")", …]                   of every call
    source    value | "previous" "." output | "segment" index "[" position "]" "." output

    graph
      input  %tokens: i64[2, 8]  (b, s)
      param  %w: f32[16, 8] = "embed.weight", "head.weight"
      %x: f32[2, 8, 8] = embedding(%tokens, %w)  @embed <model.py:12>
      output %x

Writing is here, reading in `meshwright.ir.graph.reader`.
"""

from __future__ import annotations

import json
import re
from collections.abc import Iterator, Sequence

from meshwright.ir.graph.fold import Fold, FromInput, Segment, Source
from meshwright.ir.graph.graph import Attr, Graph, Input, Op, Type
from meshwright.ir.graph.reader import PARAM_FLAGS, parse_fold, parse_graph

__all__ = ["fold_text", "graph_text", "op_text", "parse_fold", "parse_graph"]

_PLAIN_VALUE = re.compile(r"[A-Za-z0-9_.]+")
_PLAIN_WORD = re.compile(r"[A-Za-z_]\w*(?:::\w+)*", re.ASCII)
_RESERVED = ("inf", "glue")
_PLAIN_SOURCE = re.compile(r'[^>"\n]+')


def graph_text(graph: Graph) -> str:
    """The text form of a graph."""
    return "\n".join(["graph", *("  " + line for line in _graph_lines(graph))]) + "\n"


def fold_text(fold: Fold) -> str:
    """The text form of a fold: its bodies, then their repetition and wiring."""
    lines = ["fold", *(f"  {_input_line(item, type_)}" for item, type_ in fold.inputs)]
    for body in fold.bodies:
        class_ = f"  class {_string(body.module_class)}" if body.module_class else ""
        lines.append(f"  body {_word(body.name)}{class_}")
        lines += ["    " + line for line in _graph_lines(body.graph)]
    for index, segment in enumerate(fold.segments):
        lines += ["  " + line for line in _segment_lines(index, segment)]
    lines.append(_spaced("  output", ", ".join(map(_source, fold.outputs))))
    if fold.loss is not None:
        lines.append(f"  loss {fold.loss}")
    return "\n".join(lines) + "\n"


def op_text(op: Op, types: Sequence[Type]) -> str:
    """The line of one operator, given the types of its results."""
    results = ", ".join(_typed(value, type_) for value, type_ in zip(op.results, types, strict=True))
    call = f"{_word(op.kind)}({', '.join(map(_value, op.operands))})"
    attrs = ", ".join(f"{_word(key)}={_attr(value)}" for key, value in op.attrs)
    notes = [
        f"@{_quoted_unless(_PLAIN_VALUE, op.module)}" if op.module else "",
        f"<{_quoted_unless(_PLAIN_SOURCE, op.source)}>" if op.source else "",
        "no_grad" if op.no_grad else "",
        "" if op.alias is None else f"alias={op.alias}",
    ]
    line = f"{results} = {call}" + (f" {{{attrs}}}" if attrs else "")
    return "  ".join(filter(None, (line, " ".join(filter(None, notes)))))


def _graph_lines(graph: Graph) -> Iterator[str]:
    for item in graph.inputs:
        yield _input_line(item, graph.types[item.value])
    for param in graph.params:
        yield (
            f"{_PARAM_WORD[param.buffer, param.requires_grad]:6} {_typed(param.value, graph.types[param.value])} = "
            + (", ".join(map(_string, param.paths)))
        )
    for op in graph.ops:
        yield op_text(op, graph.result_types(op))
    for update in graph.updates:
        yield f"update {_string(update.buffer)} = {_value(update.value)} by {_word(update.reduction)}"
    if graph.outputs:
        yield f"output {', '.join(map(_value, graph.outputs))}"
    if graph.loss is not None:
        yield f"loss   {_value(graph.loss)}"


_PARAM_WORD = {flags: word for word, flags in PARAM_FLAGS.items()}


def _input_line(item: Input, type_: Type) -> str:
    labels = ", ".join(_word(label) if label else "-" for label in item.labels)
    notes = " ".join(filter(None, (f"({labels})" if item.labels else "", "grad" if item.requires_grad else "")))
    return "  ".join(filter(None, (f"input  {_typed(item.value, type_)}", notes)))


def _segment_lines(index: int, segment: Segment) -> Iterator[str]:
    glue = "glue " if segment.glue else ""
    yield f"segment {index} {glue}{', '.join(map(_word, segment.period))} x {segment.repeats}"
    yield f"  paths {', '.join(_paths(segment.paths))}"
    yield _spaced("  entry", ", ".join(map(_source, segment.entry)))
    for position, sources in enumerate(segment.wires):
        yield _spaced(f"  wire {position}", ", ".join(map(_source, sources)))
    if segment.numbers:
        yield f"  numbers {', '.join(map(_attr, segment.numbers))}"


def _paths(paths: Sequence[str]) -> Iterator[str]:
    """Paths as text, with those that count up as a range."""
    start = 0
    while start < len(paths):
        stem, first = _numbered(paths[start])
        run = 1
        while first >= 0 and start + run < len(paths) and _numbered(paths[start + run]) == (stem, first + run):
            run += 1
        yield f"{_string(stem)}[{first}..{first + run - 1}]" if run > 1 else _string(paths[start])
        start += run


def _numbered(path: str) -> tuple[str, int]:
    """A path as its stem and the number at its end (as `str` would write it), or -1 if it has none."""
    found = re.fullmatch(r"(.*?)(0|[1-9][0-9]*)", path, re.DOTALL)
    return (found[1], int(found[2])) if found else (path, -1)


def _spaced(head: str, tail: str) -> str:
    return f"{head} {tail}" if tail else head


def _source(source: Source) -> str:
    return _value(source.name) if isinstance(source, FromInput) else str(source)


def _typed(value: str, type_: Type) -> str:
    return f"{_value(value)}: {type_}"


def _value(name: str) -> str:
    return f"%{_quoted_unless(_PLAIN_VALUE, name)}"


def _word(name: str) -> str:
    return _string(name) if name in _RESERVED else _quoted_unless(_PLAIN_WORD, name)


def _quoted_unless(plain: re.Pattern[str], text: str) -> str:
    return text if plain.fullmatch(text) else _string(text)


def _string(text: str) -> str:
    return json.dumps(text, ensure_ascii=False)


def _attr(value: Attr) -> str:
    if isinstance(value, tuple):
        items = ", ".join(map(_attr, value))
        return f"({items},)" if len(value) == 1 else f"({items})"
    if isinstance(value, str):
        return _string(value)
    return repr(value).lower() if value is None or isinstance(value, bool) else repr(value)
