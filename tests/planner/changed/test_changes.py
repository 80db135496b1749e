"""What --what-if says: read, refused with what was meant, and made of the arguments of a question."""

from __future__ import annotations

import re
from argparse import Namespace

import pytest

from meshwright.ir.errors import ChangeUnknown, MeshwrightError, WorkloadImpossible
from meshwright.planner.cli.declared import declared
from meshwright.planner.cli.main import VERBS
from meshwright.planner.question.changed.changes import KEYS, MEANT, WORKLOAD, read_change
from tests.planner.solved import parsed

ARGV = ("m.toml", "--cluster", "2x8xH100", "--global-batch", "64", "--seq", "1024")


def changed(text: str, *more: str) -> Namespace:
    return read_change(text).of(parsed(*ARGV, *more))


def test_what_is_changed_takes_the_place_of_what_was_said() -> None:
    made = changed("global_batch = 128 , dtype=fp16,imbalance=1.5,hosts=4", "--dtype", "fp32", "--optimizer", "sgd")
    assert (made.global_batch, made.dtype, made.imbalance, made.optimizer) == (128, "fp16", 1.5, "sgd")
    assert (made.cluster.hosts, made.cluster_reference) == (4, "2x8xH100 with hosts=4")
    assert (made.model, made.seq) == ("m.toml", 1024)


def test_a_cluster_that_is_another_is_called_by_its_name() -> None:
    """So that its answer is the one that is kept for it."""
    assert changed("cluster=4x8xH200").cluster_reference == "4x8xH200"
    made = changed("cluster=4x8xH200,inter=200G,H200.hosts=8".replace("H200.hosts", "hosts"))
    assert made.cluster_reference == "4x8xH200 with inter=200G,hosts=8"
    assert changed("seq=512").cluster == "2x8xH100"


def test_a_stack_and_a_style_take_the_place_of_each_other() -> None:
    made = changed("style=compiled", "--stack", "megatron")
    assert (made.stack, made.style) == (None, "compiled")


@pytest.mark.parametrize(
    ("text", "kind", "said"),
    [
        ("intre=800G", ChangeUnknown, "did you mean inter?"),
        ("intra=800", ChangeUnknown, "did you mean island_gb_per_s?"),
        ("globalbatch=64", ChangeUnknown, "did you mean global_batch?"),
        ("mbs=4", ChangeUnknown, "did you mean micro_batch?"),
        ("tp=4", ChangeUnknown, "--why-not tp=4"),
        ("xyz=4", ChangeUnknown, "use cluster, gpu, hosts"),
        ("inter", ChangeUnknown, "there is no value"),
        ("inter=", ChangeUnknown, "write inter=…"),
        ("", ChangeUnknown, "cannot be changed"),
        ("hosts=4,,seq=8", ChangeUnknown, "cannot be changed"),
        ("hosts=4,hosts=8", ChangeUnknown, "hosts is given twice"),
        ("seq=4,seq=8", ChangeUnknown, "seq is given twice"),
        ("fast.seq=4", ChangeUnknown, "'seq' is of no pool and no link"),
        ("seq=long", WorkloadImpossible, "give a whole number"),
        ("seq=0", WorkloadImpossible, "at least 1"),
        ("global_batch=9999999", WorkloadImpossible, "at most 262,144"),
        ("imbalance=0.5", WorkloadImpossible, "a number of at least 1"),
        ("dtype=bf61", WorkloadImpossible, "did you mean 'bf16'?"),
        ("target=torch-cud", WorkloadImpossible, "did you mean 'torch-cuda'?"),
    ],
)
def test_what_means_nothing_is_refused(text: str, kind: type[MeshwrightError], said: str) -> None:
    with pytest.raises(kind, match=re.escape(said)) as refused:
        read_change(text)
    assert refused.value.place.startswith("--what-if ")


def test_a_pool_may_have_several_wishes_of_its_own() -> None:
    change = read_change("a.b.hosts=4,hosts=8")
    assert [(wish.of, wish.key, wish.text) for wish in change.cluster] == [("a.b", "hosts", "4"), ("", "hosts", "8")]


def test_keys_of_the_workload_are_options_and_other_words_lead_to_keys() -> None:
    """Each is declared, and takes the values that its option takes."""
    plan = declared(next(verb.arguments for verb in VERBS if verb.name == "plan"))
    for key in WORKLOAD:
        option = plan.of(key)
        assert option.names == (f"--{key.replace('_', '-')}",)
        for word in option.choices:
            assert read_change(f"{key}={word}").workload == {key: word}
    assert set(MEANT.values()) <= set(KEYS)
    assert not set(MEANT) & set(KEYS)
