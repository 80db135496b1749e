"""torchtitan: settings in TOML, up to version 0.2.2; from then on it is configured in Python.

Source: `published/torchtitan.json`; stages as `generate_llm_fqn_per_model_part` shares layers out, in
`torchtitan/distributed/pipeline_parallel.py`.

- Data parallelism is torch's (`fsdp`). A step without a pipeline adds up micro-batches of `local_batch_size`; with one,
  that is what all micro-batches of a copy have together.
- Tensor parallelism is sequence parallelism, and experts are cut as the rest or not at all.
- Embedding and head count as a layer each, unless it is said otherwise; the first stages take what does not divide.
- Selective checkpointing of every n-th layer is priced as that of the first so many.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import replace
from typing import Any

from meshwright.ir.errors import SettingsContradict
from meshwright.ir.names.degrees import FIRST_LAYERS
from meshwright.ir.schedules import SCHEDULES
from meshwright.ir.target.workload import STACKS
from meshwright.planner.exchange.options import COUNT, INTEGER, NATURAL, ROWS, SWITCH, TEXT, WORDS, Given, Option, word
from meshwright.planner.exchange.run import BY_HEADS, GATHERED, RING, Room, Run
from meshwright.planner.exchange.target import Limit, Line, Target, Unpriced, equal
from meshwright.planner.exchange.targets import fsdp, stages

_P = "parallelism."
TP = Option(f"{_P}tensor_parallel_degree", COUNT, 1)
PP = Option(f"{_P}pipeline_parallel_degree", COUNT, 1)
CP = Option(f"{_P}context_parallel_degree", COUNT, 1)


# Ranks ---------------------------------------------------------------------------------------------------------------


def _tensor() -> Line:
    return Line(
        (TP,), lambda run, room: {TP.name: run.tp}, lambda given, known, room: {"tp": given[TP], "sp": given[TP] > 1}
    )


def _data() -> Line:
    copies = Option(f"{_P}data_parallel_replicate_degree", COUNT, 1)
    share = Option(f"{_P}data_parallel_shard_degree", INTEGER, -1)
    again = Option(f"{_P}fsdp_reshard_after_forward", word("default", "always", "never"), "default")

    def says(run: Run, room: Room) -> Mapping[str, Any]:
        replicate, sharing = fsdp.degrees(run)
        found: dict[str, Any] = {copies.name: replicate, share.name: sharing}
        return found | ({again.name: "always" if run.regather else "never"} if run.zero else {})

    def means(given: Given, known: Mapping[str, Any], room: Room) -> Mapping[str, Any]:
        replicate, sharing = given[copies], given[share]
        if sharing == 0:
            raise given.bad(share, "it is 0")
        if sharing == -1:
            sharing = max(1, room.ranks // (replicate * known["tp"] * known["pp"] * known["cp"]))
        regather = known["pp"] == 1 if given[again] == "default" else given[again] == "always"
        return fsdp.storage(replicate, sharing, known["cp"]) | {"regather": regather}

    return Line((copies, share, again), says, means)


def _experts() -> Line:
    ep, etp = Option(f"{_P}expert_parallel_degree", COUNT, 1), Option(f"{_P}expert_tensor_parallel_degree", COUNT, 1)

    def says(run: Run, room: Room) -> Mapping[str, Any]:
        return {ep.name: run.ep, etp.name: run.etp} if run.ep > 1 else {}

    def means(given: Given, known: Mapping[str, Any], room: Room) -> Mapping[str, Any]:
        if given[ep] > 1 and given[etp] not in (1, known["tp"]):
            raise SettingsContradict(
                place=given.at(etp.name),
                cause=f"{given[etp]} is neither 1 nor {TP.name}, {known['tp']}",
                fix="give one of them",
            )
        return {"ep": given[ep], "etp": given[etp] if given[ep] > 1 else known["tp"]}

    return Line((ep, etp), says, means)


_THEIRS = {"allgather": GATHERED, "alltoall": RING}


def _attention() -> Line:
    rotate = Option(f"{_P}context_parallel_rotate_method", word(*_THEIRS), "allgather")
    balance = Option(f"{_P}context_parallel_load_balancer", word("headtail", "ptrr"), "headtail")

    def says(run: Run, room: Room) -> Mapping[str, Any]:
        ours = {context: name for name, context in _THEIRS.items()}
        return {rotate.name: ours[run.context]} if run.cp > 1 else {}

    def means(given: Given, known: Mapping[str, Any], room: Room) -> Mapping[str, Any]:
        if known["cp"] > 1 and given[balance] != "headtail":
            raise given.bad(balance, f"prices know nothing of {given[balance]}", "use headtail")
        return {"context": _THEIRS[given[rotate]], "zigzag": known["cp"] > 1}

    return Line((rotate, balance), says, means)


# Stages --------------------------------------------------------------------------------------------------------------

_SCHEDULES = {
    "1F1B": "1f1b", "GPipe": "gpipe", "LoopedBFS": "gpipe", "Interleaved1F1B": "interleaved", "ZBVZeroBubble": "zbv",
    "DualPipeV": "dualpipev",
}  # fmt: skip
_SINGLE = ("1F1B", "GPipe")
_MULTI = {ours: theirs for theirs, ours in _SCHEDULES.items() if theirs not in _SINGLE}
_ONE = {_SCHEDULES[theirs]: theirs for theirs in _SINGLE}
_LAYER = re.compile(r"layers\.[0-9]+")


def shares(layers: int, count: int, first: int, last: int) -> tuple[int, ...]:
    """The layers of stages as torchtitan shares them out; nothing where it refuses to."""
    each, more = divmod(layers + first + last, count)
    if count == 1 or not each or max(first, last) > each:
        return ()
    found = [each + (stage < more) for stage in range(count)]
    found[0] -= first
    found[-1] -= last
    return tuple(found) if min(found) >= 0 and sum(found) == layers else ()


def _pipeline() -> Line:
    schedule = Option(f"{_P}pipeline_parallel_schedule", word(*_SCHEDULES, "InterleavedZeroBubble"), "1F1B")
    first = Option(f"{_P}pipeline_parallel_first_stage_less_layers", NATURAL, 1)
    last = Option(f"{_P}pipeline_parallel_last_stage_less_layers", NATURAL, 1)
    each = Option(f"{_P}pipeline_parallel_layers_per_stage", COUNT)
    parts = Option(f"{_P}module_fqns_per_model_part", ROWS)

    def says(run: Run, room: Room) -> Mapping[str, Any]:
        if run.pp == 1:
            return {}
        several = run.vp > 1
        found: dict[str, Any] = {schedule.name: (_MULTI if several else _ONE)[run.schedule]}
        for less in (1, 0):
            if run.stages == shares(room.layers, len(run.stages), less, less):
                per = -(-(room.layers + 2 * less) // len(run.stages))
                exact = -(-(room.layers + 2 * less) // per) == len(run.stages)
                if run.vp == 1 + several or exact:
                    own = {} if run.vp == 1 + several else {each.name: per}
                    return found | {first.name: less, last.name: less} | own
        return found | {parts.name: _parts(run.stages)}

    def means(given: Given, known: Mapping[str, Any], room: Room) -> Mapping[str, Any]:
        pp, theirs = known["pp"], given[schedule]
        if pp == 1:
            return {"vp": 1, "schedule": "1f1b", "stages": ()}
        if theirs not in _SCHEDULES:
            raise given.bad(schedule, f"prices know nothing of {theirs}")
        single = theirs in _SINGLE
        if given.has(parts):
            counts = tuple(sum(bool(_LAYER.fullmatch(name)) for name in part) for part in given[parts])
            if not counts or len(counts) % pp:
                raise given.bad(parts, f"it has {len(counts)} parts for {pp} ranks", f"give a multiple of {pp}")
        else:
            count = pp * (1 if single else 2)
            if given.has(each) and room.layers:
                count = -(-(room.layers + given[first] + given[last]) // given[each])
                if count % pp:
                    raise SettingsContradict(
                        place=given.at(each.name),
                        cause=f"{count} stages of {given[each]} layers for {pp} ranks",
                        fix=f"give a number that makes a multiple of {pp} stages",
                    )
            counts = shares(room.layers, count, given[first], given[last]) if room.layers else (0,) * count
            if not counts:
                raise SettingsContradict(
                    place=given.at(PP.name),
                    cause=f"{room.layers} layers for {count} stages, the first and the last with fewer",
                    fix="give fewer stages",
                )
        virtual = len(counts) // pp
        if single != (virtual == 1):
            raise SettingsContradict(
                place=given.at(schedule.name),
                cause=f"{theirs} with {virtual} stages for each rank",
                fix="use 1F1B or GPipe with one, others with several",
            )
        stages_ = counts if room.layers or given.has(parts) else ()
        return {"vp": virtual, "schedule": _SCHEDULES[theirs], "stages": stages_}

    return Line((schedule, first, last, each, parts), says, means)


def _parts(counts: tuple[int, ...]) -> list[list[str]]:
    """The modules of every stage."""
    found, at = [], 0
    for count in counts:
        found.append([f"layers.{number}" for number in range(at, at + count)])
        at += count
    found[0].insert(0, "tok_embeddings")
    found[-1] += ["norm", "output"]
    return found


def _schedule_limit(run: Run, room: Room) -> Run:
    if run.pp == 1:
        return run
    if run.vp == 1:
        return run if run.schedule in _ONE else replace(run, schedule="1f1b")
    if run.schedule in SCHEDULES and SCHEDULES[run.schedule].vee:
        return run if run.schedule in _MULTI else replace(run, schedule="zbv")
    if run.schedule != "gpipe" and run.microbatches % run.pp:
        return stages.restaged(run, room, vp=1, schedule="1f1b")
    return run if run.schedule in _MULTI else replace(run, schedule="interleaved")


# Batches -------------------------------------------------------------------------------------------------------------


def _batches() -> Line:
    local = Option("training.local_batch_size", COUNT, 8)
    whole = Option("training.global_batch_size", INTEGER, -1)
    each = Option(f"{_P}pipeline_parallel_microbatch_size", COUNT, 1)

    def says(run: Run, room: Room) -> Mapping[str, Any]:
        own = run.mbs * run.microbatches if run.pp > 1 else run.mbs
        found = {local.name: own, whole.name: run.global_batch}
        return found | ({each.name: run.mbs} if run.pp > 1 else {})

    def means(given: Given, known: Mapping[str, Any], room: Room) -> Mapping[str, Any]:
        once = given[local] * known["dp"]
        total = once if given[whole] == -1 else given[whole]
        if known["pp"] == 1:
            return {"mbs": given[local], "global_batch": total}
        if given[local] % given[each]:
            raise SettingsContradict(
                place=given.at(each.name),
                cause=f"{given[each]} sequences of {given[local]}",
                fix=f"give a divisor of {local.name}",
            )
        if total != once:
            raise SettingsContradict(
                place=given.at(whole.name),
                cause=f"{total} sequences would run the pipeline {total / once:g} times a step, which has no price",
                fix=f"give {once}, or another {local.name}",
            )
        return {"mbs": given[each], "global_batch": total}

    return Line((local, whole, each), says, means)


# Memory and software -------------------------------------------------------------------------------------------------


def _recompute() -> Line:
    mode = Option("activation_checkpoint.mode", word("none", "full", "selective", "memory_budget"), "selective")
    option = Option("activation_checkpoint.selective_ac_option", TEXT, "2")
    kinds = {"none": "none", "full": "full", "selective_op": "selective"}

    def says(run: Run, room: Room) -> Mapping[str, Any]:
        return {mode.name: kinds[run.recompute]} | ({option.name: "op"} if run.recompute == "selective_op" else {})

    def means(given: Given, known: Mapping[str, Any], room: Room) -> Mapping[str, Any]:
        if given[mode] == "memory_budget":
            raise given.bad(mode, "prices know nothing of a budget", "use none, full or selective")
        if given[mode] != "selective":
            return {"recompute": given[mode]}
        if given[option] == "op":
            return {"recompute": "selective_op"}
        every = int(given[option]) if given[option].isdecimal() and len(given[option]) < 5 else 0
        if not every:
            raise given.bad(option, f"it is {given[option]!r}", "give op, or a number of layers as a text")
        most = max(known["stages"] or (room.layers,))
        if every == 1 or not most:
            return {"recompute": "full" if every == 1 else "none"}
        note = f"one of {every} layers is computed again, priced as the first {most // every} of every stage"
        return {"recompute": f"{FIRST_LAYERS}:{most // every}" if most >= every else "none", "note": note}

    return Line((mode, option), says, means)


_USUAL, _COMPILED, _ASYNC = "torch", "torch-compile", "torch-async-tp"


def _software() -> Line:
    compiled = Option("compile.enable", SWITCH, False)
    parts = Option("compile.components", WORDS, ("model", "loss"))
    hidden = Option(f"{_P}enable_async_tensor_parallel", SWITCH, False)

    def says(run: Run, room: Room) -> Mapping[str, Any]:
        found: dict[str, Any] = {compiled.name: run.stack.style == "compiled"}
        return found | ({hidden.name: True} if run.stack == STACKS[_ASYNC] else {})

    def means(given: Given, known: Mapping[str, Any], room: Room) -> Mapping[str, Any]:
        model = given[compiled] and "model" in given[parts]
        if given[hidden] and not model:
            raise SettingsContradict(
                place=given.at(hidden.name), cause=f"it needs {compiled.name} of the model", fix="give both, or none"
            )
        return {"stack": STACKS[_ASYNC if given[hidden] else _COMPILED if model else _USUAL]}

    return Line((compiled, parts, hidden), says, means)


_CONVERTERS = {"fp8_tensorwise": "quantize.linear.float8", "mxfp8": "quantize.linear.mx"}
_SHORT = {"bfloat16": "bf16", "float32": "fp32"}


def _precision() -> Line:
    kept = Option("training.dtype", word(*_SHORT), "float32")
    used = Option("training.mixed_precision_param", word(*_SHORT), "bfloat16")
    converters = Option("model.converters", WORDS, ())
    scaled = Option(
        "quantize.linear.float8.recipe_name", word("tensorwise", "rowwise", "rowwise_with_gw_hp"), "tensorwise"
    )

    def says(run: Run, room: Room) -> Mapping[str, Any]:
        found: dict[str, Any] = {kept.name: "bfloat16" if run.recipe == "bf16" else "float32"}
        if run.precision == "fp32":
            return found | {used.name: "float32"}
        if run.precision not in _CONVERTERS:
            return found
        own = {scaled.name: "tensorwise"} if run.precision == "fp8_tensorwise" else {}
        return found | {converters.name: [_CONVERTERS[run.precision]]} | own

    def means(given: Given, known: Mapping[str, Any], room: Room) -> Mapping[str, Any]:
        precision = "bf16" if given[kept] == "bfloat16" else _SHORT[given[used]]
        found = [ours for ours, theirs in _CONVERTERS.items() if theirs in given[converters]]
        if found and given[scaled] != "tensorwise":
            raise given.bad(scaled, f"prices know nothing of {given[scaled]}", "use tensorwise")
        if len(found) > 1:
            raise given.bad(converters, "it has two formats of products", "give one")
        recipe = "bf16" if given[kept] == "bfloat16" else "fp32" if precision == "fp32" else "fsdp"
        return {"precision": found[0] if found else precision, "recipe": recipe}

    return Line((kept, used, converters, scaled), says, means)


def _optimizer() -> Line:
    option = Option("optimizer.name", word("AdamW", "Adam"), "AdamW")
    return Line(
        (option,),
        lambda run, room: {option.name: "AdamW"},
        lambda given, known, room: {"optimizer": "adamw"} if given[option] else {},
    )


# What it cannot say --------------------------------------------------------------------------------------------------

_NEAREST = {"tf32": "fp32", "fp16": "bf16", "fp8_blockwise": "fp8_tensorwise", "nvfp4": "mxfp8"}


def _recompute_limit(run: Run, room: Room) -> Run:
    kind = run.recompute.partition(":")[0]
    return replace(run, recompute={"selective": "selective_op", FIRST_LAYERS: "full"}.get(kind, run.recompute))


def _stack_limit(run: Run, room: Room) -> Run:
    if run.stack == STACKS[_ASYNC] and run.tp == 1:
        return replace(run, stack=STACKS[_COMPILED])
    return run if run.stack in [STACKS[name] for name in TORCHTITAN.stacks] else replace(run, stack=STACKS[_COMPILED])


def _recipe_limit(run: Run, room: Room) -> Run:
    known = {"fp32": ("fp32",), "bf16": ("fsdp", "bf16")}.get(run.precision, ("fsdp",))
    return run if run.recipe in known else replace(run, recipe=known[0])


TORCHTITAN = Target(
    name="torchtitan",
    called="torchtitan",
    file="torchtitan.toml",
    lines=(
        _tensor(),
        equal(PP, "pp", always=True),
        equal(CP, "cp", always=True),
        _data(),
        _experts(),
        _attention(),
        _pipeline(),
        _batches(),
        equal(Option("training.seq_len", COUNT, 2048), "seq", always=True),
        _recompute(),
        _software(),
        _precision(),
        _optimizer(),
        Line((), lambda run, room: {}, lambda given, known, room: {"offload": "none"}),
    ),
    limits=(
        Limit("software", "it runs torch's kernels", _stack_limit),
        Limit("no option", "it has 1F1B, GPipe, interleaved 1F1B, ZBV and DualPipeV of torch", _schedule_limit),
        fsdp.STORAGE,
        Limit("its own way", "tensor parallelism shares sequences too", lambda run, room: replace(run, sp=run.tp > 1)),
        Limit(
            "no option",
            "attention gathers keys and values, or passes them on",
            lambda run, room: replace(run, context=GATHERED) if run.context == BY_HEADS else run,
        ),
        Limit("file", "sequences are balanced", lambda run, room: replace(run, zigzag=run.cp > 1)),
        Limit(
            "no option",
            "experts are cut as the rest, or with expert parallelism not at all",
            lambda run, room: run if run.etp == run.tp or (run.etp == 1 and run.ep > 1) else replace(run, etp=run.tp),
        ),
        Limit("no option", "it recomputes layers, or all but attention and every other product", _recompute_limit),
        Limit("no option", "nothing waits on the host but all of it", lambda run, room: replace(run, offload="none")),
        Limit("no option", "it has AdamW", lambda run, room: replace(run, optimizer="adamw")),
        Limit(
            "precision",
            "it has bf16, fp32, float8 by tensors and MXFP8",
            lambda run, room: replace(run, precision=_NEAREST.get(run.precision, run.precision)),
        ),
        Limit("precision", "parameters are fp32, or all is bf16", _recipe_limit),
    ),
    unpriced=(
        Unpriced(f"{_P}pipeline_parallel_schedule_csv", harmless=("",), refused=True),
        Unpriced("training.enable_cpu_offload", harmless=(False,), refused=True),
        Unpriced("fault_tolerance.enable", harmless=(False,), refused=True),
        Unpriced(f"{_P}disable_loss_parallel", harmless=(False,)),
        Unpriced(f"{_P}expert_parallel_comm_backend", harmless=("standard",)),
        Unpriced(f"{_P}pipeline_parallel_expert_parallel_overlap", harmless=(False,)),
        Unpriced("optimizer.early_step_in_backward", harmless=(False,)),
    ),
    stacks=(_USUAL, _COMPILED, _ASYNC),
    how="give it with --job.config_file, beside your model's sections",
)  # fmt: skip
