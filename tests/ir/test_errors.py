"""The catalogue: what an error says, how it is numbered, and that its page is current."""

import inspect
import pickle
import re
from collections.abc import Iterable
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from meshwright.ir import errors
from meshwright.ir.errors import (
    FactoryMissing,
    MeshwrightError,
    ModelError,
    NoExampleInputs,
    NoLoss,
    catalogue,
    closest,
    instead,
    nearest,
    render,
    within,
)

ROOT = Path(__file__).parents[2]
PAGE = ROOT / "docs" / "errors.md"
# The exit codes that are promised to scripts; 0, 130 and 141 are no errors of the catalogue.
EXIT_CODES = {1, 2, 3, 4, 5, 6, 7, 8}

error = FactoryMissing(place="net.py", cause="the file defines no 'build'", fix="name one of its functions: 'model'")


def test_an_error_says_code_place_cause_and_fix() -> None:
    assert str(error) == (
        "error MW1002 at net.py: the file defines no 'build'\n  fix: name one of its functions: 'model'"
    )
    assert error.to_json() == {
        "code": "MW1002",
        "kind": "FactoryMissing",
        "exit_code": 2,
        "place": "net.py",
        "cause": "the file defines no 'build'",
        "fix": "name one of its functions: 'model'",
    }


def test_a_name_in_an_error_moves_no_cursor() -> None:
    told = str(FactoryMissing(place="a\x1b[2J\n\udcff.py", cause="first\nsecond\r", fix="name it"))
    assert told == "error MW1002 at a\\x1b[2J\\n\\udcff.py: first\nsecond\\r\n  fix: name it"


def test_an_error_survives_the_way_back_from_another_process() -> None:
    back = pickle.loads(pickle.dumps(error))
    assert type(back) is FactoryMissing
    assert str(back) == str(error)


def test_codes_are_listed_in_order_and_once() -> None:
    codes = [kind.code for kind in catalogue()]
    assert codes == sorted(set(codes))


def test_every_module_is_taken_in_and_no_class_hides_another() -> None:
    """The package is made of star imports: a module left out, or a name used twice, would lose errors in silence."""
    files = {f"{errors.__name__}.{path.stem}" for path in (ROOT / "ir" / "errors").glob("[!_]*.py")}
    assert files
    assert files - {getattr(thing, "__module__", "") for thing in vars(errors).values()} == set()
    assert [kind for kind in catalogue() if vars(errors).get(kind.__name__) is not kind] == []


def test_a_family_gives_out_its_codes_in_one_module_and_in_order() -> None:
    """Two classes that take the same next code meet in one place, in review and in a merge."""
    codes: dict[tuple[str, str], list[str]] = {}
    for kind in vars(errors).values():
        if inspect.isclass(kind) and issubclass(kind, MeshwrightError) and "code" in vars(kind):
            codes.setdefault((kind.family, kind.__module__), []).append(kind.code)
    families, modules = zip(*codes, strict=True)
    assert len(codes) == len(set(families)) == len(set(modules))
    assert [listed for listed in codes.values() if listed != sorted(listed)] == []


@pytest.mark.parametrize("kind", catalogue(), ids=lambda kind: kind.code)
def test_every_kind_is_explained_and_has_a_promised_exit_code(kind: type[MeshwrightError]) -> None:
    assert kind.exit_code in EXIT_CODES
    # Its own docstring, not its family's.
    assert kind.__dict__["__doc__"].strip().endswith(".")


def test_the_page_is_current() -> None:
    assert PAGE.read_text() == render(), "run: python -m meshwright.ir.errors > docs/errors.md"


@pytest.mark.parametrize(
    ("code", "says"),
    [("MW1002", "taken by FactoryMissing"), ("MW2999", "is not 'MW1' and three digits"), ("MW12", "three digits")],
)
def test_a_bad_code_is_refused_where_the_class_is_defined(code: str, says: str) -> None:
    before = catalogue()
    with pytest.raises(TypeError, match=says):
        type("Impostor", (ModelError,), {"code": code})
    assert catalogue() == before


def test_a_hook_can_be_pasted_as_it_is_printed() -> None:
    refusal = NoLoss(place="net.py", cause="the output is a (2, 8, 32) tensor", fix=f"add to net.py:\n{NoLoss.hook}")
    _, _, pasted = str(refusal).partition("add to net.py:\n")
    module: dict[str, object] = {}
    exec(pasted + NoExampleInputs.hook, module)  # noqa: S102
    assert list(inspect.signature(module["loss"]).parameters) == ["outputs", "batch"]
    assert list(inspect.signature(module["example_inputs"]).parameters) == ["batch", "seq"]


def test_hooks_agree_with_each_other() -> None:
    """The batch that one hook makes is the batch that the other one reads."""
    import torch

    module: dict[str, object] = {}
    exec(NoExampleInputs.hook + NoLoss.hook, module)  # noqa: S102
    batch = module["example_inputs"](2, 8)
    loss = module["loss"](torch.zeros(2, 8, 32), batch)
    assert loss.shape == ()
    assert loss.item() == pytest.approx(torch.tensor(32.0).log().item())


def test_nearest_suggests_a_word_only_if_one_is_close() -> None:
    assert nearest("hiden_size", {"hidden_size", "layers"}) == "hidden_size"
    assert nearest("banana", {"hidden_size", "layers"}) is None
    assert nearest("BF16", ("fp16", "bf16")) == "bf16", "whatever its case"
    assert nearest("pt", ("tp", "pp", "dp")) == "tp", "letters in another order"
    assert nearest("flod", ("load", "fold")) == "fold"
    assert closest("H10", ("h100", "H10-a", "H1", "T4"), most=2) == ["h100", "H1"]
    assert instead("flod", ("load", "fold")) == "did you mean 'fold'?"
    assert instead("nothing", ("load", "fold")) == "use one of load, fold"


@given(words=st.lists(st.text("abXY-1", max_size=8), max_size=8), data=st.data())
def test_nearest_does_not_depend_on_an_order_and_knows_what_is_known(words: list[str], data: st.DataObject) -> None:
    asked = data.draw(st.sampled_from(words) | st.text("abXY-1", max_size=8)) if words else "ab"
    found = nearest(asked, words)
    assert found == nearest(asked, data.draw(st.permutations(words)))
    assert found is None or found in words
    if asked in words:
        assert found is not None
        assert sorted(found.casefold()) == sorted(asked.casefold())


def test_every_kind_is_raised_somewhere_and_tested_somewhere() -> None:
    """By name: in the rooms, and in a test other than these."""
    rooms = [
        path
        for room in ("ir", "planner", "backends", "calibrate", "cost_models")
        for path in ROOT.glob(f"{room}/**/*.py")
    ]
    raised = words(path for path in rooms if path.parent != ROOT / "ir" / "errors")
    tested = words(path for path in ROOT.glob("tests/**/*.py") if path != Path(__file__))
    for kind in catalogue():
        assert kind.__name__ in raised, f"nothing raises {kind.__name__}"
        assert not tested.isdisjoint((kind.__name__, kind.code)), f"no test meets {kind.__name__}"


def words(paths: Iterable[Path]) -> set[str]:
    """All words of some files."""
    return {word for path in paths for word in re.findall(r"\w+", path.read_text())}


def test_a_refusal_says_what_its_place_is_in() -> None:
    """Once, whoever else says so; as the same kind of error, with what it was raised from."""
    for place, said in (("build", "net.py, build"), ("net.py:3", "net.py:3"), ("net.py, build", "net.py, build")):
        original = FactoryMissing(place=place, cause="none", fix="write one")
        with pytest.raises(FactoryMissing) as told, within("net.py"):
            raise original
        assert (told.value.place, told.value.cause, told.value.fix) == (said, "none", "write one")
        assert (told.value if said == place else told.value.__cause__) is original
