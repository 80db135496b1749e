"""The lines of a TOML text on which its keys stand: parsers keep none, so the text is read once more for them."""

from __future__ import annotations

import re

from meshwright.ir.files.documents import Path_


class Lines:
    """Line numbers of the keys in a TOML text, by path."""

    def __init__(self, text: str) -> None:
        self._text = text.split("\n")
        self._line: dict[Path_, int] = {}
        counts: dict[Path_, int] = {}
        table: Path_ = ()
        for number, line in enumerate(self._text, 1):
            if header := re.match(r"\s*\[\[?\s*([\w.\s-]+?)\s*\]", line):
                table = ()
                names = [name.strip() for name in header[1].split(".")]
                for position, name in enumerate(names):
                    table = (*table, name)
                    if line.lstrip().startswith("[[") and position == len(names) - 1:
                        counts[table] = counts.get(table, -1) + 1
                    if table in counts:
                        table = (*table, counts[table])
                self._line.setdefault(table, number)
            elif key := re.match(r"\s*[\"']?([\w-]+)[\"']?\s*=", line):
                self._line.setdefault((*table, key[1]), number)

    def of(self, path: Path_) -> int:
        """The line of a path, or of the nearest table around it."""
        for end in range(len(path), 0, -1):
            if path[:end] in self._line:
                inside = [step for step in path[end:] if isinstance(step, int)]
                return self._brace(self._line[path[:end]], inside[0]) if inside else self._line[path[:end]]
        return 1

    def _brace(self, line: int, index: int) -> int:
        """The line where inline table number `index` opens, from a line on."""
        for number in range(line, len(self._text) + 1):
            index -= self._text[number - 1].count("{")
            if index < 0:
                return number
        return line
