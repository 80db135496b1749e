"""What `plan estimate` asks, from its arguments; what runs in a stage; and the JSON of an estimate made by hand."""

from __future__ import annotations

from argparse import Namespace
from typing import Any

import pytest

from meshwright import __version__
from meshwright.cost_models.hardware.text import read_cluster
from meshwright.ir.errors import PinRepeated, WorkloadImpossible, WorkloadMissing
from meshwright.ir.program.program import Action
from meshwright.ir.target.workload import Workload, stack_named
from meshwright.planner.answer.estimate import Estimate, StageWork, in_flight, to_json
from meshwright.planner.cli.main import build_parser
from meshwright.planner.question import ask as module
from meshwright.planner.question.ask import Ask, asked, precision_of
from meshwright.planner.question.pins import Pins
from meshwright.planner.question.pricing import target_of
from tests.planner.handmade import GIB, config, held, prediction, stage


def asked_by(*argv: str, cluster: str = "1x4xA100") -> Ask:
    return asked(build_parser().parse_args(["estimate", "m", "--cluster", cluster, "--seq", "64", *argv]))


def test_what_is_asked_where_little_is_said() -> None:
    assert asked_by() == Ask(
        model="m",
        cluster_reference="1x4xA100",
        cluster=read_cluster("1x4xA100"),
        workload=Workload(global_batch=1, seq=64),
        global_batch=None,
        target=target_of("any"),
        pins=Pins(),
        seed=0,
        unsaid=frozenset({"stack", "recipe"}),
    )


def test_everything_that_is_said_is_asked() -> None:
    words = "--global-batch 8 --micro-batch 2 --dtype fp16 --optimizer sgd --stack torch-compile --recipe fp32"
    more = "--imbalance 1.5 --seed 3 --fix tp=2,layers.*:sharding=row --fix zero=1"
    found = asked_by(*words.split(), *more.split())
    assert found.workload == Workload(
        global_batch=8,
        seq=64,
        precision="fp16",
        optimizer="sgd",
        stack=stack_named("torch-compile"),
        recipe="fp32",
        imbalance=1.5,
    )
    assert (found.global_batch, found.pins, found.seed) == (8, Pins(tp=2, zero=1, mbs=2), 3)
    assert [pin.text for pin in found.modules] == ["layers.*:sharding=row"]
    assert not found.unsaid


JAX_MODEL = "examples/jax_llama.py:tiny"


@pytest.mark.parametrize(
    ("cluster", "said", "target", "stack", "recipe"),
    [
        ("1x4xA100", [], "jax-cuda", "jax", "fsdp-bf16-reduce"),
        ("1x4xTPU-v5e", [], "jax-tpu", "jax", "fsdp-bf16-reduce"),
        ("cpu:4", [], "jax-cpu", "jax", "fp32"),
        ("1x4xA100", ["--target", "any"], "any", "jax", ""),
        ("1x4xA100", ["--target", "any", "--stack", "torch"], "any", "torch", ""),
        ("1x4xA100", ["--recipe", "fp32"], "jax-cuda", "jax", "fp32"),
        ("1x4xA100", ["--dtype", "fp32"], "jax-cuda", "jax", "fp32"),
    ],
)
def test_what_nobody_named_follows_from_the_framework(
    cluster: str, said: list[str], target: str, stack: str, recipe: str
) -> None:
    pytest.importorskip("jax")
    words = ["plan", JAX_MODEL, "--cluster", cluster, "--seq", "64", "--global-batch", "8", *said]
    ask, setting = asked(Namespace(**vars(build_parser().parse_args(words)) | {"fix": []})).loaded()
    assert (ask.target.target, ask.workload.stack.name, ask.workload.recipe) == (target, stack, recipe)
    assert (setting.target, setting.workload) == (ask.target, ask.workload)


def test_models_of_torch_keep_what_was_usual() -> None:
    words = ["plan", "examples/llama.py:tiny", "--cluster", "1x4xA100", "--seq", "64", "--global-batch", "8"]
    ask, _ = asked(Namespace(**vars(build_parser().parse_args(words)) | {"fix": []})).loaded()
    assert (ask.target.target, ask.workload.stack.name, ask.workload.recipe) == ("torch-cuda", "torch", "")


@pytest.mark.parametrize(
    ("argv", "recipe"), [(["--dtype", "fp32"], "fp32"), (["--dtype", "tf32"], "fp32"), (["--dtype", "bf16"], "")]
)
def test_in_fp32_everything_is_held_in_fp32(argv: list[str], recipe: str) -> None:
    assert asked_by(*argv).workload.recipe == recipe
    assert asked_by(*argv, "--recipe", "fsdp").workload.recipe == "fsdp"


def test_a_style_means_its_stack() -> None:
    assert asked_by("--style", "compiled").workload.stack.style == "compiled"
    assert asked_by("--style", "eager", "--stack", "torch").workload.stack.name == "torch"
    with pytest.raises(WorkloadImpossible) as refused:
        asked_by("--style", "compiled", "--stack", "torch")
    assert refused.value.cause == "stack torch runs eager, not compiled"
    assert refused.value.fix == "give one of them, or --stack torch-compile"


def test_sequences_of_a_micro_batch_are_given_once() -> None:
    assert asked_by("--micro-batch", "2", "--fix", "mbs=2").pins == Pins(mbs=2)
    with pytest.raises(PinRepeated) as refused:
        asked_by("--micro-batch", "2", "--fix", "mbs=4")
    assert (refused.value.place, refused.value.cause) == ("--micro-batch 2", "--fix says mbs=4")


def test_a_workload_that_lacks_something_is_refused_by_its_verb() -> None:
    args: Any = Namespace(seq=None, verb="plan")
    with pytest.raises(WorkloadMissing) as refused:
        asked(args)
    assert (refused.value.place, refused.value.cause) == ("plan plan", "--seq is missing")
    assert refused.value.fix == "give the tokens of one sequence: --seq 4096"
    usual = module.missing("--x", "1", "it")
    assert (usual.place, usual.fix) == ("plan estimate", "give it: --x 1")


@pytest.mark.parametrize(
    ("wanted", "cluster", "precision", "notes"),
    [
        (None, "1x4xA100", "bf16", ()),
        (None, "1x4xV100", "fp32", ("precision fp32 instead of bf16, which V100-32G has no matrix peak for",)),
        ("fp16", "1x4xV100", "fp16", ()),
        ("bf16", "1x4xV100", "bf16", ()),
        ("fp32", "1x4xA100", "fp32", ()),
    ],
)
def test_the_precision_that_all_devices_have(
    wanted: str | None, cluster: str, precision: str, notes: tuple[str, ...]
) -> None:
    assert precision_of(wanted, read_cluster(cluster)) == (precision, notes)


# What runs -----------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("actions", "most"),
    [
        ("0F 0F 0B 0F 0B 0B", {0: 2}),
        # gradients of inputs end nothing where those of weights come apart
        ("0F 0I 0F 0I 0W 0W", {0: 2}),
        ("0F 0I 0W 0F 0I 0W", {0: 1}),
        ("0F 1F 1B 0B", {0: 1, 1: 1}),
        ("0F 0F 1F 0F 1B 0B 0B 0B sync", {0: 3, 1: 1}),
    ],
)
def test_micro_batches_under_way(actions: str, most: dict[int, int]) -> None:
    words = [word for word in actions.split() if word != "sync"]
    found = in_flight([Action(word[1], int(word[0]), 0) for word in words])
    assert {at: number for at, number in found.items() if at >= 0} == most


# JSON ----------------------------------------------------------------------------------------------------------------


def test_an_estimate_as_json() -> None:
    """Stage 0 is exactly full; stage 1 lacks half a GiB."""
    stages = stage(0, held(4.0, 5.0, 1.0)), stage(1, held(4.5, 5.0, 1.0))
    own = prediction(stages=stages)
    one = Estimate(
        ask=asked_by(cluster="2x4xA100"),
        workload=Workload(global_batch=16, seq=64, imbalance=1.25),
        digest="ab12",
        parameters=1000,
        config=config("pp=2", 8),
        prediction=own,
        work=(StageWork(layers=2, in_flight=2), StageWork(layers=3, in_flight=1)),
        notes=("a note",),
    )
    assert (one.short, one.weakest) == (((1, GIB / 2),), "datasheet")
    assert to_json(one) == {
        "format_version": 1,
        "provenance": {"meshwright": __version__, "weakest": "datasheet", "calibrated": False},
        "model": {"ref": "m", "digest": "ab12", "parameters": 1000},
        "cluster": {"ref": "2x4xA100", "hosts": 2, "ranks": 8, "devices": ["A100-80G"]},
        "workload": {
            "global_batch": 16,
            "seq": 64,
            "precision": "bf16",
            "optimizer": "adamw",
            "stack": "torch",
            "style": "eager",
            "recipe": "fsdp",
            "imbalance": 1.25,
            "target": "any",
        },
        "config": one.config.to_json(),
        "predicted": own.to_json(),
        "fits": False,
        "short": [{"stage": 1, "bytes": GIB / 2}],
        "work": [{"layers": 2, "in_flight": 2}, {"layers": 3, "in_flight": 1}],
        "notes": ["a note"],
    }
    measured = Estimate(
        **{name: getattr(one, name) for name in one.__dataclass_fields__}
        | {
            "prediction": prediction(provenance=(("compute", "measured"),)),
            "workload": Workload(global_batch=16, seq=64, recipe="fp32"),
        }
    )
    told = to_json(measured)
    assert (told["provenance"]["weakest"], told["provenance"]["calibrated"]) == ("measured", True)
    assert told["workload"]["recipe"] == "fp32"
