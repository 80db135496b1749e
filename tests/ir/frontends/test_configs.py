"""Hugging Face configurations and shape files, good and bad."""

from __future__ import annotations

import json
import sys
from dataclasses import asdict
from functools import partial
from pathlib import Path
from typing import Any

import pytest
import torch

from meshwright.ir.errors import (
    ConfigUnreadable,
    ConfigValueBad,
    DependencyMissing,
    MeshwrightError,
    ModelFileMissing,
    RemoteCodeRefused,
    ShapeFileNotToml,
    ShapeImpossible,
    ShapeKeyMissing,
    ShapeKeyUnknown,
    UnknownModelType,
)
from meshwright.ir.frontends.door import capture, load_model
from meshwright.ir.frontends.shape import read_shape, validated
from meshwright.ir.frontends.torch_.sources import hf_config
from meshwright.ir.frontends.torch_.sources.decoder import Decoder
from meshwright.ir.frontends.torch_.sources.factory import Hooks, TorchSource
from tests.ir.frontends.tiny import EXAMPLES, write_config
from tests.mutations import mutated, refusal

SHAPE: dict[str, Any] = {"layers": 2, "hidden": 32, "ffn_hidden": 64, "heads": 4, "vocab": 100}


def test_a_directory_and_its_config_are_the_same(tmp_path: Path) -> None:
    folder = write_config(tmp_path, "gpt2")
    assert load_model(str(folder)).config == load_model(str(folder / "config.json")).config


def test_dtype_of_a_config(tmp_path: Path) -> None:
    folder = write_config(tmp_path, "llama-3.1-8b", layers=1)
    kinds = {str(p.dtype) for p in load_model(str(folder)).module.parameters()}
    assert kinds == {"torch.bfloat16"}
    assert {str(p.dtype) for p in load_model(str(folder), dtype="fp32").module.parameters()} == {"torch.float32"}


def config_refused(folder: Path, text: str, kind: type[MeshwrightError]) -> MeshwrightError:
    (folder / "config.json").write_text(text)
    with pytest.raises(kind) as caught:
        load_model(str(folder))
    return caught.value


def test_no_config(tmp_path: Path) -> None:
    with pytest.raises(ModelFileMissing):
        load_model(str(tmp_path))
    with pytest.raises(ModelFileMissing):
        load_model(str(tmp_path / "config.json"))


@pytest.mark.parametrize("text", ["{", "[1, 2]", "\x00"])
def test_not_json(tmp_path: Path, text: str) -> None:
    config_refused(tmp_path, text, ConfigUnreadable)


def test_unknown_type(tmp_path: Path) -> None:
    assert "'llama'" in config_refused(tmp_path, '{"model_type": "lama"}', UnknownModelType).fix
    config_refused(tmp_path, "{}", UnknownModelType)
    assert "no language model" in config_refused(tmp_path, '{"model_type": "vit"}', UnknownModelType).cause


def test_a_model_that_is_no_language_model(tmp_path: Path) -> None:
    """Neither a classifier without its head, nor a decoder without its encoder."""
    settings = {"model_type": "bert", "architectures": ["BertForSequenceClassification"]}
    error = config_refused(tmp_path, json.dumps(settings), UnknownModelType)
    assert "BertForSequenceClassification" in error.cause
    assert "architectures" in error.place
    config_refused(tmp_path, '{"model_type": "whisper"}', UnknownModelType)


def test_remote_code(tmp_path: Path) -> None:
    settings = {"model_type": "llama", "auto_map": {"AutoModelForCausalLM": "modeling_evil.Evil"}}
    (tmp_path / "modeling_evil.py").write_text("raise RuntimeError('run')")
    assert "modeling_evil.Evil" in config_refused(tmp_path, json.dumps(settings), RemoteCodeRefused).cause


def test_which_model_a_configuration_makes(tmp_path: Path) -> None:
    """The one that translates, of an encoder and a decoder; else one that tells the next token, or what is masked."""
    wanted = {
        "t5": ("T5ForConditionalGeneration", ["input_ids", "decoder_input_ids", "targets"]),
        "gpt2": ("GPT2LMHeadModel", ["input_ids", "targets"]),
        "distilbert": ("DistilBertForMaskedLM", ["input_ids", "targets"]),
    }
    for kind, (name, inputs) in wanted.items():
        (tmp_path / "config.json").write_text(json.dumps({"model_type": kind, "vocab_size": 64}))
        source = load_model(str(tmp_path))
        assert type(source.module).__name__ == name
        assert source.hooks.dims == dict.fromkeys(inputs, ("b", "s"))


GPT2 = {"n_embd": 8, "n_layer": 1, "n_head": 2, "vocab_size": 16, "n_positions": 8}


def test_what_a_configuration_says_of_its_head() -> None:
    """Nothing, a head of a language model, or a name that has none."""
    for heads in (None, [], ["GPT2LMHeadModel"], ["GPT2ForCausalLM", "GPT2ForOther"], ["GPT2For"]):
        settings = {"model_type": "gpt2", "architectures": heads, **GPT2}
        with torch.device("meta"):
            model = hf_config.of_settings(settings, "here")
        assert type(model).__name__ == "GPT2LMHeadModel", heads
        assert (model.config.use_cache, model.config.n_embd) == (False, 8)
    with pytest.raises(UnknownModelType) as caught:
        hf_config.of_settings({"model_type": "gpt2", "architectures": ["GPT2ForTokens", "GPT2ForCausalLM"]}, "here")
    assert caught.value.cause.startswith("GPT2ForTokens is not a language model")


def test_defaults_of_a_configuration_are_numbers_and_lists() -> None:
    found = hf_config.with_defaults({"model_type": "gpt2", **GPT2, "odd": "x"})
    assert {name: found[name] for name in (*GPT2, "odd")} == {**GPT2, "odd": "x"}
    assert (found["layer_norm_epsilon"], found["attn_pdrop"]) == (1e-5, 0.1)
    assert "activation_function" not in found


def test_language_models_of_a_factory_are_trained_as_such_unless_hooks_say_otherwise() -> None:
    from transformers import GPT2Config, GPT2LMHeadModel, GPT2Model

    config = GPT2Config(**GPT2)

    def made(batch: int, seq: int) -> dict[str, torch.Tensor]:
        return {}

    def loss(outputs: Any, batch: Any) -> torch.Tensor:
        return torch.zeros(())

    with torch.device("meta"):
        language, hidden = GPT2LMHeadModel(config), GPT2Model(GPT2Config(**GPT2))
    assert hf_config.adopted(TorchSource(language, Hooks(), "here")).hooks.dims.keys() == {"input_ids", "targets"}
    assert not language.config.use_cache
    for model, hooks in ((language, Hooks(made)), (language, Hooks(loss=loss)), (hidden, Hooks())):
        assert hf_config.adopted(TorchSource(model, hooks, "here")).hooks is hooks
    assert not hidden.config.use_cache
    plain = TorchSource(torch.nn.Linear(2, 2), Hooks(), "here")
    assert hf_config.adopted(plain) is plain


def test_no_transformers(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    folder = write_config(tmp_path, "gpt2")
    monkeypatch.setitem(sys.modules, "transformers", None)
    with pytest.raises(DependencyMissing):
        load_model(str(folder))


def test_a_factory_may_return_a_hugging_face_model(tmp_path: Path) -> None:
    (tmp_path / "model.py").write_text(
        "from transformers import GPT2Config, GPT2LMHeadModel\n"
        "def build():\n    return GPT2LMHeadModel(GPT2Config(n_embd=32, n_layer=5, n_head=4, vocab_size=50))\n"
    )
    found = capture(load_model(f"{tmp_path / 'model.py'}:build"), batch=2, seq=8)
    assert [item.value for item, _ in found.fold.inputs] == ["input_ids", "targets"]


def test_the_example_shape() -> None:
    shape = read_shape(EXAMPLES / "tiny_decoder.toml")
    assert [shape.routed(layer) for layer in range(shape.layers)] == [False, *[True] * 5]
    assert [shape.window(layer) for layer in range(shape.layers)] == [64, 64, 0, 64, 64, 0]


def test_latent_attention() -> None:
    latent = {"kv_lora_rank": 16, "q_lora_rank": 16, "qk_nope_head_dim": 8, "qk_rope_head_dim": 4, "v_head_dim": 8}
    assert validated(SHAPE | latent, "a shape").latent


def built(**changes: Any) -> Decoder:
    torch.manual_seed(0)
    return Decoder(validated(SHAPE | {"dtype": "f32"} | changes, "a shape"))


def test_learned_positions_are_the_only_ones() -> None:
    """Equal tokens are told apart by where they stand, and by nothing once the table is zero."""
    model = built(learned_positions=8, head_dim=7)
    tokens = torch.full((1, 8), 3)
    assert (model(tokens)[0, 0] - model(tokens)[0, 5]).abs().max() > 0.01
    assert model.positions is not None
    with torch.no_grad():
        model.positions.weight.zero_()
    torch.testing.assert_close(model(tokens)[0, 0], model(tokens)[0, 5])
    with pytest.raises(ValueError, match="9 tokens"):
        model(torch.zeros(1, 9, dtype=torch.long))


def test_parallel_block() -> None:
    """Both halves read the same normed stream: either alone is what is left when the other gives nothing."""
    block = built(parallel_block=True, learned_positions=8).blocks[0]
    x = torch.randn(2, 8, 32)
    normed = block.attention_norm(x)
    together = x + block.attention(normed, None, None) + block.feed_forward(normed)
    torch.testing.assert_close(block(x, None, None), together)
    assert sum("norm" in name for name, _ in built(parallel_block=True).named_parameters()) == 3


def shape_refused(kind: type[MeshwrightError], **changes: Any) -> MeshwrightError:
    with pytest.raises(kind) as caught:
        validated(SHAPE | changes, "a shape")
    assert caught.value.fix
    return caught.value


def test_unknown_key() -> None:
    assert "'kv_heads'" in shape_refused(ShapeKeyUnknown, kv_head=2).fix
    assert "layers" in shape_refused(ShapeKeyUnknown, zzz=2).fix


@pytest.mark.parametrize("key", SHAPE)
def test_missing_key(key: str) -> None:
    with pytest.raises(ShapeKeyMissing, match=key):
        validated({name: value for name, value in SHAPE.items() if name != key}, "a shape")


@pytest.mark.parametrize(
    ("changes", "key"),
    [
        ({"layers": 0}, "layers"),
        ({"layers": -3}, "layers"),
        ({"layers": 2.5}, "layers"),
        ({"layers": True}, "layers"),
        ({"hidden": "big"}, "hidden"),
        ({"vocab": 10**12}, "vocab"),
        ({"heads": 5}, "heads"),
        ({"kv_heads": 3}, "kv_heads"),
        ({"head_dim": 7}, "head_dim"),
        ({"learned_positions": -1}, "learned_positions"),
        ({"parallel_block": 1}, "parallel_block"),
        ({"dtype": "bf17"}, "dtype"),
        ({"glu": 1}, "glu"),
        ({"experts": 4}, "topk"),
        ({"experts": 4, "topk": 5}, "topk"),
        ({"topk": 2}, "experts"),
        ({"first_dense_layers": 9}, "first_dense_layers"),
        ({"moe_layer_freq": 0}, "moe_layer_freq"),
        ({"full_attention_every": 2}, "full_attention_every"),
        ({"kv_lora_rank": 8}, "qk_nope_head_dim"),
        ({"q_lora_rank": 8}, "kv_lora_rank"),
    ],
)
def test_impossible_numbers(changes: dict[str, Any], key: str) -> None:
    assert shape_refused(ShapeImpossible, **changes).place.endswith(f": {key}")


def test_every_key_of_a_shape_is_held_to_its_schema() -> None:
    """Each in turn is dropped, unknown or something else: refused at its key, or a shape."""
    whole = {**asdict(validated(SHAPE, "a shape")), "experts": 4, "topk": 2}
    for path, how, changed in mutated({"shape": whole}):
        if len(path) != 2 or not isinstance(changed["shape"], dict):
            continue
        refused = refusal(partial(validated, changed["shape"], "a shape"))
        if refused is None:
            assert how in ("dropped", "zero", "true"), (path, how)
        else:
            assert refused.exit_code == 6
            assert f"a shape: {path[1]}" in refused.place or how in ("zero", "true"), (path, how, refused)


def test_shapes_beyond_the_limits_are_refused_at_once() -> None:
    for key, number in (("layers", 100_000), ("vocab", 10**18), ("hidden", 2**40), ("heads", 10**6)):
        refusal = shape_refused(ShapeImpossible, **{key: number})
        assert refusal.place.endswith(f": {key}")
        assert "and at most" in refusal.cause


@pytest.mark.parametrize(
    ("key", "text", "kind"),
    [
        ("", "[" * 100_000, ConfigUnreadable),
        ("vocab_size", "0", ConfigValueBad),
        ("vocab_size", "-1", ConfigValueBad),
        ("vocab_size", '"many"', ConfigValueBad),
        ("vocab_size", "NaN", ConfigValueBad),
        ("vocab_size", "9" * 5000, ConfigValueBad),
        ("vocab_size", '3, "vocab_size": 3', ConfigValueBad),
        ("n_layer", "100000", ConfigValueBad),
        ("num_hidden_layers", "100000", ConfigValueBad),
        ("num_decoder_layers", "100000", ConfigValueBad),
        ("decoder", '{"num_experts": 100000}', ConfigValueBad),
        ("model_type", "[]", ConfigValueBad),
        ("model_type", "null", ConfigValueBad),
        ("architectures", "{}", ConfigValueBad),
        ("n_embd", "[1]", ConfigValueBad),
        ("activation_function", '"nonsense"', ConfigValueBad),
    ],
)
def test_a_configuration_is_held_to_its_schema(
    tmp_path: Path, key: str, text: str, kind: type[MeshwrightError]
) -> None:
    settings = json.loads((EXAMPLES / "configs" / "gpt2" / "config.json").read_text())
    settings.pop(key, None)
    whole = json.dumps(settings)[:-1] + f', "{key}": {text}}}' if key else text
    refusal = config_refused(tmp_path, whole, kind)
    assert refusal.exit_code == 6
    assert len(str(refusal)) < 1000
    assert key in ("", "n_layer", "n_embd", "activation_function") or key in refusal.place


def test_not_toml(tmp_path: Path) -> None:
    (tmp_path / "shape.toml").write_text("layers = ")
    with pytest.raises(ShapeFileNotToml):
        load_model(str(tmp_path / "shape.toml"))
    with pytest.raises(ModelFileMissing):
        load_model(str(tmp_path / "other.toml"))


def test_biases_beside_a_gate() -> None:
    """One for every row of every matrix of a block, the experts' too."""
    sizes = {"experts": 4, "topk": 2, "moe_ffn": 16}
    without, having = built(**sizes), built(**sizes, biases=True)
    matrices = [p for name, p in without.blocks.named_parameters() if p.ndim > 1]
    more = sum(p.numel() for p in having.parameters()) - sum(p.numel() for p in without.parameters())
    assert more == sum(p.numel() // p.shape[-1] for p in matrices)
    assert having(torch.zeros(1, 8, dtype=torch.long)).shape == without(torch.zeros(1, 8, dtype=torch.long)).shape
