"""Pins by module pattern: read, held against a model, kept by templates, by the block solver and by saved plans."""

from __future__ import annotations

import json
from copy import copy
from dataclasses import replace
from itertools import product, takewhile
from pathlib import Path
from typing import Any

import pytest

from meshwright.backends.torch_.verify.interpreted.step import step_differences
from meshwright.ir.decisions.decisions import Decisions
from meshwright.ir.errors import (
    ConstraintsContradict,
    MeshwrightError,
    ModulePinUneven,
    ModulePinUnmatched,
    ModulePinUnmet,
    PinUnknown,
    PinValue,
    PlanBroken,
)
from meshwright.ir.graph.fold import Body, Fold, FromInput, FromPrevious, Segment
from meshwright.ir.names import Degrees, template
from meshwright.ir.names.pinned import Allowed
from meshwright.ir.sharding.adjoint import Split
from meshwright.ir.sharding.mesh import Mesh
from meshwright.planner.answer.relax import relaxations
from meshwright.planner.answer.solve import solve as solve_all
from meshwright.planner.block.build import build
from meshwright.planner.block.plan import Block, body_plan
from meshwright.planner.block.space import Space
from meshwright.planner.block_solver import brute
from meshwright.planner.block_solver.methods import solve
from meshwright.planner.cli.main import main
from meshwright.planner.plan.file import load_plan
from meshwright.planner.plan.reload import reload
from meshwright.planner.question.module_pins import (
    ModulePin,
    apart,
    check_held,
    covers,
    module_paths,
    read_module_pin,
    resolved,
)
from meshwright.planner.refine.operators.operators import Operators
from tests.build import Builder
from tests.planner.block.settings import terms
from tests.planner.block.test_build import small
from tests.planner.refining import Case, hosts
from tests.planner.solved import ARGV, question
from tests.planner.test_operators import EXPERTS, TOY, toy_case
from tests.planner.test_relax import PINS
from tests.planner.test_relax import small as tight

ANY = (*ARGV, "--target", "any")
"""Torch targets have an axis do the same in all operators of a body, which pins here ask otherwise."""
ROUNDING = 1e-9
GROUPED = 1.01
"""Groups share one choice, so a little is lost where a pin tears at one."""


@pytest.fixture(scope="module")
def toy(tmp_path_factory: pytest.TempPathFactory) -> Case:
    return toy_case(tmp_path_factory.mktemp("models"), TOY)


@pytest.fixture(scope="module")
def experts(tmp_path_factory: pytest.TempPathFactory) -> Case:
    return toy_case(tmp_path_factory.mktemp("models"), EXPERTS)


def pins_of(*words: str) -> tuple[ModulePin, ...]:
    """From `fix PIN` and the like."""
    return tuple(pin for text in words for pin in apart({text.split(" ")[0]: [text.split(" ")[1]]})[1])


def pinned(case: Case, *words: str) -> Case:
    """The same case with something asked of modules."""
    own = copy(case)
    own.setting = replace(case.setting, modules=pins_of(*words), bodies={})
    return own


# Reading -------------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("pattern", "path", "meant"),
    [
        ("blocks.*.mlp", "blocks.3.mlp", True),
        ("blocks.*.mlp", "blocks.3.mlp.up", True),
        ("blocks.*.mlp", "blocks.3", False),
        ("blocks.*", "blocks.3.mlp", True),
        ("*.mlp", "blocks.3.mlp", False),
        ("**.mlp", "blocks.3.mlp.up", True),
        ("**", "head", True),
        ("blocks.[01].mlp", "blocks.2.mlp", False),
        ("blocks.?.m*", "blocks.1.mlp", True),
    ],
)
def test_patterns(pattern: str, path: str, *, meant: bool) -> None:
    assert covers(pattern, path) == meant


def test_modules_and_configurations_are_told_apart() -> None:
    plain, found = apart(
        {"fix": ["tp=2,a.*:sharding=row", "recompute=selective:core_attn+layernorm"], "forbid": ["cp"]}
    )
    assert plain == {"fix": ["tp=2", "recompute=selective:core_attn+layernorm"], "forbid": ["cp"]}
    assert [str(pin) for pin in found] == ["--fix a.*:sharding=row"]


@pytest.mark.parametrize(
    ("word", "kind", "said"),
    [
        ("fix blocks.*:shard=row", PinUnknown, "did you mean 'sharding'?"),
        ("fix blocks.*:sharding=colum", PinValue, "did you mean 'column'?"),
        ("fix blocks.*:sharding", PinValue, "blocks.*:sharding=replicate"),
        ("fix :sharding=row", PinValue, "there is no module"),
        ("fix blocks.*:sharding=row|column", PinValue, "--allow 'blocks.*:sharding=row|column'"),
        ("forbid blocks.*:split=hedas", PinValue, "did you mean 'heads'?"),
        ("fix block.*.feed_forward:sharding=row", ModulePinUnmatched, "did you mean 'blocks.*.feed_forward'?"),
        ("fix zzz:sharding=row", ModulePinUnmatched, "name one of its modules: embedding, "),
        ("fix blocks.*.feed_forward:sharding=expert", ModulePinUnmatched, "use column, row, replicate"),
        ("fix norm:sharding=row", ModulePinUnmatched, "pin its split instead"),
        ("fix blocks.1.feed_forward:sharding=row", ModulePinUneven, "and not blocks.0.feed_forward"),
    ],
)
def test_what_means_nothing_is_refused_with_what_is_near(
    toy: Case, word: str, kind: type[MeshwrightError], said: str
) -> None:
    with pytest.raises(kind) as caught:
        resolved(pins_of(word), toy.setting.folds.first(2).fold)
    assert said in str(caught.value)
    assert str(caught.value).startswith(f"error {kind.code} at --{word.split(' ', maxsplit=1)[0]} ")


READ = {
    "a.*.b : sharding = row | column|row": ("allow", "a.*.b", "sharding", ("row", "column")),
    "**:recompute=on": ("fix", "**", "recompute", ("on",)),
    "a:b:split=heads|none|": ("forbid", "a:b", "split", ("heads", "none")),
    "a:split=anything": ("fix", "a", "split", ("anything",)),
}
MISREAD = {
    "a:sharding=row|column": ("fix", "2 values are fixed", "write --allow 'a:sharding=row|column'"),
    "a:sharding": ("fix", "there is no value", "write a:sharding=replicate, for instance"),
    "a:recompute=|": ("allow", "there is no value", "write a:recompute=on, for instance"),
    "a:split=": ("fix", "there is no value", "write a:split=heads, for instance"),
    ":split=b": ("fix", "there is no module", "write model.layers.*.mlp:split, for instance"),
    "a:qqqqqq=b": ("fix", "'qqqqqq' cannot be pinned of a module", "use sharding, split, recompute"),
    "a:recompute=qqqqqq": ("forbid", "'qqqqqq' is no value of it", "use on, off"),
    "a:sharding=rov": ("fix", "'rov' is no value of it", "did you mean 'row'?"),
}


def test_pins_as_they_are_read_and_refused() -> None:
    for text, (option, *rest) in READ.items():
        found = read_module_pin(text, option)
        assert (found.option, found.pattern, found.what, found.values) == (option, *rest)
        assert found.only == (option != "forbid")
    for text, (option, cause, fix) in MISREAD.items():
        with pytest.raises(MeshwrightError) as refused:
            read_module_pin(text, option)
        assert (refused.value.place, refused.value.cause, refused.value.fix) == (f"--{option} {text}", cause, fix)


def test_words_of_options_are_told_apart_by_their_colon() -> None:
    """Of several words and options in order; one that is said twice is one."""
    plain, found = apart(
        {"fix": ["tp=2,a:split=b", "a:split=b"], "allow": ["recompute=a:b"], "forbid": ["b:split=s,cp"]}
    )
    assert plain == {"fix": ["tp=2"], "allow": ["recompute=a:b"], "forbid": ["cp"]}
    assert [str(pin) for pin in found] == ["--fix a:split=b", "--forbid b:split=s"]


def test_contradictions_name_both_pins_and_the_module(toy: Case) -> None:
    words = ("fix blocks.*.feed_forward:sharding=column", "forbid **.up_proj:sharding=column")
    with pytest.raises(ConstraintsContradict) as caught:
        resolved(pins_of(*words), toy.setting.folds.first(2).fold)
    assert caught.value.place == " ".join(f"--{word}" for word in words)
    assert caught.value.cause.endswith("no sharding of blocks.0.feed_forward.up_proj")


def test_module_paths(toy: Case) -> None:
    found = module_paths(toy.setting.folds.first(2).fold)
    assert {"embedding", "blocks.*", "blocks.*.attention.o_proj", "head"} <= set(found)


def test_a_weight_means_its_readers(toy: Case) -> None:
    fold = toy.setting.folds.first(2).fold
    found = resolved(pins_of("forbid blocks.*.*.o_proj.weight:sharding=row"), fold).bodies
    assert found == {"Block": {"linear_4": Allowed(sharding=frozenset({"column", "replicate"}))}}


# Plans ---------------------------------------------------------------------------------------------------------------


def linears(decisions: Decisions, fold: Fold, body: str, part: str) -> list[set[str]]:
    """For every product inside a module, the factors that axes cut: `n` is what it makes, `k` what it sums over."""
    (plan,) = (plan for plan in decisions.plans if plan.body == body)
    ops = [op for op in fold.body[body].graph.ops if op.kind == "linear" and part in op.module]
    assert ops
    choices = [[choice for _, choice in plan.strategy(op.name).choices if isinstance(choice, Split)] for op in ops]
    return [{name for choice in own for name in choice.factors} for own in choices]


FACTORS = {"column": ("n", "k"), "row": ("k", "n")}


@pytest.mark.parametrize(("word", "degrees"), [("column", "tp=2,dp=2,zero=1"), ("row", "dp=4,zero=3")])
def test_a_fixed_sharding_is_in_the_plan_and_exact(toy: Case, word: str, degrees: str) -> None:
    """In the template, and in what the block solver makes of it; both equal the model, on simulated devices."""
    case = pinned(toy, f"fix blocks.*.feed_forward:sharding={word}")
    fold, plan = case.plan(degrees)
    wanted, other = FACTORS[word]
    start = case.given(fold, plan)
    found = Operators().chosen(start, case.bench())
    assert found.worth <= start.worth
    for decisions in (plan, found.decisions):
        cuts = linears(decisions, fold, "Block", "feed_forward")
        assert all(wanted in own and other not in own for own in cuts)
        assert step_differences(fold, decisions) == []


def test_replicated_weights_are_whole(toy: Case) -> None:
    case = pinned(toy, "fix blocks.*.feed_forward:sharding=replicate")
    fold, plan = case.plan("tp=2,dp=2,zero=1")
    best = Operators().chosen(case.given(fold, plan), case.bench()).decisions
    for decisions in (plan, best):
        assert all(cuts.isdisjoint({"n", "k"}) for cuts in linears(decisions, fold, "Block", "feed_forward"))
        assert step_differences(fold, decisions) == []


@pytest.mark.parametrize(
    "words",
    [
        ("forbid blocks.*.attention:split=heads",),
        ("fix embedding:sharding=column", "fix head:sharding=row"),
        ("allow **:split=b|none",),
        ("fix blocks.*.attention:recompute=on", "fix head:recompute=on"),
    ],
)
def test_all_kinds_of_pins_are_held_and_exact(toy: Case, words: tuple[str, ...]) -> None:
    case = pinned(toy, *words)
    fold, plan = case.plan("tp=2,dp=2,zero=1")
    best = Operators().chosen(case.given(fold, plan), case.bench()).decisions
    for decisions in (plan, best):
        check_held(decisions, fold, case.setting.modules)
    assert step_differences(fold, best) == []
    unpinned = toy.plan("tp=2,dp=2,zero=1")[1]
    with pytest.raises(ModulePinUnmet):
        check_held(unpinned, fold, case.setting.modules)


def test_recomputation_is_taken_back_inside_a_module(toy: Case) -> None:
    case = pinned(toy, "fix blocks.*.feed_forward:recompute=off")
    fold, plan = case.plan("dp=4,zero=1,recompute=full")
    made = {v for op in fold.body["Block"].graph.ops if "feed_forward" in op.module for v in op.results}
    again = set(plan.plan["Block"].recompute)
    assert {value for value in made if value in again} == {
        v for op in fold.body["Block"].graph.ops if op.module == "feed_forward_norm" for v in op.results
    }
    assert step_differences(fold, plan) == []


def test_experts(experts: Case) -> None:
    """Experts apart, as the block solver has them; or whole, where that is asked for."""
    for word, cut in (("expert", True), ("replicate", False)):
        case = pinned(experts, f"fix blocks.*.feed_forward:sharding={word}")
        fold, plan = case.plan("tp=2,dp=2,ep=2,zero=1")
        made = Operators().chosen(case.given(fold, plan), case.bench()).decisions if cut else plan
        check_held(made, fold, case.setting.modules)
        assert step_differences(fold, made) == []
        text = [
            str(dict(one.strategies).get(op.name, ""))
            for one in made.plans
            for op in fold.body[one.body].graph.ops
            if op.kind.startswith("grouped")
        ]
        assert text
        assert all(("=e" in own) == cut for own in text)


def test_one_device_cannot_cut(tmp_path: Path) -> None:
    (tmp_path / "toy.toml").write_text(TOY, encoding="utf-8")
    case = Case(str(tmp_path / "toy.toml"), hosts(1, per_host=1), seq=16, batch=4)
    with pytest.raises(ModulePinUnmet, match="no axis"):
        pinned(case, "fix head:sharding=row").plan("tp=1")


# The block solver ----------------------------------------------------------------------------------------------------

CUTS: dict[str, set[str]] = {"column": {"n"}, "row": {"k"}, "replicate": set()}


def does(block: Block, chosen: tuple[int, ...], op: str) -> set[str]:
    """Which of its weight's factors axes cut in an operator."""
    made = body_plan(block, chosen).strategy(op).choices
    return {name for _, choice in made if isinstance(choice, Split) for name in choice.factors} & {"n", "k"}


@pytest.mark.parametrize(("first", "second"), [*product(CUTS, repeat=2)])
def test_the_solver_finds_the_best_of_what_is_left(first: str, second: str) -> None:
    """Of all choices of the free problem, one by one, those that do what is asked: the least of them. A partial sum
    passes no activation, so the first product stands alone where it is to leave one."""
    mesh, fold = Mesh.parse("a=2"), small()
    ops = {op.name: word for op, word in zip(_products(fold), (first, second), strict=True)}
    setting = terms(mesh, batch=4, seq=8)
    pins = {name: Allowed(sharding=frozenset({word})) for name, word in ops.items()}
    for joined in (first != "row", False):
        free = build(fold, "block", mesh, setting, Space(zero=0, joined=joined))
        bound = build(fold, "block", mesh, setting, Space(zero=0, joined=joined, pins=pins))
        legal = (
            free.problem.objective(chosen)
            for chosen in brute.choices(free.problem)
            if all(does(free, chosen, name) == CUTS[word] for name, word in ops.items())
        )
        answer = solve(bound.problem)
        assert answer.objective == pytest.approx(min(legal), rel=ROUNDING)
        assert all(does(bound, answer.states, name) == CUTS[word] for name, word in ops.items())
    grouped = solve(build(fold, "block", mesh, setting, Space(zero=0, pins=pins)).problem).objective
    assert answer.objective is not None
    assert grouped is not None
    assert answer.objective * (1 - ROUNDING) <= grouped <= answer.objective * GROUPED


def _products(fold: Fold) -> list[Any]:
    return [op for op in fold.body["block"].graph.ops if op.kind == "linear"]


# The command ---------------------------------------------------------------------------------------------------------

COLUMN = "blocks.*.feed_forward:sharding=column"


@pytest.fixture(scope="module")
def saved(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("plan")
    assert main([*ANY, "--json", "--out", str(folder), "--fix", f"tp=2,{COLUMN}"]) == 0
    return folder


def test_the_plan_does_it_and_says_so(saved: Path, capsys: pytest.CaptureFixture[str]) -> None:
    found = json.loads((saved / "plan.json").read_text())
    assert found["bounds"]["space"]["modules"] == [{"option": "fix", "pin": COLUMN}]
    (block,) = (one for one in found["placements"].values() if one["body"] == "Block")
    names = [f"linear{number}" for number in ("_5", "_6", "_7")]
    assert all("=n" in block["strategies"][name] and "=k" not in block["strategies"][name] for name in names)
    assert {"kind": "constraint", "what": f"--fix {COLUMN}"} in found["binding_constraints"]
    capsys.readouterr()
    assert main(["explain", str(saved)]) == 0
    said = capsys.readouterr().out
    assert f"--fix {COLUMN}" in said
    assert "nothing that was searched is faster, the pins of modules left" in said


def test_the_bound_is_that_of_the_space_without(saved: Path) -> None:
    """The price of the best of all configurations with tp=2: whatever is asked of modules, and not refined."""
    found = load_plan(saved).bounds
    ask, setting, wished = question(*ANY, "--fix", "tp=2")
    free = solve_all(ask, setting, wished).search.best
    assert free is not None
    assert found.complete
    assert found.lower == pytest.approx(min(free.step_s, found.upper), rel=ROUNDING)


def _out(capsys: pytest.CaptureFixture[str], *argv: str) -> str:
    capsys.readouterr()
    main(list(argv))
    return capsys.readouterr().out


def test_a_plan_taken_up_again_keeps_its_pins(saved: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """Why not tp=4: the best plan that is, and still does it. `diff` changes pins and keeps them too."""
    answer = json.loads(_out(capsys, "explain", str(saved), "--why-not", "tp=4", "--json"))["why_not"]
    assert main([*ANY, "--json", "--fix", f"tp=4,{COLUMN}"]) == 0
    other = json.loads(capsys.readouterr().out)
    assert answer["rival"]["step_time_s"] == other["predicted"]["step_time_s"]
    argv = ("explain", str(saved), "--why-not", COLUMN.replace("column", "replicate"), "--json")
    answer = json.loads(_out(capsys, *argv))["why_not"]
    assert answer["modules"] == [COLUMN.replace("column", "replicate")]
    assert answer["rival"]["config"]["tp"] == 2
    changed = json.loads(_out(capsys, "diff", str(saved), "tp=4", "--json"))
    assert changed["b"]["config"]["tp"] == 4


def test_a_plan_that_does_not_do_what_it_says_is_refused(saved: Path, tmp_path: Path) -> None:
    text = (saved / "plan.json").read_text()
    (tmp_path / "plan.json").write_text(text.replace(COLUMN, COLUMN.replace("column", "row")))
    with pytest.raises(PlanBroken, match="it is to have sharding=row, and has not"):
        reload(load_plan(tmp_path))
    (tmp_path / "plan.json").write_text(text.replace('"option": "fix"', '"option": "hope"'))
    with pytest.raises(PlanBroken, match="option"):
        load_plan(tmp_path)


def test_nothing_can_be_so_and_what_would_help(capsys: pytest.CaptureFixture[str]) -> None:
    """One device has no axis: exit 3, and the pin to take back, tried."""
    argv = (ARGV[0], "--cluster", "1x1xA100", "--global-batch", "8", "--seq", "64")
    assert main([*argv, "--json", "--fix", COLUMN]) == 3
    found = json.loads(capsys.readouterr().out)
    assert {"kind": "constraint", "what": f"take back --fix {COLUMN}"}.items() <= found["relaxations"][0].items()
    assert found["relaxations"][0]["step_time_s"] > 0


def test_the_leanest_plan_holds_pins_too(capsys: pytest.CaptureFixture[str]) -> None:
    found = json.loads(_out(capsys, *ANY, "--json", "--objective", "memory", "--fix", "tp=2,head:sharding=replicate"))
    head = found["placements"]["head"]["strategies"]
    assert all("=n" not in text and "=k" not in text for name, text in head.items() if name.startswith("linear"))
    assert 0 <= found["bounds"]["gap"] < 1


def test_what_is_computed_again_makes_room(tmp_path: Path) -> None:
    """What `tests.planner.test_relax` shows not to fit does, once feed-forward parts are computed again."""
    ask, setting, wished = question(*tight(tmp_path, 1.09), "--fix", f"{PINS},blocks.*.feed_forward:recompute=on")
    best = solve_all(ask, setting, wished).best
    assert best is not None
    assert best.config.recompute == "none"


def test_a_pin_that_leaves_no_room_is_to_be_taken_back(tmp_path: Path) -> None:
    argv = (*tight(tmp_path, 1.09), "--fix", "tp=1,cp=1,pp=1,recompute=full,blocks.*:recompute=off")
    solved = solve_all(*question(*argv))
    assert solved.best is None
    found = list(takewhile(lambda one: one.kind == "constraint", relaxations(solved, None)))
    (back,) = (one for one in found if one.what == "take back --fix blocks.*:recompute=off")
    assert back.found.fits
    assert back.found.config.recompute == "full"


# By hand -------------------------------------------------------------------------------------------------------------


def stack() -> Fold:
    """A table, two layers of two products and a norm of few numbers, and a head without a module of its own."""
    g = Builder()
    at = g.input((4, 8), labels=("b", "s"), dtype="i64")
    g.output(g.op("embedding", g.param("weight", (64, 16)), at, name="rows"))
    table = g.graph()
    g = Builder()
    x = g.input((4, 8, 16), labels=("b", "s", ""), requires_grad=True)
    grown = g.op("exp", g.param("norm.scale", (16,)), module="norm", name="grown")
    y = g.op("mul", x, grown, module="norm", name="normed")
    y = g.op("linear", y, g.param("mlp.up.weight", (32, 16)), module="mlp.up", name="up")
    y = g.op("linear", y, g.param("mlp.down.weight", (16, 32)), module="mlp.down", name="down")
    g.output(g.op("add", x, y, name="sum"))
    layer = g.graph()
    g = Builder()
    x = g.input((4, 8, 16), labels=("b", "s", ""), requires_grad=True)
    g.loss(g.op("mean", g.op("linear", x, g.param("head.weight", (64, 16)), module="head", name="logits"), name="loss"))
    previous = (FromPrevious(0),)
    ((item),) = table.inputs
    return Fold(
        (Body("table", table), Body("layer", layer), Body("end", g.graph())),
        (
            Segment(("table",), ("rows",), (FromInput(item.value),), (previous,)),
            Segment(("layer",), ("l.0", "l.1"), previous, (previous,)),
            Segment(("end",), ("",), previous, (previous,), glue=True),
        ),
        ((item, table.types[item.value]),),
        previous,
        0,
    )


PATHS = ("rows", "l", "l.*", "l.*.norm", "l.*.mlp", "l.*.mlp.up", "l.*.mlp.down", "head")
"""In running order. What is made of a parameter alone is no operator to ask anything of, and the loss has no path."""


def test_the_paths_of_a_model_in_running_order() -> None:
    assert module_paths(stack()) == PATHS


def one(*words: str) -> frozenset[str]:
    return frozenset(words)


def test_what_pins_leave_of_every_operator() -> None:
    """All that an operator can have is nothing asked. Pins of one thing go together, those of others stand beside it;
    a pin that one of its modules has met is met, whatever the next ones can have."""
    column, row, again = (Allowed(sharding=one("column")), Allowed(sharding=one("row")), Allowed(recompute=one("on")))
    fold = stack()
    table: tuple[tuple[tuple[str, ...], dict[str, dict[str, Allowed]]], ...] = (
        ((), {}),
        (("allow l.*.mlp:sharding=column|row|replicate",), {}),
        (("fix l.*:sharding=column",), {"layer": {"up": column, "down": column}}),
        (("fix **:sharding=row", "forbid rows:sharding=column"), {
            "table": {"rows": row}, "layer": {"up": row, "down": row}, "end": {"logits": row},
        }),
        (("forbid l.*.mlp.up:sharding=column", "forbid l.*.mlp.up:sharding=replicate"), {"layer": {"up": row}}),
        (("fix l.*.mlp.up.weight:sharding=column",), {"layer": {"up": column}}),
        (("fix head:recompute=on", "fix head:sharding=column"), {
            "end": {"logits": Allowed(sharding=one("column"), recompute=one("on"))},
        }),
        (("fix l.*.norm:recompute=on",), {"layer": {"normed": again}}),
        # only the norm reads the parameter that its scale is made of
        (("fix l.*.norm.scale:recompute=on",), {"layer": {"normed": again}}),
    )  # fmt: skip
    for words, expected in table:
        assert resolved(pins_of(*words), fold).bodies == expected, words


def test_refusals_of_pins_in_full() -> None:
    table = (
        (
            "fix l.1.mlp:sharding=row",
            "it means l.1.mlp.up and not l.0.mlp.up; the 2 blocks share one plan",
            "write * for the number of the block",
        ),
        (
            "allow l.*.mlp:sharding=expert",
            "nothing there can have sharding=expert",
            "use column, row, replicate",
        ),
        ("fix rows:split=ffn", "nothing there can have split=ffn", "use b, s, vocab, hidden, none"),
        ("fix l.*.norm:sharding=row", "nothing there has a weight of two dimensions", "pin its split instead"),
        (
            "fix l.*.mlp.uq:sharding=row",
            "the model has no module or parameter of such a path",
            "did you mean 'l.*.mlp.up'?",
        ),
        (
            "fix zzzzzzzzz:sharding=row",
            "the model has no module or parameter of such a path",
            "name one of its modules: rows, l, head, l.*, l.*.norm, l.*.mlp",
        ),
    )
    for word, cause, fix in table:
        with pytest.raises(MeshwrightError) as refused:
            resolved(pins_of(word), stack())
        assert refused.value.place == f"--{word}"
        assert (refused.value.cause, refused.value.fix) == (cause, fix)


def test_a_plan_is_held_to_what_stages_run() -> None:
    """Operators by name, with the module that they are in; plans that no stage runs are nobody's."""
    fold = stack()
    plan = template(fold, Degrees(tp=2))
    table = (
        ("fix l.*.mlp.up:sharding=row", "plan layer, %up of mlp.up", "it is to have sharding=row, and has not"),
        ("fix l.*:recompute=on", "plan layer, %normed of norm", "it is to have recompute=on, and has not"),
        ("fix **:recompute=on", "plan table, %rows of the block", "it is to have recompute=on, and has not"),
    )
    for word, place, cause in table:
        with pytest.raises(ModulePinUnmet) as refused:
            check_held(plan, fold, pins_of(word))
        assert (refused.value.place, refused.value.cause) == (place, cause)
    check_held(plan, fold, pins_of("fix l.*.mlp.up:sharding=column", "fix **:recompute=off"))
    alone = replace(plan, stages=tuple(replace(own, plans=("table",)) for own in plan.stages))
    check_held(alone, fold, pins_of("fix l.*.mlp.up:sharding=row"))
