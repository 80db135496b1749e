"""Every model of the registry: its name, its family, and how it is written as users give it."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from random import Random

from benchmarks.registry import hugging_face, vision

MODELS = Path(__file__).resolve().parent / "models"

WRITTEN: Mapping[str, tuple[str, str]] = {
    "nanogpt": ("plain torch", "nanogpt.py:build"),
    "nanogpt, mask in a buffer": ("plain torch", "nanogpt.py:masked"),
    "nanogpt, (logits, loss)": ("plain torch", "nanogpt_with_loss.py:build"),
    "llama, parallel blocks": ("plain torch", "parallel_llama.py:build"),
    "gemma2-like": ("plain torch", "gemma2_like.py:build"),
    "parameters of the root": ("plain torch", "root_parameter.py:build"),
    "dit": ("plain torch", "dit.py:build"),
    "dlrm": ("plain torch", "dlrm.py:build"),
    "two towers": ("plain torch", "two_towers.py:build"),
    "multi-task": ("plain torch", "multi_task.py:build"),
    "squared error": ("plain torch", "perceptrons.py:build"),
    "cross entropy of chances": ("plain torch", "chances.py:build"),
    "mixture of experts by hand": ("plain torch", "mixture_of_experts.py:build"),
    "attention by hand": ("plain torch", "hand_written_attention.py:build"),
    "scan": ("plain torch", "scan.py:build"),
    "u-net": ("plain torch", "unet.py:build"),
    "mlp-mixer": ("plain torch", "mixer.py:build"),
    "nn.TransformerEncoder": ("torch.nn", "torch_nn.py:encoder"),
    "nn.TransformerEncoder, dropout": ("torch.nn", "torch_nn.py:encoder_with_dropout"),
    "nn.Transformer": ("torch.nn", "torch_nn.py:transformer"),
    "nn.MultiheadAttention": ("torch.nn", "torch_nn.py:attention"),
    "nn.LSTM": ("torch.nn", "torch_nn.py:lstm"),
    "nn.GRU": ("torch.nn", "torch_nn.py:gru"),
    "nn.RNN": ("torch.nn", "torch_nn.py:rnn"),
}
"""Models in files: their families and references."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Entry:
    """One model.

    - `write` puts what has to be written into a folder and returns MODEL, as the command line takes it; it raises
      `NotBuilt` where the package itself cannot build the model.
    """

    name: str
    family: str
    write: Callable[[Path], str]

    @property
    def slug(self) -> str:
        """Its name as a folder's."""
        return "".join(letter if letter.isalnum() or letter in "-_." else "_" for letter in self.name)


def entries() -> dict[str, Entry]:
    """All models of what is installed, by name."""
    return {entry.name: entry for entry in _listed()}


def _listed() -> Iterator[Entry]:
    for name, (family, reference) in WRITTEN.items():
        yield Entry(name=name, family=family, write=_given(f"{MODELS / reference}"))
    for name, family in sorted(hugging_face.names().items()):
        yield Entry(name=f"hf:{name}", family=family, write=partial(hugging_face.write, name))
    for name, family in sorted(vision.names().items()):
        yield Entry(name=f"tv:{name}", family=family, write=partial(vision.write, name))


def _given(reference: str) -> Callable[[Path], str]:
    return lambda _: reference


def left_out() -> Iterator[str]:
    """Packages whose models are not here, and why."""
    if not vision.names():
        yield f"{vision.PACKAGE} is not installed: its models are left out"


def drawn(names: Sequence[str], number: int, seed: int) -> list[str]:
    """So many names by seed; a larger draw begins with a smaller one."""
    order = sorted(names)
    Random(seed).shuffle(order)
    return order[:number]
