"""`plan verify --alone`: one rank of each group of a mesh by itself, held against the plan."""

from __future__ import annotations

import json
from collections import Counter
from dataclasses import dataclass, field
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from meshwright.backends.results import Alone
from meshwright.backends.torch_.verify import alone
from meshwright.backends.torch_.verify.alone import each_alone
from meshwright.backends.torch_.verify.run import fake
from meshwright.backends.torch_.verify.run.fake import Counted, counted
from meshwright.ir.errors import RanksFailed, VerificationTooLarge
from meshwright.planner.cli.exits import MISMATCH
from meshwright.planner.cli.main import main
from tests.backends.torch_.emitted import subject
from tests.planner.solved import TINY

ODD = f"{Path(__file__).parents[1] / 'backends' / 'torch_' / 'llama_odd.py'}:odd"
PIPELINE = {"pp": 2, "tp": 2, "dp": 2, "zero": 3, "microbatches": 2, "schedule": "1f1b", "sequence_parallel": True}


@pytest.fixture(scope="module")
def ran(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, list[Alone], dict[int, Counted]]:
    """Both stages of a pipeline whose vocabulary does not divide over the shards."""
    folder, kept = tmp_path_factory.mktemp("alone"), dict[int, Counted]()

    def run(script: Path, rank: int, ranks: int, *, limit_s: float) -> Counted:
        kept[rank] = counted(script, rank, ranks, limit_s=limit_s)
        return kept[rank]

    found = list(each_alone(subject(reference=ODD, **PIPELINE), folder, run, limit_s=300))
    return folder, found, kept


@pytest.mark.e2e
def test_one_rank_of_each_stage_communicates_what_is_planned(
    ran: tuple[Path, list[Alone], dict[int, Counted]],
) -> None:
    folder, found, _ = ran
    assert [(one.rank, one.stages, one.differences) for one in found] == [(0, (0,), ()), (6, (1,), ())]
    assert {axes for one in found for _, axes, _, _ in one.collectives} == {"dp", "tp", "pp"}
    assert [(kind, number) for kind, axes, number, _ in found[0].collectives if axes == "pp"] == [
        ("recv", 2),
        ("send", 2 * 3),
    ]  # gradients of what goes from block to block; that, and two tables of positions
    assert "shard_placement_fn=along(model, {" in (folder / "train.py").read_text()


@pytest.mark.e2e
def test_what_is_not_executed_is_told(ran: tuple[Path, list[Alone], dict[int, Counted]], tmp_path: Path) -> None:
    _, _, kept = ran

    def short(script: Path, rank: int, ranks: int, *, limit_s: float) -> Counted:
        run = kept[rank]
        left = Counter(run.collectives)
        left.pop(next(one for one in sorted(left) if one[0] == "send"))
        return Counted(collectives=left, wall_s=run.wall_s, cpu_s=run.cpu_s, peak_bytes=run.peak_bytes)

    found = list(each_alone(subject(reference=ODD, **PIPELINE), tmp_path, short, limit_s=300))
    assert all("send between" in one.differences[0] for one in found)


def test_rows_for_experts_depend_on_values(tmp_path: Path) -> None:
    from tests.backends.torch_.test_emit_experts import plan_of

    with pytest.raises(VerificationTooLarge, match="depends on values"):
        list(each_alone(plan_of(dp=2, ep=2), tmp_path, counted, limit_s=1))


def test_a_rank_that_takes_too_long_is_ended(tmp_path: Path) -> None:
    (tmp_path / "train.py").write_text("import time\n\ntime.sleep(600)\n")
    with pytest.raises(RanksFailed, match="still running"):
        counted(tmp_path / "train.py", 3, 8, limit_s=0.5)


def test_the_command_prints_every_rank_and_says_what_differs(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    plan = [TINY, "--cluster", "16x8xH100", "--global-batch", "128", "--seq", "16", "--dtype", "fp32"]
    assert main([*plan, "--fix", "tp=2,dp=64,zero=3", "--target", "torch-cuda", "--out", str(tmp_path)]) == 0
    nothing = Counted(collectives={}, wall_s=1.0, cpu_s=1.0, peak_bytes=2**30)
    monkeypatch.setattr(fake, "counted", lambda *_, **__: nothing)
    capsys.readouterr()
    assert main(["verify", str(tmp_path), "--alone"]) == MISMATCH
    printed = capsys.readouterr().out.splitlines()
    assert printed[0] == "rank 0, stage 0: 0 collectives and messages DIFFERENT; 1.0 s, 1.0 s of CPU, 1.00 GiB"
    assert printed[1].startswith("1 of 128 ranks, each alone: DIFFERENT")
    assert main(["verify", str(tmp_path), "--alone", "--json"]) == MISMATCH
    found = json.loads(capsys.readouterr().out)
    assert not found["exact"]
    assert found["alone"][0]["differences"]


@dataclass(frozen=True)
class Decided:
    """Decisions of which only the target counts here."""

    target: str


@dataclass(frozen=True)
class Emitted:
    """As much of a subject as is looked at: four stages on three groups of ranks, the first and the last on one."""

    decisions: Decided = Decided("torch-cuda")
    fold: str = "fold"
    ranks: int = 11
    program: Any = field(
        default_factory=lambda: SimpleNamespace(
            stages=[SimpleNamespace(ranks=ranks) for ranks in ((0, 1), (2, 3, 4), (5, 6), (0, 1))]
        )
    )


def test_which_ranks_are_run_and_what_is_told_of_them(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Of three groups: the first rank of the first, of the second of four that a third along (4 // 3), and of the third
    of six that two thirds along (12 // 3). One rank whose experts are sent rows that no one knows is enough to refuse.
    """
    routed = [SimpleNamespace(routed=flag) for flag in (False, True)]
    groups = [
        SimpleNamespace(ranks=ranks, predicted=(routed[0],), name=str(ranks))
        for ranks in (range(2), range(2, 6), range(6, 12))
    ]
    written: list[object] = []
    ran: list[object] = []

    def emit(one: Emitted, folder: Path) -> Any:
        return SimpleNamespace(write=lambda where: written.append((one.decisions.target, one.ranks, folder, where)))

    def run(script: Path, rank: int, ranks: int, *, limit_s: float) -> Any:
        ran.append((script, rank, ranks, limit_s))
        return Counted(collectives={("send", (rank,), 1): 2}, wall_s=rank + 0.5, cpu_s=rank + 0.25, peak_bytes=rank)

    monkeypatch.setattr(alone, "emit", emit)
    monkeypatch.setattr(alone, "groups_of", lambda program, fold: groups)
    monkeypatch.setattr(alone, "summary", lambda done, group: (done, group.name))
    monkeypatch.setattr(
        alone,
        "unlike",
        lambda done, group, rank, values: [] if rank == 3 else [f"{group.name}, {rank}, {values}"],
    )
    subject_: Any = Emitted()
    found = list(each_alone(subject_, tmp_path, run, limit_s=7.0))
    assert written == [("torch-gloo", 11, tmp_path, tmp_path)]
    assert ran == [(tmp_path / "train.py", rank, 11, 7.0) for rank in (0, 3, 10)]
    stages, told = ((0, 3), (1,), (2,)), ("range(0, 2), 0, Counter()", "", "range(6, 12), 10, Counter()")
    assert found == [
        Alone(
            rank=rank,
            stages=own,
            collectives=({("send", (rank,), 1): 2}, group.name),  # type: ignore[arg-type]
            wall_s=rank + 0.5,
            cpu_s=rank + 0.25,
            peak_bytes=rank,
            differences=(said,) if said else (),
        )
        for rank, own, group, said in zip((0, 3, 10), stages, groups, told, strict=True)
    ]
    groups[1].predicted = (routed[1],)
    with pytest.raises(VerificationTooLarge) as refused:
        next(each_alone(subject_, tmp_path, run, limit_s=7.0))
    assert (refused.value.place, refused.value.fix) == ("a rank alone", "verify the plan's small twin with --tiny")
