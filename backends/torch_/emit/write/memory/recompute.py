"""Recomputation in `parallelize`, and the functions that do it."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from meshwright.backends.lines import indented, wrapped
from meshwright.backends.torch_.emit.read.allowed import device_of
from meshwright.backends.torch_.emit.read.recompute import Again
from meshwright.backends.torch_.emit.write.parts import Parts
from meshwright.ir.quoting import literal

KERNELS = {
    "cpu": ("_scaled_dot_product_flash_attention_for_cpu",),
    "cuda": (
        "_scaled_dot_product_flash_attention",
        "_scaled_dot_product_efficient_attention",
        "_scaled_dot_product_cudnn_attention",
    ),
}
"""The operators that attention may be, by device."""


def runs_again(parts: Parts, again: Again) -> Iterator[str]:
    """Lines of `parallelize` that have modules of a body recomputed."""
    if again.kept is not None:
        yield from on_modules(parts, again, ("",), "run_again", f", partial(all_but, {_numbers(again.kept)})")
        return
    if again.paths:
        yield from on_modules(parts, again, again.paths, "run_again", "")
    if again.attention:
        yield from on_modules(parts, again, again.attention, "run_within", ", AttentionAgain()")


def _numbers(kept: Sequence[int]) -> str:
    return f"({', '.join(map(str, kept))}{',' * (len(kept) == 1)})"


def on_modules(parts: Parts, again: Again, paths: Sequence[str], function: str, given: str) -> Iterator[str]:
    """Lines that call a function on modules of every instance of a body."""
    piece, deep, whole = again.piece, "    ", "model"
    lines: list[str] = []
    if piece.repeated:
        lines += indented(parts.loop(piece, again))
        deep, whole = "        ", "block"
    modules = [f"{whole}.get_submodule({literal(path)})" if path else whole for path in paths]
    if len(modules) == 1:
        lines.append(f"{deep}{function}({modules[0]}{given})")
    else:
        lines += wrapped(f"{deep}for path in (", list(map(literal, paths)), "):", keep=True)
        lines.append(f"{deep}    {function}({whole}.get_submodule(path){given})")
    yield from parts.only(piece, lines)


def recomputing(parts: Parts) -> tuple[Iterator[str], ...]:
    """The functions that the lines of `runs_again` call."""
    found = []
    if any(again.paths or again.kept is not None for again in parts.recomputed):
        policy = any(again.kept is not None for again in parts.recomputed)
        changing = any(again.changes for again in parts.recomputed)
        found += [iter(UNCHANGED.split("\n"))] * changing + [run_again(policy, changing)]
    if any(again.kept is not None for again in parts.recomputed):
        found.append(all_but(device_of(parts.subject)))
    if any(again.attention for again in parts.recomputed):
        found.append(attention_again())
    return tuple(found)


UNCHANGED = '''\
class Unchanged:
    """A context in which modules run again that have changed buffers already: these stay as they are."""

    def __init__(self, buffers: Sequence[Tensor], context: Any) -> None:
        self.buffers, self.context = buffers, context

    def __enter__(self) -> None:
        self.before = [buffer.clone() for buffer in self.buffers]
        self.context.__enter__()

    def __exit__(self, *error: Any) -> Any:
        for buffer, one in zip(self.buffers, self.before, strict=True):
            buffer.copy_(one)
        return self.context.__exit__(*error)'''


def run_again(policy: bool, changing: bool) -> Iterator[str]:
    contexts = ", contexts: Callable[[], Any] = noop_context_fn" if policy or changing else ""
    yield f"def run_again(module: nn.Module{contexts}) -> None:"
    kept = "what it is given, and what contexts keep" if policy else "what it is given only"
    yield f'    """Have a module keep {kept}: it runs again in the backward pass."""'
    yield "    run = module.forward"
    yield ""
    if changing:
        yield "    def both() -> tuple[Any, Any]:"
        yield "        first, again = contexts()"
        yield "        return first, Unchanged(list(module.buffers()), again)"
        yield ""
    yield "    def forward(*args: Any, **kwargs: Any) -> Any:"
    named = "both" if changing else "contexts"
    options = f"use_reentrant=False, context_fn={named}" if policy or changing else "use_reentrant=False"
    yield f"        return checkpoint(run, *args, {options}, **kwargs)"
    yield ""
    yield "    module.forward = forward"


def all_but(device: str) -> Iterator[str]:
    yield "def all_but(products: tuple[int, ...]) -> Any:"
    yield '    """Contexts of a checkpoint that keep attention, and of all products those with these numbers."""'
    yield "    aten, ran = torch.ops.aten, itertools.count()"
    kernels = [f"aten.{kernel}.default," for kernel in KERNELS[device]]
    if len(kernels) == 1:
        yield f"    attention = ({kernels[0]})"
    else:
        yield from ("    attention = (", *(f"        {kernel}" for kernel in kernels), "    )")
    yield ""
    yield "    def policy(context: Any, op: Any, *args: Any, **kwargs: Any) -> CheckpointPolicy:"
    yield "        kept = op in attention or (op in (aten.mm.default, aten.addmm.default) and next(ran) in products)"
    yield "        return CheckpointPolicy.MUST_SAVE if kept else CheckpointPolicy.PREFER_RECOMPUTE"
    yield ""
    yield "    return create_selective_checkpoint_contexts(policy)"


def attention_again() -> Iterator[str]:
    yield "class AttentionAgain(TorchFunctionMode):"
    yield '    """While it is entered, attention keeps what it is given only: it runs again in the backward pass."""'
    yield ""
    yield "    def __torch_function__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:"
    yield "        if func is F.scaled_dot_product_attention:"
    yield "            return checkpoint(func, *args, use_reentrant=False, **kwargs or {})"
    yield "        return func(*args, **kwargs or {})"
