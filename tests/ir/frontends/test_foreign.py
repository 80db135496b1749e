"""What is said of code of a user's that raised: its line, and its words as far as they can be had."""

from __future__ import annotations

import contextlib
import signal
import sys
import time
from collections.abc import Callable
from typing import Any

import pytest

from meshwright.ir.errors import FactoryRaised, ModelFileExited, ModelTimedOut, NoTwin
from meshwright.ir.frontends import foreign
from meshwright.ir.frontends.foreign import (
    HOME,
    LONGEST,
    blamed,
    contained,
    described,
    ended_at,
    guarded,
    printed,
    user_line,
)

MODEL = "/home/user/model.py"


def code(file: str, *lines: str, **names: Any) -> Callable[..., Any]:
    """A function that stands in a file from its second line on."""
    exec(compile("def run():\n" + "".join(f"    {line}\n" for line in lines), file, "exec"), names)  # noqa: S102
    run: Callable[..., Any] = names["run"]
    return run


def raised(run: Callable[..., Any]) -> BaseException:
    with pytest.raises(ValueError, match="no") as caught:
        run()
    return caught.value


def test_the_innermost_line_of_the_users_is_named() -> None:
    """Lines of libraries, of Python and of this package are not theirs."""
    inner = code("/home/user/parts.py", "x = 1", "raise ValueError('no')")
    assert user_line(raised(code(MODEL, "inner()", inner=inner)), "there") == "/home/user/parts.py:3"
    for file in (
        "/venv/lib/site-packages/torch/nn.py",
        "/usr/lib/dist-packages/torch/nn.py",
        f"/usr/lib/python{sys.version_info.major}.{sys.version_info.minor}/json.py",
        "<string>",
        "<frozen importlib>",
        str(HOME / "ir" / "mesh.py"),
    ):
        called = code(MODEL, "", "inner()", inner=code(file, "raise ValueError('no')"))
        assert user_line(raised(called), "there") == f"{MODEL}:3", file
        assert user_line(raised(code(file, "called()", called=called)), "there") == f"{MODEL}:3", file
        alone = raised(code(file, "raise ValueError('no')"))
        alone.__traceback__ = alone.__traceback__.tb_next if alone.__traceback__ else None  # without this file
        assert user_line(alone, "there") == "there", file


def test_a_line_that_is_no_python_is_named() -> None:
    """Unless nobody says in which file it is."""
    assert user_line(SyntaxError("no", (MODEL, 7, 1, "x =")), "there") == f"{MODEL}:7"
    assert user_line(SyntaxError("no", (None, 7, 1, "x =")), "there") == "there"


class Mute(Exception):
    def __str__(self) -> str:
        raise RuntimeError("it has no words")


def test_an_error_is_described_in_a_line() -> None:
    for error, expected in (
        (ValueError("one: two\nthree"), "ValueError: one: two"),
        (ValueError("\n  two\n"), "ValueError: two"),
        (ValueError(), "ValueError: no message"),
        (Mute(), "Mute: its message cannot be printed"),
        (ValueError("a\x1b[2Jb\tc"), "ValueError: a [2Jb c"),
    ):
        assert described(error) == expected


def test_what_is_repeated_has_an_end() -> None:
    """The last letter that is is the two hundredth."""

    class Said:
        def __init__(self, count: int) -> None:
            self.count = count

        def __repr__(self) -> str:
            return "x" * (self.count - 1) + "y"

    assert printed(Said(LONGEST)) == "x" * (LONGEST - 1) + "y"
    assert printed(Said(LONGEST + 1)) == "x" * LONGEST + "…"
    assert printed(Mute()) == "Mute()"
    assert printed(code(MODEL, "class Odd:", "    def __repr__(self): return 1", "return Odd()")()) == (
        "a Odd that cannot be printed"
    )


def test_whose_error_it_is() -> None:
    """All that is raised while code of the user's runs; while it is asked, what passes through a line of theirs.
    Refusals of ours pass."""
    ours = NoTwin(place="here", cause="none", fix="make one")
    theirs = code(MODEL, "raise ValueError('no')")
    library = code("<string>", "raise ValueError('no')")

    def refused(error: BaseException) -> Callable[..., Any]:
        return code(MODEL, "raise error", error=error)

    for guard in (lambda: guarded("there", 60.0), lambda: blamed("there")):
        with pytest.raises(FactoryRaised) as caught, guard():
            theirs()
        assert (caught.value.place, caught.value.cause) == (f"{MODEL}:2", "ValueError: no")
        with pytest.raises(NoTwin), guard():
            refused(ours)()
    error = raised(library)
    error.__traceback__ = None
    assert foreign.user_frames(error) == []
    with pytest.raises(FactoryRaised) as caught, guarded("there", 60.0):
        library()
    assert caught.value.cause == "ValueError: no"


def test_who_exits_is_told_with_what() -> None:
    with pytest.raises(ModelFileExited) as caught, contained("there", 60.0):
        code(MODEL, "import sys", "sys.exit('bye')")()
    assert caught.value.place == f"{MODEL}:3"
    assert caught.value.cause == "the code called sys.exit('bye')"
    assert caught.value.fix == 'move what the script does under `if __name__ == "__main__":`'


# Limits of time ------------------------------------------------------------------------------------------------------


def _late() -> NoTwin:
    return NoTwin(place="out there", cause="it is late", fix="wait")


def spin(until_s: float = 5.0) -> None:
    end = time.monotonic() + until_s
    while time.monotonic() < end:
        pass


@pytest.mark.parametrize(("outer_s", "inner_s", "kind"), [(0.05, 5.0, NoTwin), (5.0, 0.05, ModelTimedOut)])
def test_of_two_limits_the_earlier_one_ends_the_block(outer_s: float, inner_s: float, kind: type[Exception]) -> None:
    """Each by its own refusal, wherever code that refuses what users raise stands in between."""
    began = time.monotonic()
    with pytest.raises(kind), ended_at(began + outer_s, _late), blamed("m.py"), contained("m.py", inner_s):
        spin()
    assert time.monotonic() - began < 4.0
    assert signal.getitimer(signal.ITIMER_REAL) == (0.0, 0.0)


def test_an_outer_limit_goes_on_after_an_inner_block_and_after_who_swallowed_it() -> None:
    began = time.monotonic()

    def run() -> None:
        with contained("m.py", 5.0):
            pass
        assert 0.0 < signal.getitimer(signal.ITIMER_REAL)[0] <= 0.2
        with contextlib.suppress(BaseException):
            spin()
        with contained("m.py", 5.0):
            spin()

    with pytest.raises(NoTwin), ended_at(began + 0.2, _late):
        run()
    assert time.monotonic() - began < 4.0


def test_a_timer_of_somebody_else_goes_on() -> None:
    signal.setitimer(signal.ITIMER_REAL, 50.0)
    try:
        with contained("m.py", 5.0):
            assert signal.getitimer(signal.ITIMER_REAL)[0] <= 5.0
        assert 40.0 < signal.getitimer(signal.ITIMER_REAL)[0] <= 50.0
    finally:
        signal.setitimer(signal.ITIMER_REAL, 0)
