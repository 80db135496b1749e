"""The reference decoder against its definition: heads, positions and experts one at a time, in complex numbers."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor, nn

from meshwright.ir.frontends.shape import Shape
from meshwright.ir.frontends.torch_.sources import decoder

TOKENS = torch.tensor([[3, 1, 4, 1, 5, 2], [0, 2, 6, 5, 3, 5]])
GPT: Mapping[str, Any] = {"layers": 1, "hidden": 12, "ffn_hidden": 20, "heads": 3, "vocab": 7, "glu": False}
LLAMA: Mapping[str, Any] = {"layers": 2, "hidden": 8, "ffn_hidden": 10, "heads": 4, "kv_heads": 2, "vocab": 7}
LATENT: Mapping[str, Any] = {"kv_lora_rank": 6, "qk_nope_head_dim": 4, "qk_rope_head_dim": 2, "v_head_dim": 3}
ROUTED: Mapping[str, Any] = {"experts": 2, "topk": 2, "moe_ffn": 6}

SHAPES: Mapping[str, Mapping[str, Any]] = {
    "gpt": GPT,
    "gpt, learned positions": {**GPT, "learned_positions": 6, "head_dim": 5},
    "llama": LLAMA,
    "heads of a width of their own": {**LLAMA, "head_dim": 6, "kv_heads": 1},
    "biases": {**LLAMA, "biases": True},
    "a window": {**LLAMA, "sliding_window": 3, "full_attention_every": 2},
    "parallel halves": {**LLAMA, "parallel_block": True, "layers": 1},
    "tied": {**LLAMA, "tied_embeddings": True, "layers": 1},
    "latent": {**LLAMA, **LATENT, "layers": 1},
    "latent, queries too, a window": {**LLAMA, **LATENT, "layers": 1, "q_lora_rank": 5, "sliding_window": 2},
    "experts": {**LLAMA, **ROUTED, "layers": 3, "first_dense_layers": 1, "moe_layer_freq": 2},
    "shared experts": {**LLAMA, **ROUTED, "layers": 1, "shared_experts": 3},
    "experts without a gate": {**GPT, **ROUTED, "moe_ffn": 0, "biases": True},
}


def made(given: Mapping[str, Any]) -> tuple[Shape, decoder.Decoder]:
    torch.manual_seed(0)
    shape = Shape(**given)
    model = decoder.Decoder(shape).double()
    with torch.no_grad():
        for parameter in model.parameters():
            parameter.copy_(torch.randn_like(parameter) * 0.5)
    return shape, model


class Reference:
    """What the numbers of a shape mean, by the names of the parameters alone."""

    def __init__(self, shape: Shape, held: Mapping[str, Tensor]) -> None:
        self.shape, self.held = shape, held

    def linear(self, name: str, x: Tensor) -> Tensor:
        y = x @ self.held[f"{name}.weight"].T
        return y + self.held[f"{name}.bias"] if f"{name}.bias" in self.held else y

    def norm(self, name: str, x: Tensor) -> Tensor:
        if self.shape.glu:
            return x / (x.square().mean(-1, keepdim=True) + 1e-5).sqrt() * self.held[f"{name}.weight"]
        apart = x - x.mean(-1, keepdim=True)
        variance = apart.square().mean(-1, keepdim=True)
        return apart / (variance + 1e-5).sqrt() * self.held[f"{name}.weight"] + self.held[f"{name}.bias"]

    def turned(self, x: Tensor) -> Tensor:
        """[seq, width], each pair of halves turned by its position; learned positions are in the stream already."""
        if self.shape.learned_positions:
            return x
        real, imaginary = x.chunk(2, -1)
        pair = torch.arange(real.shape[1], dtype=torch.float64)
        angles = torch.arange(float(len(x)), dtype=torch.float64)[:, None] / 10_000 ** (pair / real.shape[1])
        turned = torch.complex(real, imaginary) * torch.polar(torch.ones_like(angles), angles)
        return torch.cat((turned.real, turned.imag), -1)

    def seen(self, layer: int, q: Tensor, k: Tensor, v: Tensor) -> Tensor:
        """One head: every position sees itself and those before, within the window of the layer."""
        every, window = self.shape.full_attention_every, self.shape.sliding_window
        widest = window if window and not (every and layer % every == every - 1) else len(q)
        rows = []
        for at in range(len(q)):
            first = max(0, at + 1 - widest)
            scores = k[first : at + 1] @ q[at] / q.shape[1] ** 0.5
            rows.append(scores.softmax(0) @ v[first : at + 1])
        return torch.stack(rows)

    def attention(self, layer: int, x: Tensor) -> Tensor:
        name, heads = f"blocks.{layer}.attention", self.shape.heads
        few = self.shape.kv_heads or heads
        width = self.shape.head_dim or self.shape.hidden // heads
        q, k, v = (self.linear(f"{name}.{part}_proj", x).split(width, -1) for part in "qkv")
        found = [
            self.seen(layer, self.turned(q[head]), self.turned(k[head * few // heads]), v[head * few // heads])
            for head in range(heads)
        ]
        return self.linear(f"{name}.o_proj", torch.cat(found, -1))

    def latent_attention(self, layer: int, x: Tensor) -> Tensor:
        name, nope, rope = f"blocks.{layer}.attention", self.shape.qk_nope_head_dim, self.shape.qk_rope_head_dim
        if self.shape.q_lora_rank:
            down = self.norm(f"{name}.q_proj.1", self.linear(f"{name}.q_proj.0", x))
            queries = self.linear(f"{name}.q_proj.2", down)
        else:
            queries = self.linear(f"{name}.q_proj", x)
        both = self.linear(f"{name}.kv_down", x)
        latent, shared = both[:, :-rope], self.turned(both[:, -rope:])
        up = self.linear(f"{name}.kv_up", self.norm(f"{name}.kv_norm", latent)).split(nope + self.shape.v_head_dim, -1)
        found = []
        for head, query in enumerate(queries.split(nope + rope, -1)):
            q = torch.cat((query[:, :nope], self.turned(query[:, nope:])), -1)
            k = torch.cat((up[head][:, :nope], shared), -1)
            found.append(self.seen(layer, q, k, up[head][:, nope:]))
        return self.linear(f"{name}.o_proj", torch.cat(found, -1))

    def feed_forward(self, name: str, x: Tensor) -> Tensor:
        up = self.linear(f"{name}.up_proj", x)
        inner = F.silu(self.linear(f"{name}.gate_proj", x)) * up if self.shape.glu else F.gelu(up)
        return self.linear(f"{name}.down_proj", inner)

    def expert(self, name: str, number: int, x: Tensor) -> Tensor:
        up = x @ self.held[f"{name}.up"][number].T
        if self.shape.biases:
            up = up + self.held[f"{name}.up_bias"][number]
        gate, inner = up.chunk(2, -1) if self.shape.glu else (up, up)
        y = (F.silu(gate) * inner if self.shape.glu else F.gelu(up)) @ self.held[f"{name}.down"][number].T
        return y + self.held[f"{name}.down_bias"][number] if self.shape.biases else y

    def experts(self, name: str, x: Tensor) -> Tensor:
        """Every token goes to all of them: none is dropped."""
        weights = self.linear(f"{name}.router", x).softmax(-1)
        y = sum((weights[:, n, None] * self.expert(name, n, x) for n in range(self.shape.experts)), torch.zeros(1))
        return y + self.feed_forward(f"{name}.shared", x) if self.shape.shared_experts else y

    def half(self, layer: int, x: Tensor) -> Tensor:
        name, after = f"blocks.{layer}.feed_forward", layer - self.shape.first_dense_layers
        routed = (
            self.shape.experts and after >= 0 and after % self.shape.moe_layer_freq == self.shape.moe_layer_freq - 1
        )
        return self.experts(name, x) if routed else self.feed_forward(name, x)

    def logits(self, tokens: Tensor) -> Tensor:
        x = self.held["embedding.weight"][tokens]
        if self.shape.learned_positions:
            x = x + self.held["positions.weight"][: len(tokens)]
        attention = self.latent_attention if self.shape.kv_lora_rank else self.attention
        for layer in range(self.shape.layers):
            normed = self.norm(f"blocks.{layer}.attention_norm", x)
            mixed = x + attention(layer, normed)
            second = normed if self.shape.parallel_block else self.norm(f"blocks.{layer}.feed_forward_norm", mixed)
            x = mixed + self.half(layer, second)
        return self.norm("norm", x) @ self.held["head.weight"].T


def test_the_decoder_of_a_shape_computes_what_its_numbers_mean() -> None:
    for name, given in SHAPES.items():
        shape, model = made(given)
        held = {**model.state_dict(), "head.weight": model.head.weight.detach()}
        wanted = torch.stack([Reference(shape, held).logits(row) for row in TOKENS])
        torch.testing.assert_close(model(TOKENS).detach(), wanted, rtol=1e-5, atol=1e-5, msg=name)


def test_tied_embeddings_are_one_parameter() -> None:
    for name, tied in (("tied", True), ("llama", False)):
        model = made(SHAPES[name])[1]
        assert (model.head.weight is model.embedding.weight) == tied


def test_a_token_goes_to_its_best_experts_by_renormalised_weights() -> None:
    """Four tokens, each run of two of which goes to every expert once: nothing is dropped. Router logits are 0 but for
    1 and 2 at the chosen experts: of their softmax, e / (e + e²) and e² / (e + e²) are left."""
    torch.manual_seed(0)
    shape = Shape(**{**LLAMA, "experts": 4, "topk": 2, "moe_ffn": 6})
    layer = decoder.Experts(shape).double()
    held = {f"x.{name}": torch.randn_like(parameter) for name, parameter in layer.named_parameters()}
    held["x.router.weight"] = torch.eye(4, 8, dtype=torch.float64)
    layer.load_state_dict({name.removeprefix("x."): value for name, value in held.items()})
    x = torch.randn(1, 4, 8, dtype=torch.float64)
    x[0, :, :4] = torch.tensor([[1, 2, 0, 0], [0, 0, 2, 1], [2, 0, 0, 1], [0, 1, 2, 0]])
    e = torch.tensor(1.0, dtype=torch.float64).exp()
    less, more = 1 / (1 + e), e / (1 + e)
    one = Reference(shape, held)
    wanted = torch.stack(
        [
            sum((weight * one.expert("x", number, x[0, at]) for number, weight in chosen), torch.zeros(1))
            for at, chosen in enumerate(
                [[(0, less), (1, more)], [(2, more), (3, less)], [(0, more), (3, less)], [(1, less), (2, more)]]
            )
        ]
    )
    torch.testing.assert_close(layer(x)[0].detach(), wanted, rtol=1e-5, atol=1e-6)


@pytest.mark.parametrize("latent", [{}, LATENT])
@pytest.mark.parametrize(("dropout", "rate"), [(True, 0.1), (False, 0.0)])
def test_dropout_is_in_three_places_of_a_block_and_on_the_embedding(
    dropout: bool, rate: float, latent: Mapping[str, Any], monkeypatch: pytest.MonkeyPatch
) -> None:
    """One module for what either half adds, one for the embedding; attention drops probabilities itself."""
    model = made({**LLAMA, **latent, "layers": 1, "dropout": dropout})[1]
    rates = [module.p for module in model.modules() if isinstance(module, nn.Dropout)]
    assert rates == [rate, rate] * dropout
    called: list[float] = []

    def noting(q: Tensor, k: Tensor, v: Tensor, mask: Tensor | None, p: float, **_: Any) -> Tensor:
        called.append(p)
        return torch.zeros(*q.shape[:-1], v.shape[-1], dtype=q.dtype)

    monkeypatch.setattr(F, "scaled_dot_product_attention", noting)
    model(TOKENS)
    assert called == [rate]


def test_a_window_that_is_no_shorter_than_the_sequence_needs_no_mask(monkeypatch: pytest.MonkeyPatch) -> None:
    """Kernels are told that attention is causal, and are given a mask only where something else is hidden."""
    told: list[tuple[bool, bool, bool]] = []

    def noting(
        q: Tensor,
        k: Tensor,
        v: Tensor,
        mask: Tensor | None,
        p: float,
        is_causal: bool = False,
        enable_gqa: bool = False,
    ) -> Tensor:
        told.append((mask is not None, is_causal, enable_gqa))
        return q

    monkeypatch.setattr(F, "scaled_dot_product_attention", noting)
    for window, kv_heads in ((5, 2), (6, 2), (0, 4)):
        made({**LLAMA, "layers": 1, "sliding_window": window, "kv_heads": kv_heads})[1](TOKENS)
    assert told == [(True, False, True), (False, True, True), (False, True, False)]


def test_what_adds_a_half_is_dropped() -> None:
    """With all dropped, a block gives back its stream, and the decoder the logits of nothing."""
    for more in ({}, {"parallel_block": True}):
        model = made({**LLAMA, "dropout": True, **more})[1]
        x = torch.randn(2, 6, 8, dtype=torch.float64)
        for module in model.modules():
            if isinstance(module, nn.Dropout):
                module.p = 1.0
        torch.testing.assert_close(model.blocks[0](x, None, None), x)
        assert model(TOKENS).abs().max() == 0
