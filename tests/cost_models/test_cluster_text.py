"""The three forms of a cluster: what they mean, that they round-trip, and that every fault is listed with its line."""

from __future__ import annotations

import json
import os
import pickle
import tomllib
from dataclasses import replace
from pathlib import Path

import pytest
from hypothesis import given as for_all

from meshwright.cost_models.hardware import toml as cluster_toml
from meshwright.cost_models.hardware.cluster import Cluster, suspicions
from meshwright.cost_models.hardware.devices import device, latency_of
from meshwright.cost_models.hardware.text import read_cluster
from meshwright.ir.errors import (
    ClusterError,
    ClusterFaults,
    ClusterFileMissing,
    ClusterFileNotToml,
    ClusterKeyMissing,
    ClusterKeyUnknown,
    ClusterSyntax,
    ClusterValueBad,
    DeviceUnknown,
    LinkMatrixValue,
    MeshwrightError,
)
from meshwright.ir.files.lines import Lines
from meshwright.ir.limits import FILE_BYTES, PER_HOST
from tests.cost_models.clusters import clusters
from tests.mutations import mutated

GOOD = """\
price_per_gpu_hour = 2.5

[[pool]]
name = "fast"
hosts = 2
gpu = "H100"
gpus_per_host = 8
nics = [{ kind = "infiniband", gbps = 400, count = 8 }]

[[pool]]
name = "old"
hosts = 4
gpu = "A100-80"
gpus_per_host = 4
price_per_gpu_hour = 1.1

[[link]]
between = ["fast", "old"]
kind = "ethernet"
gbps = 800
latency_us = 20
"""


def fault(text: str) -> MeshwrightError:
    with pytest.raises(MeshwrightError) as caught:
        cluster_toml.read(text, place="c.toml")
    return caught.value


def test_the_fastest_rate_that_is_taken() -> None:
    assert read_cluster("2x8xH100,inter=1000000000T").ranks == 16


def test_the_shorthand() -> None:
    (pool,) = read_cluster("2048x8xH100,inter=400G").pools
    assert (pool.hosts, pool.gpus_per_host, pool.device.name) == (2048, 8, "H100-80G")
    (nic,) = pool.nics
    assert (nic.kind, nic.rate.value, nic.rate.kind, nic.count) == ("infiniband", 400.0, "user", 8)
    assert pool.host_gbps == 3200


@pytest.mark.parametrize("rate", ["400G", "400Gb", "400Gbps", "400Gb/s", "400", "0.4T", "0.4Tb/s"])
def test_inter_is_in_bits_however_it_is_spelt(rate: str) -> None:
    assert read_cluster(f"2x8xH100,inter={rate}") == read_cluster("2x8xH100,inter=400G")


@pytest.mark.parametrize("rate", ["50GB", "50GB/s", "50GBps"])
def test_inter_in_bytes_is_refused_with_both_readings(rate: str) -> None:
    with pytest.raises(ClusterValueBad) as caught:
        read_cluster(f"2x8xH100,inter={rate}")
    assert "inter=400G if you mean bytes, inter=50G if you mean bits" in caught.value.fix


def test_other_options_of_the_shorthand() -> None:
    (pool,) = read_cluster("4x8xL40S,inter=100G,nic=roce,price=1.2").pools
    assert pool.nics[0].kind == "roce"
    assert pool.price is not None
    assert pool.price.value == 1.2


def test_cpu_ranks() -> None:
    cluster = read_cluster("cpu:4")
    assert (cluster.ranks, cluster.hosts, cluster.device(3).name, cluster.tier(0, 3)) == (4, 1, "CPU", "host")


@pytest.mark.parametrize(
    ("reference", "error"),
    [
        ("", ClusterSyntax),
        ("8xH100", ClusterSyntax),
        ("cpu", ClusterSyntax),
        ("no/such/dir", ClusterSyntax),
        ("no-such.toml", ClusterFileMissing),
        ("0x8xH100", ClusterValueBad),
        ("1x0xH100", ClusterValueBad),
        ("cpu:0", ClusterValueBad),
        ("1x8xH101", DeviceUnknown),
        ("2x8xH100,intra=400G", ClusterKeyUnknown),
        ("2x8xH100,inter=1G,inter=2G", ClusterKeyUnknown),
        ("2x8xH100,inter", ClusterKeyUnknown),
        ("2x8xH100,inter=fast", ClusterValueBad),
        ("2x8xH100,inter=0G", ClusterValueBad),
        ("2x8xH100,inter=1000000001T", ClusterValueBad),
        ("2x8xH100,inter=1G,nic=token-ring", ClusterValueBad),
        ("2x8xH100,nic=roce", ClusterValueBad),
        ("2x8xH100,price=cheap", ClusterValueBad),
        ("2x8xH100,price=NaN", ClusterValueBad),
    ],
)
def test_a_bad_reference_is_refused(reference: str, error: type[MeshwrightError]) -> None:
    with pytest.raises(error) as caught:
        read_cluster(reference)
    assert caught.value.exit_code == 6


def test_a_file(tmp_path: Path) -> None:
    path = tmp_path / "c.toml"
    path.write_text(GOOD)
    cluster = read_cluster(str(path))
    assert [pool.name for pool in cluster.pools] == ["fast", "old"]
    assert [pool.price.value for pool in cluster.pools if pool.price] == [2.5, 1.1]
    assert cluster.links[0].latency.value == 20e-6
    assert cluster.pools[1].adapters[0].rate.kind == "datasheet"
    assert suspicions(cluster) == ()


def test_a_link_matrix_beside_the_file(tmp_path: Path) -> None:
    path = tmp_path / "c.toml"
    path.write_text('link_matrix = "m.csv"\n' + GOOD)
    rows = [",".join("" if i == j else str(100 + i + j) for j in range(6)) for i in range(6)]
    (tmp_path / "m.csv").write_text("\n\n".join(rows) + "\n\n")  # as spreadsheets leave them
    cluster = read_cluster(str(path))
    assert cluster.matrix is not None
    assert cluster.matrix.rows[1][2] == 103
    assert cluster_toml.read(cluster_toml.write(cluster)) == cluster
    (tmp_path / "m.csv").write_text("a,b\n1,2\n")
    with pytest.raises(LinkMatrixValue, match='"b" is no number'):
        read_cluster(str(path))
    (tmp_path / "m.csv").unlink()
    with pytest.raises(ClusterFileMissing):
        read_cluster(str(path))


@for_all(clusters())
def test_the_text_form_reads_back_as_the_same_cluster(cluster: Cluster) -> None:
    text = cluster_toml.write(cluster)
    again = cluster_toml.read(text)
    assert again == cluster
    assert cluster_toml.write(again) == text


@pytest.mark.parametrize("reference", ["2x8xH100", "2x8xH100,inter=37.1G,price=0.1", "cpu:3", "20x4xGB200"])
def test_a_shorthand_round_trips_through_the_text_form(reference: str) -> None:
    cluster = read_cluster(reference)
    assert cluster_toml.read(cluster_toml.write(cluster)) == cluster


def test_a_device_of_ones_own_is_labelled() -> None:
    text = GOOD.replace('"H100"', '"Z1"') + (
        '\n[[device]]\nname = "Z1"\nbf16_tflops = 500\nmemory_gb = 80\nmemory_gb_per_s = 3000\nhost_gb_per_s = 63\n'
        'island_kind = "nvlink"\nisland_gb_per_s = 300\nisland_size = 4\n'
    )
    cluster = cluster_toml.read(text)
    one = cluster.pools[0].device
    assert {quantity.kind for _, quantity in one.quantities()} == {"user"}
    assert (one.peak("bf16").value, one.memory.value) == (500e12, 80e9)
    assert (cluster.tier(0, 3), cluster.tier(0, 4)) == ("island", "host")
    assert cluster_toml.read(cluster_toml.write(cluster)) == cluster


def test_a_device_like_another_takes_what_is_not_given() -> None:
    text = GOOD.replace('"H100"', '"Z1"') + '\n[[device]]\nname = "Z1"\nlike = "H100"\nbf16_tflops = 1100\n'
    one = cluster_toml.read(text).pools[0].device
    assert (one.peak("bf16").kind, one.peak("fp8").kind, one.like) == ("user", "datasheet", "H100-80G")


def test_all_faults_are_listed_at_once_with_their_lines() -> None:
    text = """\
price_per_gpu_hour = -1
[[pool]]
name = "a"
hosts = 0
gpu = "H101"
gpus_per_hots = 8
nics = [
    { kind = "infiniband", gbps = 400, count = 8 },
    { kind = "myrinet", gbps = "x", count = 1 },
]
[[link]]
between = ["a"]
kind = "ethernet"
gbps = 100
"""
    error = fault(text)
    assert isinstance(error, ClusterFaults)
    found = [(type(one).__name__, one.place) for one in error.faults]
    assert found == [
        ("ClusterValueBad", "c.toml:1, key 'price_per_gpu_hour'"),
        ("ClusterKeyMissing", "c.toml:2, pool 1, key 'gpus_per_host'"),
        ("ClusterValueBad", "c.toml:4, pool 1, key 'hosts'"),
        ("DeviceUnknown", "c.toml:5, pool 1, key 'gpu'"),
        ("ClusterKeyUnknown", "c.toml:6, pool 1, key 'gpus_per_hots'"),
        ("ClusterValueBad", "c.toml:9, pool 1, nics 2, key 'kind'"),
        ("ClusterValueBad", "c.toml:9, pool 1, nics 2, key 'gbps'"),
        ("ClusterValueBad", "c.toml:12, link 1, key 'between'"),
    ]
    shown = str(error)
    assert all(str(one) in shown for one in error.faults)
    assert [one["code"] for one in error.to_json()["faults"]] == [one.code for one in error.faults]
    json.dumps(error.to_json())
    assert str(pickle.loads(pickle.dumps(error))) == shown


@pytest.mark.parametrize(
    ("old", "new", "error", "place", "says"),
    [
        ("hosts = 2", "hosts = 0", ClusterValueBad, ":5, pool 1, key 'hosts'", "at least 1"),
        ("hosts = 2", "hosts = true", ClusterValueBad, ":5,", "give a whole number"),
        ("hosts = 2", "hosts = 2.0", ClusterValueBad, ":5,", "give a whole number"),
        ("hosts = 2", "host = 2\nhosts = 2", ClusterKeyUnknown, ":5,", "did you mean 'hosts'?"),
        ("hosts = 2\n", "", ClusterKeyMissing, ":3, pool 1", "add 'hosts'"),
        ('"A100-80"', '"A101"', DeviceUnknown, ":13, pool 2, key 'gpu'", "[[device]]"),
        ("gbps = 400", "gpbs = 400, gbps = 400", ClusterKeyUnknown, ":8, pool 1, nics 1", "did you mean 'gbps'?"),
        ("gbps = 400", "gbps = nan", ClusterValueBad, ":8,", "give a finite number"),
        ("gbps = 400", "gbps = inf", ClusterValueBad, ":8,", "give a finite number"),
        ("gbps = 800", "gbps = -8", ClusterValueBad, ":20, link 1, key 'gbps'", "give a positive number"),
        ('name = "old"', "name = 3", ClusterValueBad, ":11,", "give a string"),
        ('name = "old"', 'name = "fast"', ClusterFaults, "c.toml", "MW6012"),
        ('"fast", "old"', '"fast", "odl"', ClusterFaults, "c.toml", "MW6013"),
        ("[[pool]]", "[[pol]]", ClusterKeyUnknown, "c.toml", "did you mean 'pool'?"),
        ("2.5", "2.5.1", ClusterFileNotToml, "c.toml", "line 1"),
        ("[[link]]", "[link]", ClusterValueBad, "c.toml:17", "write [[link]]"),
    ],
)
def test_every_fault_says_where_and_what_to_do(
    old: str, new: str, error: type[MeshwrightError], place: str, says: str
) -> None:
    found = fault(GOOD.replace(old, new, 2 if old == "[[pool]]" else 1))
    assert type(found) is error, found
    assert place in found.place
    assert says in str(found)


def test_pools_that_nothing_joins_are_refused_at_their_line() -> None:
    error = fault(GOOD.partition("[[link]]")[0])
    assert (error.code, error.place) == ("MW6014", "c.toml:10, pool 2")


def test_a_matrix_of_the_wrong_size_is_refused() -> None:
    error = fault("link_matrix = [[0, 1], [1, 0]]\n" + GOOD)
    assert error.code == "MW6015"
    assert "6 x 6, one row per host, or 32 x 32" in error.fix


@pytest.mark.parametrize(
    ("table", "says"),
    [
        ('name = "Z"', "bf16_tflops"),
        ('name = "Z"\nbf16_tflops = 5', "memory_gb_per_s"),
        ('name = "Z"\nlike = "H100"\nisland_size = 1.5', "island_size"),
        ('name = "Z"\nlike = "L4"\nisland_size = 4\nisland_kind = "nvlink"', "island_gb_per_s"),
        ('name = "Z"\nlike = "H1000"', "H100"),
        ('name = "Z"\nlike = "H100"\nbf16_tfops = 3', "did you mean 'bf16_tflops'?"),
        ('name = "Z"\nlike = "H100"\n[[device]]\nname = "Z"\nlike = "H100"', "two devices"),
    ],
)
def test_a_badly_described_device_is_refused(table: str, says: str) -> None:
    assert says in str(fault(f"{GOOD}\n[[device]]\n{table}\n"))


ODD = (
    "0",
    "-1",
    "1.5",
    "1e400",
    "nan",
    "true",
    '""',
    '"x"',
    "[]",
    "[[]]",
    "[1]",
    "{}",
    "{ x = 1 }",
    "2020-01-01",
    "[{}]",
)
EVERYTHING = (
    "link_matrix = [[0, 1], [1, 0]]\n"
    + GOOD.replace('"H100"', '"Z"').replace("hosts = 2", "hosts = 1").replace("hosts = 4", "hosts = 1")
    + '[[device]]\nname = "Z"\nlike = "H100"\nisland_kind = "nvlink"\nisland_gb_per_s = 3\nisland_size = 2\n'
    "island_spans_hosts = true\nmemory_gb = 3\nbf16_tflops = 5\n"
)


@pytest.mark.parametrize("line", range(len(EVERYTHING.splitlines())))
def test_no_value_of_a_wrong_type_escapes_as_a_bug(line: int) -> None:
    """Every value in turn becomes something odd: it is read, or refused under a code of ours."""
    cluster_toml.read(EVERYTHING)
    lines = EVERYTHING.splitlines()
    key, equals, _ = lines[line].partition(" = ")
    for odd in ODD if equals else ():
        read_or_refused("\n".join([*lines[:line], f"{key} = {odd}", *lines[line + 1 :]]))


def read_or_refused(text: str) -> None:
    """No exception but ours may escape."""
    try:
        cluster = cluster_toml.read(text)
    except ClusterError:
        return
    assert cluster_toml.read(cluster_toml.write(cluster)) == cluster


def test_a_link_without_latency_has_the_usual_one_of_its_kind_and_says_so() -> None:
    cluster = cluster_toml.read(GOOD.replace("latency_us = 20\n", ""))
    latency = cluster.links[0].latency
    assert latency.value == latency_of("ethernet").value
    assert latency.kind == "assumed"
    assert "no latency_us is given" in latency.source
    assert cluster.link(0, 16).latency.kind == "assumed"
    assert "latency_us" not in cluster_toml.write(cluster)
    assert cluster_toml.read(cluster_toml.write(cluster)) == cluster


ENDLESS = {
    "hosts": ("hosts = 2", "hosts = 10000000", "and at most 262,144 are taken on"),
    "digits": ("hosts = 2", f"hosts = {'9' * 5000}", "more digits than any count"),
    "hexadecimal": ("hosts = 2", f"hosts = 0x{'f' * 5000}", "too large a number"),
    "a small rate": ("gbps = 800", "gbps = 1e-300", "give a positive number"),
    "depth": ("gbps = 800", f"gbps = {'[' * 5000}{']' * 5000}", "nested too deep"),
    "dotted depth": ("gbps = 800", f"{'gbps.' * 200}a = 1", "nested too deep"),
    "devices": ("hosts = 4", "hosts = 250000", "devices of a cluster, and at most"),
    "twice": ("gbps = 800", "gbps = 800\ngbps = 800", "Cannot overwrite a value"),
}


@pytest.mark.parametrize("what", ENDLESS)
def test_what_has_no_end_is_refused_by_its_limit(what: str) -> None:
    old, new, says = ENDLESS[what]
    found = fault(GOOD.replace(old, new, 1))
    assert says in str(found)
    assert found.exit_code == 6


def test_a_chain_of_five_hundred_pools_is_refused_at_once() -> None:
    pool = '[[pool]]\nname = "{}"\nhosts = 1\ngpu = "H100"\ngpus_per_host = 1\n'
    many = fault("".join(map(pool.format, range(500))))
    assert "500 pools of a cluster, and at most 64" in str(many)
    assert many.fix == "give at most 64"


def test_only_regular_files_are_read(tmp_path: Path) -> None:
    os.mkfifo(tmp_path / "pipe.toml")
    (tmp_path / "folder.toml").mkdir()
    (tmp_path / "zero.toml").symlink_to("/dev/zero")
    (tmp_path / "large.toml").write_bytes(b"#" * (FILE_BYTES.most + 1))
    for name, says in (
        ("pipe", "a pipe"),
        ("folder", "a directory"),
        ("zero", "a device"),
        ("large", "1,048,577 bytes"),
    ):
        with pytest.raises(ClusterFileMissing, match=says):
            read_cluster(str(tmp_path / f"{name}.toml"))
    for matrix in ("pipe.toml", "zero.toml", "/dev/zero", "\\u0000"):
        with pytest.raises(ClusterFileMissing, match="link_matrix"):
            cluster_toml.read(f'link_matrix = "{matrix}"\n{GOOD}', folder=tmp_path)


@pytest.mark.parametrize("entry", ["nan", "inf", "1_0", "²", "0x10", "1e400", "-1", "true", "'1'", "[1]", "2020-01-01"])
def test_an_entry_of_a_matrix_is_a_plain_number(tmp_path: Path, entry: str) -> None:
    (tmp_path / "m.csv").write_text(f"0,{entry}\n1,0\n")
    for matrix in ('"m.csv"', f"[[0, {entry}], [1, 0]]"):
        with pytest.raises(ClusterError):
            cluster_toml.read(f"link_matrix = {matrix}\n" + ONE, folder=tmp_path)


ONE = '[[pool]]\nname = "a"\nhosts = 2\ngpu = "H100"\ngpus_per_host = 1\n'


def test_every_key_is_held_to_its_schema() -> None:
    """Each key in turn is dropped, unknown or something else: refused at its place, or it means a cluster."""
    accepted = set[tuple[str, str]]()
    for path, how, changed in mutated(tomllib.loads(EVERYTHING)):
        keys = ".".join(step for step in path if isinstance(step, str))
        if path[0] == "link_matrix" and len(path) == 3 and path[1] == path[2]:
            continue  # the diagonal is not read
        refused = refusal(toml(changed))
        if refused is None:
            accepted.add((keys, how))
        else:
            assert how == "dropped" or str(path[0]) in refused, (path, how, refused)
    assert accepted == {(key, how) for how, keys in LEGAL.items() for key in keys}


RATES = ("bf16_tflops", "island_gb_per_s", "memory_gb")
LEGAL = {
    "dropped": [
        *("link", "link_matrix", "link.latency_us", "pool.nics", "pool.price_per_gpu_hour", "price_per_gpu_hour"),
        *(f"device.{key}" for key in (*RATES, "island_kind", "island_size", "island_spans_hosts")),
    ],
    "fraction": [
        *("link.gbps", "link.latency_us", "pool.nics.gbps", "pool.price_per_gpu_hour", "price_per_gpu_hour"),
        *(f"device.{key}" for key in RATES),
    ],
}
"""What may be left out, and numbers that are no counts."""


def refusal(text: str) -> str | None:
    """What a text is refused with; else it must read back."""
    try:
        cluster = cluster_toml.read(text)
    except ClusterError as error:
        return str(error)
    assert cluster_toml.read(cluster_toml.write(cluster)) == cluster
    return None


def toml(value: object) -> str:
    """A document as TOML; at the top its tables inline."""
    if isinstance(value, dict):
        return "\n".join(f"{json.dumps(key)} = {_inline(item)}" for key, item in value.items())
    raise TypeError


def _inline(value: object) -> str:
    if isinstance(value, dict):
        return "{" + ", ".join(f"{json.dumps(key)} = {_inline(item)}" for key, item in value.items()) + "}"
    if isinstance(value, list):
        return "[" + ", ".join(map(_inline, value)) + "]"
    if isinstance(value, float):
        return repr(value)
    return '"null"' if value is None else json.dumps(value)


WHOLE = """\
link_matrix = [
    [0, 100.5],
    [101, 0],
]

[[pool]]
name = "a \\"b\\" \\\\ \\u0009\\u007f"
hosts = 1
gpu = "Z1"
gpus_per_host = 2
nics = [{ kind = "roce", gbps = 12.5, count = 2 }, { kind = "ethernet", gbps = 100, count = 1 }]
price_per_gpu_hour = 2.25

[[pool]]
name = "old"
hosts = 1
gpu = "Z2"
gpus_per_host = 4

[[link]]
between = ["a \\"b\\" \\\\ \\u0009\\u007f", "old"]
kind = "ethernet"
gbps = 800
latency_us = 20.5

[[device]]
name = "Z1"
island_kind = "nvlink"
island_spans_hosts = true
fp32_tflops = 50.5
bf16_tflops = 500
memory_gb = 80
memory_gb_per_s = 3000
host_gb_per_s = 63
host_memory_gb_per_s = 40
island_gb_per_s = 300
island_size = 4

[[device]]
name = "Z2"
like = "H100-80G"
island_kind = "pcie"
bf16_tflops = 1100
memory_gb = 81
island_size = 2
"""
"""As it is written: what the table of devices knows is left out."""


def test_the_text_form_is_this() -> None:
    cluster = cluster_toml.read(WHOLE)
    assert cluster_toml.write(cluster) == WHOLE
    first, second = (pool.device for pool in cluster.pools)
    assert [pool.name for pool in cluster.pools] == ['a "b" \\ \t\x7f', "old"]
    assert (first.vendor, first.like, first.dtypes) == ("", "", ("fp32", "bf16"))
    assert first.island is not None
    assert (first.island.kind, first.island.spans_hosts, first.island.devices) == ("nvlink", True, 4)
    assert first.host_link.memory is not None
    assert (first.host_link.kind, first.host_link.memory.value) == ("pcie", 40e9)
    known = device("H100")
    assert second.island is not None
    assert known.island is not None
    assert second == replace(
        known,
        name="Z2",
        aliases=(),
        like="H100-80G",
        peaks=tuple((dtype, second.peak("bf16") if dtype == "bf16" else peak) for dtype, peak in known.peaks),
        memory=second.memory,
        driver_memory=None,
        island=replace(known.island, kind="pcie", size=second.island.size),
    )
    assert (second.peak("bf16").value, second.memory.value, second.island.devices) == (1100e12, 81e9, 2)


def test_a_device_with_a_link_of_its_own_shares_it_with_nobody() -> None:
    """Two A100 share a way to their host; what its user measured is of each."""
    text = ONE.replace("H100", "Z") + '[[device]]\nname = "Z"\nlike = "A100-80G"\n'
    assert cluster_toml.read(text).pools[0].device.host_link == device("A100-80G").host_link
    own = cluster_toml.read(text + "host_gb_per_s = 20\n").pools[0].device
    assert own.host_link.share_bytes_per_s == 20e9
    assert own.driver_memory == device("A100-80G").driver_memory


@pytest.mark.parametrize(
    ("path", "line"),
    [
        ((), 1),
        (("a",), 2),
        (("pool", 0), 4),
        (("pool", 0, "nics"), 6),
        (("pool", 0, "nics", 0, "gbps"), 7),
        (("pool", 0, "nics", 1), 8),
        (("pool", 0, "nics", 9), 6),
        (("pool", 1), 10),
        (("pool", 1, "name"), 11),
        (("pool", 1, "unheard of"), 10),
        (("pool", 1, "sub", 0, "x"), 13),
        (("pool", 1, "sub", 1, "x"), 15),
        (("odd", "table", "k-1"), 17),
        (("odd", "table", "q"), 18),
        (("nothing", 3), 1),
    ],
)
def test_keys_are_found_by_their_lines(path: tuple[str | int, ...], line: int) -> None:
    text = """# a comment
a = 1

[[pool]]
name = "x"
nics = [
    { kind = "roce" }, # one
    { kind = "ib" },
]
[[pool]]
name = "y"
[[pool.sub]]
x = 1
[[pool.sub]]
x = 2
[odd . table]
k-1 = 3
"q" = 4
"""
    assert Lines(text).of(path) == line


@pytest.mark.parametrize(
    ("text", "line", "cause", "fix"),
    [
        (
            ONE.replace("H100", "Z") + '[[device]]\nname = "Z"\nbf16_tflops = 5\nmemory_gb = 1\nisland_kind = "xgmi"\n',
            6,
            "it has no default",
            [f"add `{key} = …`" for key in ("memory_gb_per_s", "host_gb_per_s", "island_gb_per_s", "island_size")],
        ),
        (
            ONE + '[[device]]\nname = "Z"\nlike = "L40S"\nisland_size = 2\n',
            6,
            "it has no default",
            [f"add `{key} = …`" for key in ("island_kind", "island_gb_per_s")],
        ),
    ],
)
def test_every_number_that_a_device_lacks_is_asked_for(text: str, line: int, cause: str, fix: list[str]) -> None:
    error = fault(text)
    assert isinstance(error, ClusterFaults)
    assert [one.fix for one in error.faults] == fix
    assert {one.cause for one in error.faults} == {cause}
    assert {one.place.partition(",")[0] for one in error.faults} == {f"c.toml:{line}"}


@pytest.mark.parametrize(
    ("reference", "place", "cause", "fix"),
    [
        (
            "2x8xH100,intra=4G",
            "cluster '2x8xH100,intra=4G'",
            "cannot read 'intra=4G'",
            "did you mean inter=…?",
        ),
        (
            "2x8xH100,inter=1G,inter=2G",
            "cluster '2x8xH100,inter=1G,inter=2G'",
            "cannot read 'inter=2G', given twice",
            "options: inter, nic, price",
        ),
        ("2x8xH100,inter", "cluster '2x8xH100,inter'", "cannot read 'inter'", "options: inter, nic, price"),
        ("2x0xH100", "cluster '2x0xH100', GPUs per host", "0 is no count", "give 1 to {}"),
        ("2x8xH100,price=0", "cluster '2x8xH100,price=0', price", "'0' is no price", "give a positive number"),
        ("2x8xH100,price=1e13", "cluster '2x8xH100,price=1e13', price", "'1e13' is no price", "give a positive number"),
        (
            "2x8xH100,inter=0.5GB",
            "cluster '2x8xH100,inter=0.5GB', inter",
            "0.5GB is in bytes, and rates are in bits",
            "write inter=4G if you mean bytes, inter=0.5G if you mean bits",
        ),
    ],
)
def test_a_bad_shorthand_says_what_to_write(reference: str, place: str, cause: str, fix: str) -> None:
    with pytest.raises(ClusterError) as caught:
        read_cluster(reference)
    error = caught.value
    assert (error.place, error.cause, error.fix) == (place, cause, fix.format(f"{PER_HOST.most:,}"))


def test_limits_of_a_shorthand_are_taken() -> None:
    (pool,) = read_cluster("2x8xH100,inter=2Tbps,price=1000000000000").pools
    assert pool.price is not None
    assert (pool.nics[0].rate.value, pool.nics[0].count, pool.price.value) == (2000.0, 8, 1e12)
    (spaced,) = read_cluster("2 x 8 x H100 , inter = 100 G , nic = ethernet").pools
    assert (spaced.nics[0].kind, spaced.nics[0].rate.value) == ("ethernet", 100.0)
    assert read_cluster("1x2xL40S,inter=100G").pools[0].nics[0].kind == "infiniband"
