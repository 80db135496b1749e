"""Names of users in code that is written: whatever they hold, they stay strings."""

from __future__ import annotations

import ast
import io
import json
import keyword
import shlex
import tempfile
import tokenize
from pathlib import Path
from typing import Any

import pytest
from hypothesis import Phase, given, settings
from hypothesis import strategies as st

from meshwright.ir import quoting
from tests.backends.torch_.emitted import subject, written
from tests.backends.torch_.hostile import write

HOSTILE = (
    '__import__("os").system("touch PWNED")',
    '"""',
    "'''",
    '"',
    "'",
    "\\",
    "\n",
    "\r",
    "\t",
    "\u2028",
    "\x85",
    "\0",
)
PLAIN = (
    "{",
    "}",
    "{0}",
    "(",
    ")",
    "[",
    "]",
    ",",
    "%",
    "%x",
    "#",
    ":",
    ";",
    "$(touch PWNED)",
    "`",
    " ",
    "a",
    "0",
    "é",
    "__a",
)
LETTERS = st.sampled_from((*HOSTILE, *PLAIN))
TEXTS = st.lists(LETTERS, min_size=1, max_size=6).map("".join)
MODULES = TEXTS.filter(lambda name: "." not in name)
FILES = TEXTS.filter(lambda name: "\0" not in name and "/" not in name)
KINDS: tuple[dict[str, Any], ...] = (
    {"dp": 2, "zero": 3},
    {"tp": 2, "dp": 2, "zero": 3},
    {"pp": 2, "dp": 2, "microbatches": 2},
)
FIELDS = st.tuples(*[MODULES] * 7).filter(lambda names: len(set(names)) == 7)


def identifiers(code: str) -> set[str]:
    return {
        token.string for token in tokenize.generate_tokens(io.StringIO(code).readline) if token.type == tokenize.NAME
    }


def strings(code: str) -> set[str]:
    return {
        node.value
        for node in ast.walk(ast.parse(code))
        if isinstance(node, ast.Constant)
        if isinstance(node.value, str)
    }


@pytest.mark.parametrize("kind", KINDS, ids=str)
@settings(max_examples=6, phases=(Phase.explicit, Phase.generate))
@given(names=FIELDS, file=FILES)
def test_what_is_emitted_reads_no_name_as_code(kind: dict[str, Any], names: tuple[str, ...], file: str) -> None:
    with tempfile.TemporaryDirectory() as folder:
        reference = write(Path(folder), file, names)
        written(subject(reference=reference, **kind), Path(folder) / "out")
        texts = {path.name: path.read_bytes().decode() for path in (Path(folder) / "out").iterdir()}
    plain = {
        *(name for name in identifiers(texts["train.py"]) if "PWNED" in name),
        *({"__import__", "system", "touch"} & identifiers(texts["train.py"])),
    }
    assert plain == set()
    assert f"../{file}.py" in strings(texts["train.py"])
    assert "PWNED" not in " ".join(shlex.split(texts["launch.sh"], comments=True))
    assert json.loads(texts["ranks.json"])


@given(text=st.text() | TEXTS)
def test_each_form_reads_back_as_the_text(text: str) -> None:
    assert ast.literal_eval(quoting.literal(text)) == text
    assert "\n" not in quoting.literal(text)
    assert ast.literal_eval(quoting.pattern(text)) == text
    code = quoting.around(text, "hole", text)
    assert eval(code, {"hole": "x"}) == f"{text}x{text}"  # noqa: S307 - an f-string of ours
    assert len(shlex.split(quoting.word(text))) == 1
    assert shlex.split(quoting.word(text))[0] == text
    word = quoting.identifier(text)
    assert word.isidentifier()
    assert not keyword.iskeyword(word)
    assert ast.parse(f'"""{quoting.said(text)}."""\n# {quoting.said(text)}\n').body[1:] == []


@given(text=TEXTS)
def test_attributes_and_arguments_of_any_name(text: str) -> None:
    class Held:
        pass

    held = Held()
    exec(quoting.assigned("held", text, "3"), {"held": held})  # noqa: S102 - a statement of ours
    assert vars(held) == {text: 3}
    assert eval(quoting.attribute("held", text), {"held": held}) == 3  # noqa: S307
    assert eval(f"dict({', '.join(quoting.keywords({text: '4'}))})") == {text: 4}  # noqa: S307
