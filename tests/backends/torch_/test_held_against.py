"""What ranks left is held against the model on one device: ranks that are made up, right, and wrong in one thing."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
import torch

from meshwright.backends.results import Verified
from meshwright.backends.torch_.verify import emitted
from meshwright.backends.torch_.verify.emitted import Job, drawn_apart, summary, verify
from tests.backends.torch_.emitted import job, subject, written

STEPS = 2
Run = list[dict[str, Any]]
"""What one rank left, step by step."""


@pytest.fixture(scope="module")
def alone(tmp_path_factory: pytest.TempPathFactory) -> Job:
    """A plan of one rank, which sends nothing."""
    plan = subject()
    return job(plan, written(plan, tmp_path_factory.mktemp("plan")))


@pytest.fixture(scope="module")
def right(alone: Job) -> Run:
    """What the model does by itself."""
    reference, made = alone.reference, []
    for step in range(STEPS):
        model = reference.step(step, {})
        made.append(
            {
                "loss": model.loss.item(),
                "grads": model.grads,
                "parameters": model.parameters,
                "buffers": model.buffers,
                "collectives": {},
                "peak": (1000, 3000)[step],
                "still": [],
                "drawn": {},
            }
        )
    return made


def left(one: Job, run: Run, monkeypatch: pytest.MonkeyPatch) -> Verified:
    """The verdict on a rank that left this; the process that would start it writes it down instead."""

    def start(command: list[str], **_: object) -> SimpleNamespace:
        torch.save(run, Path(command[-1]) / "0.pt")
        return SimpleNamespace(wait=lambda limit_s: 0, poll=lambda: 0)

    monkeypatch.setattr(emitted.subprocess, "Popen", start)
    (found,) = verify([one], steps=STEPS, limit_s=60)
    return found


def changed(run: Run, step: int, **parts: object) -> Run:
    return [one | parts if at == step else one for at, one in enumerate(run)]


def test_a_rank_that_did_the_same_is_exact(alone: Job, right: Run, monkeypatch: pytest.MonkeyPatch) -> None:
    found = left(alone, right, monkeypatch)
    assert found.exact
    assert (found.ranks, found.steps, found.rounded, found.in_fp64) == (1, STEPS, 0, None)
    assert found.losses == tuple(one["loss"] for one in right)
    assert found.tensors == sum(len(right[0][part]) for part in ("grads", "parameters", "buffers"))
    assert found.memory == (3000,)
    assert found.worst == 0.0
    assert found.collectives == found.once == ()


NAME = "blocks.0.feed_forward.up_proj.weight"


def off(tensors: dict[str, torch.Tensor], name: str) -> dict[str, torch.Tensor]:
    return tensors | {name: tensors[name] * 1.5}


WRONG: dict[str, tuple[Callable[[Run], Run], str]] = {
    "loss": (lambda run: changed(run, 1, loss=run[1]["loss"] * 1.01), "step 1, rank 0: the loss"),
    "gradient": (lambda run: changed(run, 1, grads=off(run[1]["grads"], NAME)), f"rank 0: the gradient of {NAME}"),
    "lost gradient": (
        lambda run: changed(run, 0, grads={name: one for name, one in run[0]["grads"].items() if name != NAME}),
        f"step 0, rank 0: the gradient of {NAME}",
    ),
    "parameter": (lambda run: changed(run, 0, parameters=off(run[0]["parameters"], NAME)), f"the parameter {NAME}"),
    "sent": (lambda run: changed(run, 0, collectives={("all_reduce", (0, 1), 64): 2}), "step 0, rank 0: "),
}


@pytest.mark.parametrize("what", WRONG)
def test_what_is_wrong_is_named(what: str, alone: Job, right: Run, monkeypatch: pytest.MonkeyPatch) -> None:
    make, said = WRONG[what]
    found = left(alone, make(right), monkeypatch)
    assert not found.exact
    assert any(said in one for one in found.differences), found.differences[:3]
    assert (found.worst > 0.001) == (what in ("loss", "gradient", "parameter"))


def test_what_runs_in_one_step_only_is_told_apart(alone: Job, right: Run, monkeypatch: pytest.MonkeyPatch) -> None:
    """DDP's broadcast of its buckets, and what stages ask one another first; not a broadcast of every step."""
    asked = {("broadcast", (0,), 8): 1, ("send", (0,), 4): 2, ("recv", (0,), 4): 2}
    found = left(alone, changed(right, 0, collectives=asked), monkeypatch)
    assert found.exact
    assert {(kind, number, size) for kind, _, number, size in found.once} == {
        ("broadcast", 1, 8),
        ("send", 2, 8),
        ("recv", 2, 8),
    }
    every = changed(changed(right, 0, collectives=asked), 1, collectives={("broadcast", (0,), 8): 1})
    wrong = left(alone, every, monkeypatch)
    assert [one.partition(":")[0] for one in wrong.differences] == ["step 0, rank 0", "step 1, rank 0"]
    assert {kind for kind, *_ in wrong.once} == {"send", "recv"}


def test_ranks_draw_the_same_or_are_named() -> None:
    def told(*drawn: dict[str, int]) -> Iterator[str]:
        return drawn_apart(drawn)

    assert not list(told({"a": 1, "b": 2}, {"a": 1}, {"b": 2}))
    assert list(told({"a": 1}, {"b": 2}, {"a": 1, "b": 3})) == ["rank 2: b was not drawn as on rank 1"]


def test_what_is_sent_is_added_up_by_axes(tmp_path: Path) -> None:
    plan = subject(dp=2, tp=2)
    (group,) = Job.of(plan, written(plan, tmp_path)).groups
    sent = {("all_reduce", (0, 1), 8): 3, ("all_reduce", (2, 3), 16): 1, ("all_gather", (0, 2), 4): 2}
    assert summary(sent, group) == (("all_gather", "dp", 2, 8), ("all_reduce", "tp", 4, 40))
