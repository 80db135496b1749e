"""The mixture of `mixtures.py` with the temperatures of `llama_uneven.py`: numbers beside experts."""

import sys
from pathlib import Path

sys.path += [str(Path(__file__).parent), str(Path(__file__).parents[3] / "examples")]
from llama_uneven import tempered
from mixture import Mixture, dims, loss
from mixtures import SMALL, example_inputs

__all__ = ["dims", "example_inputs", "loss", "uneven"]


def uneven() -> Mixture:
    model = Mixture(SMALL, implementation="eager")
    for block in model.blocks:
        block.feed_forward_norm = tempered(SMALL.width)
    return model
