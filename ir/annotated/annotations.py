"""Annotations: where a model's own code says that values and parameters lie, on a mesh that it names.

They are read by a front end, of the fold that it makes, and turned into decisions by `plan`.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field

Spec = tuple[tuple[str, ...], ...]
"""Of every dimension the mesh axes that cut it, major to minor; last dimensions that are whole may be left out."""


@dataclass(frozen=True, slots=True)
class Annotations:
    """What is said of a fold.

    - `params` are by path in the model, as `joined` makes it of a call's path and the parameter's.
    - `values` are results and inputs of bodies, by body and name: calls of a body are annotated alike, or the first
      that is counts.
    """

    params: Mapping[str, Spec] = field(default_factory=dict)
    values: Mapping[tuple[str, str], Spec] = field(default_factory=dict)

    def __bool__(self) -> bool:
        return bool(self.params or self.values)
