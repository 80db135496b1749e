"""The vocabulary of operators. `base` says what a rule is, `registry` which one an
operator has; each other module holds the rules of one family and
registers them on import."""

from meshwright.ir.rules import opaque
from meshwright.ir.rules.base import Engine, Expansion, Factor, Law, Pair, Role, Rule, Save, Signature, Work
from meshwright.ir.rules.families import (
    attention,
    conv,
    creation,
    elementwise,
    embedding,
    loss,
    matmul,
    moe,
    movement,
    norm,
    reduction,
)
from meshwright.ir.rules.opaque import register_rule, unregister_rule
from meshwright.ir.rules.registry import expand, infer, kinds, rule_of, signature_of

FAMILIES = (
    attention,
    conv,
    creation,
    elementwise,
    embedding,
    loss,
    matmul,
    moe,
    movement,
    norm,
    opaque,
    reduction,
)
"""The modules that hold rules."""

__all__ = [
    "FAMILIES",
    "Engine",
    "Expansion",
    "Factor",
    "Law",
    "Pair",
    "Role",
    "Rule",
    "Save",
    "Signature",
    "Work",
    "expand",
    "infer",
    "kinds",
    "register_rule",
    "rule_of",
    "signature_of",
    "unregister_rule",
]
