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

TEXTS = {"Copied": COPIED, "Transposed": TRANSPOSED, "SumFirst": SUM_FIRST}


def styles(names: Iterable[str]) -> Iterator[Iterator[str]]:
    """Those with these names, each one a section."""
    return (iter(text.split("\n")) for name, text in TEXTS.items() if name in set(names))
