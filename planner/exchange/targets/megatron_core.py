"""What both Megatrons mean alike: options of Megatron-Core, under the name that each has for them.

Sources: `arguments.py` of Megatron-LM and the classes of configurations that its options are made of
(`published/megatron.json`). What its checks refuse together is a limit here.

- Ranks that are left are data parallel. `--use-distributed-optimizer` is ZeRO-1, Megatron-FSDP's strategies the others;
  instances of the distributed optimizer share copies out (`shard`).
- Experts are cut as the rest is, unless it is said otherwise. Under tensor parallelism they need sequence parallelism.
- Layers are even, or embedding and loss count as a layer each, or a layout says all.
- Cut sequences are balanced for causal attention, but not where heads travel.
- "block" recomputes the first layers of every virtual stage; "uniform" all, in units.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from typing import Any

from meshwright.ir.decisions.offload import Offload
from meshwright.ir.errors import LayersIndivisible, MeshwrightError, SettingsContradict
from meshwright.ir.names.degrees import FIRST_LAYERS, MODULES
from meshwright.ir.names.stages import shared
from meshwright.ir.target.workload import STACKS
from meshwright.planner.exchange.options import COUNT, NATURAL, NUMBER, SWITCH, TEXT, WORDS, Given, Option, word
from meshwright.planner.exchange.run import BY_HEADS, GATHERED, RING, Room, Run
from meshwright.planner.exchange.target import Limit, Line, equal
from meshwright.planner.exchange.targets import megatron_overlaps as overlaps
from meshwright.planner.exchange.targets import stages
from meshwright.planner.exchange.targets.megatron_overlaps import Named

RECIPES_ = {"megatron": True, "megatron-bf16-grads": False}
"""Whether gradients add up and travel in fp32."""
STRATEGIES = {0: "no_shard", 1: "optim", 2: "optim_grads", 3: "optim_grads_params"}
COMM = {"p2p": RING, "allgather": GATHERED, "a2a": BY_HEADS}
EIGHT = {"fp8_tensorwise": "tensorwise", "fp8_blockwise": "blockwise", "mxfp8": "mxfp8"}


def lines(named: Named) -> tuple[Line, ...]:
    """The table of a Megatron."""
    option = named.of
    return (
        equal(option("tensor_model_parallel_size", COUNT, 1), "tp", always=True),
        equal(option("pipeline_model_parallel_size", COUNT, 1), "pp", always=True),
        equal(option("context_parallel_size", COUNT, 1), "cp", always=True),
        _experts(named),
        _stages(named),
        equal(option("sequence_parallel", SWITCH, False), "sp"),
        _attention(option("cp_comm_type", WORDS, ("p2p",))),
        equal(option("micro_batch_size", COUNT, 1), "mbs", always=True),
        _global_batch(option("global_batch_size", COUNT)),
        equal(option("seq_length", COUNT), "seq", always=True),
        _storage(named),
        _recompute(named),
        _optimizer(named),
        _offload(named),
        overlaps.line(named),
    )


def _experts(named: Named) -> Line:
    ep, etp = (
        named.of("expert_model_parallel_size", COUNT, 1),
        named.of("expert_tensor_parallel_size", COUNT),
    )

    def says(run: Run, room: Room) -> Mapping[str, Any]:
        return {ep.name: run.ep, etp.name: run.etp} if room.experts else {}

    def means(given: Given, known: Mapping[str, Any], room: Room) -> Mapping[str, Any]:
        return {"ep": given[ep], "etp": given[etp] or known["tp"]}

    return Line((ep, etp), says, means)


def _attention(option: Option) -> Line:
    theirs = {kind: word_ for word_, kind in COMM.items()}

    def says(run: Run, room: Room) -> Mapping[str, Any]:
        return {option.name: theirs[run.context]} if run.cp > 1 else {}

    def means(given: Given, known: Mapping[str, Any], room: Room) -> Mapping[str, Any]:
        kinds = set(given[option])
        if len(kinds) != 1 or not kinds <= set(COMM):
            raise given.bad(
                option, "layers communicate otherwise than in one known way", f"use one of {', '.join(COMM)}"
            )
        context = COMM[kinds.pop()]
        return {"context": context, "zigzag": context != BY_HEADS}

    return Line((option,), says, means)


def _global_batch(option: Option) -> Line:
    def means(given: Given, known: Mapping[str, Any], room: Room) -> Mapping[str, Any]:
        return {"global_batch": given[option]} if given.has(option) else {}

    return Line((option,), lambda run, room: {option.name: run.global_batch}, means)


# Stages --------------------------------------------------------------------------------------------------------------


def _stages(named: Named) -> Line:
    vp = named.of("virtual_stages", COUNT, 1)
    layout = named.of("pipeline_model_parallel_layout", TEXT)
    embedding = named.of("account_for_embedding_in_pipeline_split", SWITCH, False)
    loss = named.of("account_for_loss_in_pipeline_split", SWITCH, False)
    first = named.of("first_stage_layers", NATURAL)
    last = named.of("last_stage_layers", NATURAL)
    each = named.of("layers_per_virtual_stage", COUNT) if named.has("layers_per_virtual_stage") else None

    def says(run: Run, room: Room) -> Mapping[str, Any]:
        if run.pp == 1:
            return {}
        found: dict[str, Any] = {vp.name: run.vp} if run.vp > 1 else {}
        if len(set(run.stages)) == 1:
            return found
        if run.stages == _ends(room.layers, len(run.stages)):
            return found | {embedding.name: True, loss.name: True}
        return {layout.name: stages.layout(run.stages)}

    def means(given: Given, known: Mapping[str, Any], room: Room) -> Mapping[str, Any]:
        pp = known["pp"]
        ways = [one for one in (vp, layout, each) if one is not None and given.has(one)]
        if len(ways) > 1:
            raise SettingsContradict(
                place=given.at(ways[1].name),
                cause=f"{ways[0].name} says what virtual stages are, too",
                fix="give one of them",
            )
        counts = _counts(given, pp, room)
        virtual = len(counts) // pp if layout in ways else given[vp]
        if each in ways and room.layers:
            assert each is not None
            virtual = _virtual(given, each, pp, room.layers + given[embedding] + given[loss])
            counts = _shared(given, pp * virtual, room.layers)
        return {"vp": virtual, "stages": counts, "schedule": "interleaved" if pp > 1 and virtual > 1 else "1f1b"}

    def _counts(given: Given, pp: int, room: Room) -> tuple[int, ...]:
        if given.has(layout):
            found = stages.of_layout(given[layout])
            if found is None or len(found) % pp:
                raise given.bad(
                    layout,
                    "it is not layers (t) of stages (|) between embedding (E) and loss (L), as many for every rank",
                    f"write stages as {stages.layout((2,) * pp)} does",
                )
            return found
        return _shared(given, pp * given[vp], room.layers) if room.layers and not (each and given.has(each)) else ()

    def _shared(given: Given, count: int, layers: int) -> tuple[int, ...]:
        if count == 1:
            return ()
        own = (given[first], given[last])
        if own != (None, None):
            return _of_ends(given, count, layers)
        ends = (int(given[embedding]), int(given[loss]))
        each_, rest = divmod(layers + sum(ends), count)
        if rest or each_ < max(ends):
            raise LayersIndivisible(
                place=given.place,
                cause=f"{layers} layers for {count} stages",
                fix="give stages that divide them, or a layout",
            )
        return (each_ - ends[0], *(each_,) * (count - 2), each_ - ends[1])

    def _of_ends(given: Given, count: int, layers: int) -> tuple[int, ...]:
        """Layers of the first and of the last rank's stages, the others even."""
        virtual: int = given[vp]
        pp = count // virtual
        head, tail = given[first], given[last]
        inner: int = pp - (head is not None) - (tail is not None)
        left = layers - (head or 0) - (tail or 0)
        if (inner and (left < 0 or left % inner)) or (not inner and left):
            raise LayersIndivisible(
                place=given.at(first.name if head is not None else last.name),
                cause=f"{left} layers are left for {inner} ranks between",
                fix="give numbers that leave as many for each",
            )
        ranks = [left // inner if inner else 0] * pp
        ranks[0] = head if head is not None else ranks[0]
        ranks[-1] = tail if tail is not None else ranks[-1]
        if any(one % virtual for one in ranks):
            raise LayersIndivisible(
                place=given.at(vp.name),
                cause=f"{virtual} virtual stages for {'+'.join(map(str, ranks))} layers",
                fix="give as many as divide the layers of every rank",
            )
        inside: tuple[int, ...] = tuple(one // virtual for one in ranks)
        return inside * virtual

    return Line(tuple(one for one in (vp, layout, embedding, loss, first, last, each) if one is not None), says, means)


def _virtual(given: Given, each: Option, pp: int, layers: int) -> int:
    virtual, rest = divmod(layers, pp * int(given[each]))
    if rest or not virtual:
        raise SettingsContradict(
            place=given.at(each.name),
            cause=f"{layers} layers are no whole number of times pp * {given[each]} = {pp * given[each]}",
            fix="give as many as divide the layers of a rank",
        )
    return virtual


def _ends(layers: int, count: int) -> tuple[int, ...]:
    try:
        return shared(layers, count, "ends")
    except MeshwrightError:
        return ()


# Storage -------------------------------------------------------------------------------------------------------------


def _storage(named: Named) -> Line:
    optimizer = named.of("use_distributed_optimizer", SWITCH, False)
    fsdp = named.of("use_megatron_fsdp", SWITCH, False)
    strategy = named.of("data_parallel_sharding_strategy", word(*STRATEGIES.values()), STRATEGIES[3])
    instances = named.of("num_distributed_optimizer_instances", COUNT, 1)
    torch = named.of("use_torch_fsdp2", SWITCH, False)
    whole = "torch_fsdp2_no_reshard_after_forward"
    kept = named.of(whole, SWITCH, False) if named.has(whole) else None
    levels = {name: level for level, name in STRATEGIES.items()}

    def says(run: Run, room: Room) -> Mapping[str, Any]:
        if not run.zero:
            return {}
        found: dict[str, Any] = {optimizer.name: True}
        if run.zero > 1:
            found |= {fsdp.name: True, strategy.name: STRATEGIES[run.zero]}
        return found | ({instances.name: run.copies // run.shard} if run.shard < run.copies else {})

    def means(given: Given, known: Mapping[str, Any], room: Room) -> Mapping[str, Any]:
        other = optimizer if given[optimizer] else fsdp
        if given[torch] and given[other]:
            raise SettingsContradict(
                place=given.at(torch.name),
                cause=f"{other.name} is another way to share out what copies hold",
                fix="give one of them",
            )
        if given[torch] and known["pp"] > 1:
            raise SettingsContradict(
                place=given.at(torch.name),
                cause=f"it cannot be together with a pipeline of {known['pp']}",
                fix="leave one out",
            )
        zero = 3 if given[torch] else levels[given[strategy]] if given[fsdp] else int(given[optimizer])
        copies = max(1, room.ranks // (known["tp"] * known["pp"]))
        count = given[instances]
        if copies % count:
            raise SettingsContradict(
                place=given.at(instances.name), cause=f"{count} instances for {copies} copies", fix="give a divisor"
            )
        if copies == 1:
            zero = 0
        regather = not (given[torch] and kept is not None and given[kept])
        return {"zero": zero, "shard": copies // count if zero and count > 1 else 0, "regather": regather}

    return Line(tuple(one for one in (optimizer, fsdp, strategy, instances, torch, kept) if one), says, means)


# Recomputation and the optimizer -------------------------------------------------------------------------------------


def _recompute(named: Named) -> Line:
    granularity = named.of("recompute_granularity", word("full", "selective"))
    method = named.of("recompute_method", word("uniform", "block"))
    number = named.of("recompute_num_layers", COUNT)
    modules = named.of("recompute_modules", WORDS, (MODULES[0],))
    short = named.of("recompute_activations", SWITCH, False) if named.has("recompute_activations") else None

    def says(run: Run, room: Room) -> Mapping[str, Any]:
        kind, _, more = run.recompute.partition(":")
        if kind == "full":
            return {granularity.name: "full", method.name: "uniform", number.name: 1}
        if kind == FIRST_LAYERS:
            return {granularity.name: "full", method.name: "block", number.name: int(more)}
        if kind == "selective":
            return {granularity.name: "selective", modules.name: list((more or MODULES[0]).split("+"))}
        return {}

    def means(given: Given, known: Mapping[str, Any], room: Room) -> Mapping[str, Any]:
        kind = given[granularity] or ("selective" if short and given[short] else None)
        if kind is None:
            return {"recompute": "none"}
        if kind == "selective":
            parts = given[modules]
            if not parts or not set(parts) <= set(MODULES):
                raise given.bad(modules, f"it is {' '.join(parts)}", f"use some of {' '.join(MODULES)}")
            return {"recompute": "selective" if parts == (MODULES[0],) else f"selective:{'+'.join(parts)}"}
        if given[method] is None or given[number] is None:
            missing = method if given[method] is None else number
            raise SettingsContradict(
                place=given.at(granularity.name),
                cause=f"it is full, without {missing.name}",
                fix=f"give {missing.name}",
            )
        if given[method] == "uniform" and given[number] > 1:
            raise given.bad(number, f"units of {given[number]} layers have no price", "give 1, or use block")
        most = max(known["stages"] or (room.layers,))
        whole = given[method] == "uniform" or 0 < most <= given[number]
        return {"recompute": "full" if whole else f"{FIRST_LAYERS}:{given[number]}"}

    return Line(tuple(one for one in (granularity, method, number, modules, short) if one), says, means)


def _optimizer(named: Named) -> Line:
    option = named.of("optimizer", word("adam", "sgd", "muon", "dist_muon", "lion", "soap", "adaptive_muon"), "adam")
    momentum = named.of("sgd_momentum", NUMBER, 0.9)
    precise = named.of("use_precision_aware_optimizer", SWITCH, False)
    moments = tuple(
        named.of(name, word("fp32", "fp16", "bf16", "fp8"), "fp32") for name in ("exp_avg_dtype", "exp_avg_sq_dtype")
    )
    theirs = {"adamw": "adam", "adamw-bf16": "adam", "sgd": "sgd", "momentum": "sgd", "muon": "muon"}

    def says(run: Run, room: Room) -> Mapping[str, Any]:
        found: dict[str, Any] = {option.name: theirs[run.optimizer]}
        if run.optimizer == "adamw-bf16":
            found |= {precise.name: True} | {one.name: "bf16" for one in moments}
        elif "optimizer" in run.offload:
            found[precise.name] = True
        return found | ({momentum.name: 0.0} if run.optimizer == "sgd" else {})

    def means(given: Given, known: Mapping[str, Any], room: Room) -> Mapping[str, Any]:
        kind, kept = given[option], {given[one] for one in moments}
        if kind == "adam" and kept <= {"fp32", "bf16"} and len(kept) == 1:
            return {"optimizer": "adamw" if kept == {"fp32"} else "adamw-bf16"}
        if kind == "adam":
            raise given.bad(moments[0], "moments in these formats have no price", "give fp32 or bf16 for both")
        if kind == "sgd":
            return {"optimizer": "momentum" if given[momentum] else "sgd"}
        if kind in ("muon", "dist_muon"):
            return {"optimizer": "muon"}
        raise given.bad(option, f"prices know nothing of {kind}", "use adam, sgd or muon")

    return Line((option, momentum, precise, *moments), says, means)


def _offload(named: Named) -> Line:
    states = named.of("optimizer_cpu_offload", SWITCH, False)
    blocks = named.of("cpu_offloading_num_layers", NATURAL, 0)
    whether = named.of("cpu_offloading", SWITCH, False) if named.has("cpu_offloading") else None

    def says(run: Run, room: Room) -> Mapping[str, Any]:
        asked = Offload.parse(run.offload)
        found: dict[str, Any] = {states.name: True} if asked.optimizer else {}
        if asked.activations:
            found |= {blocks.name: asked.blocks} | ({whether.name: True} if whether else {})
        return found

    def means(given: Given, known: Mapping[str, Any], room: Room) -> Mapping[str, Any]:
        count = given[blocks] if whether is None or given[whether] else 0
        return {"offload": str(Offload(optimizer=given[states], activations=count > 0, blocks=count))}

    return Line(tuple(one for one in (states, blocks, whether) if one), says, means)


# What they cannot say ------------------------------------------------------------------------------------------------


def _software_limit(run: Run, room: Room) -> Run:
    known, usual = overlaps.known_of(run), STACKS[overlaps.USUAL]
    own = replace(run.stack, name=usual.name, hides=usual.hides, dedupes=usual.dedupes, recipe=usual.recipe)
    if own != usual:
        return replace(run, stack=usual)
    asked = overlaps.flags(run.stack, known)
    asked[overlaps.TENSOR] &= run.tp > 1 and run.sp
    if asked == overlaps.flags(run.stack, known):
        return run
    return replace(run, stack=overlaps.stack_with(asked, known))


def _offload_limit(run: Run, room: Room) -> Run:
    asked = Offload.parse(run.offload)
    if asked.activations and (run.pp > 1 or run.recompute != "none"):
        asked = Offload(optimizer=asked.optimizer)
    if asked.activations:
        most = room.layers - 1
        asked = replace(asked, blocks=min(asked.blocks or most, most)) if most else Offload(optimizer=asked.optimizer)
    return replace(run, offload=str(asked))


def _recipe_limit(run: Run, room: Room) -> Run:
    known = ("fp32",) if run.precision == "fp32" else tuple(RECIPES_)
    return run if run.recipe in known else replace(run, recipe=known[0])


LIMITS = (
    Limit("software", "its kernels are Transformer Engine's", _software_limit),
    Limit("no option", "its pipelines run 1F1B, interleaved in multiples of the stages", stages.one_f_one_b),
    Limit(
        "not together",
        "Megatron-FSDP knows Adam and SGD alone",
        lambda run, room: replace(run, zero=1) if run.zero > 1 and run.optimizer == "muon" else run,
    ),
    Limit("no option", "parameters are gathered again", lambda run, room: replace(run, regather=True)),
    Limit(
        "not together",
        "experts beside tensor parallelism need sequence parallelism",
        lambda run, room: replace(run, sp=True) if run.ep > 1 and run.tp > 1 else run,
    ),
    Limit(
        "its own way",
        "sequences are balanced, but not where heads travel",
        lambda run, room: replace(run, zigzag=run.context != BY_HEADS) if run.cp > 1 else run,
    ),
    Limit(
        "no option",
        "it recomputes blocks or modules of them",
        lambda run, room: replace(run, recompute="full") if run.recompute == "selective_op" else run,
    ),
    Limit(
        "not together",
        "activations wait on the host without a pipeline or recomputation, and not those of all layers",
        _offload_limit,
    ),
    Limit(
        "no option",
        "of these optimizers it has Adam, SGD and Muon",
        lambda run, room: replace(run, optimizer="adamw") if run.optimizer == "adafactor" else run,
    ),
    Limit(
        "precision",
        "products of fp32 are in fp32",
        lambda run, room: replace(run, precision="fp32") if run.precision == "tf32" else run,
    ),
    Limit("precision", "parameters and states are kept as Megatron keeps them", _recipe_limit),
)
