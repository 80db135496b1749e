"""`speed`: what is printed of every step beside its loss, by which a run is compared with its plan."""

from __future__ import annotations

from collections.abc import Iterator

from meshwright.backends.torch_.emit.read.allowed import device_of
from meshwright.backends.torch_.emit.write.parts import Parts


def flops(parts: Parts) -> Iterator[str]:
    """Constants of `speed`."""
    subject = parts.subject
    yield f"STEP_FLOPS = {_short(subject.step_flops)}  # of the model, nothing computed again"
    if subject.peak_flops:
        yield f"PEAK_FLOPS = {_short(subject.peak_flops)}  # of one device"


def _short(number: float) -> str:
    return f"{number:.4g}".replace("e+", "e")


def speed(parts: Parts) -> Iterator[str]:
    peak, cuda = parts.subject.peak_flops, device_of(parts.subject) == "cuda"
    yield "def speed(seconds: float) -> str:"
    yield '    """How fast a step was: tokens, and floating-point work of the model on every rank."""'
    yield "    done = STEP_FLOPS / dist.get_world_size() / seconds"
    yield '    tokens = f"tokens_per_s {GLOBAL_BATCH * SEQ / seconds:.1f} flops_per_s {done:.4g}"'
    words = "step_time_s {seconds:.4f} {tokens}" + (" mfu {done / PEAK_FLOPS:.4f}" if peak else "")
    memory = " memory_bytes {torch.cuda.max_memory_allocated()}" if cuda else ""
    yield f'    return f"{words}"' if not memory else f'    words = f"{words}"'
    if memory:
        yield f'    return f"{{words}}{memory}"'
