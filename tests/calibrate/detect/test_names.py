"""Names of hosts: Slurm's lists unfold and fold, hostfiles of several makers are read."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from meshwright.calibrate.detect.outputs.names import Declared, folded, unfolded
from meshwright.calibrate.detect.outputs.sources import recognised
from meshwright.ir.errors import OutputBroken, OutputsContradict
from tests.calibrate.detect.told import text_of


@pytest.mark.parametrize(
    ("text", "names"),
    [
        ("node[01-04,07]", ["node01", "node02", "node03", "node04", "node07"]),
        ("login", ["login"]),
        ("a1,b[2-3],c", ["a1", "b2", "b3", "c"]),
        ("rack[1-2]n[8-9]", ["rack1n8", "rack1n9", "rack2n8", "rack2n9"]),
        ("n[8-11].lab", ["n8.lab", "n9.lab", "n10.lab", "n11.lab"]),
    ],
)
def test_a_list_of_nodes(text: str, names: list[str]) -> None:
    assert list(unfolded(text, "x")) == names


@pytest.mark.parametrize(
    "text", ["node[1-", "node[a-b]", "node[4-2]", "node]1[", "a[1-2", "n[0-99999999]", "a[[1]]", "[]"]
)
def test_no_list_of_nodes(text: str) -> None:
    with pytest.raises(OutputBroken) as refused:
        unfolded(text, "x")
    assert refused.value.place == "x"


def test_a_product_of_ranges_has_a_limit() -> None:
    with pytest.raises(OutputBroken, match="hosts of a cluster"):
        unfolded("a[0-9999]b[0-9999]", "x")


NAMES = st.lists(st.from_regex(r"[a-z][a-z0-9.-]{0,8}[0-9]{0,4}", fullmatch=True), min_size=1, max_size=20, unique=True)


@given(names=NAMES)
def test_what_is_folded_unfolds_to_the_same_names(names: list[str]) -> None:
    assert sorted(unfolded(folded(tuple(names)), "x")) == sorted(names)


@given(first=st.integers(0, 90), count=st.integers(2, 200), width=st.integers(3, 5))
def test_neighbours_fold_into_one_range_in_order(first: int, count: int, width: int) -> None:
    names = tuple(f"gpu{number:0{width}d}" for number in range(first, first + count))
    assert unfolded(folded(names), "x") == names
    assert folded(names).count("-") == 1


def test_an_allocation_of_slurm() -> None:
    facts = recognised(text_of("slurm.txt"), "x").facts
    assert facts == Declared(names=("gpu01", "gpu02", "gpu03", "gpu04", "gpu07"), slots=(8,) * 5)


@pytest.mark.parametrize(
    ("text", "facts"),
    [
        ("SLURM_NNODES=2", Declared(names=("",) * 0, slots=(0, 0))),
        ("SLURM_NODELIST=a[1-2]\nSLURM_GPUS_PER_NODE=gpu:h100:4", Declared(names=("a1", "a2"), slots=(4, 4))),
        ("export SLURM_JOB_NODELIST='a'", Declared(names=("a",), slots=(0,))),
        ("HOME=/root\nSLURM_JOB_NUM_NODES=1", Declared(names=(), slots=(0,))),
    ],
)
def test_variables_of_slurm(text: str, facts: Declared) -> None:
    assert recognised(text, "x").facts == facts


def test_counts_of_slurm_that_differ_are_refused() -> None:
    with pytest.raises(OutputsContradict) as refused:
        recognised("SLURM_JOB_NODELIST=a[1-3]\nSLURM_NNODES=2", "env.txt")
    assert refused.value.place == "env.txt, SLURM_NNODES"
    assert "names 3 hosts" in refused.value.cause


@pytest.mark.parametrize(
    ("text", "names", "slots"),
    [
        ("node1 slots=8\nnode2 slots=4 max_slots=8 # old\n", ("node1", "node2"), (8, 4)),
        ("node1:8\nnode2:8\n", ("node1", "node2"), (8, 8)),
        ("# all\nnode1\nnode2\n10.0.0.3\n", ("node1", "node2", "10.0.0.3"), (0, 0, 0)),
        ("node1 slots=2\nnode1 slots=3\n", ("node1",), (5,)),
        ("node1\nnode1\nnode2\nnode2\n", ("node1", "node2"), (2, 2)),
    ],
)
def test_hostfiles(text: str, names: tuple[str, ...], slots: tuple[int, ...]) -> None:
    assert recognised(text, "x").facts == Declared(names=names, slots=slots)
