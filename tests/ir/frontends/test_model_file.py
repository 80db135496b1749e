"""Models that have no file of their own, as files."""

import json
from pathlib import Path

from meshwright.ir.frontends.torch_.sources.hf_config import load_hf
from meshwright.ir.frontends.torch_.sources.model_file import model_file


def test_tokens_are_drawn_from_those_that_have_logits(tmp_path: Path) -> None:
    """Inkling pads the rows of its table, and leaves the logits of padding away."""
    from transformers import GPT2Config

    told = GPT2Config(n_layer=1, vocab_size=384).to_dict() | {
        "unpadded_vocab_size": 258,
        "architectures": ["GPT2LMHeadModel"],
    }
    (tmp_path / "config.json").write_text(json.dumps(told))
    source = load_hf(tmp_path / "config.json")
    ((_, text), _) = model_file(source, str(tmp_path)).beside
    assert "VOCABULARY = 258\n" in text
