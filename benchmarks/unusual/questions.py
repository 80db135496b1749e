"""Questions about models that names do not fit well, and about usual ones; pins for them, drawn by seed."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from random import Random

from benchmarks.searches import EXAMPLES

HERE = Path(__file__).parent
CONFIGS = EXAMPLES / "configs"
REGISTRY = HERE.parent / "registry" / "models"

NEAR, FAR, SMALL, ONE = "8x8xH100", "4x8xA100,inter=25G", "2x4xL40S,inter=100G", "1x8xH100"

MODELS: dict[str, tuple[str, tuple[tuple[str, int, int], ...]]] = {
    "tables": (f"{HERE / 'tables.py'}:build", ((NEAR, 65536, 1), (FAR, 65536, 1))),
    "towers": (f"{HERE / 'towers.py'}:build", ((NEAR, 4096, 64), (FAR, 4096, 64))),
    "convolutions": (f"{HERE / 'convolutions.py'}:build", ((ONE, 1024, 1), (FAR, 4096, 1))),
    "mixer": (f"{REGISTRY / 'mixer.py'}:build", ((NEAR, 4096, 1), (SMALL, 1024, 1))),
    "vocabulary": (str(HERE / "vocabulary.toml"), ((NEAR, 256, 1024), (FAR, 256, 1024))),
    "one head of keys": (str(HERE / "one_kv_head.toml"), ((NEAR, 256, 4096), (FAR, 64, 4096))),
    "wide": (str(HERE / "wide.toml"), ((NEAR, 256, 2048), (FAR, 128, 2048))),
    "few experts": (str(HERE / "few_experts.toml"), ((NEAR, 256, 2048), (FAR, 128, 2048))),
    "eleven heads": (str(HERE / "eleven_heads.toml"), ((NEAR, 512, 1024), (SMALL, 128, 1024))),
    "long": (str(HERE / "long.toml"), ((ONE, 8, 32768), (NEAR, 16, 131072))),
    "GPT-2": (str(CONFIGS / "gpt2"), ((SMALL, 64, 1024), (NEAR, 512, 1024))),
    "Llama 8B": (str(CONFIGS / "llama-3.1-8b"), ((NEAR, 256, 4096), (FAR, 64, 4096))),
    "Gemma 1B": (str(CONFIGS / "gemma-3-1b"), ((ONE, 64, 2048), (FAR, 128, 2048))),
    "T5": (str(CONFIGS / "t5-large"), ((ONE, 128, 512), (FAR, 256, 512))),
    "Mixtral": (str(CONFIGS / "mixtral-8x7b"), ((NEAR, 128, 4096), (FAR, 128, 4096))),
}
"""By name: a model, and clusters, batches and sequences."""

VALUES: dict[str, tuple[object, ...]] = {
    "tp": (1, 2, 4, 8),
    "pp": (1, 2, 4),
    "dp": (1, 2, 4, 8, 16, 32, 64),
    "zero": (0, 1, 2, 3),
    "mbs": (1, 2, 4, 8, 64, 512),
    "recompute": ("none", "full"),
    "microbatches": (1, 2, 4),
}
MOST_PINS = 3


@dataclass(frozen=True, slots=True)
class Question:
    """A command line, in short; `pins` as `--fix` takes them, empty for the free plan."""

    name: str
    model: str
    cluster: str
    batch: int
    seq: int
    pins: str = ""

    def argv(self, target: str) -> list[str]:
        asked = {"cluster": self.cluster, "global-batch": self.batch, "seq": self.seq, "target": target}
        words = [word for name, value in asked.items() for word in (f"--{name}", str(value))]
        return [self.model, *words, *(("--fix", self.pins) if self.pins else ())]

    @property
    def key(self) -> str:
        return f"{self.name} on {self.cluster}, {self.batch} x {self.seq}"


def free() -> list[Question]:
    """Every model on each of its clusters, with nothing pinned."""
    return [
        Question(name, model, cluster, batch, seq)
        for name, (model, asked) in MODELS.items()
        for cluster, batch, seq in asked
    ]


def pinned(question: Question, random: Random) -> str:
    """A few pins, drawn."""
    names = random.sample(sorted(VALUES), random.randint(1, MOST_PINS))
    return ",".join(f"{name}={random.choice(VALUES[name])}" for name in names)
