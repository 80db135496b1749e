"""An estimate as a person reads it: whole texts, of predictions made by hand of few and round numbers."""

from __future__ import annotations

from collections.abc import Sequence
from types import SimpleNamespace
from typing import Any

import pytest

from meshwright.ir.target.workload import Workload, stack_named
from meshwright.planner.answer.estimate import Estimate, StageWork
from meshwright.planner.answer.estimates import Outcome
from meshwright.planner.cli.views.plans.estimate import show, show_ranked
from tests.planner.handmade import GIB, config, held, prediction, stage


@pytest.fixture(autouse=True)
def _wide(monkeypatch: pytest.MonkeyPatch) -> None:
    """A console that everything fits on."""
    monkeypatch.setenv("COLUMNS", "200")


def asked(*devices: str, hosts: int = 1, ranks: int = 8, global_batch: int | None = 8, **workload: Any) -> Any:
    """A question, as far as it is printed."""
    pools = [SimpleNamespace(device=SimpleNamespace(name=name)) for name in devices]
    return SimpleNamespace(
        model="small.toml",
        cluster_reference="some.toml",
        cluster=SimpleNamespace(hosts=hosts, ranks=ranks, pools=pools),
        workload=Workload(global_batch=1, seq=4096, **workload),
        global_batch=global_batch,
        target=SimpleNamespace(target="any"),
        annotated=None,
    )


def printed(capsys: pytest.CaptureFixture[str]) -> str:
    return "".join(f"{line.rstrip()}\n" for line in capsys.readouterr().out.splitlines())


WHOLE = """\
small.toml  digest ab12
1,234,567 parameters; a step of 2,048 x 4,096 tokens in bf16 with adamw
cluster some.toml: 4,096 ranks (H100 and A100) on 1,024 hosts
stack torch: eager kernels, recipe fsdp; target any
configuration tp=2,pp=4,dp=1,zero=0,mbs=1,microbatches=8,recompute=none,schedule=1f1b

step time     2 s  (1.5 s to 4 s)
tokens/s/GPU  1,234
MFU           40.00 %
peak memory   8.00 GiB on stage 3, of 9.00 GiB (the device's 10.0 GiB less a margin of 1.00 GiB)
host memory   2.00 GiB for each device, at most
fits          yes

stages, one micro-batch each
stage  layers  ranks      forward  backward  in flight  peak memory  capacity      left   fullest at
0           2      2     10.00 ms  20.00 ms          3     6.00 GiB  9.00 GiB  3.00 GiB         loss
1-2         3      2     10.00 ms  20.00 ms          2     6.00 GiB  9.00 GiB  3.00 GiB         loss
3           1  1,024  1,500.00 ms   0.25 ms          1     8.00 GiB  9.00 GiB  1.00 GiB  forward end

memory at the fullest instant, of the stage with the least room
stage  held by
3      activations 8.00 GiB

where the step goes, on the busiest ranks
matmul   1.5 s  75.00 %  ##############################  matrix products
bubble  500 ms  25.00 %  ##########                      ranks that wait for others

received: 2.00 GB over island, 500 MB over rail, in a step, by all ranks together
provenance: compute fitted, memory datasheet
times, memory and shares follow from these: they are no better than datasheet (uncalibrated: not measured on this \
cluster)
note: a note
note: another
"""


def estimate(ask: Any, **words: Any) -> Estimate:
    """Four stages, two of which run the same."""
    usual = held(6.0, 10.0, 1.0, host=1.0, parameters=6.0, activations=0.0)
    last = held(8.0, 10.0, 1.0, "forward end", host=2.0, gradients=0.0, activations=8.0)
    stages = [stage(number, usual) for number in range(3)]
    stages.append(stage(3, last, ranks=1024, forward_s=1.5, backward_s=2.5e-4))
    given: dict[str, Any] = {
        "ask": ask,
        "workload": Workload(global_batch=2048, seq=4096),
        "digest": "ab12",
        "parameters": 1_234_567,
        "config": config("tp=2,pp=4", 8),
        "prediction": prediction(stages=tuple(stages)),
        "work": tuple(StageWork(layers=layers, in_flight=way) for layers, way in ((2, 3), (3, 2), (3, 2), (1, 1))),
        "notes": ("a note", "another"),
    }
    return Estimate(**given | words)


def test_a_whole_estimate(capsys: pytest.CaptureFixture[str]) -> None:
    """Only what a stage holds is said of it."""
    show(estimate(asked("H100", "A100", "H100", hosts=1024, ranks=4096)))
    assert printed(capsys) == WHOLE


def test_of_many_stages_the_first_and_the_last_are_shown(capsys: pytest.CaptureFixture[str]) -> None:
    stages = tuple(stage(number, held(number + 1.0, 10.0, 1.0, parameters=number + 1.0)) for number in range(8))
    work = tuple(StageWork(layers=1, in_flight=8 - number) for number in range(8))
    show(estimate(asked("H100"), prediction=prediction(stages=stages), work=work))
    shown = printed(capsys).split("stages, one micro-batch each\n")[1].split("\n\n")
    assert [line.split("  ")[0] for line in shown[0].splitlines()] == ["stage", "0", "1", "4 more", "6", "7"]
    assert shown[1].splitlines()[1:] == ["stage  held by", "7      parameters 8.00 GiB"]


def test_an_estimate_that_does_not_fit(capsys: pytest.CaptureFixture[str]) -> None:
    """Stage 0 is exactly full, which fits; of two that lack something, the one that lacks most is named."""
    stages = stage(0, held(4.0, 5.0, 1.0)), stage(1, held(5.0, 5.0, 1.0)), stage(2, held(4.5, 4.0, 1.0))
    work = tuple(StageWork(layers=layers, in_flight=1) for layers in (1, 2, 3))
    ask = asked("H100", stack=stack_named("torch-compile"), recipe="fp32")
    show(estimate(ask, prediction=prediction(stages=stages), work=work, notes=()))
    text = printed(capsys)
    assert "cluster some.toml: 8 ranks (H100) on 1 host\n" in text
    assert "stack torch-compile: compiled kernels, recipe fp32; target any\n" in text
    answer = text[text.index("peak memory   ") : text.index("\nmemory at")]
    assert answer == (
        "peak memory   5.00 GiB on stage 1, of 4.00 GiB (the device's 5.00 GiB less a margin of 1.00 GiB)\n"
        "fits          no: short 1.50 GiB on stage 2, and 1 more\n"
        "\n"
        "stages, one micro-batch each\n"
        "stage  layers  ranks   forward  backward  in flight  peak memory  capacity            left  fullest at\n"
        "0           1      2  10.00 ms  20.00 ms          1     4.00 GiB  4.00 GiB             0 B        loss\n"
        "1           2      2  10.00 ms  20.00 ms          1     5.00 GiB  4.00 GiB  short 1.00 GiB        loss\n"
        "2           3      2  10.00 ms  20.00 ms          1     4.50 GiB  3.00 GiB  short 1.50 GiB        loss\n"
    )
    alone = stage(0, held(4.0, 5.0, 1.0)), stage(1, held(3.5, 4.0, 1.0))
    show(estimate(ask, prediction=prediction(stages=alone), work=work[:2], notes=()))
    assert "\nfits          no: short 512 MiB on stage 1\n" in printed(capsys)


# Many ----------------------------------------------------------------------------------------------------------------


def outcome(pins: str, step_s: float, *, fits: bool = True, weakest: Any = "fitted") -> Outcome:
    """Of eight ranks, in 2 GiB."""
    return Outcome(
        fits=fits,
        step_time_s=step_s,
        tokens_per_s_per_gpu=1000 / step_s,
        mfu=0.25,
        peak_memory_bytes=2 * GIB,
        config=config(pins, 8).to_json(),
        weakest=weakest,
    )


MANY: Sequence[Outcome] = (
    outcome("tp=8", 0.5, fits=False),
    outcome("tp=4", 2.0),
    Outcome(error="it cannot be", exit_code=2),
    outcome("tp=2,sp=off", 1.0),
    outcome("tp=2", 2.0, weakest="datasheet"),
)

HEAD = """\
small.toml
a step of 8 x 4,096 tokens in bf16 with adamw
cluster some.toml: 8 ranks (H100) on 1 host
stack torch: eager kernels, recipe fsdp; target any

"""


def test_configurations_ranked(capsys: pytest.CaptureFixture[str]) -> None:
    """What fits comes first, then the faster, then the line that was first; what all have alike is said once."""
    show_ranked(asked("H100"), (1, 3, 4, 5, 7), MANY, 9)
    text = printed(capsys)
    same = "pp=1,cp=1,ep=1,etp=0,vp=1,shard=0,mbs=1,recompute=none,schedule=1f1b,context=all_gather,zigzag=off,"
    assert text == (
        f"{HEAD}all of these have {same}split=even,stage_blocks=,regather=on,offload=none\n"
        "configurations by step time, those that fit first\n"
        "rank  line  pins                     step time  tokens/s/GPU      MFU  peak memory  fits\n"
        "1        5  tp=2,dp=4,zero=1,sp=off        1 s         1,000  25.00 %     2.00 GiB   yes\n"
        "2        3  tp=4,dp=2,zero=1,sp=on         2 s           500  25.00 %     2.00 GiB   yes\n"
        "3        7  tp=2,dp=4,zero=1,sp=on         2 s           500  25.00 %     2.00 GiB   yes\n"
        "4        1  tp=8,dp=1,zero=0,sp=on      500 ms         2,000  25.00 %     2.00 GiB    no\n"
        "4 priced, 3 of them fit; 1 could not be priced\n"
        "numbers are no better than datasheet (uncalibrated: not measured on this cluster)\n"
    )


@pytest.mark.parametrize(
    ("top", "end"), [(4, "4 priced, 3 of them fit\n"), (3, "4 priced, 3 of them fit; 1 more are not shown (--top)\n")]
)
def test_so_many_rows_as_are_asked_for(capsys: pytest.CaptureFixture[str], top: int, end: str) -> None:
    priced = [one for one in MANY if not one.error]
    show_ranked(asked("H100"), range(4), priced, top)
    text = printed(capsys)
    assert text.endswith(f"{end}numbers are no better than datasheet (uncalibrated: not measured on this cluster)\n")
    assert len(text.splitlines()) == 8 + top + 2


def test_nothing_could_be_priced(capsys: pytest.CaptureFixture[str]) -> None:
    """Nor is there a batch that all lines have."""
    show_ranked(asked("H100", global_batch=None), (1,), [Outcome(error="it cannot be", exit_code=2)], 5)
    assert printed(capsys) == HEAD.replace("8 x 4,096", "4,096") + "0 priced, 0 of them fit; 1 could not be priced\n"
