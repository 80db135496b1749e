"""What stages keep, counted by hand: stacks with repeats stepped over, storages that two calls share, unlike ranks."""

from __future__ import annotations

from dataclasses import replace
from itertools import pairwise

import pytest

from meshwright.cost_models.hardware.cluster import Cluster
from meshwright.cost_models.hardware.devices import device
from meshwright.cost_models.hardware.parts import Pool, PoolLink
from meshwright.cost_models.hardware.quantity import given
from meshwright.cost_models.memory import stage as stage_memory
from meshwright.cost_models.memory.peak import NO_RUNTIME, held, held_by_class, holdings
from meshwright.ir.graph.fold import Body, Fold, FromInput, FromPrevious
from meshwright.ir.graph.graph import Input, Type
from meshwright.ir.names import Degrees, template
from meshwright.ir.program.lower import lower
from meshwright.ir.program.program import Program
from meshwright.ir.sharding.shares import batch_shares
from meshwright.ir.target.workload import STACKS, Workload
from tests.build import Builder
from tests.cost_models.test_memory import SMALL, cluster, part, program
from tests.llama_block import Sizes, model
from tests.models import glue, stack

SQUARE = (4, 8, 16)
"""Sequences, tokens, channels."""
STORAGE = 4 * 8 * 16 * 4
"""Bytes of a value of that shape in fp32."""


def mlp(layers: int) -> Program:
    """Blocks of a linear and a ReLU: the ReLU keeps its result, and so does the next block's linear: one storage."""
    g = Builder()
    x = g.input(SQUARE, labels=("b", "s", ""), requires_grad=True)
    g.output(g.op("relu", g.op("linear", x, g.param("weight", (16, 16)))))
    end = Builder()
    y = end.input(SQUARE, name="y", labels=("b", "s", ""), requires_grad=True)
    end.loss(end.op("mean", y, dims=(0, 1, 2)))
    begin = Builder()
    begin.output(begin.op("linear", begin.input(SQUARE, labels=("b", "s", "")), begin.param("weight", (16, 16))))
    bodies = (Body("begin", begin.graph()), Body("block", g.graph()), Body("end", end.graph()))
    fold = Fold(
        bodies,
        (
            glue("begin", FromInput("x")),
            stack("block", "blocks", layers, FromPrevious(0)),
            glue("end", FromPrevious(0)),
        ),
        ((Input("x", ("b", "s", "")), Type(SQUARE, "f32")),),
        (FromPrevious(0),),
        loss=0,
    )
    workload = Workload(global_batch=4, seq=8, stack=STACKS["torch"], recipe="fp32")
    return lower(fold, template(fold, Degrees()), workload=workload)


@pytest.mark.parametrize("layers", [2, 3, 9])
def test_a_storage_that_two_calls_keep_counts_once(layers: int) -> None:
    """The result of every ReLU, and that of the linear in front of them; the model's input is there anyhow."""
    (one,) = holdings(mlp(layers), cluster(1), NO_RUNTIME)
    assert one.kept_bytes == ((layers + 1) * STORAGE,)


SMALL_LAST = ("H100-80G", "A100-40G")
LONG = replace(SMALL, layers=18, vocab=512)
MIXED = replace(LONG, experts=4, topk=2)


@pytest.mark.parametrize(
    ("shape", "degrees"),
    [
        (LONG, {"stack": "torch"}),
        (LONG, {"stack": "torch", "dp": 4, "zero": 3, "microbatches": 2}),
        (LONG, {"stack": "torch", "dp": 2, "pp": 2, "microbatches": 4}),
        (LONG, {"stack": "torch", "dp": 2, "zero": 1, "pp": 2, "microbatches": 4}),
        (LONG, {"stack": "torch", "dp": 2, "zero": 1, "pp": 2, "microbatches": 4, "schedule": "zb-h1"}),
        (LONG, {"stack": "torch", "tp": 2, "pp": 2, "microbatches": 4, "schedule": "zb-h1"}),
        (LONG, {"stack": "torch", "tp": 2, "sequence_parallel": True, "recompute": "full", "microbatches": 2}),
        (LONG, {"stack": "torch-compile", "dp": 2, "zero": 2, "recompute": "selective"}),
        (LONG, {"stack": "torch", "offload": "activations"}),
        (LONG, {"stack": "megatron", "dp": 2, "tp": 2, "zero": 1, "pp": 2, "microbatches": 4}),
        (LONG, {"stack": "jax", "dp": 4, "zero": 3}),
        (MIXED, {"stack": "torch", "dp": 4, "ep": 2, "zero": 3, "microbatches": 2}),
    ],
    ids=str,
)
def test_repeats_that_are_stepped_over_hold_what_they_hold_one_by_one(
    shape: object, degrees: dict[str, object], monkeypatch: pytest.MonkeyPatch
) -> None:
    """Of nine or eighteen repeats of a layer four are looked at; looking at all finds the same, byte for byte."""
    made = program(shape, **degrees)  # type: ignore[arg-type]
    ranks = cluster(max(rank for stage in made.stages for rank in stage.ranks) + 1)
    few = held(made, ranks, NO_RUNTIME), holdings(made, ranks, NO_RUNTIME)
    monkeypatch.setattr(stage_memory, "SHOWN", 64)
    assert (held(made, ranks, NO_RUNTIME), holdings(made, ranks, NO_RUNTIME)) == few


def test_gradients_that_are_there_from_an_earlier_micro_batch_are_no_idle_memory() -> None:
    """Shards of all gradients, four bytes of a quarter, lie in the pool of the stream that reduces while the second
    loss is made. Idle are the two messages that their pool has room for, less the one that is fetched by then."""
    made = program(replace(SMALL, vocab=512), dp=4, zero=3, microbatches=2)
    bodies = [made.body(name) for _, name in made.stages[0].calls()]
    counts = [sum(body.locals[slot.value].type.elements for slot in body.params) for body in bodies]
    (one,) = held(made, cluster(4), NO_RUNTIME)
    assert one.instant == "loss"
    assert part(one, "gradients") == sum(counts) * 4 / 4
    two = 2 * max(a + b for a, b in pairwise(counts))
    assert part(one, "idle") == two - 2 * counts[-2]


@pytest.mark.parametrize(("order", "sizes"), [(SMALL_LAST, (3, 1)), (SMALL_LAST, (1, 3)), (SMALL_LAST[::-1], (3, 1))])
def test_of_ranks_that_are_not_alike_those_count_that_have_least_room(
    order: tuple[str, str], sizes: tuple[int, int]
) -> None:
    """Kilobytes of activations, whoever has more of them, are nothing beside 40 GB of memory that one rank lacks."""
    pools = tuple(Pool(name=name, hosts=1, device=device(name), gpus_per_host=1) for name in order)
    link = PoolLink(between=order, kind="ethernet", rate=given(100.0, "Gb/s"), latency=given(1e-5, "s"))
    fold = model(Sizes(batch=4))
    plan = batch_shares(template(fold, Degrees(dp=2)), fold, sizes)
    made = lower(fold, plan, workload=Workload(global_batch=4, seq=16, stack=STACKS["torch"], recipe="fp32"))
    by_class = held_by_class(made, Cluster(pools=pools, links=(link,)), NO_RUNTIME)[0]
    assert {alike.ranks for alike, _ in by_class} == {(0,), (1,)}
    (one,) = held(made, Cluster(pools=pools, links=(link,)), NO_RUNTIME)
    small = device("A100-40G")
    assert one.device_bytes == (small.driver_memory or small.memory).value
