"""Workloads: what is refused, and that the text form loses nothing."""

from __future__ import annotations

import re
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from meshwright.ir.errors import WorkloadImpossible
from meshwright.ir.limits import GLOBAL_BATCH, HEADS, SEQ
from meshwright.ir.target.workload import (
    COPY_BYTES,
    OPTIMIZERS,
    PRECISIONS,
    RECIPES,
    STACK_OF_STYLE,
    STACKS,
    STYLES,
    Recipe,
    Stack,
    Workload,
    check_amount,
    stack_named,
    traced_in,
)


def test_text_round_trip() -> None:
    for stack in STACKS.values():
        for precision in PRECISIONS:
            one = Workload(global_batch=7, seq=128, precision=precision, stack=stack, recipe="bf16", imbalance=1.25)
            assert Workload.parse(str(one)) == one


def test_every_style_has_its_stack() -> None:
    assert set(STACK_OF_STYLE) == set(STYLES)
    assert all(STACKS[stack].style == style for style, stack in STACK_OF_STYLE.items())


def test_every_line_names_its_source() -> None:
    assert all(line.source for line in (*STACKS.values(), *RECIPES.values()))


def test_the_page_of_estimate_lists_every_stack_and_style() -> None:
    page = (Path(__file__).parents[2] / "docs" / "estimate.md").read_text()
    for option, known in (("--stack", STACKS), ("--style", STYLES)):
        row = next(line for line in page.splitlines() if line.startswith(f"| `{option} "))
        assert set(known) <= set(re.findall(r"`([\w-]+)`", row)), option


def test_states_follow_the_stack_unless_given() -> None:
    assert Workload(global_batch=1, seq=1, stack=STACKS["megatron"]).states is RECIPES["megatron"]
    assert Workload(global_batch=1, seq=1, stack=STACKS["megatron"], recipe="bf16").states is RECIPES["bf16"]
    assert Workload(global_batch=1, seq=1, optimizer="adamw").moments == OPTIMIZERS["adamw"] == 8


WRONG_WORKLOADS_ARE_REFUSED: list[dict[str, Any]] = [
    {"global_batch": 0},
    {"seq": 0},
    {"precision": "fp17"},
    {"optimizer": "adam"},
    {"recipe": "fsdpp"},
    {"imbalance": 0.5},
    {"imbalance": float("nan")},
    {"imbalance": 1e300},
]


def test_wrong_workloads_are_refused() -> None:
    for wrong in WRONG_WORKLOADS_ARE_REFUSED:
        with pytest.raises(WorkloadImpossible):
            Workload(**({"global_batch": 1, "seq": 1} | wrong))


UNREADABLE_TEXT_IS_REFUSED: list[str] = [
    "",
    "global_batch=x seq=1",
    "nothing",
    "global_batch=1 seq=1 hosts=3",
    f"{Workload(global_batch=1, seq=1)} hosts=3",
]


def test_unreadable_text_is_refused() -> None:
    for text in UNREADABLE_TEXT_IS_REFUSED:
        with pytest.raises(WorkloadImpossible):
            Workload.parse(text)


WRONG_STACKS_ARE_REFUSED: list[dict[str, Any]] = [
    {"style": "egaer"},
    {"attention": "flash9"},
    {"hides": ("everything",)},
    {"recipe": "x"},
]


def test_wrong_stacks_are_refused() -> None:
    for wrong in WRONG_STACKS_ARE_REFUSED:
        with pytest.raises(WorkloadImpossible):
            replace(STACKS["torch"], **wrong)


def test_wrong_recipes_are_refused() -> None:
    with pytest.raises(WorkloadImpossible):
        replace(RECIPES["bf16"], stored=0)


BYTES_OF_ONE_PARAMETER_UNDER_ADAMW: list[tuple[str, int, int, int]] = [
    ("megatron", 2 + 4 + 4 + 8, 2, 4),  # Megatron-Core: 18 bytes per parameter
    ("megatron-bf16-grads", 2 + 2 + 4 + 8, 2, 2),  # 16, as ZeRO counts (Rajbhandari et al. 1910.02054)
    ("fsdp", 4 + 4 + 8, 2, 4),
    ("fsdp-bf16-reduce", 4 + 4 + 8, 2, 2),
    ("bf16", 2 + 2 + 4, 2, 2),  # torch keeps AdamW's moments in the dtype of parameters
    ("fp32", 4 + 4 + 8, 4, 4),
]


def test_bytes_of_one_parameter_under_adamw() -> None:
    for recipe, resting, used, reduced in BYTES_OF_ONE_PARAMETER_UNDER_ADAMW:
        own = Workload(global_batch=1, seq=1, recipe=recipe)
        states = own.states
        assert states.stored + states.gradient + states.master + own.moments == resting
        assert (states.used, states.reduced) == (used, reduced)
        assert states.casts == (states.stored > used)


MOMENTS_OF_OPTIMIZERS: list[tuple[str, float]] = [
    ("adamw", 8),
    ("adamw-bf16", 4),
    ("sgd", 0),
    ("momentum", 4),
    ("muon", 4),
    ("adafactor", 0),
]


def test_moments_of_optimizers() -> None:
    """Only AdamW's follow the dtype of what is updated."""
    for optimizer, expected in MOMENTS_OF_OPTIMIZERS:
        assert Workload(global_batch=1, seq=1, optimizer=optimizer).moments == expected
        narrow = Workload(global_batch=1, seq=1, optimizer=optimizer, recipe="bf16").moments
        assert narrow == (4 if optimizer == "adamw" else expected)


def test_what_stacks_are_known_to_do() -> None:
    """By their sources: tensors of Megatron's, what hides, and what is never taken for granted."""

    def having(flag: str) -> set[str]:
        return {name for name, stack in STACKS.items() if getattr(stack, flag)}

    core = {"megatron", "megatron-tp-overlap"}
    assert having("regathers") == core | {"megatron-2022"}
    assert having("fused_loss") == having("placeholders") == core
    assert having("dedupes") == {"megatron-tp-overlap"}
    assert having("piecewise") == {"deepspeed"}
    assert having("padded") == having("broadcasts") == having("rolling") == set()
    assert {stack.graphs for stack in STACKS.values()} == {"none"}
    hiding = {name for name, stack in STACKS.items() if "tensor" in stack.hides}
    assert hiding == {"torch-async-tp", "megatron-tp-overlap", "jax", "maxtext"}
    assert not any("expert" in stack.hides for stack in STACKS.values())


def test_what_follows_from_a_workload() -> None:
    own = Workload(global_batch=3, seq=5)
    assert (own.tokens, own.scaled) == (15, False)
    assert replace(own, precision="fp16").scaled
    low = replace(own, precision="fp8_tensorwise")
    assert low.copied == ""
    assert replace(low, stack=STACKS["megatron"]).copied == "fp8_tensorwise"
    assert replace(own, stack=STACKS["megatron"]).copied == ""


def test_bytes_of_narrow_copies_with_their_scales() -> None:
    """A scale of 4 bytes for 128 elements is 1/32 of a byte each, as is one of 8 bits for 32; one for 16 is 1/16."""
    assert dict(COPY_BYTES) == {"fp8_tensorwise": 1.0, "fp8_blockwise": 1.03125, "mxfp8": 1.03125, "nvfp4": 0.5625}


def test_models_are_traced_in_what_their_activations_are_kept_in() -> None:
    whole = {"fp32": "fp32", "tf32": "fp32", "fp16": "fp16"}
    assert {one: traced_in(one) for one in PRECISIONS} == dict.fromkeys(PRECISIONS, "bf16") | whole


def test_a_workload_in_words() -> None:
    own = Workload(global_batch=7, seq=128, recipe="bf16", imbalance=1.5)
    assert str(own) == (
        "global_batch=7 seq=128 precision=bf16 optimizer=adamw recipe=bf16 imbalance=1.5 "
        "stack=torch style=eager attention=flash2 hides=gradients+parameters+pipeline states=fsdp graphs=none "
        "regathers=0 fused_loss=0 placeholders=0 dedupes=0 padded=0 piecewise=0 broadcasts=0 rolling=0"
    )
    flags = ("regathers", "fused_loss", "placeholders", "dedupes", "padded", "piecewise", "broadcasts", "rolling")
    for flag in flags:
        set_ = replace(STACKS["torch"], **{flag: True}, hides=(), graphs="step")  # type: ignore[arg-type]
        words = str(set_)
        assert f" hides= states=fsdp graphs=step {' '.join(f'{one}={int(one == flag)}' for one in flags)}" in words
        assert Stack.read(dict(word.split("=") for word in words.split())) == set_
        with pytest.raises(ValueError, match="the words"):
            Stack.read({word.split("=")[0]: "0" for word in words.split() if not word.startswith(flag)})


def test_amounts_are_taken_on_up_to_their_limits() -> None:
    check_amount(1, 1)
    check_amount(GLOBAL_BATCH.most, SEQ.most)
    for sequences, tokens, place, said in (
        (GLOBAL_BATCH.most + 1, 1, "workload, batch", "give at most 262,144"),
        (1, SEQ.most + 1, "workload, seq", "give at most 16,777,216"),
        (0, 5, "workload", "0 sequences of 5 tokens"),
        (5, 0, "workload", "5 sequences of 0 tokens"),
    ):
        with pytest.raises(WorkloadImpossible) as refusal:
            check_amount(sequences, tokens)
        assert refusal.value.place == place
        assert said in (refusal.value.cause, refusal.value.fix)


def test_the_busiest_expert_has_at_most_the_load_of_all() -> None:
    assert Workload(global_batch=1, seq=1, imbalance=HEADS.most).imbalance == 16384
    with pytest.raises(WorkloadImpossible) as refusal:
        Workload(global_batch=1, seq=1, imbalance=HEADS.most + 1)
    assert refusal.value.fix == "give the busiest expert's load over the mean, from 1 to the 16,384 experts of a layer"


def test_unknown_names_are_refused_with_the_nearest() -> None:
    ours = "torch, torch-compile, torch-async-tp, megatron, megatron-tp-overlap"
    known = f"{ours}, megatron-2022, megatron-2021, deepspeed, jax, maxtext"
    for name, fix in (("megatrom", "did you mean 'megatron'?"), ("?", f"use one of {known}")):
        with pytest.raises(WorkloadImpossible) as refusal:
            stack_named(name)
        assert (refusal.value.place, refusal.value.cause) == ("workload, stack", f"{name!r} is not known")
        assert refusal.value.fix == fix
    assert stack_named("jax") is STACKS["jax"]


def test_only_separate_masters_may_take_no_bytes() -> None:
    sizes = {"stored": 1.0, "used": 1.0, "gradient": 1.0, "reduced": 1.0, "master": 0.0}
    assert not Recipe(**sizes, source="here").casts
    assert Recipe(**sizes | {"used": 2.0}, source="here").casts
    for name in sizes:
        with pytest.raises(WorkloadImpossible):
            Recipe(**sizes | {name: -0.5 if name == "master" else 0.0}, source="here")
