"""Megatron-Bridge: overrides of its configuration in YAML, or as `key=value` words.

Source: `published/megatron_bridge.json`. What the two Megatrons have in common is in `megatron_core`; here are the
names of its options in the sections of its configuration, and its precision, a section of its own or a recipe's name.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from meshwright.planner.exchange.options import SWITCH, TEXT, Given, Option, word
from meshwright.planner.exchange.run import Room, Run
from meshwright.planner.exchange.target import Line, Target, Unpriced
from meshwright.planner.exchange.targets import megatron_core as core
from meshwright.planner.exchange.targets.megatron_overlaps import STACKS_, Named

_SECTIONS = {
    "model": (
        "tensor_model_parallel_size", "pipeline_model_parallel_size", "context_parallel_size",
        "expert_model_parallel_size", "expert_tensor_parallel_size", "pipeline_model_parallel_layout",
        "account_for_embedding_in_pipeline_split", "account_for_loss_in_pipeline_split", "sequence_parallel",
        "cp_comm_type", "recompute_granularity", "recompute_method", "recompute_num_layers", "recompute_modules",
        "cpu_offloading", "cpu_offloading_num_layers", "moe_token_dispatcher_type",
    ),
    "train": ("micro_batch_size", "global_batch_size"),
    "dataset": ("seq_length",),
    "ddp": (
        "use_distributed_optimizer", "use_megatron_fsdp", "data_parallel_sharding_strategy",
        "num_distributed_optimizer_instances",
    ),
    "dist": ("use_torch_fsdp2",),
    "optimizer": (
        "optimizer", "sgd_momentum", "use_precision_aware_optimizer", "exp_avg_dtype", "exp_avg_sq_dtype",
        "optimizer_cpu_offload",
    ),
    "comm_overlap": (
        "overlap_grad_reduce", "overlap_param_gather", "overlap_p2p_comm", "tp_comm_overlap",
        "overlap_moe_expert_parallel_comm",
    ),
}  # fmt: skip
_OTHERWISE = {
    "virtual_stages": "model.virtual_pipeline_model_parallel_size",
    "first_stage_layers": "model.num_layers_in_first_pipeline_stage",
    "last_stage_layers": "model.num_layers_in_last_pipeline_stage",
}
NAMED = Named({name: f"{section}.{name}" for section, own in _SECTIONS.items() for name in own} | _OTHERWISE)

_NAMES = {
    "bf16_mixed": "bf16", "fp16_mixed": "fp16", "bf16_with_fp8_delayed_scaling_mixed": "fp8_tensorwise",
    "bf16_with_fp8_current_scaling_mixed": "fp8_tensorwise", "bf16_with_fp8_subchannel_scaling_mixed": "fp8_blockwise",
    "bf16_with_mxfp8_mixed": "mxfp8", "bf16_with_nvfp4_mixed": "nvfp4",
}  # fmt: skip
"""Recipes of mixed precision that have a name."""
_RECIPES = {theirs: ours for ours, theirs in core.EIGHT.items()} | {"delayed": "fp8_tensorwise"}


def _precision() -> Line:
    named = Option("mixed_precision", TEXT)
    section = "mixed_precision."
    bf16, fp16, fp32 = (Option(f"{section}{name}", SWITCH, False) for name in ("bf16", "fp16", "fp32"))
    reduced = Option(f"{section}grad_reduce_in_fp32", SWITCH, True)
    eight, recipe = (
        Option(f"{section}fp8", word("e4m3", "hybrid")),
        Option(f"{section}fp8_recipe", word(*_RECIPES), "delayed"),
    )
    four = Option(f"{section}fp4", word("e2m1"))

    def says(run: Run, room: Room) -> Mapping[str, Any]:
        if run.precision == "fp32":
            return {fp32.name: True}
        found: dict[str, Any] = {(fp16 if run.precision == "fp16" else bf16).name: True}
        if run.precision in core.EIGHT:
            found |= {eight.name: "hybrid", recipe.name: core.EIGHT[run.precision]}
        elif run.precision == "nvfp4":
            found |= {four.name: "e2m1"}
        return found | {reduced.name: core.RECIPES_[run.recipe]}

    def means(given: Given, known: Mapping[str, Any], room: Room) -> Mapping[str, Any]:
        if given.has(named):
            name = given[named].replace("-", "_")
            if name not in _NAMES:
                raise given.bad(named, f"prices know nothing of {name}", f"use one of {', '.join(_NAMES)}")
            return {"precision": _NAMES[name], "recipe": "megatron"}
        precision = "bf16" if given[bf16] else "fp16" if given[fp16] else "fp32"
        if given[four] or given[eight]:
            precision = "nvfp4" if given[four] else _RECIPES[given[recipe]]
        kept = "megatron" if given[reduced] else "megatron-bf16-grads"
        return {"precision": precision, "recipe": "fp32" if precision == "fp32" else kept}

    return Line((named, bf16, fp16, fp32, reduced, eight, recipe, four), says, means)


MEGATRON_BRIDGE = Target(
    name="megatron-bridge",
    called="Megatron-Bridge",
    file="megatron_bridge.yaml",
    lines=(*core.lines(NAMED), _precision()),
    limits=core.LIMITS,
    unpriced=(
        Unpriced("model.hybrid_context_parallel", harmless=(False,), refused=True),
        Unpriced("model.hierarchical_context_parallel_sizes", harmless=(None,), refused=True),
        Unpriced("model.tensor_parallel_num_weight_shards", harmless=(None, 1), refused=True),
        Unpriced("model.expert_tensor_parallel_num_weight_shards", harmless=(None, 1), refused=True),
        Unpriced("train.rampup_batch_size", harmless=(None,), refused=True),
        Unpriced("ddp.outer_dp_sharding_strategy", harmless=("no_shard",), refused=True),
        Unpriced("model.distribute_saved_activations", harmless=(None, False), refused=True),
        Unpriced("model.cpu_offloading_weights", harmless=(False,), refused=True),
        Unpriced("model.fine_grained_activation_offloading", harmless=(False,)),
        Unpriced("model.delay_wgrad_compute", harmless=(False,)),
        Unpriced("comm_overlap.delay_wgrad_compute", harmless=(None, False)),
        Unpriced("model.cuda_graph_impl", harmless=("none",)),
        Unpriced("model.moe_pad_expert_input_to_capacity", harmless=(False,)),
        Unpriced("model.attention_backend", harmless=("auto", "flash", "fused")),
    ),
    stacks=STACKS_,
    layers="model.num_layers",
    aliases={
        "ddp.overlap_grad_reduce": "comm_overlap.overlap_grad_reduce",
        "ddp.overlap_param_gather": "comm_overlap.overlap_param_gather",
        "model.overlap_p2p_comm": "comm_overlap.overlap_p2p_comm",
        "model.tp_comm_overlap": "comm_overlap.tp_comm_overlap",
        "model.overlap_moe_expert_parallel_comm": "comm_overlap.overlap_moe_expert_parallel_comm",
        "ddp.grad_reduce_in_fp32": "mixed_precision.grad_reduce_in_fp32",
        "model.seq_length": "dataset.seq_length",
        "dist.use_megatron_fsdp": "ddp.use_megatron_fsdp",
        "model.bf16": "mixed_precision.bf16",
        "model.fp16": "mixed_precision.fp16",
        "model.fp8": "mixed_precision.fp8",
        "model.fp8_recipe": "mixed_precision.fp8_recipe",
    },
    how="merge it into a recipe's configuration, as the scripts of its examples do with --config-file",
)
