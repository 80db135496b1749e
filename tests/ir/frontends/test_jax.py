"""JAX models are what they compute: graphs against `jax.value_and_grad`, and against their torch twins."""

from __future__ import annotations

import json
import re
import subprocess
import sys
import warnings
from collections import Counter
from collections.abc import Iterator
from dataclasses import dataclass
from math import prod
from pathlib import Path
from typing import Any

import pytest

jax = pytest.importorskip("jax")
pytest.importorskip("flax")
pytest.importorskip("equinox")

from meshwright.ir.analysis.account import account_fold  # noqa: E402
from meshwright.ir.errors import (  # noqa: E402
    DependencyMissing,
    EmissionModel,
    EmptyModel,
    FactoryRaised,
    ForwardRaised,
    MeshwrightError,
    NoExampleInputs,
    NoLoss,
)
from meshwright.ir.frontends.door import calls_of, capture, load_model  # noqa: E402
from meshwright.ir.frontends.folding.captured import Captured  # noqa: E402
from meshwright.ir.frontends.jax_.source import traced  # noqa: E402
from meshwright.ir.graph.fold import unfold  # noqa: E402
from meshwright.ir.verify.graphs import verify_fold  # noqa: E402
from meshwright.planner.cli.main import main  # noqa: E402
from meshwright.planner.question.inspection import loop_reports  # noqa: E402
from tests.ir.frontends.jax_run import apart, in_fp64, with_code  # noqa: E402

ZOO = Path(__file__).parent / "jax_zoo"
EXAMPLES = Path(__file__).parents[3] / "examples"
EXACT, IN_FP32 = 1e-9, 1e-4
"""What graphs may differ by from models in fp64; from models whose own code goes through fp32."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Case:
    """A model, its parameters, and what is to be found in its bodies."""

    parameters: int
    blocks: tuple[int, ...] = ()
    """How often every stack repeats."""
    attentions: int = 0
    norms: int = 0
    losses: int = 1
    others: tuple[str, ...] = ()
    tolerance: float = EXACT
    classes: int = 64


MODELS = {
    "plain.py:mlp": Case(parameters=8320),
    "plain.py:decoder": Case(parameters=35104, blocks=(4,), attentions=1, norms=3, others=("gelu",)),
    "plain.py:decoder_scan": Case(parameters=35104, blocks=(4,), attentions=1, norms=3, others=("gelu",)),
    "plain.py:gshard": Case(parameters=84768, blocks=(1, 3), attentions=2, norms=5),
    "plain.py:gshard_scan": Case(parameters=84768, blocks=(1, 1, 1, 1), attentions=2, norms=5),
    "plain.py:in_turn": Case(parameters=59936, blocks=(1, 1, 1, 1), attentions=3, norms=7),
    "plain.py:counting": Case(parameters=8320, blocks=(1, 3)),
    "plain.py:ragged": Case(parameters=84768, blocks=(4,), attentions=1, norms=3, others=("grouped_mm", "topk")),
    "plain.py:lora": Case(parameters=38176, blocks=(4,), attentions=1, norms=3, others=("silu",)),
    "plain.py:ssm": Case(parameters=20736, blocks=(4,)),
    "nnx_.py:gpt": Case(parameters=40384, blocks=(4,), attentions=1, norms=3, others=("gelu",), tolerance=IN_FP32),
    "nnx_.py:scanned": Case(parameters=36256, blocks=(4,), attentions=1, norms=3, tolerance=IN_FP32),
    "nnx_.py:mixer": Case(parameters=29952, blocks=(4,), norms=2, others=("gelu",)),
    "linen.py:gpt": Case(parameters=38336, blocks=(4,), attentions=1, norms=3, others=("gelu",)),
    "linen.py:scanned": Case(parameters=38368, blocks=(4,), attentions=1, norms=3, others=("gelu",)),
    "images.py:vit": Case(parameters=36714, blocks=(4,), attentions=1, norms=3, others=("conv2d",), classes=10),
    "images.py:convnet": Case(parameters=19434, others=("conv2d", "max_pool2d", "avg_pool2d"), classes=10),
    "images.py:small": Case(parameters=2650, blocks=(4,), others=("conv2d", "max_pool2d"), classes=10),
    "equinox_.py:gpt": Case(parameters=37824, blocks=(4,), attentions=1, norms=2, others=("gelu",)),
    "translation.py:build": Case(parameters=103040, blocks=(4, 4), attentions=3, norms=5),
}


@pytest.fixture(autouse=True)
def _warned() -> Iterator[None]:
    """Packages of JAX warn of each other's next releases."""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        yield


def kinds(captured: Captured) -> Counter[str]:
    return Counter(op.kind for body in captured.fold.bodies for op in body.graph.ops)


@pytest.mark.parametrize("reference", MODELS)
def test_a_graph_is_what_the_model_computes(reference: str) -> None:
    """Loss and every gradient, of the graph that is unfolded again."""
    case = MODELS[reference]
    with jax.enable_x64(True):
        source = in_fp64(load_model(f"{ZOO}/{reference}"))
        captured = with_code(source, batch=2, seq=16)
        verify_fold(captured.fold)
        assert apart(source, captured, 2, 16, case.classes) < case.tolerance


@pytest.mark.parametrize("reference", MODELS)
def test_composites_and_blocks_are_found(reference: str) -> None:
    """As people run it, in fp32: no operator is opaque, parameters are all there, blocks are folded."""
    case = MODELS[reference]
    captured = capture(load_model(f"{ZOO}/{reference}"), batch=2, seq=16)
    verify_fold(captured.fold)
    found = kinds(captured)
    assert found["opaque"] == 0
    assert captured.parameters == case.parameters
    assert tuple(one.repeats for one in captured.fold.segments if not one.glue) == case.blocks
    assert found["attention"] == case.attentions
    assert found["rms_norm"] + found["layer_norm"] == case.norms
    assert found["cross_entropy"] == case.losses
    assert [kind for kind in case.others if not found[kind]] == []


def test_dropout_is_found_by_its_drawn_mask() -> None:
    captured = capture(load_model(f"{ZOO}/nnx_.py:gpt_dropout"), batch=2, seq=16)
    rates = [op.attr("p") for body in captured.fold.bodies for op in body.graph.ops if op.kind == "dropout"]
    assert rates == [0.1, 0.1]


def test_the_example_is_exact_unrolled_and_scanned() -> None:
    with jax.enable_x64(True):
        for factory in ("tiny", "tiny_scan"):
            source = in_fp64(load_model(f"{EXAMPLES}/jax_llama.py:{factory}"))
            captured = with_code(source, batch=2, seq=16)
            assert apart(source, captured, 2, 16, 64) < IN_FP32  # its rotary tables are fp32


def test_torch_and_jax_decoders_of_one_shape_are_alike() -> None:
    """The same operators but for how weights lie, loops, work and parameters: unrolled, scanned, and in torch."""
    torch_one = capture(load_model(f"{EXAMPLES}/llama.py:tiny"), batch=2, seq=16)
    whole = loops_of(torch_one)
    for factory in ("tiny", "tiny_scan"):
        jax_one = capture(load_model(f"{EXAMPLES}/jax_llama.py:{factory}"), batch=2, seq=16)
        assert jax_one.parameters == torch_one.parameters
        mine, theirs = account_fold(jax_one.fold), account_fold(torch_one.fold)
        assert mine.forward_flops == theirs.forward_flops
        assert mine.backward_flops == theirs.backward_flops
        assert loops_of(jax_one) == whole
        products = ("linear", "attention", "rms_norm", "silu", "embedding", "cross_entropy", "split", "cat", "mul")
        assert [kinds(jax_one)[kind] for kind in products] == [kinds(torch_one)[kind] for kind in products]


def loops_of(captured: Captured) -> set[tuple[str, int]]:
    return {(loop.name, loop.size) for loop in loop_reports(unfold(captured.fold))}


def test_a_deep_scan_is_traced_by_a_few_of_its_blocks() -> None:
    captured = capture(load_model(f"{EXAMPLES}/jax_llama.py:llama_70b_scan"), batch=2, seq=4096)
    assert captured.parameters == 70_553_706_496
    (stack,) = captured.stacks
    assert (stack.path, stack.depth, len(stack.walk)) == ("blocks", 80, 3)
    assert captured.fold.count("blocks") == 80


def test_names_are_those_of_the_model() -> None:
    """Rows of stacked parameters are named with the number of their block."""
    graph = unfold(capture(load_model(f"{ZOO}/linen.py:scanned"), batch=2, seq=16).fold)
    paths = {param.path for param in graph.params}
    assert "layers.Block_0.Dense_0.kernel" not in paths
    assert sum(path.endswith("Dense_0.kernel") and "Block_0" in path for path in paths) == 4
    sources = {op.source for op in graph.ops if op.kind == "attention"}
    assert [one for one in sources if not re.fullmatch(r"linen\.py:\d+", one)] == []


# Bad input -----------------------------------------------------------------------------------------------------------

PAIR = """
import jax.numpy as jnp

def build():
    return (lambda key: {"w": jnp.ones((4, 4))}), apply

def apply(params, x):
    return (x @ params["w"]).sum()

def example_inputs(batch, seq):
    return {"x": jnp.ones((batch, 4))}
"""


@pytest.mark.parametrize(
    ("changes", "error"),
    [
        (('return (lambda key: {"w": jnp.ones((4, 4))}), apply', "return 3"), FactoryRaised),
        (('{"w": jnp.ones((4, 4))}', "{}"), EmptyModel),
        ((".sum()", ""), NoLoss),
        (("def example_inputs", "def other"), NoExampleInputs),
        (('{"x": jnp', '{"y": jnp'), NoExampleInputs),
        (("@ params", "@ params.nothing"), ForwardRaised),
        (("return (x @", "return float(x.sum()) * (x @"), MeshwrightError),
    ],
)
def test_a_file_that_cannot_be_planned_says_why(
    tmp_path: Path, changes: tuple[str, str], error: type[Exception]
) -> None:
    path = tmp_path / "model.py"
    assert changes[0] in PAIR
    path.write_text(PAIR.replace(*changes))
    with pytest.raises(error) as caught:
        capture(load_model(f"{path}:build"), batch=2, seq=4)
    assert str(path.name) in str(caught.value)


def test_an_unknown_primitive_is_opaque_and_said(tmp_path: Path) -> None:
    path = tmp_path / "model.py"
    path.write_text(PAIR.replace("(x @ params", "jnp.linalg.cholesky(jnp.eye(4) * x.sum()).sum() * (x @ params"))
    captured = capture(load_model(f"{path}:build"), batch=2, seq=4)
    verify_fold(captured.fold)
    assert any("jax::cholesky" in note for note in captured.notes)
    assert kinds(captured)["opaque"] >= 1


def test_a_missing_package_names_the_extra(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "flax", None)
    (tmp_path / "model.py").write_text("from flax import nnx")
    with pytest.raises(DependencyMissing) as caught:
        load_model(f"{tmp_path / 'model.py'}:build")
    assert "flax" in caught.value.cause
    assert "meshwright[jax]" in caught.value.fix
    (tmp_path / "model.py").write_text("import no_such_package")
    with pytest.raises(FactoryRaised):
        load_model(f"{tmp_path / 'model.py'}:build")


def test_torch_and_jax_decoders_get_one_plan(capsys: pytest.CaptureFixture[str]) -> None:
    """All that is decided but for the names of parameters; the times differ by less than views may cost."""
    found = []
    for model in ("llama.py:llama_8b", "jax_llama.py:llama_8b_scan"):
        asked = ["--cluster", "1x8xH100", "--seq", "4096", "--global-batch", "16", "--target", "any", "--json"]
        asked += ["--stack", "torch"]
        assert main([f"{EXAMPLES}/{model}", *asked]) == 0
        found.append(json.loads(capsys.readouterr().out))
    one, other = found
    for part in ("config", "recompute", "offload", "schedule", "ranks"):
        assert one[part] == other[part], part
    assert [stage["mesh"] for stage in one["stages"]] == [stage["mesh"] for stage in other["stages"]]
    stored = [sorted(map(str, body.values())) for plan in found for body in plan["storage"].values()]
    assert stored[: len(stored) // 2] == stored[len(stored) // 2 :]
    assert other["predicted"]["step_time_s"] == pytest.approx(one["predicted"]["step_time_s"], rel=2e-3)


def test_places_are_those_of_the_results() -> None:
    """Of a scanned model: a product of its block, by the equations of the loop's body, and its cut parameters."""
    reference = f"{EXAMPLES}/jax_llama.py:tiny_scan"
    source = load_model(reference)
    places = calls_of(source, reference, batch=2, seq=16).places
    assert places is not None
    example = jax.eval_shape(lambda: source.hooks["example_inputs"](2, 16))
    jaxpr = traced(source, example).whole.jaxpr
    for value, place in places.values["blocks"].items():
        at, _, result = place.partition(":")
        equation: Any = None
        for number in map(int, at.split("/")):
            body = jaxpr if equation is None else equation.params["jaxpr"]
            equation = getattr(body, "jaxpr", body).eqns[number]
        shape = capture(source, batch=2, seq=16).fold.body["blocks"].graph.types[value].shape
        parts = places.apart.get(place, [(extent,) for extent in shape])
        assert equation.outvars[int(result)].aval.shape == tuple(extent for part in parts for extent in part)
        assert tuple(map(prod, parts)) == shape
    assert {"linear", "rms_norm", "view_4", "add_4"} <= places.values["blocks"].keys()
    assert {path for _, path in places.scans["blocks"].operands.values()} == {
        leaf.path for leaf in traced(source, example).leaves if leaf.path.startswith("blocks.")
    }


def test_blocks_that_are_written_out_begin_where_their_operators_do() -> None:
    reference = f"{EXAMPLES}/jax_llama.py:tiny"
    places = calls_of(load_model(reference), reference, batch=2, seq=16).places
    assert places is not None
    assert list(places.begins) == [f"blocks.{number}" for number in range(4)]
    assert places.values["blocks"]["rms_norm"] == "+0:0"


def test_what_no_code_calls_is_refused() -> None:
    reference = f"{ZOO}/tuples.py:mean"
    with pytest.raises(EmissionModel, match="the batch is no dict"):
        calls_of(load_model(reference), reference, batch=2, seq=16)


def test_what_a_step_draws_is_told_with_its_calls() -> None:
    """NNX models hold what they draw from; others are given a key, that two of their leaves make."""
    found = {}
    for name in ("nnx_.py:gpt", "nnx_.py:gpt_dropout", "drawing.py:linen", "equinox_.py:keyed", "drawing.py:scanned"):
        calls = calls_of(load_model(f"{ZOO}/{name}"), f"{ZOO}/{name}", batch=2, seq=16)
        assert calls.invoked is not None
        found[name] = calls.invoked.draws, calls.invoked.keyed, calls.invoked.keys, calls.own_loss
    assert found == {
        "nnx_.py:gpt": (False, False, (), None),
        "nnx_.py:gpt_dropout": (True, False, (), None),
        "drawing.py:linen": (True, True, (), "[1]"),
        "equinox_.py:keyed": (True, True, ("key",), None),
        "drawing.py:scanned": (True, True, ("key",), ""),
    }


def test_blocks_are_cut_where_most_are_alike() -> None:
    """What is dropped of an embedding lies outside of the first block, and of the last one's sum in it."""
    captured = capture(load_model(f"{ZOO}/drawing.py:linen"), batch=2, seq=16)
    assert [(one.repeats, one.glue) for one in captured.fold.segments] == [(1, True), (2, False), (1, True)]


def test_one_sample_may_be_traced_otherwise() -> None:
    """Its labels are one number, of which JAX makes another shape."""
    for name, alike in (("images.py:vit", False), ("nnx_.py:gpt", True)):
        places = calls_of(load_model(f"{ZOO}/{name}"), f"{ZOO}/{name}", batch=2, seq=16).places
        assert places is not None
        assert (places.check == places.check_alone) == alike, name


def test_models_of_torch_import_no_jax() -> None:
    script = f"""
import sys
from meshwright.ir.frontends.door import load_model  # noqa: E402
load_model({str(EXAMPLES / "llama.py")!r} + ":tiny").module
print([name for name in ("jax", "flax", "equinox", "optax") if name in sys.modules])
"""
    done = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True, timeout=120, check=True)
    assert done.stdout == "[]\n"
