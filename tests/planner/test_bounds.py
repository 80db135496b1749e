"""Bounds never exceed prices: on random configurations of the space, priced by the evaluator; and what bounds take for
granted of schedules. The long run of the same is `python -m benchmarks.bound_check`."""

from __future__ import annotations

import re
from collections import Counter
from dataclasses import replace
from itertools import islice
from pathlib import Path
from random import Random
from statistics import mean

import pytest

from benchmarks.bound_check import BOUNDS, Checker, check
from benchmarks.searches import EXAMPLES, Case, drawn, opened
from meshwright.ir.errors import MeshwrightError
from meshwright.ir.program.program import Move
from meshwright.planner.bounds.coarse import CAUTION
from meshwright.planner.bounds.common import SLACK
from meshwright.planner.question.pins import fill, parse

EACH = 10
"""Configurations drawn of a case."""
CASES = (
    Case(model="gpt2", cluster="2x8xA100", batch=64, seq=1024, stack="megatron-2021"),
    Case(model="llama-3.1-8b", cluster="8x8xH100", batch=128, seq=8192),
    Case(model="llama-3.1-8b", cluster="2x8xA100", batch=64, seq=4096, stack="megatron"),
    Case(model="llama-3.1-8b", cluster="4x8xH100", batch=64, seq=8192, stack="jax"),
    Case(model="llama-3.1-8b", cluster="4x8xA100", batch=64, seq=4096, stack="megatron", rolling=True),
    Case(model="llama-3.1-8b", cluster="examples/clusters/two_pools.toml", batch=384, seq=4096, stack="megatron"),
    Case(model="mixtral-8x7b", cluster="8x8xH100", batch=128, seq=4096, stack="megatron"),
    Case(model="mixtral-8x7b", cluster="4x8xH800", batch=96, seq=4096),
    Case(model="gemma-3-1b", cluster="1x8xL40S", batch=32, seq=4096, stack="torch-compile"),
    Case(model="gpt2", cluster="cpu:4", batch=16, seq=1024, precision="fp32"),
    Case(model=str(EXAMPLES / "unet.py:small"), cluster="2x8xA100", batch=64, seq=1),
)
NEAR = (
    (0.5236, 0.6046, 0.8098, 0.8954, 0.8968, 0.8514),
    (0.6242, 0.7284, 0.8498, 0.8877, 0.9120, 0.8009),
    (0.7033, 0.7739, 0.9101, 0.9293, 0.9905, 0.8472),
    (0.6526, 0.7354, 0.8599, 0.8759, 0.9326, 0.9558),
    (0.6394, 0.6993, 0.8895, 0.9343, 0.9544, 0.8652),
    (0.2042, 0.2167, 0.3036, 0.3648, 0.3719, 0.7948),
    (0.4054, 0.4822, 0.5284, 0.6869, 0.7042, 0.8957),
    (0.5193, 0.5611, 0.6145, 0.7372, 0.7631, 0.7960),
    (0.3829, 0.5666, 0.7360, 0.8748, 0.9201, 0.9023),
    (0.8226, 0.8251, 0.9618, 0.9637, 0.9844, 0.8536),
    (0.1047, 0.0688, 0.8334, 0.8667, 0.8667, 0.6255),
)
"""What the bounds of `BOUNDS` and that on bytes are of prices in the mean, case by case."""


BEYOND = (
    # Gradients reduced last: of all layers of a stage, and not of its last to be reduced.
    (CASES[2], "tp=4,pp=2,dp=1,cp=2,zero=0,mbs=4,recompute=none,schedule=zb-h2"),
    # Memory where a sequence is attended to whole, beside a ring.
    (CASES[3], "tp=1,pp=1,dp=8,cp=4,zero=3,mbs=4,recompute=selective_op,context=ring,regather=off"),
    # Parts on a mesh of which no named plan of fewer micro-batches cuts sequences in a zigzag.
    (CASES[3], "tp=8,pp=1,dp=1,cp=4,zero=1,mbs=8,recompute=none,context=ring"),
    # Parts where levels of ZeRO take as long: parameters of one body, each stored at another, did not travel together.
    (CASES[2], "tp=1,pp=1,dp=16,cp=1,zero=1,mbs=4,recompute=selective_op"),
)
"""Plans that a bound was once beyond the price of."""


@pytest.mark.parametrize(("case", "config"), BEYOND)
def test_no_bound_is_beyond_the_price_of_what_was_found(case: Case, config: str) -> None:
    own = opened(case)
    filled = own.setting.settled(fill(parse([config]), ranks=own.space.ranks, global_batch=case.batch), case.batch)
    assert Checker(own).checked(filled).violations == []


@pytest.mark.parametrize(("case", "near"), tuple(zip(CASES, NEAR, strict=True)), ids=map(str, CASES))
def test_bounds_never_exceed_prices_and_are_near_them(case: Case, near: tuple[float, ...]) -> None:
    tally = check(case, EACH)
    assert not tally.violations
    assert len(tally.checked) >= EACH // 2
    shares = [mean(tally.tightness(name)) for name in (*BOUNDS, "bytes")]
    assert shares == pytest.approx(near, abs=1e-4), "bounds further from prices leave gaps; nearer ones are recorded"
    # Of whole layers of one kind, without windows or experts, coarse bounds know all but their caution.
    for one in tally.checked:
        if case.model == "gpt2" and one.config.startswith("tp=1,"):
            assert one.shares == pytest.approx({"work": CAUTION, "kept": CAUTION})


@pytest.mark.parametrize("name", ["two_pools.toml", "bad_pair.toml"])
def test_bounds_hold_wherever_stages_lie(name: str, tmp_path: Path) -> None:
    """The pool that comes first may be the slow one, and one pair of hosts slower than others."""
    cluster = EXAMPLES / "clusters" / name
    if name == "two_pools.toml":
        head, fast, old, rest = re.split(r"(?=\[\[pool\]\])|(?=\[\[link\]\])", cluster.read_text())
        cluster = tmp_path / name
        cluster.write_text(head + old + fast + rest)
    tally = check(Case(model="llama-3.1-8b", cluster=str(cluster), batch=384, seq=4096, stack="megatron"), EACH)
    assert not tally.violations
    assert len(tally.checked) >= EACH // 2


def test_bounds_hold_where_ends_of_the_model_share_a_parameter() -> None:
    """Its unit is gathered once, whatever plans say of gathering again."""
    model = EXAMPLES.parent / "benchmarks" / "registry" / "models" / "gemma2_like.py"
    tally = check(Case(model=f"{model}:build", cluster="1x8xH100", batch=32, seq=1024), EACH)
    assert not tally.violations
    assert any("zero=3" in one.config for one in tally.checked)


@pytest.mark.parametrize("stack", ["megatron", "torch", "torch-compile", "jax"])
def test_on_one_device_nothing_is_left_out(stack: str) -> None:
    """Without copies, stages and waits bounds are prices, and coarse bounds say all but their caution. Where a host
    issues operators one by one it is waited for between micro-batches, so only a batch in one piece has no waits."""
    own = opened(Case(model="gpt2", cluster="1x1xA100", batch=16, seq=1024, stack=stack))
    checker = Checker(own)
    memory = own.evaluator.prices.profile.memory
    configs = set(islice(drawn(own.space, Random(0)), 30))
    assert {config.recompute for config in configs} >= {"none", "full"}
    for config in configs:
        found = checker.checked(config)
        assert found.shares == pytest.approx({"work": CAUTION, "kept": CAUTION})
        if stack == "megatron" or config.microbatches == 1:
            assert found.bounds_s["step"] == found.bounds_s["run"] == pytest.approx(found.price_s, rel=2 * SLACK)
            assert found.bounds_s["floor"] == pytest.approx(found.bounds_s["least"] * CAUTION, rel=2 * SLACK)
        if stack == "torch":
            tokens = 8 * 1024 * (2 * 16 - config.mbs)  # ids and labels of the batch, but the ids that are worked on
            left_out = memory.communicator_bytes + tokens * (1 + memory.fragments_share)
            assert found.over_bytes - found.lacks_bytes == pytest.approx(left_out)


def test_a_single_sample_moves_what_one_of_two_does() -> None:
    """Bounds of plans with several copies are made from one copy: of one sample the choice of experts must not be taken
    for a table, which every rank has whole."""
    own = opened(Case(model="deepseek-v3", cluster="4x8xH800", batch=4, seq=4096, stack="megatron"))

    def exchanged(dp: int) -> dict[str, list[str]]:
        pins = f"tp=4,cp=2,ep=8,etp=1,dp={dp},mbs=1,recompute=none"
        config = own.setting.settled(fill(parse([pins]), ranks=8 * dp, global_batch=dp), dp)
        setting = replace(own.setting, ranks=8 * dp)
        moves = [
            (body.body, f"{move.step.kind} over {move.step.axes}")
            for body in setting.program(config, dp).bodies
            for move in (*body.forward, *body.backward)
            if isinstance(move, Move) and not move.step.free and "dp" not in move.step.axes
        ]
        return {name: sorted(move for of, move in moves if of == name) for name, _ in moves if "Layer" in name}

    assert exchanged(1) == exchanged(2) != {}


def test_copies_launch_more_kernels_for_statistics_that_they_share() -> None:
    """One copy normalises over the batch in one kernel; several sum parts up, which their bound counts beside what they
    exchange, but for what is computed again. Many copies launch what two do."""
    own = opened(CASES[-1])
    common = Checker(own).common

    def launches(dp: int) -> dict[str, int]:
        found = Counter[str]()
        base = own.space.base(1, 1, 1, 0, 2, "all_gather", "full")
        for phases in common.between(base, replace(base, dp=dp)).values():
            found.update({phase: cost.launches for phase, cost in phases.items()})
        return dict(found)

    assert launches(1) == {}
    assert launches(2) == launches(16)
    assert launches(2)["forward"] > 0 < launches(2)["inputs"]
    assert launches(2)["recompute"] == 0


def test_computing_again_takes_longer() -> None:
    """A search leaves out what computes something again where the same without that is too slow already."""
    own = opened(CASES[3])
    checker, seen = Checker(own), 0
    for config in islice(drawn(own.space, Random(1)), 60):
        if config.recompute == "none":
            continue
        plain = type(config)(**{**config.to_json(), "recompute": "none"})  # type: ignore[arg-type]
        try:
            assert checker.bounds(plain).step_s(plain) <= checker.bounds(config).step_s(config)
        except MeshwrightError:
            continue
        seen += 1
    assert seen >= 20
