"""A plan as a person reads it: whole texts, of plans made by hand of few and round numbers."""

from __future__ import annotations

from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from meshwright.ir.target.workload import Workload, stack_named
from meshwright.planner.answer.relax import Nothing, Relaxation
from meshwright.planner.cli.views.plans.nothing import show_nothing
from meshwright.planner.cli.views.plans.plan import show, show_brief, show_whole
from meshwright.planner.plan.types import Machines, Plan
from meshwright.planner.question.module_pins import ModulePin
from meshwright.planner.search.search import Found
from tests.planner.handmade import bounds, config, held, plan, prediction, rival, stage

PAGE = """\
plan        tp=2,pp=2,dp=2,zero=1,mbs=1,recompute=full,schedule=1f1b
step time   2 s (1.5 s to 4 s); fsdp +50.0 %, inside it
memory      3.50 GiB of 3.75 GiB on the fullest rank (stage 2), 6 % kept free
unusual     stages have meshes of their own
confidence  not calibrated; measure kernels first (75 % of the step)

speed       1,234 tokens/s/GPU, MFU 40.00 %
gap         25.00 %: nothing that was searched is below 1.5 s
asked       small.toml, 1.23 M parameters, 2,048 x 4,096 tokens in bf16, on
            big.toml (8,192 ranks, H100 and A100)

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
            big.toml (8,192 ranks, H100 and A100)

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
