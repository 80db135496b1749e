"""DeepSpeed: settings in JSON.

Source: `published/deepspeed.json`; what its pipeline engine refuses, `deepspeed/runtime/pipe/engine.py`.

- Ranks that are left are data parallel. The three numbers of a batch say one another; "auto" says nothing.
- ZeRO's stage is its own; MiCS shares out over some of the copies, in stage 3. A pipeline is with stages 0 and 1 alone.
- Sequences are shared by heads (Ulysses), tensors by AutoTP, experts by AutoEP.
- What is computed again is in the model's code, but for a pipeline's.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from typing import Any

from meshwright.ir.decisions.offload import Offload
from meshwright.ir.errors import SettingsContradict
from meshwright.ir.target.workload import STACKS, Stack
from meshwright.planner.exchange.options import COUNT, INTEGER, NATURAL, SWITCH, Given, Kind, Option, word
from meshwright.planner.exchange.run import BY_HEADS, Room, Run, with_degrees
from meshwright.planner.exchange.target import Limit, Line, Target, Unpriced
from meshwright.planner.exchange.targets import stages

_Z = "zero_optimization."
STACK = "deepspeed"
AUTO = "auto"


def _auto(kind: Kind) -> Kind:
    """A kind that "auto" is of, too: whoever starts it fills that in."""
    return Kind(lambda value: AUTO if value == AUTO else kind.read(value), f"{kind.said}, or auto", kind.words)


def _known(given: Given, option: Option) -> Any:
    """The value of an option; None where it is left to others."""
    found = given[option]
    return None if found == AUTO else found


STAGE = Option(f"{_Z}stage", Kind(lambda v: v if v in (0, 1, 2, 3) and type(v) is int else None, "0, 1, 2 or 3"), 0)
PP = Option("pipeline.stages", _auto(COUNT), AUTO)


# Ranks ---------------------------------------------------------------------------------------------------------------


def _degree(option: Option, field: str) -> Line:
    def means(given: Given, known: Mapping[str, Any], room: Room) -> Mapping[str, Any]:
        return {field: max(1, given[option])}

    return Line(
        (option,), lambda run, room: {option.name: getattr(run, field)} if getattr(run, field) > 1 else {}, means
    )


def _sequences() -> Line:
    option = Option("sequence_parallel_size", COUNT, 1)

    def means(given: Given, known: Mapping[str, Any], room: Room) -> Mapping[str, Any]:
        return {"cp": given[option], "context": BY_HEADS, "zigzag": False, "sp": False}

    return Line((option,), lambda run, room: {option.name: run.cp} if run.cp > 1 else {}, means)


def _pipeline() -> Line:
    def means(given: Given, known: Mapping[str, Any], room: Room) -> Mapping[str, Any]:
        pp = _known(given, PP) or 1
        counts = stages.evenly(room.layers, pp) if pp > 1 and room.layers else ()
        return {"pp": pp, "vp": 1, "schedule": "1f1b", "stages": counts}

    return Line((PP,), lambda run, room: {PP.name: run.pp} if run.pp > 1 else {}, means)


def _experts() -> Line:
    whether = Option("expert_parallel.enabled", SWITCH, False)
    ep = Option("expert_parallel.autoep_size", COUNT, 1)
    etp = Option("expert_parallel.expert_tensor_parallel_size", COUNT, 1)

    def says(run: Run, room: Room) -> Mapping[str, Any]:
        return {whether.name: True, ep.name: run.ep, etp.name: run.etp} if run.ep > 1 or run.etp != run.tp else {}

    def means(given: Given, known: Mapping[str, Any], room: Room) -> Mapping[str, Any]:
        return {"ep": given[ep], "etp": given[etp]} if given[whether] else {"ep": 1, "etp": known["tp"]}

    return Line((whether, ep, etp), says, means)


# Batches -------------------------------------------------------------------------------------------------------------


def _batches() -> Line:
    whole = Option("train_batch_size", _auto(COUNT))
    each = Option("train_micro_batch_size_per_gpu", _auto(COUNT))
    times = Option("gradient_accumulation_steps", _auto(COUNT))

    def says(run: Run, room: Room) -> Mapping[str, Any]:
        return {whole.name: run.global_batch, each.name: run.mbs, times.name: run.microbatches}

    def means(given: Given, known: Mapping[str, Any], room: Room) -> Mapping[str, Any]:
        dp = max(1, room.ranks // (known["tp"] * known["pp"] * known["cp"]))
        batch, mbs, steps = (_known(given, one) for one in (whole, each, times))
        if batch and mbs and steps and batch != mbs * steps * dp:
            raise SettingsContradict(
                place=given.at(whole.name),
                cause=f"{batch} is not {each.name} * {times.name} * {dp} copies = {mbs * steps * dp}",
                fix="give two of the three",
            )
        found = {"mbs": mbs, "microbatches": None if batch and mbs else steps}
        found["global_batch"] = batch or (mbs * (steps or 1) * dp if mbs else None)
        return {name: value for name, value in found.items() if value}

    return Line((whole, each, times), says, means)


# Storage -------------------------------------------------------------------------------------------------------------


def _storage() -> Line:
    group = Option(f"{_Z}mics_shard_size", INTEGER, -1)

    def says(run: Run, room: Room) -> Mapping[str, Any]:
        found: dict[str, Any] = {STAGE.name: run.zero}
        return found | ({group.name: run.shard} if run.zero == 3 and run.shard < run.copies else {})

    def means(given: Given, known: Mapping[str, Any], room: Room) -> Mapping[str, Any]:
        zero = given[STAGE]
        if zero > 1 and known["pp"] > 1:
            raise SettingsContradict(
                place=given.at(STAGE.name),
                cause=f"ZeRO-{zero} with a pipeline of {known['pp']} stages, which DeepSpeed refuses",
                fix="use stage 1, or no pipeline",
            )
        if given[group] > 0 and zero != 3:
            raise SettingsContradict(
                place=given.at(group.name),
                cause=f"it is of stage 3, and the stage is {zero}",
                fix=f"give {STAGE.name} 3",
            )
        copies = max(1, room.ranks // (known["tp"] * known["pp"]))
        shard = given[group] if 0 < given[group] < copies else 0
        return {"zero": zero if copies > 1 else 0, "shard": shard, "regather": True}

    return Line((STAGE, group), says, means)


def _offload() -> Line:
    device = Option(f"{_Z}offload_optimizer.device", word("none", "cpu", "nvme"), "none")

    def means(given: Given, known: Mapping[str, Any], room: Room) -> Mapping[str, Any]:
        if given[device] == "nvme":
            raise given.bad(device, "prices know nothing of nvme", "use cpu or none")
        return {"offload": "optimizer" if given[device] == "cpu" else "none"}

    return Line((device,), lambda run, room: {device.name: "cpu"} if run.offload == "optimizer" else {}, means)


def _recompute() -> Line:
    every = Option("pipeline.activation_checkpoint_interval", NATURAL, 0)

    def means(given: Given, known: Mapping[str, Any], room: Room) -> Mapping[str, Any]:
        if given[every] > 1:
            raise given.bad(every, f"units of {given[every]} layers have no price", "give 0 or 1")
        return {"recompute": "full"} if given[every] else {}

    return Line((every,), lambda run, room: {every.name: 1} if run.pp > 1 and run.recompute == "full" else {}, means)


# Software ------------------------------------------------------------------------------------------------------------

_OPTIMIZERS = {"AdamW": "adamw", "Adam": "adamw", "SGD": "sgd", "Muon": "muon"}


def _optimizer() -> Line:
    option = Option("optimizer.type", word(*_OPTIMIZERS))
    ours = {"adamw": "AdamW", "sgd": "SGD", "muon": "Muon"}

    def means(given: Given, known: Mapping[str, Any], room: Room) -> Mapping[str, Any]:
        return {"optimizer": _OPTIMIZERS[given[option]]} if given.has(option) else {"optimizer": "adamw"}

    return Line((option,), lambda run, room: {option.name: ours[run.optimizer]}, means)


def _precision() -> Line:
    bf16, fp16 = Option("bf16.enabled", _auto(SWITCH), False), Option("fp16.enabled", _auto(SWITCH), False)
    kept = Option("data_types.grad_accum_dtype", word("fp32", "bf16", "fp16"))

    def says(run: Run, room: Room) -> Mapping[str, Any]:
        if run.precision == "fp32":
            return {}
        own = {kept.name: "fp32"} if run.recipe == "megatron" else {}
        return {(fp16 if run.precision == "fp16" else bf16).name: True} | own

    def means(given: Given, known: Mapping[str, Any], room: Room) -> Mapping[str, Any]:
        found = [one for one in (bf16, fp16) if _known(given, one)]
        if len(found) > 1:
            raise SettingsContradict(
                place=given.at(fp16.name), cause=f"{bf16.name} says so, too", fix="give one of them"
            )
        recipe = "megatron" if given[kept] == "fp32" else "megatron-bf16-grads"
        if not found and AUTO in (given[bf16], given[fp16]):
            return {"recipe": recipe}
        precision = "fp32" if not found else "bf16" if found[0] is bf16 else "fp16"
        return {"precision": precision, "recipe": "fp32" if precision == "fp32" else recipe}

    return Line((bf16, fp16, kept), says, means)


def _software() -> Line:
    overlap = Option(f"{_Z}overlap_comm", _auto(SWITCH))

    def says(run: Run, room: Room) -> Mapping[str, Any]:
        return {overlap.name: "gradients" in run.stack.hides} if run.zero else {}

    def means(given: Given, known: Mapping[str, Any], room: Room) -> Mapping[str, Any]:
        said = _known(given, overlap)
        hides = known["zero"] == 3 if said is None else said
        return {"stack": _stack(hides or not known["zero"])}

    return Line((overlap,), says, means)


def _stack(overlaps: bool) -> Stack:
    known = STACKS[STACK]
    hides = tuple(kind for kind in known.hides if kind != "gradients")
    return known if overlaps else replace(known, name=f"{STACK}-as-said", hides=hides)


# What it cannot say --------------------------------------------------------------------------------------------------


def _stack_limit(run: Run, room: Room) -> Run:
    return (
        run
        if run.stack in (_stack(True), _stack(False)) and (run.zero or run.stack == _stack(True))
        else replace(run, stack=_stack(True))
    )


def _pipeline_limit(run: Run, room: Room) -> Run:
    if run.pp == 1:
        return run
    run = stages.restaged(run, room, vp=1, schedule="1f1b")
    return replace(run, zero=min(run.zero, 1))


def _sequence_limit(run: Run, room: Room) -> Run:
    return replace(run, context=BY_HEADS, zigzag=False) if run.cp > 1 else run


def _expert_limit(run: Run, room: Room) -> Run:
    if run.zero == 3 and run.ep > 1 and run.tp > 1:
        return with_degrees(run, room, tp=1)
    return run


def _recipe_limit(run: Run, room: Room) -> Run:
    known = ("fp32",) if run.precision == "fp32" else ("megatron-bf16-grads", "megatron")
    return run if run.recipe in known else replace(run, recipe=known[0])


_NEAREST = {"momentum": "sgd", "adamw-bf16": "adamw", "adafactor": "adamw"}


def _precision_limit(run: Run, room: Room) -> Run:
    nearest = {"tf32": "fp32", "fp16": "fp16", "fp32": "fp32"}
    return replace(run, precision=nearest.get(run.precision, "bf16"))


DEEPSPEED = Target(
    name="deepspeed",
    called="DeepSpeed",
    file="ds_config.json",
    lines=(
        _degree(Option("tensor_parallel.autotp_size", NATURAL, 0), "tp"),
        _sequences(),
        _pipeline(),
        _experts(),
        _batches(),
        _storage(),
        _offload(),
        _recompute(),
        _optimizer(),
        _precision(),
        _software(),
    ),
    limits=(
        Limit("software", "it runs a model's own modules, and gathers parameters one by one", _stack_limit),
        Limit("not together", "AutoEP under ZeRO-3 is without AutoTP", _expert_limit),
        Limit("not together", "its pipelines run 1F1B, one stage on each rank, and ZeRO-1 at most", _pipeline_limit),
        Limit("its own way", "AutoTP leaves sequences whole", lambda run, room: replace(run, sp=False)),
        Limit("its own way", "sequences are shared by heads, all-to-all", _sequence_limit),
        Limit(
            "no option",
            "stages 1 and 2 are over all copies",
            lambda run, room: replace(run, shard=run.copies) if run.zero in (1, 2) else run,
        ),
        Limit("its own way", "stage 3 gathers parameters again", lambda run, room: replace(run, regather=True)),
        Limit(
            "no option",
            "its files say nothing of activations that wait on the host, nor of states without ZeRO",
            lambda run, room: replace(run, offload=str(Offload(optimizer="optimizer" in run.offload and run.zero > 0))),
        ),
        Limit(
            "no option",
            "of these optimizers it has Adam, SGD and Muon",
            lambda run, room: replace(run, optimizer=_NEAREST.get(run.optimizer, run.optimizer)),
        ),
        Limit("precision", "it has bf16, fp16 and fp32", _precision_limit),
        Limit("precision", "parameters have fp32 copies, gradients add up in fp32 or as they are", _recipe_limit),
    ),
    unpriced=(
        Unpriced(f"{_Z}zero_hpz_partition_size", harmless=(1,), refused=True),
        Unpriced(f"{_Z}offload_param.device", harmless=("none",), refused=True),
        Unpriced(f"{_Z}zero_quantized_weights", harmless=(False,)),
        Unpriced(f"{_Z}zero_quantized_gradients", harmless=(False,)),
        Unpriced("activation_checkpointing.partition_activations", harmless=(False,)),
        Unpriced("activation_checkpointing.cpu_checkpointing", harmless=(False,)),
        Unpriced("bf16.bf16_master_weights_and_grads", harmless=(False,)),
        Unpriced("elasticity", harmless=()),
        Unpriced("compression_training", harmless=()),
    ),
    stacks=(STACK,),
    elsewhere=("seq", "recompute"),
    how="give it to deepspeed.initialize; a pipeline is also to be said to PipelineModule",
)  # fmt: skip
