"""The rules of the house hold, and would be noticed if they did not."""

import subprocess
import sys
from pathlib import Path

import pytest

import benchmarks.__main__
import meshwright

REPO = Path(__file__).parents[1]
ROOMS = ("ir", "cost_models", "planner", "backends", "calibrate")


def ruff(code: str) -> str:
    """Lint ``code`` as a file of the planner."""
    command = [
        sys.executable,
        "-m",
        "ruff",
        "check",
        "--stdin-filename",
        "planner/example.py",
        "--output-format=concise",
    ]
    return subprocess.run(
        [*command, "-"], input=code, cwd=REPO, capture_output=True, text=True, timeout=60, check=False
    ).stdout


@pytest.mark.parametrize("room", ROOMS)
def test_a_room_is_linked_into_the_package(room: str) -> None:
    link = REPO / "src" / "meshwright" / room
    assert link.is_symlink()
    assert link.resolve() == REPO / room
    assert (REPO / room / "__init__.py").is_file()


@pytest.mark.parametrize("room", ROOMS)
@pytest.mark.parametrize("statement", ["import {room}", "from {room} import thing", "from {room}.part import thing"])
def test_a_room_cannot_be_imported_by_its_bare_name(room: str, statement: str) -> None:
    bare = statement.format(room=room)
    assert "TID251" in ruff(f'"""Doc."""\n\n{bare}\n')
    assert "TID251" not in ruff(f'"""Doc."""\n\n{bare.replace(room, f"meshwright.{room}")}\n')


@pytest.mark.parametrize("name", meshwright.__all__)
def test_every_public_name_can_be_had(name: str) -> None:
    assert getattr(meshwright, name) is not None
    assert name in dir(meshwright)


def test_the_public_api_refuses_other_names() -> None:
    with pytest.raises(AttributeError, match="no attribute 'plann'"):
        meshwright.plann  # noqa: B018


def test_importing_the_package_imports_no_framework() -> None:
    script = "import sys, meshwright; print([n for n in ('torch', 'transformers', 'numpy') if n in sys.modules])"
    done = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True, timeout=60, check=True)
    assert done.stdout == "[]\n"


def test_every_registered_benchmark_exists() -> None:
    assert [name for name in benchmarks.BENCHMARKS if not (REPO / "benchmarks" / f"{name}.py").is_file()] == []


def test_an_unknown_benchmark_is_refused(capsys: pytest.CaptureFixture[str]) -> None:
    assert benchmarks.__main__.main(["no_such_benchmark"]) == 2
    assert "no_such_benchmark" in capsys.readouterr().err
