"""Templates mean what they say on real traced models: the oracle of front ends, rules, templates and lowering.

Every spine model, small, is captured, planned by degrees, lowered, and executed for a whole training step on simulated
devices in fp64; loss, gradients, buffers and updated parameters must equal those of the unfolded model. So that a
template which quietly leaves its axis idle does not pass, the table also says what every axis is called in the block
that the model is known for.
"""

from __future__ import annotations

import os
from collections.abc import Mapping
from functools import cache
from pathlib import Path
from tempfile import TemporaryDirectory

import pytest

from meshwright.backends.torch_.capabilities import TARGETS
from meshwright.backends.torch_.verify.interpreted.step import step_differences
from meshwright.ir.analysis.loops import body_loops
from meshwright.ir.errors import DegreeImpossible, LayoutNotExpressible
from meshwright.ir.frontends.door import capture
from meshwright.ir.graph.fold import Fold
from meshwright.ir.names import Degrees, name_of, template
from meshwright.ir.program.lower import lower
from meshwright.ir.program.program import Move
from meshwright.ir.sharding.adjoint import Split
from meshwright.ir.sharding.layouts import Nested
from tests.ir.frontends.tiny import small

BATCH, SEQ = 4, 16

BLOCKS: Mapping[str, str] = {
    "llama": "Block",
    "lora": "Block.2",
    "shape": "Block.2",
    "unet": "model",
    "llama-3.1-8b": "LlamaDecoderLayer",
    "gpt2": "GPT2Block",
    "phi-3-mini": "Phi3DecoderLayer",
    "gemma-3-1b": "Gemma3DecoderLayer",
    "mixtral-8x7b": "MixtralDecoderLayer",
    "deepseek-v3": "DeepseekV3DecoderLayer.2",
    "t5-large": "T5Block.4",
}
"""For every twin, the block whose axes are looked at: routed, repeated, or all there is."""

LAYERS = {"deepseek-v3": 4, "t5-large": 3}
"""Where two layers do not show the block: three dense ones come first; the first of each stack has the bias."""

DEGREES: Mapping[str, tuple[Degrees, dict[str, str]]] = {
    "dp with ZeRO-3": (Degrees(dp=2, zero=3, recompute="full"), {"dp": "dp"}),
    "tp": (Degrees(tp=2), {"tp": "tp"}),
    "tp+sp": (Degrees(tp=2, sequence_parallel=True), {"tp": "tp+sp"}),
    "ulysses": (Degrees(cp=2, context="ulysses"), {"cp": "cp (ulysses)"}),
    "zigzag ring": (Degrees(cp=2, context="ring", zigzag=True), {"cp": "cp (ring)"}),
    "ep and tp": (Degrees(dp=2, ep=2, tp=2), {"ep": "dp", "tp": "tp"}),
    "pp": (Degrees(pp=2, microbatches=3, schedule="1f1b"), {}),
    "all": (
        Degrees(dp=2, cp=2, tp=2, pp=2, microbatches=2, sequence_parallel=True, zero=2, recompute="full"),
        {"dp": "dp", "cp": "cp", "tp": "tp+sp"},
    ),
}

EXPERTS: Mapping[str, tuple[Degrees, dict[str, str]]] = {
    "experts instead of tp": (
        Degrees(tp=2, ep=2, etp=1, sequence_parallel=True, recompute="full"),
        {"tp_ep": "tp+sp+ep"},
    ),
    "experts over tp and dp": (
        Degrees(dp=2, tp=2, ep=4, etp=1, sequence_parallel=True, zero=1),
        {"ep": "ep", "tp_ep": "tp+sp+ep"},
    ),
    "part of tp inside the experts": (
        Degrees(tp=4, ep=2, etp=2, sequence_parallel=True),
        {"tp_ep": "tp+sp+ep", "tp": "tp+sp"},
    ),
    "experts over tp, tokens whole": (Degrees(dp=2, tp=2, ep=2, etp=1, zero=1), {"dp": "dp", "tp_ep": "tp+ep"}),
    "copies of experts over tp": (
        Degrees(dp=2, tp=2, etp=1, sequence_parallel=True, zero=2),
        {"dp": "dp", "tp_dp": "tp+sp"},
    ),
    "experts over cp and dp": (Degrees(dp=2, cp=2, ep=4, zero=3), {"ep": "ep", "cp_ep": "cp+ep"}),
    "copies of experts over cp": (Degrees(dp=2, cp=2, zero=1), {"dp": "dp", "cp": "cp"}),
    "experts over cp in a zigzag": (
        Degrees(dp=2, cp=2, ep=4, context="ring", zigzag=True),
        {"ep": "ep", "cp_ep": "cp (ring)+ep"},
    ),
    "experts over cp and tp": (
        Degrees(cp=2, tp=2, ep=4, etp=1, sequence_parallel=True, zigzag=True),
        {"cp_ep": "cp+ep", "tp_ep": "tp+sp+ep"},
    ),
    "experts in shards of dp": (Degrees(dp=4, ep=2, shard=2, zero=3), {"dp": "dp", "ep": "ep"}),
    "parts computed again": (
        Degrees(dp=2, ep=2, tp=2, zero=3, recompute="selective:layernorm+moe_act+mla_up_proj"),
        {"ep": "ep"},
    ),
    "experts, virtual stages": (
        Degrees(dp=2, ep=2, pp=2, vp=1, microbatches=2, schedule="1f1b", zero=1, recompute="selective"),
        {"ep": "ep"},
    ),
}
"""Arrangements of a stage that differ inside the experts and outside."""

OTHER_NAMES: Mapping[tuple[str, str], dict[str, str]] = {
    **{(model, "ep and tp"): {"ep": "ep", "tp": "tp"} for model in ("shape", "mixtral-8x7b", "deepseek-v3")},
    ("unet", "tp+sp"): {"tp": "tp"},
    ("unet", "ulysses"): {"cp": "-"},
    ("unet", "zigzag ring"): {"cp": "-"},
}
"""Experts make ep more than dp; pictures have no sequence."""

REFUSED = {("unet", "pp"), ("unet", "all")}
"""A U-Net has no chain of blocks to cut."""

LONG = os.environ.get("HYPOTHESIS_PROFILE") == "long"
OF_EACH = len(DEGREES) if LONG else 3
DRAWN = [
    (model, list(DEGREES)[(number + 3 * turn) % len(DEGREES)])
    for number, model in enumerate(BLOCKS)
    for turn in range(OF_EACH)
]
"""Three kinds of every model, by turns, so that each kind has four or five models; all with the long profile."""


@cache
def twin(name: str) -> Fold:
    with TemporaryDirectory() as folder:
        return capture(small(name, Path(folder), layers=LAYERS.get(name, 2)), batch=BATCH, seq=SEQ).fold


@pytest.mark.parametrize(("model", "degrees"), DRAWN)
@pytest.mark.filterwarnings("ignore")
def test_a_step_is_exact(model: str, degrees: str) -> None:
    fold, (given, names) = twin(model), DEGREES[degrees]
    if (model, degrees) in REFUSED:
        with pytest.raises(DegreeImpossible):
            template(fold, given)
        return
    decisions = template(fold, given)
    plan = decisions.plan[BLOCKS[model]]
    loops, graph = body_loops(fold)[plan.body], fold.body[plan.body].graph
    expected = OTHER_NAMES.get((model, degrees), names)
    assert {axis: name_of(plan, graph, loops, axis) for axis in expected} == expected
    assert step_differences(fold, decisions) == []


@pytest.mark.parametrize("degrees", EXPERTS)
@pytest.mark.parametrize("model", ["shape", "mixtral-8x7b", "deepseek-v3"])
@pytest.mark.filterwarnings("ignore")
def test_a_step_with_experts_is_exact(model: str, degrees: str) -> None:
    fold, (given, names) = twin(model), EXPERTS[degrees]
    decisions = template(fold, given)
    plan = decisions.plan[BLOCKS[model]]
    loops, graph = body_loops(fold)[plan.body], fold.body[plan.body].graph
    assert {axis: name_of(plan, graph, loops, axis) for axis in names} == names
    assert step_differences(fold, decisions) == []


COLLECTIVES: Mapping[tuple[str, Degrees], dict[str, int]] = {
    ("llama", Degrees(tp=2)): {"all_reduce": 4},
    ("llama-3.1-8b", Degrees(tp=2)): {"all_reduce": 4},
    ("llama-3.1-8b", Degrees(tp=2, sequence_parallel=True)): {"all_gather": 4, "reduce_scatter": 4},
    ("gpt2", Degrees(tp=2)): {"all_reduce": 4},
    ("phi-3-mini", Degrees(tp=2)): {"all_reduce": 4},
    ("phi-3-mini", Degrees(tp=2, sequence_parallel=True)): {"all_gather": 4, "reduce_scatter": 4},
    ("gpt2", Degrees(tp=2, sequence_parallel=True)): {"all_gather": 4, "reduce_scatter": 4},
    ("gemma-3-1b", Degrees(dp=2)): {},
    ("gemma-3-1b", Degrees(tp=2)): {"all_reduce": 4},
    ("mixtral-8x7b", Degrees(dp=2)): {},
    ("mixtral-8x7b", Degrees(dp=2, ep=2)): {"all_to_all": 4},
    ("deepseek-v3", Degrees(dp=4, ep=2)): {"all_to_all": 4},
    ("mixtral-8x7b", Degrees(dp=2, cp=2)): {"all_gather": 2, "reduce_scatter": 2},
    ("mixtral-8x7b", Degrees(cp=2, zigzag=True)): {"all_gather": 2, "reduce_scatter": 2},
    ("mixtral-8x7b", Degrees(tp=2, ep=2, etp=1, sequence_parallel=True)): {
        "all_gather": 2,
        "all_to_all": 4,
        "reduce_scatter": 2,
    },
}
"""What a block communicates, forward and backward, as people know it."""


@pytest.mark.parametrize(("model", "degrees"), COLLECTIVES)
@pytest.mark.filterwarnings("ignore")
def test_a_block_communicates_what_its_names_promise(model: str, degrees: Degrees) -> None:
    fold = twin(model)
    body = lower(fold, template(fold, degrees)).body(BLOCKS[model])
    steps = [one.step.kind for one in (*body.forward, *body.backward) if isinstance(one, Move)]
    counted = {kind: steps.count(kind) for kind in sorted({*steps} - {"slice", "mask", "pad"})}
    assert counted == COLLECTIVES[model, degrees]


@pytest.mark.parametrize(
    "degrees",
    [Degrees(cp=2), Degrees(dp=2, cp=2, ep=4), Degrees(tp=2, ep=2, etp=1, sequence_parallel=True)],
    ids=["cp", "experts over cp and dp", "experts instead of tp"],
)
@pytest.mark.parametrize("target", TARGETS)
@pytest.mark.filterwarnings("ignore")
def test_torch_expresses_experts_on_the_tokens_of_a_rank(target: str, degrees: Degrees) -> None:
    """Of several sequences, each cut: a flattened view of local tensors."""
    fold = twin("mixtral-8x7b")
    decisions = template(fold, degrees)
    block = decisions.plan[BLOCKS["mixtral-8x7b"]]
    cuts = [one for _, strategy in block.strategies for _, one in strategy.choices if isinstance(one, Split)]
    assert any(isinstance(one.layout, Nested) for one in cuts)
    assert [one for one in TARGETS[target].refusals(decisions, fold) if isinstance(one, LayoutNotExpressible)] == []


@pytest.mark.parametrize(
    ("model", "kind", "kept", "again"),
    [
        # Two norms of eight operators each, up to the last product with the weight.
        ("deepseek-v3", "layernorm", {"cast_5", "mul_6"}, {"mul_2", "mul_16"}),
        (
            "deepseek-v3",
            "mla_up_proj",
            {"linear", "linear_3", "split.0_2", "attention"},
            {"linear_2", "linear_4", "cat_4"},
        ),
        ("mixtral-8x7b", "moe_act", {"grouped_linear", "grouped_linear_2", "dispatch"}, {"silu", "mul_9"}),
        ("mixtral-8x7b", "mla_up_proj", {"linear"}, set[str]()),
    ],
)
@pytest.mark.filterwarnings("ignore")
def test_parts_that_are_computed_again(model: str, kind: str, kept: set[str], again: set[str]) -> None:
    chosen = set(template(twin(model), Degrees(recompute=f"selective:{kind}")).plan[BLOCKS[model]].recompute)
    assert again <= chosen
    assert not kept & chosen


def test_experts_are_reduced_over_no_axis_that_holds_them() -> None:
    fold = twin("mixtral-8x7b")
    body = lower(fold, template(fold, Degrees(dp=2, ep=2))).body(BLOCKS["mixtral-8x7b"])
    experts = {slot.synced for slot in body.params if ".experts." in slot.path}
    assert len(experts) == 2
    assert not any(isinstance(one, Move) and one.result in experts for one in body.sync)
