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
    each."""
    yield from listed(deep, f"{function}(", arguments, f"){after}")


def listed(deep: int, before: str, entries: list[str], after: str) -> Iterator[str]:
    """What stands between brackets, on one line with what is around them, on a line of its own, or an entry a line."""
    indent, line = " " * deep, ", ".join(entries)
    if deep + len(before) + len(line) + len(after) <= WIDTH:
        yield f"{indent}{before}{line}{after}"
        return
    bracket, on = before[-1], before[-2:-1]
    behind_something = on.isalnum() or on in tuple('_)]}"')
    yield f"{indent}{before}"
    if bracket == "(" and behind_something and deep + 4 + len(line) <= WIDTH:
        yield f"{indent}    {line}"
    elif len(entries) == 1 and not line.endswith(",") and (" for " in line or behind_something != (bracket == "(")):
        yield from broken(deep + 4, line, "")  # a comma would make a tuple of it
    else:
        for one in entries:
            yield from broken(deep + 4, one.removesuffix(","), ",")
    yield f"{indent}{after}"


def broken(deep: int, one: str, after: str) -> Iterator[str]:
    """An expression on one line if it fits, else with what its longest brackets hold on lines of its own."""
    depth = depths(one)
    opens = [at for at, sign in enumerate(one) if sign in "([{" and depth[at] == 0]
    groups = [(at, depth.index(0, at + 1)) for at in opens]
    start, end = max(groups, key=lambda group: group[1] - group[0], default=(0, 0))
    if deep + len(one) + len(after) <= WIDTH or end - start < 3:
        yield f"{' ' * deep}{one}{after}"
    else:
        yield from listed(deep, one[: start + 1], apart(one[start + 1 : end - 1]), f"{one[end - 1 :]}{after}")


def depths(line: str) -> list[int]:
    """How many brackets are open before every sign, and behind the last one."""
    found = [0]
    for sign in line:
        found.append(found[-1] + (sign in "([{") - (sign in ")]}"))
    return found


def fitted(line: str) -> Iterator[str]:
    """A line, or, if it is too long, the arguments of the call that it ends with on lines of their own, or the terms
    that it assigns in brackets."""
    if len(line) <= WIDTH:
        yield line
        return
    deep = depths(line)
    outside = "".join(sign if depth == 0 else "." for sign, depth in zip(line, deep, strict=False))
    opened, indent = max(0, outside.rfind("(")), len(line) - len(line.lstrip())
    if opened and line.endswith(")"):
        yield from call(indent, line[indent:opened], apart(line[opened + 1 : -1]))
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
    """The texts between commas, brackets kept together; a last comma stays."""
    depth = depths(text)
    commas = [at for at, sign in enumerate(text.rstrip().removesuffix(",")) if sign == "," and depth[at] == 0]
    ends = zip([-1, *commas], [*commas, len(text)], strict=True)
    return [text[start + 1 : end].strip() for start, end in ends]


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
