"""Faults are planted where they change something, are named by what they are, and are noticed by tests that ask."""

import ast
import signal
import subprocess
import sys
from pathlib import Path

import numpy
import pytest

from benchmarks import mutants
from benchmarks.mutation import blocks, serving
from benchmarks.mutation.forking import MEMORY_BYTES, Job, forked
from benchmarks.mutation.nearest import nearest
from benchmarks.mutation.reach import Reached, product
from benchmarks.mutation.sites import header, sites
from benchmarks.mutation.trial import mutant

SOURCE = '''
"""A module."""
from functools import lru_cache
LIMIT: dict[int, str] = {2: "two"}
@lru_cache(maxsize=4)
def area(a: int, b: int = 3) -> float:
    """Of a rectangle."""
    total = 0
    if a < b and not b:
        raise ValueError(a + 1)
    total += max(a, b) * b
    assert total > 0
    check(total)
    return -total
'''
DEFINITION = "@lru_cache(maxsize=4)\ndef area(a: int, b: int=3) -> float:\n    pass"


def planted(source: str) -> list[tuple[str, str, str]]:
    """Every fault: its kind, and the statement before and after."""
    found = []
    for index in range(len(sites(ast.parse(source)))):
        tree = ast.parse(source)
        site = sites(tree)[index]
        before = header(site.statement)
        site.plant()
        after = header(site.statement)
        found.append((site.kind, before, after if after != before else "pass"))
        compile(ast.fix_missing_locations(tree), "planted", "exec")
    return found


def test_every_kind_of_fault_stands_where_the_source_has_it() -> None:
    condition = "if a < b and (not b):\n    pass"
    assert planted(SOURCE) == [
        ("off by one", "LIMIT: dict[int, str] = {2: 'two'}", "LIMIT: dict[int, str] = {3: 'two'}"),
        ("off by one", DEFINITION, DEFINITION.replace("b: int=3", "b: int=4")),
        ("off by one", "total = 0", "total = 1"),
        ("logic", condition, "if a < b or not b:\n    pass"),
        ("dropped condition", condition, "if not b:\n    pass"),
        ("dropped condition", condition, "if a < b:\n    pass"),
        ("comparison", condition, "if a <= b and (not b):\n    pass"),
        ("comparison", condition, "if a >= b and (not b):\n    pass"),
        ("logic", condition, "if a < b and b:\n    pass"),
        ("dropped term", "total += max(a, b) * b", "pass"),
        ("sign", "total += max(a, b) * b", "total -= max(a, b) * b"),
        ("sign", "total += max(a, b) * b", "total += max(a, b) / b"),
        ("dropped term", "total += max(a, b) * b", "total += max(a, b)"),
        ("dropped term", "total += max(a, b) * b", "total += b"),
        ("extreme", "total += max(a, b) * b", "total += min(a, b) * b"),
        ("dropped call", "check(total)", "pass"),
        ("sign", "return -total", "return total"),
    ]


def test_types_that_get_a_name_decide_nothing_and_unions_of_values_do() -> None:
    assert not planted(
        "Layout = Contiguous | Zigzag | None\nPath = tuple[str | int, ...]\nMake = Callable[[int | str], Text | None]\n"
    )
    kinds = [kind for kind, *_ in planted("BOTH = ONE | OTHER\n")]
    assert kinds == ["dropped term", "dropped term"]
    assert len(planted("both = one | Other\n")) == 2


def test_blocks_are_noted_as_they_are_entered() -> None:
    source = "def sign(x):\n    'Doc.'\n    if x < 0:\n        return -1\n    else:\n        return 1\n"
    tree = ast.parse(source)
    assert blocks.names(tree, "m") == ["m:sign#0", "m:sign#1", "m:sign#2"]
    inside = {header(statement): block for statement, block in blocks.owners(tree, "m").items()}
    assert inside["return 1"] == "m:sign#2"
    noted = bytearray(4)
    scope: dict[str, object] = {serving.NOTED: noted}
    exec(compile(blocks.noting(tree, 1), "noting", "exec"), scope)  # noqa: S102
    assert scope["sign"](-3) == -1  # type: ignore[operator]
    assert list(noted) == [0, 1, 1, 0]


def test_code_is_served_in_place_of_a_file_in_processes_too(tmp_path: Path) -> None:
    serving.write(tmp_path, "meshwright.ir.sharding.mesh", compile("PLANTED = 61", "planted", "exec"))
    inner = "import meshwright.ir.sharding.mesh as mesh; print(mesh.PLANTED)"
    script = (
        f"import sys, subprocess; from pathlib import Path; from benchmarks.mutation.serving import serve\n"
        f"serve(Path({str(tmp_path)!r}))\n{inner}\n"
        f"sys.stdout.flush(); subprocess.run([sys.executable, '-c', {inner!r}], check=True)"
    )
    done = subprocess.run(
        [sys.executable, "-c", script], cwd=mutants.REPO, capture_output=True, text=True, timeout=120, check=True
    )
    assert done.stdout == "61\n61\n"


def test_the_nearest_tests_enter_the_block_and_ask_different_things() -> None:
    """Of three functions of tests two enter it; the cheapest case of each comes before a second case of one."""
    tests = ("t.py::a[1]", "t.py::a[2]", "t.py::b", "t.py::c")
    entered = numpy.array([[1, 0], [1, 0], [1, 1], [0, 1]], dtype=bool)
    known = Reached(
        file="t.py",
        tests=tests,
        seconds=(0.1, 0.2, 5.0, 0.1),
        setups=((), (), (), ()),
        setup_seconds=(),
        names={"m:f#0": 0, "m:g#0": 1},
        entered=entered,
        modules={"m": "same"},
    )
    assert nearest("m:f#0", "same", [known], 60.0).tests == {"t.py": (tests[0], tests[2], tests[1])}
    assert nearest("m:f#0", "same", [known], 5.6).tests == {"t.py": (tests[0], tests[2])}
    assert nearest("m:#0", "same", [known], 60.0).tests["t.py"][-1] == tests[1]
    assert nearest("m:h#0", "same", [known], 60.0).tests == {}


def test_a_job_ends_by_its_answer_or_by_a_limit(tmp_path: Path) -> None:
    """Too much CPU time is out of time; what raises, as for want of memory, answers 70, and says so in its log."""

    def endless() -> int:
        while True:
            pass

    def broken() -> int:
        raise ValueError("it broke")

    def greedy() -> int:
        return len(bytes(MEMORY_BYTES + 1))

    works = {"three": lambda: 3, "broken": broken, "endless": endless, "greedy": greedy}
    jobs = [Job(name=name, work=work, log=tmp_path / name, cpu_s=0.5, wall_s=600) for name, work in works.items()]
    ended = {job.name: one for job, one in forked(jobs, 2)}
    assert {name: (one.code, one.out_of_time) for name, one in ended.items()} == {
        "three": (3, False),
        "broken": (70, False),
        "endless": (None, True),
        "greedy": (70, False),
    }
    assert "MemoryError" in (tmp_path / "greedy").read_text(encoding="utf-8")
    assert "it broke" in (tmp_path / "broken").read_text(encoding="utf-8")


def test_a_job_can_be_interrupted_wherever_it_was_started(tmp_path: Path) -> None:
    """Shells start what runs in the background with interrupts ignored."""
    before = signal.signal(signal.SIGINT, signal.SIG_IGN)
    try:
        job = Job(
            name="asks",
            work=lambda: int(signal.getsignal(signal.SIGINT) is signal.default_int_handler),
            log=tmp_path / "log",
            cpu_s=9,
            wall_s=600,
        )
        ((_, ended),) = forked([job], 1)
    finally:
        signal.signal(signal.SIGINT, before)
    assert ended.code == 1


def test_a_draw_is_the_same_for_a_seed() -> None:
    first, again, other = (mutants.draw(5, seed, "ir.sharding.mesh") for seed in ("a", "a", "b"))
    assert [one.key for one in first] == [one.key for one in again] != [one.key for one in other]
    assert {one.module for one in first} == {"meshwright.ir.sharding.mesh"}


@pytest.mark.parametrize("key", mutants.equivalents(), ids=lambda key: f"{key[0]}-{key[1]}")
def test_a_fault_that_is_called_equivalent_can_be_planted(key: tuple[str, str, str, str]) -> None:
    """The list says a reason, and does not outlive the statement."""
    module, function, before, _ = key
    assert mutants.equivalents()[key]
    path = product()[module]
    there = [
        index
        for index, site in enumerate(sites(ast.parse(path.read_text(encoding="utf-8"))))
        if site.function == function and header(site.statement) == before
    ]
    assert key in [mutant(module, path, index).key for index in there]
