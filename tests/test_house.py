"""The rules of the house hold, and would be noticed if they did not."""

import itertools
import re
import subprocess
import sys
import tomllib
from importlib.util import find_spec
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
    assert [name for name in benchmarks.BENCHMARKS if find_spec(f"benchmarks.{name}") is None] == []


def test_an_unknown_benchmark_is_refused(capsys: pytest.CaptureFixture[str]) -> None:
    assert benchmarks.__main__.main(["no_such_benchmark"]) == 2
    assert "no_such_benchmark" in capsys.readouterr().err


def test_contributing_names_tests_that_exist() -> None:
    named = re.findall(r"`(tests/\S+\.py)::(\w+)`", (REPO / "CONTRIBUTING.md").read_text())
    assert named
    assert [name for file, name in named if f"def {name}(" not in (REPO / file).read_text()] == []


@pytest.mark.parametrize(
    "page", sorted(p.relative_to(REPO) for p in [*REPO.glob("*.md"), *REPO.glob("docs/*.md")]), ids=str
)
def test_links_between_pages_lead_somewhere(page: Path) -> None:
    links = re.findall(r"\]\((?!https?:)([^)#]+)", (REPO / page).read_text())
    assert [link for link in links if not ((REPO / page).parent / link).exists()] == []


def test_every_package_is_accounted_for() -> None:
    """A direct dependency is pinned for CI, and docs/decisions.md says what it is for."""
    project = tomllib.loads((REPO / "pyproject.toml").read_text())["project"]
    extras = project["optional-dependencies"].values()
    names = {re.split(r"[<>=]", item)[0] for item in [*project["dependencies"], *itertools.chain(*extras)]}
    pinned = {line.split("==")[0] for line in (REPO / "constraints.txt").read_text().splitlines() if "==" in line}
    decisions = (REPO / "docs" / "decisions.md").read_text()
    assert sorted(names - pinned) == []
    assert sorted(name for name in names if name not in decisions) == []
