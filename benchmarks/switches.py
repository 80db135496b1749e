"""Where the best choice changes: the kind of context parallelism, and what ranks do inside experts.

    python -m benchmarks.switches

A *switch* asks one question under several values of a name, each with the rest chosen by a search, and says which is
fastest. Beside each other stand questions that differ in one thing only: heads, links, length. For experts, the best
plan under which they are split like everything else stands beside the best under any arrangement.
"""

from __future__ import annotations

import json
import sys
from argparse import ArgumentParser
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from math import inf

from benchmarks.searches import Case, opened, searched
from meshwright.ir.names import CONTEXT
from meshwright.planner.question.constraints import Constraints
from meshwright.planner.question.pins import Value

Only = Mapping[str, tuple[Value, ...]]

SHARED: Only = {"cp": (2, 4, 8, 16, 32, 64)}
KINDS: Mapping[str, Only] = {name: {"context": (name,), **SHARED} for name in CONTEXT}
FEW_HEADS = Case(model="llama-3.1-8b", cluster="1x8xA100", batch=2, seq=16384)
MANY_HEADS = replace(FEW_HEADS, model="phi-3-mini")
EXPERTS: Mapping[str, Only] = {"like all else": {"ep": (1,)}, "apart": {}}


@dataclass(frozen=True, slots=True)
class Switch:
    """A question, the values that are held against each other, and what of it differs from the one before."""

    what: str
    case: Case
    values: Mapping[str, Only]


SWITCHES = (
    Switch("8 heads of keys and values", FEW_HEADS, KINDS),
    Switch("32 of them", MANY_HEADS, KINDS),
    Switch("PCIe instead of NVLink", replace(MANY_HEADS, cluster="1x8xL40S"), KINDS),
    Switch("four times as long", replace(MANY_HEADS, seq=65536), KINDS),
    Switch(
        "experts on their own ranks",
        Case(model="mixtral-8x7b", cluster="8x8xH100", batch=64, seq=32768, stack="megatron"),
        EXPERTS,
    ),
)


@dataclass(frozen=True, slots=True, kw_only=True)
class Shown:
    """What a switch came to: seconds and configuration by value, infinite and empty where nothing fits."""

    what: str
    case: str
    step_s: Mapping[str, float]
    config: Mapping[str, str]

    @property
    def fastest(self) -> str:
        return min(self.step_s, key=self.step_s.__getitem__)

    @property
    def saving(self) -> float:
        """Over the next best."""
        first, second = sorted(self.step_s.values())[:2]
        return 1 - first / second

    def __str__(self) -> str:
        lines = [f"{self.what}: {self.case}"]
        for name, step_s in self.step_s.items():
            mark = "*" if name == self.fastest else " "
            lines.append(f"  {mark} {name:13} {step_s:9.4f} s  {self.config[name]}")
        return "\n".join([*lines, f"    {self.fastest} saves {self.saving:.1%}"])


def shown(switch: Switch) -> Shown:
    step_s, config = {}, {}
    for name, only in switch.values.items():
        best = searched(opened(switch.case, Constraints(only=only))).best
        step_s[name], config[name] = (best.step_s, str(best.config)) if best else (inf, "nothing fits")
    return Shown(what=switch.what, case=str(switch.case), step_s=step_s, config=config)


def main(argv: Sequence[str]) -> int:
    """Search and print."""
    parser = ArgumentParser(prog="python -m benchmarks.switches", description=(__doc__ or "").partition("\n")[0])
    parser.add_argument("--json", action="store_true", help="print JSON")
    args = parser.parse_args(argv)
    found = []
    for switch in SWITCHES:
        found.append(shown(switch))
        print(found[-1], file=sys.stderr if args.json else sys.stdout, flush=True)
    if args.json:
        told = [
            {"what": one.what, "case": one.case, "fastest": one.fastest, "saving": one.saving}
            | {"step_s": {name: None if value == inf else value for name, value in one.step_s.items()}}
            | {"config": dict(one.config)}
            for one in found
        ]
        print(json.dumps(told))
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
