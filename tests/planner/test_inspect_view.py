"""What is seen in a model, as a person reads it: whole texts, and the JSON, of an inspection made by hand."""

from __future__ import annotations

import re
from dataclasses import replace
from typing import Any

import pytest

from meshwright import __version__
from meshwright.ir.analysis.account import Account, Opaque
from meshwright.ir.analysis.cuts import Cut, Live
from meshwright.ir.analysis.microbatch import Blocker, MicrobatchLegality
from meshwright.ir.graph.graph import Type
from meshwright.planner.cli.views.code.inspect import show
from meshwright.planner.question.inspection import BodyReport, Inspection, LoopReport, Workload, to_json

KIB = 1024


def live(values: int, *, gradient: bool = True) -> Live:
    """So many values of two bytes each."""
    return Live(segment=0, position=0, value="x", type=Type((values,), "bf16"), gradient=gradient, age=None)


def cut(segment: int, position: int, count: int, op: int | None = None, *, skips: int = 0) -> Cut:
    """1 KiB of it has a gradient, and 2 KiB have not."""
    return Cut(
        segment=segment,
        position=position,
        first=0,
        count=count,
        op=op,
        live=(live(512), live(1024, gradient=False)),
        skips=(live(512),) * skips,
        recomputed=(live(8),),
        inputs=(),
        shared=(),
    )


def body(name: str, module_class: str, runs: int, parameters: int, saved: int) -> BodyReport:
    account = Account(ops=runs + 10, forward_flops=2e9, backward_flops=4e9, nbytes=2.0 * KIB)
    return BodyReport(
        name=name,
        module_class=module_class,
        runs=runs,
        parameters=parameters,
        account=account,
        saved_bytes=saved,
    )


TOTAL = Account(
    ops=40,
    forward_flops=8e12,
    backward_flops=16e12,
    nbytes=1000.0,
    opaque_flops=2e12,
    opaque_bytes=100.0,
    opaque=(Opaque("aten::odd", "", "m.py:3", 2), Opaque("aten::[b]", "blocks.0", "m.py:4")),
)
KINDS = tuple("abcdefg")
FOUND = Inspection(
    reference="m.py:f",
    digest="ab12",
    workload=Workload(batch=2, seq=64, style="compiled"),
    parameters=1_234_567,
    trainable=1_000,
    parameter_bytes=3 * KIB,
    buffers=5,
    bodies=(body("embed", "torch.nn.Embedding", 1, 999, KIB), body("block", "my.Block", 1200, 2_000_000, 2 * KIB)),
    segments=(
        (True, ("embed",), 1),
        (False, ("block", "block", "mix"), 4),
        (False, ("block",), 3),
        (True, ("head", "head", "loss"), 1),
    ),
    total=TOTAL,
    saved_bytes=4 * KIB,
    loops=(LoopReport("b", 2, "b", KINDS[:6]), LoopReport("ffn", 4096, "", KINDS)),
    cuts=(
        cut(0, 0, 1),
        cut(0, 0, 1, op=3),
        cut(1, 0, 4, skips=2),
        cut(1, 1, 4),
        cut(1, 2, 990),
        cut(2, 0, 3),
        cut(3, 0, 1),
        cut(3, 1, 1),
        cut(3, 2, 1),
    ),
    microbatch=MicrobatchLegality(
        legal=False,
        blockers=(
            Blocker("n", "norm", "blocks.0", "m.py:9", "averages over it"),
            Blocker("o", "opaque", "", "", "has no rule [b]"),
        ),
    ),
    notes=("a note", "another"),
)

WHOLE = """\
m.py:f  digest ab12
1,234,567 parameters, 1,000 of them trained, 3.00 KiB
one step of 2 x 64 tokens: forward 8.00 TFLOP, backward 16.0 TFLOP; compiled on
  cuda keeps 4.00 KiB for backward

unique blocks; "kept" is for backward
block   runs  parameters   ops     forward    backward     moves      kept
embed      1         999    11  2.00 GFLOP  4.00 GFLOP  2.00 KiB  1.00 KiB
block  1,200      2.00 M  1210  2.00 GFLOP  4.00 GFLOP  2.00 KiB  2.00 KiB
runs as: embed, (2 block mix) x 4, block x 3, 2 head loss

loops that a mesh axis may split
loop   size  operators
b         2  a, b, c, d, e, f
ffn   4,096  a, b, c, d, e, f, ..

1,006 places to cut for a pipeline; between blocks:
after                  places   forward  backward  skips
embed (0.0)                 1  3.00 KiB  1.00 KiB      0
block (1.0)                 4  3.00 KiB  1.00 KiB      2
block (1.1)                 4  3.00 KiB  1.00 KiB      0
mix (1.2)                 990  3.00 KiB  1.00 KiB      0
block (2.0)                 3  3.00 KiB  1.00 KiB      0
head (3.0)                  1  3.00 KiB  1.00 KiB      0
.. 2 more, see --json

micro-batches: they would change the result
  %n = norm @blocks.0 <m.py:9>: it averages over it
  %o = opaque: it has no rule [b]
coverage: 75.00 % of FLOPs and 90.00 % of bytes are under rules
  opaque: aten::odd x 2 in the model m.py:3
  opaque: aten::[b] x 1 in blocks.0 m.py:4
note: a note
note: another
"""


def printed(capsys: pytest.CaptureFixture[str], found: Inspection) -> str:
    show(found)
    plain = re.sub(r"\x1b\[[0-9;]*m", "", capsys.readouterr().out)
    return "".join(f"{line.rstrip()}\n" for line in plain.splitlines())


def test_a_whole_inspection(capsys: pytest.CaptureFixture[str]) -> None:
    """Cuts inside of blocks are counted and not listed, and of those between them the first six are."""
    assert printed(capsys, FOUND) == WHOLE


def test_a_model_without_oddities(capsys: pytest.CaptureFixture[str]) -> None:
    """All of it is trained, six cuts are all that there are, and the batch may be cut."""
    plain = replace(
        FOUND,
        trainable=FOUND.parameters,
        cuts=FOUND.cuts[:7],
        microbatch=MicrobatchLegality(legal=True),
        total=replace(TOTAL, opaque_flops=0.0, opaque_bytes=0.0, opaque=()),
        notes=(),
    )
    text = printed(capsys, plain)
    assert "\n1,234,567 parameters, 3.00 KiB\n" in text
    assert text.endswith(
        "head (3.0)        1  3.00 KiB  1.00 KiB      0\n"
        "\n"
        "micro-batches: legal, every path to the loss is additive in the batch\n"
        "coverage: 100 % of FLOPs and 100 % of bytes are under rules\n"
    )


def test_one_sample_has_nothing_to_cut(capsys: pytest.CaptureFixture[str]) -> None:
    text = printed(capsys, replace(FOUND, workload=Workload(batch=1), notes=()))
    said = "micro-batches: one sample has nothing to cut; inspect with --batch 2 or more\ncoverage: 75.00 % of FLOPs"
    assert f"\n\n{said}" in text


def test_the_json_has_everything() -> None:
    account: dict[str, Any] = {"forward_flops": 2e9, "backward_flops": 4e9, "forward_bytes": 2048.0}
    told = to_json(replace(FOUND, cuts=FOUND.cuts[1:3]))
    assert told == {
        "format_version": 1,
        "meshwright": __version__,
        "model": {
            "ref": "m.py:f",
            "digest": "ab12",
            "parameters": 1_234_567,
            "trainable_parameters": 1000,
            "parameter_bytes": 3072,
            "buffers": 5,
        },
        "workload": {"batch": 2, "seq": 64, "dtype": "bf16", "style": "compiled", "device": "cuda"},
        "totals": {
            "ops": 40,
            "forward_flops": 8e12,
            "backward_flops": 16e12,
            "forward_bytes": 1000.0,
            "saved_bytes": 4096,
        },
        "bodies": [
            {"name": "embed", "class": "torch.nn.Embedding", "runs": 1, "parameters": 999, "ops": 11}
            | account
            | {"saved_bytes": 1024},
            {"name": "block", "class": "my.Block", "runs": 1200, "parameters": 2_000_000, "ops": 1210}
            | account
            | {"saved_bytes": 2048},
        ],
        "segments": [
            {"kind": "glue", "period": ["embed"], "repeats": 1},
            {"kind": "stack", "period": ["block", "block", "mix"], "repeats": 4},
            {"kind": "stack", "period": ["block"], "repeats": 3},
            {"kind": "glue", "period": ["head", "head", "loss"], "repeats": 1},
        ],
        "loops": [
            {"name": "b", "size": 2, "label": "b", "kinds": list("abcdef")},
            {"name": "ffn", "size": 4096, "label": "", "kinds": list("abcdefg")},
        ],
        "cuts": [
            {
                "segment": 0,
                "position": 0,
                "first_repeat": 0,
                "count": 1,
                "op": 3,
                "forward_bytes": 3072,
                "backward_bytes": 1024,
                "live": ["0[0].%x: bf16[512] grad", "0[0].%x: bf16[1024]"],
                "skips": [],
                "recomputed": ["0[0].%x: bf16[8] grad"],
            },
            {
                "segment": 1,
                "position": 0,
                "first_repeat": 0,
                "count": 4,
                "op": None,
                "forward_bytes": 3072,
                "backward_bytes": 1024,
                "live": ["0[0].%x: bf16[512] grad", "0[0].%x: bf16[1024]"],
                "skips": ["0[0].%x: bf16[512] grad"] * 2,
                "recomputed": ["0[0].%x: bf16[8] grad"],
            },
        ],
        "microbatches": {
            "legal": False,
            "blockers": [
                {
                    "op": "n",
                    "kind": "norm",
                    "module": "blocks.0",
                    "source": "m.py:9",
                    "reason": "averages over it",
                },
                {"op": "o", "kind": "opaque", "module": "", "source": "", "reason": "has no rule [b]"},
            ],
        },
        "coverage": {
            "flops": 0.75,
            "bytes": 0.9,
            "opaque": [
                {"target": "aten::odd", "module": "", "source": "m.py:3", "count": 2},
                {"target": "aten::[b]", "module": "blocks.0", "source": "m.py:4", "count": 1},
            ],
        },
        "notes": ["a note", "another"],
    }
