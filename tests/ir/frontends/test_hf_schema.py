"""Sizes and counts of a configuration: as large as models may be, and not larger, wherever they stand."""

from __future__ import annotations

import json
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from meshwright.ir.errors import ConfigValueBad, RemoteCodeRefused
from meshwright.ir.frontends.hf_schema import check_sizes, settings_of
from meshwright.ir.limits import HEADS, LAYERS, SIZE


def read(folder: Path, **settings: Any) -> dict[str, Any]:
    file = folder / "config.json"
    file.write_text(json.dumps(settings))
    return settings_of(file)


@pytest.mark.parametrize(
    "settings",
    [
        {},
        {"vocab_size": 1, "hidden_size": SIZE.most, "num_hidden_layers": LAYERS.most},
        {"num_key_value_heads": None, "intermediate_size": [1, 2, None]},
        {"encoder_layers": LAYERS.most, "n_layer": LAYERS.most, "inner": {"depth": LAYERS.most, "n_heads": HEADS.most}},
        {"blocks": [LAYERS.most, {"num_experts": HEADS.most}], "layers_of": LAYERS.most + 1, "heads": "many"},
        {"depth": True, "n_head": 1.5, "anything": {"else": [None, "x"]}},
    ],
)
def test_what_a_configuration_may_say(tmp_path: Path, settings: dict[str, Any]) -> None:
    assert read(tmp_path, **settings) == settings


@pytest.mark.parametrize(
    ("settings", "key", "fix"),
    [
        ({"vocab_size": 0}, "vocab_size", "give a whole number of at least 1"),
        ({"vocab_size": True}, "vocab_size", "give a whole number of at least 1"),
        ({"hidden_size": [8, 0]}, "hidden_size", "give a whole number of at least 1"),
        ({"hidden_size": SIZE.most + 1}, "hidden_size", f"give at most {SIZE.most:,}"),
        ({"hidden_size": [8, SIZE.most + 1]}, "hidden_size", f"give at most {SIZE.most:,}"),
        ({"num_attention_heads": HEADS.most + 1}, "num_attention_heads", f"give at most {HEADS.most:,}"),
        ({"decoder_layers": LAYERS.most + 1}, "decoder_layers", f"give at most {LAYERS.most:,}"),
        ({"vision": {"depth": LAYERS.most + 1}}, "vision.depth", f"give at most {LAYERS.most:,}"),
        ({"stages": [1, {"num_experts": HEADS.most + 1}]}, "stages[1].num_experts", f"give at most {HEADS.most:,}"),
        ({"head": HEADS.most + 1}, "head", f"give at most {HEADS.most:,}"),
    ],
)
def test_what_it_may_not_say(tmp_path: Path, settings: dict[str, Any], key: str, fix: str) -> None:
    with pytest.raises(ConfigValueBad) as caught:
        read(tmp_path, **settings)
    assert key.rpartition(".")[2].partition("[")[0] in caught.value.place
    assert caught.value.place.startswith(str(tmp_path / "config.json"))
    assert caught.value.fix == fix


@pytest.mark.parametrize(
    ("code", "named"), [({"a": "x.A", "b": "x.B"}, "x.A, x.B"), ("own", "own"), ({"a": "y" * 300}, "y" * 200)]
)
def test_code_of_its_own_is_named(tmp_path: Path, code: object, named: str) -> None:
    with pytest.raises(RemoteCodeRefused) as caught:
        read(tmp_path, auto_map=code)
    asks = f"it asks for code of its own ({named}), and only code of the installed transformers is run"
    assert (caught.value.place, caught.value.cause) == (f"{tmp_path / 'config.json'}, auto_map", asks)


def test_sizes_that_a_family_calls_otherwise() -> None:
    """What a configuration of transformers has in the end: whole numbers are held to the limits, nothing else is."""
    check_sizes(SimpleNamespace(hidden_size=SIZE.most, num_hidden_layers=None, vocab_size="many"), "here")
    with pytest.raises(ConfigValueBad) as caught:
        check_sizes(SimpleNamespace(hidden_size=8, num_hidden_layers=LAYERS.most + 1), "here")
    assert "num_hidden_layers" in caught.value.place
    assert caught.value.fix == f"give at most {LAYERS.most:,}"
