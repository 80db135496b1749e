"""A plan as a person reads it: whole texts, of plans made by hand of few and round numbers."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from meshwright.ir.target.workload import Workload, stack_named
from meshwright.planner.answer.relax import Nothing, Relaxation
from meshwright.planner.cli.views.plans.nothing import show_nothing
from meshwright.planner.cli.views.plans.parts import ranks_text, stage_table
from meshwright.planner.cli.views.plans.plan import PAGE as PAGE_LINES
from meshwright.planner.cli.views.plans.plan import show, show_brief, show_whole
from meshwright.planner.plan.notes import OWN_MESHES
from meshwright.planner.plan.types import Machines, Plan
from meshwright.planner.question.module_pins import ModulePin
from meshwright.planner.search.search import Found
from tests.planner.handmade import GIB, bounds, config, held, plan, prediction, rival, stage

PAGE = """\
plan        tp=2,pp=2,dp=2,zero=1,mbs=1,recompute=full,schedule=1f1b
step time   2 s (1.5 s to 4 s); fsdp +50.0 %, inside it
memory      3.50 GiB of 3.75 GiB on the fullest rank (stage 2), 6 % kept free
unusual     stages have meshes of their own
confidence  not calibrated; measure kernels first (75 % of the step)

speed       1,234 tokens/s/GPU, MFU 40.00 %
gap         25.00 %: nothing that was searched is below 1.5 s
asked       small.toml, 1.23 M parameters, 2,048 x 4,096 tokens in bf16, on
            big.toml (8,192 ranks, H100, A100)

stages, by group of ranks
ranks  stages  blocks       mesh       peak memory        of      left
0-1    0       2 x Block    tp=2          6.00 GiB  9.00 GiB  3.00 GiB
2-3    1       2 x Block    tp=2          4.00 GiB  4.50 GiB   512 MiB
4-7    2       Block, Head  dp=2 tp=2     3.50 GiB  3.75 GiB   256 MiB

where the step goes, on the busiest ranks
matmul   1.5 s  75.00 %  matrix products
bubble  500 ms  25.00 %  ranks that wait for others

why
heads: tp=8: 4 heads

other plans
      configuration      step time     more  peak memory  why it lost
fsdp  dp=8,zero=3,mbs=1        3 s  +50.0 %     3.00 GiB  +1 s tensor
      tp=8,dp=1,mbs=1          4 s   +100 %     3.00 GiB  +2 s host

what would change it
taking back: tp was to be 2
measuring: fsdp may be as fast

note: a note
note: another
written: out/plan.json
-v shows the space searched, and what numbers stand on
"""

WHOLE = """\
plan        tp=2,pp=2,dp=2,zero=1,mbs=1,recompute=full,schedule=1f1b
step time   2 s (1.5 s to 4 s); fsdp +50.0 %, inside it
memory      3.50 GiB of 3.75 GiB on the fullest rank (stage 2), 6 % kept free
unusual     stages have meshes of their own
confidence  not calibrated; measure kernels first (75 % of the step)

speed       1,234 tokens/s/GPU, MFU 40.00 %
gap         25.00 %: nothing that was searched is below 1.5 s
asked       small.toml, 1.23 M parameters, 2,048 x 4,096 tokens in bf16, on
            big.toml (8,192 ranks, H100, A100)

whole plan    tp=2,pp=2,dp=2,zero=1,mbs=1,microbatches=4,recompute=full,
              schedule=1f1b
data parallel 2: 4 sequences a step on every copy
tensor parallel 2: heads, widths and vocabulary are split, activations between
  blocks split along the sequence
pipeline parallel 2: schedule 1f1b, layers shared even
ZeRO-1: optimizer states are shared out
4 micro-batches of 1 sequence
computed again in the backward pass: every block
3.75 GiB of a device may be used: 4.00 GiB less a margin of 6.25 %

stages, by group of ranks
ranks  stages  blocks       mesh       peak memory        of      left
0-1    0       2 x Block    tp=2          6.00 GiB  9.00 GiB  3.00 GiB
2-3    1       2 x Block    tp=2          4.00 GiB  4.50 GiB   512 MiB
4-7    2       Block, Head  dp=2 tp=2     3.50 GiB  3.75 GiB   256 MiB

where the step goes, on the busiest ranks
matmul   1.5 s  75.00 %  matrix products
bubble  500 ms  25.00 %  ranks that wait for others

why
heads: tp=8: 4 heads

beside what a person would write
               configuration      step time     more  peak memory  why it lost
data parallel                             -        -            -  not possible
fsdp           dp=8,zero=3,mbs=1        3 s  +50.0 %     3.00 GiB  +1 s tensor

alternatives, and why they lost
configuration    step time    more  peak memory  why it lost
tp=8,dp=1,mbs=1        4 s  +100 %     3.00 GiB  +2 s host

what binds
heads: tp=8: 4 heads
constraint: tp was to be 2

operator gap  50.00 %: whatever one or two mesh axes do in operators, no plan
              takes less than 1 s
declared space: 1,200 kernel configurations priced, 3 priced by the evaluator
left out: context parallel
provenance: compute fitted, memory datasheet
times, memory and bounds follow from these: they are no better than datasheet
  (uncalibrated: not measured on this cluster)
model: digest ab12, 1,234,567 parameters, adamw
cluster: 8,192 ranks (H100 and A100) on 1,024 hosts
stack torch: eager kernels, recipe fsdp; target torch-cuda
note: a note
note: another
written: out/plan.json
"""


def printed(capsys: pytest.CaptureFixture[str]) -> str:
    """What went to standard output, without blanks at the ends of lines."""
    return "".join(f"{line.rstrip()}\n" for line in capsys.readouterr().out.splitlines())


def part(text: str, first: str, last: str) -> str:
    """From the line that begins with the one to the line before that which begins with the other."""
    return text[text.index(f"\n{first}") + 1 : text.index(f"\n{last}") + 1]


def test_a_page(capsys: pytest.CaptureFixture[str]) -> None:
    """Of the ranks the last ones are the fullest, with a quarter of a GiB left. The plan has no table of seconds that
    it saves: what is told of fsdp has none."""
    show(plan(), Path("out/plan.json"))
    assert printed(capsys) == PAGE


def test_all_that_is_known(capsys: pytest.CaptureFixture[str]) -> None:
    show_whole(plan(), Path("out/plan.json"))
    assert printed(capsys) == WHOLE


def test_a_plan_in_two_lines(capsys: pytest.CaptureFixture[str]) -> None:
    show_brief(plan(), Path("out/plan.json"))
    first, second = printed(capsys).splitlines()
    assert first == PAGE.splitlines()[0]
    assert second == "step time   2 s (1.5 s to 4 s)"


def test_what_is_odd_stands_in_the_first_lines(capsys: pytest.CaptureFixture[str]) -> None:
    """And not among the notes again: ranks that are idle, what names do not say, what waits on the host."""
    waits = stage(0, held(6.0, 10.0, 1.0, host=7.0)), *prediction().stages[1:]
    odd = plan(
        notes=("2 ranks stay idle: 8, 9", OWN_MESHES, "another"),
        config=config("tp=2,pp=2,dp=2,offload=optimizer+activations:3", 8),
        prediction=prediction(stages=waits),
    )
    show(odd)
    text = printed(capsys)
    said = " ".join(text[text.index("unusual") : text.index("confidence")].split()[1:])
    assert said == (
        f"2 ranks stay idle: 8, 9; {OWN_MESHES}; the optimizer's state and step and activations of 3 blocks wait in "
        "the host's memory (7.00 GiB a rank)"
    )
    assert "note: another\n" in text
    assert text.count("note:") == 1


@pytest.mark.parametrize(
    ("kinds", "said"),
    [
        (
            (("kernels", "fitted"), ("memory", "assumed")),
            "not calibrated; measure kernels first (75 % of the step, fitted)",
        ),
        (
            (("kernels", "measured"), ("collectives", "datasheet")),
            "calibrated in part (kernels); measure collectives first (5 % of the step, datasheet)",
        ),
        ((("collectives", "measured"), ("host", "measured"), ("kernels", "measured")), "calibrated in part"),
    ],
)
def test_what_would_be_worth_measuring(
    capsys: pytest.CaptureFixture[str], kinds: tuple[tuple[str, Any], ...], said: str
) -> None:
    shares = (("matmul", 1.5), ("tensor", 0.1), ("host", 0.05), ("bubble", 0.35))
    show(plan(prediction=prediction(provenance=kinds, shares=shares)))
    assert f"confidence  {said}" in " ".join(printed(capsys).split("\n")).replace(" " * 13, " ")


def test_all_is_measured(capsys: pytest.CaptureFixture[str]) -> None:
    show(plan(provenance=replace(plan().provenance, weakest="measured")))
    assert "confidence  calibrated: all prices were measured on this cluster\n" in printed(capsys)


def by_hand(pins: str, slower: float, *more: tuple[str, float]) -> Any:
    return replace(rival("fsdp", pins, "lost", slower=slower), differences=more)


@pytest.mark.parametrize(
    ("baseline", "said"),
    [
        (by_hand("zero=3", 1.5), "; fsdp +50.0 %, inside it"),
        (by_hand("zero=3", 2.0), "; fsdp +100 %, inside it"),  # four seconds are the end of it
        (by_hand("zero=3", 2.1), "; fsdp +110 %, beyond it"),
        (by_hand("tp=2,pp=2,dp=2,recompute=full", 1.0), "; as a person would write it: fsdp"),
        (by_hand("tp=2,pp=2,dp=2,recompute=full", 1.25), "; fsdp +25.0 %, inside it"),  # it was refined from that
        (replace(by_hand("zero=3", 1.5), short_stage=0), "; nothing that a person would write fits"),
    ],
)
def test_the_step_beside_that_of_a_person(capsys: pytest.CaptureFixture[str], baseline: Any, said: str) -> None:
    """Two seconds are predicted, between 1.5 and 4."""
    show(plan(baselines=(baseline,)))
    assert f"step time   2 s (1.5 s to 4 s){said}\n" in printed(capsys)


def test_why_it_is_faster_than_what_a_person_would_write(capsys: pytest.CaptureFixture[str]) -> None:
    """Two of each kind, the largest first."""
    more = (("publish", 1.0), ("host", -0.5), ("bubble", 0.4), ("matmul", 0.3), ("tensor", -0.2), ("launch", -0.1))
    show(plan(baselines=(by_hand("zero=3", 1.5, *more),), binding=()))
    assert (
        "why\nbeside fsdp, it saves 1 s param gather, 400 ms bubble, and spends 500 ms host,\n  200 ms tensor\n"
    ) in printed(capsys)
    show(plan(baselines=(by_hand("zero=3", 1.5, *more[:1]),), binding=()))
    assert "why\nbeside fsdp, it saves 1 s param gather\n" in printed(capsys)


def test_what_is_faster_by_hand_needs_no_measuring(capsys: pytest.CaptureFixture[str]) -> None:
    """The plan has the least memory, say; nor are seconds the reason then."""
    faster = by_hand("zero=3", 0.75, ("host", -0.5))
    show(plan(baselines=(faster,), bounds=bounds(objective="memory")))
    text = printed(capsys)
    assert "; fsdp -25.0 %, inside it\n" in text
    assert "measuring" not in text
    assert "beside fsdp" not in text
    show(plan(baselines=(faster,)))
    assert "beside fsdp, it spends 500 ms host\n" in printed(capsys)


def test_memory_that_would_change_it(capsys: pytest.CaptureFixture[str]) -> None:
    """It is said there, and not among the other plans."""
    full = replace(rival("faster, but does not fit", "tp=8", "full", slower=0.75), short_stage=1, short_bytes=3 * GIB)
    show(plan(alternatives=(full,)))
    text = printed(capsys)
    assert "memory: tp=8,dp=1,mbs=1 takes 1.5 s, and is short 3.00 GiB\n" in text
    assert "faster, but" not in text


def test_other_plans_and_then_notes_make_room(capsys: pytest.CaptureFixture[str]) -> None:
    """One other plan stays; of notes the last ones."""
    others = tuple(rival(f"plan {at}", f"tp={2 ** (at % 4)},zero={at % 4}", "+1 s host", slower=2.0) for at in range(9))
    show(plan(alternatives=others, baselines=(), notes=tuple(f"note {at} of {'many words ' * 8}" for at in range(9))))
    lines = printed(capsys).splitlines()
    assert len(lines) in (PAGE_LINES - 1, PAGE_LINES)
    assert sum(line.startswith("plan ") for line in lines) == 1 + 1  # the first line is the plan's
    kept = [line.split()[2] for line in lines if line.startswith("note: note")]
    assert kept == [str(at) for at in range(9 - len(kept), 9)]
    assert lines[-2].startswith(f"-v shows 8 more plans, {9 - len(kept)} more notes, the space searched")


def test_many_groups_of_ranks_are_few_rows() -> None:
    """Sixty stages of unlike numbers of blocks: those between the first and the last are one row, with the memory of
    the fullest. Where blocks are of too many kinds, those in the middle are counted."""
    one = plan()
    first, *_ = one.decisions.stages
    stages = tuple(replace(first, ranks=(2 * at, 2 * at + 1)) for at in range(60))
    memory = tuple(stage(at, held(4.0 + (at == 30), 10.0, 1.0)) for at in range(60))

    def rows(blocks: Callable[[int], str]) -> list[Sequence[str]]:
        what = tuple(((blocks(at), 2 + at % 2),) for at in range(60))
        many = plan(decisions=replace(one.decisions, stages=stages), blocks=what, prediction=prediction(stages=memory))
        return stage_table(many).rows

    kinds = {0: "Embed", 59: "Head"}
    assert rows(lambda at: kinds.get(at, "Block")) == [
        ("0-1", "0", "2 x Embed", "tp=2", "4.00 GiB", "9.00 GiB", "5.00 GiB", "loss"),
        ("2-117", "1-58", "2-3 x Block", "tp=2", "5.00 GiB", "9.00 GiB", "4.00 GiB", "loss"),
        ("118-119", "59", "3 x Head", "tp=2", "4.00 GiB", "9.00 GiB", "5.00 GiB", "loss"),
    ]
    found = rows(lambda at: f"Block{at}")
    assert [row[0] for row in found] == ["0-1", "2-3", "4-5", "6-7", "55 rows more", "118-119"]
    assert found[4][4:] == ("5.00 GiB", "9.00 GiB", "4.00 GiB", "loss")


def test_stages_of_the_same_ranks_are_one_group() -> None:
    """Two ranks run the first stage and the third; what they run is counted together."""
    one = plan()
    first, second, _ = one.decisions.stages
    stages = first, second, replace(first, ranks=first.ranks), replace(second, ranks=second.ranks)
    blocks = ((("Embed", 1), ("Block", 2)), (("Block", 2),), (("Block", 2),), (("Block", 2), ("Head", 1)))
    memory = tuple(stage(at, held(4.0, 10.0, 1.0)) for at in range(4))
    twice = plan(decisions=replace(one.decisions, stages=stages), blocks=blocks, prediction=prediction(stages=memory))
    assert [row[:3] for row in stage_table(twice).rows] == [
        ("0-1", "0, 2", "Embed, 4 x Block"),
        ("2-3", "1, 3", "4 x Block, Head"),
    ]
    assert ranks_text((0, 2, 4)) == "3 from 0 on"


def test_what_is_not_there_is_not_spoken_of(capsys: pytest.CaptureFixture[str]) -> None:
    show(plan(baselines=(), alternatives=(), binding=(), notes=()))
    text = printed(capsys)
    expected = PAGE.replace(part(PAGE, "why", "-v"), "")
    assert text == expected.replace("fsdp +50.0 %, inside it", "nothing that a person would write fits")


OTHER = """\
plan        tp=2,pp=2,dp=2,zero=1,mbs=1,recompute=full,schedule=1f1b
step time   2 s (1.5 s to 4 s); fsdp +50.0 %, inside it
memory      6.00 GiB of 4.00 GiB on the fullest rank (stage 0), 20 % kept free
unusual     stages have meshes of their own
confidence  not calibrated; measure kernels first (75 % of the step)

speed       1,234 tokens/s/GPU, MFU 40.00 %, 0.0125 a step
gap         25.00 %: nothing that was searched is below 0.01 a step, the pins of
            modules left out
asked       small.toml, 1.23 M parameters, 2,048 x 4,096 tokens in bf16, on
            one.toml (8 ranks, H100)

stages, by group of ranks
ranks  stages  blocks       mesh       peak memory        of            left
0-3    0-1     2 x Block    tp=2          6.00 GiB  4.00 GiB  short 2.00 GiB
4-7    2       Block, Head  dp=2 tp=2     1.00 GiB  1.00 GiB             0 B

where the step goes, on the busiest ranks
matmul   1.5 s  75.00 %  matrix products
bubble  500 ms  25.00 %  ranks that wait for others

why
heads: tp=8: 4 heads

other plans
        configuration           step time     more  peak memory  why it lost
faster  tp=8,dp=1,mbs=1               1 s  -50.0 %     3.00 GiB  full
fsdp    dp=8,zero=3,mbs=1             3 s  +50.0 %     3.00 GiB  +1 s tensor
        tp=4,dp=2,zero=0,mbs=1        4 s   +100 %     3.00 GiB  +2 s host

what would change it
taking back: tp was to be 2
measuring: fsdp may be as fast
more time: the search was cut short, and may find a better plan

-v shows the space searched, and what numbers stand on
"""


OTHER_SPACE = """\
declared space: 1,200 kernel configurations priced, 3 priced by the evaluator
asked for: tp 2 or 4, sp on, zero not 0 or 1, --fix layers.*.mlp:sharding=column
left out: context parallel; hosts
the search was cut short: more time may find a better plan
"""


def test_a_plan_by_cost_that_does_not_fit_and_was_asked_for(capsys: pytest.CaptureFixture[str]) -> None:
    asked = {"only": {"tp": (2, 4), "sp": (True,)}, "never": {"zero": (0, 1)}}
    asked |= {"modules": (ModulePin("fix", "layers.*.mlp", "sharding", ("column",)),)}  # type: ignore[dict-item]
    full = stage(0, held(6.0, 5.0, 1.0)), stage(1, held(3.0, 5.0, 1.0)), stage(2, held(1.0, 1.5, 0.5))
    workload = Workload(global_batch=2048, seq=4096, optimizer="sgd", stack=stack_named("torch-compile"), recipe="fp32")
    one: Plan = plan(
        workload=workload,
        machines=Machines(ref="one.toml", hosts=1, ranks=8, devices=("H100",), toml=""),
        prediction=prediction(stages=full),
        bounds=bounds(
            objective="cost", lower=0.01, upper=0.0125, complete=False, truncated=("context parallel", "hosts"), **asked
        ),
        baselines=(rival("fsdp", "zero=3", "+1 s tensor", slower=1.5),),
        alternatives=(
            rival("faster", "tp=8,zero=0", "full", slower=0.5),
            rival("", "tp=4,zero=0", "+2 s host", slower=2.0),
        ),
        notes=(),
    )
    show(one)
    assert printed(capsys) == OTHER
    show_whole(one)
    assert OTHER_SPACE in printed(capsys)


# Nothing -------------------------------------------------------------------------------------------------------------


LACKS = """\
what lacks least is short 512 MiB on stage 1: 5.00 GiB of 4.50 GiB
  tp=8,dp=1,mbs=1
"""


def nothing(*found: Relaxation, nearest: bool = True) -> Any:
    """Stage 1 lacks half a GiB of 4.5, the others have what they need."""
    stages = stage(0, held(8.0, 10.0, 1.0)), stage(1, held(5.0, 5.0, 0.5)), stage(2, held(4.0, 5.0, 1.0))
    lacking = Found(config("tp=8,zero=0", 8), prediction(stages=stages))
    solved: Any = SimpleNamespace()
    return Nothing(solved=solved, nearest=lacking if nearest else None, relaxations=found)


def test_what_lacks_least_and_what_would_help(capsys: pytest.CaptureFixture[str]) -> None:
    helps = Found(config("tp=4,zero=0", 8), prediction(step_time_s=3.0))
    other = Found(config("recompute=full", 1), prediction())
    show_nothing(
        nothing(
            Relaxation(kind="constraint", what="ask nothing of tp", found=helps),
            Relaxation(kind="hosts", what="2 hosts instead of 1", found=other),
        )
    )
    assert printed(capsys) == (
        f"nothing fits\n{LACKS}\n"
        "what would help, each tried\n"
        "            change                step time  peak memory\n"
        "constraint  ask nothing of tp           3 s     6.00 GiB\n"
        "  tp=4,dp=2,zero=0,mbs=1\n"
        "hosts       2 hosts instead of 1        2 s     6.00 GiB\n"
        "  dp=1,mbs=1,recompute=full\n"
    )


@pytest.mark.parametrize("nearest", [True, False])
def test_nothing_helps(capsys: pytest.CaptureFixture[str], nearest: bool) -> None:
    show_nothing(nothing(nearest=nearest))
    assert printed(capsys) == (
        f"nothing fits\n{LACKS if nearest else ''}"
        "no single change that was tried helps: constraints, margin, batch, sequence,\n"
        "  hosts\n"
    )
