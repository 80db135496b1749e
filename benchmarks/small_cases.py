"""Questions about small models, few enough in their plans that all of them can be written down
(`benchmarks.every_plan`)."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

from benchmarks.searches import EXAMPLES

CLUSTERS = Path(__file__).parent / "data" / "clusters"
MODELS = EXAMPLES / "small.py"


@dataclass(frozen=True, slots=True)
class Question:
    """A command line, in short."""

    cluster: str
    batch: int
    seq: int
    stack: str = "torch"
    model: str = f"{EXAMPLES / 'mlp.py'}:build"
    more: tuple[str, ...] = ()
    """Other words of it: pins."""
    target: str = "any"

    def __str__(self) -> str:
        model, cluster = Path(self.model).name, Path(self.cluster).name
        return f"{' '.join((model, 'on', cluster, *self.more))}, {self.batch} x {self.seq}, {self.stack}"

    def argv(self) -> list[str]:
        asked = {"cluster": self.cluster, "global-batch": self.batch, "seq": self.seq}
        asked |= {"stack": self.stack, "target": self.target}
        return [self.model, *(word for name, value in asked.items() for word in (f"--{name}", str(value))), *self.more]


CASES = tuple(
    Question(cluster, batch, seq, stack)
    for cluster, batch, seq in (
        ("1x2xH100", 4, 128),
        ("1x2xL40S", 2, 2048),
        ("2x1xA100,inter=10G", 2, 512),
    )
    for stack in ("torch", "megatron")
)
"""Two products and what is between them, under everything that may be chosen."""


def small(name: str, cluster: str, batch: int, seq: int, *pins: str, stack: str = "torch") -> Question:
    """A question about one of the models of `examples/small.py`."""
    more = tuple(word for pin in pins for word in pin.split(" "))
    return Question(cluster, batch, seq, stack, f"{MODELS}:{name}", more)


SMALL_MEMORY, UNLIKE, NEAR = (str(CLUSTERS / f"{name}.toml") for name in ("small_memory", "unlike_pair", "near_pair"))
PLAIN = "--fix zero=0,mbs=2,recompute=none"
PIPED = "--fix zero=0,mbs=2,recompute=none --forbid schedule=custom"
UNEVEN = "--fix zero=0,recompute=none --allow mbs=4|8 --forbid schedule=custom"
"""Where one of two devices does all, its micro-batches are those of both."""
MANY = (
    small("narrow", "1x2xA100", 4, 512, PLAIN),
    small("gated", "1x2xA100", 4, 512, PLAIN),
    small("attention", "1x2xA100", 4, 512, "--fix mbs=2"),
    small("attention", "1x2xL40S", 4, 4096, "--fix mbs=2,zero=0", stack="megatron"),
    small("mixed", "1x2xA100", 4, 512, PLAIN),
    small("hashed", "1x2xA100", 4, 1023, "--fix zero=0,mbs=2,recompute=none"),
    small("language", "1x2xA100", 4, 512, "--fix mbs=2,recompute=none"),
    small("tied", "1x2xA100", 4, 512, "--fix zero=0,mbs=2,recompute=none"),
    small("blocks_between", "1x2xA100", 4, 511, PIPED),
    small("two_lines", "1x2xA100", 4, 511, PIPED),
    small("four_lines", "1x2xH100", 4, 511, PIPED),
    small("four_lines", "1x4xH100", 8, 511, f"--fix pp=4 {PIPED}"),
    small("four_lines", UNLIKE, 8, 2047, UNEVEN),
    small("four_lines", NEAR, 8, 2047, UNEVEN),
    small("four_lines", "2x1xA100,inter=10G", 8, 2047, "--fix pp=2 --forbid schedule=custom"),
    small("narrow", SMALL_MEMORY, 64, 2048, "--fix recompute=none"),
)
