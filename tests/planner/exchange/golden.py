"""Five models for every target, with configurations that it can say, and the files of what it says.

`python -m tests.planner.exchange.golden` writes the files anew; a person looks at what has changed.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from meshwright.planner.answer.estimate import Estimate
from meshwright.planner.exchange.files import text_of
from meshwright.planner.exchange.run import Room, run_of
from meshwright.planner.exchange.taken import room_of
from meshwright.planner.exchange.target import Projection, projected, said
from meshwright.planner.exchange.targets.every import TARGETS

ROOT = Path(__file__).parents[3]
GOLDEN = Path(__file__).parent / "files"
CLUSTER = ("--cluster", "2x8xH100")
WORKLOAD = ("--global-batch", "64", "--seq", "1024")
MODELS = ("gpt2", "llama-3.1-8b", "phi-3-mini", "gemma-3-1b", "mixtral-8x7b")


@dataclass(frozen=True, slots=True)
class Case:
    """A configuration of a model, and its software."""

    name: str
    pins: str
    software: tuple[str, ...]

    @property
    def model(self) -> str:
        return str(ROOT / "examples" / "configs" / self.name)

    def ending(self, target: str) -> str:
        return Path(TARGETS[target].file).suffix

    def beside(self, target: str) -> tuple[str, ...]:
        """What a person says beside the file: what the target's own scripts say, and no file of it."""
        elsewhere = TARGETS[target].elsewhere
        pins = dict(one.split("=") for one in self.pins.split(","))
        words = [*WORKLOAD[:2]] if "mbs" in elsewhere else []
        words += WORKLOAD[2:] if "seq" in elsewhere else []
        words += ["--micro-batch", pins.get("mbs", "1")] if "mbs" in elsewhere else []
        again = pins.get("recompute", "none")
        return (*words, *(("--fix", f"recompute={again}") if "recompute" in elsewhere and again != "none" else ()))


def cases(software: str, **pins: str) -> dict[str, Case]:
    """The cases of a target: pins by model, with options behind a blank where its software is another."""
    found = {}
    for key, words in pins.items():
        name = next(model for model in MODELS if model.replace("-", "_").replace(".", "_") == key)
        own, *more = words.split()
        found[name] = Case(name, own, tuple(more or software.split()))
    return found


CASES: Mapping[str, Mapping[str, Case]] = {
    "megatron": cases(
        "--stack megatron",
        gpt2="tp=2,pp=2,vp=2,recompute=full",
        llama_3_1_8b="tp=4,cp=2,context=ring,zero=1,recompute=selective,mbs=2",
        phi_3_mini="tp=2,pp=4,stage_blocks=7+9+9+7,recompute=full_layers:2",
        gemma_3_1b="zero=3,mbs=4",
        mixtral_8x7b="tp=2,ep=4,etp=1,zero=1,recompute=full",
    ),
    "megatron-bridge": cases(
        "--stack megatron-tp-overlap",
        gpt2="zero=1,mbs=4 --stack megatron --recipe megatron-bf16-grads",
        llama_3_1_8b="tp=4,zero=1,recompute=selective:core_attn+layernorm",
        phi_3_mini="tp=2,pp=2,vp=2,zero=1 --stack megatron --dtype fp8_tensorwise",
        gemma_3_1b="pp=4,split=ends,zero=0 --stack megatron --optimizer adamw-bf16",
        mixtral_8x7b="tp=2,ep=8,etp=1,zero=1,recompute=full",
    ),
    "torchtitan": cases(
        "--stack torch-compile",
        gpt2="zero=3,recompute=selective_op,mbs=4",
        llama_3_1_8b="tp=4,zero=3,recompute=full --stack torch-async-tp",
        phi_3_mini="pp=2,zero=3,regather=off,recompute=full",
        gemma_3_1b="pp=2,vp=2,schedule=zbv,split=ends,zero=0 --stack torch",
        mixtral_8x7b="ep=4,zero=3,recompute=full",
    ),
    "deepspeed": cases(
        "--stack deepspeed",
        gpt2="zero=2,mbs=2",
        llama_3_1_8b="cp=2,context=ulysses,zigzag=off,zero=3,recompute=full",
        phi_3_mini="tp=2,sp=off,zero=1,recompute=full",
        gemma_3_1b="pp=2,split=spread,zero=1",
        mixtral_8x7b="ep=4,etp=1,zero=2,recompute=full",
    ),
    "accelerate": cases(
        "--stack torch",
        gpt2="zero=0,mbs=4",
        llama_3_1_8b="zero=3,recompute=full,mbs=2",
        phi_3_mini="zero=3,shard=8,recompute=full --stack torch-compile",
        gemma_3_1b="cp=2,zero=3,regather=off",
        mixtral_8x7b="zero=3,recompute=full",
    ),
    "maxtext": cases(
        "--stack maxtext",
        gpt2="zero=0,mbs=4",
        llama_3_1_8b="tp=4,zero=3,recompute=full",
        phi_3_mini="pp=4,schedule=gpipe,zero=0,recompute=full",
        gemma_3_1b="zero=3,shard=8,mbs=2,recompute=selective_op",
        mixtral_8x7b="ep=4,zero=3,recompute=full",
    ),
}


def written(target: str, case: Case, found: Estimate, setting: Any) -> tuple[Projection, Room, str]:
    """What a target can say of an estimate's configuration, and the text of its file."""
    room = room_of(found.ask.cluster, setting)
    known = TARGETS[target]
    projection = projected(known, run_of(found.config, found.workload, room), room)
    comment = f"{case.name} on {CLUSTER[1]}: {found.config}"
    return projection, room, text_of(known, said(known, projection.run, replace(room)), (comment,))


if __name__ == "__main__":
    from tests.planner.exchange.test_prices import planned

    for target, own in CASES.items():
        for model, case in own.items():
            file = GOLDEN / target / f"{model}{case.ending(target)}"
            file.parent.mkdir(parents=True, exist_ok=True)
            found, setting = planned(case)
            projection, _, text = written(target, case, found, setting)
            assert projection.lost == (), (target, model, projection.lost)
            file.write_text(text, encoding="utf-8")
