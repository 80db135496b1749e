"""Settings under which tests run in forked processes."""

from __future__ import annotations

import os
from pathlib import Path

from hypothesis import Phase, settings

OPTIONS = (
    *("-q", "--tb=line", "--assert=plain", "-p", "no:cacheprovider", "-p", "no:xdist", "--no-header"),
    *("-o", "addopts=--strict-markers --strict-config --import-mode=importlib"),
)
"""No rewriting of assertions and no cache: nothing is written beside the tests."""


def settle(folder: Path) -> None:
    """Examples as in every test run, but none made smaller: that a test fails is all that is asked."""
    repo = Path(__file__).parents[2]
    os.chdir(repo)
    os.environ["HYPOTHESIS_STORAGE_DIRECTORY"] = str(folder / "hypothesis")
    os.environ["HYPOTHESIS_PROFILE"] = "mutants"
    settings.register_profile(
        "mutants",
        derandomize=True,
        max_examples=50,
        deadline=None,
        print_blob=False,
        phases=(Phase.explicit, Phase.generate),
    )
