"""Models of torch.nn's own layers between an embedding and a head: its encoder, decoder, attention and recurrences."""

from __future__ import annotations

from collections.abc import Callable

import torch
import torch.nn.functional as F
from torch import Tensor, nn


class Around(nn.Module):
    """An embedding, layers of torch, and a head."""

    def __init__(self, layers: nn.Module, width: int, out: int, vocab: int) -> None:
        super().__init__()
        self.embed, self.layers, self.head = nn.Embedding(vocab, width), layers, nn.Linear(out, vocab)


class Encoded(Around):
    """By nn.TransformerEncoder, with a causal mask."""

    def forward(self, tokens: Tensor) -> Tensor:
        mask = nn.Transformer.generate_square_subsequent_mask(tokens.shape[1], device=tokens.device)
        return self.head(self.layers(self.embed(tokens), mask=mask, is_causal=True))


class Translated(Around):
    """By nn.Transformer: encoder and decoder read the same tokens."""

    def forward(self, tokens: Tensor) -> Tensor:
        x = self.embed(tokens)
        mask = nn.Transformer.generate_square_subsequent_mask(tokens.shape[1], device=tokens.device)
        return self.head(self.layers(x, x, tgt_mask=mask, tgt_is_causal=True))


class Attended(nn.Module):
    """A residual nn.MultiheadAttention."""

    def __init__(self, width: int, heads: int) -> None:
        super().__init__()
        self.norm, self.attention = nn.LayerNorm(width), nn.MultiheadAttention(width, heads, batch_first=True)

    def forward(self, x: Tensor) -> Tensor:
        y = self.norm(x)
        return x + self.attention(y, y, y, need_weights=False)[0]


class Plain(Around):
    """By layers that take and give a tensor."""

    def forward(self, tokens: Tensor) -> Tensor:
        return self.head(self.layers(self.embed(tokens)))


class Recurrent(Around):
    """By nn.LSTM, nn.GRU or nn.RNN, batch first."""

    def forward(self, tokens: Tensor) -> Tensor:
        return self.head(self.layers(self.embed(tokens))[0])


def encoder(layers: int = 6, width: int = 512, heads: int = 8, ffn: int = 2048, vocab: int = 32000) -> Encoded:
    layer = nn.TransformerEncoderLayer(width, heads, ffn, dropout=0.0, batch_first=True, norm_first=True)
    return Encoded(nn.TransformerEncoder(layer, layers, enable_nested_tensor=False), width, width, vocab)


def encoder_with_dropout(
    layers: int = 6, width: int = 512, heads: int = 8, ffn: int = 2048, vocab: int = 32000
) -> Encoded:
    layer = nn.TransformerEncoderLayer(width, heads, ffn, activation="gelu", batch_first=True)
    return Encoded(nn.TransformerEncoder(layer, layers, enable_nested_tensor=False), width, width, vocab)


def transformer(layers: int = 6, width: int = 512, heads: int = 8, ffn: int = 2048, vocab: int = 32000) -> Translated:
    both = nn.Transformer(width, heads, layers, layers, ffn, dropout=0.0, batch_first=True)
    return Translated(both, width, width, vocab)


def attention(layers: int = 6, width: int = 512, heads: int = 8, vocab: int = 32000) -> Plain:
    return Plain(nn.Sequential(*[Attended(width, heads) for _ in range(layers)]), width, width, vocab)


def _recurrent(kind: Callable[..., nn.Module], layers: int, width: int, hidden: int, vocab: int) -> Recurrent:
    return Recurrent(kind(width, hidden, num_layers=layers, batch_first=True), width, hidden, vocab)


def lstm(layers: int = 4, width: int = 512, hidden: int = 1024, vocab: int = 32000) -> Recurrent:
    return _recurrent(nn.LSTM, layers, width, hidden, vocab)


def gru(layers: int = 4, width: int = 512, hidden: int = 1024, vocab: int = 32000) -> Recurrent:
    return _recurrent(nn.GRU, layers, width, hidden, vocab)


def rnn(layers: int = 4, width: int = 512, hidden: int = 1024, vocab: int = 32000) -> Recurrent:
    return _recurrent(nn.RNN, layers, width, hidden, vocab)


def example_inputs(batch: int, seq: int) -> dict[str, Tensor]:
    text = torch.randint(0, 256, (batch, seq + 1))
    return {"tokens": text[:, :-1], "targets": text[:, 1:]}


def loss(logits: Tensor, batch: dict[str, Tensor]) -> Tensor:
    return F.cross_entropy(logits.flatten(0, 1).float(), batch["targets"].flatten())
