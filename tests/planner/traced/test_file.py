"""Traces of profilers are read: those that torch and JAX write here, and ones by hand; what is none is refused."""

from __future__ import annotations

import gzip
import json
from itertools import pairwise
from pathlib import Path
from typing import Any

import pytest

from meshwright.ir.errors import TraceUnreadable
from meshwright.ir.limits import TRACE_BYTES, Limit
from meshwright.planner.answer.traced import file
from meshwright.planner.answer.traced.file import Traced, looks_like_a_trace, read_trace, trace_of
from meshwright.planner.answer.traced.tracks import COMMUNICATION, COMPUTE
from tests.planner.traced.profiled import by_jax, by_torch


@pytest.fixture(scope="module")
def of_torch(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return by_torch(tmp_path_factory.mktemp("torch") / "trace.json")


@pytest.fixture(scope="module")
def of_jax(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return by_jax(tmp_path_factory.mktemp("jax"))


def names(found: Traced) -> set[str]:
    return {span.name for track in found.tracks for span in track.spans}


def test_a_trace_of_torch_is_read(of_torch: Path) -> None:
    """Three steps that follow one another, with their operators and the all-reduce in them."""
    found = read_trace(of_torch)
    assert (found.by, found.on_device, found.rank) == ("torch", False, 0)
    assert len(found.steps) == 3
    times = list(found.steps.values())
    assert all(begin < end for begin, end in times)
    assert all(one[1] <= other[0] + 1 for one, other in pairwise(times))
    assert "aten::addmm" in names(found)
    assert any(span.kind == COMMUNICATION for track in found.tracks for span in track.spans)
    assert not any(name.startswith("ProfilerStep") for name in names(found))
    begin, end = times[1]
    inside = [span for track in found.tracks for span in track.spans if begin <= span.start_us <= span.end_us <= end]
    assert sum(span.name == "aten::addmm" for span in inside) == 2
    assert found.base_us is not None


def test_it_may_be_packed(of_torch: Path, tmp_path: Path) -> None:
    packed = tmp_path / "trace.json.gz"
    packed.write_bytes(gzip.compress(of_torch.read_bytes()))
    assert read_trace(packed).steps == read_trace(of_torch).steps
    assert looks_like_a_trace(packed.read_bytes()[:10])


def test_a_trace_of_jax_is_read(of_jax: Path) -> None:
    found = read_trace(of_jax)
    assert (found.by, found.on_device, found.rank, found.base_us) == ("jax", False, None, None)
    assert list(found.steps) == [0, 1, 2]
    assert found.tracks
    assert all(track.thread.startswith("tf_XLA") for track in found.tracks)
    begin, end = found.steps[1]
    assert any(begin < span.start_us < end for track in found.tracks for span in track.spans)


# By hand -------------------------------------------------------------------------------------------------------------


def ran(
    name: str, start: float, lasts: float, category: str = "kernel", thread: Any = 7, **more: Any
) -> dict[str, Any]:
    return {"ph": "X", "name": name, "cat": category, "pid": 0, "tid": thread, "ts": start, "dur": lasts, **more}


def named(what: str, name: str, process: Any = 0, thread: Any = 0) -> dict[str, Any]:
    return {"ph": "M", "name": what, "pid": process, "tid": thread, "args": {"name": name}}


GPU = [
    ran("ProfilerStep#5", 0, 90, "user_annotation", 1),
    ran("ProfilerStep#5", 10, 100, "gpu_user_annotation"),
    ran("ProfilerStep#5", 20, 120, "gpu_user_annotation", 20),
    ran("aten::mm", 0, 50, "cpu_op", 1),
    ran("cudaLaunchKernel", 0, 5, "cuda_runtime", 1),
    ran("gemm", 10, 50),
    ran("Memcpy DtoD", 60, 10, "gpu_memcpy"),
    ran("ncclDevKernel_AllReduce_Sum_bf16_RING_LL", 40, 60, "kernel", 20),
    named("thread_name", "stream 7", 0, 7),
    {},
    "not an event",
    {"ph": "X", "name": "no time", "cat": "kernel"},
    ran("endless", float("inf"), 1),
    ran("backwards", 5, -1),
    ran("", 5, 1) | {"name": 5},
]
"""A step of a GPU, which is behind its host; calls of the driver, and what is no event."""


def of(events: list[Any], **head: Any) -> Traced:
    return trace_of(json.dumps({"traceEvents": events, **head}), "t.json")


def test_a_step_of_a_device_is_that_of_its_streams() -> None:
    found = of(GPU, distributedInfo={"rank": 3, "world_size": 8}, baseTimeNanoseconds=2_000)
    assert (found.rank, found.base_us, found.on_device) == (3, 2.0, True)
    assert found.steps == {5: (10, 140)}
    assert [(track.thread, [span.name for span in track.spans]) for track in found.tracks] == [
        ("stream 7", ["gemm", "Memcpy DtoD"]),
        ("thread 20", ["ncclDevKernel_AllReduce_Sum_bf16_RING_LL"]),
    ]
    assert [span.kind for track in found.tracks for span in track.spans] == [COMPUTE, COMPUTE, COMMUNICATION]


def test_what_runs_on_devices_of_jax() -> None:
    """Steps are the device's own; modules and hosts say the same otherwise."""
    events = [
        named("process_name", "/device:TPU:0", 3),
        named("process_name", "/host:CPU", 701),
        named("thread_name", "Steps", 3, 1),
        named("thread_name", "XLA Ops", 3, 2),
        named("thread_name", "XLA Modules", 3, 3),
        named("thread_name", "tf_XLAEigen/1", 701, 4),
        {"ph": "X", "name": "train", "pid": 701, "tid": 9, "ts": 0, "dur": 9, "args": {"step_num": "4"}},
        {"ph": "X", "name": "4", "pid": 3, "tid": 1, "ts": 5, "dur": 20},
        {"ph": "X", "name": "fusion.1", "pid": 3, "tid": 2, "ts": 5, "dur": 10},
        {"ph": "X", "name": "all-gather.2", "pid": 3, "tid": 2, "ts": 15, "dur": 5},
        {"ph": "X", "name": "jit_step", "pid": 3, "tid": 3, "ts": 5, "dur": 15},
        {"ph": "X", "name": "dot.7", "pid": 701, "tid": 4, "ts": 5, "dur": 15},
    ]
    found = trace_of(json.dumps(events), "t.json")
    assert (found.by, found.on_device, dict(found.steps)) == ("jax", True, {4: (5, 25)})
    assert [(track.process, track.thread, len(track.spans)) for track in found.tracks] == [
        ("/device:TPU:0", "XLA Ops", 2)
    ]


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ("", "it is empty"),
        ("  \n", "it is empty"),
        ('{"traceEvents": [', "it is not JSON"),
        ("[" * 100_000, "it is not JSON"),
        ("{}", "it has no list of traceEvents"),
        ('{"traceEvents": {"a": 1}}', "it has no list of traceEvents"),
        ("5", "it has no list of traceEvents"),
        ("[]", "no step is marked in it"),
        (json.dumps([ran("gemm", 0, 5)]), "no step is marked in it"),
        (
            json.dumps([ran("ProfilerStep#1", 0, 5, "user_annotation"), ran("aten::mm", 0, 0, "cpu_op")]),
            "nothing that ran",
        ),
    ],
)
def test_what_is_no_trace_is_refused(text: str, said: str) -> None:
    with pytest.raises(TraceUnreadable, match=said) as refused:
        trace_of(text, "t.json")
    assert refused.value.place == "t.json"


def test_files_that_cannot_be_read_are_refused(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    for name, content, said in (
        ("cut.json.gz", gzip.compress(b"[1, 2, 3]" * 100)[:-9], "broken or cut short"),
        ("bad.json.gz", b"\x1f\x8b nothing", "broken or cut short"),
        ("folder", None, "is a directory"),
    ):
        path = tmp_path / name
        path.mkdir() if content is None else path.write_bytes(content)
        with pytest.raises(TraceUnreadable, match=said):
            read_trace(path)
    with pytest.raises(TraceUnreadable, match="no such file"):
        read_trace(tmp_path / "none.json")
    with pytest.raises(TraceUnreadable, match="no file can have this name"):
        read_trace("a\0b")
    monkeypatch.setattr(file, "TRACE_BYTES", Limit(most=1000, what=TRACE_BYTES.what, why=TRACE_BYTES.why))
    (tmp_path / "wide.json.gz").write_bytes(gzip.compress(b" " * 2000))
    with pytest.raises(TraceUnreadable, match="unpacked it has at least 1,001 bytes of a profiler's trace"):
        read_trace(tmp_path / "wide.json.gz")


@pytest.mark.parametrize(
    ("start", "trace"),
    [(b'{"traceEvents"', True), (b"\xef\xbb\xbf [\n {", True), (b"[rank0]: a warning", False), (b"step 0 loss", False)],
)
def test_a_log_is_told_from_a_trace(start: bytes, trace: bool) -> None:
    assert looks_like_a_trace(start) == trace
