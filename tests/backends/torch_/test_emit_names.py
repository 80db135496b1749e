"""Names that hold code: emitted files read them back, and do what they do of ordinary names, no more.

A tiny Llama is planned once, with marks for names. In every example its names are replaced in the plan, as if the model
had been written so; what is emitted then is the same syntax tree, with other strings in it.
"""

from __future__ import annotations

import ast
import json
import re
import sys
from collections import Counter
from collections.abc import Callable, Mapping
from dataclasses import fields, is_dataclass, replace
from functools import cache
from pathlib import Path, PurePosixPath
from typing import Any

import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st

from meshwright.backends.torch_.emit import Subject, emit
from meshwright.backends.torch_.emit.write.frame.imports import IMPORTED
from meshwright.ir.frontends.door import load_model, twin_of
from meshwright.ir.frontends.twin import Scale
from tests.backends.torch_.emitted import ROOT, subject

MODULES = ("embedding", "blocks", "attention_norm", "attention", "feed_forward_norm", "feed_forward", "norm", "head")
PRODUCTS = ("q_proj", "k_proj", "v_proj", "o_proj", "gate_proj", "up_proj", "down_proj")
MARKS = {name: f"Z{chr(97 + number)}z" for number, name in enumerate((*MODULES, *PRODUCTS, "labels", "factory"))}
"""What names are called where they are planned: found again wherever they come to stand, and part of no other word."""
KINDS: dict[str, dict[str, Any]] = {
    "dp": {"dp": 2},
    "fsdp of tied": {"dp": 2, "zero": 3},
    "tp+sp x fsdp": {"tp": 2, "dp": 2, "zero": 3, "sequence_parallel": True},
    "pp": {"pp": 2, "tp": 2, "microbatches": 2, "schedule": "gpipe"},
    "cp": {"cp": 2},
}
EVIL = (
    'x"+str(__import__("os").system("touch PWNED"))+"',
    '"""\nimport os\n"""',
    "\\",
    "{__import__('os')}",
    "%x, (y[",
    "a\nb",
    "class",
    "__private",
    "007",
    "٣",
    "\u2028",
)
LONG = 1000
"""Examples that are asked for where it may take long."""
NAMES = st.text(st.characters(exclude_characters="./\x00", exclude_categories=("Cs",)), min_size=1, max_size=12)
"""What torch takes for the name of a module, and systems for that of a file."""


@pytest.fixture(scope="module")
def model(tmp_path_factory: pytest.TempPathFactory) -> str:
    """The tiny Llama, tied, with marks for names."""
    text = (ROOT / "examples" / "llama.py").read_text()
    for name, mark in MARKS.items():
        text = re.sub(rf'(?<=self\.){name}\b|(?<="){name}(?=")', mark, text)
    text += f"""

def {MARKS["factory"]}() -> Llama:
    model = tiny()
    model.{MARKS["head"]}.weight = model.{MARKS["embedding"]}.weight
    return model
"""
    file = tmp_path_factory.mktemp("marked") / "ZfileZ.py"
    file.write_text(text)
    return f"{file}:{MARKS['factory']}"


@pytest.fixture(scope="module")
def planned(model: str) -> Callable[[str], Subject]:
    return cache(lambda kind: subject(reference=model, **KINDS[kind]))


@pytest.mark.parametrize("kind", ["dp", "fsdp of tied"])
@settings(max_examples=6 if settings().max_examples < LONG else settings().max_examples)
@given(names=st.lists(st.sampled_from(EVIL) | NAMES, min_size=len(MARKS) + 1, max_size=len(MARKS) + 1, unique=True))
@example(names=[f"{EVIL[0]}{number}" for number in range(len(MARKS) + 1)])
@example(names=[f"{chr(97 + number)}{one}" for number, one in enumerate((EVIL * 2)[: len(MARKS) + 1])])
def test_names_are_strings_and_nothing_else(kind: str, names: list[str], planned: Callable[[str], Subject]) -> None:
    *others, file = names
    table = {mark: name.replace(".", ",") for mark, name in zip(MARKS.values(), others, strict=True)}
    table["ZfileZ"] = file
    plan, folder = planned(kind), Path("/out")
    usual, found = (dict(emit(one, folder).texts) for one in (plan, renamed(plan, table)))
    assert usual.keys() == found.keys()
    for name, text in usual.items():
        assert found[name].encode().decode() == found[name]
        if not name.endswith(".py"):
            assert found[name] == text  # no name comes there
            continue
        assert structure(found[name], {}) == structure(text, table)
    assert json.loads(found["ranks.json"])


def called(text: str) -> set[str]:
    """What a file calls by a bare name, imports, and reads of other modules."""
    nodes = list(ast.walk(ast.parse(text)))
    calls = {node.func.id for node in nodes if isinstance(node, ast.Call) and isinstance(node.func, ast.Name)}
    taken = {one.name for node in nodes if isinstance(node, ast.Import | ast.ImportFrom) for one in node.names}
    return (calls | taken) - {"getattr", "setattr"}


@pytest.mark.parametrize("kind", KINDS)
@settings(max_examples=3 if settings().max_examples < LONG else settings().max_examples)
@given(names=st.lists(st.sampled_from(EVIL) | NAMES, min_size=len(MARKS) + 1, max_size=len(MARKS) + 1, unique=True))
@example(names=[f"{EVIL[0]}{number}" for number in range(len(MARKS) + 1)])
@example(names=[f"{chr(97 + number)}{one}" for number, one in enumerate((EVIL * 2)[: len(MARKS) + 1])])
@example(names=sorted(IMPORTED)[: len(MARKS) + 1])
@example(names=sorted(IMPORTED)[-len(MARKS) - 1 :])
def test_printed_code_calls_nothing_that_names_say(
    kind: str, names: list[str], planned: Callable[[str], Subject]
) -> None:
    """Names become variables there, so strings are not all: but it is code, and calls and imports the same."""
    *others, file = names
    table = {mark: name.replace(".", ",") for mark, name in zip(MARKS.values(), others, strict=True)} | {"ZfileZ": file}
    plan = replace(planned(kind), prints=True)
    usual, found = (dict(emit(one, Path("/out")).texts) for one in (plan, renamed(plan, table)))
    assert usual.keys() == found.keys()
    for name in (one for one in usual if one.endswith(".py")):
        assert called(found[name]) == called(usual[name])


def test_a_twin_of_a_file_with_any_name_is_made(tmp_path: Path) -> None:
    folder = tmp_path / 'fo"lder\\'
    folder.mkdir()
    text = (ROOT / "examples" / "llama.py").read_text()
    file = folder / 'x"+str(1)+"\n.y.py'
    file.write_text(f"{text}\n\ndef sized(layers: int = 4) -> Llama:\n    return tiny()\n")
    source = load_model(f"{file}:sized")
    made = twin_of(source, f"{file}:sized", Scale(layers=2, seq=16, tokens=16))
    ((name, written),) = made.files(tmp_path)
    (tmp_path / name).write_text(written)
    before = list(sys.path)
    try:
        assert load_model(f"{tmp_path / name}:twin").module is not None
    finally:
        sys.path[:] = before


def structure(text: str, table: Mapping[str, str]) -> Counter[str]:
    """What a file says and does, but for its layout: its strings, as these names have them, and what it calls and
    imports."""
    return Counter(said for node in ast.walk(Attributes().visit(ast.parse(text))) if (said := described(node, table)))


class Attributes(ast.NodeTransformer):
    """Attributes and arguments that are set, read or given by a string, as those by name."""

    def visit_Expr(self, node: ast.Expr) -> ast.AST:
        self.generic_visit(node)
        match node.value:
            case ast.Call(ast.Name("setattr"), [holder, name, value]):
                return ast.Assign([got(holder, name)], value)
        return node

    def visit_Call(self, node: ast.Call) -> ast.AST:
        self.generic_visit(node)
        match node:
            case ast.Call(ast.Name("getattr"), [holder, ast.Constant() as name]):
                return got(holder, name)
        return node

    def visit_Attribute(self, node: ast.Attribute) -> ast.AST:
        self.generic_visit(node)
        return got(node.value, ast.Constant(node.attr))


def got(holder: ast.expr, name: ast.expr) -> ast.expr:
    return ast.Call(ast.Name("got"), [holder, name], [])


def described(node: ast.AST, table: Mapping[str, str]) -> str:
    match node:
        case ast.Constant(str(text)):
            return f"string {in_words(text, table)!r}"
        case ast.Call(ast.Name(name)):
            return f"call of {name}"
        case ast.Call():
            return "call of what an expression yields"
        case ast.Import(names) | ast.ImportFrom(names=names):
            return f"import {[one.name for one in names]}"
    return ""


def in_words(text: str, table: Mapping[str, str]) -> str:
    """A text with names for marks."""
    return re.sub(r"Z[a-z]z|ZfileZ", lambda found: table.get(found[0], found[0]), text)


def renamed(one: Any, table: Mapping[str, str]) -> Any:
    """Plain data with names for marks: strings, and what is built of them."""
    if isinstance(one, str):
        return in_words(one, table)
    if isinstance(one, PurePosixPath):
        return type(one)(in_words(str(one), table))
    if is_dataclass(one) and not isinstance(one, type):
        return remade(one, table)
    if isinstance(one, Mapping):
        return {renamed(key, table): renamed(value, table) for key, value in one.items()}
    if isinstance(one, tuple | list | set | frozenset):
        return type(one)(renamed(item, table) for item in one)
    return one


def remade(one: Any, table: Mapping[str, str]) -> Any:
    """The same without what it checks and keeps: names of values are no words any more."""
    made = object.__new__(type(one))
    for field in fields(one):
        if hasattr(one, field.name):
            object.__setattr__(made, field.name, renamed(getattr(one, field.name), table))
    return made


def test_an_entry_may_be_called_what_a_schedule_is_given_by_name(tmp_path: Path) -> None:
    """The model's own batch has a `target`, and a step of torch's schedules takes one."""
    model = f"{ROOT / 'benchmarks' / 'registry' / 'models' / 'multi_task.py'}:build"
    emit(subject(reference=model, pp=2, microbatches=2, schedule="1f1b"), tmp_path).write(tmp_path)
    text = (tmp_path / "train.py").read_text()
    ast.parse(text)
    assert 'target_2=batch["target"]' in text
