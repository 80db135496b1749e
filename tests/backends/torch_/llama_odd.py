"""The tiny Llama of `examples/llama.py` with a vocabulary that two ranks divide, and four do not."""

import importlib.util
import sys
from pathlib import Path

from torch import nn

_PATH = Path(__file__).parents[3] / "examples" / "llama.py"
_spec = importlib.util.spec_from_file_location("odd_llama_of_examples", _PATH)
assert _spec is not None
assert _spec.loader is not None
_llama = importlib.util.module_from_spec(_spec)
sys.modules[_spec.name] = _llama
_spec.loader.exec_module(_llama)

VOCABULARY = 254
dims, loss, optimizer = _llama.dims, _llama.loss, _llama.optimizer


def example_inputs(batch: int, seq: int) -> dict[str, object]:
    """Tokens of this vocabulary."""
    return {name: tensor % VOCABULARY for name, tensor in _llama.example_inputs(batch, seq).items()}


def odd() -> nn.Module:
    """Its rows do not divide over two shards of two ranks."""
    model: nn.Module = _llama.Llama(
        _llama.LlamaConfig(vocab=VOCABULARY, width=64, ffn=128, layers=4, heads=8, kv_heads=4)
    )
    return model
