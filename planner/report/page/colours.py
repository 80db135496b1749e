"""Colours of the page, for light and for dark, as data: which of them stand on which is said here, and held against the
contrast that WCAG 2.2 asks for (4.5 for text, 3 for shapes) by a test."""

from __future__ import annotations

from collections.abc import Mapping

LIGHT: Mapping[str, str] = {
    "page": "#ffffff", "raised": "#f3f5f8", "text": "#16191d", "quiet": "#4b5563", "rule": "#c3cad4",
    "link": "#1a56b0", "mark": "#b42318", "on": "#ffffff",
    "blue": "#1f5fb0", "teal": "#0b6e69", "green": "#2e7031", "pink": "#9c2f7f", "orange": "#a94d08",
    "violet": "#6d3fc0", "brown": "#765043", "wait": "#e3e7ed",
}  # fmt: skip

DARK: Mapping[str, str] = {
    "page": "#14171c", "raised": "#1f242c", "text": "#e8eaed", "quiet": "#aab4c0", "rule": "#4a5462",
    "link": "#8ab8ff", "mark": "#ff9d91", "on": "#14171c",
    "blue": "#7fb2ff", "teal": "#4fc9c0", "green": "#7ed384", "pink": "#f09bd5", "orange": "#f5a855",
    "violet": "#c0a3ff", "brown": "#d8b09c", "wait": "#2b323c",
}  # fmt: skip

SHAPES = ("blue", "teal", "green", "pink", "orange", "violet", "brown")
TEXT_ON = (
    *((text, ground) for text in ("text", "quiet", "link", "mark") for ground in ("page", "raised")),
    ("text", "wait"),
    ("quiet", "wait"),
    *(("on", shape) for shape in SHAPES),
)
"""Text, and what it stands on."""
SHAPES_ON = tuple((shape, ground) for shape in (*SHAPES, "mark") for ground in ("page", "raised"))
"""Shapes that say something, and what they stand on."""

KINDS: Mapping[str, str] = {
    "forward": "blue", "recompute": "teal", "backward": "green", "weights": "pink", "communication": "orange",
    "optimizer": "violet", "host": "brown", "bubble": "wait",
}  # fmt: skip
"""Colours of what is done in a step."""

PARTS: Mapping[str, str] = {
    "parameters": "blue", "gradients": "teal", "optimizer": "violet", "saved activations": "orange",
    "working memory": "pink", "runtime": "brown",
}  # fmt: skip
"""Colours of what memory is held by."""


def contrast(one: str, other: str) -> float:
    """The contrast ratio of two colours (WCAG 2.2, section 1.4.3): from 1 to 21."""
    lighter, darker = sorted((_luminance(one), _luminance(other)), reverse=True)
    return (lighter + 0.05) / (darker + 0.05)


def _luminance(colour: str) -> float:
    channels = [int(colour[at : at + 2], 16) / 255 for at in (1, 3, 5)]
    red, green, blue = (c / 12.92 if c <= 0.04045 else ((c + 0.055) / 1.055) ** 2.4 for c in channels)
    return 0.2126 * red + 0.7152 * green + 0.0722 * blue


def variables(colours: Mapping[str, str]) -> str:
    """Colours as properties of a style sheet."""
    return "".join(f"--{name}:{value};" for name, value in colours.items())
