"""The same question is answered once; whatever changes it is asked anew."""

from pathlib import Path

import pytest

from meshwright.ir.frontends import remembered
from meshwright.planner.answer import kept
from meshwright.planner.cli.main import main

MODEL = str(Path(__file__).parents[2] / "examples" / "tiny_decoder.toml")
ASKED = ("plan", MODEL, "--cluster", "cpu:2", "--global-batch", "8", "--seq", "64")


@pytest.fixture(scope="module")
def answered(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder in which the answer to the question is kept."""
    folder = tmp_path_factory.mktemp("answered")
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("MESHWRIGHT_CACHE", str(folder))
        patch.setattr(remembered, "_imported", lambda: ())
        assert main([*ASKED]) == 0
    return folder


@pytest.fixture
def solved(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """A cluster for every search that is run, with results kept in a new folder."""
    searches: list[str] = []
    solve = kept.solve

    def counted(ask, *rest):  # type: ignore[no-untyped-def]
        searches.append(ask.cluster_reference)
        return solve(ask, *rest)

    monkeypatch.setenv("MESHWRIGHT_CACHE", str(tmp_path / "kept"))
    monkeypatch.setattr(remembered, "_imported", lambda: ())
    monkeypatch.setattr(kept, "solve", counted)
    return searches


def test_an_answer_is_kept(solved: list[str], tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    told, files = [], []
    for name in ("dir-1", "dir-2"):
        assert main([*ASKED, "--out", str(tmp_path / name)]) == 0
        told.append(capsys.readouterr().out.replace(name, "?"))
        files.append((tmp_path / name / "plan.json").read_bytes())
    assert solved == ["cpu:2"]
    assert told[0] == told[1]
    assert files[0] == files[1]


@pytest.mark.parametrize(
    "changed",
    [
        ("--global-batch", "16"),
        ("--seq", "32"),
        ("--top", "2"),
        ("--fix", "tp=2"),
        ("--forbid", "tp=2"),
        ("--objective", "memory"),
        ("--seed", "1"),
        ("--optimizer", "sgd"),
        ("--no-cache",),
        ("--time-limit", "600"),
    ],
)
def test_what_changes_a_question(
    changed: tuple[str, ...], solved: list[str], answered: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """An answer that was found without a limit is one within any limit."""
    monkeypatch.setenv("MESHWRIGHT_CACHE", str(answered))
    assert main([*ASKED, *changed]) == 0
    assert len(solved) == ("--time-limit" not in changed)
    assert main([*ASKED]) == 0
    assert len(solved) == ("--time-limit" not in changed)


@pytest.mark.parametrize("limited", [("--time-limit", "600"), ("--no-cache",)])
def test_what_is_not_kept(limited: tuple[str, ...], solved: list[str]) -> None:
    for _ in range(2):
        assert main([*ASKED, *limited]) == 0
    assert len(solved) == 2


def test_another_model_under_the_same_name(solved: list[str], tmp_path: Path) -> None:
    model = tmp_path / "model.toml"
    asked = [str(model) if word == MODEL else word for word in ASKED]
    for text in (Path(MODEL).read_text(), f"{Path(MODEL).read_text()}\n# changed\n"):
        model.write_text(text)
        for _ in range(2):
            assert main(asked) == 0
    assert len(solved) == 2


def test_an_answer_of_another_form_is_found_again(
    solved: list[str], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    assert main([*ASKED]) == 0
    monkeypatch.setattr("meshwright.planner.answer.kept.plan_text", lambda plan: "{}")
    for path in (tmp_path / "kept").iterdir():
        if b"format_version" in path.read_bytes():
            path.unlink()
    for _ in range(2):
        assert main([*ASKED]) == 0
    assert len(solved) == 3
