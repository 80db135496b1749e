"""Real traces: what torch's and JAX's profilers write of a tiny program, in a process of its own."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

TORCH = """
import sys
import torch
import torch.distributed as dist
from torch.profiler import ProfilerActivity, profile, schedule

store = dist.FileStore(sys.argv[1] + ".store", 1)
dist.init_process_group("gloo", store=store, rank=0, world_size=1)
model = torch.nn.Sequential(torch.nn.Linear(32, 32), torch.nn.GELU(), torch.nn.Linear(32, 32))
optimizer = torch.optim.AdamW(model.parameters())
with profile(
    activities=[ProfilerActivity.CPU],
    schedule=schedule(wait=0, warmup=1, active=3),
    on_trace_ready=lambda found: found.export_chrome_trace(sys.argv[1]),
) as found:
    for _ in range(4):
        model(torch.randn(8, 32)).square().mean().backward()
        dist.all_reduce(next(model.parameters()).grad)
        optimizer.step()
        optimizer.zero_grad()
        found.step()
dist.destroy_process_group()
"""
"""Three steps of training, each with an all-reduce of one rank."""

JAX = """
import sys
import jax

@jax.jit
def step(x):
    return jax.numpy.tanh(x @ x).sum()

x = jax.numpy.ones((128, 128))
step(x).block_until_ready()
with jax.profiler.trace(sys.argv[1]):
    for number in range(3):
        with jax.profiler.StepTraceAnnotation("train", step_num=number):
            step(x).block_until_ready()
"""


def by_torch(path: Path) -> Path:
    """A trace of torch's profiler."""
    _run(TORCH, path)
    return path


def by_jax(folder: Path) -> Path:
    """A trace of JAX's profiler."""
    _run(JAX, folder)
    (found,) = folder.rglob("*.trace.json.gz")
    return found


def _run(script: str, path: Path) -> None:
    done = subprocess.run(
        [sys.executable, "-c", script, str(path)], capture_output=True, text=True, timeout=300, check=False
    )
    assert done.returncode == 0, done.stderr[-2000:]
