"""Artefacts between a model and its answer: folds, decisions, programs, spaces, block problems, orders of work.

A long text is kept as its number of lines and a checksum; the text itself is what `--dump-after` prints.
"""

from __future__ import annotations

from collections.abc import Iterator
from functools import partial
from itertools import islice
from random import Random
from zlib import crc32

from meshwright.cost_models.prices import Prices
from meshwright.cost_models.profile import published
from meshwright.ir.errors import MeshwrightError
from meshwright.ir.frontends.capture import capture
from meshwright.ir.frontends.load import load_model
from meshwright.ir.lower import lower
from meshwright.ir.lower_body import Lowering
from meshwright.ir.mesh import Mesh
from meshwright.ir.names import Degrees, template
from meshwright.ir.plan_text import decisions_text
from meshwright.ir.program_text import program_text
from meshwright.ir.schedules import SCHEDULES, Shape, stage_groups, work_lists
from meshwright.ir.workload import STACKS
from meshwright.planner.block import Space, block_frontier, solve_block
from meshwright.planner.block.build import build
from meshwright.planner.inspect import STEPS
from meshwright.planner.pins import Config
from meshwright.planner.plan import read_asked
from meshwright.planner.scheduling import floor, greedy, schedule
from meshwright.planner.scheduling.job import ordered
from meshwright.planner.solve import space_of
from meshwright.planner.unlike import mixes
from tests.cost_models.programs import DENSE, SHAPES, fold
from tests.figures import Cases, text
from tests.figures.plans import MOE as TINY_MOE
from tests.figures.plans import QUESTIONS, ROOT, TINY
from tests.figures.prices import drawn
from tests.planner.block.settings import terms
from tests.planner.scheduling.jobs import job
from tests.planner.solved import parsed


def summed(name: str, long: str) -> str:
    """A long text in one line."""
    return f"{name}: {len(long.splitlines())} lines, {crc32(long.encode()):08x}"


# Models --------------------------------------------------------------------------------------------------------------

EXAMPLES = ROOT / "examples"
MODELS = {
    "llama": (TINY, 4, 16),
    "lora": (f"{EXAMPLES / 'lora_llama.py'}:tiny", 4, 16),
    "mixture": (f"{EXAMPLES / 'mixture.py'}:tiny", 4, 16),
    "mixture with a capacity": (f"{EXAMPLES / 'mixture.py'}:limited", 4, 16),
    "mlp": (f"{EXAMPLES / 'mlp.py'}:build", 4, 16),
    "vit": (f"{EXAMPLES / 'vit.py'}:tiny", 4, 16),
    "unet": (f"{EXAMPLES / 'unet.py'}:tiny", 4, 16),
    "experts by numbers": (TINY_MOE, 4, 16),
    **{
        name: (f"{EXAMPLES / 'small.py'}:{name}", 4, 16)
        for name in ("two_lines", "gated", "mixed", "tied", "blocks_between")
    },
    "t5": (str(EXAMPLES / "configs" / "t5-large"), 2, 64),
    "gemma": (str(EXAMPLES / "configs" / "gemma-3-1b"), 2, 64),
}


def model(name: str) -> Iterator[str]:
    """What a front end makes of it, and what is seen in that."""
    reference, batch, seq = MODELS[name]
    captured = capture(load_model(reference), batch=batch, seq=seq).fold
    for step, show in STEPS.items():
        yield summed(step, show(captured))
    for body in captured.bodies:
        kinds = sorted({op.kind for op in body.graph.ops})
        yield f"{body.name}: {len(body.graph.ops)} operators, {len(body.graph.params)} parameters, {' '.join(kinds)}"
    for segment in captured.segments:
        yield f"{' '.join(segment.period)} x {len(segment.paths) // len(segment.period)}"


# Plans as decisions and programs -------------------------------------------------------------------------------------


def lowering(number: int) -> Iterator[str]:
    """What the degrees of a step mean, operator by operator, and the program of it."""
    case = drawn(number)
    try:
        degrees = Degrees(**case["degrees"])  # type: ignore[arg-type]
        made = fold(SHAPES[str(case["shape"])], int(str(case["mbs"])) * degrees.dp)
        plan = template(made, degrees)
        yield summed("decisions", decisions_text(plan))
        program = lower(made, plan, Lowering().for_stack(STACKS[str(case["stack"])]))
    except MeshwrightError as error:
        yield error.code
        return
    yield summed("program", program_text(program))
    for body in program.bodies:
        moves = [f"{move.step.kind}:{'+'.join(move.step.axes)}:{move.reason}" for move in body.moves()]
        yield f"{body.name}: {len(body.forward)}, {len(body.backward)}, kept {sum(one.nbytes for one in body.kept)}"
        yield "  " + " ".join(f"{moves.count(move)}x{move}" for move in sorted(set(moves)))


# Spaces --------------------------------------------------------------------------------------------------------------


def space(name: str) -> Iterator[str]:
    """What is searched, and plans over unlike pools."""
    ask, wished = read_asked(parsed(*QUESTIONS[name]))
    setting, prices = ask.setting(), Prices(ask.cluster, published())
    found = space_of(setting, ask.cluster, wished.wishes)
    bases = list(found.bases())
    yield summed("bases", "\n".join(map(text, bases)))
    for base in bases[:: max(1, len(bases) // 6)]:
        shapes = [text(shape) for shape in islice(found.shapes(base), 2000)]
        yield summed(str(base), "\n".join(shapes))
    yield text(found.truncated)
    if len(ask.cluster.pools) > 1:
        config: Config = next(one for base in bases for one in found.shapes(base))
        held = setting.fold(config)
        degrees = Degrees(microbatches=4, schedule="1f1b", zero=1)
        plans = mixes(
            held,
            config.batch,
            degrees,
            ask.cluster,
            lambda plan: setting.lowered(held, plan, found.global_batch),
            prices,
            "any",
        )
        for plan in plans:
            stages = [f"{stage.ranks} {stage.mesh} {len(stage.plans)}" for stage in plan.stages]
            yield summed(" | ".join(stages), decisions_text(plan))


# Blocks --------------------------------------------------------------------------------------------------------------

BLOCKS = {
    f"{shape} on {mesh}, {stack}, {recompute}": (shape, mesh, stack, recompute)
    for shape, mesh, stack, recompute in (
        ("dense", "a=2", "torch", "none"),
        ("dense", "a=2 b=2", "megatron", "none"),
        ("dense", "a=4", "torch-compile", "selective"),
        ("moe", "a=4", "torch", "none"),
        ("moe", "a=2 b=2", "jax", "full"),
        ("zigzag", "a=2 b=2", "megatron", "none"),
    )
}


def block(name: str) -> Iterator[str]:
    """The numbers of a block's problem, its best choice and what trades time for memory."""
    shape, mesh_, stack, recompute = BLOCKS[name]
    zigzag = ("a",) if shape == "zigzag" else ()
    held, mesh = fold(SHAPES.get(shape, DENSE), 8), Mesh.parse(mesh_)
    body = next(segment.period[0] for segment in held.segments if not segment.glue)
    setting = terms(mesh, stack=stack, microbatches=4)
    made = build(held, body, mesh, setting, Space(zero=1, recompute=recompute, zigzag=zigzag))
    problem = made.problem
    yield f"{len(problem.variables)} variables, {len(problem.pairs)} pairs"
    for variable, saved, state in zip(problem.variables, made.saved, made.state, strict=True):
        costs = [float(cost) for cost in variable.costs]
        sums = [min(costs), max(costs), sum(costs), float(saved.sum()), float(state.sum())]
        yield f"{variable.name}: {len(costs)} {text(sums)}"
    for pair in problem.pairs:
        allowed = int(pair.allowed.sum()) if pair.allowed is not None else pair.costs.size
        yield f"{pair.first} {pair.second}: {allowed} {text(float(pair.costs.sum()))}"
    choice = solve_block(held, body, mesh, setting, Space(zigzag=zigzag))
    yield f"{choice.status.value} {text([choice.objective_s, choice.bound_s])}"
    for point in block_frontier(held, body, mesh, setting, Space(zero=1)).points:
        yield f"{point.objective_s:.6g} {text(point.cost)}"


# Orders of work ------------------------------------------------------------------------------------------------------


def order(name: str) -> Iterator[str]:
    """The lists of a schedule, and how long they take."""
    for groups, virtual, microbatches in ((2, 1, 3), (4, 1, 8), (3, 1, 6), (2, 2, 4), (4, 2, 8), (3, 3, 9)):
        try:
            work = work_lists(name, Shape(stage_groups(name, groups, virtual), microbatches))
        except MeshwrightError as error:
            yield f"{groups} {virtual} {microbatches}: {error.code}"
            continue
        yield summed(f"{groups} {virtual} {microbatches}", "\n".join(map(str, work.lists)))


def jobs(number: int) -> Iterator[str]:
    """What list scheduling and local search make of a job, and what nothing undercuts."""
    draw = Random(number)
    one = job(
        draw.choice([2, 3, 4]),
        vee := draw.choice([1, 2]),
        draw.choice([1, 1, 2, 4, 6, 8]),
        number,
        vee=vee == 2 and draw.random() < 0.5,
        apart=draw.random() < 0.7,
        exposed=draw.random() < 0.3,
        rolling=draw.random() < 0.3,
        room=draw.choice([1.5, 2.5, 1e6]),
    )
    yield text([floor.floor_s(one), *(floor.group_floor_s(one, group) for group in range(len(one.shape.stages)))])
    yield f"{text(greedy.limits(one))} {text(greedy.tails(one))}"
    for rule in greedy.RULES:
        lists = greedy.listed(one, rule)
        made = ordered(one, lists) if lists else None
        yield f"{text(rule)} {summed('lists', str(lists))} {made.step_s if made else 0.0:.6g}"
    answer = schedule(one)
    if answer is not None:
        yield summed(f"{answer.best.step_s:.6g}", str(answer.best.lists))


def artefacts() -> dict[str, Cases]:
    return {
        "models": {name: partial(model, name) for name in MODELS},
        "lowered": {str(number): partial(lowering, number) for number in range(24)},
        "spaces": {name: partial(space, name) for name in QUESTIONS},
        "blocks": {name: partial(block, name) for name in BLOCKS},
        "orders": {name: partial(order, name) for name in SCHEDULES},
        "jobs": {str(number): partial(jobs, number) for number in range(24)},
    }
