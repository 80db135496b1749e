"""What --scale says: sizes, and the question at each; what cannot be scaled is refused."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

from meshwright.cost_models.hardware.text import read_cluster
from meshwright.ir.errors import ScaleImpossible
from meshwright.planner.question.changed.sizes import STRONG, WEAK, at_size, read_sizes
from tests.planner.solved import parsed

CLUSTERS = Path(__file__).parents[3] / "examples" / "clusters"


@pytest.mark.parametrize(
    ("text", "sizes"),
    [
        ("64..4096", (64, 128, 256, 512, 1024, 2048, 4096)),
        ("64..100", (64,)),
        ("3 .. 12", (3, 6, 12)),
        ("8..8", (8,)),
        ("64,96,128", (64, 96, 128)),
        ("128, 64,64", (64, 128)),
        ("16", (16,)),
    ],
)
def test_a_range_doubles_and_a_list_is_sorted(text: str, sizes: tuple[int, ...]) -> None:
    assert read_sizes(text) == sizes


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ("", "as in 64..4096"),
        ("64-128", "it is no range"),
        ("64..", "it is no range"),
        ("128..64", "it ends before it begins"),
        ("0..64", "no cluster of 0 devices"),
        ("8,0", "no cluster of 0 devices"),
        ("8..99999999", "at most 262,144"),
        (f"1..{'9' * 20}", "at most 262,144"),
        ("9" * 30, "it is no range"),
        ("8,,16", "it is no range"),
        ("٣", "it is no range"),
    ],
)
def test_what_is_no_size_is_refused(text: str, said: str) -> None:
    with pytest.raises(ScaleImpossible, match=re.escape(said)) as refused:
        read_sizes(text)
    assert refused.value.place.startswith("--scale")


@pytest.mark.parametrize(
    ("cluster", "size", "named"),
    [
        ("2x8xH100", 64, "8x8xH100"),
        ("2x8xH100,inter=100G,price=2", 4, "1x4xH100,inter=100G,price=2"),
        ("4x4xGB200", 8, "2x4xGB200"),
    ],
)
def test_a_size_is_the_cluster_of_so_many_hosts(cluster: str, size: int, named: str) -> None:
    args = parsed("m.toml", "--cluster", cluster, "--global-batch", "64")
    made = at_size(args, size, STRONG)
    assert (made.cluster, made.cluster_reference, made.global_batch) == (read_cluster(named), named, 64)
    assert args.cluster == cluster


def test_a_cluster_of_a_file_is_called_by_its_size(tmp_path: Path) -> None:
    file = tmp_path / "one.toml"
    file.write_text('[[pool]]\nname = "a"\nhosts = 2\ngpu = "H100"\ngpus_per_host = 4\n')
    made = at_size(parsed("m.toml", "--cluster", str(file)), 16, WEAK)
    assert (made.cluster.hosts, made.cluster_reference) == (4, f"{file} at 16 devices")


@pytest.mark.parametrize(("size", "batch"), [(8, 4), (16, 8), (64, 32)])
def test_weak_scaling_keeps_the_sequences_of_a_device(size: int, batch: int) -> None:
    args = parsed("m.toml", "--cluster", "2x8xH100", "--global-batch", "8")
    assert at_size(args, size, WEAK).global_batch == batch


@pytest.mark.parametrize(
    ("cluster", "size", "said"),
    [
        ("2x8xH100", 100, "100 devices are no whole hosts of 8"),
        ("2x8xH100", 100, "give 96 or 104"),
        ("2x8xH100", 1, "8 sequences on 16 devices are no whole number on 1"),
        (str(CLUSTERS / "two_pools.toml"), 64, "unlike pools (fast, old)"),
        (str(CLUSTERS / "bad_pair.toml"), 64, "a link matrix"),
    ],
)
def test_what_cannot_be_scaled_is_refused(cluster: str, size: int, said: str) -> None:
    with pytest.raises(ScaleImpossible, match=re.escape(said)):
        at_size(parsed("m.toml", "--cluster", cluster, "--global-batch", "8"), size, WEAK)
