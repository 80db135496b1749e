"""Refusals of models in JAX, by the command line: what its scripts do not hold, and axes that a mesh lacks."""

from __future__ import annotations

import pytest

from meshwright.ir.errors import (
    AnnotationAxis,
    EmissionLoss,
    EmissionSchedule,
    EmissionStorage,
    ForwardRaised,
    NothingEmitted,
)
from meshwright.planner.cli.main import main
from tests.planner.refused.cases import ROOT

pytest.importorskip("jax")

ZOO = ROOT / "tests" / "ir" / "frontends" / "jax_zoo"
WORKLOAD = "--global-batch 8 --seq 16"
STAGES = "pp=2,microbatches=4,schedule=eager-1f1b"
PLAN = f"plan {ZOO}/{{}} --cluster cpu:2 {WORKLOAD} --target jax-cpu --fix {STAGES}"
SCAN = f"plan {ROOT}/examples/jax_llama.py:tiny_scan --cluster cpu:4 {WORKLOAD} --target jax-cpu"
OWN = f"estimate {ZOO}/annotated.py:pair --cluster cpu:2 {WORKLOAD}"
TOLD = {
    "one program": (PLAN.format("translation.py:build"), EmissionSchedule, "devices run one program"),
    "no parts": (PLAN.format("plain.py:gshard_balanced"), EmissionLoss, "this one has no parts"),
    "for two reasons": (f"{SCAN} --fix dp=2,zero=2,{STAGES}", NothingEmitted, "MW5013"),
    "whole batches": (
        f"estimate {ZOO}/whole_batches.py:build --cluster cpu:2 {WORKLOAD}",
        ForwardRaised,
        "one that takes whole batches needs forward(model, batch) beside its factory",
    ),
    "an axis": (f"{OWN} --annotated dp=2", AnnotationAxis, "'fsdp'"),
}
"""Words, the kind of error, and what it says."""


@pytest.mark.parametrize("name", TOLD)
def test_what_is_not_written_is_refused(name: str, capsys: pytest.CaptureFixture[str]) -> None:
    words, kind, told = TOLD[name]
    assert main(words.split()) == kind.exit_code
    said = capsys.readouterr().err
    assert f"error {kind.code} at " in said
    assert told in said
    assert name != "for two reasons" or EmissionStorage.code in said
