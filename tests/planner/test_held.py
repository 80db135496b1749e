"""A wish is kept or refused, never dropped: every name that can be pinned, with values that a plan can have and values
that none can, asked of `plan` and of `estimate`."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from itertools import product
from math import prod
from pathlib import Path

import pytest

from meshwright.cost_models.hardware.text import read_cluster
from meshwright.ir.decisions.decisions import Decisions
from meshwright.ir.errors import MeshwrightError, PinUnmet, SequenceIndivisible
from meshwright.ir.names.held import HELD
from meshwright.ir.names.stages import layer_calls
from meshwright.planner.answer.solve import Stop, solve
from meshwright.planner.question.ask import Ask, precision_of
from meshwright.planner.question.constraints import Asked, Constraints, asked
from meshwright.planner.question.held import check_constraints
from meshwright.planner.question.pins import KNOBS, NAMES, Config, Pins, fill, parse
from meshwright.planner.question.pricing import Setting
from meshwright.planner.search.search import Search
from tests.planner.solved import TINY, question

MIXTURE = f"{Path(__file__).parents[2] / 'examples' / 'mixture.py'}:tiny"
BATCH = 8

KEPT: Mapping[str, tuple[str, ...]] = {
    "tp": ("tp=1", "tp=2", "tp=4"),
    "pp": ("pp=1", "pp=2", "pp=4"),
    "dp": ("dp=4", "dp=1,tp=4", "dp=2,tp=2"),
    "cp": ("cp=1", "cp=2"),
    "ep": ("ep=1",),
    "etp": ("etp=1",),
    "vp": ("vp=1", "vp=2,pp=2", "vp=2,pp=2,schedule=1f1b"),
    "shard": ("shard=2", "shard=4,zero=3", "shard=2,zero=3,tp=2"),
    "zero": ("zero=0", "zero=1", "zero=2", "zero=3", "zero=0,tp=4"),
    "mbs": ("mbs=1", "mbs=2", "mbs=8,tp=4"),
    "microbatches": ("microbatches=1", "microbatches=2"),
    "recompute": (
        *(f"recompute={word}" for word in ("none", "full", "selective", "selective_op", "full_layers:1")),
        "recompute=full_layers:4",
        "recompute=full_layers:2,pp=2",
        "recompute=selective:core_attn+layernorm",
    ),
    "schedule": ("schedule=1f1b", "schedule=gpipe,pp=2", "schedule=interleaved,pp=2,vp=2", "schedule=zbv,pp=2"),
    "sp": ("sp=on,tp=2", "sp=off,tp=2", "sp=off"),
    "context": ("context=ring,cp=2", "context=ulysses,cp=2", "context=all_gather,cp=2", "context=all_gather"),
    "zigzag": ("zigzag=on,cp=2", "zigzag=off,cp=2", "zigzag=off"),
    "split": ("split=even,pp=2", "split=ends,pp=2", "split=spread,pp=4", "split=even,pp=1"),
    "stage_blocks": (
        *(f"stage_blocks={counts}" for counts in ("4", "3+1", "1+3", "0+4", "4+0", "2+2", "1+1+1+1", "2+1+1+0")),
        "stage_blocks=3+1,pp=2",
        "stage_blocks=2+1+1+0,pp=2,vp=2",
    ),
    "regather": ("regather=off,zero=3", "regather=on,zero=3", "regather=on"),
    "offload": ("offload=none", "offload=optimizer", "offload=activations:1", "offload=optimizer+activations"),
}
REFUSED: Mapping[str, tuple[str, ...]] = {
    "tp": ("tp=3", "tp=8"),
    "pp": ("pp=3", "pp=8"),
    "dp": ("dp=3", "dp=8", "dp=4,tp=2"),
    "cp": ("cp=3", "cp=64"),
    "ep": ("ep=2",),
    "etp": ("etp=2", "etp=2,tp=2"),
    "vp": ("vp=2,pp=1", "vp=4,pp=2", "vp=2,pp=4"),
    "shard": ("shard=3", "shard=2,zero=0", "shard=2,tp=4", "shard=8"),
    "zero": ("zero=1,tp=4", "zero=3,pp=4"),
    "mbs": ("mbs=3", "mbs=16", "mbs=8,dp=4"),
    "microbatches": ("microbatches=3", "microbatches=16"),
    "recompute": (
        *(f"recompute={word}" for word in ("full_layers:5", "full_layers:99999", "selective:moe_act")),
        "recompute=full_layers:3,stage_blocks=2+2",
        "recompute=selective:core_attn+mla_up_proj",
    ),
    "schedule": ("schedule=gpipe,pp=1", "schedule=zbv,tp=4", "schedule=interleaved,vp=1"),
    "sp": ("sp=on,tp=1", "sp=on,dp=4"),
    "context": ("context=ring,cp=1", "context=ulysses,tp=4"),
    "zigzag": ("zigzag=on,cp=1", "zigzag=on,tp=4"),
    "split": ("split=ends,pp=4", "split=ends,stage_blocks=3+1"),
    "stage_blocks": (
        *(f"stage_blocks={counts}" for counts in ("9+9", "5", "3+1+1", "1+0+3", "1+1+2", "1+1+1+1+0")),
        "stage_blocks=2+2,pp=4",
        "stage_blocks=3+1,pp=1",
    ),
    "regather": ("regather=off,zero=1", "regather=off,zero=0", "regather=off,tp=4"),
    "offload": ("offload=activations:9", "offload=activations:3,stage_blocks=2+2"),
}
INSIDE = {"ep=2": True, "ep=4": True, "ep=3": False, "etp=1,ep=2": True, "etp=2,ep=2,tp=2": True, "etp=3": False}
"""Asked of a model with experts, and whether that can be."""


def texts(table: Mapping[str, tuple[str, ...]]) -> list[str]:
    return [text for own in table.values() for text in own]


def test_every_name_is_read_back() -> None:
    assert set(HELD) == set(NAMES) == set(KEPT) == set(REFUSED)
    said = [(one.meaning, one.needs, *one.refills.split()) for one in KNOBS.values()]
    assert all(meaning and {*names} <= {"", *NAMES} for meaning, *names in said)


def of(model: str) -> tuple[Ask, Setting, Asked]:
    words = (model, "--cluster", "1x4xA100", "--global-batch", str(BATCH), "--seq", "64", "--target", "any")
    return question(*words)


def estimated(model: str, text: str) -> tuple[Config, Decisions]:
    _, setting, _ = of(model)
    pins = parse([text])
    setting = replace(setting, constraints=Constraints.of(pins))
    config = setting.settled(fill(pins, ranks=4, global_batch=BATCH), BATCH)
    return config, setting.decisions(config, BATCH)


def planned(model: str, text: str, *, whole: bool = False) -> tuple[Config, Decisions] | None:
    """The plan, by a whole search and all that follows it, or by one that ends with the first plan that fits."""
    ask, setting, _ = of(model)
    stop = Stop()

    def told(phase: str, search: Search | None = None, /) -> None:
        stop.interrupted = not whole and search is not None and search.best is not None

    solved = solve(ask, setting, asked(parse([text])), stop, told)
    return (solved.best.config, solved.decisions) if solved.best else None


def refused(model: str, text: str) -> bool:
    """By both verbs."""
    with pytest.raises(MeshwrightError):
        estimated(model, text)
    try:
        return planned(model, text) is None
    except MeshwrightError:
        return True


def check(model: str, text: str, config: Config, decisions: Decisions) -> None:
    """What a plan shows, and what of it can be counted here, is as was asked for."""
    _, setting, _ = of(model)
    layers = layer_calls(setting.fold(config))
    counts = [sum(one.first <= call < one.last for call in layers) for one in decisions.stages]
    counted = {
        "pp": len({one.ranks for one in decisions.stages}),
        "vp": len(decisions.stages) // len({one.ranks for one in decisions.stages}),
        "microbatches": decisions.schedule.microbatches,
        "stage_blocks": "+".join(map(str, counts)),
        "offload": str(decisions.offload),
        **{
            name: prod(axis.size for axis in decisions.stages[0].mesh.axes if axis.name.split("_")[0] == name)
            for name in ("tp", "cp")
        },
    }
    shown = config.to_json() | counted
    shown["etp"] = shown["etp"] or 1
    for name, value in parse([text]).to_json().items():
        same = {value, "interleaved"} if text.endswith("vp=2,pp=2,schedule=1f1b") else {value}
        assert shown[name] in same, (text, str(config))


@pytest.mark.parametrize("text", texts(KEPT))
def test_what_can_be_is_kept(text: str) -> None:
    check(TINY, text, *estimated(TINY, text))
    found = planned(TINY, text)
    assert found is not None
    check(TINY, text, *found)


@pytest.mark.parametrize(
    "text", ["stage_blocks=3+1", "split=spread,pp=4", "zero=1", "sp=on,tp=2", "mbs=2,recompute=none"]
)
def test_refining_keeps_it_too(text: str) -> None:
    found = planned(TINY, text, whole=True)
    assert found is not None
    check(TINY, text, *found)


@pytest.mark.parametrize("text", texts(REFUSED))
def test_what_cannot_be_is_refused(text: str) -> None:
    assert refused(TINY, text)


@pytest.mark.parametrize("text", INSIDE)
def test_names_of_experts(text: str) -> None:
    if not INSIDE[text]:
        assert refused(MIXTURE, text)
        return
    check(MIXTURE, text, *estimated(MIXTURE, text))
    found = planned(MIXTURE, text)
    assert found is not None
    check(MIXTURE, text, *found)


FORBIDDEN: Mapping[tuple[str, str], str] = {
    ("zero=3", "zero=3"): "zero",
    ("zero=3", "zero=1|2"): "",
    ("zero=1", "zero=1"): "zero",
    ("zero=0", "zero=0"): "zero",
    ("zero=0,tp=4", "zero=0"): "",
    ("zero=3", "regather=on"): "regather",
    ("zero=3", "regather=off"): "",
    ("zero=3,regather=off", "regather=off"): "regather",
    ("zero=3,regather=off", "regather=on"): "",
    ("zero=1", "regather=on"): "",
    ("zero=1", "regather=off"): "",
    ("shard=2,zero=3", "shard=2"): "shard",
    ("shard=2,zero=3", "shard=4"): "",
    ("zero=3", "shard=4"): "shard",
    ("zero=3", "shard=2"): "",
    ("zero=0", "shard=4"): "",
}
"""What a plan is made of, and what must not be; the name that is refused then."""
ALIKE: Mapping[tuple[str, str], str] = {
    ("zero=1,mbs=2", "zero=1"): "",
    ("zero=1,mbs=2", "zero=3"): "",
    ("zero=1,mbs=2", "regather=off"): "",
    ("zero=1,mbs=2", "zero=1|2"): "",
    ("zero=1,mbs=2", "zero=1|2,regather=off"): "zero",
    ("zero=1,mbs=2", "zero=1|2|3"): "zero",
    ("zero=3,regather=off,mbs=2", "zero=3"): "",
    ("zero=3,mbs=2", "zero=3"): "zero",
    ("zero=1,mbs=1", "zero=1"): "zero",
}
"""The same where one micro-batch of zero=1, zero=2 and zero=3,regather=off are run alike: by torch."""


def forbidden(text: str, never: str, target: str) -> str:
    """The name for which a plan is refused."""
    words = (TINY, "--cluster", "1x4xA100", "--global-batch", str(BATCH), "--seq", "64", "--target", target)
    _, setting, _ = question(*words)
    pins = parse([text])
    config = setting.settled(fill(pins, ranks=4, global_batch=BATCH), BATCH)
    constraints = asked(Pins(), forbid=[never]).constraints
    try:
        check_constraints(setting.decisions(config, BATCH), setting.fold(config), constraints, setting.target)
    except PinUnmet as refusal:
        return refusal.place.removeprefix("--forbid ").partition("=")[0]
    return ""


@pytest.mark.parametrize(("text", "never"), FORBIDDEN)
def test_what_must_not_be_is_read_back(text: str, never: str) -> None:
    assert forbidden(text, never, "any") == FORBIDDEN[text, never]


@pytest.mark.parametrize(("text", "never"), ALIKE)
def test_what_is_run_alike_is_refused_where_no_value_of_it_may_be(text: str, never: str) -> None:
    assert forbidden(text, never, "torch-cuda") == ALIKE[text, never]


@pytest.mark.parametrize("never", ["zero=1|2|3", "zero=0|1|2,regather=on", "shard=4", "zero=0|3"])
@pytest.mark.parametrize("target", ["any", "torch-cuda"])
def test_a_search_has_an_answer_beside_what_must_not_be(never: str, target: str) -> None:
    words = (TINY, "--cluster", "1x4xA100", "--global-batch", str(BATCH), "--seq", "64", "--target", target)
    ask, setting, _ = question(*words)
    solved = solve(ask, setting, asked(parse(["dp=4"]), forbid=[never]), Stop())
    assert solved.best is not None
    constraints = asked(Pins(), forbid=[never]).constraints
    assert all(constraints.grants(name, solved.best.config.to_json()[name]) for name in constraints.never)


def test_a_refusal_names_the_wish() -> None:
    with pytest.raises(PinUnmet, match=r"--fix etp=2: (.|\n)*pin ep"):
        estimated(TINY, "etp=2")


# What nobody pins ----------------------------------------------------------------------------------------------------

OPEN = {
    "sp": (True, False),
    "zigzag": (True, False),
    "split": ("even", "ends", "spread"),
    "context": ("all_gather", "ring", "ulysses"),
}
ODD = ("--cluster", "1x8xA100", "--global-batch", "24", "--seq", "18", "--target", "any")


@pytest.mark.parametrize("cp", [1, 2, 3])
@pytest.mark.parametrize("pp", [1, 2, 3])
@pytest.mark.parametrize("tp", [1, 2, 3, 4])
def test_what_nobody_pins_is_chosen_so_that_it_works(tp: int, pp: int, cp: int) -> None:
    """Eighteen tokens, four layers and four heads: it works just where any way to pin the rest does."""
    setting = replace(question(TINY, *ODD)[1], ranks=tp * pp * cp * 2)

    def works(pins: Pins) -> bool:
        try:
            config = setting.settled(fill(pins, ranks=setting.ranks, global_batch=24), 24)
            setting.decisions(config, 24)
        except MeshwrightError:
            return False
        return True

    sizes = Pins(tp=tp, pp=pp, cp=cp)
    ways = [dict(zip(OPEN, values, strict=True)) for values in product(*OPEN.values())]
    assert works(sizes) == any(works(Pins(**way).over(sizes)) for way in ways)
    assert works(sizes) == (tp != 3)


def test_sequence_parallelism_that_nobody_asked_for_is_left_out() -> None:
    _, setting, _ = question(TINY, *ODD)
    filled = [fill(parse([text]), ranks=8, global_batch=24) for text in ("tp=4,pp=2", "tp=4,pp=2,sp=on", "tp=2")]
    assert setting.settled(filled[0], 24).sp is False
    with pytest.raises(SequenceIndivisible):
        setting.decisions(setting.settled(filled[1], 24), 24)
    assert setting.settled(filled[2], 24).sp is True


@pytest.mark.parametrize(
    ("device", "asked_for", "taken"), [("cpu:4", None, "fp32"), ("cpu:4", "bf16", "bf16"), ("1x4xA100", None, "bf16")]
)
def test_the_usual_precision_is_one_that_devices_have(device: str, asked_for: str | None, taken: str) -> None:
    precision, notes = precision_of(asked_for, read_cluster(device))
    assert precision == taken
    assert notes == (("precision fp32 instead of bf16, which CPU has no matrix peak for",) if taken == "fp32" else ())
