"""Layout of lines of code."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence

from meshwright.ir.quoting import literal

WIDTH = 120


def indented(lines: tuple[str, ...]) -> Iterator[str]:
    for line in lines:
        yield f"    {line}"


def quoted(names: Iterable[str]) -> str:
    """Names as arguments of a call."""
    return ", ".join(map(literal, names))


def call(deep: int, function: str, arguments: list[str], after: str = "") -> Iterator[str]:
    """A call with what follows it, on one line if it fits, else with its arguments on a line of their own, or on one
    each; arguments that are calls or lists likewise."""
    indent, line = " " * deep, ", ".join(arguments)
    if deep + len(function) + len(line) + 2 + len(after) <= WIDTH:
        yield f"{indent}{function}({line}){after}"
        return
    yield f"{indent}{function}("
    if deep + 4 + len(line) <= WIDTH:
        yield f"{indent}    {line}"
    else:
        for one in arguments:
            inner, bracket, given = one.partition("(")
            if deep + 5 + len(one) <= WIDTH or not bracket:
                yield f"{indent}    {one},"
            elif one.startswith("["):
                yield f"{indent}    ["
                yield from (f"{indent}        {entry}," for entry in apart(one[1:-1]))
                yield f"{indent}    ],"
            else:
                yield from call(deep + 4, inner, apart(given.removesuffix(")")), ",")
    yield f"{indent}){after}"


def fitted(line: str) -> Iterator[str]:
    """A line, or, if it is too long, the arguments of the call that it ends with on lines of their own, or the terms
    that it assigns in brackets."""
    if len(line) <= WIDTH:
        yield line
        return
    deep = [0]
    for sign in line:
        deep.append(deep[-1] + (sign in "([{") - (sign in ")]}"))
    outside = "".join(sign if depth == 0 else "." for sign, depth in zip(line, deep, strict=False))
    opened, indent = max(0, outside.rfind("(")), len(line) - len(line.lstrip())
    if opened and line.endswith(")"):
        commas = [at for at, sign in enumerate(line) if sign == "," and at > opened and deep[at] == 1]
        ends = zip([opened, *commas], [*commas, len(line) - 1], strict=True)
        arguments = [line[start + 1 : end].strip() for start, end in ends]
        yield from call(indent, line[indent:opened], arguments)
        return
    name, equal, terms = outside.partition(" = ")
    if equal and " " in terms and "," not in terms:
        start = len(name) + len(equal)
        yield from (f"{line[:start]}(", f"{' ' * indent}    {line[start:]}", f"{' ' * indent})")
    else:
        yield line


def head(name: str, arguments: Sequence[str], result: str, deep: int = 0) -> Iterator[str]:
    """The head of a function, on as few lines as possible; `deep` is the later indentation of its lines."""
    given, width = ", ".join(arguments), WIDTH - deep
    line = f"def {name}({given}) -> {result}:"
    if len(line) <= width:
        yield line
    elif len(f"    {given}") <= width:
        yield from (f"def {name}(", f"    {given}", f") -> {result}:")
    else:
        yield from (f"def {name}(", *(f"    {argument}," for argument in arguments), f") -> {result}:")


def apart(text: str) -> list[str]:
    """The texts between commas, brackets kept together."""
    found, deep = [""], 0
    for word in text.split(", "):
        found[-1] += word if not found[-1] else f", {word}"
        deep += sum((letter in "([{") - (letter in ")]}") for letter in word)
        if deep == 0:
            found.append("")
    return found[:-1]


def wrapped(before: str, items: list[str], after: str, *, keep: bool = False) -> Iterator[str]:
    """A list on one line if it fits, without brackets unless they are to be kept; else one entry a line."""
    line = f"{before}{', '.join(items)}{after}" if keep else f"{before[:-1]}{', '.join(items)}"
    if len(line) <= WIDTH:
        yield line
        return
    indent = before[: len(before) - len(before.lstrip())]
    yield before
    for item in items:
        yield f"{indent}    {item},"
    yield f"{indent}{after}"
