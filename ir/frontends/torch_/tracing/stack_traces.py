"""Short stack traces of a traced program: only the parts that are read.

For every operator torch notes where it was called. It looks up the text of every line of every frame, most of them its
own, which takes a third of the time of an export; `translate.source_line` reads the file and line of the innermost
frame outside torch, and no text. While `short` is entered torch is given such frames only.
"""

from __future__ import annotations

import contextlib
import sys
from collections.abc import Iterator
from pathlib import Path
from traceback import FrameSummary, StackSummary
from types import FrameType
from typing import Any

import torch
import torch.fx.proxy

_TORCH = str(Path(torch.__file__).parent)
_NAME = "CapturedTraceback"


class _Short:
    """A captured stack, in the place of torch's own class for it."""

    def __init__(self, frames: list[FrameSummary]) -> None:
        self._frames = frames

    @classmethod
    def extract(cls, **_: Any) -> _Short:
        frames: list[FrameSummary] = []
        frame: FrameType | None = sys._getframe(1)
        while frame is not None:
            code = frame.f_code
            if not code.co_filename.startswith(_TORCH):
                frames.append(FrameSummary(code.co_filename, frame.f_lineno, code.co_name, lookup_line=False, line=""))
            frame = frame.f_back
        return cls(frames[::-1])

    def summary(self) -> StackSummary:
        """The frames, outermost first."""
        return StackSummary.from_list(self._frames)


@contextlib.contextmanager
def short() -> Iterator[None]:
    """Capture traces in this way, within a context."""
    module: Any = torch.fx.proxy
    before = getattr(module, _NAME)
    setattr(module, _NAME, _Short)
    try:
        yield
    finally:
        setattr(module, _NAME, before)
