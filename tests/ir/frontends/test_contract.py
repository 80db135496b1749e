"""Model files: the contract, and every way in which a file can be refused."""

from __future__ import annotations

import signal
import sys
import time
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

import pytest
import torch
from torch import nn

from meshwright.ir.errors import (
    DataDependentControlFlow,
    EmptyModel,
    FactoryMissing,
    FactoryRaised,
    ForwardRaised,
    HookUnusable,
    MeshwrightError,
    ModelFileExited,
    ModelFileMissing,
    ModelKindUnknown,
    ModelTimedOut,
    ModelTooLarge,
    NoExampleInputs,
    NoLoss,
    UnsupportedDtype,
)
from meshwright.ir.frontends import contract, foreign
from meshwright.ir.frontends.door import capture, load_model
from meshwright.ir.frontends.torch_.sources import factory
from meshwright.ir.frontends.torch_.sources.factory import Hooks, TorchSource, source_of
from meshwright.ir.limits import MODULES

HEAD = """
import torch
from torch import nn

class Net(nn.Module):
    def __init__(self):
        super().__init__()
        self.linear = nn.Linear(4, 4)

    def forward(self, x):
        return self.linear(x)

def build():
    return Net()

def example_inputs(batch, seq):
    return {"x": torch.zeros(batch, seq, 4)}

def loss(outputs, batch):
    return outputs.sum()
"""


def written(folder: Path, text: str, name: str = "model.py") -> str:
    path = folder / name
    path.write_text(text)
    return f"{path}:build"


def refused(folder: Path, text: str, kind: type[MeshwrightError]) -> MeshwrightError:
    """The error of loading and tracing this file; it names a place and a fix."""
    with pytest.raises(kind) as caught:
        capture(load_model(written(folder, text), time_limit_s=60), batch=2, seq=3)
    error = caught.value
    assert error.place
    assert error.cause
    assert error.fix
    return error


def test_a_model_file_is_read(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    found = capture(load_model(written(tmp_path, HEAD + "\nprint('hello')\n")), batch=2, seq=3)
    assert found.parameters == 20
    shown = capsys.readouterr()
    assert shown.out == ""
    assert "this executes the file" in shown.err
    assert "hello" in shown.err


def test_prints_of_the_factory_and_hooks_stay_off_standard_output(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    text = HEAD.replace("    return Net()", "    print('building')\n    return Net()")
    capture(load_model(written(tmp_path, text)), batch=2, seq=3)
    assert capsys.readouterr().out == ""


def test_prints_and_exits_of_the_forward_pass(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    text = HEAD.replace("        return self.linear(x)", "        print('running')\n        return self.linear(x)")
    capture(load_model(written(tmp_path, text)), batch=2, seq=3)
    assert capsys.readouterr().out == ""
    refused(tmp_path, text.replace("print('running')", "raise SystemExit(3)"), ModelFileExited)


HOSTILE = """
class Hostile(BaseException):
    def __str__(self):
        raise self
    __repr__ = __str__

def endless():
    return endless()
"""
WAYS = ("raise Hostile()", "raise KeyboardInterrupt", "raise GeneratorExit", "raise StopIteration", "endless()")
PLACES = {
    "the file": ("def build():", "{}\n\ndef build():", FactoryRaised),
    "the factory": ("    return Net()", "    {}\n    return Net()", FactoryRaised),
    "the batch": ("    return {", "    {}\n    return {", FactoryRaised),
    "the forward pass": ("        return self.linear(x)", "        {}\n        return self.linear(x)", ForwardRaised),
    "the loss": ("    return outputs.sum()", "    {}\n    return outputs.sum()", ForwardRaised),
    "a method of torch's": (
        "    def forward",
        "    def train(self, mode=True):\n        {}\n\n    def forward",
        FactoryRaised,
    ),
}


@pytest.mark.parametrize("way", ["raise Slow", "import sys; sys.exit(Slow())", "return Slow()"])
def test_what_never_says_what_it_is_is_not_waited_for(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, way: str
) -> None:
    monkeypatch.setattr(foreign, "MESSAGE_LIMIT_S", 0.05)
    slow = "class Slow(BaseException):\n    def __repr__(self):\n        while True:\n            pass\n\n"
    text = slow + HEAD.replace("    return Net()", f"    {way}\n    return Net()")
    with pytest.raises((FactoryRaised, ModelFileExited)):
        load_model(written(tmp_path, text))


def test_a_limit_goes_on_after_one_within_it() -> None:
    def both() -> None:
        with foreign.contained("outer", 0.2):
            with foreign.contained("inner", 5):
                pass
            time.sleep(5)

    with pytest.raises(ModelTimedOut, match=r"after 0\.2 s"):
        both()


@pytest.mark.parametrize("place", PLACES)
@pytest.mark.parametrize("way", WAYS)
def test_whatever_a_model_file_raises_is_an_error_of_its_line(tmp_path: Path, place: str, way: str) -> None:
    before, after, kind = PLACES[place]
    text = HOSTILE + HEAD.replace(before, after.replace("{}", way, 1))
    error = refused(tmp_path, text, kind)
    line = text.splitlines().index(next(one for one in text.splitlines() if one.strip() == way)) + 1
    assert error.place.endswith(f"model.py:{line if 'endless' not in way else 8}")


@pytest.fixture
def _hears_ctrl_c() -> Iterator[None]:
    """Whoever starts tests in the background has them ignore Ctrl-C."""
    before = signal.signal(signal.SIGINT, signal.default_int_handler)
    yield
    signal.signal(signal.SIGINT, before)


@pytest.mark.usefixtures("_hears_ctrl_c")
def test_a_ctrl_c_is_one_even_where_the_file_swallows_it(tmp_path: Path) -> None:
    for swallows in (False, True):
        press = "import os, signal\n    os.kill(os.getpid(), signal.SIGINT)"
        body = f"try:\n        {press.replace('    ', '        ')}\n    except BaseException:\n        pass"
        text = HEAD.replace("    return Net()", f"    {body if swallows else press}\n    return Net()")
        with pytest.raises(KeyboardInterrupt):
            load_model(written(tmp_path, text))


@pytest.mark.parametrize(
    ("change", "kind", "says"),
    [
        ("net.net = net", FactoryRaised, "net contains itself: it is the model"),
        ("net.all = nn.ModuleList([nn.ModuleList([net])])", FactoryRaised, "all.0.0 contains itself"),
        ("for _ in range(300): net = nn.Sequential(net)", ModelTooLarge, "129 levels of modules"),
    ],
)
def test_modules_are_a_tree(tmp_path: Path, change: str, kind: type[MeshwrightError], says: str) -> None:
    text = HEAD.replace("    return Net()", f"    net = Net()\n    {change}\n    return net")
    assert says in refused(tmp_path, text, kind).cause


@pytest.mark.parametrize(
    "made",
    [
        "nn.ModuleList(nn.Identity() for _ in iter(int, 1))",
        "nn.ModuleList([nn.Identity() for _ in iter(int, 1)])",
        "nn.TransformerEncoder(nn.TransformerEncoderLayer(4, 1), 10**9)",
    ],
)
def test_a_model_of_too_many_modules_is_refused_while_it_is_built(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, made: str
) -> None:
    """Also where none of them is registered before all are made, and where they are copies."""
    monkeypatch.setattr(factory, "MODULES", replace(MODULES, most=100))
    text = HEAD.replace("    return Net()", f"    return {made}")
    assert "101 modules of a model, and at most 100" in refused(tmp_path, text, ModelTooLarge).cause
    assert nn.Linear(1, 1).in_features == 1  # nothing is counted any more


def test_modules_that_are_shared_are_no_circle(tmp_path: Path) -> None:
    text = HEAD.replace("    return Net()", "    net = Net()\n    net.again = net.linear\n    return net")
    assert load_model(written(tmp_path, text)).module.again is not None


def test_the_folder_is_appended(tmp_path: Path) -> None:
    (tmp_path / "torch.py").write_text("raise RuntimeError('taken for torch')")
    (tmp_path / "neighbour_of_model.py").write_text("WIDTH = 4")
    before = list(sys.path)
    load_model(written(tmp_path, "import neighbour_of_model\n" + HEAD))
    place = sys.path.index(str(tmp_path.resolve()))
    assert sys.path[:place] + sys.path[place + 1 :] == before
    assert place > max(number for number, entry in enumerate(before) if entry.endswith("site-packages"))


def test_each_file_has_its_own_neighbours(tmp_path: Path) -> None:
    """Also where an earlier file had one of the same name, and when it is loaded again."""
    references = []
    for width in (4, 6):
        folder = tmp_path / str(width)
        folder.mkdir()
        (folder / "the_neighbour.py").write_text("from in_a_package.inner import WIDTH")
        (folder / "in_a_package").mkdir()
        (folder / "in_a_package" / "inner.py").write_text(f"WIDTH = {width}")
        references.append(written(folder, "from the_neighbour import WIDTH\n" + HEAD))
    for reference, width in zip(references * 2, (4, 6, 4, 6), strict=True):
        assert load_model(reference).beside["WIDTH"] == width


def test_missing_file(tmp_path: Path) -> None:
    with pytest.raises(ModelFileMissing):
        load_model(str(tmp_path / "nothing.py:build"))
    with pytest.raises(ModelFileMissing):
        load_model(str(tmp_path / "nothing"))


def test_not_a_model(tmp_path: Path) -> None:
    (tmp_path / "notes.txt").write_text("")
    with pytest.raises(ModelKindUnknown):
        load_model(str(tmp_path / "notes.txt"))


def test_missing_factory(tmp_path: Path) -> None:
    reference = written(tmp_path, HEAD)
    with pytest.raises(FactoryMissing) as caught:
        load_model(reference.replace(":build", ":biuld"))
    assert "'build'" in caught.value.fix
    with pytest.raises(FactoryMissing):
        load_model(reference.removesuffix(":build"))


@pytest.mark.parametrize(
    ("text", "line"),
    [
        (HEAD.replace("return Net()", "raise ValueError('no weights')"), 14),
        (HEAD.replace("return Net()", "raise SyntaxError('of its own')"), 14),
        ("x = 1 / 0", 1),
        ("def build(:", 1),
        ("import a_library_that_is_not_there", 1),
    ],
)
def test_a_file_or_factory_that_raises(tmp_path: Path, text: str, line: int) -> None:
    assert refused(tmp_path, text, FactoryRaised).place.endswith(f"model.py:{line}")


def test_a_factory_that_returns_something_else(tmp_path: Path) -> None:
    assert "int" in refused(tmp_path, HEAD.replace("return Net()", "return 3"), FactoryRaised).cause


@pytest.mark.parametrize("text", ["import sys\nsys.exit(3)", HEAD.replace("return Net()", "raise SystemExit(0)")])
def test_exit(tmp_path: Path, text: str) -> None:
    refused(tmp_path, text, ModelFileExited)


def test_sleep(tmp_path: Path) -> None:
    """The alarm rings when line 3 has begun, however long it took to come there."""
    ring = "signal.setitimer(signal.ITIMER_REAL, 1e-3); time.sleep(30)"
    reference = written(tmp_path, f"import signal, time\ntry:\n    {ring}\nexcept Exception:\n    pass\n")
    with pytest.raises(ModelTimedOut) as caught:
        load_model(reference, time_limit_s=60)
    assert "model.py:3" in caught.value.place


def test_no_example_inputs(tmp_path: Path) -> None:
    error = refused(tmp_path, HEAD.replace("def example_inputs", "def other"), NoExampleInputs)
    exec(NoExampleInputs.hook, scope := {})  # noqa: S102 - what is shown must run as it is
    assert NoExampleInputs.hook in error.fix
    assert set(scope["example_inputs"](2, 3)) == {"tokens", "labels"}


def test_example_inputs_for_another_model(tmp_path: Path) -> None:
    assert "'y'" in refused(tmp_path, HEAD.replace('{"x":', '{"y":'), NoExampleInputs).cause


def test_no_loss(tmp_path: Path) -> None:
    error = refused(tmp_path, HEAD.replace("def loss", "def other"), NoLoss)
    assert "(2, 3, 4)" in error.cause
    assert NoLoss.hook in error.fix
    assert "loss" in refused(tmp_path, HEAD.replace("outputs.sum()", "outputs"), NoLoss).cause


def test_a_model_that_returns_its_loss(tmp_path: Path) -> None:
    text = HEAD.replace("def loss", "def other").replace("self.linear(x)", "self.linear(x).sum()")
    assert capture(load_model(written(tmp_path, text)), batch=2, seq=3).fold.loss == 0


def test_empty_model(tmp_path: Path) -> None:
    refused(tmp_path, HEAD.replace("return Net()", "return nn.ReLU()"), EmptyModel)


@pytest.mark.parametrize(
    "body",
    [
        "if x.sum() > 0:\n            x = -x",
        "x = x[: int(x[0, 0, 0])]",
        "x = x[x > 0]",
        "x = x * x.max().item()",
        "x = x[torch.nonzero(x)[:, 0]]",
    ],
)
def test_data_dependent_control_flow(tmp_path: Path, body: str) -> None:
    text = HEAD.replace("        return self.linear(x)", f"        {body}\n        return self.linear(x).sum()")
    error = refused(tmp_path, text, DataDependentControlFlow)
    assert "model.py:11" in error.place


def test_a_forward_that_raises(tmp_path: Path) -> None:
    error = refused(tmp_path, HEAD.replace("self.linear(x)", "self.linear(x @ x)"), ForwardRaised)
    assert "model.py:11" in error.place


FACTORIES = """
from os.path import join
from torch import nn

WIDTH = 4


class Net(nn.Module):
    pass


def needs(width): return Net()
def _own(): return Net()
def small(width=2, *, depth=1): return Net()
def large(): return Net()
"""


def test_which_functions_of_a_file_are_named(tmp_path: Path) -> None:
    """Its own ones that can be called as they are; one that is named may be any that can be called."""
    path = tmp_path / "model.py"
    for text, name, cause, fix in (
        (FACTORIES, "", "no factory is named", f"write {path}:small (its functions: small, large)"),
        (FACTORIES, ":larger", "the file defines no function 'larger'", "did you mean 'large'? its functions: {}"),
        (FACTORIES, ":WIDTH", "the file defines no function 'WIDTH'", "its functions: {}"),
        ("x = 1", "", "no factory is named", f"write {path}:build (its functions: none)"),
        ("x = 1", ":build", "the file defines no function 'build'", "its functions: none"),
    ):
        path.write_text(text)
        with pytest.raises(FactoryMissing) as caught:
            factory.load_factory(f"{path}{name}")
        found = caught.value
        assert (found.place, found.cause, found.fix) == (str(path), cause, fix.replace("{}", "small, large")), name
    path.write_text(FACTORIES.replace("pass", "w = None\n    def parameters(self): return iter([1])"))
    for name in ("_own", "Net", "small"):
        assert type(factory.load_factory(f"{path}:{name}").module).__name__ == "Net"


def test_hooks_that_can_be_used() -> None:
    """Some functions do not tell what they take; more may be taken than is given, if it has defaults."""
    hooks = {
        "loss": max,
        "example_inputs": lambda batch, seq, more=1: {},
        "dims": {"x": ["b", "s", ""], "y": ("b",)},
        "optimizer": lambda *params: None,
    }
    found = source_of(nn.Linear(2, 2), place="here", beside=hooks)
    assert {name: getattr(found.hooks, name) for name in hooks} == hooks
    assert (found.hooks.draw_weights, found.place, found.beside) == (None, "here", hooks)
    for name, bad, cause in (
        ("optimizer", lambda: None, "optimizer() cannot be called as optimizer(params): too many positional arguments"),
        ("draw_weights", 3, "draw_weights is 3"),
        ("dims", {"x": ("b",), "y": "b"}, "dims is {'x': ('b',), 'y': 'b'}"),
        ("dims", ["b"], "dims is ['b']"),
    ):
        with pytest.raises(HookUnusable) as caught:
            source_of(nn.Linear(2, 2), place="here", beside={name: bad})
        assert (caught.value.place, caught.value.cause) == (f"here, {name}", cause), name


class Own(nn.Linear):
    """Has hooks of its own; `loss` is something else."""

    dims = {"x": ("b", "")}  # noqa: RUF012
    loss = 0.5

    def example_inputs(self, batch: int, seq: int) -> dict[str, torch.Tensor]:
        """A batch."""
        return {"x": torch.zeros(batch, 2)}


def test_hooks_of_the_model_itself() -> None:
    """What stands beside the factory goes before."""
    model = Own(2, 2)
    found = source_of(model, place="here").hooks
    assert (found.dims, found.loss) == ({"x": ("b", "")}, None)
    assert found.example_inputs is not None
    assert set(found.example_inputs(1, 1)) == {"x"}
    told = source_of(model, place="here", beside={"dims": {"x": ("r", "")}, "example_inputs": None}).hooks
    assert told.dims == {"x": ("r", "")}
    assert told.example_inputs is not None


def test_names_of_dimensions_fit() -> None:
    shapes = {"x": (2, 3), "y": (2,)}
    contract.check_dims({"x": ("b", "")}, shapes, "here")
    for name, labels, cause, fix in (
        ("z", ("b",), "the batch has no such entry", "name one of x, y"),
        (
            "x",
            ("b",),
            "1 names ('b',) for an input of shape (2, 3)",
            'give one name per dimension, "" where there is none',
        ),
    ):
        with pytest.raises(HookUnusable) as caught:
            contract.check_dims({"y": ("b",), name: labels}, shapes, "here")
        found = caught.value
        assert (found.place, found.cause, found.fix) == (f"here, dims[{name!r}]", cause, fix)


@pytest.mark.parametrize(
    ("hook", "told"),
    [
        ("loss = 3", "loss is 3"),
        ("def loss(outputs): return outputs.sum()", "loss(outputs, batch)"),
        ("def example_inputs(batch): return {}", "example_inputs(batch, seq)"),
        ("dims = 'x'", "dims is 'x'"),
        ("dims = {'x': ('b', 's')}", "2 names ('b', 's') for an input of shape (2, 3, 4)"),
        ("dims = {'y': ('b', 's')}", "the batch has no such entry"),
    ],
)
def test_a_hook_that_cannot_be_used(tmp_path: Path, hook: str, told: str) -> None:
    error = refused(tmp_path, f"{HEAD}\n{hook}\n", HookUnusable)
    assert told in error.cause
    assert "model.py" in error.place


def test_a_model_may_use_the_words_of_hooks_for_other_things(tmp_path: Path) -> None:
    text = HEAD.replace("nn.Linear(4, 4)", "nn.Linear(4, 4); self.dims = [3, 4]; self.optimizer = 'adam'")
    assert capture(load_model(written(tmp_path, text)), batch=2, seq=3).notes == ()


def test_what_other_processes_print_stays_off_standard_output(
    tmp_path: Path, capfd: pytest.CaptureFixture[str]
) -> None:
    load_model(written(tmp_path, HEAD.replace("return Net()", "import os; os.system('echo child'); return Net()")))
    shown = capfd.readouterr()
    assert shown.out == ""
    assert "child" in shown.err


def test_calls_that_are_no_operators(tmp_path: Path) -> None:
    forward = "torch.func.jvp(self.linear, (x,), (x,))[0]"
    error = refused(tmp_path, HEAD.replace("self.linear(x)", forward), ForwardRaised)
    assert "model.py:11" in error.place
    assert "torch.func" in error.cause


@pytest.mark.parametrize("loss", ["outputs.detach().sum()", "batch['x'].sum()"])
def test_a_loss_that_trains_nothing(tmp_path: Path, loss: str) -> None:
    assert "no gradient" in refused(tmp_path, HEAD.replace("outputs.sum()", loss), NoLoss).cause


def test_a_failed_trace_is_told_in_two_lines(tmp_path: Path, capfd: pytest.CaptureFixture[str]) -> None:
    text = HEAD.replace(
        "        return self.linear(x)", "        if x.sum() > 0: x = -x\n        return self.linear(x)"
    )
    refused(tmp_path, text, DataDependentControlFlow)
    assert capfd.readouterr().err.count("\n") == 1  # that the file is executed


@pytest.mark.parametrize("reentrant", [True, False])
def test_a_checkpoint_is_seen_through(tmp_path: Path, reentrant: bool) -> None:
    call = f"torch.utils.checkpoint.checkpoint(self.linear, x, use_reentrant={reentrant})"
    text = HEAD.replace("import torch\n", "import torch, torch.utils.checkpoint\n").replace("self.linear(x)", call)
    found = capture(load_model(written(tmp_path, text)), batch=2, seq=3)
    assert [note for note in found.notes if "checkpoint" in note]
    graph = found.fold.bodies[0].graph
    assert "linear" in {op.kind for op in graph.ops if not op.no_grad}


def test_a_mask_without_a_hint(tmp_path: Path) -> None:
    """nn.TransformerEncoder would compare the mask with the causal one, by value."""
    text = HEAD.replace(
        "nn.Linear(4, 4)", "nn.TransformerEncoder(nn.TransformerEncoderLayer(4, 2, 8, batch_first=True), 2)"
    ).replace(
        "self.linear(x)", "self.linear(x, nn.Transformer.generate_square_subsequent_mask(x.shape[1], device=x.device))"
    )
    found = capture(load_model(written(tmp_path, text)), batch=2, seq=3)
    assert found.notes == ()


@pytest.mark.filterwarnings("ignore:ComplexHalf")
def test_an_unsupported_dtype(tmp_path: Path) -> None:
    error = refused(
        tmp_path, HEAD.replace("nn.Linear(4, 4)", "nn.Linear(4, 4, dtype=torch.complex32)"), UnsupportedDtype
    )
    assert "linear.weight" in error.place
    assert "complex32" in error.cause
    made = refused(
        tmp_path, HEAD.replace("self.linear(x)", "self.linear(x).to(torch.complex32).abs()"), UnsupportedDtype
    )
    assert made.place.endswith("model.py:11 (aten.to.dtype)")


def test_warnings_of_the_forward_pass_are_not_told(tmp_path: Path) -> None:
    """Nor are they errors where warnings are."""
    text = HEAD.replace("self.linear(x)", "(__import__('warnings').warn('old'), self.linear(x))[1]")
    assert capture(load_model(written(tmp_path, text)), batch=2, seq=3).notes == ()


def test_a_module_as_an_object() -> None:
    class Net(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.linear = nn.Linear(4, 4)

        def forward(self, x: torch.Tensor) -> torch.Tensor:
            return self.linear(x).mean()

        def example_inputs(self, batch: int, seq: int) -> torch.Tensor:
            return torch.zeros(batch, seq, 4)

    found = capture(source_of(Net().to("meta"), place="Net"), batch=2, seq=3)
    assert [item.value for item, _ in found.fold.inputs] == ["x"]


def test_positional_inputs_are_named_after_forward() -> None:
    class Net(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.linear = nn.Linear(4, 4)

        def forward(self, left: torch.Tensor, right: torch.Tensor) -> torch.Tensor:
            return (self.linear(left) * right).sum()

    hooks = Hooks(lambda b, s: (torch.zeros(b, s, 4), torch.zeros(b, s, 4)), dims={"left": ("b", "s", "")})
    fold = capture(TorchSource(Net().to("meta"), hooks, "Net"), batch=2, seq=3).fold
    assert [(item.value, item.labels) for item, _ in fold.inputs] == [
        ("left", ("b", "s", "")),
        ("right", ("b", "s", "")),
    ]
