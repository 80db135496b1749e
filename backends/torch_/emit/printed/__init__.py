"""Printed models: code for plans in which an axis cuts more than the batch, or stages the model.

    axes      what every mesh axis is for, and which parameters it cuts
    bodies    the forward pass of every body, as functions (`backends.printing`), and the model's, which runs them
    naming    what functions and arguments are called
    passes    forward passes, of the model or of a stage (`stages`)
    language/ how operators and moves look in PyTorch, and the functions that torch lacks

The user's modules stay, with their names and parameters; a block's own code is replaced by its printed one, on this
rank's shards. Whatever hangs on calls of modules (`fully_shard`, checkpoints, compilation) works as on the user's.
"""

from meshwright.backends.torch_.emit.printed.bodies import Printed, printed_of

__all__ = ["Printed", "printed_of"]
