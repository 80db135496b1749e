"""Numbers shrink by what one run says of another: made-up models of one line, with answers that are worked out.

Candidates are multiples of 8 and powers of 2 that as much divides as the number, up to 8: of 1000 8, 16, 24 …; of 999
9, 17, 25 …; of 1004, which 4 divides and 8 does not, 12, 20, 28 … Matrices need 64 rows, stacks 8 matrices.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Mapping
from dataclasses import replace
from functools import partial
from typing import Any, NamedTuple, cast

import pytest
from torch import nn

from meshwright.ir.frontends.small import shrink
from meshwright.ir.frontends.small.runs import Run, Step
from meshwright.ir.frontends.small.shrink import shrunk
from meshwright.ir.frontends.torch_.small import trial
from meshwright.ir.frontends.torch_.small.trial import Recipe
from meshwright.ir.frontends.torch_.sources.factory import Hooks
from meshwright.ir.frontends.twin import Scale

SCALE = Scale(layers=2, seq=16, tokens=512)
Held = Mapping[str, tuple[int, ...]]
Made = Callable[[dict[str, Any]], Run | None]


def made(parameters: Held, *steps: Step, buffers: Held | None = None, read: str = "aten::mm") -> Run:
    """A run of a model whose parameters are all read by one operator."""
    return Run(
        parameters=parameters, buffers=buffers or {}, kinds={}, steps=steps, read_by=dict.fromkeys(parameters, read)
    )


class Built(NamedTuple):
    """A model that is made up."""

    given: dict[str, Any]
    made: Run


def held(model: Built) -> Run:
    return replace(model.made, steps=(), read_by=None)


class Trials:
    """Models that are made up stand in for built ones; `tried` has the settings of all that ran."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        self.patch = monkeypatch
        self.tried: list[dict[str, Any]] = []
        self.loss: Callable[[dict[str, Any]], float | None] = lambda _: None

    def shrunk(self, settings: dict[str, Any], model: Made, scale: Scale = SCALE) -> dict[str, Any]:
        def run(built: Built, _: Recipe, given: dict[str, Any], seq: int) -> tuple[Run | None, int]:
            assert seq == scale.seq
            self.tried.append(built.given)
            return built.made, len(built.made.steps)

        def build(_: Recipe, given: dict[str, Any]) -> Built | None:
            found = model(given)
            return None if found is None else Built(given, found)

        self.patch.setattr(trial, "skeleton", held)
        self.patch.setattr(trial, "built", build)
        self.patch.setattr(trial, "run", run)
        self.patch.setattr(trial, "computed", lambda _, given, seq: self.loss(given))
        whole = cast("nn.Module", build(cast("Recipe", None), settings))
        return shrunk(Recipe(settings=settings, build=lambda _: whole, whole=whole, hooks=Hooks(), place=""), scale)


@pytest.fixture
def trials(monkeypatch: pytest.MonkeyPatch) -> Trials:
    return Trials(monkeypatch)


HELD: Mapping[str, tuple[int, Callable[[int], tuple[int, ...]], str, int]] = {
    "rows of a matrix": (1000, lambda n: (n, 16), "aten::mm", 64),
    "columns": (1000, lambda n: (16, n), "aten::mm", 64),
    "an odd number": (999, lambda n: (n, 16), "aten::mm", 65),
    "one that 2 divides": (1002, lambda n: (n, 16), "aten::mm", 66),
    "one that 4 divides": (1004, lambda n: (n, 16), "aten::mm", 68),
    "one that is hardly larger": (72, lambda n: (n, 16), "aten::mm", 64),
    "one that is as small": (64, lambda n: (n, 16), "aten::mm", 64),
    "one that is smaller": (24, lambda n: (n, 16), "aten::mm", 24),
    "no matrix becomes square": (1000, lambda n: (64, n), "aten::mm", 72),
    "one that is square stays so": (1000, lambda n: (n, n), "aten::mm", 64),
    "half of the rows": (1024, lambda n: (n // 2, 16), "aten::mm", 128),
    "a vector": (1000, lambda n: (n,), "aten::mm", 8),
    "an odd vector": (999, lambda n: (n,), "aten::mm", 9),
    "an odd vector, short": (11, lambda n: (n,), "aten::mm", 9),
    "a vector of 9": (9, lambda n: (n,), "aten::mm", 9),
    "a vector of 12": (12, lambda n: (n,), "aten::mm", 12),
    "a vector of 7": (7, lambda n: (n,), "aten::mm", 7),
    "a quarter, which 8 ranks cut": (96, lambda n: (n // 4,), "aten::mm", 32),
    "a part that must not become 1": (648, lambda n: (n // 72,), "aten::mm", 256),
    "a stack": (640, lambda n: (n, 16, 24), "aten::bmm", 8),
    "rows of matrices in a stack": (640, lambda n: (4, n, 24), "aten::bmm", 64),
    "columns of matrices in a stack": (640, lambda n: (4, 24, n), "aten::bmm", 64),
    "none in a stack becomes square": (640, lambda n: (4, n, 64), "aten::bmm", 72),
    "a table that is added": (1000, lambda n: (n, 16), "elementwise", 8),
    "channels of a kernel": (640, lambda n: (n, 16, 3, 3), "convolution", 8),
    "a table": (1000, lambda n: (n, 16), "look-up", 8),
}


def test_the_least_of_a_parameters_dimension(trials: Trials) -> None:
    for name, (number, shape, read, wanted) in HELD.items():

        def model(given: dict[str, Any], shape: Any = shape, read: str = read) -> Run:
            return made({"w": shape(given["n"])}, read=read)

        assert trials.shrunk({"n": number}, model) == {"n": wanted}, name


def step(*shape: int, **more: Any) -> Step:
    return Step(name="aten::any", shapes=(shape,), **more)


RUN: Mapping[str, tuple[int, Callable[[int], tuple[Step, ...]], int]] = {
    "a result": (1000, lambda n: (step(2, n),), 8),
    "a quarter of a result, which 4 ranks cut": (96, lambda n: (step(2, n // 4),), 16),
    "the second of two results": (96, lambda n: (Step(name="aten::any", shapes=((2,), (n // 4,))),), 16),
    "words": (50_257, lambda n: (step(2, 16, rows=n, words=True),), 257),
    "few words": (200, lambda n: (step(2, 16, rows=n, words=True),), 200),
    "positions, two for every token": (2048, lambda n: (step(2, 16, rows=n),), 32),
    "positions, an odd number": (2047, lambda n: (step(2, 16, rows=n),), 33),
    "fewer positions": (24, lambda n: (step(2, 16, rows=n),), 24),
    "what is chosen": (8, lambda n: (step(2, n, chosen=(n, 32)),), 2),
    "what is chosen, 4 of them": (4, lambda n: (step(2, n, chosen=(n, 32)),), 2),
    "what is chosen, 3 of them": (3, lambda n: (step(2, n, chosen=(n, 32)),), 2),
    "all are chosen": (8, lambda n: (step(2, n, chosen=(n, 8)),), 8),
    "half are chosen": (8, lambda n: (step(2, n, chosen=(n, 2 * n)),), 2),
    "what two are chosen from": (64, lambda n: (step(2, n, chosen=(2, n)),), 4),
    "what one is chosen from": (64, lambda n: (step(2, n, chosen=(1, n)),), 2),
    "what three are chosen from": (64, lambda n: (step(2, n, chosen=(3, n)),), 4),
    "what is looked up, and chosen from": (64, lambda n: (step(2, n, chosen=(2, n)), step(2, rows=n)), 4),
    "what is looked up, beside a choice": (64, lambda n: (step(2, n, chosen=(2, 63)), step(2, rows=n)), 32),
}


def test_the_least_of_what_runs(trials: Trials) -> None:
    for name, (number, steps, wanted) in RUN.items():

        def model(given: dict[str, Any], steps: Any = steps) -> Run:
            return made({"w": (5,)}, *steps(given["n"]))

        assert trials.shrunk({"n": number}, model) == {"n": wanted}, name


def test_words_of_the_models_own_batches_stay_in_the_table(trials: Trials) -> None:
    """Of 300, so that 257 are too few; 513 comes next."""
    scale = Scale(layers=2, seq=16, tokens=512, words=300)
    words = trials.shrunk({"n": 50_257}, lambda given: made({}, step(2, rows=given["n"], words=True)), scale)
    places = trials.shrunk({"n": 2048}, lambda given: made({}, step(2, rows=given["n"])), scale)
    assert (words, places) == ({"n": 513}, {"n": 32})


def test_buffers_are_cut_like_results(trials: Trials) -> None:
    assert trials.shrunk({"n": 96}, lambda given: made({}, buffers={"b": (given["n"] // 4,)})) == {"n": 16}


def test_where_matrices_are_stacked_their_number_may_be_less_than_rows(trials: Trials) -> None:
    """The router's rows are as many as matrices; rows of nothing else are."""

    def model(given: dict[str, Any]) -> Run:
        return made({"router": (given["n"], 32), "stack": (given["n"], 16, 24)})

    assert trials.shrunk({"n": 512}, model) == {"n": 8}


@pytest.mark.parametrize(("rows", "wanted"), [(1, 8), (2, 1000)])
def test_nothing_shrinks_that_makes_the_whole_larger(rows: int, wanted: int, trials: Trials) -> None:
    """A result grows by as much as a vector shrinks, in one row or in two."""
    found = trials.shrunk({"n": 1000}, lambda given: made({"w": (given["n"],)}, step(rows, 9000 - given["n"])))
    assert found == {"n": wanted}


@pytest.mark.parametrize(
    "other",
    [
        made({"w": (8,), "more": (1,)}),
        made({"w": (8, 1)}),
        made({"w": (8,)}, step(2)),
        made({"w": (8,)}, buffers={"b": (1,)}),
        None,
    ],
)
def test_a_number_stays_where_the_model_becomes_another(other: Run | None, trials: Trials) -> None:
    found = trials.shrunk({"n": 16}, lambda given: made({"w": (16,)}) if given["n"] == 16 else other)
    assert found == {"n": 16}


def test_operators_are_told_by_their_names_and_the_ranks_of_results(trials: Trials) -> None:
    for other in (Step(name="aten::other", shapes=((2,),)), step(2, 1), Step(name="aten::any", shapes=((2,), (2,)))):
        runs = {16: made({"w": (16,)}, step(2)), 8: made({"w": (8,)}, other)}
        assert trials.shrunk({"n": 16}, lambda given, runs=runs: runs.get(given["n"])) == {"n": 16}  # type: ignore[misc]


def test_what_is_tried_begins_where_dimensions_are_large_enough(trials: Trials) -> None:
    """What 8 makes it hold says so, without a run: 508 rows fewer for 1,016 less. 60 more than its 4 need 120 more than
    8. Of three rows for each, 40 more than its 24 are needed, which is 14 more than 8: 24, the next multiple of 8 from
    22 on."""
    assert trials.shrunk({"n": 1024}, lambda given: made({"w": (given["n"] // 2, 16)}))["n"] == 128
    assert [given["n"] for given in trials.tried] == [1024, 128]
    trials.tried.clear()
    trials.shrunk({"n": 1000}, lambda given: made({"w": (3 * given["n"], 16), "v": (given["n"],)}))
    assert [given["n"] for given in trials.tried] == [1000, 24]


def test_what_is_too_small_or_square_by_what_it_holds_is_not_run(trials: Trials) -> None:
    """64 is square."""
    assert trials.shrunk({"n": 1000}, lambda given: made({"w": (64, given["n"])}, step(2)))["n"] == 72
    assert [given["n"] for given in trials.tried] == [1000, 72]


def test_what_a_run_lacks_says_where_to_go_on(trials: Trials) -> None:
    """Of 50,257 words 9 are too few, which only a run says: 257 are next."""
    trials.shrunk({"n": 50_257}, lambda given: made({}, step(2, rows=given["n"], words=True)))
    assert [given["n"] for given in trials.tried] == [50_257, 9, 257]


def test_settings_that_are_impossible_take_the_work_of_building_alone(trials: Trials) -> None:
    """Work of 1 for each, and of 1,001 for a run; the 16 that are impossible are tried, and the next one."""
    trials.patch.setattr(shrink, "WORK", 2_100)
    steps = tuple(step(2) for _ in range(1_000))

    def model(given: dict[str, Any]) -> Run | None:
        return made({"w": (given["n"],)}, *steps) if given["n"] >= 128 else None

    assert trials.shrunk({"n": 4096}, model) == {"n": 128}


@pytest.mark.parametrize(("most", "runs"), [(29, 10), (30, 11), (31, 11)])
def test_no_more_is_tried_than_the_limit(most: int, runs: int, trials: Trials) -> None:
    """Every trial is work of 3: a parameter, a buffer, a step. No candidate will do, since a result of 8 becomes 6; and
    there are more than 11."""
    trials.patch.setattr(shrink, "WORK", most)

    def model(given: dict[str, Any]) -> Run:
        return made({"w": (given["n"],)}, step(8 if given["n"] == 4096 else 6), buffers={"b": (2,)})

    assert trials.shrunk({"n": 4096}, model) == {"n": 4096}
    assert len(trials.tried) == runs


def test_numbers_anywhere_in_the_settings(trials: Trials) -> None:
    """In tables, lists and tuples, which stay what they are; what sizes nothing stays, and what is no number."""
    given = {"inner": {"a": 512, "text": "512"}, "listed": [1024, 7], "pair": (640, True), "none": None, "inert": 999}

    def model(given: dict[str, Any]) -> Run:
        return made({"a": (given["inner"]["a"],), "b": (given["listed"][0],), "c": (given["pair"][0],)})

    found = trials.shrunk(given, model)
    assert found == given | {"inner": {"a": 8, "text": "512"}, "listed": [8, 7], "pair": (8, True)}
    assert isinstance(found["pair"], tuple)


# Numbers that go together --------------------------------------------------------------------------------------------


def test_equal_numbers_follow_one_that_cannot_shrink_alone(trials: Trials) -> None:
    """But not those that change nothing by themselves."""

    def model(given: dict[str, Any]) -> Run | None:
        return made({"w": (given["a"], 16)}) if given["a"] == given["b"] else None

    assert trials.shrunk({"a": 512, "b": 512, "c": 512}, model) == {"a": 64, "b": 64, "c": 512}


def test_multiples_follow_in_proportion(trials: Trials) -> None:
    """No equal number goes with it; 1,536 and 512 are three and one times 512."""

    def model(given: dict[str, Any]) -> Run | None:
        return made({"w": (given["b"], given["a"])}) if given["b"] == 3 * given["a"] else None

    assert trials.shrunk({"a": 512, "b": 1536, "c": 768}, model) == {"a": 64, "b": 192, "c": 768}


def test_multiples_beside_follow_where_those_of_another_part_cannot(trials: Trials) -> None:
    """A model of several parts has its own numbers in each, and one may be a multiple of another's by chance."""

    def model(given: dict[str, Any]) -> Run | None:
        text, image = given["text"], given["image"]["c"]
        fits = text["b"] == 3 * text["a"] and image % 96 == 0 and image >= 960
        return made({"w": (text["b"], text["a"]), "v": (image, 16)}) if fits else None

    found = trials.shrunk({"text": {"a": 512, "b": 1536}, "image": {"c": 1536}}, model)
    assert found["text"] == {"a": 64, "b": 192}


@pytest.mark.parametrize("pads", [["p"], ["p", "q"]])
def test_indices_follow_what_they_must_be_below(pads: list[str], trials: Trials) -> None:
    """The word that pads is the last one of the small table; one that is below it anyhow stays."""

    def model(given: dict[str, Any]) -> Run | None:
        below = all(given[name] < given["n"] for name in (*pads, "low"))
        return made({"w": (given["n"], 16)}, step(2, rows=given["n"], words=True), read="look-up") if below else None

    given = {"n": 1000, "low": 200, **{name: 999 - at for at, name in enumerate(pads)}}
    assert trials.shrunk(given, model) == {"n": 256, "low": 200, **dict.fromkeys(pads, 255)}


def test_indices_follow_where_the_model_would_run_other_operators(trials: Trials) -> None:
    """An index past the end of the table is one that the model treats apart."""

    def model(given: dict[str, Any]) -> Run:
        apart = (step(2, 3),) if given["image"] >= given["n"] else ()
        looked_up = step(2, rows=given["n"], words=True)
        return made({"w": (given["n"], 16)}, looked_up, *apart, read="look-up")

    assert trials.shrunk({"n": 1000, "image": 998}, model) == {"n": 256, "image": 255}


# Blocks --------------------------------------------------------------------------------------------------------------


def stacked(kinds: str, width: int = 5) -> Run:
    """A list of blocks by letters; each holds a vector, and one of a and b another."""
    parameters = {f"blocks.{at}.{kind}": (width,) for at, kind in enumerate(kinds)}
    return Run(
        parameters=parameters,
        buffers={},
        kinds={"blocks": Counter((kind,) for kind in kinds)},
        steps=tuple(step(2, width) for _ in kinds),
        read_by=dict.fromkeys(parameters, "aten::mm"),
    )


@pytest.mark.parametrize(
    ("first", "deep", "wanted"), [(0, 12, 2), (1, 12, 3), (2, 12, 4), (5, 12, 7), (0, 3, 2), (11, 12, 12), (0, 2, 2)]
)
def test_of_every_kind_of_blocks_two_are_left_or_all(first: int, deep: int, wanted: int, trials: Trials) -> None:
    """The first so many are of another kind, and shrink by themselves to none that the model can do without."""

    def model(given: dict[str, Any]) -> Run:
        return stacked("".join("a" if at < first else "b" for at in range(given["deep"])))

    assert trials.shrunk({"deep": deep}, model) == {"deep": wanted}


@pytest.mark.parametrize(("least", "wanted"), [(2, 2), (4, 4), (9, 9), (10, 10), (11, 14), (19, 20)])
def test_some_more_blocks_are_tried(least: int, wanted: int, trials: Trials) -> None:
    """Eight numbers of blocks, from two on; then every fourth."""
    found = trials.shrunk({"deep": 20}, lambda given: stacked("a" * given["deep"]) if given["deep"] >= least else None)
    assert found == {"deep": wanted}


def test_what_does_not_run_with_few_blocks_keeps_all(trials: Trials) -> None:
    def model(given: dict[str, Any]) -> Run:
        return stacked("a" * given["deep"])

    whole = Built({}, model({"deep": 12}))
    trials.patch.setattr(trial, "skeleton", held)
    trials.patch.setattr(trial, "built", lambda _, given: Built(given, model(given)))
    trials.patch.setattr(trial, "run", lambda *_: (None, 0))
    stands_in = cast("nn.Module", whole)
    recipe = Recipe(settings={"deep": 12}, build=lambda _: stands_in, whole=stands_in, hooks=Hooks(), place="")
    assert shrunk(recipe, SCALE) == {"deep": 12}


def test_blocks_are_counted_by_what_is_no_length_of_a_list(trials: Trials) -> None:
    """Pairs of them; two pairs are left."""
    assert trials.shrunk({"pairs": 6}, lambda given: stacked("ab" * given["pairs"])) == {"pairs": 2}


def test_what_counts_blocks_and_sizes_others_stays(trials: Trials) -> None:
    assert trials.shrunk({"deep": 24}, lambda given: stacked("a" * given["deep"], width=given["deep"])) == {"deep": 24}


@pytest.mark.parametrize("cut", [True, False])
def test_lists_as_long_as_the_blocks_are_cut_or_not(cut: bool, trials: Trials) -> None:
    """Wherever they stand; others are not."""
    given = {"deep": 6, "inner": {"kinds": ["x"] * 6, "few": ["x"] * 5}, "pair": (("y",) * 6, 1.5)}

    def model(given: dict[str, Any]) -> Run | None:
        fits = len(given["inner"]["kinds"]) == (given["deep"] if cut else 6)
        return stacked("a" * given["deep"]) if fits else None

    inner = {"kinds": ["x"] * (2 if cut else 6), "few": ["x"] * 5}
    assert trials.shrunk(given, model) == {"deep": 2, "inner": inner, "pair": given["pair"]}


def test_entries_by_the_index_of_a_block_go_with_it(trials: Trials) -> None:
    """Where all names are such indices; no other table loses one."""
    given = {"deep": 6, "of": {"01": {"n": 3}, "5": {"n": 3}}, "words": {"1": "x", "5": "y", "6": "z"}, "none": {}}

    def model(given: dict[str, Any]) -> Run | None:
        return stacked("a" * given["deep"]) if all(int(at) < given["deep"] for at in given["of"]) else None

    assert trials.shrunk(given, model) == given | {"deep": 2, "of": {"01": {"n": 3}}}


# Chances and limits --------------------------------------------------------------------------------------------------


def dropped(rate: float) -> tuple[Step, ...]:
    return (Step(name="aten::dropout", shapes=((2, 4),), chances=(rate,)),) if rate else ()


@pytest.mark.parametrize(
    ("given", "wanted"),
    [
        ({"p": 0.1}, {"p": 0.0}),
        ({"p": 0.1, "eps": 0.5, "one": 1.0}, {"p": 0.0, "eps": 0.5, "one": 1.0}),
        ({"p": 1.0}, {"p": 1.0}),
        ({"p": 0.1, "on": True}, {"p": 0.0, "on": True}),
        ({"on": True, "p": 1.0}, {"on": False, "p": 1.0}),
        ({"on": False, "p": 0.1}, {"on": False, "p": 0.1}),
        ({"p": 0.1, "wide": True}, {"p": 0.0, "wide": True}),
        ({"wide": True, "p": 1.0}, {"wide": True, "p": 1.0}),
        ({"p": 0.1, "held": True}, {"p": 0.0, "held": True}),
        ({"held": True, "p": 1.0}, {"held": True, "p": 1.0}),
    ],
)
def test_chances_become_nothing_and_switches_are_turned_off(
    given: dict[str, Any], wanted: dict[str, Any], trials: Trials
) -> None:
    """Numbers before switches, until nothing is random. `on` switches what is random; `wide` and `held`, without which
    nothing is random either, other shapes and parameters too. Nothing but a part of one is a chance."""

    def model(given: dict[str, Any]) -> Run:
        wide, held, on = given.get("wide", True), given.get("held", True), given.get("on", True)
        return made(
            {"w": (4,)} | ({"v": (4,)} if held else {}),
            step(2, 5 if wide else 4),
            *dropped(given["p"] if on and wide and held else 0),
            step(2, 6),
        )

    assert trials.shrunk(given, model) == wanted


def test_all_other_operators_run_in_their_order(trials: Trials) -> None:
    """What is random stands where another operator would otherwise."""
    first, second = Step(name="aten::a", shapes=((2,),)), Step(name="aten::b", shapes=((2,),))
    runs = {0.5: made({}, first, *dropped(0.5), second), 0.0: made({}, second, first)}
    assert trials.shrunk({"p": 0.5}, lambda given: runs[given["p"]]) == {"p": 0.5}


def limited(trials: Trials, given: dict[str, Any], loss: Callable[[dict[str, Any]], float | None]) -> dict[str, Any]:
    trials.loss = loss
    return trials.shrunk(given, lambda _: made({"w": (4,)}))


def test_windows_are_half_of_the_tokens(trials: Trials) -> None:
    """Of 16; one that the workload's 512 tokens do not meet stays, and so does what changes no loss at all."""
    given = {"u": 128, "met": 511, "far": 512, "inert": 99, "small": 16}

    def loss(given: dict[str, Any]) -> float:
        return min(given["u"], 16) + 100.0 * min(given["met"], 16) + 10_000.0 * min(given["far"], 16)

    assert limited(trials, given, loss) == given | {"u": 8, "met": 8}


def test_what_a_short_sequence_meets_is_no_window(trials: Trials) -> None:
    """Twice as much changes the loss; or half of the tokens is no possible value; or there is no loss."""
    assert limited(trials, {"u": 128}, lambda given: given["u"]) == {"u": 128}
    assert limited(trials, {"u": 128}, lambda given: 1.0 if given["u"] >= 16 else None) == {"u": 128}
    assert limited(trials, {"u": 128}, lambda _: None) == {"u": 128}


@pytest.mark.parametrize(("most", "wanted"), [(4, 8), (3, 128)])
def test_no_loss_is_computed_of_what_is_too_large(most: int, wanted: int, trials: Trials) -> None:
    """The model holds four numbers and makes none."""
    trials.patch.setattr(shrink, "MOST_VALUES", most)
    assert limited(trials, {"u": 128}, lambda given: min(given["u"], 16)) == {"u": wanted}


def test_what_sizes_results_is_no_window(trials: Trials) -> None:
    """A stride that is as long as the image: a longer one is the same, and a shorter one makes more of it. A mask that
    is made only where a window is met is another operator."""
    trials.loss = lambda given: min(given["u"], 32)

    def model(given: dict[str, Any], shape: Any) -> Run:
        return made({"w": (5,)}, *shape(min(given["u"], 32)))

    for shape, wanted in ((lambda u: (step(2, 32 // u + 6),), 64), (lambda u: (step(2),) * (2 - u // 32), 8)):
        assert trials.shrunk({"u": 64}, partial(model, shape=shape)) == {"u": wanted}


def test_a_window_is_none_whose_double_is_another_model(trials: Trials) -> None:
    trials.loss = lambda given: min(given["u"], 16)
    found = trials.shrunk({"u": 17}, lambda given: made({"w": (4,)}, *dropped(0.5 if given["u"] == 34 else 0)))
    assert found == {"u": 17}
