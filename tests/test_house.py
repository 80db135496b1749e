"""The rules of the house hold, and would be noticed if they did not."""

import ast
import itertools
import re
import subprocess
import sys
import tomllib
from collections.abc import Iterator, Set
from importlib.util import find_spec
from pathlib import Path

import grimp
import networkx
import pytest
from transformers.models.auto.configuration_auto import CONFIG_MAPPING_NAMES

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


FRAMEWORKS = re.compile(r"\b(torch|jax)_\b|^\s*(import|from) (torch|jax)\b")
OF_ONE = re.compile(r"(ir/frontends|backends)/(torch|jax)_/|__init__\.py|ir/errors/model\.py")
DOORS = ("FRONT_ENDS = ", "BACKENDS = ")


def test_only_doors_name_a_frameworks_package() -> None:
    """Beside tables of what is where, and what refusals show of a user's file."""
    found = [
        f"{path}: {line}"
        for room in ROOMS
        for path in (path.relative_to(REPO) for path in (REPO / room).rglob("*.py"))
        if not OF_ONE.search(str(path))
        for line in (REPO / path).read_text().splitlines()
        if FRAMEWORKS.search(line) and not line.startswith(DOORS)
    ]
    assert found == []


def test_every_registered_benchmark_exists() -> None:
    assert [name for name in benchmarks.BENCHMARKS if find_spec(f"benchmarks.{name}") is None] == []


def test_an_unknown_benchmark_is_refused(capsys: pytest.CaptureFixture[str]) -> None:
    assert benchmarks.__main__.main(["no_such_benchmark"]) == 2
    assert "no_such_benchmark" in capsys.readouterr().err


def test_contributing_names_tests_that_exist() -> None:
    named = re.findall(r"`(tests/\S+\.py)::(\w+)`", (REPO / "CONTRIBUTING.md").read_text())
    assert named
    assert [name for file, name in named if f"def {name}(" not in (REPO / file).read_text()] == []


KNOWN = {
    "operator rule": r"\bmish\b",
    "pipeline schedule": r"\bzb[-_]h2\b",
    "device": r"\bL40S\b",
    "kind of attention": r"\bulysses\b",
    "backend": r'"torch_"',
}
"""A word of one of each kind."""


@pytest.mark.parametrize("kind", KNOWN)
def test_how_many_files_know_one_of_a_kind(kind: str) -> None:
    """The rooms' code and data that name it, but for what belongs to another framework."""
    (told,) = re.findall(rf"^\| {kind} \|.*\| (\d+) \|$", (REPO / "CONTRIBUTING.md").read_text(), re.MULTILINE)
    files = [path for room in ROOMS for end in ("py", "json") for path in (REPO / room).rglob(f"*.{end}")]
    named = [path for path in files if "jax_" not in path.parts and re.search(KNOWN[kind], path.read_text())]
    assert len(named) <= int(told), named


def test_contributing_names_files_that_exist() -> None:
    rooms = "|".join((*ROOMS, "tests", "docs", "benchmarks", "src"))
    named = re.findall(rf"`((?:{rooms})/[\w./-]+)", (REPO / "CONTRIBUTING.md").read_text())
    assert len(named) > 30
    assert [path for path in named if not (REPO / path).exists()] == []


@pytest.mark.parametrize(
    "page", sorted(p.relative_to(REPO) for p in [*REPO.glob("*.md"), *REPO.glob("docs/**/*.md")]), ids=str
)
def test_links_between_pages_lead_somewhere(page: Path) -> None:
    links = re.findall(r"\]\((?!https?:)([^)#]+)", (REPO / page).read_text())
    assert [link for link in links if not ((REPO / page).parent / link).exists()] == []


def test_the_glossary_names_modules_that_exist() -> None:
    rows = re.findall(r"^\| (.+?) \|.*\| `(.+)` \|$", (REPO / "docs" / "glossary.md").read_text(), re.MULTILINE)
    assert len(rows) > 20
    assert [word for word, module in rows if not (REPO / module).is_file()] == []
    assert [word for word, _ in rows] == list(dict.fromkeys(word for word, _ in rows))


def test_every_package_is_accounted_for() -> None:
    """A direct dependency is pinned for CI, and docs/decisions.md says what it is for."""
    project = tomllib.loads((REPO / "pyproject.toml").read_text())["project"]
    extras = project["optional-dependencies"].values()
    names = {re.split(r"[<>=]", item)[0] for item in [*project["dependencies"], *itertools.chain(*extras)]}
    pinned = {line.split("==")[0] for line in (REPO / "constraints.txt").read_text().splitlines() if "==" in line}
    decisions = (REPO / "docs" / "decisions.md").read_text()
    assert sorted(names - pinned) == []
    assert sorted(name for name in names if name not in decisions) == []


CONTAINERS = {"Module", "ModuleList", "ModuleDict", "Sequential", "Parameter", "ParameterList", "ParameterDict"}
"""The classes of torch.nn that say nothing of what a module computes."""

IN_SCRIPTS = {"backends/torch_/emit/write/frame/model.py": {"Linear"}}
"""What emitted scripts ask of modules: float8 is a property of torch's linear layers."""


def sources() -> Iterator[tuple[str, ast.Module]]:
    for room in ROOMS:
        for path in sorted((REPO / room).rglob("*.py")):
            yield str(path.relative_to(REPO)), ast.parse(path.read_text(encoding="utf-8"))


def docstrings(tree: ast.Module) -> set[int]:
    """The strings that are statements."""
    return {id(node.value) for node in ast.walk(tree) if isinstance(node, ast.Expr)}


def of_models() -> set[str]:
    """The names of all models that transformers has, but for the shortest, which are words of other things, too."""
    names = {name.lower() for name in CONFIG_MAPPING_NAMES}
    return {re.sub(r"[-_]", "", name) for name in names if len(name) > 3}


def told_apart(tree: ast.Module) -> set[str]:
    """The classes of torch.nn, and the names of classes, by which code or a text of code branches."""
    found, skipped = set(), docstrings(tree)
    for node in ast.walk(tree):
        if isinstance(node, ast.Call) and isinstance(node.func, ast.Name) and node.func.id == "isinstance":
            found |= set(re.findall(r"\bnn\.(\w+)", ast.unparse(node.args[1])))
        if isinstance(node, ast.Constant) and isinstance(node.value, str) and id(node) not in skipped:
            for asked in re.findall(r"isinstance\([^()]*\)", node.value):
                found |= set(re.findall(r"\bnn\.(\w+)", asked))
        if isinstance(node, ast.Compare) and "__name__" in (text := ast.unparse(node)) and "module" in text.lower():
            found |= {one.value for one in ast.walk(node) if isinstance(one, ast.Constant)}
    return found - CONTAINERS


def named_in(tree: ast.Module, models: Set[str]) -> set[str]:
    """The strings that are names of models."""
    skipped = docstrings(tree)
    texts = {node.value for node in ast.walk(tree) if isinstance(node, ast.Constant) and id(node) not in skipped}
    return {one for one in texts if isinstance(one, str) and re.sub(r"[-_. ]", "", one.lower()) in models}


def test_nothing_depends_on_a_models_name_or_a_modules_class() -> None:
    """What is done to a model is read off its graph: no branch asks for a kind of model or of module by its name."""
    models = of_models()
    assert len(models) > 200
    for path, tree in sources():
        assert told_apart(tree) == IN_SCRIPTS.get(path, set()), path
        assert not named_in(tree, models), path


@pytest.mark.parametrize(
    "code",
    [
        "found = isinstance(module, nn.Linear)",
        "text = 'isinstance(module, nn.Conv2d)'",
        "found = type(module).__name__ == 'LlamaMLP'",
        "found = model.config.model_type == 'mixtral'",
        "TABLE = {'gpt-neox': 3}",
    ],
)
def test_such_a_branch_would_be_noticed(code: str) -> None:
    tree = ast.parse(code)
    assert told_apart(tree) or named_in(tree, of_models())


def test_no_module_imports_itself_by_way_of_others() -> None:
    graph = grimp.build_graph("meshwright", cache_dir=None, exclude_type_checking_imports=True)
    imports = networkx.DiGraph(
        (module, one) for module in graph.modules for one in graph.find_modules_directly_imported_by(module)
    )
    assert imports.number_of_edges() > 1000
    assert [sorted(circle) for circle in networkx.strongly_connected_components(imports) if len(circle) > 1] == []


@pytest.mark.parametrize("room", ROOMS)
def test_a_folder_can_be_looked_over(room: str) -> None:
    """Twelve modules at most, none longer than 450 lines, beside the table of them."""
    for folder in {path.parent for path in (REPO / room).rglob("*.py")}:
        modules = [path.name for path in folder.glob("*.py") if path.name != "__init__.py"]
        assert len(modules) <= 12, folder
        assert [name for name in modules if len((folder / name).read_text().splitlines()) > 450] == [], folder
        assert (folder / "__init__.py").read_text().startswith('"""'), folder
