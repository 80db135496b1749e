"""Which line of a stack trace is named: the innermost outside of torch and of what reads the trace."""

from __future__ import annotations

from pathlib import Path

from meshwright.ir.frontends.torch_.operators import translate
from meshwright.ir.frontends.torch_.operators.translate import source_line

HERE = Path(translate.__file__).parent
USER, TORCH = "/home/user/model.py", "/venv/lib/site-packages/torch/nn/modules/linear.py"


def trace(*lines: tuple[str, int]) -> str:
    """Outermost first, as Python writes it."""
    return "".join(f'  File "{file}", line {number}, in forward\n    return x\n' for file, number in lines)


def test_the_line_that_is_named() -> None:
    for lines, expected in (
        ([(USER, 3)], "model.py:3"),
        ([(USER, 3), ("/home/user/parts.py", 14)], "parts.py:14"),
        ([(USER, 3), (TORCH, 125)], "model.py:3"),
        ([(USER, 3), (str(HERE / "moe.py"), 9), (TORCH, 125)], "model.py:3"),
        ([(USER, 3), (str(HERE / "rooms" / "x.py"), 9)], "model.py:3"),
        (
            [(USER, 3), ("/venv/lib/site-packages/transformers/models/llama.py", 12), (TORCH, 1)],
            "transformers/models/llama.py:12",
        ),
        ([("/usr/lib/dist-packages/flax/core.py", 8)], "flax/core.py:8"),
        ([("/usr/lib/dist-packages/torch/core.py", 8)], ""),
        ([(TORCH, 125)], ""),
        ([], ""),
    ):
        assert source_line(trace(*lines)) == expected, lines
