"""Shapes: what a number is where none is given, and which numbers cannot stand together, in words."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from meshwright.ir.errors import ShapeImpossible
from meshwright.ir.frontends.shape import Shape, read_shape, validated

SHAPE: dict[str, Any] = {"layers": 4, "hidden": 32, "ffn_hidden": 64, "heads": 4, "vocab": 100}
LATENT: dict[str, Any] = {"kv_lora_rank": 8, "qk_nope_head_dim": 8, "qk_rope_head_dim": 4, "v_head_dim": 8}
FEW = ("experts", "there are settings for experts, but none are counted")
NONE = ("kv_lora_rank", "there are settings of latent attention, but no latent")


@pytest.mark.parametrize(
    ("changes", "key", "cause", "fix"),
    [
        ({"heads": 5}, "heads", "5 heads do not divide hidden = 32", "set head_dim, or correct one"),
        ({"kv_heads": 3}, "kv_heads", "3 key-value heads do not divide heads = 4", "give a divisor of heads"),
        ({"head_dim": 7}, "head_dim", "7 is odd, and rotary positions pair the halves of a head", "make it even"),
        ({"hidden": 36}, "head_dim", "9 is odd, and rotary positions pair the halves of a head", "make it even"),
        ({"experts": 4}, "topk", "each token goes to 0 of 4 experts", "give 1 <= topk <= experts"),
        ({"experts": 4, "topk": 5}, "topk", "each token goes to 5 of 4 experts", "give 1 <= topk <= experts"),
        *(({key: 2}, *FEW, "set experts, or drop topk, moe_ffn, shared_experts") for key in ("topk", "moe_ffn")),
        ({"shared_experts": 1}, *FEW, "set experts, or drop topk, moe_ffn, shared_experts"),
        ({"first_dense_layers": 5}, "first_dense_layers", "5 of 4 layers", "give at most layers"),
        (
            {"full_attention_every": 2},
            "full_attention_every",
            "there is no sliding_window to alternate with",
            "set sliding_window",
        ),
        *(
            (LATENT | {key: 0}, key, "latent attention (kv_lora_rank) needs it", "give its size")
            for key in ("qk_nope_head_dim", "qk_rope_head_dim", "v_head_dim")
        ),
        (
            LATENT | {"qk_rope_head_dim": 3},
            "qk_rope_head_dim",
            "3 is odd, and rotary positions pair halves",
            "make it even",
        ),
        *(
            ({key: 8}, *NONE, "set kv_lora_rank, or drop them")
            for key in ("qk_nope_head_dim", "qk_rope_head_dim", "v_head_dim", "q_lora_rank")
        ),
    ],
)
def test_numbers_that_contradict_one_another(changes: dict[str, Any], key: str, cause: str, fix: str) -> None:
    with pytest.raises(ShapeImpossible) as caught:
        validated(SHAPE | changes, "a shape")
    assert (caught.value.place, caught.value.cause, caught.value.fix) == (f"a shape: {key}", cause, fix)


@pytest.mark.parametrize(
    "changes",
    [
        {"heads": 5, "head_dim": 6},
        {"kv_heads": 4},
        {"kv_heads": 1},
        {"head_dim": 7, "learned_positions": 8},
        LATENT | {"head_dim": 7},
        LATENT | {"q_lora_rank": 3},
        {"experts": 4, "topk": 1},
        {"experts": 4, "topk": 4, "moe_ffn": 8, "shared_experts": 1},
        {"experts": 1, "topk": 1},
        {"first_dense_layers": 4},
        {"sliding_window": 1, "full_attention_every": 1},
        {"sliding_window": 8},
        {"moe_layer_freq": 1},
    ],
)
def test_numbers_that_stand_together(changes: dict[str, Any]) -> None:
    assert validated(SHAPE | changes, "a shape") == Shape(**SHAPE | changes)


def test_what_is_not_given() -> None:
    shape = Shape(**SHAPE)
    assert (shape.head, shape.biased, shape.latent, shape.dtype) == (8, False, False, "bf16")
    assert (shape.tied_embeddings, shape.parallel_block, shape.biases, shape.dropout) == (False,) * 4
    numbers = (shape.kv_heads, shape.sliding_window, shape.experts, shape.first_dense_layers, shape.learned_positions)
    assert (*numbers, shape.moe_layer_freq) == (0, 0, 0, 0, 0, 1)
    assert [shape.routed(layer) for layer in range(4)] == [False] * 4
    assert Shape(**SHAPE | {"head_dim": 12}).head == 12
    assert [
        Shape(**SHAPE | {"glu": glu, "biases": biases}).biased for glu in (True, False) for biases in (True, False)
    ] == [
        True,
        False,
        True,
        True,
    ]


@pytest.mark.parametrize(
    ("dense", "every", "routed"),
    [(0, 1, "1111"), (1, 1, "0111"), (0, 2, "0101"), (1, 2, "0010"), (4, 1, "0000"), (3, 1, "0001"), (0, 3, "0010")],
)
def test_which_layers_have_experts(dense: int, every: int, routed: str) -> None:
    """The last of every so many layers after the dense ones."""
    shape = Shape(**SHAPE, experts=2, topk=1, first_dense_layers=dense, moe_layer_freq=every)
    assert "".join(str(int(shape.routed(layer))) for layer in range(4)) == routed


@pytest.mark.parametrize(
    ("every", "windows"), [(0, [6, 6, 6, 6]), (1, [0, 0, 0, 0]), (2, [6, 0, 6, 0]), (3, [6, 6, 0, 6])]
)
def test_which_layers_have_a_window(every: int, windows: list[int]) -> None:
    shape = Shape(**SHAPE, sliding_window=6, full_attention_every=every)
    assert [shape.window(layer) for layer in range(4)] == windows


def test_a_name_is_for_people(tmp_path: Path) -> None:
    file = tmp_path / "shape.toml"
    text = "".join(f"{key} = {value}\n" for key, value in SHAPE.items())
    for name in ("", 'name = "small"\n'):
        file.write_text(name + text)
        assert read_shape(file) == Shape(**SHAPE)
    file.write_text("name = 3\n" + text)
    with pytest.raises(ShapeImpossible) as caught:
        read_shape(file)
    said = (caught.value.place, caught.value.cause, caught.value.fix)
    assert said == (f"{file}: name", "it is no string", "give a name in quotes")
