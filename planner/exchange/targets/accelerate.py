"""accelerate: settings in YAML, as `accelerate config` writes them.

Source: `published/accelerate.json`.

- Data parallelism is torch's (`fsdp`): version 2 of FSDP is written, both are read. Without FSDP copies are whole.
- `parallelism_config` has the degrees; sequences are passed on or gathered, and balanced.
- Blocks are gathered one by one only where the policy wraps them, which is written; others are priced so, with a note.
- Under DeepSpeed its stage is read, and what else its section says; the rest stands in a file of DeepSpeed's own.
- Batches, sequences, and what is computed again without FSDP are in the script.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from typing import Any

from meshwright.ir.errors import SettingNotPriced, SettingsContradict
from meshwright.ir.target.workload import STACKS
from meshwright.planner.exchange.options import COUNT, SWITCH, Given, Kind, Option, word
from meshwright.planner.exchange.run import BY_HEADS, GATHERED, RING, Room, Run
from meshwright.planner.exchange.target import Limit, Line, Target, Unpriced, equal
from meshwright.planner.exchange.targets import deepspeed, fsdp, stages

_F, _P, _D = "fsdp_config.fsdp_", "parallelism_config.parallelism_config_", "deepspeed_config."
_WHOLE = ("NO", "MULTI_GPU", "MULTI_CPU", "MULTI_XPU", "MULTI_NPU")
"""Types whose copies are whole."""
KIND = Option("distributed_type", word(*_WHOLE, "FSDP", "DEEPSPEED", "MEGATRON_LM", "TP"), "NO")
_COMM = {"allgather": GATHERED, "alltoall": RING}
_STRATEGIES = {
    "FULL_SHARD": (3, True), "SHARD_GRAD_OP": (3, False), "NO_SHARD": (0, True), "HYBRID_SHARD": (3, True),
    "HYBRID_SHARD_ZERO2": (3, False),
}  # fmt: skip
"""Of version 1: the stage, and whether parameters are gathered again."""


def _strategy(value: object) -> str | bool | None:
    """What version 1 calls a strategy, version 2 a switch; the first also numbers them."""
    if isinstance(value, bool):
        return value
    if isinstance(value, int) and 1 <= value <= len(_STRATEGIES):
        return list(_STRATEGIES)[value - 1]
    small = value.lower() if isinstance(value, str) else ""
    return {"true": True, "false": False}.get(small) if small in ("true", "false") else small.upper() or None


_WITHOUT = {"pp": 1, "vp": 1, "schedule": "1f1b", "stages": (), "ep": 1, "sp": False}
"""What no file of accelerate has."""


def _degrees() -> Line:
    copies, share = Option(f"{_P}dp_replicate_size", COUNT, 1), Option(f"{_P}dp_shard_size", COUNT)
    whole = Option("num_processes", COUNT)
    hosts = Option("num_machines", COUNT, 1)
    version = Option(f"{_F}version", Kind(lambda v: int(v) if v in (1, 2, "1", "2") else None, "1 or 2"), 1)
    again = Option(f"{_F}reshard_after_forward", Kind(_strategy, f"true, false or {', '.join(_STRATEGIES)}"))
    strategy = Option(f"{_F}sharding_strategy", Kind(_strategy, ", ".join(_STRATEGIES)), "FULL_SHARD")
    stage = Option(
        f"{_D}zero_stage", Kind(lambda v: v if v in (0, 1, 2, 3) and type(v) is int else None, "0, 1, 2 or 3"), 0
    )

    def says(run: Run, room: Room) -> Mapping[str, Any]:
        of_fsdp = run.zero or run.tp > 1
        found: dict[str, Any] = {
            KIND.name: "FSDP" if of_fsdp else "MULTI_GPU",
            hosts.name: max(1, room.ranks // room.per_host),
            whole.name: room.ranks,
        }
        if not of_fsdp:
            return found
        replicate, sharing = fsdp.degrees(run)
        return found | {version.name: 2, again.name: run.regather, copies.name: replicate, share.name: sharing}

    def means(given: Given, known: Mapping[str, Any], room: Room) -> Mapping[str, Any]:
        if given.has(whole) and given[whole] != room.ranks:
            raise SettingsContradict(
                place=given.at(whole.name),
                cause=f"{given[whole]} processes on a cluster of {room.ranks} ranks",
                fix="price it on a cluster of as many",
            )
        kind = given[KIND]
        if kind == "MEGATRON_LM":
            raise SettingNotPriced(
                place=given.at(KIND.name), cause="it is run by Megatron-LM", fix="price Megatron-LM's own command line"
            )
        left = max(1, room.ranks // (known["tp"] * known["cp"]))
        if kind == "DEEPSPEED":
            return {"zero": given[stage] if left * known["cp"] > 1 else 0, "shard": 0, "regather": True}
        if kind != "FSDP":
            return {"zero": 0, "shard": 0, "regather": True}
        named = again if given.has(again) else strategy
        said = True if given[version] == 2 and not given.has(named) else given[named]
        zero, regather = (3, said) if isinstance(said, bool) else _STRATEGIES.get(said, (0, True))
        if isinstance(said, str) and (said not in _STRATEGIES or given[version] == 2):
            raise given.bad(named, f"it is {said}", "give true or false, or a strategy of version 1")
        replicate, sharing = given[copies], given[share]
        if isinstance(said, str) and said.startswith("HYBRID") and not given.has(share):
            sharing = room.per_host
            replicate = max(1, left // sharing)
        sharing = sharing or max(1, left // replicate)
        found = fsdp.storage(replicate, sharing, known["cp"])
        return (
            {**found, "regather": regather if found["zero"] else True}
            if zero
            else {"zero": 0, "shard": 0, "regather": True}
        )

    return Line((KIND, copies, share, whole, hosts, version, again, strategy, stage), says, means)


def _sequences() -> Line:
    cp, heads = Option(f"{_P}cp_size", COUNT, 1), Option(f"{_P}sp_size", COUNT, 1)
    comm = Option(f"{_P}cp_comm_strategy", word(*_COMM), "allgather")

    def says(run: Run, room: Room) -> Mapping[str, Any]:
        if run.cp == 1:
            return {}
        ours = {context: name for name, context in _COMM.items()}
        return {cp.name: run.cp, comm.name: ours[run.context]}

    def means(given: Given, known: Mapping[str, Any], room: Room) -> Mapping[str, Any]:
        if given[heads] > 1 and given[cp] > 1:
            raise SettingsContradict(
                place=given.at(heads.name), cause=f"{cp.name} shares sequences, too", fix="give one of them"
            )
        if given[heads] > 1:
            return {"cp": given[heads], "context": BY_HEADS, "zigzag": False}
        return {"cp": given[cp], "context": _COMM[given[comm]], "zigzag": given[cp] > 1}

    return Line((cp, heads, comm), says, means)


def _recompute() -> Line:
    option = Option(f"{_F}activation_checkpointing", SWITCH, False)

    def says(run: Run, room: Room) -> Mapping[str, Any]:
        return {option.name: run.recompute == "full"} if run.zero or run.tp > 1 else {}

    def means(given: Given, known: Mapping[str, Any], room: Room) -> Mapping[str, Any]:
        return {"recompute": "full" if given[option] else "none"} if given[KIND] == "FSDP" else {}

    return Line((option,), says, means)


def _wrapped() -> Line:
    policies = word("TRANSFORMER_BASED_WRAP", "SIZE_BASED_WRAP", "NO_WRAP")
    option = Option(f"{_F}auto_wrap_policy", policies, "NO_WRAP")

    def says(run: Run, room: Room) -> Mapping[str, Any]:
        return {option.name: policies.words[0]} if run.zero or run.tp > 1 else {}

    def means(given: Given, known: Mapping[str, Any], room: Room) -> Mapping[str, Any]:
        if given[KIND] != "FSDP" or given[option] == policies.words[0]:
            return {}
        return {"note": f"it wraps by {given[option]}, and is priced as if every block were gathered by itself"}

    return Line((option,), says, means)


def _software() -> Line:
    backend = Option("dynamo_config.dynamo_backend", word("NO", "EAGER", "INDUCTOR"), "NO")
    mixed = Option("mixed_precision", word("no", "bf16", "fp16", "fp8"), "no")
    theirs = {"bf16": "bf16", "fp16": "fp16", "fp32": "no"}

    def says(run: Run, room: Room) -> Mapping[str, Any]:
        own = {backend.name: "INDUCTOR"} if run.stack.style == "compiled" else {}
        return {mixed.name: theirs[run.precision]} | own

    def means(given: Given, known: Mapping[str, Any], room: Room) -> Mapping[str, Any]:
        said = "no" if given.has(mixed) and given.entries[mixed.name].value is False else given[mixed]
        if said == "fp8":
            raise given.bad(mixed, "prices know nothing of its float8", "use bf16, fp16 or no")
        precision = "fp32" if said == "no" else said
        if given[KIND] == "DEEPSPEED":
            recipe = "fp32" if precision == "fp32" else STACKS[deepspeed.STACK].recipe
            return {"precision": precision, "recipe": recipe, "stack": STACKS[deepspeed.STACK]}
        stack = STACKS["torch-compile" if given[backend] == "INDUCTOR" else "torch"]
        return {"precision": precision, "recipe": "fp32" if precision == "fp32" else "fsdp", "stack": stack}

    return Line((backend, mixed), says, means)


def _steps() -> Line:
    steps = Option(f"{_D}gradient_accumulation_steps", COUNT)
    device = Option(f"{_D}offload_optimizer_device", word("none", "cpu"), "none")

    def means(given: Given, known: Mapping[str, Any], room: Room) -> Mapping[str, Any]:
        if given[KIND] != "DEEPSPEED":
            return {"offload": "none"}
        found = {"microbatches": given[steps]} if given.has(steps) else {}
        return found | {"offload": "optimizer" if given[device] == "cpu" else "none"}

    return Line((steps, device), lambda run, room: {}, means)


# What it cannot say --------------------------------------------------------------------------------------------------


def _stack_limit(run: Run, room: Room) -> Run:
    if run.stack in [STACKS[name] for name in ACCELERATE.stacks]:
        return run
    return replace(run, stack=STACKS["torch-compile" if run.stack.style == "compiled" else "torch"])


def _precision_limit(run: Run, room: Room) -> Run:
    precision = {"tf32": "fp32", "fp16": "fp16", "fp32": "fp32"}.get(run.precision, "bf16")
    return replace(run, precision=precision, recipe="fp32" if precision == "fp32" else "fsdp")


def _whole_limit(run: Run, room: Room) -> Run:
    return replace(run, zero=3, shard=run.copies) if run.tp > 1 and run.zero == 0 and run.copies > 1 else run


ACCELERATE = Target(
    name="accelerate",
    called="accelerate",
    file="accelerate.yaml",
    lines=(
        equal(Option(f"{_P}tp_size", COUNT, 1), "tp"),
        Line((), lambda run, room: {}, lambda given, known, room: _WITHOUT | {"etp": known["tp"]}),
        _sequences(),
        _degrees(),
        _recompute(),
        _wrapped(),
        _software(),
        _steps(),
    ),
    limits=(
        Limit("software", "it runs a model's own modules on torch", _stack_limit),
        Limit("no option", "its files have no pipeline", stages.unpiped),
        Limit(
            "no option",
            "its files have no expert parallelism",
            lambda run, room: replace(run, ep=1, etp=run.tp) if room.experts else run,
        ),
        fsdp.STORAGE,
        Limit("not together", "tensor parallelism beside whole copies is not there", _whole_limit),
        Limit("its own way", "a model's plan of tensors leaves sequences", lambda run, room: replace(run, sp=False)),
        Limit(
            "not together",
            "heads are shared under DeepSpeed alone",
            lambda run, room: replace(run, context=GATHERED) if run.context == BY_HEADS else run,
        ),
        Limit("its own way", "sequences are balanced", lambda run, room: replace(run, zigzag=run.cp > 1)),
        Limit(
            "no option",
            "it recomputes layers, all of them",
            lambda run, room: replace(run, recompute="none" if run.recompute == "none" else "full"),
        ),
        Limit("no option", "nothing waits on the host but all of it", lambda run, room: replace(run, offload="none")),
        Limit("precision", "it has bf16, fp16 and fp32, with fp32 parameters", _precision_limit),
    ),
    unpriced=(
        Unpriced(f"{_F}offload_params", harmless=(False, "false"), refused=True),
        Unpriced(f"{_D}offload_param_device", harmless=("none",), refused=True),
        Unpriced(f"{_D}deepspeed_config_file", harmless=("none",), refused=True),
        Unpriced(f"{_F}backward_prefetch", harmless=("BACKWARD_PRE",)),
        Unpriced(f"{_F}forward_prefetch", harmless=(False, "false", True, "true")),
    ),
    stacks=("torch", "torch-compile"),
    elsewhere=("seq", "mbs", "optimizer", "recompute"),
    how="give it to accelerate launch with --config_file",
)  # fmt: skip
