"""What is said of plans: configurations in words, what is proved, why another plan lost, tables."""

from __future__ import annotations

from dataclasses import replace
from types import SimpleNamespace
from typing import Any

import pytest

from meshwright.cost_models.prediction import Held, Prediction, StagePrediction
from meshwright.planner.answer import report
from meshwright.planner.cli.views.plans.parts import difference_table, share_table
from meshwright.planner.cli.views.tables import Table
from meshwright.planner.plan.types import Bounds
from meshwright.planner.plan.words import amount, gap_text, in_words, more, rough, rows_alike, short, told, worth
from meshwright.planner.question.pins import Config, fill, parse
from meshwright.planner.search.search import Found

GIB = 2**30


ALONG = ", activations between blocks split along the sequence"
KEPT = ", parameters kept from forward to backward"


def config(pins: str, ranks: int, batch: int = 8) -> Config:
    return fill(parse([pins]), ranks=ranks, global_batch=batch)


@pytest.mark.parametrize(
    ("pins", "ranks", "lines"),
    [
        (
            "mbs=8",
            1,
            ["no copies to share", "1 micro-batch of 8 sequences", "computed again in the backward pass: nothing"],
        ),
        (
            "zero=0,mbs=1,recompute=full",
            8,
            [
                "data parallel 8: 1 sequence a step on every copy",
                "no ZeRO: everything is on every copy",
                "1 micro-batch of 1 sequence",
                "computed again in the backward pass: every block",
            ],
        ),
        (
            "tp=2,zero=3,shard=2,regather=off,recompute=selective",
            8,
            [
                "data parallel 4: 2 sequences a step on every copy",
                "tensor parallel 2: heads, widths and vocabulary are split" + ALONG,
                "ZeRO-3: optimizer states, gradients and parameters are shared out over 2 ranks each" + KEPT,
                "2 micro-batches of 1 sequence",
                "computed again in the backward pass: the core of attention",
            ],
        ),
        (
            "tp=2,sp=off,zero=2,regather=off,recompute=selective_op,mbs=2",
            8,
            [
                "data parallel 4: 2 sequences a step on every copy",
                "tensor parallel 2: heads, widths and vocabulary are split",
                "ZeRO-2: optimizer states and gradients are shared out",
                "1 micro-batch of 2 sequences",
                "computed again in the backward pass: all but attention and every other product",
            ],
        ),
        (
            "cp=2,zero=1,ep=2,etp=2,recompute=selective:A+B",
            2,
            [
                "context parallel 2: sequences are split, attention keys and values gathered, zigzag",
                "expert parallel 2: experts are apart, each split over 2 ranks",
                "ZeRO-1: optimizer states are shared out",
                "8 micro-batches of 1 sequence",
                "computed again in the backward pass: selective:A+B",
            ],
        ),
        (
            "cp=2,context=ulysses,zero=0,ep=2,etp=1,offload=optimizer+activations",
            2,
            [
                "context parallel 2: sequences are split, attention by heads, all-to-all (Ulysses)",
                "expert parallel 2: experts are apart",
                "no ZeRO: everything is on every copy",
                "8 micro-batches of 1 sequence",
                "computed again in the backward pass: nothing",
                "in the host's memory: the optimizer's state; the host makes the step",
                "in the host's memory: what blocks keep for backward",
            ],
        ),
        (
            "pp=2,vp=2,stage_blocks=1+2+3+4",
            2,
            [
                "pipeline parallel 2: schedule interleaved, 2 stages for each group of ranks, layers shared 1+2+3+4",
                "no copies to share",
                "8 micro-batches of 1 sequence",
                "computed again in the backward pass: nothing",
            ],
        ),
        (
            "pp=2,schedule=gpipe,split=ends",
            2,
            [
                "pipeline parallel 2: schedule gpipe, layers shared ends",
                "no copies to share",
                "8 micro-batches of 1 sequence",
                "computed again in the backward pass: nothing",
            ],
        ),
    ],
)
def test_a_configuration_in_words(pins: str, ranks: int, lines: list[str]) -> None:
    assert in_words(config(pins, ranks)) == lines


def test_unequal_shares_in_words() -> None:
    """Copies take three, three and two parts of eight sequences."""
    uneven = replace(config("zero=1,mbs=1", 1), dp=4, zero=1, mbs=2)
    first, _, third, *_ = in_words(uneven, (3, 3, 1, 1))
    assert first == "data parallel 4: of 8 sequences of a micro-batch copies take 2 x 3, 2 x 1"
    assert third == "8 micro-batches of 2 sequences on average"


@pytest.mark.parametrize(
    ("pins", "ranks", "text"),
    [
        ("", 1, "dp=1,mbs=1"),
        ("tp=2,recompute=full", 8, "tp=2,dp=4,zero=1,mbs=1,recompute=full"),
        ("pp=2,zero=1", 8, "pp=2,dp=4,zero=1,mbs=1,schedule=1f1b"),
        ("tp=2,sp=off", 2, "tp=2,dp=1,mbs=1,sp=off"),
        ("zero=0", 8, "dp=8,zero=0,mbs=1"),
    ],
)
def test_a_configuration_without_what_goes_without_saying(pins: str, ranks: int, text: str) -> None:
    assert short(config(pins, ranks)) == text


def test_shares_are_named_as_people_know_them() -> None:
    lost = "+1 s publish, -20 ms publish; plan emit refuses it (MW5013)"
    assert told(lost) == "+1 s param gather, -20 ms param gather; plan emit refuses it (MW5013)"
    assert told("publish is no share here") == "publish is no share here"


def test_how_much_longer() -> None:
    assert [more(slower) for slower in (1.0, 1.0346, 0.5, 1.996, 21.0)] == [
        *("+0.0 %", "+3.5 %", "-50.0 %", "+99.6 %", "+2,000 %")
    ]
    assert [rough(share) for share in (0.0, 0.009, 0.01, 0.126, 1.0)] == ["0 %", "< 1 %", "1 %", "13 %", "100 %"]


def proof(**words: Any) -> str:
    bounds: dict[str, Any] = {"objective": "time", "lower": 0.5, "upper": 1.0, "gap": 0.5, "complete": True}
    bounds |= {"only": {}, "never": {}, "modules": (), "truncated": (), "counts": {}}
    plan: Any = SimpleNamespace(bounds=Bounds(**bounds | words))
    return gap_text(plan)


def test_what_is_proved() -> None:
    assert proof() == "50.00 %: nothing that was searched is below 500 ms"
    assert proof(objective="memory", lower=GIB) == "50.00 %: nothing that was searched is below 1.00 GiB"
    assert proof(objective="cost", lower=2.0) == "50.00 %: nothing that was searched is below 2 a step"
    assert proof(gap=0.0) == "0 %: nothing that was searched is faster"
    assert proof(gap=0.0, objective="cost") == "0 %: nothing that was searched costs less"
    assert proof(gap=0.0, objective="memory") == "0 %: nothing that was searched needs less memory"
    assert proof(gap=0.0, modules=("pin",)).endswith("is faster, the pins of modules left out")
    cut = "unknown: the search was cut short before anything could be proved"
    custom = {"schedule": ("custom",)}
    assert proof(lower=0.0, complete=False) == cut
    assert proof(lower=0.0, only=custom) == "unknown: bounds are of schedules that have names"
    assert proof(lower=0.0, only=custom, complete=False) == cut
    assert proof(lower=0.5, only=custom) == "50.00 %: nothing that was searched is below 500 ms"


def test_amounts_have_their_unit() -> None:
    assert [amount(of, 2.0) for of in ("cost", "memory", "time")] == ["2 a step", "2 B", "2 s"]


# Why it lost ---------------------------------------------------------------------------------------------------------


def predicted(step_s: float, *lacks: float, shares: tuple[tuple[str, float], ...] = ()) -> Prediction:
    """Stages that lack so many GiB of 10 each; negative where they fit."""
    return Prediction(
        step_time_s=step_s,
        step_time_low_s=step_s,
        step_time_high_s=step_s,
        tokens_per_s_per_gpu=1.0,
        mfu=0.5,
        stages=tuple(
            StagePrediction(
                stage=number,
                ranks=1,
                forward_s=1.0,
                backward_s=2.0,
                weight_s=1.0,
                memory=Held(
                    peak_bytes=(10 + lack) * GIB, device_bytes=11 * GIB, margin_bytes=GIB, instant="loss", parts=()
                ),
            )
            for number, lack in enumerate(lacks or (-1.0,))
        ),
        shares=shares or (("matmul", step_s),),
        traffic=(),
        provenance=(),
    )


PLAIN = config("", 1)


def found(step_s: float, *lacks: float, pins: str = "", ranks: int = 1, **words: Any) -> Found:
    return Found(config(pins, ranks) if pins else PLAIN, predicted(step_s, *lacks, **words))


BEST = found(1.0, shares=(("matmul", 0.6), ("bubble", 0.3), ("tensor", 0.1)))


def test_differences_add_up_to_the_time_between() -> None:
    other = found(1.1, shares=(("matmul", 0.5), ("tensor", 0.3), ("host", 0.3)))
    assert report.differences(other.prediction, BEST.prediction) == (
        ("bubble", -0.3),
        ("host", 0.3),
        ("tensor", pytest.approx(0.2)),
        ("matmul", pytest.approx(-0.1)),
    )


def test_what_is_worth_a_word() -> None:
    """From two thousandths of the step on, and four of them."""
    parts = (("a", 0.5), ("b", -0.25), ("c", 0.1), ("d", 0.05), ("e", 0.04))
    assert report.told(parts, 1.0) == "+500 ms a, -250 ms b, +100 ms c, +50 ms d"
    assert report.told((("a", 0.002), ("b", -0.0019)), 1.0) == "+2 ms a"
    assert report.told((("a", 0.002),), 2.0) == ""


def test_the_stage_that_lacks_most() -> None:
    assert report.shortest(predicted(1.0, -1.0, -2.0)) == (-1, 0.0)
    assert report.shortest(predicted(1.0, -1.0, 0.0)) == (-1, 0.0)
    assert report.shortest(predicted(1.0, -1.0, 2.0, 1.0, 2.0)) == (1, 2 * GIB)


@pytest.mark.parametrize(
    ("other", "objective", "lost"),
    [
        (found(1.0, 2.0), "time", "does not fit: short 2.00 GiB on stage 0"),
        (BEST, "time", "it is the plan"),
        (found(2.0, -0.5), "memory", "+512 MiB"),
        (found(1.0, pins="zero=0"), "time", "as fast"),
        (
            found(0.55, shares=(("matmul", 0.5), ("tensor", 0.05))),
            "time",
            "faster: -300 ms bubble, -100 ms matmul, -50 ms tensor",
        ),
        (found(0.9999, shares=(("matmul", 0.6), ("bubble", 0.2999), ("tensor", 0.1))), "time", "hardly faster"),
        (found(1.0001, shares=(("matmul", 0.6), ("bubble", 0.3001), ("tensor", 0.1))), "time", "hardly slower"),
        (found(1.5, shares=(("matmul", 0.6), ("bubble", 0.8), ("tensor", 0.1))), "time", "+500 ms bubble"),
    ],
)
def test_why_another_plan_lost(other: Found, objective: str, lost: str) -> None:
    one = report.rival("other", other, BEST, objective)
    assert (one.name, one.lost) == ("other", lost)
    assert (one.step_time_s, one.slower) == (other.step_s, other.step_s)
    assert one.peak_memory_bytes == other.prediction.peak_memory_bytes
    assert all(more_s for _, more_s in one.differences)
    refused = report.rival("other", other, BEST, objective, "MW5001")
    assert refused.lost == f"{lost}; plan emit refuses it (MW5001)"


# Tables --------------------------------------------------------------------------------------------------------------


def cells(table: Table) -> list[tuple[str, ...]]:
    return [tuple(row) for row in table.rows]


def test_differences_in_a_table() -> None:
    table = difference_table("why", (("bubble", 0.3), ("same", 0.0), ("tensor", -0.5)))
    assert cells(table) == [
        ("bubble", "+300 ms", "ranks that wait for others"),
        ("tensor", "-500 ms", "communication of tensor parallelism"),
        ("together", "-200 ms", ""),
    ]
    assert cells(difference_table("why", ())) == [("together", "+0 µs", "")]


def test_where_a_step_goes() -> None:
    """The largest share has a bar of thirty, the least of one."""
    prediction = predicted(2.0, shares=(("matmul", 1.5), ("none", 0.0), ("bubble", 0.49), ("tensor", 0.01)))
    assert cells(share_table(prediction)) == [
        ("matmul", "1.5 s", "75.00 %", "#" * 30, "matrix products"),
        ("bubble", "490 ms", "24.50 %", "#" * 10, "ranks that wait for others"),
        ("tensor", "10 ms", "0.50 %", "#", "communication of tensor parallelism"),
    ]
    assert cells(share_table(predicted(2.0, shares=(("publish", 2.0),)))) == [
        ("param gather", "2 s", "100 %", "#" * 30, "gathers of updated parameters")
    ]


def test_small_shares_are_one_row() -> None:
    """The largest first; below a hundredth of the step, and beyond so many rows, they are told together."""
    shares = (("launch", 0.1), ("matmul", 1.5), ("bubble", 0.35), ("tensor", 0.03), ("host", 0.01), ("context", 0.01))
    rows = cells(share_table(predicted(2.0, shares=shares), 4))
    assert [row[:2] for row in rows] == [
        ("matmul", "1.5 s"),
        ("bubble", "350 ms"),
        ("launch", "100 ms"),
        ("other", "50 ms"),
    ]
    rows = cells(share_table(predicted(2.0, shares=shares), 9))
    assert [row[:2] for row in rows][-2:] == [("tensor", "30 ms"), ("other", "20 ms")]
    assert len(cells(share_table(predicted(2.0, shares=(("matmul", 1.99), ("host", 0.01))), 9))) == 2


def test_neighbours_that_show_the_same_are_one_row() -> None:
    assert rows_alike([("a",), ("a",), ("b",), ("a",), ("a",), ("a",)]) == [
        ("0-1", ("a",)),
        ("2", ("b",)),
        ("3-5", ("a",)),
    ]
    assert rows_alike([]) == []


def test_what_numbers_are_worth() -> None:
    assert worth("measured") == "measured"
    assert worth("fitted") == "no better than fitted (uncalibrated: not measured on this cluster)"


def test_the_fastest_of_every_other_kind() -> None:
    """Of what is faster and does not fit, the one that lacks least; else the fastest of every other kind."""
    every = (
        found(0.5, 3.0, pins="tp=2", ranks=2),
        found(0.6, 1.0, pins="cp=2", ranks=2),
        found(0.999, 0.5, pins="pp=2", ranks=2),  # hardly faster
        found(1.2, pins="zero=1", ranks=2),
        found(1.3, pins="zero=1,recompute=full", ranks=2),  # the same kind, and slower
        found(1.4, pins="tp=4", ranks=4),
        found(1.5, pins="tp=8", ranks=8),
    )
    usual = found(1.1, pins="zero=2", ranks=2)
    solved: Any = SimpleNamespace(
        search=SimpleNamespace(
            found={one.config: one for one in (BEST, usual, *every)}, baselines={"usual": usual}, emission=None
        ),
        score=lambda one: one.step_s,
        objective="time",
    )
    told = [(one.name, one.step_time_s) for one in report._alternatives(solved, BEST, 2)]
    assert told == [("faster, but does not fit", 0.6), ("", 1.2), ("", 1.4)]


def test_a_frontier_has_what_nothing_undercuts_in_time_and_memory() -> None:
    """Of equal times the one of less memory; what saves less than a fiftieth is left out."""
    every = [
        SimpleNamespace(config=name, step_s=step_s, prediction=SimpleNamespace(peak_memory_bytes=size, fits=size < 90))
        for name, step_s, size in (
            ("slow", 3.0, 50.0),
            ("fast", 1.0, 100.0),
            ("fast and full", 1.0, 101.0),
            ("hardly less", 1.5, 99.0),
            ("undercut", 2.5, 80.0),
            ("less", 2.0, 70.0),
            ("slowest", 4.0, 49.0),
        )
    ]
    solved: Any = SimpleNamespace(search=SimpleNamespace(found={one.config: one for one in every}))
    told = [(one.config, one.peak_memory_bytes, one.fits) for one in report._frontier(solved)]
    assert told == [("fast", 100.0, False), ("less", 70.0, True), ("slow", 50.0, True), ("slowest", 49.0, True)]


@pytest.mark.parametrize(
    ("pins", "ranks", "steps"),
    [
        ("zero=0", 1, {"mbs=2": {"mbs": 2, "microbatches": 1}}),
        (
            "zero=0,mbs=2",
            4,
            {
                "tp=2": {"tp": 2, "dp": 2, "sp": True, "microbatches": 2},
                "cp=2": {"cp": 2, "dp": 2, "sp": False, "microbatches": 2},
                "pp=2": {"pp": 2, "dp": 2, "schedule": "1f1b", "microbatches": 2},
                "mbs=4": {"mbs": 4, "dp": 4},
            },
        ),
        (
            "zero=1,ep=2,pp=2,schedule=gpipe,shard=2",
            8,
            {
                "tp=2": {"tp": 2, "dp": 2, "microbatches": 4, "shard": 0, "schedule": "gpipe"},
                "cp=2": {"cp": 2, "dp": 2, "microbatches": 4},
                "pp=4": {"pp": 4, "dp": 2, "microbatches": 4, "schedule": "gpipe"},
                "ep=4": {"ep": 4, "dp": 4, "shard": 2},
            },
        ),
    ],
)
def test_one_step_away(pins: str, ranks: int, steps: dict[str, dict[str, Any]]) -> None:
    found = dict(report._steps(config(pins, ranks, 8 if ranks > 1 else 1), "1f1b"))
    assert set(found) == set(steps)
    for name, changes in steps.items():
        assert {key: getattr(found[name], key) for key in changes} == changes


def test_idle_hosts_are_told() -> None:
    def told(used: int, hosts: int | None) -> list[str]:
        solved: Any = SimpleNamespace(ask=SimpleNamespace(cluster=SimpleNamespace(hosts=used)), hosts=hosts)
        return list(report._idle(solved))

    assert told(2, 8) == ["6 of 8 hosts stay idle: the plan is for the other 2"]
    assert told(2, 2) == told(2, None) == []
