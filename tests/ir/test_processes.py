"""What processes say of themselves."""

from __future__ import annotations

import subprocess
import sys

import numpy as np

from meshwright.ir.processes import peak_memory

LARGE = 400 * 10**6
CODE = "from meshwright.ir.processes import peak_memory; print(peak_memory())"


def test_memory_of_a_small_process_is_not_that_of_the_one_that_started_it() -> None:
    held = np.ones(LARGE, dtype=np.uint8)
    done = subprocess.run([sys.executable, "-c", CODE], capture_output=True, text=True, check=True, timeout=120)
    assert 10**6 < int(done.stdout) < LARGE / 2
    assert peak_memory() > held.nbytes
