"""Rows become runs: the published table, each column, each blank."""

from __future__ import annotations

from collections import Counter
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from benchmarks.cells import Recompute, Zero, nic_of, options_of, recompute_of, zero_of
from benchmarks.models import model_of, read_models
from benchmarks.price import degrees_of, stack_of_run, workload_of
from benchmarks.reading import NO_USUAL_NIC, read_row, read_runs
from benchmarks.runs import Run, Skipped, readings, stage_layers, zero_stages
from benchmarks.stacks import STACKS, Stack, stack_of
from meshwright.cost_models.compute.kernels import Compute
from meshwright.cost_models.hardware.devices import device
from tests.benchmarks.rows import MODEL, ROW, table

MODELS = {MODEL["model"]: model_of(MODEL)}
DATA = Path(__file__).parents[2] / "benchmarks" / "data"


def run(tmp_path: Path, *, shape: dict[str, str] | None = None, **changes: str) -> Run:
    row = outcome(tmp_path, shape=shape, **changes)
    assert isinstance(row, Run), row
    return row


def outcome(tmp_path: Path, *, shape: dict[str, str] | None = None, **changes: str) -> Run | Skipped:
    models = read_models(table(tmp_path / "models.csv", [MODEL | (shape or {})]))
    return read_row(0, ROW | changes, models)


def test_the_published_table() -> None:
    rows = read_runs(DATA / "training_runs.csv", read_models(DATA / "models.csv"))
    timed = [row for row in rows if isinstance(row, Run) and row.step_time_s is not None]
    assert len(rows) == 774
    assert len(timed) == 628
    assert sum(row.recompute_open for row in timed) == 123
    assert Counter(row.source for row in rows if isinstance(row, Skipped) and row.timed) == {
        "sailor_sosp25_validation": 15,  # fp16 or fp32, unstated
        "nvidia_megatron_bridge_perf_summary": 1,  # degrees that do not divide the ranks
        "torchtitan_benchmarks": 2,  # fp8 with scales of rows
        "google_tpu_recipes_ironwood": 2,  # more replicas than sequences
    }
    assert all(row.cluster.ranks == row.devices for row in timed)
    for row in timed:
        open_ = (row.overlap_open, row.graphs_open)
        assert len(readings(row)) == (3 if row.recompute_open else 1) * 2 ** sum(open_)


def test_a_plain_row(tmp_path: Path) -> None:
    found = run(tmp_path)
    assert (found.tp, found.pp, found.vp, found.cp, found.dp) == (2, 2, 1, 1, 4)
    assert (found.micro_batches, found.hosts, found.gpus_per_host) == (16, 2, 8)
    assert (found.zero, found.recompute, found.schedule) == (Zero(stage=1), Recompute(kind="none"), "1f1b")
    assert found.sequence_parallel
    assert not found.derived
    assert found.readings == ()
    assert found.cluster.pools[0].host_gbps == 3200


@pytest.mark.parametrize(
    ("changes", "expected"),
    [
        ({"dp": ""}, {"dp": 4}),
        ({"mbs": ""}, {"micro_batch": 1}),
        ({"mbs": "", "pp": "1", "dp": "8"}, {"micro_batch": 4}),
        ({"mbs": "", "pp": "1", "dp": "8", "gbs": "48"}, {"micro_batch": 2}),
        ({"mbs": "", "pp": "1", "dp": "8", "gbs": "24"}, {"micro_batch": 1}),
        ({"mbs": "", "pp": "1", "dp": "8", "zero": "fsdp"}, {"micro_batch": 8}),
        ({"schedule": ""}, {"schedule": "1f1b", "vp": 1}),
        ({"schedule": "", "vp": "2"}, {"schedule": "interleaved", "vp": 2}),
        ({"schedule": "interleaved_1f1b"}, {"vp": 4}),
        ({"schedule": "zb-v"}, {"vp": 2}),
        ({"zero": "", "dist_opt": "1"}, {"zero": Zero(stage=1), "zero_open": False}),
        ({"zero": ""}, {"zero": Zero(stage=0), "zero_open": True}),
        ({"zero": "", "dp": "1", "pp": "8"}, {"zero_open": False}),
        ({"framework": "megatron_lm_2021"}, {"sequence_parallel": False}),
        ({"framework": "megatron_lm_2022", "recompute": "selective+seqpar"}, {"sequence_parallel": True}),
        ({"tp": "1", "dp": "8"}, {"sequence_parallel": False}),
        ({"precision": ""}, {"precision": "bf16"}),
        ({"precision": "fp8_cs"}, {"precision": "fp8_tensorwise"}),
        ({"gbs": "", "notes": "num_microbatches=16"}, {"global_batch": 64}),
        ({"gbs": "", "notes": "x;per_device_batch_size=4"}, {"global_batch": 64}),
        ({"seq_len": "", "notes": "seq from a config (2048 default)"}, {"seq": 2048}),
        ({"gpus_per_node": "", "gpu": "TPUv6e"}, {"gpus_per_host": 4}),
        ({"step_time_best_s": "", "step_time_s": ""}, {"step_time_s": None}),
        ({"step_time_best_s": ""}, {"step_time_s": 2.5, "derived": False}),
        ({"step_time_s": ""}, {"step_time_s": 2.5, "derived": True}),
        ({"step_time_best_s": "", "step_time_s": "", "tokens_per_s_per_gpu": "4096"}, {"step_time_s": 2.0}),
        ({"peak_mem_gb": "2", "mem_kind": "GiB_max_over_ranks"}, {"peak_bytes": 2.0**31}),
        ({"peak_mem_gb": "2", "mem_kind": "as_reported"}, {"peak_bytes": 2e9}),
        ({"framework": "torchtitan", "notes": "fsdp+compile+float8"}, {"style": "compiled"}),
        ({"framework": "torchtitan", "notes": "eager, no compile"}, {"style": "eager"}),
        ({"offload": "cpu_offload_layers:40"}, {"offload_layers": 40}),
        ({"framework": "composer_fsdp", "notes": "mp_mode=PURE;params=1"}, {"grad_bytes": 2}),
    ],
)
def test_columns_and_blanks(tmp_path: Path, changes: dict[str, str], expected: dict[str, object]) -> None:
    blank = {"outcome": "ok"} if expected == {"step_time_s": None} else {}
    found = run(tmp_path, **changes, **blank)
    assert {key: getattr(found, key) for key in expected} == expected


@pytest.mark.parametrize(
    ("changes", "reason"),
    [
        ({"model": "large"}, "not in the model table"),
        ({"gpu": "abacus"}, "unknown"),
        ({"gpu": ""}, "no device"),
        ({"n_gpus": ""}, "number of devices"),
        ({"seq_len": ""}, "no sequence length"),
        ({"gbs": ""}, "no global batch"),
        ({"gbs": "63"}, "does not divide"),
        ({"dp": "3"}, "are not 16 devices"),
        ({"tp": "3", "dp": ""}, "does not divide 16"),
        ({"precision": "int3"}, "precision"),
        ({"schedule": "whenever"}, "schedule"),
        ({"tp": "1.5"}, "tp is 1.5"),
        ({"step_time_best_s": "", "step_time_s": ""}, "no step time, memory or outcome"),
    ],
)
def test_rows_that_are_skipped(tmp_path: Path, changes: dict[str, str], reason: str) -> None:
    found = outcome(tmp_path, **changes)
    assert isinstance(found, Skipped)
    assert reason in found.reason


def test_a_model_without_a_shape_is_skipped(tmp_path: Path) -> None:
    found = outcome(tmp_path, shape={"vocab": ""})
    assert isinstance(found, Skipped)
    assert "lacks vocab" in found.reason


def test_columns_may_be_missing(tmp_path: Path) -> None:
    models = read_models(table(tmp_path / "models.csv", [MODEL]))
    needed = {key: ROW[key] for key in ("model", "seq_len", "gpu", "n_gpus", "gbs", "step_time_best_s")}
    (found,) = read_runs(table(tmp_path / "runs.csv", [needed]), models)
    assert isinstance(found, Run)
    assert (found.dp, found.zero_open, found.recompute_open) == (16, True, True)
    assert len(found.readings) >= 4


CELLS = st.sampled_from(
    ["", "0", "-1", "1.5", "nan", "inf", "1e400", "x", "none", "full:", "selective:", "zero", "8x", "3"]
)


@given(st.dictionaries(st.sampled_from([*ROW, "vp", "ep", "notes", "peak_mem_gb", "offload", "dist_opt"]), CELLS))
def test_no_cell_is_too_odd(cells: dict[str, str]) -> None:
    """A run or a reason, whatever a cell holds."""
    found = read_row(0, ROW | cells, MODELS)
    assert isinstance(found, Run) or found.reason
    if isinstance(found, Run):
        assert found.step_time_s is None or found.step_time_s > 0
        assert found.micro_batches >= 1


def test_experts(tmp_path: Path) -> None:
    experts = {"experts": "8", "topk": "2", "moe_ffn": "256"}
    bridge = run(tmp_path, shape=experts, ep="8", framework="megatron_bridge")
    assert (bridge.ep, bridge.etp) == (8, 1)
    assert run(tmp_path, shape=experts).etp == 2
    assert isinstance(outcome(tmp_path, shape=experts, ep="16"), Skipped)


def test_readings(tmp_path: Path) -> None:
    assert [each.recompute.kind for each in readings(run(tmp_path, recompute=""))] == ["none", "selective", "full"]
    assert readings(run(tmp_path)) == (run(tmp_path),) or len(readings(run(tmp_path))) == 1
    assert [each.zero.stage for each in zero_stages(run(tmp_path, zero=""))] == [0, 1]
    assert [each.zero.stage for each in zero_stages(run(tmp_path, zero="", pp="1", dp="8"))] == [0, 1, 2, 3]


@pytest.mark.parametrize(
    ("text", "gbps", "kind", "count"),
    [
        ("nvlink+roce_1600gbps_per_node", 200, "roce", 8),
        ("nvlink3+4x100g_roce_per_node", 100, "roce", 4),
        ("nvlink3+8xhdr200_ib", 200, "infiniband", 8),
        ("nvlink4+8xndr400_ib", 400, "infiniband", 8),
        ("nvlink3+8x200g_rocev2", 200, "roce", 8),
        ("nvlink4+rdma400", 400, "roce", 8),
        ("nvlink3+400gbps_per_node", 50, "infiniband", 8),
        ("nvlink+ib", 300, "infiniband", 8),
        ("100gbps_per_node_ethernet", 12.5, "ethernet", 8),
    ],
)
def test_interconnects(text: str, gbps: float, kind: str, count: int) -> None:
    nic = nic_of(text, gpus_per_host=8, usual_kind="infiniband", usual_gbps=300)
    assert nic is not None
    assert (nic.rate.value, nic.kind, nic.count) == (gbps, kind, count)


@pytest.mark.parametrize("text", ["", "nvl72_nvlink5", "ici(+dcn multi-slice)", "nvlink3+unstated"])
def test_interconnects_left_to_the_device(text: str) -> None:
    assert nic_of(text, gpus_per_host=8, usual_kind="infiniband", usual_gbps=300) is None


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("none(8k)", Recompute(kind="none")),
        ("full", Recompute(kind="full")),
        ("full_layers:5", Recompute(kind="full", layers=5)),
        ("selective:layernorm+moe_act", Recompute(kind="selective", modules=("layernorm", "moe_act"))),
        ("selective+seqpar", Recompute(kind="selective", modules=("core_attention",))),
        ("selective_op", Recompute(kind="selective_op")),
        ("remat:full", Recompute(kind="full")),
        ("remat:minimal", Recompute(kind="selective_op")),
        ("remat:qkv_proj_offloaded", Recompute(kind="full", keeps=("qkv_proj",))),
        ("remat:odd", None),
        ("", None),
        ("sometimes", None),
    ],
)
def test_recompute(text: str, expected: Recompute | None) -> None:
    assert recompute_of(text, "core_attention")[0] == expected


def test_selective_means_what_the_framework_means() -> None:
    kinds = [recompute_of("selective", stack.selective)[0] for stack in STACKS.values()]
    assert {kind.kind for kind in kinds if kind} == {"selective", "selective_op", "selective_layer"}


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("fsdp_full_shard", Zero(stage=3)),
        ("fsdp_shard_grad_op", Zero(stage=3, regather=False)),
        ("fsdp_zero2_like(no_reshard_after_fwd)", Zero(stage=3, regather=False)),
        ("hsdp", Zero(stage=3, within=-1)),
        ("zero1_within_8", Zero(stage=1, within=8)),
        ("zero2_like", Zero(stage=2)),
        ("none", Zero(stage=0)),
        ("", None),
    ],
)
def test_zero(text: str, expected: Zero | None) -> None:
    assert zero_of(text, "") == expected


def test_options() -> None:
    found = options_of("unpacked samples;micro_num=4; +tp_overlap", "token_drop")
    assert found == {"unpacked", "micro_num=4", "tp_overlap", "moe_routing=token_drop"}


@given(st.integers(1, 200), st.integers(1, 16), st.integers(1, 8), st.integers(0, 1))
def test_stages_hold_every_layer_nearly_alike(layers: int, pp: int, vp: int, predicting: int) -> None:
    *others, last = stage_layers(layers, pp, vp, predicting)
    assert len(others) == pp * vp - 1
    assert sum(others) + last == layers
    assert max(others, default=last) - min(others, default=last) <= 1
    assert max([*others, last - predicting]) == max(others, default=last - predicting)


def test_short_ends() -> None:
    assert stage_layers(22, 8) == (2, 3, 3, 3, 3, 3, 3, 2)
    assert stage_layers(6, 4, 2) == (0, 1, 1, 1, 1, 1, 1, 0)


def test_what_does_not_divide_leaves_room_beside_the_loss() -> None:
    """As _get_deepseek_v3_pipeline_layout of Megatron-Bridge has it for 61 layers; one more looks at further tokens."""
    assert stage_layers(61, 4) == (16, 16, 16, 13)
    assert stage_layers(61, 8) == stage_layers(61, 4, 2) == (*[8] * 7, 5)
    assert stage_layers(62, 16, predicting=1) == (*[4] * 15, 1 + 1)
    assert stage_layers(61, 8, 4) == (*[2] * 29, 1, 1, 1)  # all alike would leave none for two of them


ROUTED = {"experts": "8", "topk": "2", "moe_ffn": "256"}
BRIDGE = {"framework": "megatron_bridge", "tp": "1", "pp": "1", "dp": "16", "ep": "8"}
READ = "recompute read from release config, matched on parallel sizes"


@pytest.mark.parametrize(
    ("changes", "expected"),
    [
        ({"notes": f"cuda_graph=transformer_engine;dispatcher=hybridep;{READ}"}, ("static", True, False, False)),
        ({"notes": f"a2a_overlap;{READ}"}, ("none", False, True, False)),
        ({"notes": f"a2a_overlap;dispatcher=deepep;{READ}"}, ("none", True, True, False)),
        ({"moe_routing": "token_drop"}, ("none", False, False, False)),
        ({}, ("none", True, False, True)),
        ({"framework": "nemo"}, ("none", False, False, False)),
        ({"table": "26.06_pretrain", "gpu": "GB200", "precision": "mxfp8"}, ("step", True, True, False)),
        ({"table": "26.06_pretrain", "gpu": "GB200", "precision": "bf16"}, ("none", True, False, False)),
        ({"table": "26.06_pretrain", "gpu": "B200", "precision": "mxfp8"}, ("none", True, False, True)),
        ({"table": "26.04.01_pretrain", "gpu": "GB200", "precision": "mxfp8"}, ("none", True, False, False)),
        ({"pp": "2", "dp": "8"}, ("none", True, False, False)),
        ({"pp": "2", "dp": "8", "vp": "2"}, ("none", True, False, True)),
    ],
)
def test_what_rows_say_of_experts(
    tmp_path: Path, changes: dict[str, str], expected: tuple[str, bool, bool, bool]
) -> None:
    """Graphs, dispatcher, overlap of exchanges, and whether that is open; then it is read both ways."""
    found = run(tmp_path, shape=ROUTED, **(BRIDGE | changes))
    assert (found.graphs, found.dedupes, found.overlaps_experts, found.overlap_open) == expected
    overlaps = [one.overlaps_experts for one in readings(found)]
    assert overlaps == ([False, True] if expected[3] else [expected[2]] * (1 + found.graphs_open))
    dense = run(tmp_path, **(BRIDGE | {"ep": "1"} | changes))
    assert not dense.captured
    assert not dense.overlap_open


@pytest.mark.parametrize(
    ("changes", "expected"),
    [
        ({}, ["none", "static"]),
        ({"gpu": "H100"}, ["none"]),
        ({"moe_routing": "dropless"}, ["none"]),
        ({"moe_routing": "dropless", "gpu": "GB300"}, ["none", "static"]),
        ({"moe_routing": "dropless", "gpu": "GB300", "notes": "a2a_overlap;cuda_graph=none"}, ["none"]),
        ({"moe_routing": "dropless", "gpu": "GB300", "framework": "nemo"}, ["none"]),
        ({"gpu": "GB300"}, ["none"]),
        ({"framework": "nemo"}, ["none"]),
        ({"notes": "cuda_graph=none"}, ["none"]),
        ({"notes": "cuda_graph=local"}, ["step"]),
        ({"notes": READ}, ["none"]),
    ],
)
def test_layers_may_replay_by_what_recipes_do_on_a_device(
    tmp_path: Path, changes: dict[str, str], expected: list[str]
) -> None:
    found = run(tmp_path, shape=ROUTED, **(BRIDGE | {"gpu": "B200", "moe_routing": "token_drop"} | changes))
    assert found.padded == (changes.get("moe_routing") is None)
    assert found.graphs_open == (len(expected) > 1)
    assert [one.graphs for one in readings(found)] == (expected if not found.overlap_open else expected * 2)


def test_moments_are_as_wide_as_the_recipe_of_the_model_has_them(tmp_path: Path) -> None:
    """Megatron-Bridge, src/megatron/bridge/recipes/deepseek/deepseek_v3.py and moonlight: exp_avg_dtype is bf16."""
    known = {"model": "deepseek_v3"}
    for model in ("deepseek_v3", "moonlight_16b_a3b"):
        found = run(tmp_path, shape=ROUTED | {"model": model}, **(BRIDGE | {"model": model}))
        assert workload_of(found).optimizer == "adamw-bf16"
    assert workload_of(run(tmp_path, shape=ROUTED, **BRIDGE)).optimizer == "adamw"
    assert workload_of(run(tmp_path, shape=known, **known)).optimizer == "adamw"


@pytest.mark.parametrize(
    ("framework", "stack"),
    [
        ("nemo_mlperf", "nemo"),
        ("NeMo 25.04", "nemo"),
        ("nemo_24.07", "nemo_24.07"),
        ("deepspeed_3d_megatron1.1.5", "megatron_deepspeed"),
        ("megatron-lm", "megatron_lm"),
        ("Megatron-Core 0.12", "megatron_core_0.8"),
        ("torchtitan+float8", "torchtitan"),
        ("pytorch_fsdp", "fsdp"),
        ("nemotron", "unknown"),
    ],
)
def test_a_framework_is_read_by_its_words(tmp_path: Path, framework: str, stack: str) -> None:
    assert stack_of(framework).name == stack
    said = [one for one in run(tmp_path, framework=framework).readings if one.startswith("framework")]
    assert bool(said) == (framework != stack)


def test_unknown_frameworks_take_the_attention_of_the_device() -> None:
    """The kernels that libraries take there, not those of the generation before."""
    unknown = stack_of("something new").attention
    ran = {gpu: Compute(device(gpu), attention=unknown).attention for gpu in ("A100", "H100", "B200")}
    assert ran == {"A100": "flash2", "H100": "flash3", "B200": "blackwell"}


@pytest.mark.parametrize(
    ("notes", "layers"),
    [
        ("layer_partition=[0/8]", ()),  # not two stages
        ("layer_partition=[0/1/8];other=2", (1, 7)),
        ("layer_partition=[0/6/14]", (3, 5)),  # six modules are no layers, three before
        ("layer_partition=[0/1/3]", ()),  # a layer is missing
    ],
)
def test_a_stated_partition_is_run(tmp_path: Path, notes: str, layers: tuple[int, ...]) -> None:
    found = run(tmp_path, notes=notes)
    assert found.partition == layers
    assert degrees_of(found).stage_blocks == (layers or (4, 4))
    assert any("partition" in one for one in found.readings) == (not layers)


def test_in_pipelines_torchtitan_gathers_once(tmp_path: Path) -> None:
    fsdp = {"framework": "torchtitan", "zero": "fsdp2"}
    assert not run(tmp_path, **fsdp).zero.regather
    assert run(tmp_path, **fsdp, pp="1", dp="8").zero.regather
    assert run(tmp_path, **(fsdp | {"framework": "fsdp"})).zero.regather


def test_asynchronous_tensor_parallelism_is_hidden(tmp_path: Path) -> None:
    for notes, hidden in (("asyncTP compile", True), ("async_tp", True), ("compile", False)):
        assert ("tensor" in stack_of_run(run(tmp_path, framework="torchtitan", notes=notes)).hides) == hidden


def test_stacks() -> None:
    assert stack_of("Megatron_Bridge ").name == "megatron_bridge"
    assert stack_of("something new").name == "unknown"
    assert stack_of("something new", "TPU-v5p").style == "xla"
    for changes in ({"style": "fast"}, {"grad_bytes": 3}, {"reason": ""}):
        given_ = {
            "style": "eager",
            "attention": "math",
            "states": "fsdp",
            "grad_bytes": 4,
            "reason": "a test",
        } | changes
        with pytest.raises(ValueError, match="stack x"):
            Stack(name="x", **given_)  # type: ignore[arg-type]
    for wrong in ({"kind": "twice"}, {"kind": "full", "layers": -1}):
        with pytest.raises(ValueError, match="recompute"):
            Recompute(**wrong)  # type: ignore[arg-type]


@pytest.mark.parametrize(
    ("gpu", "pools"),
    [
        ("mixed:V100-16G+T4", [("V100-16G", 2), ("T4", 2)]),
        ("1xV100-16G + 3xT4", [("V100-16G", 1), ("T4", 3)]),
        ("T4", [("T4", 4)]),
    ],
)
def test_unlike_devices_are_pools_of_a_cluster(tmp_path: Path, gpu: str, pools: list[tuple[str, int]]) -> None:
    found = run(tmp_path, gpu=gpu, gpus_per_node="4", precision="fp16", interconnect="4x25g_eth")
    assert [(pool.name, pool.hosts) for pool in found.cluster.pools] == pools
    assert found.cluster.ranks == 16
    assert [link.rate.value for link in found.cluster.links] == [min(hosts for _, hosts in pools) * 100.0] * (
        len(pools) - 1
    )


def test_hosts_that_kinds_of_device_do_not_share_are_refused(tmp_path: Path) -> None:
    found = outcome(tmp_path, gpu="mixed:V100+T4+L4", gpus_per_node="4")
    assert isinstance(found, Skipped)
    assert found.reason == "4 hosts are not shared by 3 kinds of device alike"
    unknown = outcome(tmp_path, gpu="mixed:V100+X9")
    assert isinstance(unknown, Skipped)
    assert unknown.reason == "device 'X9' is unknown"
    none = outcome(tmp_path, gpu="0xV100+2xT4")
    assert isinstance(none, Skipped)
    assert none.reason == "device '0xV100' is unknown"


def test_unlike_devices_of_which_one_has_no_usual_network_are_joined_by_a_stated_one(tmp_path: Path) -> None:
    found = run(tmp_path, gpu="H100-80G+L40S", interconnect="")
    assert [link.rate.value for link in found.cluster.links] == [NO_USUAL_NIC.rate.value * NO_USUAL_NIC.count]


def test_a_blank_stage_of_zero_is_that_of_the_recipes(tmp_path: Path) -> None:
    found = run(tmp_path, framework="nemo", zero="")
    assert (found.zero, found.zero_open) == (Zero(stage=1), False)
    assert "ZeRO: 1, as in recipes of nemo" in found.readings
    assert run(tmp_path, framework="megatron_lm", zero="").zero_open
