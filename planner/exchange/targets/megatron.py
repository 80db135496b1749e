"""Megatron-LM: settings on its command line.

Source: `published/megatron.json`. What the two Megatrons have in common is in `megatron_core`; here are the names of
its options, and what a command line alone says: that products are in bf16 or fp16, and gradients in bf16.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from meshwright.ir.errors import SettingsContradict
from meshwright.planner.exchange.options import SWITCH, Given, Option, word
from meshwright.planner.exchange.run import Room, Run
from meshwright.planner.exchange.target import Line, Target, Unpriced
from meshwright.planner.exchange.targets import megatron_core as core
from meshwright.planner.exchange.targets.megatron_overlaps import STACKS_, Named

_OTHERWISE = {
    "virtual_stages": "--num-virtual-stages-per-pipeline-rank",
    "layers_per_virtual_stage": "--num-layers-per-virtual-pipeline-stage",
    "first_stage_layers": "--decoder-first-pipeline-num-layers",
    "last_stage_layers": "--decoder-last-pipeline-num-layers",
    "overlap_p2p_comm": "--overlap-p2p-communication",
}
_SAME = (
    "tensor_model_parallel_size", "pipeline_model_parallel_size", "context_parallel_size", "expert_model_parallel_size",
    "expert_tensor_parallel_size", "pipeline_model_parallel_layout", "account_for_embedding_in_pipeline_split",
    "account_for_loss_in_pipeline_split", "sequence_parallel", "cp_comm_type", "micro_batch_size", "global_batch_size",
    "seq_length", "use_distributed_optimizer", "use_megatron_fsdp", "data_parallel_sharding_strategy",
    "num_distributed_optimizer_instances", "use_torch_fsdp2", "recompute_granularity", "recompute_method",
    "recompute_num_layers", "recompute_modules", "recompute_activations", "optimizer", "sgd_momentum",
    "use_precision_aware_optimizer", "exp_avg_dtype", "exp_avg_sq_dtype", "optimizer_cpu_offload",
    "cpu_offloading_num_layers", "overlap_grad_reduce", "overlap_param_gather", "tp_comm_overlap",
    "overlap_moe_expert_parallel_comm", "moe_token_dispatcher_type", "torch_fsdp2_no_reshard_after_forward",
)  # fmt: skip
NAMED = Named({name: f"--{name.replace('_', '-')}" for name in _SAME} | _OTHERWISE)
NEGATED = {"--no-overlap-p2p-communication": "--overlap-p2p-communication"}
"""Options that switch off what is on without them, and what that is called here."""


def _precision() -> Line:
    bf16, fp16 = Option("--bf16", SWITCH, False), Option("--fp16", SWITCH, False)
    eight, recipe = Option("--fp8-format", word("e4m3", "hybrid")), Option("--fp8-recipe", word(*_RECIPES), "delayed")
    four = Option("--fp4-format", word("e2m1"))

    def says(run: Run, room: Room) -> Mapping[str, Any]:
        if run.precision == "fp32":
            return {}
        if run.precision == "fp16":
            return {fp16.name: True}
        if run.precision in core.EIGHT:
            return {bf16.name: True, eight.name: "hybrid", recipe.name: core.EIGHT[run.precision]}
        return {bf16.name: True} | ({four.name: "e2m1"} if run.precision == "nvfp4" else {})

    def means(given: Given, known: Mapping[str, Any], room: Room) -> Mapping[str, Any]:
        chosen = [one for one in (eight, four) if given[one]]
        if len(chosen) > 1 or (given[bf16] and given[fp16]):
            place = fp16 if given[bf16] and given[fp16] else four
            raise SettingsContradict(
                place=given.at(place.name), cause="another option says in what products are", fix="give one of them"
            )
        if given[four]:
            return {"precision": "nvfp4"}
        if given[eight]:
            if given[recipe] not in _RECIPES:
                raise given.bad(recipe, f"prices know nothing of {given[recipe]}")
            return {"precision": _RECIPES[given[recipe]]}
        return {"precision": "bf16" if given[bf16] else "fp16" if given[fp16] else "fp32"}

    return Line((bf16, fp16, eight, recipe, four), says, means)


_RECIPES = {theirs: ours for ours, theirs in core.EIGHT.items()} | {"delayed": "fp8_tensorwise"}


def _recipe() -> Line:
    option = Option("--grad-reduce-in-bf16", SWITCH, False)

    def means(given: Given, known: Mapping[str, Any], room: Room) -> Mapping[str, Any]:
        if known["precision"] == "fp32":
            return {"recipe": "fp32"}
        return {"recipe": "megatron-bf16-grads" if given[option] else "megatron"}

    return Line((option,), lambda run, room: {option.name: True} if run.recipe == "megatron-bf16-grads" else {}, means)


MEGATRON = Target(
    name="megatron",
    called="Megatron-LM",
    file="megatron.sh",
    lines=(*core.lines(NAMED), _precision(), _recipe()),
    limits=core.LIMITS,
    unpriced=(
        Unpriced("--hybrid-context-parallel", refused=True),
        Unpriced("--hierarchical-context-parallel-sizes", harmless=(), refused=True),
        Unpriced("--tensor-parallel-num-weight-shards", harmless=("1",), refused=True),
        Unpriced("--expert-tensor-parallel-num-weight-shards", harmless=("1",), refused=True),
        Unpriced("--model-parallel-size", harmless=(), refused=True),
        Unpriced("--rampup-batch-size", harmless=(), refused=True),
        Unpriced("--outer-dp-sharding-strategy", harmless=("no_shard",), refused=True),
        Unpriced("--enable-full-sharding-in-hsdp", harmless=(), refused=True),
        Unpriced("--distribute-saved-activations", refused=True),
        Unpriced("--fine-grained-activation-offloading"),
        Unpriced("--microbatch-group-size-per-virtual-pipeline-stage", harmless=()),
        Unpriced("--delay-wgrad-compute"),
        Unpriced("--cuda-graph-impl", harmless=("none",)),
        Unpriced("--enable-cuda-graph"),
        Unpriced("--moe-pad-expert-input-to-capacity"),
        Unpriced("--moe-expert-capacity-factor", harmless=()),
        Unpriced("--attention-backend", harmless=("auto", "flash", "fused")),
        Unpriced("--optimizer-offload-fraction", harmless=("1.0", "1")),
    ),
    stacks=STACKS_,
    layers="--num-layers",
    how="source it, and give the array MESHWRIGHT_ARGS to pretrain_gpt.py, started on all ranks",
)
