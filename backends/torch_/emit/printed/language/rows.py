"""The functions that printed code calls for experts: rows and slots, how they travel and come back."""

ROWS = '''\
def dispatch(x: Tensor, chosen: Tensor, experts: int, ranks: DeviceMesh | None = None) -> tuple[Tensor, Tensor, Tensor]:
    """A token's row for each expert that it chose, sorted by expert; where the rows of each end; and which is
    every choice's. With `ranks`, those of this rank's experts: choices of others have the row after the last one."""
    expert = chosen.flatten()
    order = expert.argsort(stable=True)
    if ranks is not None:
        expert = expert - experts * ranks.get_local_rank()
        order = order[(expert[order] >= 0) & (expert[order] < experts)]
    ends = torch.searchsorted(expert[order], torch.arange(experts, device=x.device), right=True).int()
    numbers = torch.arange(len(order), device=x.device)
    places = torch.full_like(expert, len(order)).index_copy(0, order, numbers)
    return x.flatten(0, -2)[order // chosen.shape[-1]], ends, places


def combine(rows: Tensor, weights: Tensor, places: Tensor, part: bool = False) -> Tensor:
    """The rows of each token's choices, weighted and summed; `part`: of this rank's experts alone."""
    if part:
        rows = torch.cat((rows, rows.new_zeros(1, rows.shape[1])))
    return (rows[places].unflatten(0, weights.shape) * weights[..., None]).sum(-2).to(rows.dtype)


def slots_of(chosen: Tensor, experts: int, lengths: Sequence[int], room: int, ranks: DeviceMesh | None) -> Tensor:
    """The slot of every choice, of those of all experts. Runs of tokens, so many along each dimension, have slots of
    their own, `room` at each expert; a choice that finds none left, or is of another rank's experts, has the slot after
    the last one."""
    runs, device = torch.arange(chosen.numel(), device=chosen.device).view_as(chosen), chosen.device
    for dim, length in enumerate(lengths):
        runs = runs.unflatten(2 * dim, (-1, length)).movedim(2 * dim, dim)
    runs = runs.flatten(len(lengths)).flatten(0, -2)  # the choices of each
    expert, count = chosen.flatten()[runs], experts * len(runs)
    if ranks is not None:
        expert, found = own_rows(expert, ranks, experts)
        expert = expert.where(found, experts)
    asked, order = (expert * len(runs) + torch.arange(len(runs), device=device)[:, None]).flatten().sort(stable=True)
    before = torch.arange(len(asked), device=device) - torch.searchsorted(asked, asked)
    slot = (asked * room + before).where((before < room) & (asked < count), count * room)
    return torch.empty_like(slot).index_copy(0, runs.flatten()[order], slot).view_as(chosen)


def to_slots(
    x: Tensor, chosen: Tensor, experts: int, lengths: Sequence[int], room: int, ranks: DeviceMesh | None = None
) -> Tensor:
    """A token's row for each expert that it chose, in the slots of that expert, and zeros in empty ones."""
    slot = slots_of(chosen, experts, lengths, room, ranks).flatten()
    tokens, choices = chosen[..., 0].numel(), torch.arange(len(slot), device=slot.device)
    slots = tokens // math.prod(lengths) * room * experts
    token = slot.new_full((slots + 1,), tokens).index_copy(0, slot, choices // chosen.shape[-1])
    return F.pad(x.flatten(0, -2), (0, 0, 0, 1))[token[:-1]].unflatten(0, (experts, -1))


def from_slots(
    rows: Tensor,
    chosen: Tensor,
    weights: Tensor,
    experts: int,
    lengths: Sequence[int],
    room: int,
    ranks: DeviceMesh | None = None,
) -> Tensor:
    """The rows of each token's choices, weighted and summed; nothing of those that had no slot."""
    slot = slots_of(chosen, experts, lengths, room, ranks)
    return (F.pad(rows.flatten(0, 1), (0, 0, 0, 1))[slot] * weights[..., None]).sum(-2).to(rows.dtype)


def products(rows: Tensor, weights: Tensor, ends: Tensor) -> Tensor:
    """Rows times the matrix of their expert, in one kernel where torch has it."""
    aligned = not any(width * rows.itemsize % 16 for width in weights.shape[1:])
    if aligned and (rows.dtype is torch.bfloat16 or not (torch.compiler.is_compiling() or rows.dtype is torch.float64)):
        return F.grouped_mm(rows, weights, offs=ends)
    each = rows.tensor_split(ends[:-1].tolist())
    return torch.cat([own @ weight for own, weight in zip(each, weights, strict=True)])


def by_row(x: Tensor, ends: Tensor) -> Tensor:
    """What each expert has one of, for each of its rows."""
    return x.flatten(0, 1).repeat_interleave(ends.diff(prepend=ends.new_zeros(1)), dim=0)


class Trip(NamedTuple):
    """How rows go to experts on other ranks: in which order they are sorted there, and of those that are `sent` to each
    rank, and `received`, how many; where these are empty, all ranks have all rows there."""

    ranks: DeviceMesh
    order: Tensor
    sent: Sequence[int] = ()
    received: Sequence[int] = ()


def to_experts(ends: Tensor, ranks: DeviceMesh) -> tuple[Trip, Tensor]:
    """The trip of rows to the ranks that have their experts, and where each expert's rows end there."""
    sent = ends.diff(prepend=ends.new_zeros(1)).long()
    received = torch.empty_like(sent)
    dist.all_to_all_single(received, sent, group=ranks.get_group())
    size, here = ranks.size(), len(sent) // ranks.size()
    expert = torch.arange(here, device=ends.device).repeat(size).repeat_interleave(received)
    outgoing, incoming = sent.view(size, here).sum(1).tolist(), received.view(size, here).sum(1).tolist()
    far = received.view(size, here).sum(0).cumsum(0).int()
    return Trip(ranks, expert.argsort(stable=True), outgoing, incoming), far


def parts_to_experts(ends: Tensor, ranks: DeviceMesh) -> tuple[Trip, Tensor]:
    """The trip of parts of rows, of which all ranks have the same, to the rank that has their experts."""
    here, own = len(ends) // ranks.size(), ranks.get_local_rank()
    sent = ends[here - 1 :: here].diff(prepend=ends.new_zeros(1)).tolist()
    before = sum(sent[:own])
    far = ends[own * here : (own + 1) * here] - before
    return Trip(ranks, torch.arange(sent[own], device=ends.device), sent, [sent[own]] * len(sent)), far


def to_all(ends: Tensor, ranks: DeviceMesh) -> tuple[Trip, Tensor]:
    """The trip of all rows to all ranks, and where each expert's end there."""
    experts = torch.arange(len(ends), device=ends.device)
    expert = all_gather(experts.repeat_interleave(ends.diff(prepend=ends.new_zeros(1))), ranks, 0)
    order = expert.argsort(stable=True)
    return Trip(ranks, order), torch.searchsorted(expert[order], experts, right=True).int()


def swap_rows(x: Tensor, ranks: DeviceMesh, outgoing: Sequence[int], incoming: Sequence[int]) -> Tensor:
    """The rows that other ranks have for this one, which has so many for them."""
    given = [list(incoming), list(outgoing)]
    return waited(funcol.all_to_all_single(x.contiguous(), *given, ranks.get_group()))


def arrive(x: Tensor, trip: Trip) -> Tensor:
    """Rows where their experts are, sorted by expert."""
    rows = swap_rows(x, trip.ranks, trip.sent, trip.received) if trip.sent else all_gather(x, trip.ranks, 0)
    return rows[trip.order]


def leave(x: Tensor, trip: Trip) -> Tensor:
    """Rows back where they came from; added up, if all ranks have them."""
    rows = x[trip.order.argsort()]
    return swap_rows(rows, trip.ranks, trip.received, trip.sent) if trip.sent else reduce_scatter(rows, trip.ranks, 0)


def arrive_whole(x: Tensor, trip: Trip, dim: int) -> Tensor:
    """Rows where their experts are, of parts along a dimension that all ranks have."""
    return torch.cat(swap_rows(x, trip.ranks, trip.sent, trip.received).split(list(trip.received)), dim)


def leave_in_parts(x: Tensor, trip: Trip, dim: int) -> Tensor:
    """Each rank's part of all rows, of those that are whole where their experts are."""
    return swap_rows(torch.cat(x.chunk(trip.ranks.size(), dim)), trip.ranks, trip.received, trip.sent)


def keep_own(x: Tensor, trip: Trip) -> Tensor:
    """This rank's rows of what all ranks have alike."""
    return cut(x[trip.order.argsort()], trip.ranks, 0)
'''
