"""`build` and `parallelize`: the model, and this rank's part of it."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence

from meshwright.backends.lines import WIDTH, call, indented, quoted
from meshwright.backends.subject import Piece
from meshwright.backends.torch_.emit.read.allowed import device_of
from meshwright.backends.torch_.emit.read.axes import joined
from meshwright.backends.torch_.emit.read.storage import Unit, passed
from meshwright.backends.torch_.emit.write.frame.printed import set_forwards
from meshwright.backends.torch_.emit.write.memory.recompute import runs_again
from meshwright.backends.torch_.emit.write.memory.waiting import waits
from meshwright.backends.torch_.emit.write.parts import Parts
from meshwright.backends.torch_.emit.write.steps.sections import in_order
from meshwright.backends.torch_.emit.write.steps.statistics import shares_statistics
from meshwright.backends.torch_.emit.write.steps.tied import named_again, parted
from meshwright.ir.graph.graph import Param
from meshwright.ir.quoting import attribute, literal, pattern


def build(parts: Parts) -> Iterator[str]:
    yield "def build() -> nn.Module:"
    deep = "    "
    if parts.drawn_in_parts:
        yield '    """The model without its weights: `draw` makes those of this rank\'s part, once it has one."""'
        yield '    with torch.device("meta"):'
        deep = "        "
    else:
        yield '    """The whole model; all ranks draw the same weights."""'
        yield "    torch.manual_seed(SEED)"
    kept = ".float()" if parts.precision.sums else ""
    yield f"{deep}model: nn.Module = {attribute('model_file', parts.subject.calls.factory)}(){kept}"
    if parts.precision.float8 and parts.printed is None:
        yield f"{deep}convert_to_float8_training(model, module_filter_fn=in_float8)"
    if parts.precision.low:
        yield "    for parameter in model.parameters():  # buffers stay: tables of positions lose far ones in bf16"
        yield "        parameter.data = parameter.data.to(torch.bfloat16)"
    stays = parts.drawn_in_parts or device_of(parts.subject) == "cpu"
    yield "    return model" if stays else '    return model.to("cuda")'


def in_float8(parts: Parts) -> Iterator[str]:
    """The function `in_float8`: the modules that torchao is to convert."""
    yield "def in_float8(module: nn.Module, name: str) -> bool:"
    yield '    """Whether a module multiplies in float8: products of blocks, of sizes that its kernels take."""'
    yield "    sizes = (module.in_features, module.out_features) if isinstance(module, nn.Linear) else (1,)"
    begins = quoted(parts.precision.float8)
    begins = begins if len(parts.precision.float8) == 1 else f"({begins})"
    yield f"    return name.startswith({begins}) and not any(size % 16 for size in sizes)"


def parallelize(parts: Parts) -> Iterator[str]:
    if parts.pipeline is None:
        yield f"def parallelize(model: nn.Module, mesh: DeviceMesh) -> {parts.called}:"
        yield '    """This rank\'s part of the model, in place; names of parameters stay. Returns what to call."""'
    else:
        yield "def shard(model: Stage, mesh: DeviceMesh) -> nn.Module:"
        yield '    """This rank\'s part of a stage, in place; names of parameters stay. Returns what to call."""'
    if parts.untrained:
        yield "    untrained = (  # no gradient of the loss comes to these"
        yield from (f"        {pattern(name)}," for name in parts.untrained)
        yield "    )"
        yield "    for name, parameter in model.named_parameters():"
        yield "        if any(re.fullmatch(pattern, name) for pattern in untrained):"
        yield "            parameter.requires_grad_(False)"
    yield from parted(parts)
    if parts.fused:
        yield from in_order(parts)
    if parts.printed is not None:
        yield from set_forwards(parts)
    if parts.statistics:
        yield from shares_statistics(parts)
    for again in parts.recomputed:
        yield from runs_again(parts, again)
    if parts.subject.decisions.offload.activations:
        yield from waits(parts)
    if parts.subject.compiled:
        yield from compiled(parts)
    if parts.kept.units:
        yield from sharded(parts)
        yield from named_again(parts)
    if parts.wrapped:
        group = f'mesh["{parts.axes.copied}"].get_group()'
        yield f"    return DistributedDataParallel(model, process_group={group}, broadcast_buffers=False)"
    else:
        yield "    return model"


def compiled(parts: Parts) -> Iterator[str]:
    """Lines that compile each block by itself. Hooks of `fully_shard` on it stay outside."""
    if parts.async_tp:
        yield "    # Products run in pieces, beside what the tensor axis gathers and scatters (async TP)."
        yield "    inductor._micro_pipeline_tp = True"
        yield f'    enable_symm_mem_for_group(mesh["{parts.axes.tensor}"].get_group().group_name)'
    yield "    # Each block is compiled by itself: once for all that are alike."
    for piece in parts.subject.pieces:
        if piece.repeated:
            yield from indented(parts.loop(piece))
            yield "        block.forward = torch.compile(block.forward)"


def sharded(parts: Parts) -> Iterator[str]:
    both = parts.kept.over != parts.axes.copies
    held = (*parts.axes.copies, *parts.kept.over) if parts.kept.whole else parts.axes.copies
    over = quoted(held if both else (str(parts.axes.copied),))
    yield f"    shards = mesh[{over}]{'  # copies, and the shards of each' if len(held) > 1 and both else ''}"
    options = ["mesh=shards"]
    if parts.precision.sums:
        given = f"param_dtype={parts.precision.used}, reduce_dtype={parts.precision.sums}"
        yield f"    precision = MixedPrecisionPolicy({given})"
        options.append("mp_policy=precision")
    left = whole(parts)
    beside = " and parameter.device_mesh.ndim > 1" * (parts.axes.tensor is not None)  # all are along that axis
    left += [f"isinstance(parameter, DTensor){beside}"] * parts.left_apart
    if left:
        line = f"    ignored = {{parameter for parameter in model.parameters() if {' or '.join(left)}}}"
        apart = ("parameter", "for parameter in model.parameters()", f"if {' or '.join(left)}")
        wide = ("    ignored = {", *(f"        {one}" for one in apart), "    }")
        yield from (line,) if len(line) <= WIDTH else wide
    ignoring = ["ignored_params=ignored"] if left else []
    if parts.alike:
        yield from alike_found(parts)
    root = [unit for unit in parts.kept.units if any(by_root(parts, unit))]
    shared = passed(parts.subject)
    if shared:
        yield "    # Blocks hold some of these, and others read them: the model gathers them, and so comes first."
        yield from parameters("own", (param for unit in root for param in by_root(parts, unit)))
        left_out = f"set(model.parameters()) - own{' | ignored' if left else ''}"
        yield from sharded_whole(parts, root, options, [f"ignored_params={left_out}"])
        yield from parameters("shared", (param for _, param in shared))
    others_ignoring = [f"ignored_params=shared{' | ignored' if left else ''}"] if shared else ignoring
    together: list[str] = []
    for unit in parts.kept.units:
        resharded = [*options, f"reshard_after_forward={unit.reshard}"]
        if unit.piece.repeated:
            yield from indented(parts.loop(unit.piece))
            yield from sharded_within(parts, unit, options)
            resharded += placed(parts, unit)
            yield from call(8, *shard(parts, [unit], ["block", *resharded, *others_ignoring]))
            continue
        yield from sharded_within(parts, unit, options)
        others = [path for path in unit.piece.owners() if path not in unit.inner]
        owners = [path for path in others if gathered_by(parts, unit.piece, path)]
        modules = [f"model.get_submodule({literal(path)})" for path in owners]
        resharded += [*placed(parts, unit), *ignoring]
        if parts.one_unit:
            together += modules
        elif modules:
            several = modules[0] if len(modules) == 1 else f"[{', '.join(modules)}]"
            deep = 4 if parts.pipeline is None else 8
            lines = [line[deep - 4 :] for line in call(deep, *shard(parts, [unit], [several, *resharded]))]
            yield from parts.only(unit.piece, lines)
    if together:
        again = [*options, "reshard_after_forward=True", *ignoring]
        yield from call(4, "fully_shard", [f"[{', '.join(together)}]", *again])
    if not shared:
        yield from sharded_whole(parts, root, options, ignoring)
    if parts.stays_gathered:
        yield "    whole.set_reshard_after_backward(False)  # until the last micro-batch"
    if parts.hidden and parts.kept.level == 3:
        yield "    _, first, *_ = (unit for unit in model.modules() if isinstance(unit, FSDPModule))"
        yield "    first.set_modules_to_backward_prefetch([first])  # and nothing of another micro-batch"
    if parts.added:
        yield "    for module in model.modules():  # gradients are added up, not averaged"
        yield "        if isinstance(module, FSDPModule):"
        yield "            module.set_gradient_divide_factor(1.0)"
        yield "            module.set_force_sum_reduction_for_comms(True)"
    if parts.cast_whole:
        yield "    for module in list(model.modules()):"
        yield "        read_cast(module)"


def by_root(parts: Parts, unit: Unit) -> Iterator[Param]:
    """Parameters of a unit outside of blocks that the model as a whole gathers."""
    for path, params in () if unit.piece.repeated else unit.piece.held.items():
        if path not in unit.inner and not gathered_by(parts, unit.piece, path):
            yield from params


def parameters(name: str, params: Iterable[Param]) -> Iterator[str]:
    """A set of parameters of the model."""
    yield f"    {name} = {{"
    yield from dict.fromkeys(f"        model.get_parameter({literal(param.path)})," for param in params)
    yield "    }"


def sharded_whole(parts: Parts, root: Sequence[Unit], options: list[str], ignoring: list[str]) -> Iterator[str]:
    """Lines that shard the model as a whole, which is the last unit, except where it holds what blocks hold."""
    kept = root[0].reshard if root else False
    options = [*options, f"reshard_after_forward={kept}", *placed_by_root(parts, root), *ignoring]
    name, options = shard(parts, root, ["model", *options])
    yield from call(4, f"whole = {name}" if parts.stays_gathered else name, options)


def shard(parts: Parts, units: Sequence[Unit], given: list[str]) -> tuple[str, list[str]]:
    """Lines that shard the parameters of units, with their options."""
    pieces = [unit.piece for unit in units]
    if any(parts.copies.alike(piece, param.path) for piece in pieces for param in piece.graph.params):
        return "shard_alike", [*given, "alike=alike", "over=over"]
    return "fully_shard", given


def alike_found(parts: Parts) -> Iterator[str]:
    """Parameters whose gradients are alike on ranks, and the axes that shard."""
    yield "    alike = {"
    yield "        parameter: axes"
    yield "        for name, parameter in model.named_parameters(remove_duplicate=False)"
    yield "        for pattern, axes in ALIKE.items()"
    yield "        if re.fullmatch(pattern, name)"
    yield "    }"
    yield f"    over = [{', '.join(f'mesh[{literal(axis)}]' for axis in parts.kept.over)}]"


def gathered_by(parts: Parts, piece: Piece, path: str) -> bool:
    """Whether a module outside of blocks can gather its parameters: it is called, and belongs to one unit. A list of
    parameters is not called, and another module may read them; these are gathered by the model as a whole."""
    called = parts.subject.calls.called
    if path in parts.around_units:
        return False
    if not path or not called:
        return bool(path)
    readers = (piece.graph.readers.get(param.value, ()) for param in piece.held.get(path, ()))
    reads = {piece.graph.ops[index].module for one in readers for index, _ in one}
    return path in called and all(module == path or module.startswith(f"{path}.") for module in reads)


def placed(parts: Parts, unit: Unit, within: str = "") -> list[str]:
    """Options of `fully_shard` for parameters, those of a unit `within` this one or its own, that are not cut along the
    first dimension."""
    held = {param.path: own_name(unit.piece, param) for param in unit.piece.graph.params}
    by_root = {
        param.path
        for param in unit.piece.graph.params
        if not (unit.piece.repeated or gathered_by(parts, unit.piece, unit.piece.owner(param)))
    }
    found = {held[path]: dim for path, dim in unit.along.items() if within == unit.within(path) and path not in by_root}
    holder = "block" if unit.piece.repeated else "model"
    table = ", ".join(f"{literal(path)}: {dim}" for path, dim in found.items())
    return [f"shard_placement_fn=along({holder}, {{{table}}})"] if found else []


def placed_by_root(parts: Parts, units: Sequence[Unit]) -> list[str]:
    """Options of `fully_shard` for parameters that the model as a whole gathers."""
    found = {
        own_name(unit.piece, param): unit.along[param.path]
        for unit in units
        for param in unit.piece.graph.params
        if param.path in unit.along and not gathered_by(parts, unit.piece, unit.piece.owner(param))
    }
    table = ", ".join(f"{literal(path)}: {dim}" for path, dim in found.items())
    return [f"shard_placement_fn=along(model, {{{table}}})"] if found else []


def own_name(piece: Piece, param: Param) -> str:
    """The name of a parameter, relative to the instance, under which a module of the piece holds it."""
    return next((path for path in param.paths if path.rpartition(".")[0] in piece.held), param.path)


def along() -> Iterator[str]:
    """The function `along`: the dimension in which a parameter is cut, where that is not always the first one."""
    yield "def along(module: nn.Module, dims: dict[str, int]) -> Callable[[nn.Parameter], Shard]:"
    yield '    """The dimension along which a parameter is cut into shards: the first one, but for some."""'
    yield "    held = module.named_parameters(remove_duplicate=False)  # of all stages, one holds it"
    yield "    other = {id(parameter): dims[name] for name, parameter in held if name in dims}"
    yield "    return lambda parameter: Shard(other.get(id(parameter), 0))"


def whole(parts: Parts) -> list[str]:
    """Conditions on parameters of which `fully_shard` makes no shards."""
    return ["not parameter.requires_grad"] * parts.kept.frozen + ["not parameter.ndim"] * parts.kept.scalars


def sharded_within(parts: Parts, unit: Unit, options: Sequence[str]) -> Iterator[str]:
    """Parts of a unit that have copies along fewer axes than the rest of it, first; `options` begin with the mesh."""
    holder, deep = ("block", 8) if unit.piece.repeated else ("model", 4)
    for path, over in unit.inner.items():
        given = [f'mesh=mesh["{joined(over)}"]', *options[1:], f"reshard_after_forward={unit.reshard}"]
        given += placed(parts, unit, path)
        lines = call(deep, "fully_shard", [f"{holder}.get_submodule({literal(path)})", *given])
        yield from lines if unit.piece.repeated else parts.only(unit.piece, lines)


def read_cast(parts: Parts) -> Iterator[str]:
    """The function `read_cast`, for parameters that `fully_shard` ignores, and therefore does not cast."""
    yield "def read_cast(module: nn.Module) -> None:"
    yield f'    """Whoever reads what a module holds whole gets it in {parts.precision.used.removeprefix("torch.")}."""'
    yield ""
    yield "    def read(name: str, module: nn.Module) -> Tensor:"
    yield f"        return cast(Tensor, module._parameters[name]).to({parts.precision.used})"
    yield ""
    held = " or ".join(whole(parts))
    yield f"    whole = [name for name, parameter in module.named_parameters(recurse=False) if {held}]"
    yield "    if whole:"
    yield "        reads = {name: property(partial(read, name)) for name in whole}"
    yield "        module.__class__ = type(type(module).__name__, (type(module),), reads)"
