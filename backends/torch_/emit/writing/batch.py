"""`batch_of`: the sequences of this rank, or its part of them."""

from __future__ import annotations

from collections.abc import Iterator

from meshwright.backends.torch_.emit.parts import Parts


def batches(parts: Parts) -> Iterator[str]:
    data, context = parts.axes.data, parts.context
    mine = "tensor" if data is None else "tensor.chunk(parts)[here]"
    mine += "" if parts.subject.device == "cpu" else '.to("cuda")'
    cuts = mine != "tensor" or context is not None
    if cuts:
        yield "def own_part(whole: dict[str, Tensor], mesh: DeviceMesh) -> dict[str, Tensor]:"
        yield '    """This rank\'s part of a batch; all ranks must cut the same one."""'
        if data is not None:
            yield f'    here, parts = mesh["{data}"].get_local_rank(), mesh["{data}"].size()'
        own = f"{{name: {mine} for name, tensor in whole.items()}}" if mine != "tensor" else "whole"
        if context is None:
            yield f"    return {own}"
        else:
            if own != "whole":
                yield f"    own = {own}"
                own = "own"
            yield f'    context = mesh["{context.axis}"]'
            cut = ", ".join(f'"{name}": part({own}["{name}"], 1, context)' for name in context.entries)
            yield f"    return {own} | {{{cut}}}"
        yield ""
        yield ""
    yield from batch_of(cuts=cuts)


def batch_of(*, cuts: bool) -> Iterator[str]:
    yield "def batch_of(step: int, mesh: DeviceMesh) -> dict[str, Tensor]:"
    yield '    """This rank\'s part of a step. Your own data goes here."""'
    yield "    torch.manual_seed(SEED + step)"
    yield "    whole: dict[str, Tensor] = model_file.example_inputs(GLOBAL_BATCH, SEQ)"
    yield "    return own_part(whole, mesh)" if cuts else "    return whole"
