"""Every option of every target: a value of it, and what that says of a run.

A row has what a file gives, beside what a run needs, and the fields that it means on 64 ranks with 24 layers.
"""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest

from meshwright.ir.errors import SettingNotPriced, SettingValueBad
from meshwright.ir.names import CONTEXT
from meshwright.planner.exchange.options import Entry, Given
from meshwright.planner.exchange.target import meant
from meshwright.planner.exchange.targets.every import TARGETS
from meshwright.planner.exchange.targets.megatron import NAMED as OF_MEGATRON
from meshwright.planner.exchange.targets.megatron_bridge import NAMED as OF_BRIDGE
from tests.planner.exchange.runs import ROOM

GATHERED, RING, BY_HEADS = CONTEXT
Row = tuple[dict[str, Any], dict[str, Any]]
ON: Any = True


def core(n: dict[str, str]) -> dict[str, Row]:
    """What both Megatrons mean, by their names for it."""
    pp, full = n["pipeline_model_parallel_size"], n["recompute_granularity"]
    tp, grads = n["tensor_model_parallel_size"], n["overlap_grad_reduce"]
    on_pp = {pp: 4}
    dist, fsdp = n["use_distributed_optimizer"], n["use_megatron_fsdp"]
    rows: dict[str, Row] = {
        "tensor_model_parallel_size": ({tp: 8}, {"tp": 8}),
        "pipeline_model_parallel_size": ({pp: 4}, {"pp": 4, "stages": (6,) * 4, "schedule": "1f1b"}),
        "context_parallel_size": ({n["context_parallel_size"]: 2}, {"cp": 2, "context": RING, "zigzag": True}),
        "expert_model_parallel_size": ({n["expert_model_parallel_size"]: 4}, {"ep": 4}),
        "expert_tensor_parallel_size": ({tp: 4, n["expert_tensor_parallel_size"]: 1}, {"tp": 4, "etp": 1}),
        "virtual_stages": (
            on_pp | {n["virtual_stages"]: 2},
            {"vp": 2, "stages": (3,) * 8, "schedule": "interleaved"},
        ),
        "pipeline_model_parallel_layout": (
            on_pp | {n["pipeline_model_parallel_layout"]: "Et*5|t*8,|(tt)*3|t*5L"},
            {"vp": 1, "stages": (5, 8, 6, 5)},
        ),
        "account_for_embedding_in_pipeline_split": (
            {pp: 5, n["account_for_embedding_in_pipeline_split"]: ON},
            {"stages": (4, 5, 5, 5, 5)},
        ),
        "account_for_loss_in_pipeline_split": (
            {pp: 5, n["account_for_loss_in_pipeline_split"]: ON},
            {"stages": (5, 5, 5, 5, 4)},
        ),
        "first_stage_layers": (on_pp | {n["first_stage_layers"]: 3}, {"stages": (3, 7, 7, 7)}),
        "last_stage_layers": (on_pp | {n["last_stage_layers"]: 0}, {"stages": (8, 8, 8, 0)}),
        "sequence_parallel": ({tp: 2, n["sequence_parallel"]: ON}, {"sp": True}),
        "cp_comm_type": (
            {n["context_parallel_size"]: 2, n["cp_comm_type"]: "a2a"},
            {"context": BY_HEADS, "zigzag": False},
        ),
        "micro_batch_size": ({n["micro_batch_size"]: 2}, {"mbs": 2}),
        "global_batch_size": ({n["global_batch_size"]: 512}, {"global_batch": 512}),
        "seq_length": ({n["seq_length"]: 8192}, {"seq": 8192}),
        "use_distributed_optimizer": ({dist: ON}, {"zero": 1, "shard": 0}),
        "use_megatron_fsdp": ({fsdp: ON}, {"zero": 3}),
        "data_parallel_sharding_strategy": (
            {fsdp: ON, n["data_parallel_sharding_strategy"]: "optim_grads"},
            {"zero": 2},
        ),
        "num_distributed_optimizer_instances": (
            {dist: ON, tp: 4, n["num_distributed_optimizer_instances"]: 2},
            {"zero": 1, "shard": 8},
        ),
        "use_torch_fsdp2": ({n["use_torch_fsdp2"]: ON}, {"zero": 3}),
        "recompute_granularity": ({full: "selective"}, {"recompute": "selective"}),
        "recompute_method": (
            {full: "full", n["recompute_method"]: "uniform", n["recompute_num_layers"]: 1},
            {"recompute": "full"},
        ),
        "recompute_num_layers": (
            {full: "full", n["recompute_method"]: "block", n["recompute_num_layers"]: 5},
            {"recompute": "full_layers:5"},
        ),
        "recompute_modules": (
            {full: "selective", n["recompute_modules"]: ["core_attn", "layernorm"]},
            {"recompute": "selective:core_attn+layernorm"},
        ),
        "optimizer": ({n["optimizer"]: "muon"}, {"optimizer": "muon"}),
        "sgd_momentum": ({n["optimizer"]: "sgd", n["sgd_momentum"]: "0.0"}, {"optimizer": "sgd"}),
        "use_precision_aware_optimizer": ({n["use_precision_aware_optimizer"]: ON}, {"optimizer": "adamw"}),
        "exp_avg_dtype": (
            {n["exp_avg_dtype"]: "bf16", n["exp_avg_sq_dtype"]: "bf16"},
            {"optimizer": "adamw-bf16"},
        ),
        "optimizer_cpu_offload": ({n["optimizer_cpu_offload"]: ON}, {"offload": "optimizer"}),
        "cpu_offloading_num_layers": (
            {n["cpu_offloading_num_layers"]: 3} | ({n["cpu_offloading"]: ON} if "cpu_offloading" in n else {}),
            {"offload": "activations:3"},
        ),
        "overlap_grad_reduce": ({dist: ON, grads: ON}, {"hides": ("gradients", "ring", "pipeline")}),
        "overlap_param_gather": (
            {dist: ON, grads: ON, n["overlap_param_gather"]: ON},
            {"hides": ("gradients", "parameters", "publish", "ring", "pipeline")},
        ),
        "overlap_p2p_comm": (
            on_pp | {grads: ON, n["overlap_p2p_comm"]: False},
            {"hides": ("gradients", "parameters", "publish", "ring")},
        ),
        "tp_comm_overlap": (
            {tp: 2, n["sequence_parallel"]: ON, n["tp_comm_overlap"]: ON, grads: ON},
            {"hides": ("gradients", "parameters", "publish", "ring", "tensor", "pipeline")},
        ),
        "overlap_moe_expert_parallel_comm": (
            {n["expert_model_parallel_size"]: 4, n["overlap_moe_expert_parallel_comm"]: ON, grads: ON},
            {"hides": ("gradients", "parameters", "publish", "ring", "pipeline", "expert")},
        ),
        "moe_token_dispatcher_type": (
            {n["expert_model_parallel_size"]: 4, n["moe_token_dispatcher_type"]: "flex", grads: ON},
            {"dedupes": True},
        ),
    }  # fmt: skip
    return {n[name]: row for name, row in rows.items()}


def megatron() -> dict[str, Row]:
    names = dict(OF_MEGATRON.names)
    own: dict[str, Row] = {
        names["layers_per_virtual_stage"]: (
            {names["pipeline_model_parallel_size"]: 4, names["layers_per_virtual_stage"]: 2},
            {"vp": 3, "stages": (2,) * 12},
        ),
        names["torch_fsdp2_no_reshard_after_forward"]: (
            {names["use_torch_fsdp2"]: ON, names["torch_fsdp2_no_reshard_after_forward"]: ON},
            {"zero": 3, "regather": False},
        ),
        names["recompute_activations"]: ({names["recompute_activations"]: ON}, {"recompute": "selective"}),
        "--bf16": ({"--bf16": ON}, {"precision": "bf16", "recipe": "megatron"}),
        "--fp16": ({"--fp16": ON}, {"precision": "fp16"}),
        "--fp8-format": ({"--bf16": ON, "--fp8-format": "e4m3"}, {"precision": "fp8_tensorwise"}),
        "--fp8-recipe": ({"--fp8-format": "hybrid", "--fp8-recipe": "mxfp8"}, {"precision": "mxfp8"}),
        "--fp4-format": ({"--bf16": ON, "--fp4-format": "e2m1"}, {"precision": "nvfp4"}),
        "--grad-reduce-in-bf16": ({"--bf16": ON, "--grad-reduce-in-bf16": ON}, {"recipe": "megatron-bf16-grads"}),
    }
    rows = core(names) | own
    return {name: ({one: _text(value) for one, value in given.items()}, means) for name, (given, means) in rows.items()}


def _text(value: Any) -> Any:
    """As a command line has it."""
    return str(value) if isinstance(value, int) and not isinstance(value, bool) else value


def megatron_bridge() -> dict[str, Row]:
    names, m = dict(OF_BRIDGE.names), "mixed_precision"
    own: dict[str, Row] = {
        names["cpu_offloading"]: (
            {names["cpu_offloading"]: False, names["cpu_offloading_num_layers"]: 3},
            {"offload": "none"},
        ),
        names["exp_avg_sq_dtype"]: ({names["exp_avg_sq_dtype"]: "fp32"}, {"optimizer": "adamw"}),
        m: ({m: "bf16-with-mxfp8-mixed"}, {"precision": "mxfp8", "recipe": "megatron"}),
        f"{m}.bf16": ({f"{m}.bf16": True}, {"precision": "bf16"}),
        f"{m}.fp16": ({f"{m}.fp16": True}, {"precision": "fp16"}),
        f"{m}.fp32": ({f"{m}.fp32": True}, {"precision": "fp32", "recipe": "fp32"}),
        f"{m}.grad_reduce_in_fp32": (
            {f"{m}.bf16": True, f"{m}.grad_reduce_in_fp32": False},
            {"recipe": "megatron-bf16-grads"},
        ),
        f"{m}.fp8": ({f"{m}.bf16": True, f"{m}.fp8": "hybrid"}, {"precision": "fp8_tensorwise"}),
        f"{m}.fp8_recipe": ({f"{m}.fp8": "hybrid", f"{m}.fp8_recipe": "blockwise"}, {"precision": "fp8_blockwise"}),
        f"{m}.fp4": ({f"{m}.bf16": True, f"{m}.fp4": "e2m1"}, {"precision": "nvfp4"}),
    }
    return core(names) | own


def torchtitan() -> dict[str, Row]:
    p, a, t = "parallelism.", "activation_checkpoint.", "training."
    pp = {f"{p}pipeline_parallel_degree": 4}
    even = pp | {f"{p}pipeline_parallel_{end}_stage_less_layers": 0 for end in ("first", "last")}
    float8 = {"model.converters": ["quantize.linear.float8"]}
    return {
        f"{p}tensor_parallel_degree": ({f"{p}tensor_parallel_degree": 4}, {"tp": 4, "sp": True}),
        f"{p}pipeline_parallel_degree": (pp, {"pp": 4, "vp": 1, "stages": (6, 7, 6, 5), "regather": False}),
        f"{p}context_parallel_degree": (
            {f"{p}context_parallel_degree": 2},
            {"cp": 2, "context": GATHERED, "zigzag": True, "zero": 3, "dp": 32},
        ),
        f"{p}data_parallel_replicate_degree": (
            {f"{p}data_parallel_replicate_degree": 4},
            {"dp": 64, "zero": 3, "shard": 16},
        ),
        f"{p}data_parallel_shard_degree": (
            {f"{p}data_parallel_replicate_degree": 64, f"{p}data_parallel_shard_degree": 1},
            {"dp": 64, "zero": 0, "shard": 0},
        ),
        f"{p}fsdp_reshard_after_forward": ({f"{p}fsdp_reshard_after_forward": "never"}, {"zero": 3, "regather": False}),
        f"{p}expert_parallel_degree": ({f"{p}expert_parallel_degree": 8}, {"ep": 8, "etp": 1}),
        f"{p}expert_tensor_parallel_degree": (
            {f"{p}tensor_parallel_degree": 2, f"{p}expert_parallel_degree": 8, f"{p}expert_tensor_parallel_degree": 2},
            {"etp": 2},
        ),
        f"{p}context_parallel_rotate_method": (
            {f"{p}context_parallel_degree": 2, f"{p}context_parallel_rotate_method": "alltoall"},
            {"context": RING},
        ),
        f"{p}context_parallel_load_balancer": (
            {f"{p}context_parallel_degree": 2, f"{p}context_parallel_load_balancer": "headtail"},
            {"zigzag": True},
        ),
        f"{p}pipeline_parallel_schedule": (
            pp | {f"{p}pipeline_parallel_schedule": "Interleaved1F1B"},
            {"vp": 2, "schedule": "interleaved", "stages": (3, 4, 3, 3, 3, 3, 3, 2)},
        ),
        f"{p}pipeline_parallel_first_stage_less_layers": (
            pp | {f"{p}pipeline_parallel_first_stage_less_layers": 3},
            {"stages": (4, 7, 7, 6)},
        ),
        f"{p}pipeline_parallel_last_stage_less_layers": (
            pp | {f"{p}pipeline_parallel_last_stage_less_layers": 3},
            {"stages": (6, 7, 7, 4)},
        ),
        f"{p}pipeline_parallel_layers_per_stage": (
            even | {f"{p}pipeline_parallel_layers_per_stage": 2, f"{p}pipeline_parallel_schedule": "LoopedBFS"},
            {"vp": 3, "stages": (2,) * 12, "schedule": "gpipe"},
        ),
        f"{p}module_fqns_per_model_part": (
            {f"{p}pipeline_parallel_degree": 2,
             f"{p}module_fqns_per_model_part": [["tok_embeddings", "layers.0"], ["layers.1", "layers.2", "norm"]]},
            {"vp": 1, "stages": (1, 2)},
        ),
        f"{t}local_batch_size": ({f"{t}local_batch_size": 2}, {"mbs": 2, "global_batch": 128}),
        f"{t}global_batch_size": ({f"{t}global_batch_size": 1024}, {"mbs": 8, "global_batch": 1024}),
        f"{p}pipeline_parallel_microbatch_size": (
            pp | {f"{p}pipeline_parallel_microbatch_size": 2},
            {"mbs": 2, "global_batch": 128},
        ),
        f"{t}seq_len": ({f"{t}seq_len": 4096}, {"seq": 4096}),
        f"{a}mode": ({f"{a}mode": "full"}, {"recompute": "full"}),
        f"{a}selective_ac_option": ({f"{a}selective_ac_option": "op"}, {"recompute": "selective_op"}),
        "compile.enable": ({"compile.enable": True}, {"stack": "torch-compile"}),
        "compile.components": ({"compile.enable": True, "compile.components": ["loss"]}, {"stack": "torch"}),
        f"{p}enable_async_tensor_parallel": (
            {"compile.enable": True, f"{p}enable_async_tensor_parallel": True},
            {"stack": "torch-async-tp"},
        ),
        f"{t}dtype": ({f"{t}dtype": "bfloat16"}, {"precision": "bf16", "recipe": "bf16"}),
        f"{t}mixed_precision_param": (
            {f"{t}mixed_precision_param": "float32"},
            {"precision": "fp32", "recipe": "fp32"},
        ),
        "model.converters": ({"model.converters": ["quantize.linear.mx"]}, {"precision": "mxfp8", "recipe": "fsdp"}),
        "quantize.linear.float8.recipe_name": (
            float8 | {"quantize.linear.float8.recipe_name": "tensorwise"},
            {"precision": "fp8_tensorwise"},
        ),
        "optimizer.name": ({"optimizer.name": "Adam"}, {"optimizer": "adamw"}),
    }  # fmt: skip


def deepspeed() -> dict[str, Row]:
    z, e = "zero_optimization.", "expert_parallel."
    whole, each, times = "train_batch_size", "train_micro_batch_size_per_gpu", "gradient_accumulation_steps"
    return {
        "tensor_parallel.autotp_size": ({"tensor_parallel.autotp_size": 4}, {"tp": 4, "sp": False}),
        "sequence_parallel_size": ({"sequence_parallel_size": 4}, {"cp": 4, "context": BY_HEADS, "zigzag": False}),
        "pipeline.stages": ({"pipeline.stages": 4}, {"pp": 4, "stages": (6,) * 4, "schedule": "1f1b"}),
        f"{e}enabled": ({f"{e}enabled": False, f"{e}autoep_size": 8}, {"ep": 1}),
        f"{e}autoep_size": ({f"{e}enabled": True, f"{e}autoep_size": 8}, {"ep": 8}),
        f"{e}expert_tensor_parallel_size": (
            {f"{e}enabled": True, f"{e}autoep_size": 8, f"{e}expert_tensor_parallel_size": 2},
            {"etp": 2},
        ),
        whole: ({whole: 256, each: 2}, {"global_batch": 256, "mbs": 2}),
        each: ({each: 2}, {"global_batch": 128, "mbs": 2}),
        times: ({each: 2, times: 4}, {"global_batch": 512, "mbs": 2, "microbatches": 4}),
        f"{z}stage": ({f"{z}stage": 2}, {"zero": 2, "shard": 0}),
        f"{z}mics_shard_size": ({f"{z}stage": 3, f"{z}mics_shard_size": 8}, {"zero": 3, "shard": 8}),
        f"{z}offload_optimizer.device": ({f"{z}offload_optimizer.device": "cpu"}, {"offload": "optimizer"}),
        "pipeline.activation_checkpoint_interval": (
            {"pipeline.activation_checkpoint_interval": 1},
            {"recompute": "full"},
        ),
        "optimizer.type": ({"optimizer.type": "Muon"}, {"optimizer": "muon"}),
        "bf16.enabled": ({"bf16.enabled": True}, {"precision": "bf16", "recipe": "megatron-bf16-grads"}),
        "fp16.enabled": ({"fp16.enabled": True, "bf16.enabled": "auto"}, {"precision": "fp16"}),
        "data_types.grad_accum_dtype": (
            {"bf16.enabled": True, "data_types.grad_accum_dtype": "fp32"},
            {"recipe": "megatron"},
        ),
        f"{z}overlap_comm": (
            {f"{z}stage": 1, f"{z}overlap_comm": False},
            {"hides": ("parameters", "pipeline")},
        ),
    }


def accelerate() -> dict[str, Row]:
    f, p, d = "fsdp_config.fsdp_", "parallelism_config.parallelism_config_", "deepspeed_config."
    fsdp = {"distributed_type": "FSDP"}
    deep = {"distributed_type": "DEEPSPEED"}
    return {
        "distributed_type": ({"distributed_type": "MULTI_GPU"}, {"zero": 0, "pp": 1}),
        f"{p}tp_size": (fsdp | {f"{p}tp_size": 4}, {"tp": 4, "sp": False}),
        f"{p}cp_size": (fsdp | {f"{p}cp_size": 2}, {"cp": 2, "context": GATHERED, "zigzag": True, "zero": 3}),
        f"{p}sp_size": (deep | {f"{p}sp_size": 2}, {"cp": 2, "context": BY_HEADS, "zigzag": False}),
        f"{p}cp_comm_strategy": (fsdp | {f"{p}cp_size": 2, f"{p}cp_comm_strategy": "alltoall"}, {"context": RING}),
        f"{p}dp_replicate_size": (fsdp | {f"{p}dp_replicate_size": 8}, {"zero": 3, "shard": 8, "dp": 64}),
        f"{p}dp_shard_size": (
            fsdp | {f"{p}dp_replicate_size": 4, f"{p}dp_shard_size": 16},
            {"zero": 3, "shard": 16, "dp": 64},
        ),
        "num_processes": ({"num_processes": 64}, {"zero": 0}),
        "num_machines": ({"num_machines": 8}, {"zero": 0}),
        f"{f}version": (fsdp | {f"{f}version": 2}, {"zero": 3, "regather": True}),
        f"{f}reshard_after_forward": (
            fsdp | {f"{f}version": 2, f"{f}reshard_after_forward": False},
            {"zero": 3, "regather": False},
        ),
        f"{f}auto_wrap_policy": (
            fsdp | {f"{f}auto_wrap_policy": "SIZE_BASED_WRAP"},
            {"notes": ("it wraps by SIZE_BASED_WRAP, and is priced as if every block were gathered by itself",)},
        ),
        f"{f}sharding_strategy": (fsdp | {f"{f}sharding_strategy": "HYBRID_SHARD"}, {"zero": 3, "shard": 8}),
        f"{f}activation_checkpointing": (fsdp | {f"{f}activation_checkpointing": True}, {"recompute": "full"}),
        f"{d}zero_stage": (deep | {f"{d}zero_stage": 2}, {"zero": 2, "stack": "deepspeed"}),
        f"{d}gradient_accumulation_steps": (deep | {f"{d}gradient_accumulation_steps": 4}, {"microbatches": 4}),
        f"{d}offload_optimizer_device": (deep | {f"{d}offload_optimizer_device": "cpu"}, {"offload": "optimizer"}),
        "dynamo_config.dynamo_backend": ({"dynamo_config.dynamo_backend": "INDUCTOR"}, {"stack": "torch-compile"}),
        "mixed_precision": ({"mixed_precision": "bf16"}, {"precision": "bf16", "recipe": "fsdp", "stack": "torch"}),
    }


def maxtext() -> dict[str, Row]:
    axes: dict[str, dict[str, Any]] = {
        "tensor": {"tp": 2, "sp": False, "etp": 2},
        "tensor_sequence": {"tp": 2, "sp": True},
        "context": {"cp": 2, "zero": 3},
        "expert": {"ep": 2, "dp": 64},
        "fsdp": {"zero": 3, "shard": 2, "dp": 64},
        "data": {"dp": 64},
        "pipeline": {"pp": 2, "schedule": "gpipe"},
    }
    rows: dict[str, Row] = {}
    for axis, means in axes.items():
        ici = {f"ici_{axis}_parallelism": 2} | ({"ici_data_parallelism": 4} if axis == "fsdp" else {})
        layers = {"num_layers_per_pipeline_stage": 12} if axis == "pipeline" else {}
        rows[f"ici_{axis}_parallelism"] = (ici | layers, dict(means))
        dcn = {f"dcn_{axis}_parallelism": 2}
        own = dict(means)
        if axis == "fsdp":
            own["shard"] = 16
        if axis == "data":
            dcn |= {"dcn_fsdp_parallelism": 4}
            own |= {"zero": 3, "shard": 32}
        rows[f"dcn_{axis}_parallelism"] = (dcn | layers, own)
    pp = {"dcn_pipeline_parallelism": 4}
    rows |= {
        "shard_optimizer_over_data": (
            {"shard_optimizer_over_data": True, "ici_fsdp_parallelism": 1, "ici_data_parallelism": 8},
            {"zero": 1, "dp": 64},
        ),
        "num_layers_per_pipeline_stage": (pp | {"num_layers_per_pipeline_stage": 3}, {"vp": 2, "stages": (3,) * 8}),
        "num_pipeline_repeats": (
            pp | {"num_layers_per_pipeline_stage": 2, "num_pipeline_repeats": 3},
            {"vp": 3, "stages": (2,) * 12},
        ),
        "per_device_batch_size": ({"per_device_batch_size": 2.0}, {"mbs": 2, "microbatches": 1, "global_batch": 128}),
        "gradient_accumulation_steps": (
            {"per_device_batch_size": 1, "gradient_accumulation_steps": 4},
            {"mbs": 1, "microbatches": 4, "global_batch": 256},
        ),
        "num_pipeline_microbatches": (
            pp | {"num_layers_per_pipeline_stage": 6, "per_device_batch_size": 2, "num_pipeline_microbatches": 8},
            {"mbs": 1, "microbatches": 8, "global_batch": 128},
        ),
        "max_target_length": ({"max_target_length": 4096}, {"seq": 4096}),
        "context_parallel_strategy": (
            {"ici_context_parallelism": 2, "context_parallel_strategy": "ring"},
            {"context": RING, "zigzag": True},
        ),
        "context_parallel_load_balance": (
            {"ici_context_parallelism": 2, "context_parallel_load_balance": False},
            {"zigzag": False},
        ),
        "remat_policy": ({"remat_policy": "minimal"}, {"recompute": "selective_op"}),
        "opt_type": ({"opt_type": "muon"}, {"optimizer": "muon"}),
        "optimizer_memory_host_offload": ({"optimizer_memory_host_offload": True}, {"offload": "optimizer"}),
        "dtype": ({"dtype": "float32"}, {"precision": "fp32", "recipe": "fp32"}),
        "weight_dtype": ({"weight_dtype": "bfloat16"}, {"recipe": "bf16"}),
        "quantization": ({"quantization": "fp8"}, {"precision": "fp8_tensorwise"}),
        "attention": ({"attention": "dot_product"}, {"stack": "jax"}),
    }
    return rows


OPTIONS: dict[str, dict[str, Row]] = {
    "megatron": megatron(),
    "megatron-bridge": megatron_bridge(),
    "torchtitan": torchtitan(),
    "deepspeed": deepspeed(),
    "accelerate": accelerate(),
    "maxtext": maxtext(),
}
ROWS = [(name, option) for name, rows in OPTIONS.items() for option in rows]
ROOMY = replace(ROOM, experts=True)


def given(name: str, values: dict[str, Any]) -> Given:
    return Given(place=TARGETS[name].file, entries={key: Entry(value, 3) for key, value in values.items()})


def meaning(name: str, values: dict[str, Any]) -> dict[str, Any]:
    room = ROOMY if values.get("parallelism.module_fqns_per_model_part") is None else replace(ROOMY, layers=3)
    found = meant(TARGETS[name], given(name, values), room)
    stack = found.pop("stack")
    return found | {"stack": stack.name, "hides": stack.hides, "dedupes": stack.dedupes}


@pytest.mark.parametrize(("name", "option"), ROWS, ids=[f"{name} {option}" for name, option in ROWS])
def test_an_option_means_this(name: str, option: str) -> None:
    values, means = OPTIONS[name][option]
    assert option in values
    found = meaning(name, values)
    assert {field: found[field] for field in means} == means


@pytest.mark.parametrize(("name", "option"), ROWS, ids=[f"{name} {option}" for name, option in ROWS])
def test_a_value_of_another_type_is_refused_at_its_line(name: str, option: str) -> None:
    values, _ = OPTIONS[name][option]
    with pytest.raises(SettingValueBad) as refused:
        meaning(name, values | {option: [1]})
    assert refused.value.place == f"{TARGETS[name].file}:3: {option}"
    assert refused.value.cause == "it is a list of 1"


@pytest.mark.parametrize("name", TARGETS)
def test_every_option_has_a_row(name: str) -> None:
    assert {option.name for option in TARGETS[name].options} - set(OPTIONS[name]) == MEANT_TOGETHER.get(name, set())


MEANT_TOGETHER = {"megatron": {"--exp-avg-sq-dtype"}}
"""Options that say what they say together with one that has a row."""
REFUSED = [(name, one.name) for name, target in TARGETS.items() for one in target.unpriced if one.refused]


@pytest.mark.parametrize(("name", "option"), REFUSED, ids=[f"{name} {option}" for name, option in REFUSED])
def test_what_changes_the_cut_and_has_no_price_is_refused(name: str, option: str) -> None:
    with pytest.raises(SettingNotPriced) as refused:
        meaning(name, {option: "on"})
    assert refused.value.place == f"{TARGETS[name].file}:3: {option}"


@pytest.mark.parametrize("name", TARGETS)
def test_harmless_values_are_not_refused(name: str) -> None:
    for one in TARGETS[name].unpriced:
        for value in one.harmless:
            if value is not None:
                meaning(name, {one.name: value})
