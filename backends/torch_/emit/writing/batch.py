"""`batch_of`: the sequences of this rank, or its part of them."""

from __future__ import annotations

from collections.abc import Iterator
from itertools import groupby

from meshwright.backends.torch_.emit.parts import Parts

WIDE = 80
"""Letters of an expression that stands on one line."""


def shares(parts: Parts) -> Iterator[str]:
    """What the ranks of the data axes take of a batch, like neighbours together."""
    runs = [(size, len(list(run))) for size, run in groupby(parts.shares)]
    terms = [f"({size},)" + (f" * {count}" if count > 1 else "") for size, count in runs]
    said = f"  # of a batch, on the ranks of {parts.axes.data}"
    if len(" + ".join(terms)) <= WIDE:
        yield f"SHARES = {' + '.join(terms)}{said}"
    else:
        yield "SHARES = ("
        yield f"    {terms[0]}"
        yield from (f"    + {term}" for term in terms[1:])
        yield f"){said}"


def batches(parts: Parts) -> Iterator[str]:
    data, context, shares = parts.axes.data, parts.context, parts.shares
    mine = "tensor" if data is None else "tensor.chunk(parts)[here]"
    if shares:
        mine = "tensor.split(rows)[here]"
    mine += "" if parts.subject.device == "cpu" else '.to("cuda")'
    cuts = mine != "tensor" or context is not None
    if cuts:
        yield "def own_part(whole: dict[str, Tensor], mesh: DeviceMesh) -> dict[str, Tensor]:"
        yield '    """This rank\'s part of a batch; all ranks must cut the same one."""'
        if data is not None and shares:
            each = f"len(next(iter(whole.values()))) // {sum(shares)}"
            yield f'    here, each = mesh["{data}"].get_local_rank(), {each}'
            yield "    rows = [each * share for share in SHARES]"
        elif data is not None:
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
