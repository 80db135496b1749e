"""Quoting: whatever a name holds, code that has it in it reads it back, and does nothing else."""

import ast
import re
import shlex
from collections.abc import Callable
from enum import IntEnum
from math import inf, isnan, nan
from typing import Any

import numpy as np
import pytest
from hypothesis import assume, example, given
from hypothesis import strategies as st

from meshwright.ir.quoting import (
    around,
    as_code,
    assigned,
    attribute,
    constant,
    identifier,
    keywords,
    literal,
    pattern,
    said,
    word,
)

NAMES = st.text(st.characters(exclude_categories=()), max_size=20)
"""Any letters, halves of surrogates too, as names of files may hold them."""


def hostile(test: Callable[[str], None]) -> Callable[[], None]:
    """Any name, and some that are meant badly."""
    for name in ('"', "\\", "x\ny", '"""', "{x}", "%x", "a, b(c", "\u2028", "\udcff", 'x"+str(__import__("os"))+"'):
        test = example(name)(test)
    return given(NAMES)(test)


@hostile
def test_a_literal_is_the_text_on_one_line(text: str) -> None:
    assert ast.literal_eval(literal(text)) == text
    assert len(literal(text).splitlines()) == 1
    assert not re.search(r"[()\[\]{},%]", literal(text))
    literal(text).encode()  # can be written


@hostile
def test_a_hole_is_the_only_one(text: str) -> None:
    assert eval(around(text, "index", text), {"index": 7}) == f"{text}7{text}"  # noqa: S307


@hostile
def test_a_pattern_is_the_regular_expression(text: str) -> None:
    assert ast.literal_eval(pattern(re.escape(text))) == re.escape(text)


@hostile
def test_attributes_and_arguments_are_those_of_that_name(text: str) -> None:
    class Holder:
        pass

    assume(not hasattr(Holder, text))  # what Python itself has under that name

    holder = Holder()
    known = {"holder": holder, "call": lambda **given: given, "value": 3}
    exec(assigned("holder", text, "value"), known)  # noqa: S102
    assert eval(attribute("holder", text), known) == 3  # noqa: S307
    assert eval(f"call({', '.join(keywords({text: 'value'}))})", known) == {text: 3}  # noqa: S307


@hostile
def test_a_docstring_and_a_comment_end_where_they_should(text: str) -> None:
    (statement,) = ast.parse(f'"""{said(text)}"""').body
    assert isinstance(statement, ast.Expr)
    assert ast.literal_eval(statement.value) == text
    assert ast.dump(ast.parse(f"x = 1  # {said(text)}\n")) == ast.dump(ast.parse("x = 1"))


@hostile
def test_an_identifier_is_one(text: str) -> None:
    assert identifier(text).isidentifier()
    ast.parse(f"{identifier(text)} = 1")


@hostile
def test_a_word_is_one(text: str) -> None:
    assert shlex.split(f"run {word(text)} on") == ["run", text, "on"]


class Kind(IntEnum):
    ONE = 1


@given(
    st.recursive(
        st.none() | st.booleans() | st.integers() | st.floats(allow_nan=False) | st.text(max_size=5),
        lambda inner: st.lists(inner) | st.dictionaries(st.text(max_size=3), inner) | st.tuples(inner),
        max_leaves=8,
    )
)
def test_what_holds_values_is_code_that_makes_it(value: Any) -> None:
    found = eval(as_code(value), {"__builtins__": {"float": float}})  # noqa: S307
    assert found == value
    assert repr(found) == repr(value)


@pytest.mark.parametrize("value", [None, True, 3, -2.5, 'a"b', inf, -inf, nan, Kind.ONE, np.float64(0.5)])
def test_a_constant_is_the_value(value: float) -> None:
    found = eval(constant(value), {"__builtins__": {"float": float}})  # noqa: S307
    assert found == value or (isnan(found) and isnan(value))
    assert type(found) in (int, float, str, bool, type(None))


def test_ordinary_names_stay_as_they_are() -> None:
    assert literal("blocks.0.q_proj") == '"blocks.0.q_proj"'
    assert literal("../a model/é.py") == '"../a model/é.py"'
    assert attribute("model", "weight") == "model.weight"
    assert keywords({"x": "1"}) == ["x=1"]
    assert around("blocks.", "index", ".norm") == 'f"blocks.{index}.norm"'
    assert pattern(r"blocks\.\d+") == r'r"blocks\.\d+"'


def test_every_kind_of_name_is_written_one_way() -> None:
    """Escapes are of two, four or eight digits by where a letter stands: U+00AD, U+2028, U+1000C (of no letter)."""
    letters = {
        'a"b': '"a\\"b"',
        "a\\": '"a\\\\"',
        "\xad": '"\\xad"',
        "\u2028": '"\\u2028"',
        "\U0001000c": '"\\U0001000c"',
    }
    assert {text: literal(text) for text in letters} == letters
    assert literal("f(x)[0],{y}%z") == '"f\\x28x\\x29\\x5b0\\x5d\\x2c\\x7by\\x7d\\x25z"'
    assert said('a "b" \\ (c)\n') == 'a \\"b\\" \\\\ (c)\\x0a'
    patterns = {"": 'r""', "a\\": '"a\\\\"', 'a"': '"a\\""', "é": '"é"', "a\n": '"a\\x0a"', "(a)": 'r"(a)"'}
    assert {text: pattern(text) for text in patterns} == patterns
    identifiers = {"": "_", "1x": "_1x", "class": "_class", "a.b-c": "a_b_c", "é": "_", "x1": "x1"}
    assert {text: identifier(text) for text in identifiers} == identifiers
    for name, plain in (("_x", True), ("__x", False), ("é", False), ("class", False), ("a b", False), ("x1", True)):
        quoted = literal(name)
        assert attribute("m", name) == (f"m.{name}" if plain else f"getattr(m, {quoted})")
        assert assigned("m", name, "1") == (f"m.{name} = 1" if plain else f"setattr(m, {quoted}, 1)")
        assert keywords({name: "1", "y": "2"}) == [f"{name}=1" if plain else f"**{{{quoted}: 1}}", "y=2"]
    constants = [(None, "None"), (True, "True"), (3, "3"), (Kind.ONE, "1"), (0.5, "0.5"), (-inf, 'float("-inf")')]
    assert [constant(value) for value, _ in constants] == [text for _, text in constants]
