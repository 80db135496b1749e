"""Plans that a person would write, for eight ranks on two hosts of four."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest

from meshwright.ir.target.capabilities import ANY
from meshwright.planner.space.baselines import baselines
from tests.planner.test_space import space


def written(**changes: Any) -> dict[str, list[str]]:
    """The variants of each, in the words that tell them apart."""
    return {
        one.name: [
            ",".join(
                f"{name}={value}"
                for name, value in config.to_json().items()
                if name in ("tp", "pp", "vp", "ep", "shard", "zero", "recompute") and value not in (0, 1, "none")
            )
            for config in one.variants
        ]
        for one in baselines(space(**changes))
    }


def test_the_simple_ones_recompute_until_they_fit() -> None:
    found = written()
    assert found["data parallel"] == ["", "recompute=selective_op", "recompute=full"]
    assert found["fsdp"] == ["zero=3", "zero=3,recompute=selective_op", "zero=3,recompute=full"]
    assert found["hsdp"][0] == "shard=4,zero=3"
    assert found["tp in host + fsdp"][-1] == "tp=4,zero=3,recompute=full"
    assert len(found["hsdp"]) == len(found["tp in host + fsdp"]) == 3


@pytest.mark.parametrize(
    ("changes", "expected"),
    [
        # inside the host, then two stages of it, each with two virtual ones where four layers divide
        ({}, ["", "tp=2", "tp=4", "tp=4,pp=2,vp=2", "tp=4,pp=2"]),
        ({"layers": 6}, ["", "tp=2", "tp=4", "tp=4,pp=2,vp=2", "tp=4,pp=2"]),  # 8 with embedding and head
        ({"layers": 5}, ["", "tp=2", "tp=4", "tp=4,pp=2"]),
        ({"layers": 1}, ["", "tp=2", "tp=4"]),
        ({"heads": 2, "layers": 8}, ["", "tp=2", *(f"tp=2,pp={pp}{vp}" for pp in (2, 4) for vp in (",vp=2", ""))]),
        ({"heads": 1, "layers": 3}, ["", "pp=2"]),
    ],
)
def test_megatron_begins_inside_the_host(changes: dict[str, Any], expected: list[str]) -> None:
    found = [text for text in written(**changes)["megatron"] if "recompute" not in text]
    assert found == expected
    again = [text for text in written(**changes)["megatron"] if text.endswith("recompute=full")]
    assert again == [f"{text},recompute=full" for text in expected if "pp" in text]


def test_experts_are_spread_over_a_host() -> None:
    """Then stages have no tensor parallelism."""
    found = [text for text in written(experts=(8, 6), layers=3)["megatron"] if "recompute" not in text]
    assert found == ["ep=2", "tp=2,ep=2", "tp=4,ep=2", "pp=2,ep=2"]


def test_only_what_was_wished_for() -> None:
    assert written(pins="tp=2")["data parallel"] == []
    assert written(pins="tp=2")["megatron"] == ["tp=2"]
    assert written(never={"recompute": ("none",)})["fsdp"] == ["zero=3,recompute=selective_op", "zero=3,recompute=full"]


def test_where_a_target_adds_no_gradients_up_a_micro_batch_is_all_of_a_copy() -> None:
    adds, does_not = (replace(ANY, accumulates=accumulates) for accumulates in (True, False))
    counts = [
        {config.microbatches for one in baselines(space(target=target)) for config in one.variants if config.pp == 1}
        for target in (adds, does_not)
    ]
    assert max(counts[0]) > 1
    assert counts[1] == {1}
