"""Markup as text: elements, tables, and the one function that escapes.

`Markup` is text that is markup already; everything else is escaped where it enters an element, as content or as the
value of an attribute.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Sequence
from html import escape as _escape

VOID = frozenset(("meta", "wbr"))
_FORBIDDEN = re.compile("[\x00-\x08\x0b\x0c\x0e-\x1f\x7f-\x9f\ufdd0-\ufdef\ufffe\uffff\ud800-\udfff]")
"""Characters that HTML must not hold, not even escaped."""


class Markup(str):
    """Text that is markup."""

    __slots__ = ()


Content = str | float
Value = str | float | bool | None


def escape(text: str) -> Markup:
    """Text as content of an element, or as the value of an attribute."""
    return Markup(_escape(_FORBIDDEN.sub("\ufffd", text), quote=True))


def num(value: float) -> str:
    """A coordinate: at most two decimals."""
    return f"{value:.2f}".rstrip("0").rstrip(".")


def tag(element: str, /, *content: Content, **attributes: Value) -> Markup:
    """An element. `class_` is class, `aria_label` aria-label; attributes of None or False are left out."""
    said = "".join(
        f" {key.rstrip('_').replace('_', '-')}" + ("" if value is True else f'="{_value(value)}"')
        for key, value in attributes.items()
        if value is not None and value is not False
    )
    if element in VOID:
        return Markup(f"<{element}{said}>")
    return Markup(f"<{element}{said}>{join(content)}</{element}>")


def join(content: Iterable[Content], between: str = "") -> Markup:
    """Contents one after another."""
    return Markup(between.join(map(_text, content)))


def _value(value: str | float) -> str:
    return escape(value) if isinstance(value, str) else num(value)


def _text(value: Content) -> str:
    if isinstance(value, Markup):
        return value
    return escape(value) if isinstance(value, str) else num(value)


def breaking(text: str) -> Markup:
    """Pins and their like, which may be broken after commas and plus signs."""
    return Markup(re.sub("([,+])", r"\1" + tag("wbr"), escape(text)))


def table(caption: str, kinds: str, columns: Sequence[str], rows: Iterable[Sequence[Content]]) -> Markup:
    """A table whose first column names its rows; `kinds` has a letter for each column: w for words, n for figures. It
    scrolls by itself where it is too wide."""
    head = [tag("th", name, scope="col", class_=kind) for name, kind in zip(columns, kinds, strict=True)]
    body = [
        tag(
            "tr",
            tag("th", row[0], scope="row", class_=kinds[0]),
            *(tag("td", cell, class_=kind) for cell, kind in zip(row[1:], kinds[1:], strict=True)),
        )
        for row in rows
    ]
    made = tag("table", tag("caption", caption), tag("thead", tag("tr", *head)), tag("tbody", *body))
    return scrolling(made, caption)


def scrolling(content: Markup, label: str) -> Markup:
    """A region that scrolls sideways where it must, by keyboard too."""
    return tag("div", content, class_="scroll", role="region", aria_label=label, tabindex=0)


def section(name: str, title: str, *content: Content) -> Markup:
    """A section of the page, with its heading; `name` is its address."""
    return tag("section", tag("h2", title, id=f"{name}-h"), *content, id=name, aria_labelledby=f"{name}-h")


def details(summary: str, *content: Content) -> Markup:
    """Something to be opened."""
    return tag("details", tag("summary", summary), *content)


def drawing(name: str, title: str, told: str, width: float, height: float, *content: Content) -> Markup:
    """A drawing with its title and what it shows, in words; `name` makes its ids."""
    return tag(
        "svg",
        tag("title", title, id=f"{name}-t"),
        tag("desc", told, id=f"{name}-d"),
        *content,
        id=name,
        viewBox=f"0 0 {num(width)} {num(height)}",
        role="img",
        aria_labelledby=f"{name}-t {name}-d",
        style=f"min-width:{num(width * 0.7)}px;max-width:{num(width * 1.3)}px",
    )


def label(x: float, y: float, text: str, *, anchor: str = "start", class_: str | None = None) -> Markup:
    """Text of a drawing."""
    return tag("text", text, x=x, y=y, text_anchor=None if anchor == "start" else anchor, class_=class_)


def legend(entries: Iterable[tuple[str, str]], name: str, label: str) -> Markup:
    """Colours of the drawing of this name, each a button that shows alone what has its colour."""
    made = []
    for colour, what in entries:
        swatch = tag("span", class_=f"swatch {colour}", aria_hidden="true")
        button = tag("button", swatch, tag("span", what), type="button", aria_pressed="false", data_kind=colour)
        made.append(tag("li", button))
    return tag("ul", *made, class_="legend", aria_label=label, data_legend=name)
