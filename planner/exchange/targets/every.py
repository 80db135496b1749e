"""All targets, by name."""

from __future__ import annotations

from collections.abc import Mapping

from meshwright.planner.exchange.target import Target
from meshwright.planner.exchange.targets.accelerate import ACCELERATE
from meshwright.planner.exchange.targets.deepspeed import DEEPSPEED
from meshwright.planner.exchange.targets.maxtext import MAXTEXT
from meshwright.planner.exchange.targets.megatron import MEGATRON
from meshwright.planner.exchange.targets.megatron_bridge import MEGATRON_BRIDGE
from meshwright.planner.exchange.targets.torchtitan import TORCHTITAN

TARGETS: Mapping[str, Target] = {
    one.name: one for one in (MEGATRON, MEGATRON_BRIDGE, TORCHTITAN, DEEPSPEED, ACCELERATE, MAXTEXT)
}
