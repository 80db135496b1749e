"""A model's own shardings are priced as XLA runs them; what they cannot mean is refused."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

pytest.importorskip("jax")

from benchmarks.emitted_jax import WORKLOADS
from meshwright.backends.jax_.capabilities import JAX_CPU
from meshwright.backends.jax_.verify.predicted import predicted
from meshwright.ir.annotated.plan import annotated
from meshwright.ir.decisions.decisions import Decisions
from meshwright.ir.errors import (
    AnnotatedMesh,
    AnnotationAxis,
    AnnotationMissing,
    BatchIndivisible,
    MeshwrightError,
    PinsContradict,
)
from meshwright.ir.frontends.door import capture, load_model
from meshwright.ir.frontends.folding.captured import Captured
from meshwright.ir.names import Degrees, template
from meshwright.ir.program.lower import lower
from meshwright.ir.sharding.mesh import Mesh
from meshwright.planner.cli.main import main
from meshwright.planner.question.annotated import config_of, mesh_of
from meshwright.planner.question.pins import Pins
from tests.backends.jax_.planned import LLAMA, ROOT, ZOO

OWN, BATCH, SEQ = f"{ZOO}/annotated.py", 16, 64
MESH = Mesh.parse("dp=4 tp=2")


def captured(factory: str, mesh: Mesh = MESH) -> Captured:
    """A model as it is traced on a mesh."""
    sizes = tuple((axis.name, axis.size) for axis in mesh.axes)
    return capture(load_model(f"{OWN}:{factory}", mesh=sizes).in_dtype("fp32"), batch=BATCH, seq=SEQ)


def plan_of(found: Captured, mesh: Mesh = MESH, **more: Any) -> Decisions:
    """The plan that its code stands for."""
    return replace(annotated(found.fold, found.annotations, mesh, JAX_CPU, **more), style="xla")


def test_blocks_are_planned_as_by_names() -> None:
    """Megatron's cuts and parameters in shards, written as constraints and metadata, are dp=4, tp=2 under ZeRO-3."""
    found = captured("decoder")
    own = plan_of(found).plan["blocks"]
    named = template(found.fold, Degrees(dp=4, tp=2, zero=3), "jax-cpu").plan["blocks"]
    assert dict(own.strategies) == dict(named.strategies)
    both = [{one.path: one.params for one in plan.storage} for plan in (own, named)]
    assert both[0].keys() == {one for one in both[1] if "kernel" in one}
    assert all(set(there.axes) == set(both[1][path].axes) == {"dp", "tp"} for path, there in both[0].items())


@pytest.mark.e2e
@pytest.mark.slow
@pytest.mark.parametrize("axes", ["dp=4 tp=2", "dp=2 tp=4", "dp=8 tp=1"])
def test_collectives_are_those_of_the_compiled_step(axes: str) -> None:
    mesh = Mesh.parse(axes)
    found = captured("decoder", mesh)
    workload = replace(WORKLOADS["fp32"], seq=SEQ, global_batch=BATCH)
    how = JAX_CPU.lowering().for_stack(workload.stack)
    planned = predicted(lower(found.fold, plan_of(found, mesh), how, workload), found.fold, JAX_CPU)
    environment = os.environ | {"JAX_PLATFORMS": "cpu", "PYTHONPATH": f"{ROOT / 'src'}:{ROOT}"}
    command = [sys.executable, str(Path(__file__).with_name("annotated_run.py")), axes, str(BATCH), str(SEQ)]
    done = subprocess.run(command, capture_output=True, text=True, timeout=600, check=False, env=environment, cwd=ROOT)
    assert done.returncode == 0, done.stderr[-3000:]
    rows = json.loads(done.stdout.splitlines()[-1])
    executed = {(kind, tuple(over), size): number for kind, over, size, number in rows}
    assert list(planned.differences(executed)) == []


def test_what_code_says_is_left_alone_where_nobody_asks() -> None:
    """A model with logical names is planned as any other."""
    found = capture(load_model(f"{OWN}:perceptron").in_dtype("fp32"), batch=BATCH, seq=SEQ)
    assert not found.annotations


def test_logical_names_become_axes_by_rules() -> None:
    found = captured("perceptron")
    up, down = (("dp",), ("tp",)), (("tp",), ("dp",))
    assert found.annotations.params == {"Dense_1.kernel": down, "Dense_2.kernel": up}
    assert [spec[0] for spec in found.annotations.values.values()] == [("dp",)]


def test_what_is_said_of_a_stack_is_said_of_its_blocks() -> None:
    """Parameters of a scan have a dimension in front."""
    found = captured("scanned")
    assert found.annotations.params["layers.0.w"] == (("dp",), ("tp",))
    (plan,) = (one for one in plan_of(found).plans if one.storage)
    assert [str(one.params) for one in plan.storage] == ["[dp, tp]"]


REFUSED: tuple[tuple[str, type[MeshwrightError], str], ...] = (
    ("pair", AnnotationAxis, "'fsdp'"),
    ("silent", AnnotationMissing, "says of no value"),
)


@pytest.mark.parametrize(("factory", "error", "words"), REFUSED)
def test_what_cannot_be_a_plan_is_refused(factory: str, error: type[MeshwrightError], words: str) -> None:
    with pytest.raises(error, match=words):
        plan_of(captured(factory))


def test_meshes_and_pins_are_checked_before_the_model_is_touched() -> None:
    assert mesh_of("dp=4,tp=2", 8) == MESH
    for text in ("dp=4", "dp=4;tp=2", "dp", ""):
        with pytest.raises(AnnotatedMesh):
            mesh_of(text, 8)
    assert config_of(Pins(microbatches=2, recompute="full"), BATCH).batch == BATCH // 2
    with pytest.raises(PinsContradict, match="every axis"):
        config_of(Pins(tp=2), BATCH)
    with pytest.raises(PinsContradict, match="one plan"):
        config_of(Pins(recompute="full_layers:1"), BATCH)
    with pytest.raises(BatchIndivisible):
        config_of(Pins(microbatches=3), BATCH)


def test_recomputed_blocks_keep_less(capsys: pytest.CaptureFixture[str]) -> None:
    """By the command line: what is priced is said."""
    asked = ["estimate", f"{OWN}:decoder", "--cluster", "cpu:8", "--global-batch", str(BATCH), "--seq", str(SEQ)]
    asked += ["--annotated", "dp=4,tp=2", "--json"]
    kept = []
    for pins in ([], ["--fix", "recompute=full"]):
        assert main([*asked, *pins]) == 0
        found = json.loads(capsys.readouterr().out)
        assert found["annotated"] == {"dp": 4, "tp": 2}
        kept.append(found["predicted"]["stages"][0]["memory"]["activations"])
    assert kept[1] < kept[0] / 2
    assert main(["estimate", f"{LLAMA}:tiny", *asked[2:-1]]) == AnnotationMissing.exit_code
    assert "MW1018" in capsys.readouterr().err
