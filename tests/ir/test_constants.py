"""Lines that make a constant: what stands for names and holes, and what follows from the batch."""

from __future__ import annotations

from dataclasses import replace

import numpy
import pytest

from meshwright.ir.graph.constants import Constant, Data, Held, batched, resized

TABLE = Held(path="rotary.inv_freq", relative=True, buffer=True)
LISTED = Held(path="tables", relative=False, buffer=False, keys=(1, "long"))
ROTARY = Constant(
    shape=(2, 16),
    dtype="f32",
    lines=(
        ("arange", "torch.arange(16, device={device})"),
        ("cos", "(%arange * {held:0} + {held:1} + {data:0}).expand(2, 16)"),
    ),
    held=(TABLE, LISTED),
    data=(Data("data_0", numpy.zeros(3)),),
    batched=True,
)


def test_holes_are_filled_and_names_are_nobody_elses() -> None:
    found = ROTARY.code(
        device="x.device",
        held=lambda one: one.read("block" if one.relative else "model"),
        data=lambda one: f'load("{one.name}")',
        taken=("arange", "arange_2", "cos"),
    )
    read = 'block.get_buffer("rotary.inv_freq") + model.tables[1]["long"]'
    assert found == (
        ("arange_3", "torch.arange(16, device=x.device)"),
        ("cos_2", f'(arange_3 * {read} + load("data_0")).expand(2, 16)'),
    )


@pytest.mark.parametrize(
    ("held", "text"),
    [
        (Held(path="a.b", relative=False, buffer=False), 'm.get_submodule("a").b'),
        (Held(path="b", relative=False, buffer=False), "m.b"),
        (Held(path="a.if", relative=False, buffer=False), 'getattr(m.get_submodule("a"), "if")'),
        (Held(path='a".b', relative=False, buffer=True), 'm.get_buffer("a\\".b")'),
    ],
)
def test_a_tensor_is_read_where_it_is_held(held: Held, text: str) -> None:
    assert held.read("m") == text


def test_sizes_follow_the_batch() -> None:
    """Numbers that double are so many times the batch; those in names and fractions are none."""
    few = Constant(
        shape=(2, 16, 8),
        dtype="f32",
        lines=(("ones_2", "torch.ones((2, 16, 8), dtype=torch.float32) * 2.5"), ("y", "%ones_2.reshape(-1, 2)")),
        batched=True,
    )
    lines = (("ones_2", "torch.ones((4, 16, 16), dtype=torch.float32) * 2.5"), ("y", "%ones_2.reshape(-1, 2)"))
    more = replace(few, shape=(4, 16, 16), lines=lines)
    found = resized(few, more, 2, 6)
    assert (found.shape, found.problem) == ((6, 16, 24), "")
    assert found.lines == (
        ("ones_2", "torch.ones((6, 16, 24), dtype=torch.float32) * 2.5"),
        ("y", "%ones_2.reshape(-1, 2)"),
    )
    assert resized(few, few, 2, 6) == few


@pytest.mark.parametrize(
    "lines",
    [
        (("y", "torch.ones(6)"),),
        (("y", "torch.ones(5)"),),
        (("z", "torch.ones(4)"),),
        (("y", "torch.zeros(4)"),),
        (("y", "torch.ones(4)"), ("z", "%y")),
        (("y", "torch.ones(4, 4)"),),
    ],
)
def test_what_differs_otherwise_is_a_problem(lines: tuple[tuple[str, str], ...]) -> None:
    few = Constant(shape=(2,), dtype="f32", lines=(("y", "torch.ones(2)"),), batched=True)
    found = resized(few, replace(few, lines=lines), 2, 8)
    assert found.problem
    assert not found.lines


def test_a_constant_without_its_like_is_a_problem() -> None:
    assert resized(ROTARY, None, 2, 8).problem
    assert resized(ROTARY, ROTARY, 2, 8).problem
    known = replace(ROTARY, problem="why", lines=())
    assert resized(known, known, 2, 8).problem == "why"


def test_marks() -> None:
    found = batched({"a": ROTARY, "b": ROTARY}, {"a"})
    assert [found[law].batched for law in ("a", "b")] == [True, False]
