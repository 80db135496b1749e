"""Which rank a failed verification names."""

from __future__ import annotations

import os
import signal
from pathlib import Path
from types import SimpleNamespace
from zlib import crc32

import numpy as np
import pytest
import torch

from meshwright.backends.torch_.verify.run import ranks
from meshwright.backends.torch_.verify.run.ranks import PATIENCE_S, _first, _stopped, _wait


def test_the_rank_that_said_so_first_is_named_whichever_is_reaped_first(tmp_path: Path) -> None:
    (tmp_path / "1.died").write_text("200\na connection was closed by 2")
    (tmp_path / "2.died").write_text("100\nno more\nof it")
    assert _first({1: 256, 2: 256}, tmp_path) == (2, "no more\nof it")


def test_a_rank_that_was_ended_before_it_could_say_why_is_named(tmp_path: Path) -> None:
    (tmp_path / "1.died").write_text("200\na connection was closed by 3")
    assert _first({1: 256, 3: 9}, tmp_path) == (3, "")


def test_ranks_that_end_together_are_looked_at_together(tmp_path: Path) -> None:
    """Rank 0 is reaped first, and failed last."""
    children = {_ended(tmp_path, rank, at): rank for rank, at in enumerate((300, 200, 100))}
    for child in children:
        os.waitid(os.P_PID, child, os.WEXITED | os.WNOWAIT)
    assert _wait(children, tmp_path) == 1
    assert (tmp_path / "failed").read_text() == "2 1\nbroke at 100"


def test_ranks_that_are_told_to_end_print_one_after_the_other(monkeypatch: pytest.MonkeyPatch) -> None:
    """Whoever does not end at once does not hold up the others for long: all of them share one time of patience."""
    clock = Clock()
    monkeypatch.setattr(ranks, "time", clock)
    reading, writing = os.pipe()
    children = {_asleep(writing, str(rank)): rank for rank in range(3)}
    for _ in children:
        os.read(reading, 1)
    stubborn = next(iter(children))
    _stopped(children)
    assert PATIENCE_S <= clock.now_s < PATIENCE_S + 1
    assert stubborn in children
    for child in children:
        os.kill(child, signal.SIGKILL)
        os.waitpid(child, 0)


class Clock:
    """A time that passes by sleeping alone."""

    now_s = 0.0

    def monotonic(self) -> float:
        return self.now_s

    def sleep(self, seconds: float) -> None:
        self.now_s += seconds


def _asleep(writing: int, said: str) -> int:
    """A process; the first one ends only when it is killed."""
    child = os.fork()
    if not child:
        signal.signal(signal.SIGABRT, signal.SIG_IGN if said == "0" else signal.SIG_DFL)
        os.write(writing, b"!")
        while True:
            signal.pause()
    return child


def _ended(folder: Path, rank: int, at: int) -> int:
    (folder / f"{rank}.died").write_text(f"{at}\nbroke at {at}")
    child = os.fork()
    if not child:
        os._exit(1)
    return child


class Line(torch.nn.Module):
    """y = w x + b, with a buffer that counts calls."""

    def __init__(self) -> None:
        super().__init__()
        self.line = torch.nn.Linear(1, 1)
        self.register_buffer("calls", torch.zeros(()))


class Script(SimpleNamespace):
    """What a script defines, on one rank: two parameters that a step moves by their gradients of 2 and 1."""

    def __init__(self, **more: object) -> None:
        super().__init__(
            start=lambda: None,
            build=Line,
            parallelize=lambda model, mesh: self.held(model),
            make_optimizer=lambda model: torch.optim.SGD(model.parameters(), lr=0.5),
            batch_of=lambda step, mesh: {"x": torch.full((1, 1), 2.0)},
            train_step=self.step,
            **more,
        )

    def held(self, model: Line) -> Line:
        with torch.no_grad():
            model.line.weight.fill_(3.0)
            model.line.bias.fill_(1.0)
        return model

    def step(self, model: Line, optimizer: torch.optim.Optimizer, batch: dict[str, torch.Tensor], mesh: None) -> object:
        optimizer.zero_grad()
        loss = model.line(batch["x"]).sum()
        loss.backward()
        optimizer.step()
        model.calls += 1
        return loss.detach()


def test_a_rank_leaves_what_every_step_made(tmp_path: Path) -> None:
    """7 = 3 * 2 + 1; then weight 2 and bias 0.5 give 4.5."""
    first, second = ranks.run(Script(), 2, tmp_path / "start")
    assert (first["loss"], second["loss"]) == (7.0, 4.5)
    for found, weight, bias, calls in ((first, 2.0, 0.5, 1.0), (second, 1.0, 0.0, 2.0)):
        assert {name: one.item() for name, one in found["grads"].items()} == {"line.weight": 2.0, "line.bias": 1.0}
        assert {name: one.item() for name, one in found["parameters"].items()} == {
            "line.weight": weight,
            "line.bias": bias,
        }
        assert {name: one.item() for name, one in found["buffers"].items()} == {"calls": calls}
        assert found["collectives"] == found["drawn"] == {}
        assert found["peak"] > 0


def test_a_rank_that_draws_says_what_and_takes_up_the_start(tmp_path: Path) -> None:
    called: list[str] = []

    def draw(model: Line, mesh: None) -> None:
        called.append("draw")
        with torch.no_grad():
            model.line.weight.fill_(5.0)

    def resume(start: Path, model: Line, optimizer: object) -> None:
        called.append(start.name)
        with torch.no_grad():
            model.line.weight.fill_(4.0)

    script = Script(draw=draw, resume=resume, reordered=lambda name, one, back: one + 100 * back)
    (found,) = ranks.run(script, 1, tmp_path / "start")
    assert called == ["draw", "start"]
    assert found["loss"] == 4.0 * 2 + 1
    drawn = {"line.weight": 105.0, "line.bias": 101.0}
    assert found["drawn"] == {name: crc32(np.full(1, one, "f4").tobytes()) for name, one in drawn.items()}
    assert found["grads"]["line.weight"].item() == 2.0 + 100
