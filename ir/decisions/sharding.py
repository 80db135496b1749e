"""ZeRO as data: the tensors of a parameter that ranks with copies of it share out.

    zero=1   the optimizer's states                      Rajbhandari et al. 2020, P_os
    zero=2   gradients too                               P_os+g
    zero=3   parameters too, gathered before use         P_os+g+p, FSDP

A level is a name for one point of `Sharding`. What stores parameters asks the point what is cut, never the number;
another kind of storage is another line of `ZERO`.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping
from dataclasses import dataclass, fields


@dataclass(frozen=True, slots=True)
class Sharding:
    """Which tensors of a parameter are cut over the ranks that hold copies of it."""

    optimizer: bool = False
    grads: bool = False
    params: bool = False

    @property
    def kinds(self) -> tuple[str, ...]:
        """The tensors that are cut, as targets name them."""
        return tuple(field.name for field in fields(self) if getattr(self, field.name))

    @property
    def publishes(self) -> bool:
        """Whether updated parameters are gathered at the end of a step: their states are cut, and they are not."""
        return self.optimizer and not self.params


ZERO: Mapping[int, Sharding] = {
    0: Sharding(),
    1: Sharding(optimizer=True),
    2: Sharding(optimizer=True, grads=True),
    3: Sharding(optimizer=True, grads=True, params=True),
}
"""The levels of ZeRO."""


def level_of(cut: Sharding) -> int:
    """The lowest ZeRO level that cuts at least this."""
    return next(level for level, one in ZERO.items() if set(cut.kinds) <= set(one.kinds))


def levels(known: Collection[str]) -> tuple[int, ...]:
    """The ZeRO levels of which a target can cut everything."""
    return tuple(level for level, one in ZERO.items() if set(one.kinds) <= set(known))
