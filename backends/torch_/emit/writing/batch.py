"""`batch_of`: the sequences of this rank, or its part of them."""

from __future__ import annotations

from collections.abc import Iterator

from meshwright.backends.torch_.emit.parts import Parts


def batches(parts: Parts) -> Iterator[str]:
    data, context = parts.axes.data, parts.context
    yield "def batch_of(step: int, mesh: DeviceMesh) -> dict[str, Tensor]:"
    yield '    """This rank\'s part of a step. Your own data goes here; all ranks must cut the same batch."""'
    yield "    torch.manual_seed(SEED + step)"
    yield "    whole: dict[str, Tensor] = model_file.example_inputs(GLOBAL_BATCH, SEQ)"
    mine = "tensor"
    if data is not None:
        yield f'    here, parts = mesh["{data}"].get_local_rank(), mesh["{data}"].size()'
        mine = "tensor.chunk(parts)[here]"
    mine += "" if parts.subject.device == "cpu" else '.to("cuda")'
    own = f"{{name: {mine} for name, tensor in whole.items()}}" if mine != "tensor" else "whole"
    if context is None:
        yield f"    return {own}"
        return
    if own != "whole":
        yield f"    own = {own}"
        own = "own"
    yield f'    context = mesh["{context.axis}"]'
    cut = ", ".join(f'"{name}": part({own}["{name}"], 1, context)' for name in context.entries)
    yield f"    return {own} | {{{cut}}}"
