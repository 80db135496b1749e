"""Guarded execution of users' code: whatever it raises, prints or waits for does not escape.

A model file may raise anything, also what is no `Exception`, and what cannot even be printed. All of it becomes an
error of ours that names the user's line. Only two things pass: errors of ours, and a Ctrl-C, which is told from a
`KeyboardInterrupt` that the file raises by the signal that came before it.
"""

from __future__ import annotations

import contextlib
import os
import signal
import sys
import threading
import time
import traceback
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from types import FrameType

import meshwright
from meshwright.ir.errors import FactoryRaised, MeshwrightError, ModelFileExited, ModelTimedOut

TIME_LIMIT_S = 60.0
MESSAGE_LIMIT_S = 1.0
"""For an object to say what it is."""

LONGEST = 200
"""Characters of a user's message, or of a value, that are repeated."""

MAIN = '`if __name__ == "__main__":`'

HOME = Path(meshwright.__file__).parent


@contextlib.contextmanager
def guarded(place: str, limit_s: float) -> Iterator[None]:
    """Run the user's code; an exception becomes an error of its file or factory, with its line."""
    with _refused(place, lambda error: True), contained(place, limit_s):
        yield


@contextlib.contextmanager
def blamed(place: str) -> Iterator[None]:
    """Run code of ours that calls the user's objects; an exception that passes through a line of the user's becomes an
    error of that line."""
    with _refused(place, lambda error: bool(user_frames(error))), _told_apart():
        yield


@contextlib.contextmanager
def _refused(place: str, theirs: Callable[[BaseException], bool]) -> Iterator[None]:
    """Turn an exception into a refusal, if it is `theirs`."""
    try:
        yield
    except (MeshwrightError, Interrupted, TimeIsUp):
        raise
    except BaseException as error:
        if not theirs(error):
            raise
        raise raised(error, place) from None


def raised(error: BaseException, place: str) -> FactoryRaised:
    """The refusal of a file that raises an exception."""
    return FactoryRaised(
        place=user_line(error, place),
        cause=described(error),
        fix="correct this line; the model is built on the meta device, where tensors have shapes but no values",
    )


@contextlib.contextmanager
def contained(place: str, limit_s: float) -> Iterator[None]:
    """Run the user's code: its prints go to standard error, and it can neither hang nor exit."""
    until = _Deadline(time.monotonic() + limit_s)
    try:
        with contextlib.redirect_stdout(sys.stderr), _children_print_to_stderr(), _alarm(until), _told_apart():
            yield
    except TimeIsUp as error:
        if error.deadline is not until:
            raise
        cause, fix = f"still running after {limit_s:g} s", "do this without waiting, downloading or computing"
        raise ModelTimedOut(place=user_line(error, place), cause=cause, fix=f"{fix}; weights are not needed") from None
    except SystemExit as error:
        cause, fix = f"the code called sys.exit({printed(error.code)})", "move what the script does under"
        raise ModelFileExited(place=user_line(error, place), cause=cause, fix=f"{fix} {MAIN}") from None


class Interrupted(KeyboardInterrupt):
    """A Ctrl-C while code of the user's ran."""


@contextlib.contextmanager
def _told_apart() -> Iterator[None]:
    """Turn a Ctrl-C into `Interrupted`, even where the user's code swallows it. Any other `KeyboardInterrupt` was
    raised by the code itself."""
    came = False
    before = signal.getsignal(signal.SIGINT)

    def note(number: int, frame: FrameType | None) -> None:
        nonlocal came
        try:
            before(number, frame)  # type: ignore[operator, misc]
        except KeyboardInterrupt:
            came = True
            raise Interrupted from None

    main = threading.current_thread() is threading.main_thread() and callable(before)
    if main:
        signal.signal(signal.SIGINT, note)
    try:
        yield
    finally:
        if main and signal.getsignal(signal.SIGINT) is note:
            signal.signal(signal.SIGINT, before)
        if came and not isinstance(sys.exception(), Interrupted):
            raise Interrupted


# What it raised ------------------------------------------------------------------------------------------------------


def described(error: BaseException) -> str:
    """A user's exception in one line. Its class and its message may be anything."""
    name, _, text = whole(error).partition(": ")
    return _clean(f"{name}: {next(iter(text.strip().splitlines()), 'no message')}")


def whole(error: BaseException) -> str:
    """A user's exception with its whole message."""
    # A plain string, whatever class of strings it is.
    text = _said(lambda: "".join(str(error)), "its message cannot be printed")
    return f"{type.__dict__['__name__'].__get__(type(error))}: {text}"


def printed(value: object) -> str:
    """A user's value as text."""
    return _clean(
        _said(lambda: repr(value), f"a {type.__dict__['__name__'].__get__(type(value))} that cannot be printed")
    )


def _said(say: Callable[[], str], otherwise: str) -> str:
    """The text of a user's object, if it produces one in time."""
    try:
        with _alarm(_Deadline(time.monotonic() + MESSAGE_LIMIT_S)):
            return say()
    except BaseException:  # noqa: BLE001 - a message that cannot be had is none
        return otherwise


def _clean(text: str) -> str:
    """A text without terminal control characters, and no longer than a message should be."""
    plain = "".join(letter if letter.isprintable() else " " for letter in text[: LONGEST + 1])
    return plain if len(plain) <= LONGEST else f"{plain[:LONGEST]}…"


def user_line(error: BaseException, place: str) -> str:
    """The innermost line of the user's that the error passed through: `model.py:12`."""
    if isinstance(error, SyntaxError) and isinstance(error.filename, str):
        return f"{error.filename}:{error.lineno}"
    return next(reversed(user_frames(error)), place)


def user_frames(error: BaseException) -> list[str]:
    """The lines of the user's that an error passed through, outermost first."""
    trace = BaseException.__dict__["__traceback__"].__get__(error)
    found = ((frame.f_code.co_filename, line) for frame, line in traceback.walk_tb(trace))
    return [f"{file}:{line}" for file, line in found if not is_library(file)]


@cache
def is_library(filename: str) -> bool:
    """Whether a file is a library's, Python's or ours, or no file at all."""
    libraries = ("site-packages", "dist-packages", "<frozen", f"lib/python{sys.version_info.major}")
    ours = Path(filename).is_relative_to(HOME)
    return filename.startswith("<") or ours or any(mark in filename for mark in libraries)


# What it prints, and how long it takes -------------------------------------------------------------------------------


@contextlib.contextmanager
def _children_print_to_stderr() -> Iterator[None]:
    """Redirect prints of processes and C code that the user's code starts, beneath `sys.stdout`."""
    try:
        kept = os.dup(1)
    except OSError:  # there is no standard output
        yield
        return
    try:
        os.dup2(2, 1)
        yield
    finally:
        os.dup2(kept, 1)
        os.close(kept)


@dataclass(frozen=True, slots=True, eq=False)
class _Deadline:
    """A time of the monotonic clock; two are the same if they are the same object."""

    at_s: float


class TimeIsUp(BaseException):
    """The end of a time limit. It is not an `Exception`, so that a broad `except` in the user's code does not swallow
    it."""

    def __init__(self, deadline: _Deadline) -> None:
        super().__init__()
        self.deadline = deadline


@contextlib.contextmanager
def ended_at(until_s: float, refusal: Callable[[], MeshwrightError]) -> Iterator[None]:
    """End the block at a time of the monotonic clock, with a refusal; code inside may have limits of its own."""
    until = _Deadline(until_s)
    try:
        with _alarm(until):
            yield
    except TimeIsUp as error:
        if error.deadline is not until:
            raise
        raise refusal() from None


_deadlines: list[_Deadline] = []
"""Of all blocks that are entered, outermost first: the process has one timer."""
SOON_S = 1e-3
"""In which a deadline rings that is over already."""


@contextlib.contextmanager
def _alarm(until: _Deadline) -> Iterator[None]:
    """Interrupt the block at its deadline, or at an outer block's if that is earlier. Only a main thread can be
    interrupted; elsewhere there is no limit."""
    if threading.current_thread() is not threading.main_thread() or not hasattr(signal, "setitimer"):
        yield
        return

    def ring(_signal: int, _frame: FrameType | None) -> None:
        raise TimeIsUp(_next())

    before = signal.signal(signal.SIGALRM, ring)
    left_s, _ = signal.getitimer(signal.ITIMER_REAL)
    entered_s = time.monotonic()
    _deadlines.append(until)
    _set()
    try:
        yield
    finally:
        _deadlines.remove(until)
        signal.setitimer(signal.ITIMER_REAL, 0)
        signal.signal(signal.SIGALRM, before)
        if _deadlines:
            _set()
        elif left_s:  # somebody else's
            signal.setitimer(signal.ITIMER_REAL, max(left_s - (time.monotonic() - entered_s), SOON_S))


def _next() -> _Deadline:
    return min(_deadlines, key=lambda one: one.at_s)


def _set() -> None:
    signal.setitimer(signal.ITIMER_REAL, max(_next().at_s - time.monotonic(), SOON_S))
