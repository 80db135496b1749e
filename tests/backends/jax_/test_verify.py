"""Emitted scripts are the models they were written for, and communicate as planned: on host devices of one process."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path

import pytest

pytest.importorskip("jax")

from meshwright.backends.jax_.emit.script import printed_in
from meshwright.backends.jax_.emit.shardings import Shardings
from meshwright.backends.jax_.verify.emitted import Job, Ran, run, verdict
from meshwright.backends.jax_.verify.predicted import OF_PRINTED, REWRITES, Predicted, predicted
from meshwright.ir.errors import RanksFailed
from meshwright.ir.sharding.adjoint import Strategy
from meshwright.planner.cli.main import main
from tests.backends.jax_ import planned
from tests.backends.jax_.planned import (
    BATCH,
    LLAMA,
    SEQ,
    TARGET,
    ZOO,
    job,
    needed_of,
    ran_together,
    subject,
    with_decisions,
)
from tests.backends.jax_.proved import ran as recorded

PLANS = (
    (
        f"{LLAMA}:tiny_scan",
        {"dp": 2, "tp": 2, "sequence_parallel": True, "zero": 1, "microbatches": 2, "recompute": "full"},
    ),
    (f"{ZOO}/plain.py:decoder_scan", {"dp": 2, "tp": 2, "zero": 3, "microbatches": 2}),
    (f"{ZOO}/nnx_.py:scanned", {"cp": 2, "tp": 2, "context": "ulysses", "recompute": "full"}),
    (f"{ZOO}/annotated.py:named", {"dp": 2, "tp": 2, "zero": 3}),
)
NEEDED = (
    {"executed", "read_whole", "by_bytes", "scalars"},
    {"executed", "by_bytes", "tied", "log_softmax"},
    {"scalars", "tied"},
    {"executed", "log_softmax"},
)
"""The rewrites without which collectives of each would differ."""


@pytest.fixture(scope="module")
def ran(tmp_path_factory: pytest.TempPathFactory) -> list[tuple[Job, Ran]]:
    """All scripts, run in one process."""
    return ran_together("plans", PLANS, tmp_path_factory.mktemp("jax"), 300)


@pytest.mark.e2e
@pytest.mark.slow
def test_scripts_are_exact(ran: list[tuple[Job, Ran]]) -> None:
    """The loss, every gradient and the optimizer's step; collectives, none left."""
    for one, left in ran:
        found = verdict(one, left)
        assert found.differences == ()
        assert found.tensors >= 10
        assert found.worst < 1e-5


@pytest.mark.e2e
@pytest.mark.slow
def test_every_rewrite_is_needed(ran: list[tuple[Job, Ran]]) -> None:
    for (one, left), needed in zip(ran, NEEDED, strict=True):
        assert needed_of(one, left, REWRITES) == needed


PRINTED = (
    (f"{ZOO}/plain.py:lora", {"dp": 2, "tp": 2, "zero": 3, "sequence_parallel": True}),
    (f"{LLAMA}:tiny_scan", {"dp": 2, "cp": 2, "context": "ring", "zigzag": True, "zero": 3, "microbatches": 2}),
    (f"{ZOO}/plain.py:lora", {"cp": 2, "context": "ring"}),
    (f"{ZOO}/translation.py:build", {"cp": 2, "dp": 2, "microbatches": 2}),
    (f"{ZOO}/plain.py:ragged", {"dp": 2, "recompute": "full"}),
)
"""What shardings of values cannot say: several placements in which readers take a value; rings; a table that an encoder
reads whole sequences by, and a decoder parts; rows of experts, which are gathered, and again in the backward pass."""


@pytest.mark.e2e
@pytest.mark.slow
def test_printed_scripts_are_exact(tmp_path: Path) -> None:
    """Collectives as they stand in the code, but for what XLA exchanges once of one value."""
    needed = []
    for one, left in ran_together("printed", PRINTED, tmp_path, 300):
        assert printed_in(Shardings(one.subject)) is not None
        assert verdict(one, left).differences == ()
        needed.append(needed_of(one, left, OF_PRINTED))
    assert needed == [{"by_bytes", "known", "merged", "once", "read_whole"}, {"weighed"}, set(), set(), set()]


@pytest.mark.e2e
@pytest.mark.slow
def test_what_differs_is_told(ran: list[tuple[Job, Ran]]) -> None:
    one, left = ran[0]
    name = next(name for name in left.off if "gradient" in name)
    assert [
        f"{name} is off by 1.0e-03" in text for text in verdict(one, replace(left, off={name: 1e-3})).differences
    ] == [True]
    assert not verdict(one, replace(left, off={name: float("nan")})).exact
    fewer = {key: number for key, number in left.executed.items() if key[0] != "all_reduce"}
    assert any("all_reduce" in text for text in verdict(one, replace(left, executed=fewer)).differences)


@pytest.mark.e2e
@pytest.mark.slow
def test_a_loss_of_gathered_values_may_be_made_in_shards(tmp_path: Path) -> None:
    """Four devices gather logits, and each makes the whole loss of them; XLA makes a quarter on each, and adds up."""
    plan = subject(f"{ZOO}/linen.py:scanned", dp=4)
    head = plan.decisions.plan["head"]
    strategies = tuple((op, Strategy() if op == "cross_entropy" else one) for op, one in head.strategies)
    plans = tuple(replace(head, strategies=strategies) if one is head else one for one in plan.decisions.plans)
    one = job(with_decisions(plan, replace(plan.decisions, plans=plans)), tmp_path)
    (left,) = recorded("loss", {"gathered": one}, 300).values()
    assert verdict(one, left).differences == ()
    assert "in_shards" in needed_of(one, left, REWRITES)


def test_rows_of_a_parameter_are_summed_as_they_are_read() -> None:
    """Positions: a table of 64 rows, of which 32 are taken before they meet the batch; 32 numbers of 4 bytes each."""
    plan = subject(f"{ZOO}/nnx_.py:gpt", dp=4)
    whole, part = (
        predicted(plan.program, plan.fold, TARGET, tuple(one for one in REWRITES if one != left_out)).packed
        for left_out in ("part_read", "")
    )
    (where,) = whole
    assert whole[where] - part[where] == (64 - 32) * 32 * 4


def test_every_sum_of_a_gradient_is_of_the_whole() -> None:
    """Nine norms of 64 numbers, whose states two copies share out: the tensor axis sums them whole, not in halves."""
    plan = subject(f"{LLAMA}:tiny_scan", dp=2, tp=2, sequence_parallel=True, zero=1)
    halves, whole = (
        predicted(plan.program, plan.fold, TARGET, tuple(one for one in REWRITES if one != left_out)).packed
        for left_out in ("whole_sums", "")
    )
    assert whole["all_reduce", ("tp",)] - halves["all_reduce", ("tp",)] == 9 * 32 * 4


def test_copies_sum_what_micro_batches_add_up_to() -> None:
    """A tied table of 64 x 32 numbers of 4 bytes: one micro-batch sums its gradient for each of two readers, several
    once."""
    each, once = (
        predicted(plan.program, plan.fold, TARGET).packed["all_reduce", ("dp",)]
        for plan in (subject(f"{ZOO}/plain.py:decoder", dp=4, microbatches=several) for several in (1, 2))
    )
    assert each - once == 64 * 32 * 4


def test_shared_micro_batches_are_weighed_by_a_sum() -> None:
    """One number for each of two, beside the two sums of the loss that each has."""
    plan = subject(f"{LLAMA}:tiny_scan", dp=2, zero=3, microbatches=2)
    found = predicted(plan.program, plan.fold, TARGET).scalars
    without = predicted(plan.program, plan.fold, TARGET, tuple(one for one in REWRITES if one != "counted")).scalars
    assert found["all_reduce", ("dp",)] == without["all_reduce", ("dp",)] + 2 * 4


def test_a_sum_over_several_axes_may_be_made_at_once() -> None:
    plan = Predicted({}, {("all_reduce", ("dp",)): 256, ("all_reduce", ("tp",)): 256}, {}, 0)
    executed = {("all_reduce", ("dp", "tp"), 256): 1}
    assert list(plan.differences(executed)) == []
    assert len(list(replace(plan, at_once=False).differences(executed))) == 3


def test_terms_of_a_loss_may_be_added_before_they_are_summed() -> None:
    plan = Predicted({}, {}, {("all_reduce", ("dp",)): 8}, 0)
    assert list(plan.differences({("all_reduce", ("dp",), 4): 1})) == []
    assert len(list(plan.differences({}))) == 1
    assert len(list(plan.differences({("all_reduce", ("dp",), 4): 3}))) == 1


def test_a_loss_may_be_summed_axis_by_axis() -> None:
    plan = Predicted({}, {}, {("all_reduce", ("cp", "dp")): 4}, 0)
    assert list(plan.differences({("all_reduce", ("cp", "dp"), 4): 1})) == []
    assert list(plan.differences({("all_reduce", ("cp",), 4): 1, ("all_reduce", ("dp",), 4): 1})) == []
    assert list(plan.differences({("all_reduce", ("cp",), 4): 1})) == [
        "all_reduce over dp of scalars is planned and not executed"
    ]


def test_the_gradient_of_what_is_summed_to_the_loss_is_known_everywhere() -> None:
    """Losses of tokens, which the tensor axis cuts: their gradients are one number, and are planned to be gathered."""
    plan = subject(f"{ZOO}/plain.py:mlp", tp=2, sequence_parallel=True)
    known, gathered = (
        predicted(plan.program, plan.fold, TARGET, tuple(one for one in REWRITES if one != left_out)).values
        for left_out in ("", "known")
    )
    assert dict(gathered) == {**known, ("all_gather", ("tp",), BATCH * SEQ // 2 * 4): 1}


def test_what_may_be_executed_besides_is_not_taken_from_what_is_planned() -> None:
    """A gradient of as many bytes as a statistic of the loss: eight are planned, and up to two more are let pass."""
    key = ("all_reduce", ("tp",), 256)
    plan = Predicted({key: 2}, {key[:2]: 8 * 256}, {}, 0, {key: 2})
    differing = [list(plan.differences({key: number})) for number in range(9, 14)]
    assert list(map(len, differing)) == [1, 0, 0, 0, 1]


def test_what_may_be_executed_less_often_is_missed_beyond_that() -> None:
    key = ("permute", ("cp",), 256)
    plan = Predicted({key: 10}, {}, {}, 0, at_most={key: 4})
    assert [len(list(plan.differences({key: number}))) for number in (5, 6, 10, 11)] == [1, 0, 0, 1]


@pytest.mark.e2e
def test_a_script_for_another_program_ends(tmp_path: Path) -> None:
    """Places are those of one traced loss; of another one the script runs nothing."""
    one = job(subject(f"{ZOO}/plain.py:mlp", dp=2), tmp_path)
    beside = tmp_path / "train_shardings.py"
    beside.write_text(beside.read_text().replace("TRACE = ", "TRACE = 1"))
    with pytest.raises(RanksFailed, match="the model or JAX has changed"):
        run([one], steps=1, limit_s=100)


def test_words_are_those_of_the_smallest_table() -> None:
    assert planned.words_of(f"{LLAMA}:tiny_scan") == 256


@pytest.mark.e2e
def test_a_model_is_planned_written_and_verified(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """By the command line, without a word about styles: those of JAX are its target's."""
    asked = ["--cluster", "cpu:2", "--target", "jax-cpu", "--global-batch", "4", "--seq", "16", "--out", str(tmp_path)]
    assert main([f"{ZOO}/plain.py:mlp", *asked, "--fix", "dp=2,zero=0"]) == 0
    plan = f"{tmp_path / 'plan.json'}"
    assert json.loads(Path(plan).read_text())["workload"]["stack"] == "jax"
    assert main(["emit", plan, "--out", str(tmp_path / "code")]) == 0
    assert sorted(path.name for path in (tmp_path / "code").glob("*.py")) == ["train.py", "train_shardings.py"]
    capsys.readouterr()
    assert main(["verify", plan, "--steps", "1", "--json"]) == 0
    found = json.loads(capsys.readouterr().out)
    assert found["exact"]
    assert found["ranks"] == 2
    assert {one["kind"] for one in found["collectives"]} == {"all_reduce"}


def test_a_model_that_no_code_calls_is_planned_all_the_same(capsys: pytest.CaptureFixture[str]) -> None:
    """One whose batch is a tuple. Of one with batch norms bounds look at what copies exchange, also where the target
    lacks recomputation."""
    asked = ["--cluster", "cpu:2", "--target", "jax-cpu", "--global-batch", "4", "--seq", "16"]
    assert main([f"{ZOO}/tuples.py:mean", *asked]) == 0
    assert "plan emit refuses this plan (MW5011)" in "".join(capsys.readouterr())
    assert main([f"{ZOO}/images.py:convnet", *asked]) == 0
    assert "plan emit refuses this plan" not in "".join(capsys.readouterr())
