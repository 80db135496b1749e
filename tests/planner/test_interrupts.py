"""Signals end commands, whatever swallows what they raise, and their processes with them."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from types import SimpleNamespace

import pytest

from meshwright.ir import processes
from meshwright.ir.processes import end_with
from meshwright.planner.cli import interrupts as module
from meshwright.planner.cli.interrupts import SIGNALS, Interrupts

LIMIT_S = 60

BUSY = """
import sys, types
from meshwright.__main__ import main
from meshwright.planner.cli import main as cli
verb = types.ModuleType("busy")
def run(args):
    import time
    print("ready", flush=True)
    {body}
verb.run = run
sys.modules["busy"] = verb
cli.VERBS = (cli.Verb(name="busy", help="", arguments=lambda parser: None, module="busy"),)
cli.main.__kwdefaults__["verbs"] = cli.VERBS
sys.argv = ["plan", "busy"]
sys.exit(main())
"""
UNWINDS = "time.sleep(100)"
SWALLOWS = """
    while True:
        try:
            time.sleep(100)
        except BaseException:
            pass
"""
LOSES = """
    class Lost:
        def __del__(self):
            time.sleep(100)
    del_ = Lost()
    del del_
    return 0
"""


@contextmanager
def started(program: str) -> Iterator[subprocess.Popen[str]]:
    """A process that has said that it is ready."""
    with subprocess.Popen([sys.executable, "-c", program], stdout=-1, stderr=-1, text=True) as process:
        try:
            assert process.stdout is not None
            assert process.stdout.readline() == "ready\n"
            yield process
        finally:
            process.kill()


@pytest.mark.parametrize("body", [UNWINDS, SWALLOWS, LOSES], ids=["unwinds", "swallowed", "lost"])
@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM], ids=str)
def test_a_signal_ends_the_command(body: str, number: int) -> None:
    with started(BUSY.format(body=body)) as process:
        process.send_signal(number)
        _, said = process.communicate(timeout=LIMIT_S)
    assert (process.returncode, said) == (128 + number, "")


def test_what_comes_during_a_verb_is_the_exit_code() -> None:
    ended: list[int] = []
    with Interrupts(ended.append) as interrupts, pytest.raises(KeyboardInterrupt):
        signal.raise_signal(signal.SIGINT)
    assert interrupts.exit_code(0) == 130
    assert Interrupts().exit_code(3) == 3
    assert ended == []  # it is over


def test_a_process_ends_with_its_parent(tmp_path: Path) -> None:
    """As ranks of `plan verify` do where that is killed: also what they have started."""
    said = tmp_path / "said"
    sleeper = (
        f"import os, time; from meshwright.ir.processes import end_with; end_with({{}}); {{}}; time.sleep({LIMIT_S})"
    )
    inner = sleeper.format("os.getppid()", f"open({str(said)!r}, 'w').write(str(os.getpid()))")
    outer = f"import subprocess, sys; subprocess.Popen([sys.executable, '-c', {inner!r}])"
    middle = sleeper.format("int(os.environ['PARENT'])", outer)
    top = (
        "import os, subprocess, sys, time\n"
        f"subprocess.Popen([sys.executable, '-c', {middle!r}], env=os.environ | {{'PARENT': str(os.getpid())}})\n"
        "print('ready', flush=True)\n"
        f"time.sleep({LIMIT_S})"
    )
    with started(top) as process:
        until(lambda: said.exists() and said.read_text())
        child = int(said.read_text())
        process.kill()
        until(lambda: not alive(child))


def alive(process: int) -> bool:
    try:
        os.kill(process, 0)
    except ProcessLookupError:
        return False
    stat = Path(f"/proc/{process}/stat")
    return not (stat.exists() and stat.read_text().rpartition(")")[-1].split()[0] == "Z")


def until(holds: object) -> None:
    """Wait for it; the limit is for a machine that hangs."""
    assert callable(holds)
    for _ in range(LIMIT_S * 20):
        if holds():
            return
        time.sleep(0.05)
    pytest.fail("it did not happen")


def test_one_whose_parent_is_gone_ends_at_once() -> None:
    child = os.fork()
    if not child:
        end_with(1 << 30)
        os._exit(0)
    assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == 1


def test_the_first_signal_counts_and_what_does_not_end_is_ended(monkeypatch: pytest.MonkeyPatch) -> None:
    """After some patience, unless it is over; handlers are as they were before. Elsewhere than on the main thread
    nothing is watched."""
    begun: list[object] = []
    slept: list[float] = []
    monkeypatch.setattr(
        module.threading,
        "Thread",
        lambda target, daemon: SimpleNamespace(start=lambda: begun.append((target, daemon))),
    )
    monkeypatch.setattr(module.time, "sleep", slept.append)
    before, hook, ended = [signal.getsignal(one) for one in SIGNALS], sys.unraisablehook, list[int]()
    told: list[object] = []
    with Interrupts(ended.append) as interrupts:
        assert [signal.getsignal(one) for one in SIGNALS] == [interrupts.noted] * 2
        assert sys.unraisablehook == interrupts.quiet
        interrupts.unraisable = told.append  # type: ignore[assignment]
        lost = [SimpleNamespace(exc_type=kind) for kind in (KeyboardInterrupt, ValueError)]
        interrupts.quiet(lost[0])  # nothing has come: who raised it was not we
        for number in (signal.SIGTERM, signal.SIGINT):
            with pytest.raises(KeyboardInterrupt):
                interrupts.noted(number, None)
        interrupts.quiet(lost[0])
        interrupts.quiet(lost[1])
        assert told == lost
        assert begun == [(interrupts.patient, True)]
        interrupts.patient()
        assert (ended, slept) == ([128 + signal.SIGTERM], [2.0])
        interrupts.unraisable = hook
    assert interrupts.exit_code(3) == 143
    interrupts.patient()
    assert ended == [143]
    assert [signal.getsignal(one) for one in SIGNALS] == before
    assert sys.unraisablehook is hook
    monkeypatch.setattr(module.threading, "current_thread", lambda: "another")
    with Interrupts() as interrupts:
        assert [signal.getsignal(one) for one in SIGNALS] == before
    assert interrupts.before == {}


def test_a_process_without_its_parent_ends_at_once(monkeypatch: pytest.MonkeyPatch) -> None:
    """Where Linux does not tell of it, a thread looks twice a second."""
    begun: list[object] = []
    ended: list[int] = []
    asked: list[tuple[object, ...]] = []
    slept: list[float] = []
    parents = iter((7, 7, 8, 7, 7, 1, 8))
    monkeypatch.setattr(processes.os, "getppid", lambda: next(parents))
    monkeypatch.setattr(processes.os, "_exit", ended.append)
    monkeypatch.setattr(processes.time, "sleep", slept.append)
    monkeypatch.setattr(
        processes.threading,
        "Thread",
        lambda **words: SimpleNamespace(start=lambda: begun.append(words)),
    )
    library = SimpleNamespace(prctl=lambda *what: asked.append(what))
    monkeypatch.setattr(processes.ctypes, "CDLL", lambda name, use_errno: library)
    for platform in ("linux", "darwin"):
        monkeypatch.setattr(processes.sys, "platform", platform)
        end_with(7)
        assert ended == []
    assert asked == [(1, signal.SIGKILL, 0, 0, 0)]
    assert begun == [{"target": processes._watch, "args": (7,), "daemon": True}]
    end_with(7)
    assert ended == [1]
    processes._watch(7)
    assert (ended, slept) == ([1, 1], [0.5, 0.5])
