"""Twins of plans for a model in JAX and many GPUs: the same kinds, run on devices of one process, exact."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace
from functools import cache
from pathlib import Path

import pytest

pytest.importorskip("jax")

from meshwright.backends.jax_.capabilities import JAX_CUDA
from meshwright.backends.jax_.emit.files import emit
from meshwright.backends.jax_.verify.emitted import Job, verify
from meshwright.ir.errors import VerificationTooLarge
from meshwright.ir.frontends.door import capture, load_model, twin_of
from meshwright.ir.names import template
from meshwright.ir.sharding.mesh import Mesh
from meshwright.ir.target.workload import STACKS, Workload
from meshwright.planner.cli.main import main
from meshwright.planner.plan import twin as planner_twin
from meshwright.planner.plan.twin import Planned, Twinned, twinned
from meshwright.planner.question.pins import fill, parse

MODEL = str(Path(__file__).parents[2] / "examples" / "jax_llama.py") + ":llama_8b_scan"
BATCH, SEQ = 128, 512
KINDS = {
    "tp=8,dp=8,zero=3,recompute=full,microbatches=1": "dp=2 tp=2",
    "cp=64,zero=0,microbatches=1,zigzag=off": "cp=4",
}
"""Degrees on 64 GPUs, and the mesh of their twin."""


@pytest.fixture(scope="module")
def twins(tmp_path_factory: pytest.TempPathFactory) -> Iterator[list[tuple[Path, Twinned]]]:
    """Twins of all kinds, written into folders; what is made small is the same for all, and is made once."""
    source = load_model(MODEL, dtype="bf16").in_dtype("bf16")
    workload = Workload(global_batch=BATCH, seq=SEQ, stack=STACKS["jax"], recipe="fsdp-bf16-reduce")
    found = []
    with pytest.MonkeyPatch.context() as patch:
        made = cache(lambda scale: twin_of(source, MODEL, scale))
        patch.setattr(planner_twin, "twin_of", lambda _, __, scale: made(scale))
        for pins in KINDS:
            config = replace(fill(parse([pins]), ranks=64, global_batch=BATCH), split="even")
            fold = capture(source, batch=config.batch, seq=SEQ).fold
            degrees = config.degrees()
            ran = replace(degrees, **JAX_CUDA.ran(degrees.zero, degrees.microbatches))
            decisions = replace(template(fold, ran, "jax-cuda"), style="xla")
            folder = tmp_path_factory.mktemp("twin")
            plan = Planned(model=MODEL, source=source, fold=fold, decisions=decisions, config=config, workload=workload)
            found.append((folder, twinned(plan, folder)))
        yield found


@pytest.mark.slow
def test_twins_decide_what_their_plans_do_and_are_exact(twins: list[tuple[Path, Twinned]]) -> None:
    for (_, twin), mesh in zip(twins, KINDS.values(), strict=True):
        assert (twin.subject.decisions.stages[0].mesh, twin.told) == (Mesh.parse(mesh), ())
        assert (twin.subject.decisions.target, twin.subject.decisions.style) == ("jax-cpu", "xla")
    for folder, twin in twins:
        emit(twin.subject, folder).write(folder)
    found = verify([Job.of(twin.subject, folder) for folder, twin in twins], steps=1, limit_s=1800.0)
    assert [(one.exact, one.unlike) for one in found] == [(True, ())] * len(KINDS)
    kinds = [{(kind, axes) for kind, axes, _, _ in one.collectives} for one in found]
    assert {("all_gather", "dp"), ("all_gather", "tp"), ("all_reduce", "tp")} <= kinds[0]
    assert ("all_gather", "cp") in kinds[1]
    recomputed = [any(plan.recompute for plan in twin.subject.decisions.plans) for _, twin in twins]
    assert recomputed == [True, False]
    assert "LlamaConfig(vocab=512, width=256, ffn=64, layers=2, heads=32, " in (twins[0][0] / "twin.py").read_text()


@pytest.mark.e2e
@pytest.mark.slow
def test_the_fastest_plan_of_a_large_model_is_run_by_its_twin(
    capsys: pytest.CaptureFixture[str], tmp_path: Path
) -> None:
    """The plan itself is refused, with what can be run."""
    out = str(tmp_path / "out")
    where = ("--cluster", "8x8xH100", "--global-batch", "256", "--seq", "4096")
    assert main(["plan", MODEL, *where, "--out", out]) == 0
    assert main(["verify", out]) == VerificationTooLarge.exit_code
    assert "verify its small twin with --tiny\n" in capsys.readouterr().err
    assert main(["verify", out, "--tiny", "--steps", "1", "--time-limit", "1800"]) == 0
    assert "against one device: exact" in capsys.readouterr().out
