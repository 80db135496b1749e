"""MaxText: settings in YAML, or as `key=value` words.

Source: `published/maxtext.json`, and the rules of its `base.yml` for what lies along which axis.

- Every axis has a size inside of a slice (`ici_`) and between slices (`dcn_`); its degree is their product. What is
  written takes a host for a slice, or what joins several (a TPU pod); axes are laid out from the innermost (tensors) to
  the outermost (stages), as ranks are.
- Batches lie along data, fsdp and expert; parameters along fsdp, context and expert, so these are copies that share
  (ZeRO-3). Along data they are whole, or the optimizer's states alone are shared (`shard_optimizer_over_data`).
- `tensor_sequence` is tensor parallelism that shares sequences too.
- A pipeline runs all forward before all backward, in one loop; stages have as many layers each.
- The batch of a device is that of all devices, over their number.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import replace
from fractions import Fraction
from math import gcd, prod
from typing import Any

from meshwright.ir.errors import SettingsContradict
from meshwright.ir.names import CONTEXT
from meshwright.ir.names.degrees import FIRST_LAYERS
from meshwright.ir.target.workload import STACKS
from meshwright.planner.exchange.options import COUNT, INTEGER, NUMBER, SWITCH, TEXT, Given, Option, word
from meshwright.planner.exchange.run import BY_HEADS, Room, Run
from meshwright.planner.exchange.target import Limit, Line, Target, Unpriced, equal
from meshwright.planner.exchange.targets import stages

AXES = ("tensor", "tensor_sequence", "context", "expert", "fsdp", "data", "pipeline")
"""From the innermost to the outermost."""
_LEFT = {"ici": "fsdp", "dcn": "data"}
"""The axes that take what is left, unless it is said otherwise."""


def _axes(run: Run) -> dict[str, int]:
    """The degree of every axis."""
    sharing = run.shard // (run.cp * run.ep) if run.zero == 3 else 1
    return {
        "tensor": 1 if run.sp else run.tp,
        "tensor_sequence": run.tp if run.sp else 1,
        "context": run.cp,
        "expert": run.ep,
        "fsdp": sharing,
        "data": run.dp // (sharing * run.ep),
        "pipeline": run.pp,
    }


def _ranks() -> Line:
    options = {
        (where, axis): Option(f"{where}_{axis}_parallelism", INTEGER, -1 if _LEFT[where] == axis else 1)
        for where in _LEFT
        for axis in AXES
    }
    states = Option("shard_optimizer_over_data", SWITCH, False)

    def says(run: Run, room: Room) -> Mapping[str, Any]:
        left, found = min(room.per_slice or room.per_host, room.ranks), dict[str, int]()
        between = dict[str, int]()
        for axis, degree in _axes(run).items():
            inside = gcd(degree, left)
            left //= inside
            found[options["ici", axis].name] = inside
            between[options["dcn", axis].name] = degree // inside
        shown = {name: size for name, size in {**found, **between}.items() if size > 1 or name.endswith(tuple(_always))}
        return shown | ({states.name: True} if run.zero == 1 else {})

    def means(given: Given, known: Mapping[str, Any], room: Room) -> Mapping[str, Any]:
        inside, between = ({axis: options[where, axis] for axis in AXES} for where in ("ici", "dcn"))
        slices = _slices(given, inside, between, room)
        found = dict.fromkeys(AXES, 1)
        for of, whole in ((inside, room.ranks // slices), (between, slices)):
            for axis, size in _sizes(given, of, whole):
                found[axis] *= size
        if found["tensor"] > 1 and found["tensor_sequence"] > 1:
            raise SettingsContradict(
                place=given.at(options["ici", "tensor_sequence"].name),
                cause="tensors are cut by another axis, too, and prices know one",
                fix="use tensor or tensor_sequence",
            )
        tp, cp, ep = found["tensor"] * found["tensor_sequence"], found["context"], found["expert"]
        share = found["fsdp"] * cp * ep
        dp = found["data"] * found["fsdp"] * ep
        zero = 3 if share > 1 else int(given[states] and dp > 1)
        return {
            "tp": tp, "sp": found["tensor_sequence"] > 1, "cp": cp, "ep": ep, "etp": tp, "pp": found["pipeline"],
            "dp": dp, "zero": zero, "shard": share if zero == 3 and found["data"] > 1 else 0, "regather": True,
        }  # fmt: skip

    return Line((*options.values(), states), says, means)


def _slices(given: Given, inside: Mapping[str, Option], between: Mapping[str, Option], room: Room) -> int:
    """How many slices there are: as the sizes say, where none is left open; else hosts."""
    sizes, gaps = ([given[option] for option in of.values()] for of in (inside, between))
    if min(gaps) > 0:
        found = prod(gaps)
    elif min(sizes) > 0:
        found = room.ranks // prod(sizes)
    else:
        found = room.ranks // min(room.per_slice or room.per_host, room.ranks)
    return found if found and room.ranks % found == 0 else max(1, room.ranks // room.per_host)


_always = ("ici_fsdp_parallelism", "dcn_data_parallelism")


def _sizes(given: Given, options: Mapping[str, Option], whole: int) -> Iterator[tuple[str, int]]:
    """The sizes of axes inside of slices, or between them; the one that is -1 takes what is left."""
    sizes = {axis: given[option] for axis, option in options.items()}
    known = 1
    for axis, size in sizes.items():
        if size == 0:
            raise given.bad(options[axis], "it is 0")
        known *= max(1, size)
    open_ = [axis for axis, size in sizes.items() if size == -1]
    if len(open_) > 1:
        raise SettingsContradict(
            place=given.at(options[open_[0]].name),
            cause=f"{options[open_[1]].name} is -1, too",
            fix="leave one of them open",
        )
    if (open_ and whole % known) or (not open_ and known != whole):
        place = next((option for option in options.values() if given.has(option)), options[AXES[0]])
        raise SettingsContradict(
            place=given.at(place.name),
            cause=f"the axes {place.name.partition('_')[0]} multiply to {known}, and there are {whole} "
            f"{'ranks in each slice' if place.name.startswith('ici') else 'slices'}",
            fix=f"give sizes that multiply to {whole}, or leave one at -1",
        )
    for axis, size in sizes.items():
        yield axis, whole // known if size == -1 else size


def _pipeline() -> Line:
    each = Option("num_layers_per_pipeline_stage", COUNT, 1)
    repeats = Option("num_pipeline_repeats", INTEGER, -1)

    def says(run: Run, room: Room) -> Mapping[str, Any]:
        if run.pp == 1:
            return {}
        return {each.name: run.stages[0], repeats.name: run.vp}

    def means(given: Given, known: Mapping[str, Any], room: Room) -> Mapping[str, Any]:
        pp = known["pp"]
        if pp == 1:
            return {"vp": 1, "schedule": "1f1b", "stages": ()}
        vp, rest = divmod(room.layers, pp * given[each]) if room.layers else (1, 0)
        vp = given[repeats] if given[repeats] > 0 and not room.layers else vp
        if room.layers and (rest or (given[repeats] > 0 and given[repeats] != vp)):
            raise SettingsContradict(
                place=given.at(each.name),
                cause=f"{room.layers} layers are not stages * layers of each * repeats = {pp} * {given[each]} * "
                f"{given[repeats] if given[repeats] > 0 else vp}",
                fix="give numbers that multiply to the layers",
            )
        return {"vp": vp, "schedule": "gpipe", "stages": (given[each],) * (pp * vp) if room.layers else ()}

    return Line((each, repeats), says, means)


def _batches() -> Line:
    each = Option("per_device_batch_size", NUMBER, 12.0)
    times = Option("gradient_accumulation_steps", COUNT, 1)
    parts = Option("num_pipeline_microbatches", INTEGER, -1)

    def says(run: Run, room: Room) -> Mapping[str, Any]:
        if run.pp == 1:
            return {each.name: run.dp * run.mbs / room.ranks, times.name: run.microbatches}
        return {each.name: run.global_batch / room.ranks, parts.name: run.microbatches}

    def means(given: Given, known: Mapping[str, Any], room: Room) -> Mapping[str, Any]:
        once = Fraction(given[each]).limit_denominator(room.ranks) * room.ranks
        pp = known["pp"]
        count = 1 if pp == 1 else pp if given[parts] == -1 else given[parts]
        if once.denominator != 1 or not once or once % (known["dp"] * count):
            raise given.bad(
                each,
                f"{float(once):g} sequences of {room.ranks} devices for {known['dp']} copies * {count} micro-batches",
                "give one that they divide",
            )
        if pp > 1 and given[times] > 1:
            raise given.bad(times, f"the pipeline would run {given[times]} times a step, which has no price", "give 1")
        return {
            "mbs": int(once) // (known["dp"] * count),
            "microbatches": count * given[times],
            "global_batch": int(once) * given[times],
        }

    return Line((each, times, parts), says, means)


def _attention() -> Line:
    kind = Option("context_parallel_strategy", word(*CONTEXT, "usp"), CONTEXT[0])
    balance = Option("context_parallel_load_balance", SWITCH, True)

    def says(run: Run, room: Room) -> Mapping[str, Any]:
        return {kind.name: run.context, balance.name: run.zigzag} if run.cp > 1 else {}

    def means(given: Given, known: Mapping[str, Any], room: Room) -> Mapping[str, Any]:
        if given[kind] not in CONTEXT:
            raise given.bad(kind, f"prices know nothing of {given[kind]}", f"use one of {', '.join(CONTEXT)}")
        return {"context": given[kind], "zigzag": given[balance] and known["cp"] > 1 and given[kind] != BY_HEADS}

    return Line((kind, balance), says, means)


_MINIMAL = ("minimal", "minimal_flash", "minimal_with_context")


def _recompute() -> Line:
    option = Option("remat_policy", TEXT, "full")
    theirs = {"full": "full", "none": "none", "selective_op": "minimal_with_context"}

    def means(given: Given, known: Mapping[str, Any], room: Room) -> Mapping[str, Any]:
        said = given[option]
        if said not in ("full", "none", *_MINIMAL):
            raise given.bad(option, f"prices know nothing of {said}", f"use full, none or {', '.join(_MINIMAL)}")
        return {"recompute": "selective_op" if said in _MINIMAL else said}

    return Line((option,), lambda run, room: {option.name: theirs[run.recompute]}, means)


_OPTIMIZERS = {"adamw": "adamw", "adam_pax": "adamw", "sgd": "sgd", "muon": "muon"}


def _optimizer() -> Line:
    option = Option("opt_type", word(*_OPTIMIZERS), "adamw")
    host = Option("optimizer_memory_host_offload", SWITCH, False)

    def says(run: Run, room: Room) -> Mapping[str, Any]:
        return {option.name: run.optimizer} | ({host.name: True} if run.offload == "optimizer" else {})

    def means(given: Given, known: Mapping[str, Any], room: Room) -> Mapping[str, Any]:
        return {"optimizer": _OPTIMIZERS[given[option]], "offload": "optimizer" if given[host] else "none"}

    return Line((option, host), says, means)


_SHORT = {"bfloat16": "bf16", "float32": "fp32"}
_EIGHT = {"fp8": "fp8_tensorwise", "fp8_full": "fp8_tensorwise"}


def _software() -> Line:
    used, kept = Option("dtype", word(*_SHORT), "bfloat16"), Option("weight_dtype", word(*_SHORT), "float32")
    eight = Option("quantization", TEXT, "")
    kernel = Option("attention", word("autoselected", "dot_product", "flash", "cudnn_flash_te"), "autoselected")

    def says(run: Run, room: Room) -> Mapping[str, Any]:
        found: dict[str, Any] = {used.name: "float32" if run.precision == "fp32" else "bfloat16"}
        found |= {kept.name: "bfloat16" if run.recipe == "bf16" else "float32"}
        found |= {eight.name: "fp8"} if run.precision == "fp8_tensorwise" else {}
        return found | {kernel.name: "dot_product" if run.stack.attention == "math" else "flash"}

    def means(given: Given, known: Mapping[str, Any], room: Room) -> Mapping[str, Any]:
        if given[eight] and given[eight] not in _EIGHT:
            raise given.bad(eight, f"prices know nothing of {given[eight]}", f"use one of {', '.join(_EIGHT)}")
        return {
            "precision": _EIGHT.get(given[eight], _SHORT[given[used]]),
            "recipe": "bf16" if given[kept] == "bfloat16" else "fp32",
            "stack": STACKS["jax" if given[kernel] == "dot_product" else "maxtext"],
        }

    return Line((used, kept, eight, kernel), says, means)


# What it cannot say --------------------------------------------------------------------------------------------------


def _stack_limit(run: Run, room: Room) -> Run:
    return run if run.stack in [STACKS[name] for name in MAXTEXT.stacks] else replace(run, stack=STACKS["maxtext"])


def _pipeline_limit(run: Run, room: Room) -> Run:
    if run.pp == 1:
        return run
    if room.layers % (run.pp * run.vp) and run.vp > 1:
        run = stages.restaged(run, room, vp=1, schedule="gpipe")
    if room.layers % run.pp:
        return stages.unpiped(run, room)
    each = run.mbs * run.microbatches
    counts = [count for count in range(run.pp, each + 1, run.pp) if each % count == 0]
    if not counts:
        return stages.unpiped(run, room)
    count = min(counts, key=lambda one: (abs(one - run.microbatches), one))
    run = stages.restaged(run, room, vp=run.vp, schedule="gpipe")
    return replace(run, microbatches=count, mbs=each // count)


def _storage_limit(run: Run, room: Room) -> Run:
    least = run.cp * run.ep
    if run.zero == 2:
        run = replace(run, zero=3)
    if run.zero < 3 and least > 1:
        run = replace(run, zero=3, shard=least)
    if run.zero == 3 and (run.shard % least or run.copies % run.shard):
        run = replace(run, shard=run.copies)
    return replace(run, shard=run.copies) if run.zero == 1 else run


def _expert_limit(run: Run, room: Room) -> Run:
    if not room.experts:
        return run
    return replace(run, etp=run.tp, ep=gcd(run.ep, run.dp))


def _precision_limit(run: Run, room: Room) -> Run:
    nearest = {"tf32": "fp32", "fp32": "fp32", "bf16": "bf16", "fp16": "bf16"}
    precision = nearest.get(run.precision, "fp8_tensorwise")
    recipe = run.recipe if run.recipe == "bf16" and precision != "fp32" else "fp32"
    return replace(run, precision=precision, recipe=recipe)


_NEAREST = {"momentum": "sgd", "adamw-bf16": "adamw", "adafactor": "adamw"}


def _recompute_limit(run: Run, room: Room) -> Run:
    kind = run.recompute.partition(":")[0]
    return replace(run, recompute={"selective": "selective_op", FIRST_LAYERS: "full"}.get(kind, run.recompute))


MAXTEXT = Target(
    name="maxtext",
    called="MaxText",
    file="maxtext.yml",
    lines=(
        _ranks(),
        _pipeline(),
        _batches(),
        equal(Option("max_target_length", COUNT, 2048), "seq", always=True),
        _attention(),
        _recompute(),
        _optimizer(),
        _software(),
    ),
    limits=(
        Limit("software", "it is compiled by XLA", _stack_limit),
        Limit("no option", "its pipelines run all forward first, in multiples of equal stages", _pipeline_limit),
        Limit("its own way", "experts are shared by copies, and cut as the rest", _expert_limit),
        Limit("its own way", "copies along fsdp, context and expert share everything, others states", _storage_limit),
        Limit("its own way", "parameters are gathered again", lambda run, room: replace(run, regather=True)),
        Limit(
            "its own way",
            "heads are shared without balance",
            lambda run, room: replace(run, zigzag=False) if run.context == BY_HEADS else run,
        ),
        Limit(
            "no option",
            "it recomputes layers, or all but products",
            _recompute_limit,
        ),
        Limit(
            "no option",
            "states can wait on the host, activations by tensors alone",
            lambda run, room: replace(run, offload="optimizer" if "optimizer" in run.offload else "none"),
        ),
        Limit(
            "no option",
            "of these optimizers it has AdamW, SGD and Muon",
            lambda run, room: replace(run, optimizer=_NEAREST.get(run.optimizer, run.optimizer)),
        ),
        Limit("precision", "it has bf16, fp32 and fp8, with all in fp32 or all in bf16", _precision_limit),
    ),
    unpriced=(
        Unpriced("ici_fsdp_transpose_parallelism", harmless=(1,), refused=True),
        Unpriced("dcn_fsdp_transpose_parallelism", harmless=(1,), refused=True),
        Unpriced("ici_sequence_parallelism", harmless=(1,), refused=True),
        Unpriced("dcn_sequence_parallelism", harmless=(1,), refused=True),
        Unpriced("ici_context_usp_ulysses_parallelism", harmless=(1,), refused=True),
        Unpriced("dcn_context_usp_ulysses_parallelism", harmless=(1,), refused=True),
        Unpriced("ici_autoregressive_parallelism", harmless=(1,), refused=True),
        Unpriced("ici_diloco_parallelism", harmless=(1,), refused=True),
        Unpriced("dcn_diloco_parallelism", harmless=(1,), refused=True),
        Unpriced("parameter_memory_host_offload", harmless=(False,), refused=True),
        Unpriced("pipeline_parallel_layers", harmless=(-1,), refused=True),
        Unpriced("enable_rampup_batch_size", harmless=(False,), refused=True),
        Unpriced("custom_mesh", harmless=("",), refused=True),
        Unpriced("pipeline_delay_activation_forwarding", harmless=(False,)),
        Unpriced("pipeline_fsdp_ag_once", harmless=(False,)),
        Unpriced("pipeline_fsdp_ag_per_repeat", harmless=(False,)),
        Unpriced("use_batch_split_schedule", harmless=(False,)),
        Unpriced("use_ring_of_experts", harmless=(False,)),
        Unpriced("capacity_factor", harmless=(-1.0, -1)),
    ),
    stacks=("maxtext", "jax"),
    layers="base_num_decoder_layers",
    how="name it in place of configs/base.yml, with base_config: base.yml in it, or give its lines as words",
)  # fmt: skip
