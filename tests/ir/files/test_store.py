"""What is kept from run to run: whole or not at all, within its limit, and nothing that runs."""

import os
import pickle
import tempfile
from multiprocessing import get_context
from pathlib import Path
from types import MappingProxyType
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from meshwright.ir.files import store
from meshwright.ir.files.store import Store, key_of, usual
from meshwright.ir.graph.graph import Graph, Type
from tests.ir.strategies import graphs

PLAIN = st.recursive(
    st.none() | st.booleans() | st.integers() | st.text() | st.binary() | st.floats(allow_nan=False),
    lambda inside: (
        st.lists(inside) | st.tuples(inside, inside) | st.dictionaries(st.text(), inside) | st.frozensets(st.text())
    ),
    max_leaves=20,
)


@given(value=PLAIN, key=st.text(min_size=1, max_size=20))
def test_what_is_kept_is_found(value: Any, key: str) -> None:
    with tempfile.TemporaryDirectory() as folder:
        kept = Store(Path(folder) / "new")
        assert kept.get(key_of(key)) is None
        kept.put(key_of(key), (value, "whole"))
        assert kept.get(key_of(key)) == (value, "whole")
        assert kept.get(key_of(key, "other")) is None


@given(graph=graphs())
def test_a_graph_is_found_as_it_was(graph: Graph) -> None:
    with tempfile.TemporaryDirectory() as folder:
        kept = Store(Path(folder))
        kept.put("graph", graph)
        found = kept.get("graph")
        assert found == graph
        assert isinstance(found.types, MappingProxyType)


@given(length=st.integers(0, 200), changed=st.integers(0, 255))
def test_a_file_that_is_cut_or_changed_is_missing_or_read(length: int, changed: int) -> None:
    """Nothing is raised, whatever is in it."""
    with tempfile.TemporaryDirectory() as folder:
        kept = Store(Path(folder))
        kept.put("one", (Type((2, 3), "f32"), "text"))
        whole = kept.path("one").read_bytes()
        kept.path("one").write_bytes(whole[:length])
        assert kept.get("one") is None or length >= len(whole)
        kept.path("one").write_bytes(whole[:length] + bytes([changed]) + whole[length + 1 :])
        kept.get("one")


class Runs:
    """A value whose reading would run a function."""

    def __init__(self, function: Any, *args: Any) -> None:
        self.function, self.args = function, args

    def __reduce__(self) -> Any:
        return self.function, self.args


def dotted(module: str, name: str) -> bytes:
    """A file that asks for an attribute of an attribute of a module of ours, and calls it."""
    return (
        b"\x80\x04"
        + b"".join(b"\x8c" + bytes([len(text)]) + text.encode() for text in (module, name))
        + b"\x93"
        + (b"\x8c\x09touch hit\x85R.")
    )


@pytest.mark.parametrize(
    "written",
    [
        pickle.dumps(Runs(os.system, "touch hit")),
        pickle.dumps(Runs(eval, "open('hit', 'w')")),
        pickle.dumps(Runs(key_of, "one")),
        dotted("meshwright.ir.files.store", "os.system"),
        dotted("meshwright.ir.files.store", "Store.clear"),
        dotted("meshwright.ir.processes", "os"),
    ],
)
def test_a_file_runs_nothing(written: bytes, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    kept = Store(tmp_path)
    kept.path("one").write_bytes(written)
    assert kept.get("one") is None
    assert not (tmp_path / "hit").exists()


def test_what_was_used_longest_ago_makes_room(tmp_path: Path) -> None:
    kept = Store(tmp_path, most_bytes=4500)
    for number in range(4):
        kept.put(str(number), b"x" * 1000)
        os.utime(kept.path(str(number)), ns=(number, number))
    assert kept.get("0") is not None
    kept.put("4", b"x" * 1000)
    assert [number for number in range(5) if kept.get(str(number)) is None] == [1]
    assert kept.nbytes <= 4500
    assert kept.clear() == 4
    assert kept.entries() == []


def _writes(folder: Path, letter: str) -> None:
    for _ in range(50):
        Store(folder).put("one", letter * 100_000)


def test_readers_find_whole_entries_while_others_write(tmp_path: Path) -> None:
    processes = [get_context("fork").Process(target=_writes, args=(tmp_path, letter)) for letter in "abc"]
    for process in processes:
        process.start()
    seen = set()
    while any(process.is_alive() for process in processes):
        if (found := Store(tmp_path).get("one")) is not None:
            assert len(found) == 100_000
            seen |= set(found)
            assert len(set(found)) == 1
    for process in processes:
        process.join(60)
    assert seen
    assert [path.name for path, _ in Store(tmp_path).entries()] == ["one.kept"]


def test_a_folder_that_cannot_be_had_keeps_nothing(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("")
    kept = Store(tmp_path / "file")
    kept.put("one", 1)
    assert kept.get("one") is None
    assert kept.entries() == []
    kept = Store(tmp_path)
    kept.put("one", lambda: None)
    assert kept.entries() == []


def test_where_it_is(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv(store.VARIABLE, "off")
    assert usual() is None
    monkeypatch.setenv(store.VARIABLE, str(tmp_path))
    assert usual() == Store(tmp_path)
    monkeypatch.delenv(store.VARIABLE)
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    assert usual() == Store(tmp_path / "meshwright" / "results")


def test_another_state_of_the_programs_is_another_key(monkeypatch: pytest.MonkeyPatch) -> None:
    before = key_of("one")
    assert key_of("one") == before
    monkeypatch.setattr(store, "stamp", lambda: "other")
    assert key_of("one") != before


def test_the_stamp_follows_from_sources_and_from_what_is_installed(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    package, installed = tmp_path / "own", tmp_path / "site-packages"
    (package / "room").mkdir(parents=True)
    (package / "__init__.py").write_text("")
    (package / "room" / "one.py").write_text("1")
    installed.mkdir()
    monkeypatch.setattr(store.meshwright, "__file__", str(package / "__init__.py"))
    monkeypatch.setattr(store.sys, "path", [str(installed), "", str(tmp_path)])
    made = store.stamp.__wrapped__
    stamps = [made()]
    (package / "room" / "one.py").write_text("12")
    stamps.append(made())
    (installed / "torch-2.0.dist-info").mkdir()
    stamps.append(made())
    os.utime(installed / "torch-2.0.dist-info", ns=(1, 1))  # the same version, installed again
    stamps.append(made())
    (package / "room" / "notes.md").write_text("no source")
    assert made() == stamps[-1]
    assert len(set(stamps)) == 4
