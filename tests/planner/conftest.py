"""Models that several tests here price."""

from pathlib import Path

import pytest

from tests.planner.refining import SMALL


@pytest.fixture(scope="session")
def small(tmp_path_factory: pytest.TempPathFactory) -> str:
    """A decoder of eight layers."""
    path: Path = tmp_path_factory.mktemp("models") / "small.toml"
    path.write_text(SMALL.format(layers=8, dtype="bf16"), encoding="utf-8")
    return str(path)
