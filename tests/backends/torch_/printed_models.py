"""Models in which axes meet what no style of torch says: torch's own encoder layers, whose tokens are flattened sample
inside position; positions that the model itself holds; nanoGPT, which returns its loss."""

from __future__ import annotations

from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor, nn

VOCABULARY, WIDTH = 64, 32


class Encoder(nn.Module):
    """Embeddings, positions of the model's own, torch's encoder layers, a head of two classes."""

    def __init__(self) -> None:
        super().__init__()
        self.embedding = nn.Embedding(VOCABULARY, WIDTH)
        self.positions = nn.Parameter(torch.randn(16, WIDTH) * 0.02)
        layer = nn.TransformerEncoderLayer(WIDTH, 4, 64, dropout=0.0, batch_first=True)
        self.encoder = nn.TransformerEncoder(layer, 2, enable_nested_tensor=False)
        self.head = nn.Linear(WIDTH, 2)

    def forward(self, tokens: Tensor) -> Tensor:
        x = self.embedding(tokens) + self.positions
        return self.head(self.encoder(x).mean(1))  # type: ignore[no-any-return]


class Attention(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.c_attn, self.c_proj = nn.Linear(WIDTH, 3 * WIDTH), nn.Linear(WIDTH, WIDTH)

    def forward(self, x: Tensor) -> Tensor:
        b, t, c = x.size()
        q, k, v = self.c_attn(x).split(WIDTH, dim=2)
        q, k, v = (one.view(b, t, 4, c // 4).transpose(1, 2) for one in (q, k, v))
        y = F.scaled_dot_product_attention(q, k, v, is_causal=True)
        return self.c_proj(y.transpose(1, 2).contiguous().view(b, t, c))  # type: ignore[no-any-return]


class Block(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.ln_1, self.ln_2, self.attn = nn.LayerNorm(WIDTH), nn.LayerNorm(WIDTH), Attention()
        self.mlp = nn.Sequential(nn.Linear(WIDTH, 4 * WIDTH), nn.GELU(), nn.Linear(4 * WIDTH, WIDTH))

    def forward(self, x: Tensor) -> Tensor:
        x = x + self.attn(self.ln_1(x))
        return x + self.mlp(self.ln_2(x))  # type: ignore[no-any-return]


class Dropping(Block):
    """A block that drops some of what an axis may cut, and some of what all its ranks have."""

    def forward(self, x: Tensor) -> Tensor:
        x = x + F.dropout(self.attn(self.ln_1(x)), 0.1)
        first, act, second = self.mlp
        return x + second(F.dropout(act(first(self.ln_2(x))), 0.2))  # type: ignore[no-any-return]


class Scaled(Block):
    """A block that adds less the deeper it lies, to what is its own part of a value."""

    depth = 0

    def forward(self, x: Tensor) -> Tensor:
        own = x.unflatten(-1, (2, -1))[:, :, self.depth]
        return x + own.repeat(1, 1, 2) + (super().forward(x) - x) * (2 + self.depth) ** -0.5


class NanoGPT(nn.Module):
    """As nanoGPT: tied embeddings, positions looked up, logits and loss returned."""

    def __init__(self, kind: type[Block] = Block) -> None:
        super().__init__()
        parts = {"wte": nn.Embedding(VOCABULARY, WIDTH), "wpe": nn.Embedding(16, WIDTH), "ln_f": nn.LayerNorm(WIDTH)}
        self.transformer = nn.ModuleDict({**parts, "h": nn.ModuleList([kind() for _ in range(4)])})
        self.lm_head = nn.Linear(WIDTH, VOCABULARY, bias=False)
        self.lm_head.weight = self.transformer["wte"].weight  # type: ignore[assignment]

    def forward(self, idx: Tensor, targets: Tensor) -> tuple[Tensor, Tensor]:
        positions = torch.arange(idx.shape[1], device=idx.device)
        x = self.transformer["wte"](idx) + self.transformer["wpe"](positions)
        for block in self.transformer["h"]:  # type: ignore[union-attr]
            x = block(x)
        logits = self.lm_head(self.transformer["ln_f"](x))
        loss = F.cross_entropy(logits.view(-1, VOCABULARY), targets.view(-1), ignore_index=-1)
        return logits, loss


class Model(nn.Sequential):
    """A block, called as its model might be."""


class Named(nn.Module):
    """Blocks whose class and batch have the names that scripts give to other things."""

    def __init__(self) -> None:
        super().__init__()
        self.inside = nn.Embedding(VOCABULARY, WIDTH)
        blocks = [Model(nn.Linear(WIDTH, 64), nn.ReLU(), nn.Linear(64, WIDTH)) for _ in range(4)]
        self.blocks = nn.ModuleList(blocks)

    def forward(self, x: Tensor, mesh: Tensor) -> Tensor:
        hidden = self.inside(x)
        for block in self.blocks:
            hidden = hidden + block(hidden)
        return hidden * mesh[..., None]  # type: ignore[no-any-return]


class Alone(nn.Module):
    """One body, which is that of the model."""

    def __init__(self) -> None:
        super().__init__()
        self.embedding = nn.Embedding(VOCABULARY, WIDTH)
        self.rest = nn.Sequential(nn.Linear(WIDTH, 64), nn.LayerNorm(64), nn.ReLU(), nn.Linear(64, WIDTH))

    def forward(self, tokens: Tensor, mesh: Tensor) -> Tensor:
        return self.rest(self.embedding(tokens)) * mesh[..., None]  # type: ignore[no-any-return]


class Twice(nn.Module):
    """One body that reads a table under two names, of two modules; attention in it."""

    def __init__(self) -> None:
        super().__init__()
        self.embedding, self.attn, self.norm = nn.Embedding(VOCABULARY, WIDTH), Attention(), nn.LayerNorm(WIDTH)
        self.head, self.last = nn.Linear(WIDTH, VOCABULARY), nn.Linear(VOCABULARY, WIDTH)
        self.head.weight = self.embedding.weight

    def forward(self, tokens: Tensor, mesh: Tensor) -> Tensor:
        x = self.embedding(tokens)
        return self.last(self.head(self.norm(x + self.attn(x)))) * mesh[..., None]  # type: ignore[no-any-return]


class Paired(nn.Module):
    """A block that reads a weight under two names."""

    def __init__(self) -> None:
        super().__init__()
        self.first, self.second = nn.Linear(WIDTH, WIDTH), nn.Linear(WIDTH, WIDTH)
        self.second.weight = self.first.weight

    def forward(self, x: Tensor) -> Tensor:
        return self.second(F.relu(self.first(x)))  # type: ignore[no-any-return]


class Pairs(nn.Module):
    """Such blocks."""

    def __init__(self) -> None:
        super().__init__()
        self.embedding, self.blocks = nn.Embedding(VOCABULARY, WIDTH), nn.ModuleList([Paired(), Paired(), Paired()])

    def forward(self, tokens: Tensor, mesh: Tensor) -> Tensor:
        x = self.embedding(tokens)
        for block in self.blocks:
            x = x + block(x)
        return x * mesh[..., None]  # type: ignore[no-any-return]


class Uncalled(nn.Module):
    """Blocks that are lists, whose parts the model calls itself."""

    def __init__(self) -> None:
        super().__init__()
        self.embedding = nn.Embedding(VOCABULARY, WIDTH)
        self.blocks = nn.ModuleList(
            nn.ModuleList([nn.LayerNorm(WIDTH), nn.Linear(WIDTH, 64), nn.ReLU(), nn.Linear(64, WIDTH)])
            for _ in range(4)
        )

    def forward(self, tokens: Tensor, mesh: Tensor) -> Tensor:
        x = self.embedding(tokens)
        for block in self.blocks:
            for part in block:  # type: ignore[attr-defined]
                x = part(x)
        return x * mesh[..., None]  # type: ignore[no-any-return]


class Choosing(nn.Module):
    """A block that chooses by scores, adds what no gradient flows through, and holds what nothing reads. It reads one
    of its parts with a gradient and without."""

    def __init__(self) -> None:
        super().__init__()
        self.score, self.still, self.both, self.quiet = (nn.Linear(WIDTH, WIDTH) for _ in range(4))
        self.chosen, self.unread = nn.Embedding(WIDTH, WIDTH), nn.Parameter(torch.ones(WIDTH, 3))

    def forward(self, x: Tensor) -> Tensor:
        y = self.chosen(self.score(x).argmax(-1)) + self.still(x).detach()
        with torch.no_grad():
            z = self.quiet(x) * self.both(x)
        return x + y + z + self.both(x).tanh()  # type: ignore[no-any-return]


class Chosen(nn.Module):
    """Such blocks, a token that is put out of the gradient's reach, and a number that is read before blocks and after
    them."""

    def __init__(self) -> None:
        super().__init__()
        self.embedding, self.blocks = nn.Embedding(VOCABULARY, WIDTH), nn.ModuleList([Choosing() for _ in range(4)])
        self.shift = nn.Parameter(torch.ones(WIDTH))

    def forward(self, tokens: Tensor) -> Tensor:
        odd, zero = tokens[..., None] % 2 == 1, torch.zeros(())
        x = torch.where(odd, self.embedding(tokens) + self.shift.detach(), zero)
        for block in self.blocks:
            x = block(x)
        return torch.where(odd, x, zero)


class Borrowing(nn.Module):
    """A model whose own code reads what a part of it holds, one by a name that the part has it by besides its own."""

    def __init__(self) -> None:
        super().__init__()
        self.embedding, self.blocks = nn.Embedding(VOCABULARY, WIDTH), nn.ModuleList([Block() for _ in range(2)])
        self.head, self.bias = nn.Linear(WIDTH, 2), nn.Parameter(torch.ones(2))
        self.head.bias = self.bias

    def forward(self, tokens: Tensor) -> Tensor:
        x = self.embedding(tokens)
        for block in self.blocks:
            x = block(x)
        return F.linear(x.mean(1), self.head.weight) + self.head.bias


class Ends(nn.Module):
    """A model whose ends read one table, call one norm, and have parameters of the model's own beside them."""

    def __init__(self) -> None:
        super().__init__()
        self.embedding, self.blocks = nn.Embedding(VOCABULARY, WIDTH), nn.ModuleList([Block() for _ in range(2)])
        self.norm, self.bias = nn.LayerNorm(WIDTH), nn.Parameter(torch.zeros(VOCABULARY))
        self.positions = nn.Parameter(torch.randn(16, WIDTH) * 0.02)

    def forward(self, tokens: Tensor) -> Tensor:
        x = self.norm(self.embedding(tokens) + self.positions)
        for block in self.blocks:
            x = block(x)
        return F.linear(self.norm(x).mean(1), self.embedding.weight) + self.bias


class Gated(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.proj, self.gate = nn.Linear(WIDTH, WIDTH), nn.Linear(WIDTH, WIDTH)

    def forward(self, x: Tensor, by: Tensor) -> Tensor:
        return x + self.proj(x) * torch.sigmoid(self.gate(by))  # type: ignore[no-any-return]


class Sides(nn.Module):
    """Two stacks whose entries call one table, whose rows the end reads, too."""

    def __init__(self) -> None:
        super().__init__()
        self.embedding, self.norm = nn.Embedding(VOCABULARY, WIDTH), nn.LayerNorm(WIDTH)
        self.encoder, self.decoder = (nn.ModuleList([kind() for _ in range(3)]) for kind in (Block, Gated))

    def forward(self, tokens: Tensor, idx: Tensor) -> Tensor:
        x = self.embedding(tokens)
        for block in self.encoder:
            x = block(x)
        y = self.embedding(idx)
        for block in self.decoder:
            y = block(y, x)
        return F.linear(self.norm(y).mean(1), self.embedding.weight)


class Mixed(nn.Module):
    """A block that mixes positions, with nothing in it that has the order of what enters."""

    def __init__(self) -> None:
        super().__init__()
        self.positions = nn.Linear(16, 16)

    def forward(self, x: Tensor) -> Tensor:
        return self.positions(x.transpose(1, 2)).transpose(1, 2)  # type: ignore[no-any-return]


class Lists(nn.Module):
    """Blocks of one class in two lists, whose activation writes over what enters; one list of several bodies;
    a parameter without dimensions."""

    def __init__(self) -> None:
        super().__init__()
        self.embedding, self.norm = nn.Embedding(VOCABULARY, WIDTH), nn.LayerNorm(WIDTH)
        self.first, self.second = nn.ModuleList([Mixed(), Mixed()]), nn.ModuleList([Mixed(), Mixed()])
        wide = (nn.ReLU(inplace=True), nn.Linear(WIDTH, 64), nn.ReLU(inplace=True), nn.Linear(64, WIDTH))
        self.rest, self.scale = nn.Sequential(*wide), nn.Parameter(torch.ones(()))

    def forward(self, tokens: Tensor, mesh: Tensor) -> Tensor:
        x = self.embedding(tokens)
        for block in self.first:
            x = block(x)
        x = self.norm(x)
        for block in self.second:
            x = block(x)
        for block in self.rest:
            x = block(x)
        return x * self.scale * mesh[..., None]  # type: ignore[no-any-return]


class Around(nn.Module):
    """A module around blocks that holds parameters of its own, of which nothing reads one."""

    def __init__(self) -> None:
        super().__init__()
        self.embedding, self.blocks = nn.Embedding(VOCABULARY, WIDTH), nn.ModuleList([Block() for _ in range(4)])
        self.gain, self.unread = nn.Parameter(torch.ones(WIDTH)), nn.Parameter(torch.ones(3, WIDTH))

    def forward(self, tokens: Tensor) -> Tensor:
        x = self.embedding(tokens) * self.gain
        for block in self.blocks:
            x = block(x)
        return x


class Inner(nn.Module):
    """A model that holds all but its head in one module."""

    def __init__(self) -> None:
        super().__init__()
        self.model, self.head = Around(), nn.Linear(WIDTH, 2)

    def forward(self, tokens: Tensor) -> Tensor:
        return self.head(self.model(tokens).mean(1))  # type: ignore[no-any-return]


def inner() -> nn.Module:
    return Inner()


def lists() -> nn.Module:
    return Lists()


def alone() -> nn.Module:
    return Alone()


def twice() -> nn.Module:
    return Twice()


def pairs() -> nn.Module:
    return Pairs()


def uncalled() -> nn.Module:
    return Uncalled()


def ends() -> nn.Module:
    return Ends()


def sides() -> nn.Module:
    return Sides()


def borrowing() -> nn.Module:
    return Borrowing()


def chosen() -> nn.Module:
    return Chosen()


def encoder() -> nn.Module:
    return Encoder()


def named() -> nn.Module:
    return Named()


def nano() -> nn.Module:
    return NanoGPT()


def dropping() -> nn.Module:
    return NanoGPT(Dropping)


def scaled() -> nn.Module:
    """Blocks that differ in numbers alone."""
    model = NanoGPT(Scaled)
    for depth, block in enumerate(model.transformer["h"]):  # type: ignore[arg-type]
        block.depth = depth // 2
    return model


def example_inputs(batch: int, seq: int) -> dict[str, Tensor]:
    tokens = torch.randint(0, VOCABULARY, (batch, seq))
    plain = {"tokens": tokens, "idx": tokens.clone(), "targets": tokens.roll(-1, 1)}
    odd = {"x": tokens.clone(), "mesh": torch.rand(batch, seq), "share": torch.randn(batch, seq, WIDTH)}
    return {**plain, **odd, "classes": torch.randint(0, 2, (batch,))}


def loss(outputs: Any, batch: dict[str, Tensor]) -> Tensor:
    if isinstance(outputs, tuple):
        return outputs[1]
    if outputs.ndim > len(("samples", "classes")):
        return F.mse_loss(outputs, batch["share"])
    return F.cross_entropy(outputs, batch["classes"])
