"""What cuts experts apart, and sends tokens to them."""

from __future__ import annotations

from collections.abc import Iterator

from meshwright.backends.torch_.emit.experts import Experts
from meshwright.backends.torch_.emit.parts import Parts
from meshwright.backends.torch_.emit.writing.lines import indented, quoted
from meshwright.ir.quoting import literal


def cut_experts(parts: Parts, experts: Experts) -> Iterator[str]:
    """What `parallelize` does to modules."""
    hops = [f'mesh["{axis}"]' for axis in experts.axes]
    yield f"    experts = mesh[{quoted(parts.axes.experts)}]"
    given = ", ".join(("experts", *(hops if len(hops) > 1 else [])))
    for body in experts.bodies:
        holder = "block" if body.piece.repeated else "model"
        send = {path: "send_slots" if path in body.limited else "send_to_experts" for path in body.modules}
        lines = [f"{name}({holder}.get_submodule({literal(path)}), {given})" for path, name in send.items()]
        if body.piece.repeated:
            yield from indented((*parts.loop(body.piece), *(f"    {line}" for line in lines)))
        else:
            yield from parts.only(body.piece, indented(tuple(lines)))


SEND = '''\
def send_to_experts(module: nn.Module, ranks: DeviceMesh) -> None:
    """Keep this rank's experts only; tokens travel to the ranks that hold theirs, and back."""
    held, size, group = module.num_experts // ranks.size(), ranks.size(), ranks.get_group()
    for name, weight in list(module.named_parameters(recurse=False)):
        cut = distribute_tensor(weight.detach(), ranks, [Shard(0)], src_data_rank=None)
        module.register_parameter(name, nn.Parameter(cut, requires_grad=weight.requires_grad))
    own = copy.copy(module)  # the module as it was written, for the experts of this rank
    own.num_experts = held

    def forward(tokens: Tensor, chosen: Tensor, weights: Tensor) -> Tensor:
        order = chosen.flatten().argsort(stable=True)
        sent = chosen.flatten().bincount(minlength=held * size)  # rows for each expert
        received = torch.empty_like(sent)
        dist.all_to_all_single(received, sent, group=group)
        outgoing, incoming = sent.view(size, held).sum(1).tolist(), received.view(size, held).sum(1).tolist()
        rows = funcol.all_to_all_single_autograd(tokens[order // chosen.shape[1]], incoming, outgoing, group)
        expert = torch.arange(held, device=rows.device).repeat(size).repeat_interleave(received)
        own._parameters = {name: weight.to_local() for name, weight in module.named_parameters(recurse=False)}
        rows = own.forward(rows, expert[:, None], torch.ones_like(rows[:, :1]))
        rows = funcol.all_to_all_single_autograd(rows, outgoing, incoming, group)
        rows = rows[order.argsort()].unflatten(0, chosen.shape) * weights[..., None]
        return rows.sum(1).to(tokens.dtype)

    module.forward = forward'''


KEEP_FAR = """\
    held = module.num_experts // ranks.size()
    for name, weight in list(module.named_parameters(recurse=False)):
        cut = distribute_tensor(weight.detach(), ranks, [Shard(0)] * ranks.ndim, src_data_rank=None)
        module.register_parameter(name, nn.Parameter(cut, requires_grad=weight.requires_grad))
    names = ranks.mesh_dim_names or ()
    turned = [names.index(name) for hop in hops for name in hop.mesh_dim_names or ()]
    experts = torch.arange(module.num_experts).view(*ranks.shape, held).permute(*turned, -1)
    number = experts.flatten().argsort()  # of each expert, as hops lead to them
"""
"""How a module begins to keep its experts where tokens follow several axes to them."""


SEND_FAR = (
    '''\
def send_to_experts(module: nn.Module, ranks: DeviceMesh, *hops: DeviceMesh) -> None:
    """Keep this rank's experts only; tokens travel to the ranks that hold theirs, hop by hop, and back."""
'''
    + KEEP_FAR
    + '''\
    own = copy.copy(module)  # the module as it was written, for the experts of this rank
    own.num_experts = held

    def visit(rows: Tensor, expert: Tensor, behind: int, hop: DeviceMesh, *later: DeviceMesh) -> Tensor:
        """What experts make of rows that are sorted by their number, of those `behind` this hop and the later ones."""
        each, size, group = behind // hop.size(), hop.size(), hop.get_group()
        sent = expert.bincount(minlength=behind)  # rows for each expert
        received = torch.empty_like(sent)
        dist.all_to_all_single(received, sent, group=group)
        outgoing, incoming = sent.view(size, each).sum(1).tolist(), received.view(size, each).sum(1).tolist()
        rows = funcol.all_to_all_single_autograd(rows, incoming, outgoing, group)
        expert = torch.arange(each, device=rows.device).repeat(size).repeat_interleave(received)
        if later:
            order = expert.argsort(stable=True)
            rows = visit(rows[order], expert[order], each, *later)[order.argsort()]
        else:
            own._parameters = {name: weight.to_local() for name, weight in module.named_parameters(recurse=False)}
            rows = own.forward(rows, expert[:, None], torch.ones_like(rows[:, :1]))
        return funcol.all_to_all_single_autograd(rows, outgoing, incoming, group)

    def forward(tokens: Tensor, chosen: Tensor, weights: Tensor) -> Tensor:
        expert = number.to(chosen.device)[chosen.flatten()]
        order = expert.argsort(stable=True)
        rows = visit(tokens[order // chosen.shape[1]], expert[order], module.num_experts, *hops)
        rows = rows[order.argsort()].unflatten(0, chosen.shape) * weights[..., None]
        return rows.sum(1).to(tokens.dtype)

    module.forward = forward'''
)


SLOTS = '''\
def slots_of(module: nn.Module, chosen: Tensor) -> tuple[Tensor, int]:
    """The slot of every choice, and how many slots there are, expert by expert. Choices of a run of tokens that an
    expert has no room for have the slot after the last."""
    runs, experts = len(chosen) // module.group_size, module.num_experts
    room = math.ceil(module.capacity_factor * module.group_size * chosen.shape[1] / experts)
    asked = chosen.view(runs, -1)
    before = F.one_hot(asked, experts).cumsum(1).gather(2, asked[..., None]).squeeze(2) - 1  # of the same expert
    slot = (asked * runs + torch.arange(runs, device=asked.device)[:, None]) * room + before
    return torch.where(before < room, slot, experts * runs * room).view_as(chosen), experts * runs * room'''


SEND_LIMITED = '''\
def send_slots(module: nn.Module, ranks: DeviceMesh) -> None:
    """Keep this rank's experts only; what is in slots travels to the ranks that hold them, and back."""
    size, group = ranks.size(), ranks.get_group()
    for name, weight in list(module.named_parameters(recurse=False)):
        cut = distribute_tensor(weight.detach(), ranks, [Shard(0)], src_data_rank=None)
        module.register_parameter(name, nn.Parameter(cut, requires_grad=weight.requires_grad))
    own = copy.copy(module)  # the module as it was written, for the experts of this rank, which take what they are sent
    own.num_experts, own.capacity_factor = module.num_experts // size, None

    def forward(tokens: Tensor, chosen: Tensor, weights: Tensor) -> Tensor:
        slot, slots = slots_of(module, chosen)
        rows = tokens.new_zeros(slots + 1, tokens.shape[1])
        rows[slot.flatten()] = tokens.repeat_interleave(chosen.shape[1], 0)
        rows = funcol.all_to_all_single_autograd(rows[:-1], None, None, group)
        expert = torch.arange(own.num_experts, device=rows.device).repeat_interleave(slots // module.num_experts)
        own._parameters = {name: weight.to_local() for name, weight in module.named_parameters(recurse=False)}
        rows = own.forward(rows, expert.repeat(size)[:, None], torch.ones_like(rows[:, :1]))
        rows = funcol.all_to_all_single_autograd(rows, None, None, group)
        rows = F.pad(rows, (0, 0, 0, 1))[slot]
        return (rows * weights[..., None]).sum(1).to(tokens.dtype)

    module.forward = forward'''


SEND_LIMITED_FAR = (
    '''\
def send_slots(module: nn.Module, ranks: DeviceMesh, *hops: DeviceMesh) -> None:
    """Keep this rank's experts only; what is in slots travels to the ranks that hold them, hop by hop, and back."""
'''
    + KEEP_FAR
    + """\
    own = copy.copy(module)  # the module as it was written, for the experts of this rank, which take what they are sent
    own.num_experts, own.capacity_factor = held, None

    def forward(tokens: Tensor, chosen: Tensor, weights: Tensor) -> Tensor:
        slot, slots = slots_of(module, number.to(chosen.device)[chosen])
        rows = tokens.new_zeros(slots + 1, tokens.shape[1])
        rows[slot.flatten()] = tokens.repeat_interleave(chosen.shape[1], 0)
        rows, behind = rows[:-1], module.num_experts
        for hop in hops:
            rows, behind = funcol.all_to_all_single_autograd(rows, None, None, hop.get_group()), behind // hop.size()
            rows = rows.unflatten(0, (hop.size(), behind, -1)).transpose(0, 1).flatten(0, 2)  # expert by expert
        expert = torch.arange(held, device=rows.device).repeat_interleave(len(rows) // held)
        own._parameters = {name: weight.to_local() for name, weight in module.named_parameters(recurse=False)}
        rows = own.forward(rows, expert[:, None], torch.ones_like(rows[:, :1]))
        for hop in reversed(hops):
            rows = rows.unflatten(0, (behind, hop.size(), -1)).transpose(0, 1).flatten(0, 2)
            rows, behind = funcol.all_to_all_single_autograd(rows, None, None, hop.get_group()), behind * hop.size()
        rows = F.pad(rows, (0, 0, 0, 1))[slot]
        return (rows * weights[..., None]).sum(1).to(tokens.dtype)

    module.forward = forward"""
)


def send(experts: Experts) -> Iterator[str]:
    alone = len(experts.axes) == 1
    limited = {path in body.limited for body in experts.bodies for path in body.modules}
    found = [SEND if alone else SEND_FAR] if False in limited else []
    found += [SLOTS, SEND_LIMITED if alone else SEND_LIMITED_FAR] if True in limited else []
    yield from "\n\n\n".join(found).split("\n")
