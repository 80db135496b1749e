"""Whole training steps on simulated devices: every template equals the unsharded model, pipelines and ZeRO included."""

from __future__ import annotations

from dataclasses import replace

import pytest

from meshwright.backends.torch_.verify.interpreted.step import Data, random_data, step_differences
from meshwright.ir.errors import NoLoss
from meshwright.ir.graph.fold import Fold
from meshwright.ir.names import Degrees, template
from meshwright.ir.schedules import named
from tests.llama_block import Sizes, model


def data_for(fold: Fold, microbatches: int) -> Data:
    """Some labels are ignored, a different number in every micro-batch; micro-batches weigh by the rest."""
    data = random_data(fold, microbatches)
    for index, batch in enumerate(data.batches):
        batch["labels"][0, : index + 1] = -100
    counts = [int((batch["labels"] != -100).sum()) for batch in data.batches]
    return Data(data.parameters, data.batches, [count / sum(counts) for count in counts])


PLANS = {
    "dp": Degrees(dp=4),
    "dp zero-1": Degrees(dp=4, zero=1),
    "dp zero-2": Degrees(dp=2, zero=2, microbatches=2),
    "dp zero-3": Degrees(dp=4, zero=3, microbatches=2),
    "tp": Degrees(tp=4),
    "tp sp": Degrees(tp=4, sequence_parallel=True),
    "tp sp recompute": Degrees(tp=2, sequence_parallel=True, recompute="full"),
    "cp all-gather": Degrees(cp=4),
    "cp ring": Degrees(cp=4, context="ring"),
    "cp zigzag ring": Degrees(cp=2, context="ring", zigzag=True),
    "cp ulysses": Degrees(cp=4, context="ulysses"),
    "cp ulysses, heads of tp": Degrees(cp=2, tp=2, context="ulysses"),
    "pp gpipe": Degrees(pp=2, microbatches=4),
    "pp 1f1b": Degrees(pp=4, microbatches=4, schedule="1f1b"),
    "dp tp pp zero-3": Degrees(dp=2, tp=2, pp=2, sequence_parallel=True, zero=3, schedule="1f1b", microbatches=2),
    "dp cp tp pp recompute": Degrees(
        dp=2, cp=2, tp=2, pp=2, context="ring", zigzag=True, recompute="full", zero=1, microbatches=2
    ),
    "vp interleaved": Degrees(pp=2, vp=2, microbatches=4, schedule="1f1b"),
    "vp tp sp zero-1": Degrees(
        dp=2, tp=2, pp=2, vp=2, sequence_parallel=True, zero=1, microbatches=2, schedule="interleaved"
    ),
    "embedding and head count": Degrees(pp=3, microbatches=3, schedule="1f1b", split="ends"),
    "embedding and head alone": Degrees(pp=3, vp=2, microbatches=3, schedule="1f1b", split="ends"),
    "uneven stages": Degrees(pp=3, microbatches=3, split="spread"),
    "stages as written": Degrees(pp=2, vp=2, microbatches=2, schedule="1f1b", stage_blocks=(0, 2, 2, 0)),
    "hsdp": Degrees(dp=4, shard=2, zero=3, microbatches=2),
    "hierarchical zero-1 with cp": Degrees(dp=2, cp=2, shard=2, zero=1),
    "zero-3 kept gathered": Degrees(dp=2, zero=3, regather=False, recompute="full"),
    "first layers": Degrees(tp=2, pp=2, recompute="full_layers:1", microbatches=2, zero=1, dp=2),
    "first layers, virtual stages": Degrees(
        pp=2, vp=2, recompute="full_layers:2", stage_blocks=(0, 3, 1, 0), microbatches=2, schedule="1f1b"
    ),
    "selective": Degrees(tp=2, sequence_parallel=True, recompute="selective"),
    "selective under zero-3": Degrees(dp=4, zero=3, recompute="selective"),
    "selective by operators": Degrees(dp=2, tp=2, recompute="selective_op"),
    "on the host": Degrees(dp=2, zero=1, offload="optimizer+activations"),
    "first blocks on the host": Degrees(dp=2, pp=2, zero=3, microbatches=2, schedule="1f1b", offload="activations:1"),
}


@pytest.mark.parametrize("tied", [False, True], ids=["untied", "tied"])
@pytest.mark.parametrize("name", PLANS)
def test_a_step_is_exact(name: str, tied: bool) -> None:
    fold = model(tied=tied)
    decisions = template(fold, PLANS[name])
    assert not step_differences(fold, decisions, data_for(fold, PLANS[name].microbatches))


@pytest.mark.parametrize("zero", [1, 2, 3])
@pytest.mark.parametrize("degrees", [Degrees(dp=3, cp=2), Degrees(dp=3, tp=2), Degrees(dp=3, shard=3, tp=4)], ids=str)
def test_a_step_is_exact_where_copies_divide_nothing(degrees: Degrees, zero: int) -> None:
    """Storage over three ranks of extents that are powers of two."""
    fold, given = model(Sizes(batch=3)), replace(degrees, zero=zero)
    decisions = template(fold, given)
    assert all("dp" in stored.optimizer.axes for plan in decisions.plans for stored in plan.storage)
    assert not step_differences(fold, decisions, data_for(fold, 1))


@pytest.mark.parametrize("given", [Degrees(tp=4), Degrees(tp=2, sequence_parallel=True)], ids=["tp", "tp sp"])
def test_a_step_with_one_key_value_head_is_exact(given: Degrees) -> None:
    fold = model(Sizes(kv_heads=1))
    decisions = template(fold, given)
    assert str(decisions.plan["block"].strategy("attn").of("tp")) == "g"
    assert not step_differences(fold, decisions, data_for(fold, 1))


SPLIT = {
    "zb-h1": Degrees(pp=4, microbatches=4, schedule="zb-h1"),
    "zb-h2 with few micro-batches": Degrees(pp=4, microbatches=2, schedule="zb-h2"),
    "zb-h1 dp tp zero-3": Degrees(dp=2, tp=2, pp=2, sequence_parallel=True, zero=3, microbatches=2, schedule="zb-h1"),
    "zb-h1 ring recompute": Degrees(cp=2, pp=2, context="ring", recompute="full", microbatches=3, schedule="zb-h1"),
    "zbv": Degrees(pp=2, vp=2, microbatches=3, schedule="zbv"),
    "zbv tp sp recompute": Degrees(
        tp=2, pp=2, vp=2, sequence_parallel=True, recompute="full", microbatches=2, schedule="zbv"
    ),
    "v-half": Degrees(pp=2, vp=2, microbatches=3, schedule="v-half"),
    "v-min": Degrees(pp=2, vp=2, microbatches=3, schedule="v-min", dp=2, zero=1),
    "dualpipev": Degrees(pp=2, vp=2, microbatches=5, schedule="dualpipev"),
    "interleaved": Degrees(pp=2, vp=2, microbatches=4, schedule="interleaved"),
}
"""Schedules that run I and W apart, or several stages per group."""


@pytest.mark.parametrize("name", SPLIT)
def test_a_step_with_weight_gradients_apart_is_exact(name: str) -> None:
    """Parameters tied where a V brings both ends of the model to one group."""
    fold = model(tied=named(SPLIT[name].schedule).vee)
    decisions = template(fold, SPLIT[name])
    assert not step_differences(fold, decisions, data_for(fold, SPLIT[name].microbatches))


def test_a_model_without_a_loss_has_no_step() -> None:
    fold = replace(model(), loss=None)
    with pytest.raises(NoLoss):
        step_differences(fold, template(fold, Degrees(dp=2)))
