"""What is there already is kept."""

from __future__ import annotations

import json
from hashlib import sha256
from pathlib import Path

import pytest

from meshwright.ir.errors import OutputTaken, PlanUnwritable
from meshwright.planner.cli.output import check_files, check_plan, folder_of, remember

PLAN = {"format_version": 1, "model": {"ref": "model.py:make"}}


@pytest.mark.parametrize(
    "text",
    [
        "{}",
        "[]",
        "no JSON",
        '{"model": {"ref": "model.py:make"}}',
        "[" * 100_000,
        '{"format_version": 1, "model": 3}',
        json.dumps(PLAN | {"model": {"ref": "other.py:make"}}),
    ],
    ids=range(7),
)
def test_a_file_of_something_else_is_not_written_over(text: str, tmp_path: Path) -> None:
    file = tmp_path / "plan.json"
    check_plan(file, "model.py:make", force=False)
    file.write_text(text)
    with pytest.raises(OutputTaken, match="--force"):
        check_plan(file, "model.py:make", force=False)
    check_plan(file, "model.py:make", force=True)
    file.write_text(json.dumps(PLAN))
    check_plan(file, "model.py:make", force=False)


def test_a_script_is_written_over_as_it_was_left(tmp_path: Path) -> None:
    def write(text: str) -> None:
        check_files(tmp_path, ["train.py"], force=False)
        (tmp_path / "train.py").write_text(text)
        remember(tmp_path, {"train.py": text})

    write("a")
    write("b")
    (tmp_path / "train.py").write_text("by hand")
    with pytest.raises(OutputTaken, match="changed"):
        check_files(tmp_path, ["train.py"], force=False)
    check_files(tmp_path, ["train.py"], force=True)
    (tmp_path / ".meshwright.json").unlink()
    with pytest.raises(OutputTaken, match="not written here"):
        check_files(tmp_path, ["train.py"], force=False)


def test_a_name_too_long_for_a_file_is_nothing_to_keep() -> None:
    """Whoever writes there says so."""
    folder = Path("x" * 300)
    check_files(folder, ["train.py"], force=False)
    check_plan(folder / "plan.json", "a", force=False)


def test_no_name_is_no_folder() -> None:
    with pytest.raises(PlanUnwritable):
        folder_of("")


def test_what_is_taken_is_refused_in_full(tmp_path: Path) -> None:
    """A plan of another model, what is no plan, what was written elsewhere, and what was changed since. What was
    written before is still known when more is."""
    file = tmp_path / "plan.json"
    fix = "name another directory with --out, or write over it with --force"
    other = json.dumps({"format_version": 1, "model": {"ref": "b.py:b"}})
    for text, cause in (
        (other, "it is a plan of b.py:b, and this is one of a.py:a"),
        (other.replace("format_version", "version"), "it is there, and is no plan"),
        ("[1]", "it is there, and is no plan"),
    ):
        file.write_text(text)
        with pytest.raises(OutputTaken) as refused:
            check_plan(file, "a.py:a", force=False)
        assert (refused.value.place, refused.value.cause, refused.value.fix) == (str(file), cause, fix)
    for name in ("one", "two"):
        (tmp_path / name).write_text(name)
        remember(tmp_path, {name: name})
    check_files(tmp_path, ["one", "two", "none"], force=False)
    known = json.loads((tmp_path / ".meshwright.json").read_text())
    assert known == {name: sha256(name.encode()).hexdigest() for name in ("one", "two")}
    (tmp_path / "two").write_text("by hand")
    (tmp_path / "three").write_text("by hand")
    for name, cause in (
        ("two", "it was changed since it was written"),
        ("three", "it is there, and was not written here"),
    ):
        with pytest.raises(OutputTaken) as refused:
            check_files(tmp_path, ["one", name], force=False)
        assert (refused.value.place, refused.value.cause) == (str(tmp_path / name), cause)
    check_files(tmp_path, ["one", "two", "three"], force=True)
    assert folder_of("x") == Path("x")
