"""Answers to many questions, kept byte by byte: what a change of the code that means none must leave as it is.

    python -m benchmarks.corpus FOLDER [--jobs N]         write the answers; those that FOLDER has are kept
    python -m benchmarks.corpus FOLDER --against OTHER    what of them is not the same, as a diff

A question is a command line of `plan` about one of the examples; it is asked in the root of the checkout, with paths
relative to that, so that two checkouts answer alike. Its answer is what is printed, the exit code, and all files that
are written: of plans plan.json, the training script and what belongs to it. The exit code is 1 if answers differ.
"""

from __future__ import annotations

import os
import sys
from argparse import ArgumentParser
from collections.abc import Iterator, Sequence
from contextlib import redirect_stdout
from difflib import unified_diff
from functools import partial
from io import StringIO
from pathlib import Path

from benchmarks.mutation.forking import Job, forked, preload
from meshwright.planner.cli.main import main as plan
from meshwright.planner.cli.output import MANIFEST

ROOT = Path(__file__).resolve().parents[1]
ANSWER = "answer"
CPU_S = 300.0
COLUMNS = "1000"
"""Of a line, so that no path is broken."""
CONTEXT, MOST_LINES = 1, 40
"""Of a diff: lines around a difference; lines shown of a file."""

CONFIGS = (
    *("gpt2", "llama-3.1-8b", "llama-3.1-70b", "llama-3.1-405b", "phi-3-mini", "gemma-3-1b", "gemma-3-27b"),
    *("mixtral-8x7b", "qwen3-moe", "deepseek-v3", "t5-large"),
)
FACTORIES = (
    *("llama.py:llama_8b", "mixture.py:tiny", "mixture.py:limited", "unet.py:small", "vit.py:tiny"),
    *("lora_llama.py:lora_8b", "mlp.py:build", "small.py:attention", "small.py:mixed", "small.py:tied"),
)
MODELS = (*(f"configs/{name}" for name in CONFIGS), *FACTORIES)

ESTIMATES = (
    "configs/gpt2 --cluster 1x8xA100 --global-batch 64 --seq 1024 --fix dp=8,zero=2",
    "configs/llama-3.1-8b --cluster 8x8xH100 --global-batch 512 --seq 4096 --fix tp=8,pp=2,dp=4,mbs=2,vp=4",
    "configs/llama-3.1-8b --cluster 8x8xH100 --global-batch 512 --seq 4096 --fix dp=64,zero=3 --stack torch-compile",
    "configs/llama-3.1-8b --cluster 1x8xH100 --global-batch 8 --seq 65536 --fix cp=8,recompute=full",
    "configs/llama-3.1-70b --cluster 8x8xH100 --global-batch 256 --seq 4096 --fix tp=8,pp=8,recompute=selective",
    "configs/gemma-3-27b --cluster 4x8xA100 --global-batch 64 --seq 4096 --fix tp=4,pp=2,dp=4,zero=1",
    "configs/mixtral-8x7b --cluster 8x8xH100 --global-batch 256 --seq 4096 --fix dp=64,ep=8,zero=1",
    "configs/deepseek-v3 --cluster 32x8xH100 --global-batch 1024 --seq 4096 --fix pp=8,dp=32,ep=32,zero=1",
    "configs/t5-large --cluster 1x8xA100 --global-batch 64 --seq 512 --fix dp=8,zero=3",
    "configs/llama-3.1-8b --cluster examples/clusters/two_pools.toml --global-batch 384 --seq 4096 --fix tp=8,pp=2",
    "llama.py:llama_8b --cluster 2x8xH100 --global-batch 64 --seq 4096 --fix tp=8,dp=2 --style fused",
    "vit.py:tiny --cluster 1x8xH100 --global-batch 256 --seq 1 --fix dp=8,zero=1 --dtype fp16",
)
PLANS = (
    "configs/gpt2 --cluster 1x8xA100 --global-batch 64 --seq 1024",
    "configs/gpt2 --cluster 2x4xV100,inter=10G --global-batch 64 --seq 1024 --dtype fp16",
    "configs/llama-3.1-8b --cluster 8x8xH100 --global-batch 512 --seq 4096",
    "configs/llama-3.1-8b --cluster 8x8xH100 --global-batch 512 --seq 4096 --target any --stack megatron",
    "configs/llama-3.1-8b --cluster 4x8xA100,inter=25G --global-batch 128 --seq 4096 --fix tp=8",
    "configs/llama-3.1-8b --cluster 1x8xL40S --global-batch 32 --seq 2048 --stack torch-compile",
    "configs/llama-3.1-8b --cluster examples/clusters/two_generations.toml --global-batch 128 --seq 4096",
    "configs/llama-3.1-8b --cluster 1x4xH100 --global-batch 16 --seq 4096 --fix offload=optimizer",
    "configs/llama-3.1-8b --cluster 2x8xH100 --global-batch 16 --seq 32768 --fix cp=4",
    "configs/llama-3.1-70b --cluster 8x8xH100 --global-batch 256 --seq 4096",
    "configs/llama-3.1-70b --cluster 1x8xH100 --global-batch 64 --seq 4096",
    "configs/llama-3.1-405b --cluster 128x8xH100 --global-batch 1024 --seq 8192 --target any --stack megatron",
    "configs/phi-3-mini --cluster 1x8xA100,price=2.5 --global-batch 64 --seq 2048 --objective cost",
    "configs/gemma-3-1b --cluster 1x8xL40S --global-batch 32 --seq 4096",
    "configs/gemma-3-27b --cluster 4x8xH100 --global-batch 64 --seq 4096",
    "configs/mixtral-8x7b --cluster 8x8xH100 --global-batch 256 --seq 4096",
    "configs/mixtral-8x7b --cluster 4x8xA100 --global-batch 128 --seq 4096 --forbid pp=1",
    "configs/qwen3-moe --cluster 4x8xH100 --global-batch 128 --seq 4096",
    "configs/deepseek-v3 --cluster 64x8xH100 --global-batch 2048 --seq 4096 --target any --stack megatron",
    "configs/t5-large --cluster 1x8xA100 --global-batch 64 --seq 512",
    "configs/llama-3.1-8b --cluster cpu:4 --target torch-gloo --global-batch 8 --seq 128",
    "llama.py:tiny --cluster cpu:4 --target torch-gloo --global-batch 8 --seq 64",
    "llama.py:tiny --cluster cpu:4 --target torch-gloo --global-batch 8 --seq 64 --fix tp=2,pp=2",
    "llama.py:tiny --cluster cpu:4 --target torch-gloo --global-batch 8 --seq 64 --fix dp=4,zero=3",
    "llama.py:tiny --cluster cpu:4 --target torch-gloo --global-batch 8 --seq 64 --fix cp=2,dp=2",
    "llama.py:llama_8b --cluster 2x8xH100 --global-batch 64 --seq 4096 --fix schedule=zb-h1",
    "mixture.py:tiny --cluster cpu:4 --target torch-gloo --global-batch 8 --seq 64",
    "mixture.py:limited --cluster cpu:4 --target torch-gloo --global-batch 8 --seq 64 --fix dp=2,tp=2",
    "unet.py:small --cluster 1x8xA100 --global-batch 32 --seq 1",
    "vit.py:tiny --cluster 1x8xH100 --global-batch 256 --seq 1",
    "vit.py:tiny --cluster cpu:2 --target torch-gloo --global-batch 8 --seq 1",
    "lora_llama.py:lora_8b --cluster 1x2xH100 --global-batch 16 --seq 2048",
    "mlp.py:build --cluster 1x2xH100 --global-batch 4 --seq 1",
    "small.py:mixed --cluster cpu:4 --target torch-gloo --global-batch 8 --seq 16",
    "small.py:tied --cluster cpu:2 --target torch-gloo --global-batch 8 --seq 16",
)


def questions() -> Iterator[tuple[str, str, str]]:
    """Verb, model and other words of every question."""
    for model in MODELS:
        yield "inspect", model, "--batch 2 --json"
    for verb, lines in (("estimate", ESTIMATES), ("plan", PLANS)):
        for line in lines:
            model, _, words = line.partition(" ")
            yield verb, model, words


def answer(folder: Path, verb: str, model: str, words: str) -> int:
    """Ask one question, and keep what is answered; a plan is emitted, too."""
    os.chdir(ROOT)
    files = folder / "files"
    argv = [verb, f"examples/{model}", *words.split()]
    said = StringIO()
    with redirect_stdout(said):
        print("exit", plan([*argv, "--out", str(files)] if verb == "plan" else argv))
        if (files / "plan.json").exists() and "--target any" not in words:
            print("exit", plan(["emit", str(files), "--out", str(files)]))
    for path in _files(folder):
        (folder / path).write_text(_anywhere((folder / path).read_text("utf-8"), folder), "utf-8")
    (folder / ANSWER).write_text(_anywhere(said.getvalue(), folder), encoding="utf-8")
    return 0


def _anywhere(text: str, folder: Path) -> str:
    """A text as it is wherever the checkout and the answers lie."""
    paths = {"FOLDER": str(folder), "ROOT": os.path.relpath(ROOT, folder / "files"), "ROOT/": f"{ROOT}/"}
    for name, path in paths.items():
        text = text.replace(path, name)
    return text


def record(into: Path, jobs: int) -> int:
    """Write the answers that a folder lacks; how many could not be had."""
    os.environ["COLUMNS"] = COLUMNS
    asked, failed = [], 0
    for number, (verb, model, words) in enumerate(questions()):
        folder = into.resolve() / f"{number:03}"
        if not (folder / ANSWER).exists():
            folder.mkdir(parents=True, exist_ok=True)
            (folder / "question").write_text(f"{verb} {model} {words}\n", encoding="utf-8")
            work = partial(answer, folder, verb, model, words)
            asked.append(Job(name=folder.name, work=work, log=folder / "log", cpu_s=CPU_S, wall_s=5 * CPU_S))
    preload()
    for job, ended in forked(asked, jobs):
        said = (job.log.parent / "question").read_text(encoding="utf-8").strip()
        print(f"{job.name}  {ended.cpu_s:6.1f} CPU-s  {said}" + ("" if ended.code == 0 else "  FAILED"), flush=True)
        failed += ended.code != 0
    return failed


def differences(one: Path, other: Path) -> Iterator[str]:
    """What is not the same in two folders of answers."""
    files = [sorted(_files(folder)) for folder in (one, other)]
    yield from (f"only in one of them: {path}" for path in sorted(set(files[0]) ^ set(files[1])))
    for path in sorted(set(files[0]) & set(files[1])):
        before, after = ((folder / path).read_text(encoding="utf-8").splitlines() for folder in (one, other))
        if before != after:
            found = unified_diff(before, after, str(one / path), str(other / path), n=CONTEXT, lineterm="")
            yield "\n".join(list(found)[:MOST_LINES])


def _files(folder: Path) -> Iterator[Path]:
    names = {"log", MANIFEST}  # what was printed meanwhile; digests of files as they are in this very folder
    return (path.relative_to(folder) for path in folder.rglob("*") if path.is_file() and path.name not in names)


def main(argv: Sequence[str] | None = None) -> int:
    parser = ArgumentParser(prog="python -m benchmarks.corpus", description=(__doc__ or "").partition("\n")[0])
    parser.add_argument("folder", type=Path)
    parser.add_argument("--against", type=Path, metavar="OTHER", help="compare with these answers, and ask nothing")
    parser.add_argument("--jobs", type=int, default=2, metavar="N", help="questions at a time (default: 2)")
    args = parser.parse_args(argv)
    if args.against is None:
        return int(bool(record(args.folder, args.jobs)))
    found = list(differences(args.folder, args.against))
    print("\n".join(found) or f"the same: {sum(1 for _ in _files(args.folder))} files")
    return int(bool(found))


if __name__ == "__main__":
    sys.exit(main())
