"""Code that may crash, run in a process of its own: kernels do not check everything that a trial may give them."""

from __future__ import annotations

import faulthandler
import hashlib
import mmap
import os
import pickle
import select
import signal
import time
import warnings
from collections.abc import Callable
from typing import TypeVar

import torch

LIMIT_S = 30.0
"""For a trial to come back, which takes some hundredths of a second."""

CHUNK = 1 << 16
BOARD = mmap.PAGESIZE

T = TypeVar("T")


class Crashed(Exception):
    """The process ended without an answer."""


class Hung(Crashed):
    """The process did not end before the limit."""


class Board:
    """The notes of a copy of this process: what it was doing when it ended, and what is not to be begun again."""

    def __init__(self) -> None:
        self.avoided: set[bytes] = set()
        self._at = mmap.mmap(-1, BOARD)

    def begins(self, what: str) -> bool:
        """Note that this begins; false if a copy ended at it."""
        name = hashlib.sha256(what.encode()).digest()
        if name in self.avoided:
            return False
        self._at[: len(name)] = name
        return True

    def avoid(self) -> bool:
        """Do not begin again what was begun last; false if nothing was begun since the last such call."""
        last, before = self._at[: hashlib.sha256().digest_size], len(self.avoided)
        self.avoided.add(last)
        return len(self.avoided) > before


def aside(run: Callable[[], T], limit_s: float = LIMIT_S) -> T:
    """The result of `run`, or its exception, in a copy of this process. Raises `Crashed` if that ends without either,
    `Hung` if neither comes before the limit."""
    receive, send = os.pipe()
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # that threads are not copied: the copy uses none
        child = os.fork()
    if not child:
        _answer(run, send)
    os.close(send)
    try:
        answer = _read(receive, time.monotonic() + limit_s)
    finally:
        os.close(receive)
        _ended(child)
    if not answer:
        raise Crashed if answer is not None else Hung
    found, raised = pickle.loads(answer)
    if raised is not None:
        raise raised
    result: T = found
    return result


def _answer(run: Callable[[], T], send: int) -> None:
    """In the copy: the answer, and nothing after it, whatever happens."""
    try:
        faulthandler.disable()
        for number in (signal.SIGALRM, signal.SIGINT, signal.SIGTERM):
            signal.signal(number, signal.SIG_DFL)
        torch.set_num_threads(1)
        nowhere = os.open(os.devnull, os.O_WRONLY)
        os.dup2(nowhere, 1)
        os.dup2(nowhere, 2)
        answer = _packed(run)
        while answer:
            answer = answer[os.write(send, answer) :]
    finally:
        os._exit(0)


def _packed(run: Callable[[], T]) -> bytes:
    try:
        return pickle.dumps((run(), None))
    except Exception as error:  # noqa: BLE001 - raised again where it was asked for
        return pickle.dumps((None, RuntimeError(f"{type(error).__name__}: {error}")))


def _read(receive: int, until: float) -> bytes | None:
    """The bytes that arrive before the end; none if the limit comes first."""
    found = b""
    while select.select([receive], [], [], max(0.0, until - time.monotonic()))[0]:
        if not (part := os.read(receive, CHUNK)):
            return found
        found += part
    return None


def _ended(child: int) -> None:
    ended, _ = os.waitpid(child, os.WNOHANG)
    if not ended:
        os.kill(child, signal.SIGKILL)
        os.waitpid(child, 0)
