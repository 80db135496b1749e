"""Numbers shrink by what they size: names say nothing, relations are found, limits are met."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

import numpy
import pytest
import torch
import torch.nn.functional as F
from torch import Tensor, nn

from meshwright.ir.frontends.small.shrink import shrunk
from meshwright.ir.frontends.torch_.small.trial import Recipe
from meshwright.ir.frontends.torch_.sources.factory import Hooks
from meshwright.ir.frontends.twin import Scale

SCALE = Scale(layers=2, seq=16, tokens=512)


class Block(nn.Module):
    """Attention by hand, with groups of heads, a window and a rotated part; and two layers."""

    def __init__(self, given: Mapping[str, Any], kind: int) -> None:
        super().__init__()
        if (
            given["q"] % given["w"]
            or given["w"] % given["e"]
            or given["r"] % 2
            or given["r"] > given["q"] // given["w"]
        ):
            raise ValueError("these do not go together")
        self.given, self.kind, head = given, kind, given["q"] // given["w"]
        self.query, self.both = nn.Linear(given["q"], given["q"]), nn.Linear(given["q"], 2 * given["e"] * head)
        if kind:
            self.up, self.down = nn.Linear(given["q"], given["t"]), nn.Linear(given["t"], given["q"])
        self.drop = nn.Dropout(given["y"])

    def forward(self, x: Tensor) -> Tensor:
        given, tokens = self.given, x.shape[1]
        query = self.query(x).unflatten(-1, (given["w"], -1)).transpose(1, 2)
        key, value = self.both(x).unflatten(-1, (2 * given["e"], -1)).transpose(1, 2).chunk(2, 1)
        turned, rest = query.split((given["r"], query.shape[-1] - given["r"]), -1)
        query = torch.cat((torch.cat((-turned.chunk(2, -1)[1], turned.chunk(2, -1)[0]), -1), rest), -1)
        times = given["w"] // given["e"]
        if times > 1:
            key, value = key.repeat_interleave(times, 1), value.repeat_interleave(times, 1)
        at = torch.arange(tokens, device=x.device)
        far = (at[:, None] - at >= given["u"]) | (at > at[:, None])
        seen = (query @ key.transpose(-1, -2)).masked_fill(far, float("-inf")).softmax(-1)
        x = x + self.drop((seen @ value).transpose(1, 2).flatten(-2))
        return x + self.down(F.gelu(self.up(x))) if self.kind else x


class Model(nn.Module):
    """Settings are called by letters: `o` blocks, the first `p` of another kind; `i` words, `d` places."""

    def __init__(self, given: Mapping[str, Any]) -> None:
        super().__init__()
        self.table, self.places = (
            nn.Embedding(given["i"], given["q"], padding_idx=given["s"]),
            nn.Embedding(given["d"], given["q"]),
        )
        self.blocks = nn.ModuleList(Block(given, int(kind >= given["p"])) for kind in range(given["o"]))
        self.head = nn.Linear(given["q"], given["i"])

    def forward(self, x: Tensor) -> Tensor:
        x = self.table(x) + self.places(torch.arange(x.shape[1], device=x.device))
        for block in self.blocks:
            x = block(x)
        return self.head(x)


def example_inputs(batch: int, seq: int) -> dict[str, Tensor]:
    return {"x": torch.zeros(batch, seq, dtype=torch.long), "y": torch.zeros(batch, seq, dtype=torch.long)}


def loss(outputs: Tensor, batch: dict[str, Tensor]) -> Tensor:
    return F.cross_entropy(outputs.flatten(0, 1), batch["y"].flatten())


BIG = {
    "q": 768,
    "w": 12,
    "e": 4,
    "r": 32,
    "t": 3071,
    "o": 12,
    "p": 1,
    "i": 50_257,
    "d": 2048,
    "s": 50_256,
    "a": 999,
} | {
    "u": 128,
    "y": 0.1,
}
"""Width, heads, groups of heads, a rotated part, an inner width that is odd, blocks, those of the first kind, words,
positions, the word that pads, nothing, a window, chances."""


def small(scale: Scale) -> dict[str, Any]:
    with torch.device("meta"):
        whole = Model(BIG)
    recipe = Recipe(settings=BIG, build=Model, whole=whole, hooks=Hooks(example_inputs, loss), place="here")
    return shrunk(recipe, scale)


def test_numbers_shrink_by_what_they_size() -> None:
    """12 heads of 64 remain 12, since 4 and no 8 divides them, of 16: 8 of these are rotated, in halves, and some are
    not. 3,071 and 50,257 stay odd; a matrix has 64 rows, words are 256, positions twice the tokens. Of either kind of
    blocks as many are left as were, or two. What pads is a word of the twin. The window is half of its tokens."""
    expected = {"q": 192, "r": 8, "t": 65, "o": 3, "i": 257, "d": 32, "s": 256, "u": 8, "y": 0.0}
    assert small(SCALE) == BIG | expected


def test_what_the_models_own_workload_says_is_kept() -> None:
    """Its words; and a window that it does not meet."""
    made = small(Scale(layers=2, seq=16, tokens=100, words=300))
    assert made["i"] == 513
    assert made["u"] == BIG["u"]


def of(kind: Callable[[Mapping[str, Any]], nn.Module], given: dict[str, Any]) -> dict[str, Any]:
    """Small settings of a model of 32 inputs."""
    with torch.device("meta"):
        whole = kind(given)
    hooks = Hooks(lambda batch, _: {"x": torch.randn(batch * 8, 32)}, lambda outputs, _: outputs.sum())
    return shrunk(Recipe(settings=given, build=kind, whole=whole, hooks=hooks, place="here"), SCALE)


def of_words(kind: Callable[[Mapping[str, Any]], nn.Module], given: dict[str, Any]) -> dict[str, Any]:
    """Small settings of a model of words."""
    with torch.device("meta"):
        whole = kind(given)
    hooks = Hooks(example_inputs, loss)
    return shrunk(Recipe(settings=given, build=kind, whole=whole, hooks=hooks, place="here"), SCALE)


class Routed(nn.Module):
    """Matrices in a stack, of which each row takes those that are best in the best groups."""

    def __init__(self, given: Mapping[str, Any]) -> None:
        super().__init__()
        self.given = given
        self.first = nn.Linear(32, given["a"])
        self.router = nn.Linear(given["a"], given["b"])
        self.stack = nn.Parameter(torch.zeros(given["b"], given["a"], given["c"]))

    def forward(self, x: Tensor) -> Tensor:
        x, given = self.first(x), self.given
        scores = self.router(x).softmax(-1)
        groups = scores.unflatten(-1, (given["d"], -1)).topk(2).values.sum(-1).topk(given["e"]).indices
        kept = torch.zeros(x.shape[0], given["d"], device=x.device).scatter(1, groups, 1.0)
        best = (scores.unflatten(-1, (given["d"], -1)) * kept[..., None]).flatten(-2).topk(given["f"])
        weights = torch.zeros_like(scores).scatter(1, best.indices, scores.gather(1, best.indices))
        return torch.einsum("xb,xbc->xc", weights, (x @ self.stack).transpose(0, 1))


def test_what_is_selected_from_stays_more_than_what_is_selected() -> None:
    """2 of 4 groups, since 4 of 8 were; 4 matrices in each, since it was no choice to take 2 of 2; 2 of all. `b` sizes
    the router's rows too, which are fewer than 64 then. `c` is 64 first, and no matrix of the stack may be square."""
    given = {"a": 256, "b": 256, "c": 128, "d": 8, "e": 4, "f": 8}
    assert of(Routed, given) == {"a": 72, "b": 16, "c": 64, "d": 4, "e": 2, "f": 2}


class Iterated(nn.Module):
    """Rows and columns are made to sum to one by turns, `n` times."""

    def __init__(self, given: Mapping[str, Any]) -> None:
        super().__init__()
        self.table, self.times = nn.Embedding(given["i"], given["q"]), given["n"]

    def forward(self, x: Tensor) -> Tensor:
        rows = self.table(x).exp()
        for _ in range(self.times):
            rows = rows / rows.sum(-1, keepdim=True)
            rows = rows / rows.sum(-2, keepdim=True)
        return F.linear(rows, self.table.weight)


def test_iterations_are_as_few_as_blocks() -> None:
    """They hold nothing, so only operators are fewer, each as it was."""
    assert of_words(Iterated, {"i": 5000, "q": 512, "n": 20})["n"] == SCALE.layers


class Hashed(nn.Module):
    """A frozen table says for every word which two of `e` scores count."""

    def __init__(self, given: Mapping[str, Any]) -> None:
        super().__init__()
        self.table, self.scores = nn.Embedding(given["i"], given["q"]), nn.Linear(given["q"], given["e"])
        self.chosen = nn.Buffer(torch.zeros(given["i"], 2, dtype=torch.long))

    def forward(self, x: Tensor) -> Tensor:
        rows = self.table(x)
        weight = self.scores(rows).gather(-1, self.chosen[x]).sum(-1, keepdim=True)
        return F.linear(rows * weight, self.table.weight)


def test_what_a_table_says_of_a_word_is_no_word() -> None:
    """What it looks up in need not have as many rows as the vocabulary. 64 scores of 64 numbers would be a square."""
    found = of_words(Hashed, {"i": 5000, "q": 512, "e": 1024})
    assert (found["i"], found["e"]) == (256, 72)


def test_lists_with_an_entry_for_every_block_are_cut() -> None:
    class Listed(nn.Module):
        def __init__(self, given: Mapping[str, Any]) -> None:
            super().__init__()
            if len(given["kinds"]) != given["deep"]:
                raise ValueError("one for each")
            self.blocks = nn.ModuleList(nn.Linear(32, 32, bias=one == "b") for one in given["kinds"])

        def forward(self, x: Tensor) -> Tensor:
            for block in self.blocks:
                x = block(x)
            return x

    given = {"deep": 6, "kinds": ["b", "n", "b", "n", "b", "n"]}
    assert of(Listed, given) == {"deep": 4, "kinds": ["b", "n", "b", "n"]}


def test_entries_of_a_list_shrink_at_once() -> None:
    """Where equal: one trial tells of as many blocks as there are."""
    built: list[tuple[int, ...]] = []

    class Wide(nn.Module):
        def __init__(self, given: Mapping[str, Any]) -> None:
            super().__init__()
            built.append(tuple(given["wide"]))
            self.up = nn.ModuleList(nn.Linear(32, wide) for wide in given["wide"])
            self.down = nn.ModuleList(nn.Linear(wide, 32) for wide in given["wide"])

        def forward(self, x: Tensor) -> Tensor:
            for up, down in zip(self.up, self.down, strict=True):
                x = down(up(x))
            return x

    given = {"wide": [512] * 8 + [1024] * 8}
    assert of(Wide, given) == {"wide": [64] * 16}
    assert sum(len(set(one)) > 2 for one in built) < len(given["wide"])


class Sectioned(nn.Module):
    """Heads of parts, and groups of them: of 128, as code has it, where the settings have no parts."""

    def __init__(self, given: Mapping[str, Any]) -> None:
        super().__init__()
        self.given, self.head = given, 2 * sum(given.get("parts", (16, 48)))
        if given["width"] != given["heads"] * self.head or given["heads"] % given["groups"]:
            raise ValueError("these do not go together")
        width, many = given["width"], given["groups"] * self.head
        self.query, self.key, self.out = nn.Linear(width, width), nn.Linear(width, many), nn.Linear(width, width)
        self.up, self.down = nn.Linear(width, given["inner"]), nn.Linear(given["inner"], width)
        self.inside = nn.Linear(32, width)

    def forward(self, x: Tensor) -> Tensor:
        x = self.inside(x)
        query = self.query(x).unflatten(-1, (self.given["groups"], -1, self.head))
        key = self.key(x).unflatten(-1, (self.given["groups"], 1, self.head))
        for _ in range(40):
            query = query + key
        x = x + self.out(query.flatten(-3))
        return x + self.down(F.gelu(self.up(x)))


@pytest.mark.parametrize(
    ("parts", "small"),
    [
        ({"parts": [16, 48]}, {"width": 256, "heads": 16, "groups": 4, "parts": [2, 6]}),
        ({}, {"width": 2048, "heads": 16, "groups": 4}),
    ],
    ids=["parts", "heads"],
)
def test_of_a_large_model_a_number_shrinks_with_one_other_or_with_the_parts_of_a_dimension(
    parts: dict[str, Any], small: dict[str, Any]
) -> None:
    given = {"width": 8192, "heads": 64, "groups": 8, "inner": 64 * 200, **parts}
    assert of(Sectioned, given) == given | {"inner": 64} | small


@pytest.mark.parametrize(
    ("more", "small"), [(0, {}), (1_200_000, {"width": 2048, "heads": 16, "groups": 4, "inner": 64})]
)
def test_where_work_ends_early_a_large_model_is_tried_on(
    more: int, small: dict[str, Any], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("meshwright.ir.frontends.small.shrink.WORK", 0)
    monkeypatch.setattr("meshwright.ir.frontends.small.shrink.MORE_WORK", more)
    given = {"width": 8192, "heads": 64, "groups": 64, "inner": 64 * 1000}
    assert of(Sectioned, given) == given | small


def test_stacks_of_as_many_blocks_are_cut_one_after_the_other() -> None:
    """Each with its own list: an encoder and a decoder."""

    class Two(nn.Module):
        def __init__(self, given: Mapping[str, Any]) -> None:
            super().__init__()
            for name, part in given.items():
                if len(part["kinds"]) != part["deep"]:
                    raise ValueError("one for each")
                setattr(self, name, nn.Sequential(*(nn.Linear(32, 32, bias=one == "b") for one in part["kinds"])))

        def forward(self, x: Tensor) -> Tensor:
            x = self.encoder(x)
            return torch.as_tensor(self.decoder(x))

    part = {"deep": 6, "kinds": ["b", "n", "b", "n", "b", "n"]}
    small = {"deep": 4, "kinds": ["b", "n", "b", "n"]}
    assert of(Two, {"encoder": part, "decoder": dict(part)}) == {"encoder": small, "decoder": small}


def test_what_settings_say_of_a_dropout_is_off() -> None:
    """A part of one, and a switch."""

    class Dropped(nn.Module):
        def __init__(self, given: Mapping[str, Any]) -> None:
            super().__init__()
            self.up, self.given = nn.Linear(32, 32, bias=given["bias"]), given

        def forward(self, x: Tensor) -> Tensor:
            x = F.dropout(self.up(x), self.given["part"])
            return F.dropout(x, 0.5) if self.given["on"] else x

    given = {"part": 0.1, "on": True, "bias": True, "eps": 0.01}
    assert of(Dropped, given) == {"part": 0.0, "on": False, "bias": True, "eps": 0.01}


def test_a_model_that_asks_for_values_keeps_its_settings() -> None:
    class Asks(nn.Module):
        def __init__(self, given: Mapping[str, Any]) -> None:
            super().__init__()
            self.up = nn.Linear(32, given["up"])

        def forward(self, x: Tensor) -> Tensor:
            return self.up(x) if x.sum() > 0 else x

    assert of(Asks, {"up": 512}) == {"up": 512}


def test_a_number_that_only_values_tell_to_be_too_small_stays() -> None:
    """Row 40 is looked up, and 32 rows would be enough for twice the tokens."""

    class Looks(nn.Module):
        def __init__(self, given: Mapping[str, Any]) -> None:
            super().__init__()
            self.up, self.kinds = nn.Linear(32, given["up"]), nn.Embedding(given["kinds"], given["up"])

        def forward(self, x: Tensor) -> Tensor:
            return self.up(x) + self.kinds(torch.full(x.shape[:1], 40, device=x.device))

    assert of(Looks, {"up": 512, "kinds": 128}) == {"up": 64, "kinds": 128}


def test_of_numbers_that_only_values_tell_to_be_too_small_those_stay_that_must() -> None:
    """Rows 40 and 50 are looked up in two tables, and row 3 in another, which must not become square."""

    class Looks(nn.Module):
        def __init__(self, given: Mapping[str, Any]) -> None:
            super().__init__()
            self.tables = nn.ModuleList(nn.Embedding(given[name], 32) for name in "abc")

        def forward(self, x: Tensor) -> Tensor:
            rows = (torch.full(x.shape[:1], at, device=x.device) for at in (40, 50, 3))
            return sum((table(at) for table, at in zip(self.tables, rows, strict=True)), start=x)

    assert of(Looks, {"a": 128, "b": 256, "c": 512}) == {"a": 128, "b": 256, "c": 40}


def test_what_nothing_reads_is_as_small_as_can_be() -> None:
    """No rank cuts it, so it may have fewer columns than ranks."""

    class Beside(nn.Module):
        def __init__(self, given: Mapping[str, Any]) -> None:
            super().__init__()
            self.up, self.other = nn.Linear(32, given["up"]), nn.Linear(given["other"], 8)

        def forward(self, x: Tensor) -> Tensor:
            return self.up(x)

    assert of(Beside, {"up": 512, "other": 512}) == {"up": 64, "other": 2}


def test_what_is_drawn_outside_of_torch_is_off() -> None:
    """A mask of numpy's; without it, the parameter that it puts into places is held as before."""

    class Augmented(nn.Module):
        def __init__(self, given: Mapping[str, Any]) -> None:
            super().__init__()
            self.up, self.given = nn.Linear(32, 32), given
            self.put = nn.Parameter(torch.ones(32))

        def forward(self, x: Tensor) -> Tensor:
            if self.given["on"]:
                x = torch.where(torch.tensor(numpy.random.rand(32) > 0.5, device=x.device), self.put, x)
            return self.up(x)

    assert of(Augmented, {"on": True, "wide": True}) == {"on": False, "wide": True}


@pytest.mark.parametrize("given", [{}, {"name": "x"}])
def test_settings_without_numbers_stay(given: dict[str, Any]) -> None:
    assert of(lambda _: nn.Linear(32, 2), given) == given
