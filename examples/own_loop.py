"""A training loop of one's own, with a plan: the lines that are marked are all that changes for it.

    plan examples/llama.py:tiny --cluster cpu:2 --target torch-gloo --global-batch 8 --seq 16 --dtype fp32 --out out
    torchrun --nproc-per-node 2 examples/own_loop.py out

The same for a Hugging Face model, planned from its configuration: `own_loop.py out CONFIG_DIRECTORY`.
"""

import argparse

import torch
from torch import Tensor, nn

import meshwright  # changed: new


def own_model() -> nn.Module:
    from llama import tiny

    return tiny()


def hugging_face(folder: str) -> nn.Module:
    from transformers import AutoConfig, AutoModelForCausalLM

    return AutoModelForCausalLM.from_config(AutoConfig.from_pretrained(folder, use_cache=False), dtype=torch.float32)


def main(plan: str, config: str | None, steps: int) -> list[float]:
    torch.manual_seed(0)
    model = hugging_face(config) if config else own_model()
    part = meshwright.parallelize(model, plan)  # changed: new
    optimizer = torch.optim.AdamW(part.module.parameters(), lr=3e-4)  # changed: was model.parameters()
    losses = []
    for _ in range(steps):
        text = torch.randint(0, 256, (8, 17))
        batch = batch_of(text, hugging_face=config is not None)
        loss = part.step(optimizer, batch)  # changed: was forward, backward and the optimizer's step
        losses.append(float(loss))
    return losses


def batch_of(text: Tensor, *, hugging_face: bool) -> dict[str, Tensor]:
    names = ("input_ids", "targets") if hugging_face else ("tokens", "labels")
    return dict(zip(names, (text[:, :-1], text[:, 1:]), strict=True))


if __name__ == "__main__":
    parser = argparse.ArgumentParser()
    parser.add_argument("plan")
    parser.add_argument("config", nargs="?")
    parser.add_argument("--steps", type=int, default=3)
    given = parser.parse_args()
    print(*main(given.plan, given.config, given.steps))
