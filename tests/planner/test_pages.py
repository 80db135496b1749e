"""The answers to twenty questions drawn by seed, as they are printed on consoles of every width.

Models are tiny, so that each is planned in a second; what is asked of them is what people ask: pipelines, memory that
is short, several pools, pins, objectives, searches that are cut short.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator
from contextlib import chdir
from itertools import islice, product
from pathlib import Path
from random import Random

import pytest
from rich.cells import cell_len

from meshwright.ir.errors import MeshwrightError
from meshwright.planner.answer.report import plan_of
from meshwright.planner.answer.solve import Stop, solve
from meshwright.planner.cli.verbs.plans.plan import read_asked
from meshwright.planner.cli.views.plans.parts import groups_of, stage_table
from meshwright.planner.cli.views.plans.plan import PAGE, SHOWN
from meshwright.planner.cli.views.tables import folded
from meshwright.planner.plan.types import Plan
from meshwright.planner.plan.words import short
from meshwright.planner.question.pins import fill, parse
from meshwright.planner.search.phases import REFINING, Told
from tests.planner.solved import TINY, parsed

pytestmark = pytest.mark.slow

QUESTIONS, SEED = 20, 7
REFINED = 0.3
"""Of the answers."""
WIDTHS = (60, 80, 100, 140, 200)
CLUSTERS = ("1x4xA100", "2x8xH100", "4x8xH100", "cpu:4", "small", "pools")
ASKED = (
    *((),) * 4,
    ("--fix", "pp=2"),
    ("--fix", "pp=4,vp=2"),
    ("--fix", "tp=2,pp=2,zero=1"),
    ("--fix", "stage_blocks=1+3"),
    ("--forbid", "pp,cp"),
    ("--allow", "tp=2|4", "--forbid", "zero=3"),
    ("--objective", "memory"),
    ("--time-limit", "0"),
    ("--target", "any"),
)


def model(folder: Path, draw: Random) -> str:
    """A tiny decoder, sometimes with experts; or a module of torch."""
    if draw.random() < 0.3:
        return TINY
    heads, layers = draw.choice((4, 8)), draw.choice((4, 8))
    experts = "experts = 4\ntopk = 2\nmoe_ffn = 64\n" * (draw.random() < 0.3)
    file = folder / f"decoder-{layers}-{heads}{'-experts' * bool(experts)}.toml"
    file.write_text(
        f'name = "drawn"\nlayers = {layers}\nhidden = 128\nffn_hidden = 512\nvocab = 1024\nheads = {heads}\n'
        f'kv_heads = {heads}\n{experts}dtype = "f32"\n'
    )
    return file.name


def cluster(folder: Path, name: str) -> str:
    """The clusters that are files: devices of little memory, and pools of two kinds."""
    pool = '[[pool]]\nname = "{0}"\nhosts = {1}\ngpu = "{2}"\ngpus_per_host = 2\n'
    pool += 'nics = [{{ kind = "infiniband", gbps = 200, count = 2 }}]\n'
    device = '[[device]]\nname = "Small"\nlike = "A100"\nmemory_gb = 1.2\n'
    pools = pool.format("new", 1, "H100") + pool.format("old", 1, "A100-80G")
    link = '[[link]]\nbetween = ["new", "old"]\nkind = "infiniband"\ngbps = 200\nlatency_us = 5\n'
    texts = {"small": device + pool.format("only", 2, "Small"), "pools": pools + link}
    if name not in texts:
        return name
    (folder / f"{name}.toml").write_text(texts[name])
    return f"{name}.toml"


def unrefined(stop: Stop, refined: bool) -> Told:
    """Stop before refining, which takes longest, unless that is wanted."""

    def told(phase: str, search: object = None, /) -> None:
        stop.interrupted = phase == REFINING and not refined

    return told


def drawn(folder: Path) -> Iterator[Plan]:
    """Plans of questions that have one."""
    draw = Random(SEED)
    while True:
        argv = [model(folder, draw), "--cluster", cluster(folder, draw.choice(CLUSTERS))]
        argv += ["--global-batch", str(draw.choice((8, 16, 64))), "--seq", str(draw.choice((64, 256)))]
        args = parsed(*argv, *draw.choice(ASKED))
        try:
            ask, wished = read_asked(args)
            ask, setting = ask.loaded()
            stop = Stop(None if args.time_limit is None else 0.0)
            solved = solve(ask, setting, wished, stop, unrefined(stop, draw.random() < REFINED), args.objective)
        except MeshwrightError:
            continue
        if solved.best is not None:
            yield plan_of(solved)


@pytest.fixture(scope="module")
def plans(tmp_path_factory: pytest.TempPathFactory) -> list[Plan]:
    folder = tmp_path_factory.mktemp("questions")
    with chdir(folder):
        return list(islice(drawn(folder), QUESTIONS))


Print = Callable[[Plan, str, int], list[str]]


@pytest.fixture
def printed(capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch) -> Print:
    """The lines of a plan in so much detail, on a console of this width."""

    def lines(plan: Plan, detail: str, width: int) -> list[str]:
        monkeypatch.setenv("COLUMNS", str(width))
        capsys.readouterr()
        SHOWN[detail](plan, Path("out/plan.json"))
        return capsys.readouterr().out.splitlines()

    return lines


def test_questions_are_of_many_kinds(plans: list[Plan]) -> None:
    """What is drawn is worth a page: pipelines, unequal stages, constraints, searches that were cut short."""
    assert sum(plan.config.pp > 1 for plan in plans) >= 3
    assert any(not plan.bounds.complete for plan in plans)
    assert any(plan.bounds.only or plan.bounds.never for plan in plans)
    assert len({plan.machines.ref for plan in plans}) >= 5
    assert len({plan.model.ref for plan in plans}) >= 5


def test_no_line_is_wider_than_the_console(plans: list[Plan], printed: Print) -> None:
    for plan, detail, width in product(plans, SHOWN, WIDTHS):
        for line in printed(plan, detail, width):
            assert cell_len(line) <= width, (width, line)
            line.encode("latin-1")  # nothing that a terminal may lack


def test_a_page_has_no_more_than_its_lines(plans: list[Plan], printed: Print) -> None:
    for plan, width in product(plans, WIDTHS[1:]):
        lines = printed(plan, "page", width)
        assert len(lines) <= PAGE, "\n".join(lines)


def words(text: str) -> list[str]:
    return re.findall(r"[^\s,/]+", text)


def test_nothing_is_broken_in_the_middle(plans: list[Plan], printed: Print) -> None:
    """Every word and number of a page of 80 columns is one of the page that has room for all, but for the numbers of
    what is not shown, in the last line."""
    for plan in plans:
        whole = {word for line in printed(plan, "page", 400) for word in words(line)}
        whole |= {word for line in printed(plan, "whole", 400) for word in words(line)}
        for line in printed(plan, "page", 80)[:-1]:
            assert not set(words(line)) - whole, line


def test_five_lines_answer(plans: list[Plan], printed: Print) -> None:
    """The plan, its time, its memory, what is unusual, and how sure that is, come first; on wide consoles in a line
    each."""
    labels = ["plan", "step time", "memory", "unusual", "confidence"]
    for plan in plans:
        first = printed(plan, "page", 200)[:5]
        assert [line[:12].rstrip() for line in first] == labels
        narrow = printed(plan, "page", 80)
        begun = [line[:12].rstrip() for line in narrow[: narrow.index("")]]
        assert [label for label in begun if label] == labels


OURS = (
    *("body", "bodies", "fold", "hub", "publish", "sync", "base", "bases", "shape", "shapes", "candidate", "bench"),
    *("ledger", "template", "reshard", "declared space", "kernel configurations?", "pipeline configurations?"),
)
"""Words of docs/glossary.md that people who know Megatron and FSDP do not."""


def test_a_page_has_no_words_of_ours(plans: list[Plan], printed: Print) -> None:
    for plan in plans:
        text = " ".join(line.strip() for line in printed(plan, "page", 200))
        assert not re.findall(rf"\b(?:{'|'.join(OURS)})\b", text)


def test_the_plan_line_can_be_pasted(plans: list[Plan], printed: Print) -> None:
    """As --fix takes it, from every width, it is the plan's configuration, unless that has what the search alone
    makes."""
    for plan, width in product(plans, WIDTHS):
        lines = printed(plan, "brief", width)
        end = next(at for at, line in enumerate(lines) if line.startswith("step time"))
        pasted = parse(["\n".join(lines[:end]).removeprefix("plan")])
        assert pasted == parse([short(plan.config)])
        if plan.config.schedule != "custom":
            ranks = plan.config.tp * plan.config.pp * plan.config.cp * plan.config.dp
            filled = fill(pasted, ranks=ranks, global_batch=plan.workload.global_batch)
            same = {name: value for name, value in plan.config.to_json().items() if name not in dict(filled.open)}
            assert {name: filled.to_json()[name] for name in same} == same


def test_a_list_of_layers_that_is_longer_than_a_line_can_be_pasted() -> None:
    long = f"pp=64,stage_blocks={'+'.join(['7', *['8'] * 62, '13'])},zero=1"
    lines = folded(f"plan        {long}", 80, " " * 12)
    assert len(lines) > 2
    assert parse(["\n".join(lines).removeprefix("plan")]) == parse([long])


def test_groups_of_ranks_are_whole(plans: list[Plan]) -> None:
    """Each rank that works is in one group, each stage too."""
    for plan in plans:
        groups = groups_of(plan)
        ranks = [rank for group in groups for rank in group.ranks]
        assert sorted(ranks) == sorted({rank for stage in plan.decisions.stages for rank in stage.ranks})
        stages = sorted(first for group in groups for first, _ in group.stages)
        assert stages == list(range(len(plan.decisions.stages)))
        assert len(stage_table(plan).rows) <= 6
