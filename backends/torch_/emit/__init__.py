"""Emission: a plan as a training script in stock PyTorch.

    Decisions, Program, Calls -> axes, styles, storage -> text

`axes` says what every mesh axis is for; `styles` what `parallelize_module` is told about the modules that a tensor axis
cuts; `storage` what `fully_shard` or DDP wraps; `script` and `launch` write it down. What cannot be said is refused:
there is no fallback. What is written imports nothing of ours.
"""

from meshwright.backends.torch_.emit.files import Files, Subject, emit

__all__ = ["Files", "Subject", "emit"]
