"""Styles for `parallelize_module` that torch lacks: classes around its own."""

from __future__ import annotations

from collections.abc import Iterable, Iterator

TRANSPOSED = '''\
class Transposed(ParallelStyle):
    """`ColwiseParallel`, or `RowwiseParallel`, of a product whose weight is stored as [in, out]."""

    def __init__(self, style: ColwiseParallel | RowwiseParallel) -> None:
        super().__init__()
        self.style = style

    def _apply(self, module: nn.Module, device_mesh: DeviceMesh) -> nn.Module:
        columns = isinstance(self.style, ColwiseParallel)
        cuts = {"weight": Shard(1), "bias": Shard(0)} if columns else {"weight": Shard(0)}
        for name, parameter in list(module.named_parameters(recurse=False)):
            cut = distribute_tensor(parameter.detach(), device_mesh, [cuts.get(name, Replicate())])
            module.register_parameter(name, nn.Parameter(cut, requires_grad=parameter.requires_grad))
        around = PrepareModuleInputOutput(
            input_layouts=self.style.input_layouts,
            desired_input_layouts=Replicate() if columns else Shard(-1),
            output_layouts=Shard(-1) if columns else Partial(),
            desired_output_layouts=self.style.output_layouts,
            use_local_output=self.style.use_local_output,
        )
        return around._apply(module, device_mesh)'''

SUM_FIRST = '''\
class SumFirst(ParallelStyle):
    """`RowwiseParallel` of a module that goes on with its product (a table whose rows it scales): what ranks have of it
    is summed before that, and cut by tokens."""

    def __init__(self, style: RowwiseParallel) -> None:
        super().__init__()
        self.style = style

    def _apply(self, module: nn.Module, device_mesh: DeviceMesh) -> nn.Module:
        run, mode = module.forward, Summing(self.style.output_layouts)

        def forward(*args: Any, **kwargs: Any) -> Any:
            with mode:
                return run(*args, **kwargs)

        module.forward = forward
        return self.style._apply(module, device_mesh)


class Summing(TorchFunctionMode):
    """While it is entered, products and rows of tables are brought where they are wanted."""

    def __init__(self, wanted: Sequence[Placement]) -> None:
        super().__init__()
        self.wanted = wanted

    def __torch_function__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        result = func(*args, **kwargs or {})
        return result.redistribute(placements=self.wanted) if func in (F.embedding, F.linear) else result'''

COPIED = '''\
class Copied(ParallelStyle):
    """A module that every rank runs on the same values: the gradients that they have of them add up."""

    def _apply(self, module: nn.Module, device_mesh: DeviceMesh) -> nn.Module:
        whole = PrepareModuleInput(input_layouts=Replicate(), desired_input_layouts=Replicate())
        return whole._apply(distribute_module(module, device_mesh), device_mesh)'''

OWN_CHANNELS = '''\
class OwnChannels(ParallelStyle):
    """A convolution or a norm that runs as it is, with this rank's channels: `dims` are those along which parameters
    and buffers are cut, `groups` says that groups are. A bias that all have is added to the sum of what they make."""

    def __init__(
        self,
        dims: dict[str, int],
        takes: Placement,
        makes: Placement,
        groups: bool = False,
        input_layouts: Placement | None = None,
        output_layouts: Placement | None = None,
        use_local_output: bool = True,
    ) -> None:
        super().__init__()
        self.dims, self.takes, self.makes, self.groups = dims, takes, makes, groups
        self.given, self.leaves, self.local = input_layouts or takes, output_layouts or makes, use_local_output

    def _apply(self, module: nn.Module, device_mesh: DeviceMesh) -> nn.Module:
        for name, dim in self.dims.items():
            tensor = getattr(module, name)
            part = distribute_tensor(tensor.detach(), device_mesh, [Shard(dim)], src_data_rank=None)
            cut = nn.Parameter(part, tensor.requires_grad) if isinstance(tensor, nn.Parameter) else part
            setattr(module, name, cut)
        own = copy.copy(module)  # the module as it was written, with this rank's parts
        for name in ("groups", "num_groups", "num_features") if self.groups else ():
            if hasattr(own, name):
                setattr(own, name, getattr(own, name) // device_mesh.size())

        def local(tensors: Any) -> dict[str, Any]:
            return {name: one.to_local() if isinstance(one, DTensor) else one for name, one in tensors.items()}

        def forward(x: Tensor) -> Any:
            own._parameters, own._buffers = local(module._parameters), local(module._buffers)
            own.training = module.training
            bias = own._parameters.get("bias") if self.makes.is_partial() else None
            if bias is not None:
                own._parameters["bias"] = None
            whole = DTensor.from_local(x, device_mesh, [self.given]).redistribute(placements=[self.takes])
            sums = [Partial()] if self.takes.is_replicate() else [self.takes]
            made = DTensor.from_local(own.forward(whole.to_local(grad_placements=sums)), device_mesh, [self.makes])
            made = made.redistribute(placements=[self.leaves])
            if not self.local:
                return made
            return made.to_local() if bias is None else made.to_local() + bias.view(-1, *(1 for _ in x.shape[2:]))

        module.forward = forward
        return module'''

IN_ONE_ROW = '''\
class InOneRow(TorchFunctionMode):
    """While it is entered, losses read the scores of pixels as those of one row: the backward pass of `loss_parallel`
    (torch 2.13) takes height for width."""

    def __torch_function__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        if func is F.cross_entropy and args[0].dim() > 3:
            args = (args[0].flatten(2), args[1].flatten(1), *args[2:])
        return func(*args, **kwargs or {})'''

TEXTS = {
    "OwnChannels": OWN_CHANNELS,
    "InOneRow": IN_ONE_ROW,
    "Copied": COPIED,
    "Transposed": TRANSPOSED,
    "SumFirst": SUM_FIRST,
}


def styles(names: Iterable[str]) -> Iterator[Iterator[str]]:
    """Those with these names, each one a section."""
    return (iter(text.split("\n")) for name, text in TEXTS.items() if name in set(names))
