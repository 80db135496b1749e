"""The tiny Llama of `examples/llama.py`, in bf16."""

import importlib.util
import sys
from pathlib import Path

from torch import nn

_PATH = Path(__file__).parents[3] / "examples" / "llama.py"
_spec = importlib.util.spec_from_file_location("llama_of_examples", _PATH)
assert _spec is not None
assert _spec.loader is not None
_llama = importlib.util.module_from_spec(_spec)
sys.modules[_spec.name] = _llama
_spec.loader.exec_module(_llama)

dims, example_inputs, loss, optimizer = _llama.dims, _llama.example_inputs, _llama.loss, _llama.optimizer


def tiny() -> nn.Module:
    """In the dtype that most models are trained in."""
    model: nn.Module = _llama.tiny().bfloat16()
    return model
