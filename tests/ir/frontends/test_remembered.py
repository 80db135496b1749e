"""A model that an earlier run saw is not loaded again, as long as nothing that it follows from has changed."""

import subprocess
import sys
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from meshwright.ir.errors import ForwardRaised, ModelTimedOut
from meshwright.ir.files.store import Store
from meshwright.ir.frontends import remembered
from meshwright.ir.frontends.folding.captured import Captured
from meshwright.ir.frontends.remembered import ABSENT, UNSEEN, Remembered, digest_of, watched
from meshwright.ir.graph.fold import Fold
from meshwright.ir.rules.opaque import register_rule, unregister_rule

CAPTURED = Captured(Fold((), (), (), (), ()), 7, ())


@dataclass
class Files:
    """A model of two files and one that is not there, and what is asked of it."""

    folder: Path
    loads: int = 0
    captures: int = 0
    refuses: list[Exception] = field(default_factory=list)

    def __post_init__(self) -> None:
        (self.folder / "model.py").write_text("import helper")
        (self.folder / "settings.json").write_text("{}")

    def load(self) -> Any:
        self.loads += 1
        for name in ("model.py", "settings.json", "missing.json"):
            if (path := self.folder / name).exists():
                path.read_text()
            else:
                with pytest.raises(FileNotFoundError):
                    path.open()
        return SimpleNamespace(framework="torch_", place="here", config="of it", as_made=lambda: None)

    def capture_of(self, source: Any, **asked: Any) -> Captured:
        self.captures += 1
        if self.refuses:
            raise self.refuses[0]
        return CAPTURED

    def source(self, dtype: str = "bf16") -> Remembered:
        """The model in a new run."""
        store = Store(self.folder / "kept")
        return Remembered.of(store, self.load, lambda _: self, str(self.folder / "model.py:make"), dtype)

    def run(self, **asked: Any) -> tuple[int, int]:
        """What a run loads and captures, in numbers."""
        before = self.loads, self.captures
        source = self.source(asked.pop("dtype", "bf16"))
        found = source.capture_of(source, **{"batch": 2, "seq": 8, "seed": 0} | asked)
        assert found == CAPTURED
        assert (source.framework, source.place, source.config) == ("torch_", "here", "of it")
        return self.loads - before[0], self.captures - before[1]


@pytest.fixture
def files(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Files:
    monkeypatch.setattr(remembered, "_imported", lambda: ())
    return Files(tmp_path)


def test_a_second_run_loads_nothing(files: Files) -> None:
    assert files.run() == (1, 1)
    assert files.run() == (0, 0)
    assert files.run(seq=16) == (1, 1)
    assert files.run(seq=16) == (0, 0)
    assert files.run(dtype="fp32") == (1, 1)


CHANGES: dict[str, Callable[[Files], object]] = {
    "the model's file": lambda files: (files.folder / "model.py").write_text("import other"),
    "a file that it reads": lambda files: (files.folder / "settings.json").write_text("[]"),
    "a file that it looked for": lambda files: (files.folder / "missing.json").write_text("{}"),
    "a file that is gone": lambda files: (files.folder / "settings.json").unlink(),
}


@pytest.mark.parametrize("change", CHANGES)
def test_whatever_changes_it_is_loaded_again(change: str, files: Files) -> None:
    assert files.run() == (1, 1)
    CHANGES[change](files)
    assert files.run() == (1, 1)
    assert files.run() == (0, 0)


def test_a_model_that_reads_the_environment_is_loaded_every_time(files: Files) -> None:
    (files.folder / "model.py").write_text("import os\nsize = int(os.environ['SIZE'])")
    assert files.run() == (1, 1)
    assert files.run() == (1, 1)


def test_a_model_with_rules_of_its_own_is_loaded_every_time(files: Files) -> None:
    register_rule("mylib::kept", "b -> b")
    try:
        assert files.run() == (1, 1)
        assert files.run() == (1, 1)
    finally:
        unregister_rule("mylib::kept")


def test_modules_that_were_imported_before_count(files: Files, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(remembered, "_imported", lambda: [str(files.folder / "helper.py")])
    (files.folder / "helper.py").write_text("1")
    assert files.run() == (1, 1)
    assert files.run() == (0, 0)
    (files.folder / "helper.py").write_text("2")
    assert files.run() == (1, 1)


def test_a_refusal_is_known_again(files: Files) -> None:
    """With the same words; what took too long may be quicker next time."""
    files.refuses = [ForwardRaised(place="here", cause="a type", fix="change it")]
    for expected in (1, 0):
        before, source = files.captures, files.source()
        with pytest.raises(ForwardRaised, match=r"MW1011 at here: a type\n  fix: change it"):
            source.capture_of(source, batch=2, seq=8, seed=0)
        assert files.captures - before == expected
    files.refuses = [ModelTimedOut(place="here", cause="late", fix="wait")]
    for _ in range(2):
        before, source = files.captures, files.source()
        with pytest.raises(ModelTimedOut):
            source.capture_of(source, batch=4, seq=8, seed=0)
        assert files.captures - before == 1


def test_the_model_as_it_was_made_is_another_one(files: Files) -> None:
    """That is kept, too; and where it is the same one, nothing is."""
    assert files.run() == (1, 1)
    assert files.source().as_made() is None
    made = SimpleNamespace(framework="torch_", place="as made", config="fp32")
    files.load = lambda: SimpleNamespace(as_made=lambda: made)  # type: ignore[method-assign]
    source = files.source().as_made()
    assert source is not None
    assert source.place == "as made"
    source.capture_of(source, batch=2, seq=8, seed=0)
    files.load = lambda: pytest.fail("it is known")  # type: ignore[method-assign]
    again = files.source().as_made()
    assert again is not None
    assert again.place == "as made"
    assert again.capture_of(again, batch=2, seq=8, seed=0) == CAPTURED


def test_files_that_are_read_are_seen(tmp_path: Path) -> None:
    """Those that are written are not, nor what is installed, nor what is read when nobody asks."""
    for name in ("before", "read", "bytes", "after"):
        (tmp_path / name).write_text("")
    (tmp_path / "before").read_text()
    seen: set[str] = set()
    with watched(seen):
        (tmp_path / "read").read_text()
        (tmp_path / "bytes").read_bytes()
        (tmp_path / "written").write_text("")
        Path(pytest.__file__).read_text()
        Path(remembered.__file__).read_text()
    (tmp_path / "after").read_text()
    assert seen == {str(tmp_path / "read"), str(tmp_path / "bytes")}


def test_a_module_is_seen_by_its_source(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A compiled one is what is opened from the second import on."""
    (tmp_path / "seen_module.py").write_text("ONE = 1")
    monkeypatch.syspath_prepend(str(tmp_path))
    for _ in range(2):
        seen: set[str] = set()
        sys.modules.pop("seen_module", None)
        with watched(seen):
            __import__("seen_module")
        assert str(tmp_path / "seen_module.py") in seen


def test_digests(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(remembered, "MOST_FILE_BYTES", 10)
    path = tmp_path / "file"
    assert digest_of(str(path)) == ABSENT
    path.write_text("0123456789")
    assert len(digest_of(str(path))) == 64
    path.write_text("0123456789a")
    assert digest_of(str(path)) == UNSEEN
    assert digest_of(str(tmp_path)) == UNSEEN


SCRIPT = """
import re
import sys
from meshwright.ir.files.store import usual
from meshwright.ir.frontends.door import calls_of, capture, read_again
from meshwright.ir.graph.digest import digest

source = read_again(sys.argv[1], dtype="bf16", store=usual())
found = capture(source, batch=2, seq=16)
calls = calls_of(source, sys.argv[1], batch=2, seq=16, stacks=found.stacks)
words = re.split(r"[ ,{}]+", f"{found} {calls}")  # sets have no order
print(digest(found.fold, source.config), *sorted(words))
print([name for name in ("torch", "transformers", "jax") if name in sys.modules], file=sys.stderr)
"""


@pytest.mark.parametrize("model", ["llama.py:tiny", "configs/gpt2", "jax_llama.py:tiny"])
def test_the_second_run_imports_no_framework_and_finds_the_same(
    model: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("MESHWRIGHT_CACHE", str(tmp_path))
    reference = str(Path(__file__).parents[3] / "examples" / model)
    command = [sys.executable, "-c", SCRIPT, reference]
    runs = [subprocess.run(command, capture_output=True, text=True, timeout=120, check=True) for _ in range(2)]
    first, second = ((run.stdout, run.stderr.splitlines()[-1]) for run in runs)
    assert first[0] == second[0]
    assert first[1] != "[]"
    assert second[1] == "[]"
    assert list(tmp_path.iterdir())
