"""Emission: a plan as a training script in stock PyTorch.

    Decisions, Program, Calls -> axes, storage, printed bodies -> text

`axes` says what every mesh axis is for; `printed` writes the forward pass of every body on a rank's shards, unless the
model's own code can run; `storage` says what `fully_shard` or DDP wraps; `script` and `launch` write it down. What no
code is written for is refused. What is written imports nothing of ours.
"""

from meshwright.backends.torch_.emit.files import Files, Subject, emit

__all__ = ["Files", "Subject", "emit"]
