"""Reading the text of users' files.

Only a regular file is read: a device may have no end, and a pipe may keep its reader waiting. It is opened without
waiting, looked at through the very descriptor that is read, and read no further than its limit.
"""

from __future__ import annotations

import gzip
import io
import os
import stat
import zlib
from pathlib import Path

from meshwright.ir.limits import Limit

GZIP = b"\x1f\x8b"
"""What a file that gzip packed begins with."""
START_BYTES = 4096
"""Of a file, by which its kind is told."""


class Unreadable(Exception):
    """The reason why a file gives no text. Readers of a kind of file turn it into an error of that kind."""

    def __init__(self, cause: str) -> None:
        """Keep the `cause`, a clause in lower case."""
        super().__init__(cause)
        self.cause = cause


def read_text(path: str | Path, limit: Limit, *, errors: str = "strict") -> str:
    """Read the text of a regular file."""
    try:
        return _within(limit, _read(path, limit.most + 1)).decode("utf-8-sig", errors).replace("\r\n", "\n")
    except UnicodeDecodeError as error:
        raise Unreadable(f"it is not UTF-8: byte {error.start} cannot be read") from None
    except OSError as error:
        raise Unreadable((error.strerror or "it cannot be read").lower()) from None
    except ValueError:  # a path with a zero byte
        raise Unreadable("no file can have this name") from None


def read_start(path: str | Path) -> bytes:
    """Read how a regular file begins."""
    try:
        return _read(path, START_BYTES)
    except OSError as error:
        raise Unreadable((error.strerror or "it cannot be read").lower()) from None
    except ValueError:  # a path with a zero byte
        raise Unreadable("no file can have this name") from None


def read_unpacked(path: str | Path, limit: Limit) -> str:
    """Read the text of a regular file that gzip may have packed. The limit is of the text, too; characters that cannot
    be read are replaced."""
    try:
        found = _within(limit, _read(path, limit.most + 1))
        if found.startswith(GZIP):
            with gzip.GzipFile(fileobj=io.BytesIO(found)) as packed:
                found = packed.read(limit.most + 1)
    except (EOFError, zlib.error, gzip.BadGzipFile):
        raise Unreadable("it is packed by gzip, and broken or cut short") from None
    except OSError as error:
        raise Unreadable((error.strerror or "it cannot be read").lower()) from None
    except ValueError:  # a path with a zero byte
        raise Unreadable("no file can have this name") from None
    if too_many := limit.refused(len(found)):
        raise Unreadable(f"unpacked it has at least {too_many}")
    return found.decode("utf-8-sig", "replace")


def _read(path: str | Path, most: int) -> bytes:
    """The bytes of a regular file, at most so many."""
    descriptor = os.open(path, os.O_RDONLY | os.O_NONBLOCK | os.O_CLOEXEC)
    with open(descriptor, "rb") as file:  # noqa: PTH123 - a descriptor has no path
        mode = os.fstat(descriptor).st_mode
        if not stat.S_ISREG(mode):
            raise Unreadable(f"it is {_kind(mode)}, not a regular file")
        return file.read(most)


def _within(limit: Limit, found: bytes) -> bytes:
    if too_many := limit.refused(len(found)):
        raise Unreadable(f"it has at least {too_many}")
    return found


def _kind(mode: int) -> str:
    kinds = ((stat.S_ISDIR, "a directory"), (stat.S_ISFIFO, "a pipe"), (stat.S_ISSOCK, "a socket"))
    return next((name for is_kind, name in kinds if is_kind(mode)), "a device")
