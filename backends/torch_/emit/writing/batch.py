"""`batch_of`: the sequences of this rank."""

from __future__ import annotations

from collections.abc import Iterator

from meshwright.backends.torch_.emit.parts import Parts


def batches(parts: Parts) -> Iterator[str]:
    data = parts.axes.data
    yield "def batch_of(step: int, mesh: DeviceMesh) -> dict[str, Tensor]:"
    yield '    """This rank\'s sequences of a step. Your own data goes here; all ranks must cut the same batch."""'
    yield "    torch.manual_seed(SEED + step)"
    yield "    whole: dict[str, Tensor] = model_file.example_inputs(GLOBAL_BATCH, SEQ)"
    if data is not None:
        yield f'    here, parts = mesh["{data}"].get_local_rank(), mesh["{data}"].size()'
        mine = "tensor.chunk(parts)[here]"
    else:
        mine = "tensor"
    mine += "" if parts.subject.device == "cpu" else '.to("cuda")'
    yield "    return whole" if mine == "tensor" else f"    return {{name: {mine} for name, tensor in whole.items()}}"
