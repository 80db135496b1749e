"""A diffusion transformer (arXiv:2212.09748): adaptive norms that a time and a class modulate; squared error."""

from __future__ import annotations

import math

import torch
import torch.nn.functional as F
from torch import Tensor, nn

CHANNELS, IMAGE, CLASSES = 4, 32, 1000


def modulate(x: Tensor, shift: Tensor, scale: Tensor) -> Tensor:
    return x * (1 + scale.unsqueeze(1)) + shift.unsqueeze(1)


class Block(nn.Module):
    """AdaLN-zero."""

    def __init__(self, width: int, heads: int) -> None:
        super().__init__()
        self.heads = heads
        self.norm1, self.norm2 = (nn.LayerNorm(width, elementwise_affine=False, eps=1e-6) for _ in range(2))
        self.qkv, self.proj = nn.Linear(width, 3 * width), nn.Linear(width, width)
        self.mlp = nn.Sequential(nn.Linear(width, 4 * width), nn.GELU(approximate="tanh"), nn.Linear(4 * width, width))
        self.ada = nn.Sequential(nn.SiLU(), nn.Linear(width, 6 * width))

    def attend(self, x: Tensor) -> Tensor:
        B, N, C = x.shape
        q, k, v = self.qkv(x).reshape(B, N, 3, self.heads, C // self.heads).permute(2, 0, 3, 1, 4).unbind(0)
        return self.proj(F.scaled_dot_product_attention(q, k, v).transpose(1, 2).reshape(B, N, C))

    def forward(self, x: Tensor, c: Tensor) -> Tensor:
        shift, scale, gate, shift_mlp, scale_mlp, gate_mlp = self.ada(c).chunk(6, dim=1)
        x = x + gate.unsqueeze(1) * self.attend(modulate(self.norm1(x), shift, scale))
        return x + gate_mlp.unsqueeze(1) * self.mlp(modulate(self.norm2(x), shift_mlp, scale_mlp))


class DiT(nn.Module):
    """Latents in, noise out."""

    def __init__(self, layers: int, width: int, heads: int, patch: int) -> None:
        super().__init__()
        self.patch, self.width = patch, width
        self.embed = nn.Conv2d(CHANNELS, width, patch, stride=patch)
        self.pos = nn.Parameter(torch.zeros(1, (IMAGE // patch) ** 2, width), requires_grad=False)
        self.time = nn.Sequential(nn.Linear(256, width), nn.SiLU(), nn.Linear(width, width))
        self.label = nn.Embedding(CLASSES, width)
        self.blocks = nn.ModuleList([Block(width, heads) for _ in range(layers)])
        self.norm = nn.LayerNorm(width, elementwise_affine=False, eps=1e-6)
        self.ada, self.out = nn.Linear(width, 2 * width), nn.Linear(width, patch * patch * CHANNELS)

    def forward(self, x: Tensor, t: Tensor, y: Tensor) -> Tensor:
        rates = torch.exp(-math.log(10000) * torch.arange(128, device=t.device, dtype=torch.float32) / 128)
        angles = t[:, None].float() * rates[None]
        c = self.time(torch.cat((angles.cos(), angles.sin()), dim=-1).to(self.pos.dtype)) + self.label(y)
        z = self.embed(x).flatten(2).transpose(1, 2) + self.pos
        for block in self.blocks:
            z = block(z, c)
        shift, scale = self.ada(F.silu(c)).chunk(2, dim=1)
        z, side = self.out(modulate(self.norm(z), shift, scale)), IMAGE // self.patch
        z = z.reshape(x.shape[0], side, side, self.patch, self.patch, CHANNELS)
        return torch.einsum("nhwpqc->nchpwq", z).reshape(x.shape[0], CHANNELS, IMAGE, IMAGE)


def build(layers: int = 28, width: int = 1152, heads: int = 16, patch: int = 2) -> DiT:
    return DiT(layers, width, heads, patch)


def example_inputs(batch: int, seq: int) -> dict[str, Tensor]:
    image = (batch, CHANNELS, IMAGE, IMAGE)
    times, labels = torch.randint(0, 1000, (batch,)), torch.randint(0, CLASSES, (batch,))
    return {"x": torch.randn(image), "t": times, "y": labels, "noise": torch.randn(image)}


def loss(outputs: Tensor, batch: dict[str, Tensor]) -> Tensor:
    return F.mse_loss(outputs.float(), batch["noise"])
