"""A cluster with something otherwise is the one that is described so in the first place."""

from __future__ import annotations

from itertools import permutations
from pathlib import Path

import pytest

from meshwright.cost_models.hardware.changed import KEYS, Wish, changed, with_ranks
from meshwright.cost_models.hardware.text import read_cluster
from meshwright.cost_models.hardware.toml import read, write
from meshwright.ir.errors import (
    ChangeImpossible,
    ClusterSyntax,
    ClusterValueBad,
    DeviceUnknown,
    LinkMatrixSize,
    MeshwrightError,
    NicsUnknown,
)

CLUSTERS = Path(__file__).parents[2] / "examples" / "clusters"
TWO = read_cluster(str(CLUSTERS / "two_pools.toml"))


def wishes(text: str) -> list[Wish]:
    """Wishes as `POOL.KEY=VALUE`, with blanks in between."""
    found = []
    for word in text.split():
        named, _, value = word.partition("=")
        of, _, key = named.rpartition(".")
        found.append(Wish(key=key, text=value, of=of))
    return found


@pytest.mark.parametrize(
    ("before", "change", "after"),
    [
        ("2x8xH100", "inter=800G", "2x8xH100,inter=800G"),
        ("2x8xH100,inter=100G,nic=roce", "inter=800G", "2x8xH100,inter=800G,nic=roce"),
        ("2x8xH100,inter=100G", "nic=roce", "2x8xH100,inter=100G,nic=roce"),
        ("2x8xH100,inter=100G", "gpus_per_host=4", "2x4xH100,inter=100G"),
        ("2x8xH100", "hosts=16", "16x8xH100"),
        ("2x8xH100", "gpu=h200", "2x8xH200"),
        ("2x8xH100", "price=2.5", "2x8xH100,price=2.5"),
        ("2x8xH100", "cluster=4x4xA100 inter=25G", "4x4xA100,inter=25G"),
        ("cpu:4", "gpus_per_host=2", "cpu:2"),
        ("4x18xGB200", "gpus_per_island=36", ""),
    ],
)
def test_it_is_what_would_be_described_so(before: str, change: str, after: str) -> None:
    found = changed(read_cluster(before), wishes(change))
    assert not after or found == read_cluster(after)
    assert read(write(found)) == found


def test_a_devices_number_is_that_of_a_device_like_it() -> None:
    """By a file with such a device; two numbers at once are of one device, and a user's own stays like the same."""
    found = changed(read_cluster("2x8xH100"), wishes("memory_gb=141 memory_gb_per_s=4800 island_gb_per_s=900"))
    name = "H100-80G, memory_gb=141, memory_gb_per_s=4800, island_gb_per_s=900"
    said = "memory_gb = 141\nmemory_gb_per_s = 4800\nisland_gb_per_s = 900"
    text = f'[[pool]]\nname = "H100-80G"\nhosts = 2\ngpu = "{name}"\ngpus_per_host = 8\n'
    assert found == read(f'{text}[[device]]\nname = "{name}"\nlike = "H100"\n{said}\n')
    assert read(write(found)) == found
    own = text.replace(name, "mine") + '[[device]]\nname = "mine"\nbf16_tflops = 500\nmemory_gb = 80\n'
    own = own.replace("hosts = 2", "hosts = 1")
    scratch = read(f"{own}memory_gb_per_s = 3000\nhost_gb_per_s = 63\n")
    larger = changed(scratch, wishes("memory_gb=96"))
    assert larger.pools[0].device.like == ""
    assert larger.pools[0].device.memory.value == 96e9
    assert read(write(larger)) == larger


def test_of_several_pools_one_is_changed_or_all() -> None:
    one = changed(TWO, wishes("old.hosts=32"))
    assert [pool.hosts for pool in one.pools] == [16, 32]
    both = changed(TWO, wishes("hosts=2 memory_gb=40"))
    assert [(pool.hosts, pool.device.memory.value) for pool in both.pools] == [(2, 40e9)] * 2
    link = changed(TWO, wishes("fast-old.gbps=100 latency_us=5"))
    assert [(one.rate.value, one.latency.value) for one in link.links] == [(100.0, 5e-6)]


def test_a_pool_that_is_named_after_its_device_is_renamed_with_its_links() -> None:
    text = write(TWO).replace('"fast"', '"H100-80G"')
    found = changed(read(text), wishes("H100-80G.gpu=B200"))
    assert [pool.name for pool in found.pools] == ["B200", "old"]
    assert found.links[0].between == ("B200", "old")


def test_the_order_of_wishes_is_nothing() -> None:
    several = wishes("inter=200G gpus_per_host=4 hosts=3 gpu=A100 nic=roce memory_gb=40")
    found = {write(changed(read_cluster("2x8xH100"), order)) for order in permutations(several)}
    assert len(found) == 1


@pytest.mark.parametrize(
    ("before", "change", "kind", "said"),
    [
        ("2x8xH100", "hosts=0", ClusterValueBad, "--what-if hosts=0"),
        ("2x8xH100", "hosts=many", ClusterValueBad, "give a whole number"),
        ("2x8xH100", "hosts=999999", ClusterValueBad, "at most 262,144"),
        ("2x8xH100", "memory_gb=-1", ClusterValueBad, "give a positive number"),
        ("2x8xH100", "inter=100GB", ClusterValueBad, "rates are in bits"),
        ("2x8xH100", "nic=infinband", ClusterValueBad, "did you mean 'infiniband'?"),
        ("2x8xH100", "price=free", ClusterValueBad, "is no price"),
        ("2x8xH100", "island_spans_hosts=maybe", ClusterValueBad, "true or false"),
        ("2x8xH100", "gpu=H1000", DeviceUnknown, "H100-80G"),
        ("2x8xH100", "cluster=2x8H100", ClusterSyntax, "--what-if cluster=2x8H100, cluster '2x8H100'"),
        ("2x8xH100", "slow.hosts=4", ChangeImpossible, "there is no pool 'slow'"),
        ("2x8xH100", "gpus_per_island=4", ClusterValueBad, "end with the host"),
        ("2x8xH100", "gbps=400", ChangeImpossible, "inter=800G"),
        ("1x8xL40S", "island_gb_per_s=100", ChangeImpossible, "L40S has no scale-up link"),
        ("1x2xRTX 3090", "hosts=2", NicsUnknown, "add nics"),
        ("two_pools.toml", "fast-new.gbps=400", ChangeImpossible, "did you mean 'fast-old'?"),
        ("bad_pair.toml", "inter=400G", ChangeImpossible, "a link matrix"),
        ("bad_pair.toml", "hosts=64", LinkMatrixSize, "64 x 64"),
    ],
)
def test_what_cannot_be_is_refused(before: str, change: str, kind: type[MeshwrightError], said: str) -> None:
    cluster = read_cluster(str(CLUSTERS / before) if before.endswith(".toml") else before)
    with pytest.raises(kind) as refused:
        changed(cluster, wishes(change))
    assert said in str(refused.value)
    assert refused.value.place.startswith("--what-if")


@pytest.mark.parametrize(
    ("ranks", "after"), [(64, "8x8xH100,inter=100G"), (8, "1x8xH100,inter=100G"), (4, "1x4xH100,inter=100G"), (12, "")]
)
def test_a_cluster_of_so_many_devices(ranks: int, after: str) -> None:
    found = with_ranks(read_cluster("2x8xH100,inter=100G"), ranks)
    assert found == (read_cluster(after) if after else None)


def test_every_key_is_that_of_a_text_form() -> None:
    page = (Path(__file__).parents[2] / "docs" / "plan.md").read_text()
    assert [key for key in KEYS if f"`{key}`" not in page and not key.endswith("_tflops")] == []
