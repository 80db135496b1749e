"""Answers of a corpus: what is asked can be asked, and what is not the same is shown."""

from __future__ import annotations

from pathlib import Path

import pytest

from benchmarks.corpus import COLUMNS, answer, main, questions
from meshwright.planner.cli.main import VERBS, build_parser


def test_every_question_is_a_command_line_about_a_model_that_exists() -> None:
    parser, asked = build_parser(VERBS), list(questions())
    for verb, model, words in asked:
        args = parser.parse_args([verb, f"examples/{model}", *words.split()])
        assert Path(args.model.partition(":")[0]).exists(), model
        assert verb == "inspect" or (args.seq and args.global_batch), words
    assert len(asked) == len(set(asked)) >= 60


def test_an_answer_is_the_same_wherever_it_is_kept(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    """And one that is not is shown, as a file that one of them lacks is."""
    monkeypatch.setenv("COLUMNS", COLUMNS)
    one, other = (tmp_path / name / "000" for name in ("one", "another"))
    words = "--cluster cpu:2 --target torch-gloo --global-batch 8 --seq 16 --fix tp=2"
    for folder in (one, other):
        folder.mkdir(parents=True)
        assert answer(folder, "plan", "small.py:tied", words) == 0
    assert (one / "files" / "train.py").exists()
    both = [str(one.parent), "--against", str(other.parent)]
    assert main(both) == 0
    (other / "files" / "launch.sh").unlink()
    text = (other / "answer").read_text()
    (other / "answer").write_text(text.replace("exit 0", "exit 1"))
    capsys.readouterr()
    assert main(both) == 1
    said = capsys.readouterr().out
    assert "only in one of them: 000/files/launch.sh" in said
    assert "-exit 0" in said
    assert "+exit 1" in said
