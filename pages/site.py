"""What the site makes of links that lead out of docs/: the path, as code, since the site has no such page.

mkdocs calls `on_page_markdown` for every page (`hooks` in mkdocs.yml).
"""

from __future__ import annotations

import re
from posixpath import dirname, join, normpath
from typing import Any

LINK = re.compile(r"\[(?P<text>[^\]\[]*)\]\((?P<path>\.\./[^)#\s]*)(?:#[^)]*)?\)")


def on_page_markdown(markdown: str, *, page: Any, **_: Any) -> str:
    """The page without links that lead out of its folder."""
    return inside(markdown, str(page.file.src_uri))


def inside(markdown: str, path: str) -> str:
    """A page whose links all stay in the site; `path` is its own."""

    def told(found: re.Match[str]) -> str:
        to = normpath(join(dirname(path), found["path"]))
        if not to.startswith("../"):
            return found[0]
        file = to.removeprefix("../")
        text = found["text"].strip("`")
        return f"`{file}`" if text in (file, file.rpartition("/")[2]) else f"{text} (`{file}`)"

    return LINK.sub(told, markdown)
