"""Settings for all tests.

HYPOTHESIS_PROFILE=long searches; the default replays the same bounded examples everywhere. torch has one thread: the
tensors are tiny, and threads that wait for each other cost ten times what they save on a busy machine. XLA takes its
quickest way to code, here and in the processes that tests start: what it compiles is run once. What was measured of
this machine prices nothing here, nothing is kept from one run to the next, and nothing is as wide as the terminal that
tests are started from.
"""

import os

import pytest
import torch
from hypothesis import settings

os.environ.setdefault("XLA_FLAGS", "--xla_backend_optimization_level=0 --xla_cpu_use_fusion_emitters=false")
os.environ["MESHWRIGHT_PROFILES"] = f"{os.devnull}/profiles"
os.environ.pop("COLUMNS", None)
os.environ["MESHWRIGHT_CACHE"] = "off"
torch.set_num_threads(1)

settings.register_profile("ci", derandomize=True, max_examples=50, deadline=None)
settings.register_profile("long", max_examples=5000, deadline=None)
settings.load_profile(os.environ.get("HYPOTHESIS_PROFILE", "ci"))


def pytest_itemcollected(item: pytest.Item) -> None:
    """Refuse a name that differs between two workers: the order in a set is by hash, and an address is anybody's."""
    if "set({" in item.name or " at 0x" in item.name:
        raise pytest.UsageError(f"{item.nodeid}: its name holds a set or an address; give ids that do not")
