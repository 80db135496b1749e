"""The class `Waiting`: activations that blocks save lie in the host's memory until the backward pass.

Hooks of autograd hand over every tensor that a block's forward pass saves. Parameters stay, which are there anyway, and
so do inputs without gradient, which all blocks share. The others are copied down beside the kernels that follow, and
come back up when the backward pass of the block after theirs begins, one block ahead of where they are read.
"""

from __future__ import annotations

from collections.abc import Iterator

from meshwright.backends.lines import indented
from meshwright.backends.torch_.emit.read.allowed import device_of
from meshwright.backends.torch_.emit.read.recompute import Again
from meshwright.backends.torch_.emit.write.parts import Parts

CALL = '''\
class Call:
    """One forward pass of a block: what of it is away, and that of the block before it, which is fetched with it."""

    def __init__(self, waiting: "Waiting", before: "Call | None") -> None:
        self.waiting, self.before, self.away = waiting, before, list[ref[Away]]()

    def fetch(self) -> None:
        for call in (self, self.before):
            for one in call.away if call is not None else ():
                if (away := one()) is not None and not away.here:
                    away.fetch()


class Away:
    """A tensor that is in the host's memory until it is fetched."""

    def __init__(self, tensor: Tensor, call: Call) -> None:
        self.call, self.device, self.here = call, tensor.device, False
'''

CPU = """\
        self.tensor = torch.empty_like(tensor).copy_(tensor)
        call.away.append(ref(self))

    def fetch(self) -> None:
        self.tensor, self.here = torch.empty_like(self.tensor).copy_(self.tensor), True

    def back(self) -> Tensor:
        self.call.fetch()
        return self.tensor
"""

CUDA = """\
        self.tensor = torch.empty_like(tensor, device="cpu", pin_memory=True)
        down = call.waiting.down
        down.wait_stream(torch.cuda.current_stream())
        with torch.cuda.stream(down):
            self.tensor.copy_(tensor, non_blocking=True)
        local_of(tensor).record_stream(down)
        call.away.append(ref(self))

    def fetch(self) -> None:
        up = self.call.waiting.up
        up.wait_stream(self.call.waiting.down)
        with torch.cuda.stream(up):
            there = torch.empty_like(self.tensor, device=self.device).copy_(self.tensor, non_blocking=True)
        self.tensor, self.here, self.came = there, True, up.record_event()

    def back(self) -> Tensor:
        self.call.fetch()
        torch.cuda.current_stream().wait_event(self.came)
        local_of(self.tensor).record_stream(torch.cuda.current_stream())
        return self.tensor
"""

WAITING = '''

class Waiting:
    """Has what blocks keep for the backward pass wait in the host's memory."""

    def __init__(self) -> None:
        self.blocks, self.last = 0, cast("Call | None", None)
{streams}
    def wrap(self, block: nn.Module) -> None:
        run, first = block.forward, self.blocks == 0
        self.blocks += 1

        def forward(*args: Any, **kwargs: Any) -> Any:
            call = self.last = Call(self, None if first else self.last)
            given = [one for one in (*args, *kwargs.values()) if isinstance(one, Tensor) and not one.requires_grad]
            stays = {{local_of(one).untyped_storage().data_ptr() for one in (*block.parameters(), *given)}}
            made = dict[Any, tuple[ref[UntypedStorage], ref[Away]]]()  # torch keeps hooks as long as what they packed

            def pack(tensor: Tensor) -> Tensor | Away:
                storage = local_of(tensor).untyped_storage()
                if storage.data_ptr() in stays:
                    return tensor
                key = storage.data_ptr(), tensor.dtype, tensor.shape, tensor.stride(), tensor.storage_offset()
                found, packed = made.get(key, (None, None))
                away = packed() if packed is not None else None
                if away is None or found is None or found() is not storage:  # another one may lie in its place by now
                    away = Away(tensor, call)
                    made[key] = ref(storage), ref(away)
                return away

            with saved_tensors_hooks(pack, lambda kept: kept.back() if isinstance(kept, Away) else kept):
                return run(*args, **kwargs)

        block.forward = forward


def local_of(tensor: Tensor) -> Tensor:
    """This rank's part of a tensor, once it is there."""
    local = tensor.to_local() if isinstance(tensor, DTensor) else tensor
    return local.trigger_wait() if isinstance(local, funcol.AsyncCollectiveTensor) else local'''

STREAMS = "        self.down, self.up = torch.cuda.Stream(), torch.cuda.Stream()\n"


def waiting(parts: Parts) -> Iterator[str]:
    """The classes for offloaded activations, for the device of a script."""
    cuda = device_of(parts.subject) == "cuda"
    text = CALL + (CUDA if cuda else CPU) + WAITING.format(streams=STREAMS if cuda else "")
    yield from text.split("\n")


def waits(parts: Parts) -> Iterator[str]:
    """Lines of `parallelize` that have blocks offload their activations."""
    yield "    waiting = Waiting()"
    for piece in parts.subject.pieces:
        if piece.repeated:
            first = Again(piece=piece, stop=parts.subject.decisions.offload.blocks or None)
            yield from indented(parts.loop(piece, first))
            yield "        waiting.wrap(block)"
