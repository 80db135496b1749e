"""What fused weights need: the order in which shards are parts of every section, and a product that looks whole."""

from __future__ import annotations

from collections.abc import Iterator

from meshwright.backends.torch_.emit.parts import Parts
from meshwright.backends.torch_.emit.sections import named
from meshwright.backends.torch_.emit.subject import Piece
from meshwright.backends.torch_.emit.writing.experts import SLOTS
from meshwright.backends.torch_.emit.writing.lines import call
from meshwright.ir.quoting import keywords, literal, pattern


def table(parts: Parts) -> Iterator[str]:
    """`SECTIONS`, a constant."""
    by_axis = "their sizes, the axis" if len(parts.cutting) > 1 else "and their sizes"
    sizes = "their sizes, parts by stage" if parts.sections_by_stage else by_axis
    yield f"SECTIONS = {{  # parameters by name: the dimension that holds several values side by side, {sizes}"
    found = parts.sections_by_stage or named(parts.subject.pieces, parts.fused)
    for name, cut in found.items():
        shown = ", ".join(literal(one) if isinstance(one, str) else str(one) for one in cut)
        yield f"    {pattern(name)}: ({shown}),"
    yield "}"


def in_order() -> Iterator[str]:
    """What `parallelize` does first."""
    yield "    for name, parameter in model.named_parameters():"
    yield "        parameter.data = reordered(name, parameter.data)"


def cut_as_whole(parts: Parts, piece: Piece, holder: str) -> Iterator[str]:
    """What `parallelize` does to the modules of a piece."""
    for one, fused in parts.fused:
        for path, sizes in fused.modules.items() if one is piece else ():
            yield f"in_sections({holder}.get_submodule({literal(path)}), {', '.join(map(str, sizes))})"
    styles = parts.styles.get(piece.plan.name)
    for path, (part, sizes) in styles.shared.items() if styles is not None else ():
        where = f'{holder}.get_submodule({literal(path)}), mesh["{parts.axes.tensor}"]'
        yield f"share_part({where}, {part}, {', '.join(map(str, sizes))})"
    for one, masked in parts.masked_heads:
        for path in masked if one is piece else ():
            mode = f'AttentionOfMasked(mesh["{parts.axes.tensor}"])'
            yield f"run_within({holder}.get_submodule({literal(path)}), {mode})"
    deep = 8 if piece.repeated else 4  # where these lines will stand
    for one, experts in parts.cut_experts:
        for path, dims in experts.modules.items() if one is piece else ():
            cuts = keywords({name: str(dim) for name, dim in dims.items()})
            name, rows = ("cut_slots", "Shard(1)") if path in experts.limited else ("cut_experts", "Shard(0)")
            around = path.rpartition(".")[0]
            lies = rows if around in experts.around and path not in experts.joined else "Replicate()"
            handed = [f"{holder}.get_submodule({literal(path)})", f'mesh["{parts.axes.tensor}"]', lies, *cuts]
            yield from (line[deep:] for line in call(deep, name, handed))
            if path in experts.joined:
                last = path.rpartition(".")[2]
                where = f"{holder}.get_submodule({literal(around)}), {literal(last)}"
                yield f'join_tokens({where}, mesh["{parts.axes.tensor}"])'
        for path in experts.routers if one is piece else ():
            yield f'add_gradients({holder}.get_submodule({literal(path)}), mesh["{parts.axes.tensor}"])'


def in_order_of_ranks(parts: Parts) -> Iterator[str]:
    alone = BY_AXIS if len(parts.cutting) > 1 else ("", "", f'MESH["{next(iter(parts.cutting), "")}"]')
    said, begins, ranks = BY_STAGE if parts.sections_by_stage else alone
    yield from REORDERED.replace("SAID", said).replace("BEGINS", begins).replace("PARTS", ranks).split("\n")


def of_sections(parts: Parts) -> Iterator[str]:
    yield from SECTIONS.split("\n")
    if any(fused.modules for _, fused in parts.fused):
        yield from ("", "")
        yield from IN_SECTIONS.split("\n")
    if any(styles.shared for styles in parts.styles.values()):
        yield from ("", "")
        yield from SHARE_PART.split("\n")


BY_STAGE = (
    ", ranks",
    "    stage = next(stage for stage, ranks in enumerate(RANKS) if dist.get_rank() in ranks)\n",
    "ranks[stage]",
)
"""What differs in `reordered` where every stage has a mesh of its own."""
BY_AXIS = (", axis", "", "MESH[axis]")
"""What does where several axes cut parameters."""

REORDERED = '''\
def reordered(name: str, tensor: Tensor, *, back: bool = False) -> Tensor:
    """What SECTIONS says of a parameter, or of a state of it: shards in order hold a part of every section. Or `back`
    in the model's own order."""
BEGINS    for pattern, (dim, sizesSAID) in SECTIONS.items():
        if tensor.ndim and re.fullmatch(rf"(state\\.)?{pattern}(\\.\\w+)?", name):
            sections = torch.arange(sum(sizes), device=tensor.device).split(sizes)
            parts = zip(*(section.chunk(PARTS) for section in sections), strict=True)
            order = torch.cat([one for part in parts for one in part])
            whole = tensor.full_tensor() if isinstance(tensor, DTensor) else tensor
            moved = whole.index_select(dim, order.argsort() if back else order)
            if isinstance(tensor, DTensor):
                return distribute_tensor(moved, tensor.device_mesh, tensor.placements, src_data_rank=None)
            return moved
    return tensor


def all_reordered(state: dict[str, Any], *, back: bool = False) -> dict[str, Any]:
    """The same of all parameters, or of all states of them."""
    return {name: reordered(name, one, back=back) if isinstance(one, Tensor) else one for name, one in state.items()}'''

SECTIONS = '''\
class Sections:
    """What a product yields, as wide as the model takes it to be. It can be cut into its sections, which yields what
    this rank has of them, and nothing else can be done with it."""

    def __init__(self, parts: Sequence[Tensor], sizes: tuple[int, ...]) -> None:
        first = parts[0]
        self.device = first.device
        self.whole = torch.empty((*first.shape[:-1], sum(sizes)), dtype=first.dtype, device="meta")
        cuts = [(one.storage_offset(), one.shape) for one in self.whole.split(sizes, -1)]
        self.parts = dict(zip(cuts, parts, strict=True))

    def of(self, found: Any) -> Any:
        """What is the same of this rank's parts."""
        if isinstance(found, Tensor):
            return self.parts[found.storage_offset(), found.shape]
        if isinstance(found, (tuple, list)):
            return type(found)(self.of(one) for one in found)
        return found

    @classmethod
    def __torch_function__(cls, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        return args[0].of(func(args[0].whole, *args[1:], **(kwargs or {})))

    def __getattr__(self, name: str) -> Any:
        found = getattr(self.whole, name)
        return (lambda *args, **kwargs: self.of(found(*args, **kwargs))) if callable(found) else found

    def __getitem__(self, index: Any) -> Any:
        return self.of(self.whole[index])'''

IN_SECTIONS = '''\
def in_sections(module: nn.Module, *sizes: int) -> None:
    """Have the model's code cut what a fused product yields by the sizes that it knows."""

    def parted(module: nn.Module, args: Any, local: Tensor) -> Sections:
        own = [size * local.shape[-1] // sum(sizes) for size in sizes]
        return Sections(local.split(own, -1), sizes)

    module.register_forward_hook(parted)'''

SHARE_PART = '''\
def share_part(module: nn.Module, ranks: DeviceMesh, number: int, *sizes: int) -> None:
    """Have one part of a product whole on every rank, where heads of all ranks read it: their gradients add up."""

    def shared(module: nn.Module, args: Any, made: Tensor) -> Sections:
        parts = list(made.split(sizes, -1))
        one = parts[number]
        whole = one if isinstance(one, DTensor) else DTensor.from_local(one, ranks, [Replicate()])
        whole = whole.redistribute(placements=[Replicate()])
        parts[number] = whole.to_local(grad_placements=[Partial()])
        return Sections(parts, sizes)

    module.register_forward_hook(shared)'''

EXPERTS = '''\
def cut_experts(module: nn.Module, ranks: DeviceMesh, lies: Shard | Replicate, /, **dims: int) -> None:
    """Keep this rank's part of every expert; what the parts make of a row is added up. `lies`: whether ranks call it
    with tokens of their own, or all with the same."""
    for name, dim in dims.items():
        weight = module.get_parameter(name)
        cut = distribute_tensor(weight.detach(), ranks, [Shard(dim)], src_data_rank=None)
        module.register_parameter(name, nn.Parameter(cut, requires_grad=weight.requires_grad))
    own = copy.copy(module)  # the module as it was written, with this rank's parts

    def forward(tokens: Tensor, chosen: Tensor, weights: Tensor) -> Tensor:
        rows = DTensor.from_local(tokens.repeat_interleave(chosen.shape[1], 0), ranks, [lies])
        rows = rows.redistribute(placements=[Replicate()])
        expert = DTensor.from_local(chosen.view(-1, 1), ranks, [lies]).full_tensor()
        own._parameters = {name: weight.to_local() for name, weight in module.named_parameters(recurse=False)}
        even = torch.ones_like(expert, dtype=tokens.dtype)
        parts = own.forward(rows.to_local(grad_placements=[Partial()]), expert, even)
        rows = DTensor.from_local(parts, ranks, [Partial()]).redistribute(placements=[lies]).to_local()
        return (rows.unflatten(0, chosen.shape) * weights[..., None]).sum(1).to(tokens.dtype)

    module.forward = forward'''


LIMITED = '''\
def cut_slots(module: nn.Module, ranks: DeviceMesh, lies: Shard | Replicate, /, **dims: int) -> None:
    """Keep this rank's part of every expert; what the parts make of a row is added up. `lies`: whether ranks fill slots
    of their own, or all the same."""
    for name, dim in dims.items():
        weight = module.get_parameter(name)
        cut = distribute_tensor(weight.detach(), ranks, [Shard(dim)], src_data_rank=None)
        module.register_parameter(name, nn.Parameter(cut, requires_grad=weight.requires_grad))
    own = copy.copy(module)  # the module as it was written, with this rank's parts, which takes what it is given
    own.capacity_factor = None

    def forward(tokens: Tensor, chosen: Tensor, weights: Tensor) -> Tensor:
        slot, slots = slots_of(module, chosen)
        rows = tokens.new_zeros(slots + 1, tokens.shape[1])
        rows[slot.flatten()] = tokens.repeat_interleave(chosen.shape[1], 0)
        filled = DTensor.from_local(rows[:-1].unflatten(0, (module.num_experts, -1)), ranks, [lies])
        rows = filled.redistribute(placements=[Replicate()]).to_local(grad_placements=[Partial()]).flatten(0, 1)
        each = len(rows) // module.num_experts
        expert = torch.arange(module.num_experts, device=rows.device).repeat_interleave(each)
        own._parameters = {name: weight.to_local() for name, weight in module.named_parameters(recurse=False)}
        rows = own.forward(rows, expert[:, None], torch.ones_like(rows[:, :1]))
        rows = DTensor.from_local(rows.unflatten(0, (-1, each)), ranks, [Partial()]).redistribute(placements=[lies])
        rows = F.pad(rows.to_local().flatten(0, 1), (0, 0, 0, 1))[slot]
        return (rows * weights[..., None]).sum(1).to(tokens.dtype)

    module.forward = forward'''


ROUTERS = '''\
def add_gradients(module: nn.Module, ranks: DeviceMesh) -> None:
    """Have a module with whole parameters run on this rank's tokens: the gradients of all ranks are added up."""
    for name, parameter in list(module.named_parameters(recurse=False)):
        whole = distribute_tensor(parameter.detach(), ranks, [Replicate()], src_data_rank=None)
        module.register_parameter(name, nn.Parameter(whole, requires_grad=parameter.requires_grad))
    own = copy.copy(module)

    def forward(*args: Any) -> Any:
        named = module.named_parameters(recurse=False)
        own._parameters = {name: weight.to_local(grad_placements=[Partial()]) for name, weight in named}
        return own.forward(*args)

    module.forward = forward'''


JOINED = '''\
def join_tokens(module: nn.Module, name: str, ranks: DeviceMesh) -> None:
    """Have experts, a part of a module that runs on this rank's tokens, take whole sequences: runs of tokens that share
    slots are longer than what a rank has. Each goes on with what they make of its own."""
    experts, samples = module.get_submodule(name), 1
    own = experts.forward

    def count(module: nn.Module, args: Any) -> None:
        nonlocal samples
        samples = len(args[0])

    def joined(part: Tensor) -> Tensor:
        tokens = DTensor.from_local(part.unflatten(0, (samples, -1)), ranks, [Shard(1)])
        return tokens.redistribute(placements=[Replicate()]).to_local().flatten(0, 1)

    def forward(tokens: Tensor, chosen: Tensor, weights: Tensor) -> Tensor:
        made = own(joined(tokens), joined(chosen), joined(weights)).unflatten(0, (samples, -1))
        whole = DTensor.from_local(made, ranks, [Replicate()])
        return whole.redistribute(placements=[Shard(1)]).to_local().flatten(0, 1)

    module.register_forward_pre_hook(count)
    experts.forward = forward'''


def of_experts(parts: Parts) -> Iterator[str]:
    limited = {path in experts.limited for _, experts in parts.cut_experts for path in experts.modules}
    found = [EXPERTS] if False in limited else []
    found += [SLOTS, LIMITED] if True in limited else []
    found += [ROUTERS] if any(experts.routers for _, experts in parts.cut_experts) else []
    found += [JOINED] if any(experts.joined for _, experts in parts.cut_experts) else []
    yield from "\n\n\n".join(found).split("\n")
