"""Command lines that are refused: one for each kind of error that a few small files can show.

Each is run in a folder that has `FILES` and its own. `python -m tests.planner.refused.cases` runs them all and writes
what they were told to `ir/errors/examples.json`, from which docs/errors.md and `plan errors` have their examples.
"""

from __future__ import annotations

import contextlib
import io
import json
import re
import shlex
import tempfile
from dataclasses import dataclass, field
from pathlib import Path

from meshwright.planner.cli.main import main
from meshwright.planner.plan.file import FORMAT_VERSION

ROOT = Path(__file__).parents[3]
KEPT = ROOT / "ir" / "errors" / "examples.json"

TORCH = """import torch
from torch import nn


class Net(nn.Module):
    def __init__(self, wide=8):
        super().__init__()
        self.up = nn.Linear(wide, wide)

    def forward(self, tokens):
        return self.up(tokens.float())
"""
BATCH = """

def example_inputs(batch, seq):
    return {"tokens": torch.zeros(batch, seq, 8)}


def loss(outputs, batch):
    return outputs.square().mean()
"""
SHAPE = {
    "name": "'tiny'",
    "layers": 4,
    "hidden": 64,
    "ffn_hidden": 128,
    "vocab": 512,
    "heads": 4,
    "kv_heads": 4,
}


def shape(**changed: object) -> str:
    """A shape file, with some keys otherwise; None: left out."""
    table = {key: value for key, value in (SHAPE | changed).items() if value is not None}
    return "".join(f"{key} = {value}\n" for key, value in table.items())


POOL = '[[pool]]\nname = "{}"\nhosts = {}\ngpu = "{}"\ngpus_per_host = 2\n{}'
FAST = POOL.format("fast", 1, "H100", "")
SLOW = POOL.format("slow", 1, "A100", "")
JOINED = '[[link]]\nbetween = ["fast", "slow"]\nkind = "ethernet"\ngbps = 100\n'

H100, A10 = "NVIDIA H100 80GB HBM3", "NVIDIA A10"


def listed(name: str, first: int = 0) -> str:
    """What `nvidia-smi -L` says of a GPU."""
    return f"GPU {first}: {name} (UUID: GPU-{first})\n"


GPT = '{"model_type": "gpt2", "n_layer": 2, "n_head": 2, "n_embd": 8, "n_positions": 32}'

FILES = {"tiny.toml": shape(), "net.py": f"{TORCH}\n\ndef build():\n    return Net()\n{BATCH}"}
WORKLOAD = "--global-batch 8 --seq 64"
ON = f"--cluster 1x4xH100 {WORKLOAD}"
PLANNED = f"plan net.py:build {ON} --fix dp=4 --out out"


@dataclass(frozen=True, slots=True)
class Case:
    """A command line, its exit code, and the files beside `FILES`."""

    command: str
    exit_code: int
    files: dict[str, str] = field(default_factory=dict)
    before: str = ""
    """What is run first."""


def of_model(text: str, exit_code: int = 5) -> Case:
    return Case("plan inspect model.py:build", exit_code, {"model.py": text})


def of_shape(exit_code: int = 6, text: str = "", **changed: object) -> Case:
    return Case("plan inspect shape.toml", exit_code, {"shape.toml": text or shape(**changed)})


def of_config(text: str) -> Case:
    return Case("plan inspect config.json", 6, {"config.json": text})


def of_question(text: str) -> Case:
    return Case("plan --config question.toml", 6, {"question.toml": text})


def of_settings(name: str, text: str) -> Case:
    return Case(f"plan estimate tiny.toml --cluster 1x4xH100 --seq 64 --from {name}", 6, {name: text})


def of_cluster(text: str) -> Case:
    return Case("plan cluster show site.toml", 6, {"site.toml": text})


def of_pins(pins: str, exit_code: int = 2, files: dict[str, str] | None = None) -> Case:
    return Case(f"plan estimate tiny.toml {ON} --fix {pins}", exit_code, files or {})


CASES = {
    "MW1001": Case("plan inspect mymodel.py:build", 2),
    "MW1002": Case("plan inspect net.py:built", 2),
    "MW1003": of_model("def build():\n    raise ValueError('no such size')\n"),
    "MW1004": of_model("import sys\n\nsys.exit(3)\n"),
    "MW1005": of_model(
        "import signal, time\n\ntry:\n    signal.setitimer(signal.ITIMER_REAL, 1e-3); time.sleep(30)\n"
        "except Exception:\n    pass\n"
    ),
    "MW1006": of_model("from torch import nn\n\n\ndef build():\n    return nn.ReLU()\n"),
    "MW1007": of_model(f"{TORCH}\n\ndef build():\n    return Net()\n"),
    "MW1008": of_model(f"{TORCH}\n\ndef build():\n    return Net()\n{BATCH.partition('def loss')[0]}"),
    "MW1009": of_model(
        f"{TORCH}        \n\nclass Branch(Net):\n    def forward(self, tokens):\n        if tokens.sum() > 0:\n"
        f"            return self.up(tokens)\n        return tokens\n\n\ndef build():\n    return Branch()\n{BATCH}"
    ),
    "MW1010": of_model(
        f"{TORCH}\n\ndef build():\n    return Net()\n{BATCH.replace('seq, 8', 'seq, 8, dtype=torch.uint16')}"
    ),
    "MW1011": of_model(f"{TORCH.replace('return', 'raise KeyError(7)  #')}\n\ndef build():\n    return Net()\n{BATCH}"),
    "MW1012": Case("plan inspect model.bin", 2, {"model.bin": ""}),
    "MW1013": of_model(f"{TORCH}\n\ndef build():\n    return Net()\n\n\nexample_inputs = 5\n"),
    "MW1014": Case(
        "plan verify out --tiny",
        5,
        {
            "model.py": f"{TORCH.replace('wide=8', 'wide=8, then=None')}\n\ndef build():\n"
            f"    return Net(8, lambda x: x)\n{BATCH}"
        },
        "plan model.py:build --cluster 2x8xH100 --global-batch 64 --seq 64 --fix dp=16 --out out",
    ),
    "MW1015": Case("plan inspect config.json --seq 64", 2, {"config.json": GPT}),
    "MW1016": of_model(
        f"{TORCH}\n\ndef build():\n    net = Net()\n    for _ in range(200):\n        net = nn.Sequential(net)\n"
        "    return net\n"
    ),
    "MW2001": of_config('{"model_type": "lama"}'),
    "MW2002": of_config('{"model_type": "mine", "auto_map": {"AutoConfig": "mine.Mine"}}'),
    "MW2003": of_shape(text="layers = \n"),
    "MW2004": of_shape(hiden=64),
    "MW2005": of_shape(vocab=None),
    "MW2006": of_shape(layers=0),
    "MW2007": of_config("[]"),
    "MW2008": of_config('{"model_type": "llama", "num_hidden_layers": "two"}'),
    "MW2009": Case("plan --config question.toml", 6),
    "MW2010": of_question("model = tiny.toml\n"),
    "MW2011": of_question("[workload]\nglobal_bacth = 8\n"),
    "MW2012": of_question("model = 'tiny.toml'\n"),
    "MW2013": of_question("[workload]\nglobal_batch = 8\nseq = '64'\n"),
    "MW2014": of_settings("settings.json", '{"train_batch_size": 8'),
    "MW2015": of_settings("settings.yaml", "colour: blue\n"),
    "MW2016": of_settings("settings.json", '{"train_batch_size": "eight", "zero_optimization": {"stage": 1}}'),
    "MW2017": of_settings("job.toml", "[parallelism]\npipeline_parallel_degree = 2\ntensor_parallel_degre = 2\n"),
    "MW2018": of_settings("run.sh", "python pretrain_gpt.py --context-parallel-size 2 --hybrid-context-parallel\n"),
    "MW2019": of_settings(
        "settings.json", '{"train_batch_size": 8, "pipeline": {"stages": 2}, "zero_optimization": {"stage": 3}}'
    ),
    "MW2020": Case(
        "plan emit out --to accelerate --out settings",
        6,
        {},
        "plan tiny.toml --cluster 1x4xH100 --global-batch 6 --seq 64 --fix pp=4,dp=1 --out out",
    ),
    "MW4004": of_pins("pp=2,dp=2,vp=2,schedule=interleaved,mbs=4"),
    "MW4019": of_pins("pp=4,vp=3,dp=1"),
    "MW4070": of_pins("pp=4,split=even", files={"tiny.toml": shape(layers=6)}),
    "MW4071": of_pins("tp=4,dp=4"),
    "MW4072": of_pins("tp=4", files={"tiny.toml": shape(kv_heads=2)}),
    "MW4073": of_pins("ep=2"),
    "MW4074": of_pins("tp=4", files={"tiny.toml": shape(ffn_hidden=126)}),
    "MW4075": Case("plan estimate tiny.toml --cluster 1x4xH100 --global-batch 8 --seq 65 --fix cp=4", 2),
    "MW4076": of_pins("dp=4,mbs=3"),
    "MW4078": of_pins("offload=activations:9,pp=2,dp=2"),
    "MW5001": Case(
        "plan estimate config.json --cluster 1x4xH100 --global-batch 8 --seq 32 --fix tp=2,dp=2 --target jax-cuda",
        6,
        {"config.json": GPT},
    ),
    "MW5004": Case(f"plan estimate tiny.toml {ON} --fix dp=4,recompute=selective --target jax-cuda", 6),
    "MW5005": Case(f"plan estimate tiny.toml {ON} --fix pp=4,schedule=zb-h1 --target jax-cuda", 6),
    "MW5007": Case(f"plan estimate tiny.toml {ON} --fix dp=4,offload=optimizer --target jax-cpu", 6),
    "MW5017": Case(
        "plan emit out --target torch-cuda --out code",
        6,
        {},
        f"plan net.py:build {ON} --optimizer muon --target any --fix dp=4 --out out",
    ),
    "MW6001": Case("plan cluster show 2x8H100", 6),
    "MW6002": Case("plan cluster show site.toml", 6),
    "MW6003": of_cluster("[[pool]\n"),
    "MW6004": of_cluster(FAST.replace("hosts", "nodes = 1\nhosts")),
    "MW6005": of_cluster(FAST.replace("hosts = 1\n", "")),
    "MW6006": of_cluster(FAST.replace("hosts = 1", "hosts = 0")),
    "MW6007": Case("plan cluster show 2x8xH1000", 6),
    "MW6009": Case(f"plan estimate tiny.toml --cluster 1x4xA100 {WORKLOAD} --dtype fp8_tensorwise", 6),
    "MW6011": of_cluster(POOL.format("fast", 2, "RTX 3090", "")),
    "MW6012": of_cluster(FAST + FAST),
    "MW6013": of_cluster(FAST + SLOW + JOINED + JOINED.replace("slow", "slwo")),
    "MW6014": of_cluster(FAST + SLOW),
    "MW6015": of_cluster(f"link_matrix = [[0, 1], [1, 0], [1, 1]]\n{FAST}"),
    "MW6016": of_cluster(f"link_matrix = [[0, 5], [-5, 0]]\n{FAST}"),
    "MW6019": of_cluster(FAST.replace("H100", "H10O").replace("hosts = 1", "hosts = 0")),
    "MW6020": Case(
        f"plan estimate tiny.toml --cluster 1x4xH100-PCIe {WORKLOAD} --fix dp=4,zero=1,offload=optimizer", 6
    ),
    "MW6040": Case(f"plan estimate tiny.toml {ON} --profile none.json", 6),
    "MW6041": Case(f"plan estimate tiny.toml {ON} --profile mine.json", 6, {"mine.json": "{}"}),
    "MW6050": Case("plan cluster import notes.txt", 6, {"notes.txt": "bought eight GPUs\n"}),
    "MW6051": Case("plan cluster import lscpu.txt", 6, {"lscpu.txt": "CPU(s): 0\n"}),
    "MW6052": Case("plan cluster import smi.txt more.txt", 6, {"smi.txt": listed(H100), "more.txt": listed(H100) * 2}),
    "MW6053": Case("plan cluster import hosts.txt", 6, {"hosts.txt": "node1\nnode2\n"}),
    "MW6054": Case("plan cluster import smi.txt", 6, {"smi.txt": listed(H100) + listed(A10, 1)}),
    "MW7020": Case("plan explain out", 2),
    "MW7021": Case("plan explain plan.json", 2, {"plan.json": '{"format_version": 1,'}),
    "MW7022": Case("plan explain plan.json", 2, {"plan.json": '{"format_version": 99}'}),
    "MW7023": Case("plan explain plan.json", 2, {"plan.json": json.dumps({"format_version": FORMAT_VERSION})}),
    "MW7024": Case("plan explain out --model tiny.toml --why-not tp=2", 2, {}, PLANNED),
    "MW7025": Case("plan explain out --cluster 2x4xH100", 2, {}, PLANNED),
    "MW7026": Case(f"plan tiny.toml {ON} --out ''", 8),
    "MW7027": Case("plan compare out run.log", 2, {}, PLANNED),
    "MW7030": Case(f"plan tiny.toml {ON} --out .", 8, {"plan.json": "{}"}),
    "MW7031": Case("plan trace out --measured trace.json -o both.json", 2, {"trace.json": "{}"}, PLANNED),
    "MW7040": Case(f"plan tiny.toml {ON} --fix tp=4 --allow tp=1|2", 2),
    "MW7042": Case(f"plan tiny.toml {ON} --objective tiem", 2),
    "MW7043": Case(f"plan tiny.toml {ON} --objective cost", 2),
    "MW7044": Case(f"plan tiny.toml {ON} --fix tp=4,dp=4", 2),
    "MW7045": of_pins("'layers.*.mpl:sharding=column'"),
    "MW7046": of_pins("'blocks.1:sharding=column'"),
    "MW7047": Case(
        f"plan estimate model.py:build {ON} --fix tp=4,up:sharding=column",
        3,
        {
            "model.py": f"{TORCH.replace('wide=8', 'wide=7')}\n\ndef build():\n    return Net()\n"
            f"{BATCH.replace('seq, 8', 'seq, 7')}"
        },
    ),
    "MW7048": Case(f"plan estimate net.py:build {ON} --fix dp=4,context=ring", 2),
    "MW8001": Case("plan inspect tiny.toml --dump-after flod", 2),
    "MW8002": Case(f"plan estimate tiny.toml {ON} --stack megatron --style eager", 2),
    "MW8003": Case("plan tiny.toml --cluster 1x4xH100 --seq 64", 2),
    "MW8004": of_pins("pt=4"),
    "MW8005": of_pins("recompute=ful"),
    "MW8006": of_pins("tp=2,tp=4"),
    "MW8007": Case(f"plan estimate tiny.toml {ON} --annotated dp=4 --configs many.jsonl", 2),
    "MW8008": Case(f"plan estimate tiny.toml {ON} --configs many.jsonl", 2),
    "MW8009": Case(f"plan estimate tiny.toml {ON} --configs many.jsonl", 2, {"many.jsonl": "tp=4\n"}),
    "MW8010": Case("plan profile diff mine.json", 2),
    "MW8011": Case(f"plan estimate tiny.toml {ON} --annotated dp=3", 2),
    "MW8013": Case(f"plan tiny.toml {ON} --what-if intre=800G", 2),
    "MW8014": Case(f"plan tiny.toml {ON} --what-if slow.inter=800G", 2),
    "MW8015": Case(f"plan tiny.toml {ON} --scale 4,6", 2),
    "MW9009": Case("plan calibrate --target jax-cpu --plan-only", 8),
    "MW8012": Case("plan errors MW60077", 2),
}


def told(case: Case) -> tuple[int, dict[str, object]]:
    """The exit code of a case, and the refusal as --json has it, in a folder of its own."""
    with tempfile.TemporaryDirectory() as folder, contextlib.chdir(folder):
        for name, text in (FILES | case.files).items():
            Path(name).write_text(text)
        if case.before:
            assert _run(case.before)[0] == 0, case.before
        exit_code, out = _run(f"{case.command} --json")
        line = out.splitlines()[-1].replace(f"{Path.cwd()}/", "")
    return exit_code, json.loads(re.sub(r"transformers [\d.]+", "transformers", line))["error"]


def _run(command: str) -> tuple[int, str]:
    out = io.StringIO()
    with contextlib.redirect_stdout(out), contextlib.redirect_stderr(io.StringIO()):
        exit_code = main(shlex.split(command)[1:])
    return exit_code, out.getvalue()


def example(case: Case, error: dict[str, object]) -> dict[str, object]:
    """An entry of `examples.json`."""
    return {"command": case.command, **{key: error[key] for key in ("place", "cause", "fix")}}


if __name__ == "__main__":
    found = {code: example(case, told(case)[1]) for code, case in sorted(CASES.items())}
    KEPT.write_text(f"{json.dumps(found, indent=1, ensure_ascii=False)}\n", encoding="utf-8")
