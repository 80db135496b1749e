"""Emission: a plan as a training script in stock PyTorch.

    Decisions, Program, Calls -> `read`: axes, storage, stages, recompute -> `printed`: bodies -> `write`: files

`read` says what every mesh axis is for and what `fully_shard` or DDP wraps; `printed` writes the forward pass of every
body on a rank's shards, unless the model's own code can run; `write` puts down what the plan needs, and no more. What
no code is written for is refused. What is written imports nothing of ours.
"""

from meshwright.backends.torch_.emit.write.files import Files, Subject, emit

__all__ = ["Files", "Subject", "emit"]
