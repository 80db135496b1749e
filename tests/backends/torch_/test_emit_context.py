"""Emitted scripts that cut sequences, run on two and four processes: equal to the model on one device, with the
collectives of the Program."""

from __future__ import annotations

import json
import math
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch
from torch.overrides import TorchFunctionMode

from meshwright.backends.results import Verified
from meshwright.backends.torch_.capabilities import TORCH_GLOO
from meshwright.backends.torch_.emit import Subject, emit
from meshwright.backends.torch_.emit.printed.language.ring import KERNELS, ring
from meshwright.ir.errors import EmissionPrinted
from meshwright.ir.frontends.door import calls_of, capture, load_model
from meshwright.ir.graph.graph import Op
from meshwright.ir.names import Degrees, template
from meshwright.ir.program.lower import lower
from tests.backends.torch_.emitted import BATCH, ROOT, SEQ, WORKLOAD, subject, unclean, written
from tests.backends.torch_.measured import assert_planned
from tests.backends.torch_.proved import proved
from tests.backends.torch_.test_emit import blocks_again, counted

KINDS: dict[str, dict[str, Any]] = {
    "cp": {"cp": 2},
    "cp x dp, fsdp": {"cp": 2, "dp": 2, "zero": 3, "microbatches": 2},
    "cp x tp+sp, recompute": {"cp": 2, "tp": 2, "sequence_parallel": True, "pins": blocks_again},
    "cp x fsdp, all of the first activations on the host": {
        "cp": 2,
        "dp": 2,
        "zero": 3,
        "offload": "activations:4",
    },
    "ring": {"cp": 4, "context": "ring"},
    "ring x tp+sp, recompute": {"cp": 2, "tp": 2, "context": "ring", "sequence_parallel": True, "pins": blocks_again},
    "zigzag x tp+sp": {"cp": 2, "tp": 2, "sequence_parallel": True, "zigzag": True},
    "zigzag x dp, fsdp": {"cp": 2, "dp": 2, "zero": 3, "microbatches": 2, "zigzag": True},
    "ring in zigzag": {"cp": 4, "context": "ring", "zigzag": True},
    "ring in zigzag x 1f1b": {
        "cp": 2,
        "pp": 2,
        "context": "ring",
        "zigzag": True,
        "microbatches": 2,
        "schedule": "1f1b",
    },
    "ulysses": {"cp": 2, "context": "ulysses", "recompute": "selective"},
    "cp x zbv": {"cp": 2, "pp": 2, "vp": 2, "microbatches": 4, "schedule": "zbv"},
    "ring x tp+sp x 1f1b, fsdp": {
        "cp": 2,
        "tp": 2,
        "pp": 2,
        "context": "ring",
        "sequence_parallel": True,
        "zero": 3,
        "microbatches": 2,
        "schedule": "1f1b",
    },
    "ulysses x zb-h1": {"cp": 2, "pp": 2, "context": "ulysses", "microbatches": 2, "schedule": "zb-h1"},
    "ulysses x tp+sp, fsdp": {"cp": 2, "tp": 2, "context": "ulysses", "sequence_parallel": True, "zero": 3},
}


NO_DROPOUT = {"attn_pdrop": 0, "embd_pdrop": 0, "resid_pdrop": 0, "bos_token_id": None, "eos_token_id": None}
HF = "1f1b x cp, a model of transformers"
SMALL = {
    "hidden_size": 32,
    "intermediate_size": 48,
    "num_hidden_layers": 2,
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
    "head_dim": 8,
    "vocab_size": 64,
    "bos_token_id": None,
    "eos_token_id": None,
}


ODD: dict[str, dict[str, Any]] = {
    "an odd vocabulary, cp x tp+sp": {"cp": 2, "tp": 2, "sequence_parallel": True},
    "an odd vocabulary, tp+sp x fsdp": {"tp": 2, "dp": 2, "zero": 3, "microbatches": 2, "sequence_parallel": True},
}
"""Of GPT-2: no axis cuts the vocabulary, so that every rank takes the loss of its own tokens."""
SMALL_GPT2 = {"n_embd": 32, "n_layer": 2, "n_head": 4, "n_positions": SEQ, "vocab_size": 67, **NO_DROPOUT}


def of_configuration(folder: Path, name: str, settings: dict[str, Any], **degrees: Any) -> Subject:
    """A plan of a small model of a configuration."""
    told = json.loads((ROOT / "examples" / "configs" / name / "config.json").read_text())
    (folder / "config.json").write_text(json.dumps(told | settings))
    source = load_model(str(folder), dtype="fp32")
    batch = BATCH // degrees.get("microbatches", 1)
    found = capture(source, batch=batch, seq=SEQ)
    fold, constants = found.fold, found.constants
    calls = calls_of(source, str(folder), batch=batch, seq=SEQ, constants=constants)
    decisions = template(fold, Degrees(**degrees), "torch-gloo")
    program = lower(fold, decisions, TORCH_GLOO.lowering(), WORKLOAD)
    return Subject(fold=fold, decisions=decisions, program=program, workload=WORKLOAD, calls=calls, config=name)


def plan_of(kind: str) -> Subject:
    given = dict(KINDS[kind])
    pins = given.pop("pins", None)
    return subject(pins() if pins else None, **given)


@pytest.fixture(scope="module")
def found(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Verified]:
    """All plans in one launch."""
    plans = {kind: plan_of(kind) for kind in KINDS}
    degrees = {"pp": 2, "cp": 2, "microbatches": 2, "schedule": "1f1b"}
    plans[HF] = of_configuration(tmp_path_factory.mktemp("model"), "llama-3.1-8b", SMALL, **degrees)
    plans |= {kind: odd(kind, tmp_path_factory.mktemp("model")) for kind in ODD}
    scripts = {kind: (plan, written(plan, tmp_path_factory.mktemp("plan"))) for kind, plan in plans.items()}
    return proved("context", scripts, steps=2, limit_s=600)


def odd(kind: str, folder: Path) -> Subject:
    return of_configuration(folder, "gpt2", SMALL_GPT2, **ODD[kind])


@pytest.mark.e2e
@pytest.mark.parametrize("kind", KINDS)
def test_a_cut_sequence_is_exact_and_communicates_what_the_plan_says(kind: str, found: dict[str, Verified]) -> None:
    one = found[kind]
    assert one.differences == ()
    assert_planned(plan_of(kind), one)
    assert one.tensors == 2 * 39
    assert one.losses[1] < one.losses[0]
    numbers = counted(one)
    if kind == "cp":  # keys and values of four blocks, and their gradients
        assert (numbers["all_gather cp"], numbers["reduce_scatter cp"]) == (8, 8)
    if (
        kind == "ring"
    ):  # keys and values of four blocks: three hops, three again on the way back, with four of gradients
        assert numbers["send cp"] == numbers["recv cp"] == 4 * 2 * (3 + 3 + 4)
    if kind == "ulysses":  # queries, keys, values and results of four blocks, there and back
        assert numbers["all_to_all cp"] == 4 * 4 * 2


@pytest.mark.e2e
@pytest.mark.filterwarnings("ignore")
def test_tables_that_blocks_are_given_are_cut(found: dict[str, Verified]) -> None:
    """And fewer keys than queries are gathered: positions that are not packed need no mask, with which transformers
    repeats keys."""
    assert found[HF].differences == ()
    assert found[HF].tensors == 2 * 21


@pytest.mark.e2e
@pytest.mark.parametrize("kind", ODD)
@pytest.mark.filterwarnings("ignore")
def test_the_loss_is_taken_of_own_tokens_where_the_vocabulary_is_not_cut(
    kind: str, found: dict[str, Verified], tmp_path: Path
) -> None:
    assert found[kind].differences == ()
    plan = odd(kind, tmp_path)
    assert_planned(plan, found[kind])
    text = written(plan, tmp_path / "plan").read_text()
    assert ", tp, 1)\n    view = torch.gather(sub, 2, in1." in text  # labels of a rank's own tokens
    assert not unclean(tmp_path / "plan", types=kind.endswith("fsdp"))


@pytest.mark.filterwarnings("ignore")
def test_tied_parameters_in_shards_are_kept_equal(tmp_path: Path) -> None:
    plan = of_configuration(tmp_path, "llama-3.1-8b", SMALL | {"tie_word_embeddings": True}, dp=2, zero=3)
    text = written(plan, tmp_path).read_text()
    assert '"lm_head.weight": "model.embed_tokens.weight",' in text
    assert text.index("    join_tied(model)") < text.index("    optimizer.step()") < text.index("    copy_tied(model)")


def test_scripts_are_clean_and_short(tmp_path: Path) -> None:
    for number, kind in enumerate(KINDS):
        text = written(plan_of(kind), tmp_path / f"plan{number}").read_text()
        assert len(text.splitlines()) <= 550
    assert unclean(tmp_path) == ""


def attending(plan: Subject, **changed: str | int | float) -> Subject:
    """The plan, with other attributes of attention."""

    def other(op: Op) -> Op:
        return replace(op, attrs=tuple((dict(op.attrs) | changed).items())) if op.kind == "attention" else op

    bodies = tuple(
        replace(body, graph=replace(body.graph, ops=tuple(map(other, body.graph.ops)))) for body in plan.fold.bodies
    )
    return replace(plan, fold=replace(plan.fold, bodies=bodies))


def dropout() -> Subject:
    return attending(subject(cp=2, context="ring"), dropout=0.1)


def functions(text: str) -> dict[str, Any]:
    """What a part of a script defines."""
    made: dict[str, Any] = {"torch": torch, "math": math, "F": torch.nn.functional, "dist": torch.distributed}
    made |= {"Any": Any, "Tensor": torch.Tensor, "DeviceMesh": Any, "TorchFunctionMode": TorchFunctionMode}
    exec(text, made)  # noqa: S102
    return made


@pytest.mark.parametrize(("kernel", "dtype"), [("flash", torch.bfloat16), ("efficient", torch.float32)])
def test_kernels_of_gpus_take_what_a_ring_gives_them(kernel: str, dtype: torch.dtype) -> None:
    """Of their results there are only shapes here."""
    made = functions(KERNELS[kernel])
    query, key = (torch.empty(2, heads, 64, 8, dtype=dtype, device="meta") for heads in (4, 2))
    result, norm = made["visit"](query, key, key, causal=True, scale=None)
    assert (result.shape, norm.shape) == (query.shape, (2, 4, 64))
    grads = made["visit_backward"](result, [query, key, key, result, norm], causal=True, scale=None)
    assert [grad.shape for grad in grads] == [query.shape, key.shape, key.shape]


def test_a_kernel_of_gpus_takes_a_window_of_a_ring() -> None:
    made = functions(ring("efficient", masked=True, narrow=False, zigzag=False))
    query, key = (torch.empty(2, heads, 64, 8, device="meta") for heads in (4, 2))
    mask = made["numbers"](torch.ones(1, 1, 64, 64, dtype=torch.bool, device="meta"), query)
    result, norm = made["visit"](query, key, key, causal=False, scale=None, mask=mask)
    assert (result.shape, norm.shape) == (query.shape, (2, 4, 64))
    grads = made["visit_backward"](result, [query, key, key, result, norm], causal=False, scale=None, mask=mask)
    assert [grad.shape for grad in grads] == [query.shape, key.shape, key.shape]


def test_a_row_that_sees_nothing_has_a_sum_of_nothing() -> None:
    """Torch's kernel says 0 of it."""
    made = functions(ring("cpu", masked=True, narrow=False, zigzag=False))
    query, mask = torch.randn(1, 1, 4, 8), torch.ones(1, 1, 4, 4, dtype=torch.bool).tril(-2)
    result, norm = made["visit"](query, query, query, causal=False, scale=None, mask=made["numbers"](mask, query))
    assert norm[0, 0].isneginf().tolist() == [True, True, False, False]
    assert not result[0, 0, :2].any()


REFUSED: dict[str, tuple[Callable[[], Subject], str]] = {
    "a ring with dropout": (dropout, "no fused kernel"),
    "a short ring in fp32 on GPUs": (lambda: subject(target="torch-cuda", cp=2, context="ring"), "8 tokens per rank"),
}


@pytest.mark.parametrize("what", REFUSED)
def test_what_cannot_be_said_of_a_cut_sequence_is_refused(what: str, tmp_path: Path) -> None:
    made, says = REFUSED[what]
    with pytest.raises(EmissionPrinted, match=says):
        emit(made(), tmp_path)
