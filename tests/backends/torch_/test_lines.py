"""Emitted calls, laid out as ruff would, and so that they mean what they meant."""

from __future__ import annotations

import ast
import subprocess
import sys
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from meshwright.backends.lines import WIDTH, call, fitted

LONG = [f'model.get_submodule("transformer.part{number}")' for number in range(4)]
CALLS = {
    "on one line": ["model", "mesh=mesh"],
    "arguments on one line": LONG[:2],
    "an argument a line": LONG,
    "a list": [f"[{', '.join(LONG)}]", "mesh=mesh"],
    "a call": [f"together({', '.join(LONG)})", "mesh=mesh"],
}


@pytest.mark.parametrize("what", CALLS)
def test_calls_are_laid_out(what: str, tmp_path: Path) -> None:
    (tmp_path / "made.py").write_text("\n".join(call(0, "fully_shard", CALLS[what])) + "\n", encoding="utf-8")
    command = [sys.executable, "-m", "ruff", "format", "--check", "--isolated", "--line-length", str(WIDTH)]
    done = subprocess.run([*command, str(tmp_path)], capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stdout


NAMES = st.sampled_from(("x", "model", "one_of_the_longer_names", "transformer"))
PATHS = st.integers(1, 12).map(lambda count: f'"{".".join(["embedding"] * count)}"')


def grown(inner: st.SearchStrategy[str]) -> st.SearchStrategy[str]:
    """Calls, reads of what they give, lists, tuples and sums of expressions."""
    several = st.lists(inner, max_size=5)
    called = st.builds(lambda name, given: f"{name}({', '.join(given)})", NAMES, several)
    return st.one_of(
        called,
        st.builds(lambda made, name: f"{made}.{name}", called, NAMES),
        st.builds(lambda made, at: f"{made}[{at}]", called, inner),
        st.builds(lambda entries: f"[{', '.join(entries)}]", several),
        st.builds(lambda one: f"({one},)", inner),
        st.builds(lambda one, other: f"({one} + {other})", inner, inner),
        st.builds(lambda name, of: f"{name}(one for one in {of})", NAMES, inner),
    )


EXPRESSIONS = st.recursive(NAMES | PATHS, grown, max_leaves=30)


@given(EXPRESSIONS)
def test_a_line_means_the_same_however_it_is_laid_out(expression: str) -> None:
    for line in (f"made = {expression}", f"take({expression})", f"made = take({expression}, mesh=mesh)"):
        laid_out = list(fitted(line))
        assert ast.dump(ast.parse("\n".join(laid_out))) == ast.dump(ast.parse(line))


def test_what_is_read_of_a_call_stays_behind_it() -> None:
    """An argument too long for one line whose last bracket is not its end."""
    path = ".".join(["convolution"] * 8)
    read = f'self.get_submodule("{path}").weight'
    assert list(call(4, "weight = local", [read])) == [
        "    weight = local(",
        "        self.get_submodule(",
        f'            "{path}"',
        "        ).weight,",
        "    )",
    ]
