"""Table look-ups.

With the vocabulary split every rank looks up the ids that it holds and writes zeros for the others: the results add up.
Only the rows that are read cost bandwidth.
"""

from __future__ import annotations

from meshwright.ir.graph.graph import Type
from meshwright.ir.rules.base import Factor, Law, Role, Rule, Save, Signature
from meshwright.ir.rules.dims import declare, loops
from meshwright.ir.rules.registry import rule


@rule("embedding")
def embedding(signature: Signature) -> Rule:
    """table[v, d], ids[…] -> [..., d]. Rows at `padding_idx` get no gradient."""
    table, ids = signature.operands
    lead = loops(ids.shape)
    return Rule(
        factors=(*declare([(lead, ids.shape)]), Factor("v", table.shape[0], Role.SUM), Factor("d", table.shape[1])),
        operands=((("v",), ("d",)), lead),
        results=((*lead, ("d",)),),
        types=(Type((*ids.shape, table.shape[1]), table.dtype),),
        laws=(Law.LINEAR, Law.INDEX),
        saves=(Save("operand", 1),),
        gathered=(0,),
    )
