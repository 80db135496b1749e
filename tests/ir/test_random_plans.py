"""Random graphs under random plans equal the unsharded graph, forward and backward.

`HYPOTHESIS_PROFILE=long` runs 5,000 graphs; the default a fixed sample.
"""

from __future__ import annotations

from random import Random

from hypothesis import given
from hypothesis import strategies as st

from meshwright.backends.torch_.verify.interpreted.compare import differences, random_values
from meshwright.ir.graph.text import graph_text
from meshwright.ir.sharding.mesh import Mesh
from tests.random_graphs import MESHES, random_graph, random_plan


@given(seed=st.integers(0, 2**32), mesh=st.sampled_from(MESHES))
def test_random_plan_is_exact(seed: int, mesh: str) -> None:
    random = Random(seed)
    graph = random_graph(random)
    plan = random_plan(random, graph, Mesh.parse(mesh))
    wrong = differences(graph, plan, Mesh.parse(mesh), random_values(graph, seed % 1000))
    assert not wrong, "\n".join([str(wrong), graph_text(graph), *(f"{op}: {s}" for op, s in plan.strategies)])
