"""Plans mean the same to torch: DTensor, which knows nothing of ours, reaches the same values and gradients, and leaves
results where our rules do."""

from __future__ import annotations

from collections.abc import Iterator
from random import Random

import pytest

from meshwright.backends.torch_.verify.interpreted.compare import TOLERANCE, largest, random_values, whole
from meshwright.backends.torch_.verify.interpreted.simulate import exact
from meshwright.ir.decisions.decisions import BodyPlan
from meshwright.ir.graph.graph import Graph
from meshwright.ir.names import Degrees, template
from meshwright.ir.sharding.mesh import Mesh
from meshwright.planner.block.build import build
from meshwright.planner.block.plan import body_plan
from meshwright.planner.block.space import Space
from tests.backends.torch_.dtensors import Job, Second, second
from tests.llama_block import Sizes, model
from tests.planner.block.settings import drawn, terms

PLANS = {
    "data": Degrees(dp=2),
    "tensor": Degrees(tp=2),
    "tensor, sequence": Degrees(tp=2, sequence_parallel=True),
    "context": Degrees(cp=2),
}
"""Two ranks: DTensor takes milliseconds to work out each operator, on every rank."""
RANKS = 2
DRAWN = 4


Found = list[tuple[Job, Second | str]]


def named() -> Iterator[tuple[str, Job]]:
    """Every body of a small Llama under plans with names."""
    llama = model(Sizes())
    for name, degrees in PLANS.items():
        decisions = template(llama, degrees, "any")
        for plan in decisions.plans:
            yield name, job(llama.body[plan.body].graph, plan, decisions.stages[0].mesh)


def without_name() -> Iterator[Job]:
    """Random choices of the block problem."""
    mesh = Mesh.parse(f"a={RANKS}")
    block = build(model(Sizes()), "block", mesh, terms(mesh, batch=4, seq=16), Space(zero=0))
    for seed in range(DRAWN):
        yield job(block.graph, body_plan(block, drawn(block, Random(seed))), mesh)


def job(graph: Graph, plan: BodyPlan, mesh: Mesh) -> Job:
    values = random_values(graph)
    return Job(graph, plan, mesh, values, whole(graph, values).cotangents)


def all_jobs() -> list[Job]:
    return [*(one for _, one in named()), *without_name()]


@pytest.fixture(scope="module")
def found(tmp_path_factory: pytest.TempPathFactory) -> Found:
    """All of them in one launch."""
    return list(zip(all_jobs(), second(__name__, RANKS, tmp_path_factory.mktemp("dtensors")), strict=True))


def check(job: Job, found: Second) -> None:
    """The values and gradients of the whole body."""
    expected = whole(job.graph, job.values)
    for ours, theirs in ((expected.outputs, found.outputs), (expected.grads, found.grads)):
        floor = 1e-3 * largest(ours)
        assert theirs.keys() == ours.keys()
        assert [name for name, value in ours.items() if not exact(theirs[name], value, TOLERANCE, floor)] == []


def test_named_plans_of_a_llama(found: Found) -> None:
    for (name, _), (one, result) in zip(named(), found, strict=False):
        assert isinstance(result, Second), (name, result)
        check(one, result)
        assert result.agreed
        assert not result.otherwise, name


def test_plans_that_no_name_says(found: Found) -> None:
    """As far as DTensor can say and run them."""
    ran = [(one, result) for one, result in found[-DRAWN:] if isinstance(result, Second)]
    assert len(ran) >= DRAWN // 2, [result for _, result in found[-DRAWN:]]
    for one, result in ran:
        check(one, result)
        assert set(result.otherwise) <= {"attention"}, "it runs in parts there, which DTensor may lay out as it likes"
        assert result.agreed.count("linear") == 7
