"""The vocabulary of operators. `base` says what a rule is; each other module holds the rules of one family and
registers them on import."""

from meshwright.ir.rules.base import (
    Engine,
    Factor,
    Law,
    Pair,
    Role,
    Rule,
    Save,
    Signature,
    Work,
    expand,
    infer,
    kinds,
    rule_of,
    signature_of,
)

__all__ = [
    "Engine",
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
    "rule_of",
    "signature_of",
]
