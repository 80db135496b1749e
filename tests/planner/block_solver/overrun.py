"""A solver that heeds no limit: it starts a process of its own, says which in a file that is named, and sleeps."""

from __future__ import annotations

import os
import subprocess
import sys
import time
from pathlib import Path

if __name__ == "__main__":
    sys.stdin.buffer.read()
    worker = subprocess.Popen([sys.executable, "-c", "import time; time.sleep(60)"])
    note = Path(os.environ["OVERRUN_NOTE"])
    note.with_suffix(".part").write_text(str(worker.pid))
    note.with_suffix(".part").rename(note)
    time.sleep(60)
