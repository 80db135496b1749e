"""What a verification says and takes: whole texts, JSON and sums, of findings made by hand."""

from __future__ import annotations

import json
import os
from argparse import Namespace
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from meshwright.backends.results import Alone, Verified
from meshwright.ir.errors import VerificationTooLarge
from meshwright.ir.graph.graph import Type
from meshwright.planner.cli.progress import Progress
from meshwright.planner.cli.verbs.code import verify
from meshwright.planner.cli.views.code import alone as of_alone
from meshwright.planner.cli.views.code import verify as of_run
from meshwright.planner.plan import needs
from meshwright.planner.plan.needs import Needs, available_bytes, needs_of, parameters_of

MIB, GIB = 2**20, 2**30


def found(**words: Any) -> Verified:
    """Four ranks, two steps, exact."""
    usual: dict[str, Any] = {"ranks": 4, "steps": 2, "losses": (5.5, 5.25), "tensors": 78, "worst": 0.00012}
    usual |= {"collectives": (("all_reduce", "dp", 3, 2048), ("send", "pp", 1, 512)), "once": (), "unlike": ()}
    return Verified(**usual | {"off": ()} | words)


HEAD = [
    "4 ranks, 2 steps against one device: exact",
    "loss          5.500000, 5.250000",
    "compared      78 tensors per rank and step, the worst off by 1.2e-04",
]
COMMUNICATED = ["per step      3 all_reduce over dp, 2.00 KiB", "per step      1 send over pp, 512 B"]


@pytest.mark.parametrize(
    ("words", "whole", "planned", "lines"),
    [
        ({}, 0, (), []),
        (
            {"in_fp64": 1.5e-12, "apart": 7, "rounded": 3},
            0,
            (),
            ["7 tensors are off by more than 1e-05 in fp32; of the same script in fp64, the worst by 1.5e-12"],
        ),
        ({"in_fp64": 0.0}, 0, (), ["0 tensors are off by more than 1e-05 in fp32; of the same script in fp64, the "]),
        (
            {"failed_in_fp64": "no kernel", "rounded": 3},
            0,
            (),
            ["is not told from faults: the script does not run in fp64 (no kernel)"],
        ),
        ({"rounded": 3}, 0, (), ["3 gradients are as near to those in fp32 as one device's are"]),
    ],
)
def test_what_is_said_of_rounding(
    words: dict[str, Any], whole: int, planned: tuple[float, ...], lines: list[str]
) -> None:
    """One of three things, or nothing."""
    told = list(of_run.shown(found(read_whole=whole, **words), planned))
    assert told[:3] == HEAD
    assert told[len(told) - 2 :] == COMMUNICATED
    rounding = told[3:-2]
    assert len(rounding) == len(lines)
    assert all(line.startswith(f"rounding      {said}") for line, said in zip(rounding, lines, strict=True))


def test_everything_is_said_in_its_order() -> None:
    """Rank 2 is the fullest: 4 of its 5 MiB were used. Of 21 differences twenty are printed."""
    off = tuple(f"rank {rank} is off" for rank in range(20))
    one = found(
        once=(("broadcast", "tp", 2, 4096),),
        memory=(MIB, 2 * MIB, 4 * MIB, MIB),
        unlike=("odd",),
        off=off,
        read_whole=6,
    )
    assert list(of_run.shown(one, (9.0 * MIB, 3.0 * MIB, 5.0 * MIB, 8.0 * MIB))) == [
        HEAD[0].replace("exact", "DIFFERENT"),
        *HEAD[1:],
        *COMMUNICATED,
        "once          2 broadcast over tp, 4.00 KiB",
        "memory        4.00 MiB of tensors on the fullest rank, 5.00 MiB planned (+25.0%)",
        "not executed  6 collectives of tokens and labels: every rank reads them whole",
        "odd",
        *off[:19],
        "and 1 more: see --json",
    ]
    twenty = list(of_run.shown(found(off=off), ()))
    assert twenty[-1] == "rank 19 is off"


def test_findings_as_json() -> None:
    one = found(
        once=(("broadcast", "tp", 2, 4096),), memory=(MIB, 2 * MIB), rounded=3, in_fp64=0.5, off=("off",), read_whole=6
    )
    assert of_run.to_json(one, (3.0, 4.0, 5.0)) == {
        "exact": False,
        "ranks": 4,
        "steps": 2,
        "losses": [5.5, 5.25],
        "tensors": 78,
        "worst": 0.00012,
        "collectives": [
            {"kind": "all_reduce", "axes": "dp", "count": 3, "bytes": 2048},
            {"kind": "send", "axes": "pp", "count": 1, "bytes": 512},
        ],
        "once": [{"kind": "broadcast", "axes": "tp", "count": 2, "bytes": 4096}],
        "read_whole": 6,
        "memory": [{"bytes": MIB, "planned_bytes": 3.0}, {"bytes": 2 * MIB, "planned_bytes": 4.0}],
        "rounded": 3,
        "in_fp64": 0.5,
        "random": [],
        "differences": ["off"],
    }


def test_memory_as_planned_is_what_ranks_hold_and_the_host_steps(monkeypatch: pytest.MonkeyPatch) -> None:
    """Of every rank once, in the order of the stages, which may share some."""
    program: Any = SimpleNamespace(stages=[SimpleNamespace(ranks=ranks) for ranks in ((2, 3), (0, 1), (2, 3))])
    held = {rank: SimpleNamespace(peak_bytes=10.0 * rank) for rank in range(4)}
    monkeypatch.setattr(needs, "tensors_held", lambda _: held)
    monkeypatch.setattr(needs, "stepped_on_host", lambda _: {0: 1.0, 1: 2.0, 2: 3.0, 3: 4.0})
    assert needs.planned_memory(program) == (23.0, 34.0, 1.0, 12.0)


# What it takes -------------------------------------------------------------------------------------------------------


def subject(precision: str, *calls: tuple[tuple[int, ...], ...]) -> Any:
    """A model of calls that read parameters of these shapes."""
    made = []
    for call in calls:
        params = [SimpleNamespace(value=str(at)) for at in range(len(call))]
        graph = SimpleNamespace(params=params, types={str(at): Type(shape, "f32") for at, shape in enumerate(call)})
        made.append(SimpleNamespace(body=SimpleNamespace(graph=graph)))
    fold = SimpleNamespace(calls=lambda: made)
    return SimpleNamespace(fold=fold, workload=SimpleNamespace(precision=precision))


@pytest.mark.parametrize(
    ("precision", "peaks", "steps", "needed"),
    [
        # every rank: the process, its peak, the model and four copies of it
        ("bf16", (1000.0, 5000.0), 2, 600 * MIB + 6000 + 2 * 400 * 5),
        ("fp32", (1000.0, 5000.0), 2, 600 * MIB + 12000 + 2 * 800 * 5),
        ("fp16", (0.0,), 3, 300 * MIB + 400 * (6 + 10)),
        ("fp32", (0.0,), 1, 300 * MIB + 800 * (2 + 10)),
    ],
)
def test_the_larger_of_what_ranks_take_and_what_comes_afterwards(
    precision: str, peaks: tuple[float, ...], steps: int, needed: float
) -> None:
    """A hundred numbers of four bytes; in fp32 everything may be run again, twice as wide. One rank without a peak
    takes less than the process that reads what it left: the model, all that it left and ten copies."""
    one = subject(precision, ((9, 10), (2,)), ((8,),))
    assert parameters_of(one.fold) == 100
    needs = needs_of(one, peaks, steps)
    assert (needs.ranks, needs.steps, needs.parameters) == (len(peaks), steps, 100)
    assert needs.memory_bytes == needed


def test_what_just_fits_is_run(capsys: pytest.CaptureFixture[str]) -> None:
    needs = Needs(ranks=4, steps=2, parameters=2_000_000, memory_bytes=2.0 * GIB)
    needs.check(2.0 * GIB, 90.0)
    what = "4 processes, 2 steps of 2.00 M parameters"
    assert capsys.readouterr().err == (
        f"to be run: {what}, about 2.00 GiB of memory; within 90 s (--time-limit) and 2.00 GiB (--memory-limit)\n"
    )
    with pytest.raises(VerificationTooLarge) as refused:
        needs.check(1.5 * GIB, 90.0)
    assert refused.value.place == what
    assert refused.value.cause == "about 2.00 GiB of memory are needed, and 1.50 GiB may be used"


@pytest.mark.parametrize(
    ("files", "least"),
    [
        ({}, 8192.0),
        ({"meminfo": "MemTotal: 9 kB\nMemAvailable:   5 kB\n"}, 5120.0),
        ({"meminfo": "MemTotal: 9 kB\n"}, 8192.0),
        ({"meminfo": "MemAvailable: 99 kB\n"}, 8192.0),
        ({"memory.max": "6000", "memory.current": "1500\n"}, 4500.0),
        ({"memory.max": "max", "memory.current": "1500"}, 8192.0),
        ({"memory.max": "1000", "memory.current": "1500"}, 0.0),
    ],
)
def test_what_is_available_here(monkeypatch: pytest.MonkeyPatch, files: dict[str, str], least: float) -> None:
    """Of the machine, two pages of 4 KiB; of what is free; and of what a group of processes is left. What cannot be
    read limits nothing."""

    def read(path: Path, encoding: str = "") -> str:
        if path.name not in files:
            raise FileNotFoundError(path)
        return files[path.name]

    monkeypatch.setattr(os, "sysconf", {"SC_PHYS_PAGES": 2, "SC_PAGE_SIZE": 4096}.__getitem__)
    monkeypatch.setattr(Path, "read_text", read)
    assert available_bytes() == least
    assert needs.FULL == 4


# One rank alone ------------------------------------------------------------------------------------------------------


def rank(number: int, *stages: int, differences: tuple[str, ...] = (), scale: float = 1.0) -> Alone:
    return Alone(
        rank=number,
        stages=stages,
        collectives=(("all_reduce", "dp", 3 + number, 2048), ("send", "pp", 2, 512)),
        wall_s=1.25 * scale,
        cpu_s=0.5 / scale,
        peak_bytes=int(MIB * scale),
        differences=differences,
    )


ONE, OTHER = rank(0, 0, 2), rank(6, 1, differences=("a send is missing", "so is another"), scale=2.0)


def test_a_rank_that_is_done_is_told() -> None:
    assert of_alone.line(ONE) == (
        "rank 0, stages 0 2: 5 collectives and messages as planned; 1.2 s, 0.5 s of CPU, 1.00 MiB"
    )
    assert of_alone.line(OTHER) == (
        "rank 6, stage 1: 11 collectives and messages DIFFERENT; 2.5 s, 0.2 s of CPU, 2.00 MiB"
    )


def test_all_ranks_are_summed_up() -> None:
    """The most that any took; what the first communicates; then what differs, rank by rank."""
    rows = ["rank 0, per step  3 all_reduce over dp, 2.00 KiB", "rank 0, per step  2 send over pp, 512 B"]
    assert list(of_alone.shown([ONE, OTHER], 16)) == [
        "2 of 16 ranks, each alone: DIFFERENT; at most 2.5 s, 0.5 s of CPU and 2.00 MiB",
        *rows,
        "rank 6: a send is missing",
        "rank 6: so is another",
    ]
    assert list(of_alone.shown([ONE], 16)) == [
        "1 of 16 ranks, each alone: communicates what is priced; at most 1.2 s, 0.5 s of CPU and 1.00 MiB",
        *rows,
    ]


def test_ranks_alone_as_json() -> None:
    told = of_alone.to_json([ONE, OTHER], 16)
    assert (told["exact"], told["ranks"], len(told["alone"])) == (False, 16, 2)
    assert told["alone"][0] == {
        "rank": 0,
        "stages": [0, 2],
        "collectives": [
            {"kind": "all_reduce", "axes": "dp", "count": 3, "bytes": 2048},
            {"kind": "send", "axes": "pp", "count": 2, "bytes": 512},
        ],
        "wall_s": 1.25,
        "cpu_s": 0.5,
        "peak_bytes": MIB,
        "differences": [],
    }
    assert of_alone.to_json([ONE], 16)["exact"] is True


# The command ---------------------------------------------------------------------------------------------------------


def ran(
    monkeypatch: pytest.MonkeyPatch, one: Verified, *, target: str = "torch-gloo", ranks: int = 8, **words: Any
) -> tuple[int, list[str]]:
    """The exit code, and what was called; the plan takes 2 GiB, of which one is planned on each of two ranks."""
    done: list[str] = []
    plan = SimpleNamespace(machines=SimpleNamespace(ranks=ranks), decisions=SimpleNamespace(target=target))
    own = SimpleNamespace(program="program", name="the plan", ranks=ranks)
    twin = SimpleNamespace(program="program", name="its twin", ranks=ranks)

    def check(limit: float, time_limit_s: float) -> None:
        done.append(f"may take {limit / GIB:g} GiB and {time_limit_s:g} s")

    def verified(subject: Any, folder: Path, *, steps: int, limit_s: float) -> Verified:
        done.append(f"{subject.name} run, {steps} steps, {limit_s:g} s")
        return one

    backend = SimpleNamespace(
        check_installed=lambda: None,
        emit=lambda subject, folder: SimpleNamespace(write=lambda into: done.append(f"{subject.name} written")),
        verify=verified,
    )

    monkeypatch.setattr(verify, "load_plan", lambda path: plan)
    monkeypatch.setattr(verify, "reload", lambda plan, model: f"again, {model}")
    monkeypatch.setattr(verify, "subject_of", lambda again: own)
    monkeypatch.setattr(verify, "tiny", lambda again, folder, progress: twin)
    monkeypatch.setattr(verify, "backend_of", lambda subject: backend)
    monkeypatch.setattr(verify, "verify_alone", lambda subject, folder, args: done.append(subject.name) or args.good)
    monkeypatch.setattr(verify, "planned_memory", lambda program: (GIB, GIB))
    monkeypatch.setattr(verify, "available_bytes", lambda: 7 * GIB)
    monkeypatch.setattr(verify, "needs_of", lambda subject, planned, steps: SimpleNamespace(check=check))
    usual = {"plan": "p", "model": None, "alone": False, "tiny": False, "out": None, "steps": 2, "time_limit": 60.0}
    return verify.run(
        Namespace(**usual | {"memory_limit": None, "json": False, "good": True, "progress": Progress(None)} | words)
    ), done


@pytest.mark.parametrize(
    ("words", "one", "code", "done"),
    [
        ({}, found(), 0, ["may take 7 GiB and 60 s", "the plan written", "the plan run, 2 steps, 60 s"]),
        (
            {"memory_limit": 1.5, "steps": 3},
            found(off=("off",)),
            7,
            ["may take 1.5 GiB and 60 s", "the plan written", "the plan run, 3 steps, 60 s"],
        ),
        (
            {"tiny": True, "target": "torch-cuda", "ranks": 999},
            found(),
            0,
            ["may take 7 GiB and 60 s", "its twin written", "its twin run, 2 steps, 60 s"],
        ),
        ({"alone": True, "ranks": 999, "target": "torch-cuda"}, found(), 0, ["the plan"]),
        ({"alone": True, "good": False}, found(), 7, ["the plan"]),
        ({"alone": True, "tiny": True}, found(), 0, ["its twin"]),
    ],
)
def test_what_is_run_and_how_it_ends(
    monkeypatch: pytest.MonkeyPatch, words: dict[str, Any], one: Verified, code: int, done: list[str]
) -> None:
    assert ran(monkeypatch, one, **words) == (code, done)


@pytest.mark.parametrize(("target", "ranks"), [("torch-gloo", 9), ("torch-cuda", 8)])
def test_what_cannot_be_run_here(monkeypatch: pytest.MonkeyPatch, target: str, ranks: int) -> None:
    with pytest.raises(VerificationTooLarge) as refused:
        ran(monkeypatch, found(), target=target, ranks=ranks)
    assert refused.value.place == f"a plan of {ranks} ranks for {target}"
    assert refused.value.cause == "plans of at most 8 ranks for torch-gloo or jax-cpu can be run here"


def test_what_is_printed_and_kept(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str], tmp_path: Path
) -> None:
    ran(monkeypatch, found(), out=str(tmp_path / "kept"))
    assert (tmp_path / "kept").is_dir()
    assert capsys.readouterr().out.splitlines() == list(of_run.shown(found(), (GIB, GIB)))
    ran(monkeypatch, found(), json=True)
    assert capsys.readouterr().out == f"{json.dumps(of_run.to_json(found(), (GIB, GIB)), indent=2)}\n"


@pytest.mark.parametrize("as_json", [False, True])
def test_ranks_alone_are_told_one_by_one(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str], as_json: bool
) -> None:
    """Beside JSON on standard error."""
    monkeypatch.setenv("COLUMNS", "200")
    subject: Any = SimpleNamespace(ranks=16)
    args = Namespace(time_limit=60.0, json=as_json, progress=Progress(None))
    for ranks, good in (([ONE, OTHER], False), ([ONE], True)):
        backend = SimpleNamespace(each_alone=lambda *_, ranks=ranks, **__: iter(ranks))
        monkeypatch.setattr(verify, "backend_of", lambda _, backend=backend: backend)
        assert verify.verify_alone(subject, Path(), args) == good
        out, err = capsys.readouterr()
        lines = "".join(f"{of_alone.line(one)}\n" for one in ranks)
        if as_json:
            assert (out, err) == (f"{json.dumps(of_alone.to_json(ranks, 16), indent=2)}\n", lines)
        else:
            assert (out, err) == (lines + "".join(f"{line}\n" for line in of_alone.shown(ranks, 16)), "")
