"""Every kind of error that a few small files can show is reached by a command line, as docs/errors.md shows it."""

from __future__ import annotations

import ast
import json
import re
from collections.abc import Iterable, Iterator
from pathlib import Path

import pytest

from meshwright.ir.errors import catalogue, nearest, pages
from meshwright.planner.cli.main import main
from tests.planner.refused.cases import CASES, KEPT, ROOT, example, told

EXAMPLES = json.loads(KEPT.read_text())


@pytest.mark.parametrize("code", sorted(CASES))
def test_a_command_line_is_refused_as_the_page_shows(code: str) -> None:
    case = CASES[code]
    exit_code, error = told(case)
    assert (error["code"], exit_code, error["exit_code"]) == (code, case.exit_code, case.exit_code)
    assert example(case, error) == EXAMPLES[code], "python -m tests.planner.refused.cases, and docs/errors.md anew"


def test_examples_are_those_that_are_run() -> None:
    assert list(EXAMPLES) == sorted(CASES)


# Which kinds a command line reaches in a test ------------------------------------------------------------------------

UNREACHED = {
    "RuleUntrue": "of `check_rule`, which is Python alone",
    "BatchImpossible": "of a loop of one's own",
    "OptimizerElsewhere": "of a loop of one's own",
    "DevicesMissing": "of a loop of one's own: `plan verify` makes the devices that it needs",
    "NoPlanFits": "of `meshwright.plan`: the command line shows what would help instead",
    "CapabilityUnknown": "of a target's table, which is shipped",
    "DeviceIncomplete": "of the table of devices: a file of the user's lacks a key (MW6005) before that",
    "LinkKindUnknown": "of the table of devices: a file of the user's has a bad value (MW6006) before that",
    "RankUnknown": "of callers of a cluster",
    "BadQuantity": "of shipped profiles: one of the user's is told as broken (MW6041)",
    "KernelMalformed": "of callers of prices",
    "BadGroup": "of callers of prices",
    "CollectiveUnknown": "of callers of prices",
    "RanksMissing": "of callers of placement: a cluster of another size is refused before (MW7025)",
    "SharesImpossible": "of callers that share a batch out: the search gives only shares that can be",
    "AttentionNotExpressible": "no target lacks a kind of attention",
    "AttentionUnknown": "every architecture has a kernel for every stack: tests/cost_models/test_compute.py",
    "EmissionModule": "a script in JAX is printed where shardings cannot say it",
    "BlockUnsolvable": "of callers of the block solver: the search has priced a legal plan of the mesh before",
    "HLOUnreadable": "of a release of XLA that writes its programs otherwise",
}
"""Kinds of error that no command line brings about, whatever files it is given, and why."""


def test_every_kind_is_reached_by_a_command_line() -> None:
    """But for those of exit code 1, which no user's file is to blame for: they are raised where an artefact is made."""
    reached = set(CASES) | named_beside_main()
    users = [kind for kind in catalogue() if kind.exit_code != 1]
    assert {kind.__name__ for kind in users if kind.code not in reached} == set(UNREACHED)


def test_every_kind_is_raised_and_held_by_a_test() -> None:
    """Those that no command line reaches, too: each is named where it is raised, and by a test of what raises it."""
    rooms = [path for room in ROOMS for path in (ROOT / room).glob("**/*.py") if "errors" not in path.parts]
    tests = [path for path in ROOT.glob("tests/**/*.py") if path.parent != Path(__file__).parent]
    raised, tested = words_of(rooms), words_of(tests)
    assert {kind.__name__ for kind in catalogue()} - raised == set()
    users = [kind for kind in catalogue() if kind.exit_code == 1 or kind.__name__ in UNREACHED]
    assert {kind.__name__ for kind in users if not tested & {kind.__name__, kind.code}} == set()


ROOMS = ("ir", "cost_models", "backends", "calibrate", "planner")


def words_of(paths: Iterable[Path]) -> set[str]:
    """The words of files, but for what they import."""
    found: set[str] = set()
    for path in paths:
        text = re.sub(r"^(?:from|import) [^(\n]*(?:\([^)]*\))?", "", path.read_text(), flags=re.MULTILINE)
        found |= set(re.findall(r"\w+", text))
    return found


def named_beside_main() -> set[str]:
    """The codes of errors that are named, by code or class, in tests which call `main`, themselves or by a helper; also
    in tables of their module that they read."""
    found: set[str] = set()
    names = {kind.__name__: kind.code for kind in catalogue()} | {kind.code: kind.code for kind in catalogue()}
    for path in ROOT.glob("tests/**/test_*.py"):
        text = path.read_text()
        if path != Path(__file__) and "planner.cli.main import" in text:
            words = {word for part in _of_command_lines(text) for word in re.findall(r"\w+", part)}
            found |= {names[word] for word in words & set(names)}
    return found


def _of_command_lines(text: str) -> Iterator[str]:
    """The texts of a module's tests that call `main`, with their decorators and the tables that they name."""
    module = ast.parse(text)
    functions = {node.name: node for node in ast.walk(module) if isinstance(node, ast.FunctionDef)}
    tables = {
        ast.unparse(target): ast.unparse(node)
        for node in module.body
        if isinstance(node, ast.Assign | ast.AnnAssign)
        for target in (node.targets if isinstance(node, ast.Assign) else [node.target])
    }
    called = {name: set(_called(node)) for name, node in functions.items()}
    reaching = {"main"}
    while more := {name for name, calls in called.items() if calls & reaching} - reaching:
        reaching |= more
    for name in sorted(reaching & set(functions)):
        if name.startswith("test_"):
            told = "\n".join(ast.unparse(part) for part in (functions[name], *functions[name].decorator_list))
            yield told
            yield from (table for key, table in tables.items() if re.search(rf"\b{key}\b", told))


def _called(node: ast.FunctionDef) -> Iterator[str]:
    for one in ast.walk(node):
        if isinstance(one, ast.Call) and isinstance(one.func, ast.Name):
            yield one.func.id


# plan errors ---------------------------------------------------------------------------------------------------------


def test_every_error_is_listed_by_what_it_is_about(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["errors", "-v"]) == 0
    out = capsys.readouterr().out
    for kind in catalogue():
        assert re.search(rf"^  {kind.code}  {kind.__name__} +exit code {kind.exit_code}$", out, re.MULTILINE)
    families = re.findall(r"^(MW\d)xxx: ", out, re.MULTILINE)
    assert families == sorted({kind.family for kind in catalogue()})


def test_families_are_told_first(capsys: pytest.CaptureFixture[str]) -> None:
    """With how many errors each has; those of one are listed where it is asked for."""
    assert main(["errors"]) == 0
    told = dict(re.findall(r"^(MW\d)xxx +(\d+)  \S", capsys.readouterr().out, re.MULTILINE))
    families = [kind.family for kind in catalogue()]
    assert told == {family: str(families.count(family)) for family in families}
    for asked in ("MW6", "mw6xxx"):
        assert main(["errors", asked]) == 0
        listed = re.findall(r"^  (MW\d{4})  ", capsys.readouterr().out, re.MULTILINE)
        assert listed == [kind.code for kind in catalogue() if kind.family == "MW6"]


def test_every_error_has_a_page(capsys: pytest.CaptureFixture[str]) -> None:
    """What it is called, what it means, and, of those that a few small files show, how it comes about."""
    for kind in catalogue():
        assert main(["errors", kind.code]) == 0
        printed = capsys.readouterr().out
        told = " ".join(printed.split())
        assert told.startswith(f"{kind.code} {kind.__name__}: ")
        assert f" Exit code {kind.exit_code}. " in told
        assert " ".join((kind.__doc__ or "").replace("``", "`").split()) in told
        assert ("\n  $ plan " in printed) == (kind.code in EXAMPLES)


@pytest.mark.parametrize("asked", ["MW6007", "mw6007", "6007", "DeviceUnknown", "deviceunknown"])
def test_one_error_is_shown_with_its_example(asked: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["errors", asked]) == 0
    out = capsys.readouterr().out
    assert out.startswith("MW6007 DeviceUnknown: Cluster descriptions. Exit code 6.\n")
    assert "A device that is not in the table" in out
    assert f"  $ {CASES['MW6007'].command}\n" in out
    assert f"  cause: {EXAMPLES['MW6007']['cause']}\n" in out
    assert "  fix: the nearest known ones are H100-80G" in out


def test_code_to_paste_is_shown(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["errors", "NoLoss"]) == 0
    assert "def loss(outputs, batch):\n" in capsys.readouterr().out


def test_all_of_it_is_data(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["errors", "--json"]) == 0
    found = json.loads(capsys.readouterr().out)["errors"]
    assert [one["code"] for one in found] == [kind.code for kind in catalogue()] == [page.code for page in pages()]
    assert {one["code"]: one["example"] for one in found if one["example"]} == EXAMPLES
    assert main(["errors", "MW8012", "--json"]) == 0
    (one,) = json.loads(capsys.readouterr().out)["errors"]
    assert (one["kind"], one["family"], one["exit_code"], one["hook"]) == ("CodeUnknown", "MW8", 2, None)


@pytest.mark.parametrize(
    ("asked", "meant"), [("MW60077", "MW6007 DeviceUnknown"), ("DeviceUnknwn", "MW6007 DeviceUnknown")]
)
def test_an_unknown_code_is_refused_with_the_nearest(
    asked: str, meant: str, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(["errors", asked]) == 2
    assert f"did you mean {meant}?" in capsys.readouterr().err


def test_what_is_near_to_nothing_is_refused_all_the_same(capsys: pytest.CaptureFixture[str]) -> None:
    assert nearest("banana", [kind.code for kind in catalogue()]) is None
    assert main(["errors", "banana"]) == 2
    assert "`plan errors -v` lists all" in capsys.readouterr().err
