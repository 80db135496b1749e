"""Emitted scripts, run on four processes: equal to the model on one device, with the collectives of the Program; and
scripts with a fault, which must not pass."""

from __future__ import annotations

import ast
import json
import os
import re
import subprocess
import sys
import time
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from meshwright.backends.results import Verified
from meshwright.backends.torch_.emit import Subject, emit
from meshwright.backends.torch_.verify.emitted import verify
from meshwright.ir.decisions.decisions import Schedule
from meshwright.ir.errors import (
    EmissionModel,
    EmissionRecompute,
    EmissionSchedule,
    EmissionSoftware,
    EmissionStorage,
    EmissionTarget,
    MeshwrightError,
    RanksFailed,
)
from meshwright.ir.frontends.door import calls_of, load_model
from meshwright.ir.names.pinned import Allowed, Pinned
from meshwright.ir.sharding.adjoint import Split, Strategy
from meshwright.ir.sharding.placement import Placement
from meshwright.planner.answer.compare import read_run
from tests.backends.torch_ import golden
from tests.backends.torch_.emitted import BATCH, SEQ, job, lowered, model, subject, unclean, written
from tests.backends.torch_.measured import assert_planned
from tests.backends.torch_.proved import proved


def blocks_again() -> Pinned:
    """Whole blocks are computed again, and nothing else."""
    again = Allowed(recompute=frozenset({"on"}))
    return Pinned({"Block": {op.name: again for op in model()[0].body["Block"].graph.ops}})


KINDS: dict[str, dict[str, Any]] = {
    "dp": {"dp": 4},
    "fsdp": {"dp": 4, "zero": 3, "regather": False},
    "tp": {"tp": 4},
    "tp, a value put together in a module": {"tp": 4},
    "tp+sp": {"tp": 4, "sequence_parallel": True},
    "tp x fsdp": {"tp": 2, "dp": 2, "zero": 3},
    "tp+sp x zero 2": {"tp": 2, "dp": 2, "zero": 2, "sequence_parallel": True},
    "tp+sp x fsdp, recompute": {"tp": 2, "dp": 2, "zero": 3, "sequence_parallel": True, "pins": blocks_again},
}


def table_of_own_tokens(plan: Subject) -> Subject:
    """An embedding whose table every rank holds, on the tokens of its own."""
    cut = Strategy((("dp", Split(("d0",))), ("tp", Split(("d1",)))))
    (held,) = plan.decisions.plan["embed"].storage
    whole, shards = Placement.parse("[-, -]"), Placement.parse("[dp, -]")
    stored = replace(held, params=whole, grads=shards, optimizer=shards)
    return with_plan(plan, "embed", strategies=(("embedding", cut),), storage=(stored,))


def activation_of_all(plan: Subject) -> Subject:
    """Columns of a product, of which the activation reads all."""
    kept = tuple(pair for pair in plan.decisions.plan["Block"].strategies if pair[0] != "silu")
    return with_plan(plan, "Block", strategies=kept)


CHANGED = {"tp+sp x zero 2": table_of_own_tokens, "tp, a value put together in a module": activation_of_all}


def plan_of(kind: str) -> Subject:
    given = dict(KINDS[kind])
    pins = given.pop("pins", None)
    return CHANGED.get(kind, lambda plan: plan)(subject(pins() if pins else None, **given))


def counted(found: Verified) -> dict[str, int]:
    return {f"{kind} {axes}": number for kind, axes, number, _ in found.collectives}


GATHERED, READ = "feed_forward_norm = gather_from(feed_forward_norm, tp, 1)", "up_proj = F.linear("
FAULTS = {
    "a placement: gathered for each of two products": (
        "tp+sp",
        f"    {GATHERED}\n    {READ}feed_forward_norm,",
        f"    other_{GATHERED.removeprefix('feed_forward_')}\n    {GATHERED}\n    {READ}other_norm,",
        "all_gather over ranks (0, 1, 2, 3)",
    ),
    "a unit: gathered again": (
        "fsdp",
        "reshard_after_forward=False",
        "reshard_after_forward=True",
        "all_gather over dp",
    ),
    "the data: all ranks have the same": ("dp", "tensor.chunk(parts)[here]", "tensor.chunk(parts)[0]", "gradient of"),
}


UNLIKE = "zero 1, ranks with unlike numbers of targets"


def unlike(plan: Subject, folder: Path) -> Subject:
    """The plan, for a model whose batches have fewer targets the later the sequence."""
    batches = """
_made = example_inputs

def example_inputs(batch: int, seq: int) -> dict[str, Tensor]:
    made = _made(batch, seq)
    late = torch.arange(batch)[:, None] + torch.arange(seq) >= seq
    return made | {"labels": made["labels"].masked_fill(late, -100)}
"""
    file = folder / "llama.py"
    file.write_text(plan.calls.file.read_text() + batches)
    return replace(plan, calls=replace(plan.calls, file=file))


@pytest.fixture(scope="module")
def found(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Verified]:
    """All plans."""
    plans = {kind: plan_of(kind) for kind in KINDS}
    plans[UNLIKE] = unlike(subject(dp=4, zero=1), tmp_path_factory.mktemp("unlike"))
    scripts = {
        kind: golden.file_of(kind) if kind in golden.KEPT else written(plan, tmp_path_factory.mktemp("plan"))
        for kind, plan in plans.items()
    }
    return proved("emit", {kind: (plans[kind], script) for kind, script in scripts.items()}, steps=2, limit_s=600)


@pytest.fixture(scope="module")
def faulty(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Verified]:
    """All faults, and a plan without one: one launch, since starting costs more than running."""
    jobs = {"dp": job(plan_of("dp"), written(plan_of("dp"), tmp_path_factory.mktemp("plan")))}
    for fault, (kind, before, after, _) in FAULTS.items():
        script = written(plan_of(kind), tmp_path_factory.mktemp("fault"))
        text = script.read_text()
        assert before in text
        script.write_text(text.replace(before, after))
        jobs[fault] = job(plan_of(kind), script)
    return dict(zip(jobs, verify(tuple(jobs.values()), steps=2, limit_s=600), strict=True))


@pytest.mark.e2e
@pytest.mark.parametrize("kind", [*KINDS, UNLIKE])
def test_a_plan_is_exact_and_communicates_what_it_says(kind: str, found: dict[str, Verified]) -> None:
    one = found[kind]
    assert one.differences == ()
    if kind != UNLIKE:  # whose gradients are never whole
        assert_planned(plan_of(kind), one)
    assert one.tensors == 2 * 39
    assert one.losses[1] < one.losses[0]
    if kind == "tp":  # Megatron's four all-reduces per block, the embedding's, the head's input, three of the loss
        assert counted(one) == {"all_reduce tp": 4 * 4 + 2 + 3}
    if kind == "fsdp":  # one gather and one scatter per unit: four blocks, the embedding, the head
        assert counted(one) == {"all_gather dp": 6, "reduce_scatter dp": 6, "all_reduce dp": 2}


@pytest.mark.e2e
@pytest.mark.parametrize("fault", FAULTS)
def test_a_script_with_a_fault_does_not_pass(fault: str, faulty: dict[str, Verified]) -> None:
    says = FAULTS[fault][-1]
    assert faulty["dp"].exact
    assert any(says in one for one in faulty[fault].differences), faulty[fault].differences[:4]


@pytest.mark.e2e
def test_a_rank_that_dies_is_named_and_the_others_are_ended(tmp_path: Path) -> None:
    plan = plan_of("dp")
    script = written(plan, tmp_path)
    died = 'def build() -> nn.Module:\n    if dist.get_rank() == 2:\n        raise RuntimeError("no more")'
    script.write_text(script.read_text().replace("def build() -> nn.Module:", died))
    with pytest.raises(RanksFailed, match="rank 2 ended with 1") as refused:
        verify([job(plan, script)], steps=1, limit_s=120)
    assert "no more" in refused.value.fix


@pytest.mark.e2e
def test_ranks_that_hang_are_ended(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The time is up as soon as all ranks hang, so that nothing is waited for."""
    plan = plan_of("dp")
    script = written(plan, tmp_path)
    hangs = f'''def build() -> nn.Module:
    Path("{tmp_path}", str(os.getpid())).touch()
    torch.multiprocessing.Event().wait()'''
    script.write_text(script.read_text().replace("def build() -> nn.Module:", hangs))
    limit_s = 120.0
    wait = subprocess.Popen.wait

    def hurried(process: subprocess.Popen[bytes], timeout: float | None = None) -> int:
        while timeout == limit_s and process.poll() is None:
            if len(hanging(tmp_path)) == plan.ranks:
                raise subprocess.TimeoutExpired(process.args, timeout)
            time.sleep(0.1)
        return wait(process, timeout)

    monkeypatch.setattr(subprocess.Popen, "wait", hurried)
    with pytest.raises(RanksFailed, match="ranks 0, 1, 2, 3 were still running after 120 s") as refused:
        verify([job(plan, script)], steps=1, limit_s=limit_s)
    assert "in build" in refused.value.fix
    assert len(hanging(tmp_path)) == plan.ranks
    assert not any(Path("/proc", str(pid)).exists() for pid in hanging(tmp_path))


def hanging(folder: Path) -> list[int]:
    """The processes that have said that they hang."""
    return [int(path.name) for path in folder.iterdir() if path.name.isdigit()]


@pytest.mark.e2e
def test_the_launch_script_starts_it(tmp_path: Path) -> None:
    plan = plan_of("tp x fsdp")
    written(plan, tmp_path)
    done = subprocess.run(
        [tmp_path / "launch.sh", "--steps", "2"],
        capture_output=True,
        text=True,
        timeout=100,
        check=False,
        env=os.environ | {"PYTHON": sys.executable},
    )
    assert done.returncode == 0, done.stderr[-2000:]
    assert re.findall(r"^step (\d) loss \d\.\d{6} step_time_s ", done.stdout, re.MULTILINE) == ["0", "1"]
    assert read_run(done.stdout, "standard output", skip=1).tokens == pytest.approx(BATCH * SEQ, rel=0.02)
    ranks = json.loads((tmp_path / "ranks.json").read_text())
    assert [row["mesh"] for row in ranks] == [{"dp": a, "tp": b} for a in (0, 1) for b in (0, 1)]


def test_scripts_are_clean_short_and_of_stock_torch(tmp_path: Path) -> None:
    for number, kind in enumerate(KINDS):
        script = written(plan_of(kind), tmp_path / f"plan{number}")
        tree = ast.parse(script.read_text())
        imported = {node.module for node in ast.walk(tree) if isinstance(node, ast.ImportFrom)}
        assert not any((name or "").startswith("meshwright") for name in imported)
        assert len(script.read_text().splitlines()) <= (180 if kind in ("dp", "fsdp") else 450)
    assert unclean(tmp_path) == ""


@pytest.mark.parametrize("kind", golden.KEPT)
def test_scripts_are_those_that_are_kept(kind: str) -> None:
    again = "if this is meant: python -m tests.backends.torch_.golden, and read the difference"
    assert golden.file_of(kind).read_text() == golden.text_of(plan_of(kind)), again


def with_plan(plan: Subject, name: str, **changed: Any) -> Subject:
    plans = tuple(replace(one, **changed) if one.name == name else one for one in plan.decisions.plans)
    decisions = replace(plan.decisions, plans=plans)
    return replace(plan, decisions=decisions, program=lowered(decisions))


def states_only() -> Subject:
    """Parameters that are sharded, while the optimizer's state is not."""
    plan = subject(dp=4, zero=3)
    (held,) = plan.decisions.plan["embed"].storage
    whole = Placement.parse("[-, -]")
    return with_plan(plan, "embed", storage=(replace(held, grads=whole, optimizer=whole),))


def part_of_a_block() -> Subject:
    return with_plan(subject(dp=4), "Block", recompute=("silu",))


def head_again() -> Subject:
    plan = subject(dp=4)
    made = tuple(value for op in plan.fold.body["head"].graph.ops for value in op.results)
    return with_plan(plan, "head", recompute=made)


REFUSED: dict[str, tuple[Any, type[MeshwrightError], str]] = {
    "no runtime": (lambda: subject(target="any", dp=4), EmissionTarget, "--target"),
    "micro-batches of unlike size": (
        lambda: replace(p := subject(dp=4), decisions=replace(p.decisions, schedule=Schedule("gpipe", 3))),
        EmissionSchedule,
        "--global-batch",
    ),
    "parameters only": (states_only, EmissionStorage, "zero=3"),
    "a part of a block": (part_of_a_block, EmissionRecompute, "recompute=none"),
    "recompute outside of blocks": (head_again, EmissionRecompute, "recompute=on"),
    "a precision": (
        lambda: replace(p := subject(dp=4), workload=replace(p.workload, precision="bf16", recipe="bf16")),
        EmissionSoftware,
        "--dtype fp32",
    ),
}


@pytest.mark.parametrize("what", REFUSED)
def test_what_no_code_is_written_for_is_refused(what: str, tmp_path: Path) -> None:
    made, kind, fix = REFUSED[what]
    with pytest.raises(kind) as refused:
        emit(made(), tmp_path)
    assert fix in refused.value.fix


def test_a_model_without_a_factory_is_refused() -> None:
    shape = Path(__file__).parents[3] / "examples" / "tiny_decoder.toml"
    with pytest.raises(EmissionModel, match="no factory"):
        calls_of(load_model(str(shape)), str(shape), batch=BATCH, seq=SEQ)
