"""What a run is held against, of a model of two weights whose steps are worked out by hand, and what is then said of
ranks that are made up: each of two has a half of it.

    loss = mean over sequences of (w x)² / 2, so that the gradient of w is w times the mean of x²
"""

from __future__ import annotations

import subprocess
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
import torch
from torch import Tensor

from meshwright.backends.results import EXACT, IN_FP64, Verified
from meshwright.backends.torch_.verify import emitted
from meshwright.backends.torch_.verify.apart import Apart
from meshwright.backends.torch_.verify.emitted import Job, verify
from meshwright.backends.torch_.verify.groups import Group
from meshwright.backends.torch_.verify.predicted import Predicted
from meshwright.backends.torch_.verify.reference import IN_BF16, ROUNDINGS, Reference
from meshwright.ir.analysis.weights import Step, Weight
from meshwright.ir.errors import RanksFailed
from meshwright.ir.sharding.mesh import Mesh
from meshwright.ir.target.workload import Workload

MODEL = """
import torch
from torch import Tensor, nn


class Model(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.w = nn.Parameter(torch.tensor([3.0, 5.0]))
        self.still = nn.Parameter(torch.tensor([7.0]), requires_grad=False)
        self.register_buffer("calls", torch.zeros(1))
        self.register_buffer("table", torch.ones(1))

    def forward(self, x: Tensor) -> Tensor:
        self.calls += 1
        return (self.w * x).square().sum(-1) / 2


def made() -> Model:
    return Model()


def example_inputs(batch: int, seq: int) -> dict[str, Tensor]:
    labels = torch.arange(batch * seq).reshape(batch, seq) % 5
    return {"x": torch.rand(batch, 2), "labels": labels}


def loss(outputs: Tensor, batch: dict[str, Tensor]) -> Tensor:
    return outputs.mean()


def optimizer(parameters):
    return torch.optim.SGD(parameters, lr=0.5)
"""
W = torch.tensor([3.0, 5.0])
FP32 = Workload(global_batch=4, seq=2, precision="fp32", recipe="fp32")


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    found = tmp_path_factory.mktemp("verdicts")
    (found / "model.py").write_text(MODEL)
    (found / "train.py").write_text("def build():\n    pass\n")
    return found


def calls(*, own: bool = True) -> Any:
    return SimpleNamespace(file=Path("model.py"), factory="made", has_optimizer=own, entries=("x",), own_loss=None)


def batch(step: int) -> Tensor:
    """What is drawn for a step."""
    torch.manual_seed(step)
    return torch.rand(4, 2)


def gradient(w: Tensor, x: Tensor) -> Tensor:
    return w * x.square().mean(0)


# The model on one device --------------------------------------------------------------------------------------------


def test_steps_of_the_model_on_one_device(folder: Path) -> None:
    """The second one with gradients of a run, of which those that are no gradient of it are left."""
    reference = Reference(folder, calls(), FP32)
    first = reference.step(0, {})
    torch.testing.assert_close(first.loss, (W * batch(0)).square().sum(-1).mean() / 2)
    assert list(first.grads) == ["w"]
    torch.testing.assert_close(first.grads["w"], gradient(W, batch(0)))
    assert list(first.parameters) == ["w", "still"]
    moved = W - 0.5 * gradient(W, batch(0))
    torch.testing.assert_close(first.parameters["w"], moved)
    assert first.parameters["still"].tolist() == [7.0]
    assert {name: one.tolist() for name, one in first.buffers.items()} == {"calls": [1.0]}
    assert {name: one.tolist() for name, one in first.constants.items()} == {"table": [1.0]}
    of_run = {"w": torch.tensor([2.0, 4.0]), "still": torch.tensor([1.0]), "other": torch.tensor([1.0])}
    second = reference.step(1, of_run)
    torch.testing.assert_close(second.grads["w"], gradient(moved, batch(1)))
    torch.testing.assert_close(second.parameters["w"], moved - 0.5 * of_run["w"])
    assert (second.parameters["still"].tolist(), second.buffers["calls"].tolist()) == ([7.0], [2.0])
    third = reference.step(2, {"w": torch.ones(3)})
    torch.testing.assert_close(third.parameters["w"], second.parameters["w"] - 0.5 * third.grads["w"])


def test_models_without_an_optimizer_are_stepped_by_adamw(folder: Path) -> None:
    """Its first step is of length 3e-4, after a decay by a hundredth of that."""
    found = Reference(folder, calls(own=False), FP32).step(0, {})
    torch.testing.assert_close(found.parameters["w"], W * (1 - 3e-4 * 0.01) - 3e-4)


PRECISIONS: dict[str, tuple[Workload, bool, tuple[float, float], torch.dtype, bool]] = {
    "fp32": (FP32, False, (EXACT, EXACT), torch.float32, False),
    "in fp64": (FP32, True, (IN_FP64, IN_FP64), torch.float64, False),
    "all in bf16": (replace(FP32, precision="bf16", recipe="bf16"), False, (IN_BF16, IN_BF16), torch.bfloat16, False),
    "copies in bf16": (replace(FP32, precision="bf16", recipe="fsdp"), False, (IN_BF16, EXACT), torch.float32, True),
    "as its software has it": (
        replace(FP32, precision="bf16", recipe=""),
        False,
        (IN_BF16, EXACT),
        torch.float32,
        True,
    ),
    "copies in fp16": (replace(FP32, precision="fp16", recipe="fsdp"), False, (IN_BF16, EXACT), torch.float32, True),
}


@pytest.mark.parametrize("what", PRECISIONS)
def test_what_may_differ_is_of_what_is_computed_in(what: str, folder: Path) -> None:
    """Losses and gradients, and parameters after a step with the same gradients."""
    workload, in_fp64, tolerances, dtype, cast = PRECISIONS[what]
    reference = Reference(folder, calls(), workload, in_fp64=in_fp64)
    assert (reference.tolerance, reference.after) == tolerances
    assert reference.model.get_parameter("w").dtype is dtype
    assert (reference.low, reference.cast) == (workload.precision != "fp32", cast)
    found = reference.step(0, {})
    low = {"bf16": torch.bfloat16, "fp16": torch.float16}.get(workload.precision, dtype)
    x = batch(0).to(dtype)
    expected = gradient(W.to(low).to(dtype), x)
    torch.testing.assert_close(found.grads["w"].to(dtype), expected, rtol=IN_BF16, atol=0.0)
    assert found.grads["w"].dtype is dtype
    exact = torch.equal(found.grads["w"], found.grads["w"].to(low).to(dtype))
    assert exact == (dtype is low or cast)  # what is computed from copies comes back in their precision
    assert torch.get_default_dtype() is torch.float32


def test_micro_batches_one_by_one_weigh_by_their_targets(folder: Path) -> None:
    """Two ranks of two sequences: the first micro-batch has sequences 0 and 2. Labels are 0 1, 2 3, 4 0, 1 2, and zeros
    are no targets: four of six targets are in the second one."""
    apart = Apart(2, (1, 1), Weight("count", "labels", (Step("ne", (("scalar", 0),)),)))
    reference = Reference(folder, calls(), FP32, apart)
    found, x = reference.step(0, {}), batch(0)
    expected = gradient(W, x[[0, 2]]) * 2 / 6 + gradient(W, x[[1, 3]]) * 4 / 6
    torch.testing.assert_close(found.grads["w"], expected)
    losses = [(W * x[rows]).square().sum(-1).mean() / 2 for rows in ([0, 2], [1, 3])]
    torch.testing.assert_close(found.loss, losses[0] * 2 / 6 + losses[1] * 4 / 6)
    assert found.buffers["calls"].tolist() == [2.0]


@pytest.mark.parametrize(("times", "near"), [(0.0, True), (0.99 * ROUNDINGS, True), (1.01 * ROUNDINGS, False)])
def test_what_rounding_may_yield_is_about_as_far_from_fp32_as_that_of_one_device(
    times: float, near: bool, folder: Path
) -> None:
    """At the weights before the step, which the step has moved."""
    reference = Reference(folder, calls(), replace(FP32, precision="bf16", recipe="fsdp"))
    reference.step(0, {})
    before = reference.model.get_parameter("w").detach().clone()
    step = reference.step(1, {})
    full = gradient(before, batch(1))
    far = step.grads["w"] - full
    assert far.norm() > 0
    state, model = torch.get_rng_state(), reference.model
    found = {"w": full - times * far, "other": torch.ones(1)}
    assert list(reference.rounded(1, found, step.grads)) == ["w"] * near
    assert reference.rounded(1, {"w": torch.ones(3)}, step.grads) == {}
    assert (reference.model is model, reference.cast) == (True, True)
    assert torch.equal(torch.get_rng_state(), state)
    torch.testing.assert_close(model.get_parameter("w"), before - 0.5 * step.grads["w"])


# Two ranks ----------------------------------------------------------------------------------------------------------

NOTHING = Predicted({}, {}, {})
SENT = {("send", (0, 1), 64): 2, ("recv", (0, 1), 64): 2}
Left = dict[int, list[dict[str, Any]]]
"""What ranks left, by step."""


def group(ranks: range, parameters: tuple[str, ...], *, last: bool) -> Group:
    held = tuple((name,) for name in parameters)
    return Group(ranks=ranks, mesh=Mesh(()), predicted=(NOTHING,), messages=SENT, parameters=held, last=last)


def job(folder: Path, workload: Workload = FP32) -> Job:
    """The first rank has the weights, the second all else and the loss."""
    groups = group(range(1), ("w",), last=False), group(range(1, 2), ("still", "calls", "table"), last=True)
    return Job(script=folder / "train.py", calls=calls(), workload=workload, groups=groups)


def right(one: Job, steps: int = 2, *, in_fp64: bool = False) -> Left:
    """What ranks leave that do as the model does."""
    reference, found = replace(one, in_fp64=in_fp64).reference, Left({0: [], 1: []})
    for step in range(steps):
        made = reference.step(step, {})
        usual = {
            "loss": None,
            "grads": {},
            "parameters": {},
            "buffers": {},
            "drawn": {},
            "still": [],
            "collectives": {},
        }
        weights = {"grads": dict(made.grads), "parameters": {"w": made.parameters["w"]}}
        sent, received = ({key: number for key, number in SENT.items() if key[0] == way} for way in ("send", "recv"))
        found[0].append({**usual, **weights, "peak": 900 - step, "collectives": sent})
        held = {"still": made.parameters["still"]}
        buffers = {**made.buffers, **made.constants}
        rest = {"loss": made.loss.item(), "parameters": held, "buffers": buffers, "collectives": received}
        found[1].append({**usual, **rest, "peak": 500 + step})
    return found


def held(one: Job, monkeypatch: pytest.MonkeyPatch, narrow: Left, wide: Left | Exception | None = None) -> Verified:
    """The verdict on ranks that left this, and, where they run in fp64, that."""

    def start(command: list[str], **_: object) -> SimpleNamespace:
        at = Path(command[-1])
        left = wide if (at / "in_fp64").exists() else narrow
        if isinstance(left, Exception):
            raise left
        assert left is not None
        for rank, run in left.items():
            torch.save(run, at / f"{rank}.pt")
        return SimpleNamespace(wait=lambda limit_s: 0, poll=lambda: 0)

    monkeypatch.setattr(emitted.subprocess, "Popen", start)
    (found,) = verify([one], steps=len(narrow[0]), limit_s=60)
    return found


def with_part(left: Left, rank: int, step: int, part: str, value: object) -> Left:
    changed = {at: [dict(one) for one in run] for at, run in left.items()}
    old = changed[rank][step][part]
    changed[rank][step][part] = {**old, **value} if isinstance(value, dict) else value
    return changed


def test_two_ranks_that_have_all_of_it_together(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    one = job(folder)
    left = right(one)
    found = held(one, monkeypatch, left)
    assert found == Verified(
        ranks=2,
        steps=2,
        losses=(left[1][0]["loss"], left[1][1]["loss"]),
        tensors=1 + 2 + 1 + 1,
        worst=0.0,
        collectives=(("send", "pp", 2, 128),),
        once=(),
        memory=(899, 501),
        unlike=(),
        off=(),
    )
    assert held(one, monkeypatch, right(one, 3)).memory == (899, 502)
    assert held(one, monkeypatch, right(one, 1)).memory == ()
    compiled = replace(FP32, stack=replace(FP32.stack, style="compiled"))
    assert held(replace(one, workload=compiled), monkeypatch, left).memory == ()


def far(times: float) -> Callable[[Left], Tensor]:
    """The first step's gradient, off by so much of its largest element."""
    return lambda left: left[0][0]["grads"]["w"] + times * left[0][0]["grads"]["w"].max()


LOST: dict[str, tuple[tuple[int, int, str, object], tuple[str, ...]]] = {
    "a loss": ((1, 1, "loss", None), ("step 1, rank 1: the loss is missing",)),
    "a loss too many": ((0, 1, "loss", 1.0), ("step 1, rank 0: the loss is not the model's",)),
    "another parameter": (
        (0, 0, "parameters", {"v": torch.ones(1)}),
        ("step 0, rank 0: the parameter v is not the model's",),
    ),
    "a parameter of the other rank": (
        (0, 0, "parameters", {"still": torch.tensor([7.0])}),
        ("step 0, rank 0: the parameter still is not the model's",),
    ),
    "a buffer of another shape": (
        (1, 0, "buffers", {"calls": torch.ones(2)}),
        ("step 0, rank 1: the buffer calls is (2,), not (1,)",),
    ),
    "a message": (
        (0, 1, "collectives", {("send", (0, 1), 64): 1}),
        ("step 1, rank 0: send between 0 and 1 of 64 bytes: 2 planned, 1 executed",),
    ),
}


@pytest.mark.parametrize("what", LOST)
def test_what_differs_in_kind_is_named_and_not_run_again(
    what: str, folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    one = job(folder)
    part, expected = LOST[what]
    found = held(one, monkeypatch, with_part(right(one), *part))
    assert (found.unlike, found.off, found.exact) == (expected, (), False)


def test_a_constant_that_is_off_is_measured_by_itself(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    one = job(folder)
    left = with_part(right(one), 1, 0, "buffers", {"table": torch.tensor([1.5])})
    found = held(one, monkeypatch, left, with_part(right(one, in_fp64=True), 1, 0, "buffers", {"table": torch.ones(1)}))
    assert (found.exact, found.worst, found.rounded) == (True, 0.5, 1)


def test_values_that_are_off_are_decided_in_fp64(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The same in fp64 as the model there: rounding, of one tensor in one step. Off there, too: what is said is what
    differs there. Messages are as wide as planned in the first run alone."""
    one = job(folder)
    narrow, wide = right(one, 1), right(one, 1, in_fp64=True)
    narrow = with_part(narrow, 0, 0, "grads", {"w": far(1e-3)(narrow)})
    narrow = with_part(narrow, 0, 0, "parameters", {"w": W - 0.5 * narrow[0][0]["grads"]["w"]})
    wide = with_part(wide, 0, 0, "collectives", {("send", (0, 1), 64): 0, ("send", (0, 1), 128): 2})
    found = held(one, monkeypatch, narrow, wide)
    assert (found.exact, found.apart, found.rounded, found.in_fp64) == (True, 1, 1, 0.0)
    assert found.worst == pytest.approx(1e-3, rel=1e-3)
    off = with_part(wide, 0, 0, "grads", {"w": far(1e-6)(wide)})
    wrong = held(one, monkeypatch, narrow, off)
    assert wrong.differences[0] == "step 0, rank 0: the gradient of w is off by 1.0e-06, 1e-09 allowed"
    assert (wrong.unlike, wrong.rounded) == ((), 0)
    assert wrong.in_fp64 == pytest.approx(1e-6)
    failed = held(one, monkeypatch, narrow, ValueError("no such kernel\nin fp64"))
    assert failed.failed_in_fp64 == "ValueError: no such kernel"
    assert failed.differences[0] == "step 0, rank 0: the gradient of w is off by 1.0e-03, 1e-05 allowed"
    assert failed.in_fp64 is None


def test_what_makes_much_of_rounding_may_be_off_in_fp64_by_a_part_of_what_it_was(
    folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A hundred-thousandth; of what was not off nothing, and of what was nonsense as much as of all of it."""
    one = job(folder)
    fine, wide = right(one, 1), right(one, 1, in_fp64=True)
    for before, after, allowed in ((1e-2, 5e-8, True), (1e-2, 2e-7, False), (0.0, 5e-8, False), (1e6, 2e-5, False)):
        narrow = with_part(fine, 0, 0, "grads", {"w": far(before)(fine)})
        narrow = with_part(narrow, 0, 0, "parameters", {"w": W - 0.5 * narrow[0][0]["grads"]["w"]})
        narrow = with_part(narrow, 1, 0, "buffers", {"table": torch.tensor([1.5])})
        again = with_part(wide, 0, 0, "grads", {"w": far(after)(wide)})
        again = with_part(again, 0, 0, "parameters", {"w": W.double() - 0.5 * again[0][0]["grads"]["w"]})
        assert held(one, monkeypatch, narrow, again).exact == allowed


def test_what_differs_in_kind_is_not_run_again_for_its_values(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    one = job(folder)
    left = with_part(right(one, 1), 1, 0, "loss", None)
    found = held(one, monkeypatch, with_part(left, 0, 0, "grads", {"w": far(1e-3)(left)}))
    assert found.unlike == ("step 0, rank 1: the loss is missing",)
    assert [one.what for one in found.off] == [
        "step 0, rank 0: the gradient of w",
        "step 0, rank 0: the parameter w",
    ]
    assert (found.in_fp64, found.failed_in_fp64) == (None, "")


def test_only_scripts_that_are_off_are_run_again(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The second of three: rounding, or it does not run."""
    one = job(folder)
    fine, wide = right(one, 1), right(one, 1, in_fp64=True)
    narrow = with_part(fine, 0, 0, "grads", {"w": far(1e-3)(fine)})
    narrow = with_part(narrow, 0, 0, "parameters", {"w": W - 0.5 * narrow[0][0]["grads"]["w"]})
    runs: list[int] = []

    def start(command: list[str], **_: object) -> SimpleNamespace:
        folders = [Path(name) for name in command[7::3]]
        runs.append(len(folders))
        again = (folders[0] / "in_fp64").exists()
        if again and fails:
            raise RanksFailed(place="train.py", cause="rank 0 ended", fix="correct it")
        for at, left in zip(folders, [wide] if again else [fine, narrow, fine], strict=True):
            for rank, run in left.items():
                torch.save(run, at / f"{rank}.pt")
        return SimpleNamespace(wait=lambda limit_s: 0, poll=lambda: 0)

    monkeypatch.setattr(emitted.subprocess, "Popen", start)
    for fails in (False, True):
        found = verify([one] * 3, steps=1, limit_s=60)
        assert [each.failed_in_fp64 for each in found] == ["", "rank 0 ended" if fails else "", ""]
        assert [each.in_fp64 for each in found] == [None, None if fails else 0.0, None]
        assert [each.exact for each in found] == [True, not fails, True]
    assert runs == [3, 1, 3, 1]


def test_rows_for_experts_are_told_together_and_in_the_plans_precision(
    folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Two ranks have 128 bytes together, however they are shared out; in fp64, where they are twice as wide, nobody
    looks."""
    rows = Predicted({}, {}, {}, routed={("ep",): (1, 64, ("ep",))})
    both = Group(
        ranks=range(2),
        mesh=Mesh.parse("ep=2"),
        predicted=(rows, rows),
        messages={},
        parameters=(("w",), ("still",), ("calls",), ("table",)),
        last=True,
    )
    one = replace(job(folder), groups=(both,))

    def left(*sizes: int, in_fp64: bool = False, off: float = 0.0) -> Left:
        made = replace(one, in_fp64=in_fp64).reference.step(0, {})
        gradient = made.grads["w"] + off * made.grads["w"].max()
        usual = {"loss": made.loss.item(), "grads": {"w": gradient}, "peak": 1, "drawn": {}, "still": []}
        held = {"w": W - 0.5 * gradient, "still": torch.tensor([7.0])}
        usual |= {"parameters": held, "buffers": {**made.buffers, **made.constants}}
        return {at: [{**usual, "collectives": {("all_to_all", (0, 1), size): 1}}] for at, size in enumerate(sizes)}

    assert held(one, monkeypatch, left(100, 28)).exact
    wrong = held(one, monkeypatch, left(100, 20))
    among = "all_to_all over ep among ranks (0, 1) of rows for experts"
    assert wrong.differences == (f"step 0: {among}: 128 bytes planned of all of them, 120 executed",)
    assert wrong.collectives == (("all_to_all", "ep", 1, 100),)
    decided = held(one, monkeypatch, left(64, 64, off=1e-3), left(128, 128, in_fp64=True))
    assert (decided.differences, decided.rounded, decided.failed_in_fp64) == ((), 1, "")


@pytest.mark.parametrize("loss_is_off", [False, True])
def test_gradients_in_low_precision_may_be_rounded_otherwise(
    loss_is_off: bool, folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """As far from those in fp32, on the other side; but only of a run that has the model's loss."""
    one = job(folder, replace(FP32, precision="bf16", recipe="fsdp"))
    monkeypatch.setattr("meshwright.backends.torch_.verify.reference.IN_BF16", 1e-6)
    left = right(one, 1)
    full = gradient(W, batch(0))
    other = 2 * full - left[0][0]["grads"]["w"]
    left = with_part(left, 0, 0, "grads", {"w": other})
    left = with_part(left, 0, 0, "parameters", {"w": W - 0.5 * other})
    if loss_is_off:
        left = with_part(left, 1, 0, "loss", 1.5 * left[1][0]["loss"])
    found = held(one, monkeypatch, left)
    assert (found.rounded, found.exact, found.in_fp64) == ((0, False, None) if loss_is_off else (1, True, None))
    assert len(found.off) == 2 * loss_is_off
    much = with_part(left, 0, 0, "grads", {"w": full + 10 * (full - other)})
    wrong = held(one, monkeypatch, with_part(much, 0, 0, "parameters", {"w": W - 0.5 * much[0][0]["grads"]["w"]}))
    assert (wrong.rounded, any("gradient of w" in one.what for one in wrong.off)) == (0, True)


# Ranks that end otherwise -------------------------------------------------------------------------------------------

PRINTED = [f"line {number}" for number in range(100)]


class Process:
    """Runs until it is ended; a stubborn one until it is killed."""

    def __init__(self, code: int | None, *, stubborn: bool = False) -> None:
        self.code, self.stubborn, self.pid, self.said = code, stubborn, 4242, list[str]()

    def wait(self, limit_s: float | None = None) -> int:
        self.said.append(f"wait {limit_s}")
        if self.code is None:
            raise subprocess.TimeoutExpired("ranks", limit_s or 0.0)
        return self.code

    def poll(self) -> int | None:
        return self.code

    def terminate(self) -> None:
        self.said.append("terminate")
        self.code = self.code if self.stubborn else -15


def failed(
    process: Process, folder: Path, monkeypatch: pytest.MonkeyPatch, *, waiting: str = "", died: str = ""
) -> RanksFailed:
    """The error where this is what becomes of the second of two scripts."""

    def start(command: list[str], stdout: Any, **_: object) -> Process:
        stdout.write(("\n".join(PRINTED) + "\n").encode())
        for name, text in (("waiting", waiting), ("failed", died)):
            if text:
                (Path(command[-1]) / name).write_text(text)
        return process

    def kill(pid: int, signal: int) -> None:
        process.said.append(f"kill {pid} {int(signal)}")
        process.code = -9

    monkeypatch.setattr(emitted.subprocess, "Popen", start)
    monkeypatch.setattr(emitted.os, "killpg", kill)
    one = job(folder)
    (folder / "other").mkdir(exist_ok=True)
    with pytest.raises(RanksFailed) as refused:
        verify([one, replace(one, script=folder / "other" / ".." / "train.py")], steps=1, limit_s=7)
    return refused.value


def test_a_process_that_ends_by_itself_shows_what_it_printed_last(
    folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    process = Process(3)
    found = failed(process, folder, monkeypatch)
    assert (found.place, found.cause) == (str(folder / "train.py"), "the process that starts the ranks ended")
    assert found.fix == "\n".join(["what was printed last:", *PRINTED[-30:]])
    assert process.said == ["wait 7"]


@pytest.mark.parametrize("stubborn", [False, True])
def test_a_process_that_takes_too_long_is_ended(stubborn: bool, folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    process = Process(None, stubborn=stubborn)
    found = failed(process, folder, monkeypatch, waiting="1, 3")
    assert found.place == str(folder / "other" / ".." / "train.py")
    assert found.cause == "ranks 1, 3 were still running after 7 s, and were ended"
    shown = "\n".join(["what was printed last:", *PRINTED[-60:]])
    assert found.fix == f"give them longer with --time-limit; {shown}"
    ended = ["wait 7", "terminate", "wait 5.0"]
    assert process.said == (["wait 7", "terminate", "wait 5.0", "kill 4242 9", "wait None"] if stubborn else ended)


def test_a_process_that_was_ended_before_it_could_say_who_waits(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    found = failed(Process(None), folder, monkeypatch)
    assert (found.place, found.cause[:23]) == (str(folder / "train.py"), "ranks all were still ru")


@pytest.mark.parametrize(("why", "lines"), [("one\ntwo\n", ["one", "two"]), ("", PRINTED[-30:])])
def test_a_rank_that_died_is_named_with_what_it_said(
    why: str, lines: list[str], folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    found = failed(Process(1), folder, monkeypatch, died=f"3 -9\n{why}")
    assert found.place == str(folder / "other" / ".." / "train.py")
    assert found.cause == "rank 3 ended with -9; the others were ended"
    assert found.fix == f"correct what it died of; {chr(10).join(['what was printed last:', *lines])}"


def test_what_a_job_says_of_itself(folder: Path, tmp_path: Path) -> None:
    one = job(folder)
    assert (one.ranks, one.low, one.watched, one.drawn_in_parts) == (2, False, True, False)
    assert replace(one, workload=replace(FP32, precision="fp16")).low
    (tmp_path / "train.py").write_text("def build():\n    pass\n\n\ndef draw(model):\n    pass\n")
    assert replace(one, script=tmp_path / "train.py").drawn_in_parts
