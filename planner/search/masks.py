"""Refusals that hold for more plans than the one that met them.

A refusal may say which parts of a plan it depends on (`CapabilityError.depends`). It then holds for all configurations
with the same values there (`PARTS`), so that a search leaves them out before anything of them is priced.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field

from meshwright.ir.errors import MeshwrightError
from meshwright.ir.errors.capability import BODIES, CUTS, RECOMPUTE, SCHEDULE, STORAGE, CapabilityError
from meshwright.planner.question.pins import Config


@dataclass(slots=True)
class Masks:
    """Refusals by the parts of a plan that they depend on, and by the values of these parts."""

    known: dict[frozenset[str], dict[tuple[object, ...], CapabilityError]] = field(default_factory=dict)

    def note(self, config: Config, refusal: MeshwrightError) -> None:
        """Keep a refusal of a configuration, if it says what it depends on."""
        if isinstance(refusal, CapabilityError) and refusal.depends is not None:
            self.known.setdefault(refusal.depends, {})[values_of(config, refusal.depends)] = refusal

    def __bool__(self) -> bool:
        return bool(self.known)

    def of(self, config: Config) -> CapabilityError | None:
        """The refusal of another configuration that holds for this one, too."""
        found = (refusals.get(values_of(config, parts)) for parts, refusals in self.known.items())
        return next(filter(None, found), None)

    def whatever_axes_do(self, config: Config) -> CapabilityError | None:
        """A refusal that holds for all plans with the stages and the recomputation of this one."""
        return self.known.get(frozenset((RECOMPUTE,)), {}).get(values_of(config, (RECOMPUTE,)))


def _cuts(config: Config) -> tuple[object, ...]:
    """The use of mesh axes inside bodies, apart from how many ranks share the batch."""
    inside = config.tp, config.cp, config.ep, config.etp, config.sp, config.context, config.zigzag
    return config.degrees().mesh().names, *inside


def _storage(config: Config) -> tuple[object, ...]:
    return config.degrees().mesh().names, config.zero, config.regather, bool(config.shard)


def _bodies(config: Config) -> tuple[object, ...]:
    """All that the code of bodies depends on, apart from batch sizes. Stages, schedules, micro-batches lie outside."""
    return *_cuts(config), config.zero, config.regather, config.recompute, config.offload


def _schedule(config: Config) -> tuple[object, ...]:
    return config.schedule, config.pp > 1, config.vp


PARTS: Mapping[str, Callable[[Config], tuple[object, ...]]] = {
    BODIES: _bodies,
    CUTS: _cuts,
    STORAGE: _storage,
    SCHEDULE: _schedule,
    RECOMPUTE: lambda config: (config.recompute,),
}
"""The values of a configuration that every part of its plan follows from."""


def values_of(config: Config, parts: Iterable[str]) -> tuple[object, ...]:
    """The values of a configuration that these parts of its plan follow from."""
    return tuple(PARTS[part](config) for part in sorted(parts))
