"""Settings on the command line: written, read, priced, held against a plan; and what is refused, with its place."""

from __future__ import annotations

import json
import subprocess
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

import meshwright
from meshwright.ir.errors import catalogue
from meshwright.planner.cli.main import main
from meshwright.planner.exchange.files import read_settings, text_of
from meshwright.planner.exchange.targets.every import TARGETS
from tests.planner.refused.cases import shape

ON = ("--cluster", "1x4xH100")
Run = Callable[..., Any]


@pytest.fixture
def here(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A folder with a small decoder of four layers, and a wide console."""
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("COLUMNS", "200")
    (tmp_path / "tiny.toml").write_text(shape(layers=4))
    return tmp_path


@pytest.fixture
def priced(here: Path, capsys: pytest.CaptureFixture[str]) -> Run:
    """`plan estimate tiny.toml`, as JSON."""

    def run(*words: str, exit_code: int = 0) -> Any:
        assert main(["estimate", "tiny.toml", *ON, *words, "--json"]) == exit_code
        found = json.loads(capsys.readouterr().out)
        return found if exit_code == 0 else found["error"]

    return run


def settings(name: str, text: str) -> str:
    Path(name).write_text(text)
    return name


# Reading -------------------------------------------------------------------------------------------------------------

SCRIPT = """#!/bin/bash
# a run of ours: --tensor-model-parallel-size 4 was too slow
export CUDA_DEVICE_MAX_CONNECTIONS=1
TP=2
PP="${PIPELINE:-2}"   # stages
SEQ=64 # tokens

DISTRIBUTED_ARGS=(
    --nproc_per_node 4
    --nnodes 1
)
MODEL_ARGS=(
    --num-layers 4 --hidden-size 64   # as the model
    --seq-length $SEQ
    --data-path "/data/with space"
)
TRAIN="
    --micro-batch-size 2 \\
    --global-batch-size 16
    --bf16 --lr 1.0e-5
"
torchrun ${DISTRIBUTED_ARGS[@]} pretrain_gpt.py \\
    "${MODEL_ARGS[@]}" $TRAIN \\
    --tensor-model-parallel-size ${TP} \\
    --pipeline-model-parallel-size=$PP --sequence-parallel \\
    --overlap-grad-reduce --use-distributed-optimizer --overlap-param-gather 2>&1 | tee log.txt
echo done --with-it
"""


def test_a_script_is_priced_as_what_it_runs(priced: Run) -> None:
    by_file = priced("--from", settings("run.sh", SCRIPT))
    words = ("--global-batch", "16", "--seq", "64", "--stack", "megatron", "--fix", "tp=2,pp=2,mbs=2,zero=0")
    assert by_file["config"]["zero"] == 0  # no copies are left
    assert (by_file["predicted"], by_file["config"]) == tuple(priced(*words)[key] for key in ("predicted", "config"))
    assert by_file["workload"]["stack"] == "megatron"
    assert by_file["notes"][0] == "settings of run.sh, as Megatron-LM takes them"
    assert any("--with-it" in note for note in by_file["notes"])


def test_what_the_command_line_says_comes_first(priced: Run) -> None:
    file = settings("run.sh", SCRIPT)
    found = priced("--from", file, "--fix", "tp=4,pp=1,dp=1", "--global-batch", "8", "--stack", "torch")
    assert [found["config"][name] for name in ("tp", "pp", "dp", "mbs")] == [4, 1, 1, 2]
    assert [found["workload"][name] for name in ("global_batch", "seq", "stack", "recipe")] == [8, 64, "torch", "fsdp"]
    assert priced("--from", file, "--micro-batch", "4")["config"]["mbs"] == 4


def test_micro_batches_follow_from_a_batch_that_is_said(priced: Run) -> None:
    text = '{"train_micro_batch_size_per_gpu": 1, "gradient_accumulation_steps": 4}'
    file = settings("ds.json", text)
    assert priced("--seq", "64", "--from", file)["workload"]["global_batch"] == 16
    assert priced("--seq", "64", "--from", file, "--global-batch", "32")["config"]["microbatches"] == 8


def test_what_is_left_to_a_trainer_is_said_by_the_command_line(priced: Run) -> None:
    """As the files are that people give to a trainer of transformers."""
    own = {"train_batch_size": "auto", "train_micro_batch_size_per_gpu": "auto", "bf16": {"enabled": "auto"}}
    own |= {"gradient_accumulation_steps": "auto", "zero_optimization": {"stage": 2, "overlap_comm": True}}
    words = ("--seq", "64", "--from", settings("ds.json", json.dumps(own)), "--global-batch", "16")
    found = priced(*words, "--micro-batch", "2")
    assert [found["workload"][name] for name in ("precision", "stack", "recipe")] == [
        "bf16", "deepspeed", "megatron-bf16-grads",
    ]  # fmt: skip
    assert [found["config"][name] for name in ("zero", "mbs", "microbatches")] == [2, 2, 2]
    assert priced(*words, "--dtype", "fp16")["workload"]["precision"] == "fp16"
    whole = priced(*words, "--dtype", "fp32")["workload"]
    assert (whole["precision"], whole["recipe"]) == ("fp32", "fp32")


def test_words_are_read_as_yaml_is(priced: Run) -> None:
    words = (
        "python3 -m MaxText.train base.yml per_device_batch_size=2 ici_fsdp_parallelism=4 \\\n  max_target_length=64\n"
    )
    by_words = priced("--from", settings("run.sh", words))
    lines = "per_device_batch_size: 2\nici_fsdp_parallelism: 4\nmax_target_length: 64\n"
    by_file = priced("--from", settings("own.yml", lines))
    assert by_words["predicted"] == by_file["predicted"]
    assert by_file["config"]["zero"] == 3
    bridge = "train.py model.tensor_model_parallel_size=2 train.global_batch_size=8 dataset.seq_length=64\n"
    assert priced("--from", settings("bridge.sh", bridge))["config"]["tp"] == 2


def test_another_name_of_an_option_is_the_option(priced: Run) -> None:
    text = "model:\n  seq_length: 64\ntrain:\n  global_batch_size: 8\nddp:\n  use_distributed_optimizer: true\n"
    plain = priced("--from", settings("a.yaml", text))
    other = priced("--from", settings("b.yaml", text + "  overlap_grad_reduce: true\n"))
    assert plain["predicted"]["step_time_s"] > other["predicted"]["step_time_s"]
    both = text + "  overlap_grad_reduce: true\ncomm_overlap:\n  overlap_grad_reduce: false\n"
    error = priced("--from", settings("c.yaml", both), exit_code=6)
    assert (error["code"], error["place"]) == ("MW2019", "c.yaml:7: ddp.overlap_grad_reduce")


def test_whose_a_file_is_can_be_said(priced: Run) -> None:
    file = settings("settings", '{"train_batch_size": 8}')
    assert priced("--seq", "64", "--from", file, exit_code=6)["code"] == "MW2015"
    text = settings("settings.json", '{"train_batch_size": 8}')
    found = priced("--seq", "64", "--from", text, "--from-format", "deepspeed")
    assert found["workload"]["global_batch"] == 8


def test_a_quote_that_never_ends_is_refused_soon(priced: Run) -> None:
    text = SCRIPT + "echo 'open\n" + "a line\n" * 30_000
    error = priced("--from", settings("run.sh", text), exit_code=6)
    assert (error["code"], error["place"]) == ("MW2014", "run.sh:28")


def test_what_stands_behind_a_condition_is_read_and_told(priced: Run) -> None:
    more = 'if [[ "$KIND" == "fp8" ]]; then\n  DTYPE_ARGS+=(\n    "--fp8-format hybrid"\n    "--lr 1e-3"\n  )\nfi\n'
    found = priced("--from", settings("run.sh", SCRIPT + more))
    assert found["workload"]["precision"] == "fp8_tensorwise"
    assert "--fp8-format in run.sh: a condition before is taken to hold" in found["notes"]


def test_quotes_may_go_on_for_lines(priced: Run) -> None:
    more = "echo 'two\nlines; don\"t stop'\nCMD='pretrain_gpt.py\n  --fp8-format hybrid\n  --fp8-recipe blockwise'\n"
    assert priced("--from", settings("run.sh", SCRIPT + more))["workload"]["precision"] == "fp8_blockwise"


def test_checkpointing_of_every_second_layer_is_told(priced: Run) -> None:
    file = settings("job.toml", "[training]\nlocal_batch_size = 2\nseq_len = 64\n")
    found = priced("--from", file)
    assert found["config"]["recompute"] == "full_layers:2"
    assert "one of 2 layers is computed again, priced as the first 2 of every stage" in found["notes"]


def test_what_has_no_price_and_changes_no_cut_is_told(priced: Run) -> None:
    file = settings("run.sh", f"{SCRIPT}pretrain.py --cuda-graph-impl local\n")
    notes = priced("--from", file)["notes"]
    assert "prices know nothing of --cuda-graph-impl in run.sh" in notes


# Refusals ------------------------------------------------------------------------------------------------------------

CODES = {kind.code: kind.__name__ for kind in catalogue()}
TITAN = "[training]\nlocal_batch_size = 2\nseq_len = 64\n[parallelism]\n"
BATCH = '"train_batch_size": 8'
VEE = (
    "pipeline_parallel_degree = 2\npipeline_parallel_schedule = 'ZBVZeroBubble'\n"
    "pipeline_parallel_layers_per_stage = 3\n"
)
SLIP = SCRIPT.replace("--sequence-parallel", "--tensor-model-paralel-size 4")
ALL_THREE = f'{BATCH}, "train_micro_batch_size_per_gpu": 4, "gradient_accumulation_steps": 4'
TWO_KINDS = f'{BATCH}, "bf16": {{"enabled": true}}, "fp16": {{"enabled": true}}'
REFUSED: list[tuple[str, str, str, str]] = [
    ("run.sh", SCRIPT.replace("TP=2", "TP=$(nproc)"), "MW2016", "22: --tensor-model-parallel-size"),
    ("run.sh", SCRIPT + "pretrain_gpt.py --micro-batch-size 4\n", "MW2019", "28: --micro-batch-size"),
    ("run.sh", SCRIPT + 'pretrain_gpt.py --bf16 "\n', "MW2014", "28"),
    ("run.sh", SCRIPT + "pretrain_gpt.py --fp16\n", "MW2019", "28: --fp16"),
    ("run.sh", SCRIPT + "x.py --recompute-granularity full\n", "MW2019", "28: --recompute-granularity"),
    ("run.sh", SCRIPT + "x.py --cp-comm-type p2p a2a\n", "MW2016", "28: --cp-comm-type"),
    ("run.sh", SCRIPT + "x.py --num-layers 8\n", "MW2019", "28: --num-layers"),
    ("run.sh", SCRIPT + "x.py --optimizer lion\n", "MW2016", "28: --optimizer"),
    ("run.sh", SCRIPT + "x.py --rampup-batch-size 8 8 100\n", "MW2018", "28: --rampup-batch-size"),
    ("run.sh", SCRIPT + "x.py --num-virtual-stages-per-pipeline-rank 3\n", "MW4070", ""),
    ("run.sh", SLIP, "MW2017", "22: --tensor-model-paralel-size"),
    ("job.toml", "[parallelism\n", "MW2014", ""),
    ("job.toml", "[parallelism]\ntensor_parallel_degree = '2x'\n", "MW2016", "2: parallelism.tensor_parallel_degree"),
    (
        "job.toml",
        f"{TITAN}enable_async_tensor_parallel = true\n",
        "MW2019",
        "5: parallelism.enable_async_tensor_parallel",
    ),
    ("job.toml", TITAN + VEE, "MW2019", "6: parallelism.pipeline_parallel_schedule"),
    ("ds.json", f'{{{BATCH}, "train_batch_size": 9}}', "MW2016", " train_batch_size"),
    ("ds.json", f'{{{BATCH}, "zero_optimization": {{"stage": 4}}}}', "MW2016", " zero_optimization.stage"),
    ("ds.json", f"{{{ALL_THREE}}}", "MW2019", " train_batch_size"),
    ("ds.json", f"{{{TWO_KINDS}}}", "MW2019", " fp16.enabled"),
    ("ds.json", f"[{{{BATCH}}}]", "MW2014", ""),
    ("a.yaml", "distributed_type: FSDP\nnum_processes: 8\n", "MW2019", "2: num_processes"),
    ("a.yaml", "distributed_type: FSDP\nfsdp_config: {fsdp_version: 1\n", "MW2014", "3"),
    ("a.yaml", "distributed_type: FSDP\ndistributed_type: NO\n", "MW2016", " distributed_type"),
    ("a.yaml", "distributed_type: &kind FSDP\nmixed_precision: *kind\n", "MW2014", "1"),
    ("a.yaml", "distributed_type: !!python/name:os.system FSDP\n", "MW2014", "1"),
    ("m.yml", "ici_fsdp_parallelism: 2\nici_data_parallelism: 4\n", "MW2019", "1: ici_fsdp_parallelism"),
    ("m.yml", "ici_fsdp_parallelism: -1\nici_data_parallelism: -1\n", "MW2019", "1: ici_fsdp_parallelism"),
    ("m.yml", "per_device_batch_size: .inf\n", "MW2016", " per_device_batch_size"),
    ("m.yml", "ici_tensor_parallelism: 4\nper_device_batch_size: 0.3\n", "MW2016", "2: per_device_batch_size"),
    ("b.yaml", "model:\n  tensor_model_parallel_size: two\n", "MW2016", "2: model.tensor_model_parallel_size"),
]


@pytest.mark.parametrize(
    ("name", "text", "code", "place"), REFUSED, ids=[f"{n}-{i}" for i, (n, *_) in enumerate(REFUSED)]
)
def test_bad_settings_are_refused_at_their_place(priced: Run, name: str, text: str, code: str, place: str) -> None:
    error = priced("--from", settings(name, text), exit_code=2 if code.startswith("MW4") else 6)
    assert (error["code"], error["kind"]) == (code, CODES[code])
    assert error["place"].startswith(f"{name}:{place}" if place else name)
    assert error["cause"]
    assert error["fix"]


def test_sizes_that_are_not_of_the_cluster(priced: Run) -> None:
    file = settings("job.toml", f"{TITAN}tensor_parallel_degree = 2\ndata_parallel_shard_degree = 4\n")
    error = priced("--from", file, exit_code=2)
    assert (error["code"], error["fix"]) == ("MW4071", "use dp=2")
    assert "multiply to 8, the cluster has 4 ranks" in error["cause"]


def test_a_file_that_is_not_there(priced: Run) -> None:
    settings("run.sh", SCRIPT)
    error = priced("--from", "rum.sh", exit_code=6)
    assert (error["code"], error["fix"]) == ("MW2014", "did you mean run.sh? name a file of settings")


@pytest.mark.parametrize("words", [("--configs", "many.jsonl"), ("--annotated", "dp=4")])
def test_one_thing_is_priced(priced: Run, words: tuple[str, ...]) -> None:
    error = priced("--from", settings("run.sh", SCRIPT), *words, exit_code=2)
    assert error["kind"] == "PinsContradict"


def test_what_the_scripts_say_must_be_said(priced: Run) -> None:
    file = settings("ds.json", f"{{{BATCH}}}")
    assert priced("--from", file, exit_code=2)["code"] == "MW8003"


# Writing -------------------------------------------------------------------------------------------------------------


@pytest.fixture
def planned(here: Path, capsys: pytest.CaptureFixture[str]) -> Path:
    """A plan whose schedule Megatron has not."""
    words = ["--global-batch", "16", "--seq", "64", "--target", "any", "--stack", "megatron", "--out", "out", "-q"]
    assert main(["plan", "tiny.toml", *ON, *words, "--fix", "pp=2,tp=2,schedule=zbv,recompute=selective_op"]) == 0
    capsys.readouterr()
    return here / "out"


def test_a_plan_is_written_and_its_projection_priced(
    planned: Path, priced: Run, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(["emit", "out", "--to", "megatron", "-o", "set", "--json"]) == 0
    found = json.loads(capsys.readouterr().out)
    assert found["written"] == ["set/megatron.sh"]
    lost = {one["name"]: (one["was"], one["becomes"], one["reason"]) for one in found["lost"]}
    assert lost["schedule"] == ("zbv", "interleaved", "no option")
    assert lost["recompute"] == ("selective_op", "full", "no option")
    saved = json.loads((planned / "plan.json").read_text())
    assert found["planned_step_time_s"] == saved["predicted"]["step_time_s"]
    assert priced("--from", "set/megatron.sh")["predicted"]["step_time_s"] == found["step_time_s"]
    text = Path("set/megatron.sh").read_text()
    assert "zbv becomes interleaved" in text.replace("\n# ", " ")
    assert subprocess.run(["bash", "-n", "set/megatron.sh"], check=False).returncode == 0


def test_a_person_reads_both_prices_and_what_is_lost(planned: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["emit", "out", "--to", "megatron", "-o", "set"]) == 0
    out = capsys.readouterr().out
    for line in ("as planned  ", "as written  ", "what Megatron-LM cannot say", "written: set/megatron.sh"):
        assert line in out
    assert main(["emit", "out", "--to", "deepspeed", "-o", "set"]) == 0
    assert "to be said in your script: seq = 64" in capsys.readouterr().out


def test_what_is_of_someone_else_is_not_written_over(planned: Path, capsys: pytest.CaptureFixture[str]) -> None:
    words = ["emit", "out", "--to", "torchtitan", "-o", "set"]
    assert main(words) == 0
    assert main(words) == 0  # as it was left
    Path("set/torchtitan.toml").write_text("[parallelism]\n")
    assert main([*words, "--json"]) == 8
    assert json.loads(_last(capsys))["error"]["code"] == "MW7030"
    assert main([*words, "--force"]) == 0


def _last(capsys: pytest.CaptureFixture[str]) -> str:
    return capsys.readouterr().out.splitlines()[-1]


@pytest.mark.parametrize("own", [("--tiny",), ("--init", "meta"), ("--target", "any")])
def test_options_of_our_scripts_are_refused(
    planned: Path, own: tuple[str, ...], capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(["emit", "out", "--to", "megatron", "-o", "set", "--json", *own]) == 2
    assert json.loads(capsys.readouterr().out)["error"]["kind"] == "PinsContradict"
    assert not Path("set").exists()


def test_words_of_users_are_no_commands(here: Path) -> None:
    """Names in comments and values of options, whatever they hold, start nothing."""
    evil = "x\n$(touch made); `touch made` \"'"
    text = text_of(TARGETS["megatron"], {"--optimizer": evil, "--recompute-modules": [evil, "b c"]}, (evil,))
    shown = 'printf "%s|" "${MESHWRIGHT_ARGS[@]}"'
    done = subprocess.run(["bash", "-c", f"{text}{shown}"], check=True, capture_output=True, text=True)
    assert done.stdout == f"--optimizer|{evil}|--recompute-modules|{evil}|b c|"
    assert not Path("made").exists()


def test_the_same_in_python(planned: Path, priced: Run, capsys: pytest.CaptureFixture[str]) -> None:
    found = meshwright.settings("out", "megatron")
    assert main(["emit", "out", "--to", "megatron", "-o", "set"]) == 0
    assert Path("set/megatron.sh").read_text() == found.text
    again = meshwright.estimate("tiny.toml", "1x4xH100", settings="set/megatron.sh")
    assert again.prediction == found.prediction
    capsys.readouterr()
    assert again.prediction.to_json() == priced("--from", "set/megatron.sh")["predicted"]
    with pytest.raises(meshwright.MeshwrightError, match="--seq is missing"):
        meshwright.estimate("tiny.toml", "1x4xH100")
    with pytest.raises(meshwright.MeshwrightError, match="did you mean 'megatron'"):
        meshwright.settings("out", "megatorn")


# A plan beside settings ----------------------------------------------------------------------------------------------


def test_a_plan_beats_settings(here: Path, capsys: pytest.CaptureFixture[str]) -> None:
    settings("run.sh", SCRIPT)
    assert main(["plan", "tiny.toml", *ON, "--beat", "run.sh", "--json"]) == 0
    found = json.loads(capsys.readouterr().out)
    beat, mine = found["beat"], found["predicted"]["step_time_s"]
    assert main(["estimate", "tiny.toml", *ON, "--from", "run.sh", "--json"]) == 0
    alone = json.loads(capsys.readouterr().out)
    assert beat["predicted"] == alone["predicted"]
    assert beat["config"] == alone["config"]
    assert (beat["file"], beat["format"]) == ("run.sh", "megatron")
    assert mine <= beat["predicted"]["step_time_s"]
    assert beat["slower"] == beat["predicted"]["step_time_s"] / mine
    high = found["predicted"]["step_time_high_s"]
    assert beat["inside"] == (beat["predicted"]["step_time_s"] <= high)
    assert found["workload"]["stack"] == "megatron"
    assert beat["as_said"]["step_time_s"] >= mine * (1 - 1e-9)
    assert main(["plan", "tiny.toml", *ON, "--beat", "run.sh", "-q"]) == 0
    out = capsys.readouterr().out
    assert "beside run.sh, as Megatron-LM takes it" in out
    assert "its interval" in out or "takes as long" in out


def test_what_settings_configure_is_where_the_search_begins(here: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """Unless something else was asked for."""
    settings("run.sh", SCRIPT)
    words = ["plan", "tiny.toml", *ON, "--beat", "run.sh"]
    assert main(["estimate", "tiny.toml", *ON, "--from", "run.sh", "--json"]) == 0
    alone = json.loads(capsys.readouterr().out)
    priced = f"  {alone['predicted']['step_time_s']} fits "
    assert main([*words, "--dump-after", "search"]) == 0
    assert priced in capsys.readouterr().out
    assert main([*words, "--dump-after", "search", "--forbid", "pp=2"]) == 0
    assert priced not in capsys.readouterr().out


def test_overlaps_that_no_stack_has_are_of_the_file_alone(here: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """A plan is kept by the name of its stack, so it has one."""
    words = SCRIPT.replace("--overlap-grad-reduce --use-distributed-optimizer --overlap-param-gather", "").replace(
        "TP=2", "TP=1"
    )
    settings("run.sh", words)
    assert main(["plan", "tiny.toml", *ON, "--beat", "run.sh", "--json", "--out", "kept"]) == 0
    found = json.loads(capsys.readouterr().out)
    assert found["workload"]["stack"] == "megatron"
    assert any("the file has other overlaps" in note for note in found["notes"])
    assert main(["explain", "kept", "--json"]) == 0


# Files ---------------------------------------------------------------------------------------------------------------


def test_what_is_of_no_concern_is_counted(here: Path) -> None:
    found = read_settings(settings("run.sh", SCRIPT))
    assert found.unknown == ("--with-it",)
    assert found.left == 4  # layers, width, data, learning rate
