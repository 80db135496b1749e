"""Pure data and laws: the types that every other room speaks in, and the verifiers that trust nobody."""
