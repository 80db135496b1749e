"""The command line: what it costs to ask for help, and how every way of ending is reported."""

import gc
import json
import os
import subprocess
import sys
from argparse import ArgumentParser
from collections.abc import Callable
from types import ModuleType

import pytest

from meshwright import __version__
from meshwright.ir.errors import ShapeKeyUnknown
from meshwright.planner.cli.main import VERBS, Verb, build_parser, main

HEAVY = ("torch", "transformers", "jax", "networkx", "rich", "numpy")


def json_argument(parser: ArgumentParser) -> None:
    parser.add_argument("--json", action="store_true")


@pytest.fixture
def act(monkeypatch: pytest.MonkeyPatch) -> Callable[..., int]:
    """Run ``plan act …``, where the verb does what it is told here."""

    def run(does: Callable[[], int], *argv: str) -> int:
        module = ModuleType("verb_under_test")
        module.run = lambda args: does()
        monkeypatch.setitem(sys.modules, module.__name__, module)
        verb = Verb(name="act", help="act", arguments=json_argument, module=module.__name__)
        return main(["act", *argv], verbs=[verb])

    return run


def raiser(error: BaseException) -> Callable[[], int]:
    def does() -> int:
        raise error

    return does


refusal = ShapeKeyUnknown(place="tiny.toml", cause="unknown key 'hiden'", fix="did you mean 'hidden'?")


@pytest.mark.parametrize(
    "argv",
    [
        ["--help"],
        ["--version"],
        ["inspect", "--help"],
        ["inspect", "--batch", "0", "m"],
        ["cluster", "--help"],
        ["estimate", "--help"],
        ["gpus", "--help"],
        ["completion", "--help"],
        ["init", "--help"],
        ["plan", "--config", "q.toml", "--help"],
        ["plan", "--help"],
        ["explain", "--help"],
        ["diff", "--help"],
        ["emit", "--help"],
        ["verify", "--help"],
        ["m.py:f", "--cluster", "cpu:2", "--max-gap", "wide"],
        ["estimate", "m", "--cluster", "cpu:2", "--dtype", "bf61"],
    ],
)
def test_help_and_usage_errors_import_nothing_heavy(argv: list[str]) -> None:
    assert imported(argv) == []


@pytest.mark.parametrize("argv", [["errors", "MW6007"], ["gpus"], ["gpus", "H100"]])
def test_what_is_known_without_a_model_needs_no_framework(argv: list[str]) -> None:
    assert imported(argv) == ["rich"], "which prints"


def imported(argv: list[str]) -> list[str]:
    """What is heavy, and was imported for a command line."""
    script = f"""
import sys
from meshwright.planner.cli.main import main
try:
    main({argv!r})
except SystemExit:
    pass
print("heavy:", *[name for name in {HEAVY!r} if name in sys.modules])
"""
    done = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True, timeout=60, check=True)
    *_, last = done.stdout.splitlines()
    label, *names = last.split()
    assert label == "heavy:"
    return names


def test_help_lists_every_verb(capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit) as end:
        main(["--help"])
    assert end.value.code == 0
    out = capsys.readouterr().out
    assert all(verb.name in out for verb in VERBS)


def test_the_package_runs_as_the_command() -> None:
    done = subprocess.run(
        [sys.executable, "-m", "meshwright", "--version"], capture_output=True, text=True, timeout=60, check=True
    )
    assert done.stdout == f"meshwright {__version__}\n"


@pytest.mark.parametrize(
    "argv",
    [
        [],
        ["no-such-verb"],
        ["inspect"],
        ["inspect", "m.py:f", "--batch", "none"],
        ["inspect", "m.py:f", "--seq", "-4"],
        ["inspect", "m.py:f", "--dtype", "int3"],
        ["inspect", "m.py:f", "--bat", "4"],
        ["cluster", "show"],
        ["cluster", "draw", "cpu:2"],
        ["estimate", "m.py:f"],
        ["estimate", "m.py:f", "--cluster", "cpu:2", "--imbalance", "0.5"],
        ["estimate", "m.py:f", "--cluster", "cpu:2", "--imbalance", "nan"],
        ["estimate", "m.py:f", "--cluster", "cpu:2", "--jobs", "0"],
        ["estimate", "m.py:f", "--cluster", "cpu:2", "--imbalance", "1_0"],
        ["plan", "m.py:f", "--cluster", "cpu:2", "--time-limit", "٣"],
        ["inspect", "m.py:f", "--batch", "1_0"],
        ["inspect", "m.py:f", "--batch", "٣"],
        ["inspect", "m.py:f", "--seed", "9" * 5000],
        ["compare", "p", "log", "--skip", "9" * 5000],
    ],
    ids=lambda argv: " ".join(argv)[:60],
)
def test_usage_errors_exit_with_2(argv: list[str]) -> None:
    with pytest.raises(SystemExit) as end:
        main(argv)
    assert end.value.code == 2


def test_inspect_declares_its_defaults() -> None:
    args = build_parser().parse_args(["inspect", "net.py:build"])
    assert (args.model, args.batch, args.seq) == ("net.py:build", 1, 1024)
    assert (args.dtype, args.style, args.device) == ("bf16", "eager", "cuda")
    assert (args.json, args.dump_after, args.seed) == (False, None, 0)


def test_a_verb_decides_the_exit_code(act: Callable[..., int]) -> None:
    assert act(lambda: 0) == 0
    assert act(lambda: 7) == 7


def test_a_refusal_goes_to_stderr_with_its_exit_code(
    act: Callable[..., int], capsys: pytest.CaptureFixture[str]
) -> None:
    assert act(raiser(refusal)) == 6
    out, err = capsys.readouterr()
    assert out == ""
    assert err == f"{refusal}\n"


def test_a_refusal_is_json_too_when_json_was_asked_for(
    act: Callable[..., int], capsys: pytest.CaptureFixture[str]
) -> None:
    assert act(raiser(refusal), "--json") == 6
    out, err = capsys.readouterr()
    assert json.loads(out) == {"error": refusal.to_json()}
    assert err == f"{refusal}\n"


def test_an_interrupt_is_130(act: Callable[..., int]) -> None:
    assert act(raiser(KeyboardInterrupt())) == 130


def test_a_bug_is_reported_as_ours(
    act: Callable[..., int], capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.delenv("MESHWRIGHT_DEBUG", raising=False)
    assert act(raiser(ZeroDivisionError("oops"))) == 1
    err = capsys.readouterr().err
    assert err.startswith("error MW9002 at plan act: internal error: ZeroDivisionError: oops\n")
    assert "Traceback" not in err


def test_a_bug_shows_its_traceback_when_asked(
    act: Callable[..., int], capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("MESHWRIGHT_DEBUG", "1")
    assert act(raiser(ZeroDivisionError("oops")), "--json") == 1
    out, err = capsys.readouterr()
    assert "Traceback" in err
    assert json.loads(out)["error"]["code"] == "MW9002"


def test_a_reader_that_leaves_early_sees_no_traceback() -> None:
    """As in ``plan … | head -1``: the pipe breaks while the verb prints."""
    script = """
import sys, types
from meshwright.planner.cli.main import Verb, main
verb = types.ModuleType("chatty")
def run(args):
    for _ in range(100_000):
        print("a line of output")
    return 0
verb.run = run
sys.modules["chatty"] = verb
sys.exit(main(["chat"], verbs=[Verb(name="chat", help="", arguments=lambda parser: None, module="chatty")]))
"""
    with subprocess.Popen(
        [sys.executable, "-c", script], stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True
    ) as process:
        assert process.stdout is not None
        assert process.stderr is not None
        process.stdout.readline()
        process.stdout.close()
        assert process.stderr.read() == ""
        assert process.wait(timeout=60) == 141


def test_a_locale_without_our_characters_is_no_error() -> None:
    program = (
        "import sys; from meshwright.planner.cli.main import Verb, main\n"
        "import types; sys.modules['a_verb'] = types.SimpleNamespace(run=lambda args: print('… ≤') or 0)\n"
        "sys.exit(main(['act'], verbs=(Verb(name='act', help='', arguments=lambda parser: None, module='a_verb'),)))"
    )
    done = subprocess.run(
        [sys.executable, "-c", program], env=os.environ | {"PYTHONIOENCODING": "ascii"}, capture_output=True, check=True
    )
    assert done.stdout == b"? ?\n"


def test_a_command_is_said_to_be_at_fault_in_full(
    act: Callable[..., int], capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    """Only 1 asks for the traceback. Garbage is collected rarely while a verb runs, and what it prints is out when it
    ends."""
    fix = "run it again with MESHWRIGHT_DEBUG=1 and report the traceback"
    for debug in ("0", "yes"):
        monkeypatch.setenv("MESHWRIGHT_DEBUG", debug)
        assert act(raiser(KeyError("oops")), "--json") == 1
        out, err = capsys.readouterr()
        assert err == f"error MW9002 at plan act: internal error: KeyError: 'oops'\n  fix: {fix}\n"
        assert json.loads(out)["error"]["fix"] == fix
    before, seen = gc.get_threshold(), list[object]()
    gc.set_threshold(700, 10, 10)
    try:
        assert act(lambda: seen.append(gc.get_threshold()) or 0) == 0  # type: ignore[func-returns-value]
    finally:
        gc.set_threshold(*before)
    assert seen == [(100_000, 20, 100)]
    did: list[str] = []
    monkeypatch.setattr(sys.stdout, "flush", lambda: did.append("flushed"))
    assert act(lambda: did.append("ran") or 4) == 4  # type: ignore[func-returns-value]
    assert did[-2:] == ["ran", "flushed"]


def test_verbs_are_read_by_their_whole_names(capsys: pytest.CaptureFixture[str]) -> None:
    """Each with its module and a help that is its description too; no verb, no help, no abbreviation."""
    for verb in VERBS:
        with pytest.raises(SystemExit) as end:
            main([verb.name, "--help"])
        assert end.value.code == 0
        said = " ".join(capsys.readouterr().out.split())
        assert said.startswith(f"usage: plan {verb.name} ")
        assert verb.help in said
        assert verb.module.startswith("meshwright.planner.cli.verbs.")
        assert verb.module.endswith(f".{verb.name}")
    for argv in (["--vers"], ["plan", "m", "--clust", "cpu:2"], ["--"]):
        with pytest.raises(SystemExit) as end:
            main(argv)
        assert end.value.code == 2
    assert build_parser().parse_args(["schema", "plan"]).module == "meshwright.planner.cli.verbs.reference.schema"
