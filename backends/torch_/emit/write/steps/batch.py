"""`batch_of`: the sequences of this rank, or its part of them."""

from __future__ import annotations

from collections.abc import Iterator
from itertools import groupby

from meshwright.backends.lines import quoted
from meshwright.backends.torch_.emit.read.allowed import device_of
from meshwright.backends.torch_.emit.write.parts import Parts

WIDE = 80
"""Letters of an expression that stands on one line."""


def shares(parts: Parts) -> Iterator[str]:
    """Shares of a batch that the ranks of the data axes take, equal neighbours together."""
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
    data, shares = parts.axes.data, parts.shares
    mine = "tensor" if data is None else "tensor.chunk(parts)[here]"
    if shares:
        mine = "tensor.split(rows)[here]"
    if device_of(parts.subject) != "cpu":
        mine += '.to("cuda")'
    elif mine != "tensor":
        mine += ".clone()"  # the rest of the batch is let go
    cuts = mine != "tensor"
    if cuts:
        yield "def own_part(whole: dict[str, Tensor], mesh: DeviceMesh) -> dict[str, Tensor]:"
        yield '    """This rank\'s part of a batch; all ranks must cut the same one."""'
        if data is not None and shares:
            each = f"len(next(iter(whole.values()))) // {sum(shares)}"
            yield f'    here, each = mesh["{data}"].get_local_rank(), {each}'
            yield "    rows = [each * share for share in SHARES]"
        elif data is not None:
            yield f'    here, parts = mesh["{data}"].get_local_rank(), mesh["{data}"].size()'
        yield f"    return {{name: {mine} for name, tensor in whole.items()}}"
        yield ""
        yield ""
    yield from batch_of(cuts=cuts)


def seeded(parts: Parts) -> Iterator[str]:
    """The function `seed`."""
    yield "def seed(step: int, mesh: DeviceMesh) -> None:"
    yield '    """Draw other numbers in every step, and on ranks that have other samples or layers: for dropout."""'
    yield "    place = 0"
    yield f"    for axis in ({quoted(draws_along(parts))},):"
    yield "        place = place * mesh[axis].size() + mesh[axis].get_local_rank()"
    yield f"    torch.manual_seed((SEED + step) * {parts.subject.ranks} + place)"


def draws_along(parts: Parts) -> tuple[str, ...]:
    """The axes along which ranks draw different numbers, if the model draws any. In printed code, what an axis cuts
    beside samples is drawn apart where it stands."""
    subject, axes = parts.subject, parts.axes
    if parts.by_stage or not any(op.draws for piece in subject.pieces for op in piece.graph.ops):
        return ()
    return (*["pp"] * (parts.pipeline is not None), *axes.batch)


def batch_of(*, cuts: bool) -> Iterator[str]:
    yield "def batch_of(step: int, mesh: DeviceMesh) -> dict[str, Tensor]:"
    yield '    """This rank\'s part of a step. Your own data goes here."""'
    yield "    torch.manual_seed(SEED + step)"
    yield "    whole: dict[str, Tensor] = model_file.example_inputs(GLOBAL_BATCH, SEQ)"
    yield "    return own_part(whole, mesh)" if cuts else "    return whole"
