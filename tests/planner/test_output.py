"""What is there already is kept."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from meshwright.ir.errors import OutputTaken, PlanUnwritable
from meshwright.planner.output import check_files, check_plan, folder_of, remember

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
