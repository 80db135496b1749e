"""`parallelize` and `plan emit` around what they call: what is put together, in which order, and what is said."""

from __future__ import annotations

import json
from argparse import Namespace
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from types import ModuleType, SimpleNamespace
from typing import Any

import pytest
from torch import nn

from meshwright.backends.torch_ import door, parallel
from meshwright.backends.torch_.emit import Files
from meshwright.backends.torch_.emit.write import hosts
from meshwright.backends.torch_.parallel import Parallelized, same_parameters
from meshwright.ir.errors import BatchImpossible, OptimizerElsewhere, PlanOfAnotherModel
from meshwright.ir.sharding.mesh import Mesh
from meshwright.planner.cli.progress import Progress
from meshwright.planner.cli.verbs.code import emit
from meshwright.planner.plan import parallelize
from tests.planner.handmade import plan, prediction

# A script, and who calls it ------------------------------------------------------------------------------------------


class Ranks(ModuleType):
    """torch.distributed, as far as it is asked for."""

    def __init__(self, backend: str, *, joined: bool = True) -> None:
        super().__init__("dist")
        self.backend, self.joined, self.left = backend, joined, 0

    def is_initialized(self) -> bool:
        return self.joined

    def get_backend(self) -> str:
        return self.backend

    def destroy_process_group(self) -> None:
        self.left += 1


@pytest.mark.parametrize(
    ("ranks", "left", "slept"),
    [(Ranks("gloo"), 1, [parallel.GLOO_ENDS_S]), (Ranks("nccl"), 1, []), (Ranks("gloo", joined=False), 0, [])],
)
def test_ranks_part_at_the_end(monkeypatch: pytest.MonkeyPatch, ranks: Ranks, left: int, slept: list[float]) -> None:
    """Unless they have; and where threads go on, they are waited for."""
    waited: list[float] = []
    monkeypatch.setattr(parallel.time, "sleep", waited.append)
    parallel._leave(ranks)
    assert (ranks.left, waited) == (left, slept)


@pytest.mark.parametrize(
    ("joined", "meshes", "shares", "schedule", "parts"),
    [
        (False, ["dp=2 cp=3 tp=5"], (), "1f1b", 6 * 7),
        (True, ["dp=4 cp=1 tp=5", "dp=3 cp=2 tp=5"], (), None, 12 * 7),
        (True, ["dp=2 cp=3 tp=5"], (3, 1), None, 4 * 7),
    ],
)
def test_a_model_is_made_this_ranks_part(
    monkeypatch: pytest.MonkeyPatch,
    joined: bool,
    meshes: Sequence[str],
    shares: tuple[int, ...],
    schedule: str | None,
    parts: int,
) -> None:
    """A batch has as many parts as every mesh can share out over its axes of the batch, or unequal shares add up to;
    times seven micro-batches. Ranks that have joined before leave by themselves."""
    done: list[str] = []
    script: Any = ModuleType("train")
    script.dist = Ranks("gloo", joined=joined)
    script.start = lambda: done.append("started") or "mesh"
    script.parallelize = lambda model, mesh: SimpleNamespace(model=model, mesh=mesh, schedule=schedule)
    model, kinds = nn.Linear(2, 2), [SimpleNamespace(mesh=Mesh.parse(mesh)) for mesh in meshes]
    decisions = SimpleNamespace(schedule=SimpleNamespace(microbatches=7), target="torch-gloo")
    subject = SimpleNamespace(fold="fold", decisions=decisions)
    again = SimpleNamespace(ask=SimpleNamespace(model="m.py:f"))
    written = SimpleNamespace(write=lambda folder: done.append(f"written {folder.is_dir()}"))
    monkeypatch.setattr(parallelize, "load_plan", lambda path: f"plan of {path}")
    monkeypatch.setattr(parallelize, "reload", lambda plan, reference: done.append(f"{plan} {reference}") or again)
    monkeypatch.setattr(parallelize, "subject_of", lambda _: subject)
    monkeypatch.setattr(parallel, "same_parameters", lambda *of: done.append(f"{of[1]} {of[2]}"))
    monkeypatch.setattr(parallel, "emit", lambda *_: written)
    monkeypatch.setattr(parallel, "load", lambda path: done.append(f"loaded {Path(path).name}") or script)
    monkeypatch.setattr(parallel, "kinds_of", lambda _: kinds)
    monkeypatch.setattr(parallel, "axes_of", lambda _: SimpleNamespace(batch=("dp", "cp")))
    monkeypatch.setattr(parallel, "shares_along", lambda *_: shares)
    monkeypatch.setattr(parallel.atexit, "register", lambda *_: done.append("will leave"))
    found = parallelize.parallelize(model, "plan.json", reference="here")
    leaves = [] if joined else ["will leave"]
    assert done == [
        "plan of plan.json here",
        "fold m.py:f",
        "written True",
        "loaded train.py",
        *leaves,
        "started",
    ]
    assert (found.module.model, found.module.mesh, found.mesh, found.script) == (model, "mesh", "mesh", script)
    assert (found.schedule, found.parts) == (schedule, parts)


def part(**words: Any) -> Parallelized:
    script: Any = ModuleType("train")
    script.GLOBAL_BATCH = 8
    script.train_step = lambda *of: of
    usual: dict[str, Any] = {"module": nn.Linear(2, 2), "schedule": None, "mesh": "mesh", "script": script}
    return Parallelized(**usual | words)


def test_a_step_is_the_scripts_on_this_ranks_part_of_a_batch() -> None:
    own = part()
    assert own.parts == 1
    assert own.step("optimizer", {"x": [1, 2]}) == (own.module, "optimizer", {"x": [1, 2]}, "mesh")
    script: Any = own.script
    script.own_part = lambda batch, mesh: {name: rows[:1] for name, rows in batch.items()} | {"mesh": mesh}
    assert own.step("optimizer", {"x": [1, 2]})[2] == {"x": [1], "mesh": "mesh"}
    script.OnHost = type("OnHost", (), {})
    assert own.step(script.OnHost(), {})[2] == {"mesh": "mesh"}
    with pytest.raises(OptimizerElsewhere) as refused:
        own.step("optimizer", {})
    assert refused.value.place == "str"


def test_an_optimizer_has_what_is_trained() -> None:
    own = part()
    own.module.bias.requires_grad = False
    (trained,) = own.optimizer(list)
    assert trained is own.module.weight


@pytest.mark.parametrize(
    ("schedule", "rows", "cause"),
    [
        (None, 6, "6 sequences, which 4 parts on ranks and in micro-batches do not divide"),
        ("1f1b", 4, "4 sequences, and stages expect 8"),
    ],
)
def test_every_tensor_of_a_batch_is_looked_at(schedule: str | None, rows: int, cause: str) -> None:
    with pytest.raises(BatchImpossible) as refused:
        part(schedule=schedule, parts=4).check({"x": [0] * 8, "y": [0] * rows})
    assert (refused.value.place, refused.value.cause) == ("y", cause)


class Model(nn.Module):
    """Two weights and a buffer."""

    def __init__(self) -> None:
        super().__init__()
        self.one, self.two = nn.Linear(2, 3, bias=False), nn.Linear(3, 2, bias=False)
        self.register_buffer("seen", nn.Parameter().detach())


def placed(monkeypatch: pytest.MonkeyPatch, **shapes: tuple[int, ...]) -> Any:
    """A fold whose step reads these parameters, and a buffer."""
    held = {
        f"{name}.weight": (SimpleNamespace(buffer=False), SimpleNamespace(shape=shape))
        for name, shape in shapes.items()
    }
    held["seen"] = (SimpleNamespace(buffer=True), SimpleNamespace(shape=(9,)))
    monkeypatch.setattr(parallel, "parameters", lambda _: held)
    return SimpleNamespace()


@pytest.mark.parametrize(
    ("shapes", "place", "cause"),
    [
        ({"one": (3, 2), "two": (2, 3)}, "", ""),
        (
            {"one": (3, 2), "two": (2, 4)},
            "Model, two.weight",
            "it is (2, 3) here, and (2, 4) in the plan's model, m.py:f",
        ),
        (
            {"none": (3, 2), "two": (2, 4)},
            "Model, none.weight",
            "it is not there, and (3, 2) in the plan's model, m.py:f",
        ),
        ({"one": (3, 2)}, "Model, two.weight", "the plan's model, m.py:f, has no such parameter"),
    ],
)
def test_parameters_are_those_that_the_plan_places(
    monkeypatch: pytest.MonkeyPatch, shapes: dict[str, tuple[int, ...]], place: str, cause: str
) -> None:
    """The first that differs is named; buffers are not looked at."""
    fold = placed(monkeypatch, **shapes)
    if not cause:
        same_parameters(Model(), fold, "m.py:f")
        return
    with pytest.raises(PlanOfAnotherModel) as refused:
        same_parameters(Model(), fold, "m.py:f")
    assert (refused.value.place, refused.value.cause) == (place, cause)


def test_tied_parameters_are_one(monkeypatch: pytest.MonkeyPatch) -> None:
    tied = Model()
    tied.two = tied.one
    same_parameters(tied, placed(monkeypatch, one=(3, 2)), "m.py:f")


# plan emit -----------------------------------------------------------------------------------------------------------


def emitted(
    monkeypatch: pytest.MonkeyPatch,
    folder: Path,
    *,
    launch: str = "torchrun\n",
    device: str = "torch-gloo",
    slurm: bool = False,
    **words: Any,
) -> tuple[int, list[str]]:
    """The exit code, and what was called."""
    done: list[str] = []
    texts = (("train.py", "1\n"), ("launch.sh", launch), ("ranks.json", "[]"))
    texts += (("launch.slurm", "sbatch\n"),) if slurm else ()
    one = plan()
    ask = SimpleNamespace(cluster="cluster")
    again = SimpleNamespace(plan=one, changed=("the cluster has changed",), prediction=prediction(), ask=ask)
    other = SimpleNamespace(plan=one, prediction=prediction(step_time_s=3.0), ask=ask)

    @dataclass(frozen=True)
    class Subject:
        decisions: Any
        init: str = "?"

    subject = Subject(SimpleNamespace(target=device))

    def made(subject_: Any, folder_: Path) -> Files:
        done.append(f"init {subject_.init!r}")
        return Files(texts, ("mind this",))

    monkeypatch.setattr(emit, "load_plan", lambda path: one)
    monkeypatch.setattr(emit, "reload", lambda plan, model: again)
    monkeypatch.setattr(emit, "on_target", lambda _, name: done.append(f"on {name}") or other)
    monkeypatch.setattr(emit, "subject_of", lambda again: done.append("the plan") or subject)
    monkeypatch.setattr(emit, "tiny", lambda again, folder, progress: done.append("its twin") or subject)
    backend = SimpleNamespace(
        emit=made,
        on_hosts=lambda target, _: target == "torch-cuda",
        with_hosts=lambda files, target, seats: done.append(str(seats)) or files,
        how_to_start=door.how_to_start,
    )
    monkeypatch.setattr(emit, "backend_of", lambda _: backend)
    monkeypatch.setattr(emit, "seats", lambda cluster: f"seats of {cluster}")
    usual = {"plan": "p", "model": None, "out": str(folder), "to": None, "target": None, "tiny": False, "init": None}
    return emit.run(Namespace(**usual | {"force": False, "json": False, "progress": Progress(None)} | words)), done


def test_what_is_written_is_told(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str], tmp_path: Path
) -> None:
    code, done = emitted(monkeypatch, tmp_path / "it's")
    out, err = capsys.readouterr()
    assert (code, done) == (0, ["the plan", "init ''"])
    assert err == ("warning: the cluster has changed; the decisions are emitted as they stand\nnote: mind this\n")
    folder = tmp_path / "it's"
    quoted = str(folder / "launch.sh").replace("'", "'\"'\"'")
    assert out.splitlines() == [
        *(f"written: {folder / name}" for name in ("train.py", "launch.sh", "ranks.json")),
        f"start it on this machine: '{quoted}' --steps 10",
    ]
    assert sorted(path.name for path in folder.iterdir()) == [
        ".meshwright.json",
        "launch.sh",
        "ranks.json",
        "train.py",
    ]


@pytest.mark.parametrize(
    ("launch", "slurm", "where"),
    [
        ("NODE_RANK=1", False, "on every host"),
        ("NODE_RANK=1", True, "on every host, or under Slurm"),
        ("torchrun", False, "on this machine"),
    ],
)
def test_where_it_is_started(
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
    tmp_path: Path,
    launch: str,
    slurm: bool,
    where: str,
) -> None:
    monkeypatch.setattr(hosts, "SLURM", "launch.slurm")
    _, done = emitted(monkeypatch, tmp_path, launch=launch, slurm=slurm, device="torch-cuda", init="meta")
    assert done == ["the plan", "init 'meta'", "seats of cluster"]
    assert capsys.readouterr().out.splitlines()[-1] == f"start it {where}: {tmp_path / 'launch.sh'} --steps 10"


def test_for_another_target_it_is_priced_for_both(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str], tmp_path: Path
) -> None:
    _, done = emitted(monkeypatch, tmp_path, json=True, target="torch-gloo")
    assert done == ["on torch-gloo", "the plan", "init ''"]
    out, err = capsys.readouterr()
    written = {"written": [str(tmp_path / name) for name in ("train.py", "launch.sh", "ranks.json")]}
    assert out == f"{json.dumps(written, indent=2)}\n"
    assert "for torch-gloo: 3 s a step, 2 s for torch-cuda\n" in err
