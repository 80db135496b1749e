"""A solver that heeds no limit: it starts a process of its own, says which, and sleeps."""

from __future__ import annotations

import subprocess
import sys
import time
from pathlib import Path

if __name__ == "__main__":
    sys.stdin.buffer.read()
    worker = subprocess.Popen([sys.executable, "-c", "import time; time.sleep(60)"])
    (Path(__file__).parent / "overrun.pid").write_text(str(worker.pid))
    time.sleep(60)
