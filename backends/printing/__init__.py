"""Printing: a body of a Program as ordinary code, for any language of tensors.

    Routed body -> items (`items`) -> functions (`regions`) -> lines (`functions`)

    common        what dialects have in common: moves, and a rank's parts of constants and of a batch
    writers       operators that are written alike; expressions: parts of expressions, and refusals
    dialect       what a dialect says, and an operator as it is given that
    naming        names of functions, and those that the model's own code has for values
    rows          rows of experts, of which there are as many as tokens that chose them
    wires         where calls of bodies take their inputs from

Only the forward pass is printed, on each rank's shards; where a value changes its placement a named move stands, whose
backward pass its way gives (`meshwright.ir.program.routes`); the framework derives the rest. What an operator or a move
looks like is a `Dialect`'s to say; which value is called what, what stands in one line, and in which function, is
decided here, for all dialects.
"""

from meshwright.backends.printing.dialect import Dialect, LocalOp
from meshwright.backends.printing.functions import Function, functions_of
from meshwright.backends.printing.items import Item, items_of
from meshwright.backends.printing.regions import Region, regions_of

__all__ = ["Dialect", "Function", "Item", "LocalOp", "Region", "functions_of", "items_of", "regions_of"]
