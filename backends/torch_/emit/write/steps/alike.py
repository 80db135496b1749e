"""`shard_alike`: `fully_shard` of parameters whose whole gradient all ranks along an axis compute."""

from __future__ import annotations

from collections.abc import Iterator

from meshwright.backends.torch_.emit.write.parts import Parts

TEXT = '''\
class Scatter:
    """How gradients are scattered: sums over ranks, but of those that ranks along an axis have alike, each its part."""

    def __init__(
        self, axes: Sequence[DeviceMesh], alike: Mapping[nn.Parameter, tuple[str, ...]], along: Callable[[Any], Shard]
    ) -> None:
        self.axes, self.alike, self.along = axes, alike, along
        self.runs: dict[nn.Parameter, tuple[int, tuple[str, ...]]] = {}

    def place(self, parameter: nn.Parameter) -> Shard:
        """The dimension that is cut; parameters are asked for in the order in which gradients lie in a message."""
        placement, local = self.along(parameter), parameter.to_local() if isinstance(parameter, DTensor) else parameter
        parts, rows = math.prod(axis.size() for axis in self.axes), local.shape[placement.dim]
        if parameter.requires_grad:
            self.runs[parameter] = -(-rows // parts) * (local.numel() // rows), self.alike.get(parameter, ())
        return placement

    def allocate(self, size: Sequence[int], *, dtype: torch.dtype, device: torch.device) -> Tensor:
        return torch.empty(size, dtype=dtype, device=device)

    def __call__(
        self, output_tensor: Tensor, input_tensor: Tensor, group: dist.ProcessGroup, op: Any, async_op: bool = False
    ) -> None:
        sizes, kept = [size for size, _ in self.runs.values()], [names for _, names in self.runs.values()]
        sent, got = input_tensor.view(group.size(), -1).split(sizes, 1), output_tensor.split(sizes)
        for names in dict.fromkeys(kept):
            run = [number for number, own in enumerate(kept) if own == names]
            part = torch.cat([sent[number] for number in run], 1).flatten()
            over = [((axis.mesh_dim_names or ("",))[0], axis.get_group()) for axis in self.axes]
            for name, ranks in over if names else [("", group)]:
                if name in names:
                    part = part.chunk(ranks.size())[ranks.rank()]
                else:
                    whole, part = part, part.new_empty(part.numel() // ranks.size())
                    dist.reduce_scatter_tensor(part, whole, op=op, group=ranks)
            for number, own in zip(run, part.split([sizes[number] for number in run]), strict=True):
                got[number].copy_(own)


def shard_alike(
    unit: Any,
    *,
    alike: Mapping[nn.Parameter, tuple[str, ...]],
    over: Sequence[DeviceMesh],
    shard_placement_fn: Callable[[Any], Shard] = lambda parameter: Shard(0),
    **options: Any,
) -> Any:
    """`fully_shard`, where some gradients are `alike` on ranks along axes."""
    scatter = Scatter(over, alike, shard_placement_fn)
    sharded = fully_shard(unit, shard_placement_fn=scatter.place, **options)
    first = sharded[0] if isinstance(sharded, list) else sharded
    first.set_custom_reduce_scatter(scatter)
    return sharded'''


def shard_alike(parts: Parts) -> Iterator[str]:
    yield from TEXT.split("\n")
