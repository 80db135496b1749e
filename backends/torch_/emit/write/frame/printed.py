"""Functions of printed bodies, and their use in `parallelize`."""

from __future__ import annotations

from collections.abc import Iterator

from meshwright.backends.lines import fitted, head, indented, quoted
from meshwright.backends.printing import Function
from meshwright.backends.printing.naming import snake
from meshwright.backends.subject import Piece
from meshwright.backends.torch_.emit.printed.bodies import Printed, PrintedBody, Rings
from meshwright.backends.torch_.emit.printed.constants import Made
from meshwright.backends.torch_.emit.printed.language.dialect import TERMS
from meshwright.backends.torch_.emit.printed.language.moves import used_by
from meshwright.backends.torch_.emit.printed.language.ring import ring
from meshwright.backends.torch_.emit.printed.naming import FORWARD, axes_in
from meshwright.backends.torch_.emit.printed.passes import Pass
from meshwright.backends.torch_.emit.read.axes import joined
from meshwright.backends.torch_.emit.write.frame.imports import names_in
from meshwright.backends.torch_.emit.write.parts import Parts
from meshwright.ir.quoting import identifier, literal, pattern, said


def table_of(parts: Parts) -> str:
    """The name of the table of parameters that these stages cut."""
    return f"CUT{'_' * bool(parts.kind)}{parts.kind.upper()}"


def printed_constants(parts: Parts, printed: Printed) -> Iterator[str]:
    """The constants `CUT` and `ALIKE`, and numbers in which blocks differ."""
    if printed.cutting:
        yield f"{table_of(parts)} = {{  # parameters by name: the dimensions, by axis, of which each rank has its part"
        for name, dims in printed.cuts.items():
            by_axis = ", ".join(f"{literal(axis)}: {dim}" for axis, dim in dims.items())
            yield f"    {pattern(name)}: {{{by_axis}}},"
        yield "}"
    if printed.alike:
        yield "ALIKE = {  # parameters by name: along which axes all ranks compute the whole gradient"
        for name, axes in printed.alike.items():
            yield f"    {pattern(name)}: ({quoted(axes)}{',' * (len(axes) == 1)}),"
        yield "}"
    yield from tables(parts, printed)


def otherwise(parts: Parts) -> Iterator[str]:
    """The constant `SUMMED`."""
    yield "SUMMED = {  # parameters by name: along which axes gradients add up, where not along all"
    yield from (f"    {pattern(name)}: {literal(joined(axes))}," for name, axes in parts.summed_otherwise.items())
    yield "}"


def functions(parts: Parts) -> Iterator[Iterator[str]]:
    """All functions of a printed model: those that torch lacks, those of bodies, and the model's."""
    printed = parts.printed
    assert printed is not None
    texts = [function(printed, body, name, one) for body in printed.bodies.values() for name, one in body.functions()]
    texts = [*(list(constant(name, one)) for name, one in printed.constants.items()), *texts]
    if parts.pipeline is None:
        texts.append(list(model(printed)))
    else:
        stages = [one for one in parts.pipeline.stages if one.index in parts.subject.only or not parts.by_stage]
        texts += [list(stage.lines) for stage in stages]  # for what they use
    used = names_in("\n".join(line for text in texts for line in text))
    yield from (iter(text.split("\n")) for text in used_by(used, ring_of(printed)))
    if printed.cutting:
        yield iter((DISTRIBUTE + BUFFERS * printed.cuts_buffers).split("\n"))
    shown = texts if parts.pipeline is None else texts[: -len(stages)]
    yield from (iter(text) for text in shown)


def ring_of(printed: Printed) -> str:
    """The text of ring attention."""
    graphs = [body.piece.graph for body in printed.bodies.values()]
    attends = [graph.operand_types(op) for graph in graphs for op in graph.ops if op.kind == "attention"]
    narrow = any(value.shape[-1] < key.shape[-1] for _, key, value, *_ in attends)
    rings = Rings.of(printed.subject)
    return ring(rings.kernel, masked=rings.masked, narrow=narrow, zigzag=rings.zigzag)


def tables(parts: Parts, printed: Printed) -> Iterator[str]:
    """The numbers in which blocks differ, by the number of the block."""
    for piece, body in printed.pieces:
        for name in body.numbers if piece.repeated else ():
            given = numbers_by_block(piece, body, name)
            if not in_words(given):
                items = ", ".join(f"{block}: {number}" for block, number in given.items())
                yield from fitted(f"{numbers_table(parts, piece, name)} = {{{items}}}")


def numbers_table(parts: Parts, piece: Piece, name: str) -> str:
    """The name of the table of a number in which blocks of a piece differ."""
    at = [one.plan.body for one in parts.subject.pieces[: parts.subject.pieces.index(piece)]].count(piece.plan.body)
    which = f"_{at + 1}" if at else ""
    return f"{identifier(snake(piece.plan.body))}_{name}{which}{'_' * bool(parts.kind)}{parts.kind}".upper()


def numbers_by_block(piece: Piece, body: PrintedBody, name: str) -> dict[int, str]:
    """What every block of a piece is given by a name, by the block's number."""
    each = piece.segment.numbers or (None,) * len(piece.segment.paths)
    numbers = piece.instances().numbers
    return {block: body.number(name, own) for block, own in zip(numbers, each, strict=True)}


def in_words(given: dict[int, str]) -> str:
    """What blocks are given, where one expression says it: the same for all, or the number of the block."""
    if len(set(given.values())) == 1:
        return next(iter(given.values()))
    return "index" if all(number == str(block) for block, number in given.items()) else ""


def function(printed: Printed, body: PrintedBody, name: str, one: Function) -> list[str]:
    given = body.given(one, printed)
    arguments = ["self: Any", *(f"{argument}: Tensor" for argument in one.arguments)]
    named = ["*", *(typed(name, body) for name in given)] if given else []
    result = {0: "None", 1: "Tensor"}.get(len(one.returns), f"tuple[{', '.join(['Tensor'] * len(one.returns))}]")
    what = f"{body.piece.plan.body}{f', module {one.path},' if one.path else ''}"
    lines = [*head(name, [*arguments, *named], result), f'    """{said(what)} on this rank\'s shards."""']
    code = returned(list(one.lines), list(one.returns))
    return [*lines, *(text for line in code for text in fitted(f"    {line}"))]


def constant(name: str, made: Made) -> Iterator[str]:
    """The function of a constant."""
    yield f"def {name}({made.given}{': Any' * bool(made.given)}) -> Tensor:"
    for line in (*made.lines, f"return {made.returns}"):
        yield from fitted(f"    {line}")


def typed(name: str, body: PrintedBody | None = None) -> str:
    """A keyword argument with its type."""
    if body is not None and name in body.numbers:
        return f"{name}: {'int' if all(map(is_whole, body.numbers[name].values())) else 'float'}"
    return f"{name}: {'Any' if name == 'model' else 'Tensor' if name == TERMS else 'DeviceMesh'}"


def is_whole(number: str) -> bool:
    return number.removeprefix("-").isdecimal()


def returned(lines: list[str], returns: list[str]) -> list[str]:
    """Lines that return values; a value that is made last is returned as an expression."""
    if len(returns) == 1 and lines and lines[-1].startswith(f"{returns[0]} = "):
        return [*lines[:-1], f"return {lines[-1].partition(' = ')[2]}"]
    return [*lines, f"return {', '.join(returns)}"] if returns else lines


def model(printed: Printed) -> Iterator[str]:
    """The model's forward pass."""
    lines = returned(*of_model(printed))
    axes = axes_of_model(printed)
    arguments = ["self: Any", *(f"{name}: Tensor" for name in printed.entry_names.values())]
    named = ["*", *map(typed, axes)] if axes else []
    yield from head(FORWARD, [*arguments, *named], "Tensor")
    yield '    """The loss of a batch, of which each rank has its part."""'
    yield from (f"    {line}" for line in lines)


def of_model(printed: Printed) -> tuple[list[str], list[str]]:
    """The lines of the model's forward pass, and the values that it returns."""
    run = Pass(printed, 0, len(list(printed.subject.fold.calls())))
    return list(run.lines()), [run.name(run.loss)]


def set_forwards(parts: Parts) -> Iterator[str]:
    """Lines of `parallelize` that set forward passes."""
    printed = parts.printed
    assert printed is not None
    if printed.cutting:
        yield f"    distribute({', '.join(('model', 'mesh', table_of(parts), *map(literal, printed.tensor)))})"
    for axis in printed.named_axes:
        if axis not in ("model", TERMS) and axis in used_axes(printed, whole=parts.pipeline is None):
            yield f'    {axis} = mesh["{axis}"]'
    for piece, body in printed.pieces:
        lines = []
        if piece.repeated and parts.kept.units and not parts.subject.calls_blocks(piece):
            lines.append("# The model never calls it, and torch takes no list without a forward pass for a unit.")
            lines.append(f'block.__class__ = type("Block", (type(block),), {{"forward": {body.name}}})')
        for name, one in body.functions():
            if not one.path and not piece.repeated:
                continue
            holder = "block" if piece.repeated else "model"
            at = f"{holder}.get_submodule({literal(one.path)})" if one.path else holder
            given = "".join(f", {axis}={said}" for axis, said in given_to(parts, piece, body, one))
            if one.path:
                lines.append(f"module = {at}")
                at = "module"
            lines.append(f"{at}.forward = partial({name}, {at}{given})")
        if piece.repeated:
            yield from indented(parts.loop(piece))
            yield from (text for line in lines for text in fitted(f"        {line}"))
        elif lines:
            yield from parts.only(piece, indented(tuple(lines)))
    if parts.pipeline is not None:
        return
    given = "".join(f", {axis}={axis}" for axis in axes_of_model(printed) if axis != TERMS)
    yield f"    model.forward = partial({FORWARD}, model{given})"


def given_to(parts: Parts, piece: Piece, body: PrintedBody, one: Function) -> Iterator[tuple[str, str]]:
    """The keyword arguments of a function of a piece, and what `parallelize` gives for each."""
    assert parts.printed is not None
    for name in body.given(one, parts.printed):
        if name not in body.numbers:
            yield name, name
        elif piece.repeated:
            yield name, in_words(numbers_by_block(piece, body, name)) or f"{numbers_table(parts, piece, name)}[index]"
        else:
            yield name, body.number(name, *(piece.segment.numbers or (None,)))


def axes_of_model(printed: Printed) -> list[str]:
    """The mesh axes that the model's forward pass is given."""
    return axes_in(of_model(printed)[0], printed.named_axes)


def used_axes(printed: Printed, *, whole: bool) -> set[str]:
    """Arguments that `parallelize` gives to functions."""
    found = set(axes_of_model(printed)) if whole else set()
    for body in printed.bodies.values():
        for one in body.function.all():
            if not body.piece.repeated and not one.path:
                continue
            found |= set(axes_in(one.lines, printed.named_axes))
    return found


DISTRIBUTE = '''\
def distribute(model: nn.Module, mesh: DeviceMesh, cut: dict[str, dict[str, int]], *always: str) -> None:
    """Make DTensors of the parameters that are cut, along the axes that `cut` says by name, and of all along those that
    are given `always`: each rank has its part, or all. Names stay."""
    made: dict[nn.Parameter, nn.Parameter] = {}
    for name, parameter in list(model.named_parameters(remove_duplicate=False)):
        dims = next((dims for pattern, dims in cut.items() if re.fullmatch(pattern, name)), {})
        axes = tuple(axis for axis in mesh.mesh_dim_names or () if axis in dims or axis in always)
        if not axes:
            continue
        if parameter not in made:
            lies = [Shard(dims[axis]) if axis in dims else Replicate() for axis in axes]
            part = distribute_tensor(parameter.detach(), mesh[axes], lies, src_data_rank=None)
            made[parameter] = nn.Parameter(part, requires_grad=parameter.requires_grad)
        path, _, last = name.rpartition(".")
        model.get_submodule(path).register_parameter(last, made[parameter])'''

BUFFERS = """
    for name, buffer in list(model.named_buffers()):
        dims = next((dims for pattern, dims in cut.items() if re.fullmatch(pattern, name)), {})
        axes = tuple(axis for axis in mesh.mesh_dim_names or () if axis in dims)
        if axes:
            path, _, last = name.rpartition(".")
            part = distribute_tensor(buffer, mesh[axes], [Shard(dims[axis]) for axis in axes], src_data_rank=None)
            setattr(model.get_submodule(path), last, part)"""
"""What follows where buffers are cut, too."""
