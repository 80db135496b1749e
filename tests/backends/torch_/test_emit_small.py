"""What scripts of small plans say: what every mesh axis is for, how parameters are kept, what follows from both; and
what is refused. Nothing is traced or run here."""

from __future__ import annotations

import re
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from meshwright.backends.subject import Subject
from meshwright.backends.torch_.emit import emit
from meshwright.backends.torch_.emit.printed.axes import axes_of
from meshwright.backends.torch_.emit.read.axes import Axes
from meshwright.backends.torch_.emit.read.storage import WHOLE, kept_of, whole_of
from meshwright.backends.torch_.emit.write.frame.checkpoints import plain
from meshwright.backends.torch_.emit.write.parts import Parts
from meshwright.backends.torch_.emit.write.steps.tied import shared_modules
from meshwright.ir.decisions.decisions import Schedule
from meshwright.ir.errors import EmissionSchedule, EmissionSoftware, EmissionStorage
from meshwright.ir.graph.fold import Fold
from meshwright.ir.names import Degrees, template
from meshwright.ir.sharding.placement import Placement
from meshwright.ir.target.workload import Workload
from meshwright.planner.refine.heterogeneous import neighbours, over_parts
from tests.backends.torch_.emitted import unclean
from tests.backends.torch_.small import FP32, MIXED, fold_of, parts_of, planned, subject

FP16 = replace(FP32, precision="fp16", recipe="fsdp")
BF16 = replace(FP32, precision="bf16", recipe="bf16")
PLANS: dict[str, dict[str, Any]] = {
    "copies": {"dp": 2},
    "copies, micro-batches": {"dp": 2, "microbatches": 2},
    "copies in bf16": {"dp": 2, "workload": MIXED},
    "copies in bf16, micro-batches": {"dp": 2, "microbatches": 2, "workload": MIXED},
    "all in bf16": {"dp": 2, "workload": BF16},
    "in fp16": {"dp": 2, "zero": 3, "microbatches": 2, "workload": FP16},
    "zero 1": {"dp": 2, "zero": 1, "microbatches": 2},
    "zero 2": {"dp": 2, "zero": 2, "microbatches": 2},
    "zero 3": {"dp": 2, "zero": 3, "microbatches": 2},
    "zero 3, kept": {"dp": 2, "zero": 3, "regather": False},
    "copies of shards": {"dp": 4, "shard": 2, "zero": 3},
    "tp": {"tp": 2},
    "tp x dp": {"tp": 2, "dp": 2},
    "tp+sp": {"tp": 2, "sequence_parallel": True, "microbatches": 2},
    "tp+sp x dp": {"tp": 2, "dp": 2, "sequence_parallel": True},
    "tp+sp x zero 3": {"tp": 2, "dp": 2, "sequence_parallel": True, "zero": 3, "workload": MIXED},
    "cp": {"cp": 2},
    "cp in a ring": {"cp": 2, "context": "ring", "dp": 2},
    "cp by heads": {"cp": 2, "context": "ulysses", "dp": 2, "zero": 3},
    "cp x tp": {"cp": 2, "tp": 2, "sequence_parallel": True, "recompute": "full"},
    "pp": {"pp": 2, "microbatches": 2, "schedule": "gpipe"},
    "pp x tp+sp": {"pp": 2, "tp": 2, "microbatches": 2, "schedule": "1f1b", "sequence_parallel": True},
    "pp x zero 2": {"pp": 2, "dp": 2, "zero": 2, "microbatches": 2, "schedule": "1f1b"},
    "pp x zero 3": {"pp": 2, "dp": 2, "zero": 3, "microbatches": 2, "schedule": "1f1b", "workload": MIXED},
    "pp x cp": {"pp": 2, "cp": 2, "microbatches": 2, "schedule": "1f1b"},
    "pp in a V": {"pp": 2, "vp": 2, "microbatches": 4, "schedule": "zbv", "layers": 4},
    "gradients of weights apart": {"pp": 2, "tp": 2, "microbatches": 2, "schedule": "zb-h1"},
    "blocks again": {"dp": 2, "recompute": "full"},
    "attention again": {"dp": 2, "recompute": "selective"},
    "all but products again": {"dp": 2, "zero": 3, "recompute": "selective_op"},
    "first blocks again": {"dp": 2, "recompute": "full_layers:1"},
    "states on the host": {"dp": 2, "zero": 1, "offload": "optimizer", "workload": MIXED},
    "activations on the host": {"dp": 2, "offload": "activations"},
}


def plan_of(kind: str, **more: Any) -> Subject:
    given = {"workload": FP32, **PLANS[kind], **more}
    plan = subject(**given)
    return replace(plan, calls=replace(plan.calls, has_optimizer=True))


def test_scripts_define_what_they_call_and_call_what_they_define(tmp_path: Path) -> None:
    """By ruff: no name is missing, no import or function too many, every line in its place."""
    for number, kind in enumerate(PLANS):
        emit(plan_of(kind), tmp_path / str(number)).write(tmp_path / str(number))
        text = "\n".join(path.read_text() for path in (tmp_path / str(number)).glob("train*.py"))
        defined = {
            line.split()[1].split("(")[0].rstrip(":") for line in text.splitlines() if line[:4] in ("def ", "clas")
        }
        assert [name for name in sorted(defined) if text.count(name) == 1] == [], kind
    assert unclean(tmp_path) == ""


UNLIKE: dict[str, tuple[tuple[Degrees, Degrees], Schedule, Workload]] = {
    "1 + 2, tp": ((Degrees(), Degrees(tp=2)), Schedule("1f1b", 2), FP32),
    "2 + 1, tp+sp": ((Degrees(tp=2, sequence_parallel=True), Degrees()), Schedule("gpipe", 2), FP32),
    "zero 1 and copies, in bf16": ((Degrees(dp=2, zero=1), Degrees()), Schedule("1f1b", 2), MIXED),
    "zero 3 and tp": ((Degrees(dp=2, zero=3), Degrees(tp=2)), Schedule("1f1b", 2), FP32),
    "copies and tp": ((Degrees(dp=2), Degrees(tp=2)), Schedule("1f1b", 2), FP32),
}


def unlike(kind: str) -> Subject:
    """Two stages of one block each, on meshes of their own."""
    degrees, schedule, workload = UNLIKE[kind]
    fold = fold_of("f32" if workload is FP32 else "bf16")
    decisions = over_parts(fold, neighbours(*degrees), (1, 1), schedule, "torch-gloo")
    plan = planned(fold, decisions, workload)
    return replace(plan, calls=replace(plan.calls, has_optimizer=True))


def test_scripts_of_unlike_stages_define_what_they_call(tmp_path: Path) -> None:
    """No name is missing, and none too many; of one value alone that crosses, the table could be shorter."""
    for number, kind in enumerate(UNLIKE):
        emit(unlike(kind), tmp_path / str(number)).write(tmp_path / str(number))
    assert "Found" not in unclean(tmp_path)


def test_shards_of_another_dimension_are_told_to_torch() -> None:
    """Of a weight of blocks; the function that says so is written where a unit has such, and nowhere else."""
    text = lines_of(stored("zero 3", "block", Q, params="[-, dp]"))
    placed = f'shard_placement_fn=along(block, {{"{Q}": 1}})'
    assert (text.count("def along("), text.count("shard_placement_fn="), placed in text) == (1, 1, True)
    assert "along(" not in lines_of(plan_of("zero 3"))


def lines_of(plan: Subject) -> str:
    """All that its script says, without indents."""
    texts = [text for name, text in emit(plan, Path("/out")).texts if name.endswith(".py")]
    return "\n".join(line.strip() for text in texts for line in text.splitlines())


AVERAGED = "(loss * group.size()).backward()  # gradients are averaged over the group"
SHARE = "share = targets / share  # of all positions that have a target, those of this rank"
BLOCKS_OF = 'for index in range(2):\nblock = model.get_submodule(f"layers.{index}")\n'
DDP = 'return DistributedDataParallel(model, process_group=mesh["dp"].get_group(), broadcast_buffers=False)'
NORM_AND_HEAD = '[model.get_submodule("norm"), model.get_submodule("head")]'
MEANT: dict[str, tuple[tuple[str, ...], tuple[str, ...]]] = {
    # what a plan must say, and what it must not
    "copies": ((DDP, AVERAGED, SHARE, "if ranks != 2:"), ("no_sync", "sum_copies", "fully_shard", "_flatten")),
    "copies, micro-batches": (
        (DDP, AVERAGED, "with nullcontext() if number == MICROBATCHES - 1 else model.no_sync():", "MICROBATCHES = 2"),
        (SHARE, "fully_shard"),
    ),
    "copies in bf16": (
        (
            "model: nn.Module = model_file.tiny().float()",
            'shards = mesh["dp", "whole"]  # copies, and the shards of each',
            "precision = MixedPrecisionPolicy(param_dtype=torch.bfloat16, reduce_dtype=torch.float32)",
            f"{BLOCKS_OF}fully_shard(block, mesh=shards, mp_policy=precision, reshard_after_forward=True)",
            "fully_shard(model, mesh=shards, mp_policy=precision, reshard_after_forward=False)",
            AVERAGED,
        ),
        ("to(torch.bfloat16)", "sum_copies", "set_gradient_divide_factor"),
    ),
    "copies in bf16, micro-batches": (
        (
            "last = number == MICROBATCHES - 1",
            "model.set_requires_gradient_sync(last)\nmodel.set_reshard_after_backward(last)",
        ),
        ("unit.reshard()", "no_sync"),
    ),
    "all in bf16": (("parameter.data = parameter.data.to(torch.bfloat16)", DDP), (".float()\nfor", "MixedPrecision")),
    "in fp16": (
        (
            "precision = MixedPrecisionPolicy(param_dtype=torch.float16, reduce_dtype=torch.float32)",
            "loss.register_hook(SCALE.times)",
            "finite = SCALE.undo(model)\nif CLIP:",
            "if finite:\noptimizer.step()",
        ),
        ("torch.bfloat16",),
    ),
    "zero 1": (
        (
            "model.set_requires_gradient_sync(last)",
            f"fully_shard({NORM_AND_HEAD}, mesh=shards, reshard_after_forward=False)",
        ),
        ("unit.reshard()", "reshard_after_forward=True", "no_sync"),
    ),
    "zero 2": (
        (
            "whole = fully_shard(model, mesh=shards, reshard_after_forward=False)\n",
            "whole.set_reshard_after_backward(False)",
            "for unit in model.modules():\nif isinstance(unit, FSDPModule):\nunit.reshard()",
        ),
        ("set_requires_gradient_sync", "reshard_after_forward=True"),
    ),
    "zero 3": (
        (
            'fully_shard(model.get_submodule("embed"), mesh=shards, reshard_after_forward=False)',
            f"{BLOCKS_OF}fully_shard(block, mesh=shards, reshard_after_forward=True)",
            f"fully_shard({NORM_AND_HEAD}, mesh=shards, reshard_after_forward=True)",
            "fully_shard(model, mesh=shards, reshard_after_forward=False)\nreturn model",
            'shards = mesh["dp"]\n',
        ),
        ("set_requires_gradient_sync", "set_reshard_after_backward", "unit.reshard()", "ignored"),
    ),
    "copies of shards": (
        (
            'shards = mesh["dp", "dp_shard"]  # copies, and the shards of each',
            'mesh["dp", "dp_shard"]._flatten("dp_dp_shard")',
            'group = mesh["dp_dp_shard"].get_group()',
            "if ranks != 4:",
        ),
        (),
    ),
    "tp": (
        (
            "def block_forward(self: Any, x: Tensor, *, tp: DeviceMesh) -> Tensor:",
            'distribute(model, mesh, CUT, "tp")\ntp = mesh["tp"]\n',
            f"{BLOCKS_OF}block.forward = partial(block_forward, block, tp=tp)\n",
            "model.forward = partial(model_forward, model, tp=tp)\nreturn model",
            'loss: Tensor = model(batch["tokens"], batch["labels"])\nloss.backward()\nif CLIP:',
            "optimizer.step()\nreturn loss.detach()",
        ),
        (
            "targets / share",
            "dist.all_reduce",
            "sum_copies",
            "grad.redistribute",
            "untrained",
        ),
    ),
    "tp x dp": (
        ("sum_copies(model, mesh)\nif CLIP:", "loss.backward()\nsum_copies", "if ranks != 4:"),
        (AVERAGED, SHARE, "everyone", "_flatten"),
    ),
    "tp+sp": (
        (
            "parameter.grad = grad.redistribute(placements=[Replicate()])\nif CLIP:",
            "return torch.stack(losses).sum()",
        ),
        ("sum_copies", "group = mesh"),
    ),
    "tp+sp x dp": (
        (
            'everyone = mesh["dp_tp"].get_group()',
            'mesh["dp", "tp"]._flatten("dp_tp")',
            "sum_copies(model, mesh)\nif CLIP:",
        ),
        ("redistribute(placements=[Replicate()])",),
    ),
    "tp+sp x zero 3": (
        ("fully_shard(block, mesh=shards", '(loss * mesh["dp"].size()).backward()'),
        ("sum_copies", "[Replicate()])\nif CLIP"),
    ),
    "cp by heads": (
        (
            f"{BLOCKS_OF}block.forward = partial(block_forward, block, cp=cp)\n",
            'mesh["dp", "cp"]._flatten("dp_cp")',
            'shards = mesh["dp_cp"]\n',
        ),
        ("attention_in_ring", "DistributedDataParallel"),
    ),
    "pp": (
        (
            "STAGES_OF = ((0,), (1,))",
            "BLOCKS = (range(1), range(1, 2))",
            "share = targets / targets.sum()\n",
            'batch["tokens"],\ntarget=batch["labels"],\nlosses=losses,\nreturn_outputs=False,\nlabels=batch["labels"],\nshare=share',
            "return torch.stack(losses).detach().sum()",
            "clip(model, CLIP, mesh)\noptimizer.step()\nif not model.last:\nreturn None",
            'FirstStage(model, index, mesh, ["embed", *paths])',
            'LastStage(model, index, mesh, [*paths, "norm", "head"])',
            "self.schedule = ScheduleGPipe(running[0], MICROBATCHES, loss_fn=self.loss, scale_grads=False)",
            'between = (torch.empty(4, 16, 32, dtype=torch.float32, device="meta", requires_grad=True),)',
        ),
        ("group.size()", "Alone", "sharing", "sum_tied"),
    ),
    "pp x tp+sp": (
        (
            "stage_of(model, index, mesh)",
            'in BLOCKS[model.index]:\nblock = model.get_submodule(f"layers.{index}")\nblock.forward = partial(',
            "torch.empty(4, 8, 32, dtype=torch.float32",
        ),
        ("group.size()",),
    ),
    "pp x zero 2": (
        (
            "PipelineStage(Alone(stage), index, STAGES, device, *crossing(index), group=group)",
            "whole.set_reshard_after_backward(False)",
            'if model.index == 1:\nfully_shard(\n[model.get_submodule("norm")',
            "torch.empty(2, 16, 32, dtype=torch.float32",
        ),
        ("backward_prefetch", "group.size()"),
    ),
    "pp x zero 3": (("first.set_modules_to_backward_prefetch([first])", "Alone(stage)"), ("unit.reshard()",)),
    "pp in a V": (
        (
            "STAGES_OF = ((0, 3), (1, 2))",
            "class Stage0(Stage):",
            "class Stage3(Stage):",
            "BLOCKS = (range(1), range(1, 2), range(2, 3), range(3, 4))",
            "self.schedule = ScheduleZBVZeroBubble(running, MICROBATCHES",
        ),
        ("FirstStage",),
    ),
    "blocks again": ((f"{BLOCKS_OF}run_again(block)\n",), ("AttentionAgain", "all_but", "Unchanged")),
    "attention again": (
        (f'{BLOCKS_OF}run_within(block.get_submodule("attn"), AttentionAgain())',),
        ("run_again", "all_but"),
    ),
    "first blocks again": (
        ('for index in range(1):\nblock = model.get_submodule(f"layers.{index}")\nrun_again(block)',),
        (),
    ),
    "states on the host": (
        ("def make_optimizer(model: nn.Module, make: Callable[..., Any] = model_file.optimizer) -> OnHost:",),
        (),
    ),
}


def test_what_a_plan_means_is_what_its_script_says() -> None:
    for kind, (present, absent) in MEANT.items():
        text = lines_of(plan_of(kind))
        assert [one for one in present if one not in text] == [], kind
        assert [one for one in absent if one in text] == [], kind


AXES: dict[str, Axes] = {
    "copies": Axes(("dp",), None),
    "copies of shards": Axes(("dp", "dp_shard"), None),
    "tp": Axes((), "tp"),
    "tp+sp x dp": Axes(("dp",), "tp"),
    "cp": Axes((), None, ("cp",)),
    "cp by heads": Axes(("dp",), None, ("cp",)),
    "cp x tp": Axes((), "tp", ("cp",)),
    "pp": Axes((), None),
}


def test_what_every_axis_is_for() -> None:
    for kind, expected in AXES.items():
        assert axes_of(plan_of(kind)) == expected, kind


def test_what_axes_are_called_together() -> None:
    one = Axes(("dp", "dp_shard"), "tp", ("cp",))
    assert (one.data, one.copies, one.copied) == ("dp_dp_shard", ("dp", "dp_shard", "cp"), "dp_dp_shard_cp")
    assert (Axes((), "tp").data, Axes((), "tp").copies, Axes((), "tp").copied) == (None, (), None)


# Storage ------------------------------------------------------------------------------------------------------------

KEPT: dict[str, tuple[tuple[str, ...], int, tuple[bool, ...]]] = {
    # over which axes, what is sharded, and which of table, blocks and head are gathered again for the backward pass:
    # of the table nothing is read there
    "zero 1": (("dp",), 1, (False, False, False)),
    "zero 2": (("dp",), 2, (False, False, False)),
    "zero 3": (("dp",), 3, (False, True, True)),
    "zero 3, kept": (("dp",), 3, (False, False, False)),
    "copies of shards": (("dp_shard",), 3, (False, True, True)),
    "cp by heads": (("dp", "cp"), 3, (False, True, True)),
}


def test_how_parameters_are_kept() -> None:
    for kind, (over, level, again) in KEPT.items():
        plan = plan_of(kind)
        kept = kept_of(plan, axes_of(plan))
        assert [unit.piece.plan.body for unit in kept.units] == ["embed", "block", "head"], kind
        assert (kept.over, kept.level, tuple(unit.reshard for unit in kept.units)) == (over, level, again), kind
        assert (kept.whole, kept.frozen, kept.scalars) == (False, False, False), kind
        assert all(unit.along == {} for unit in kept.units), kind


def test_copies_are_kept_as_they_are() -> None:
    plan = plan_of("copies")
    assert kept_of(plan, axes_of(plan)).units == ()


def test_copies_that_are_cast_are_kept_over_one_rank() -> None:
    plan = plan_of("copies in bf16")
    kept = whole_of(plan, axes_of(plan))
    assert (kept.over, kept.level, kept.whole, kept.scalars) == ((WHOLE,), 1, True, False)
    assert [unit.reshard for unit in kept.units] == [True, True, True]
    apart = plan_of("gradients of weights apart", workload=MIXED)
    assert [unit.reshard for unit in whole_of(apart, axes_of(apart)).units] == [False, False, False]


def test_what_is_not_cast_yet_is_refused() -> None:
    for axes, what in [
        (Axes(("dp", "other"), None), "copies along dp and other"),
        (Axes((), None, ("cp",)), "more than the batch cut along cp"),
    ]:
        with pytest.raises(EmissionSoftware, match=f"not emitted yet with {what}") as refused:
            whole_of(plan_of("copies in bf16"), axes)
        assert refused.value.place.startswith("recipe fsdp"), (axes, what)


def stored(kind: str, body: str, path: str, *, grads: str = "", optimizer: str = "", **given: str) -> Subject:
    """The plan, with a parameter that is kept otherwise; its storage is left out where nothing is said."""
    plan = plan_of(kind)

    def changed(one: Any) -> list[Any]:
        if one.path != path:
            return [one]
        if not (params := given.get("params")):
            return []
        placed = (Placement.parse(text or params) for text in (params, grads, optimizer))
        return [replace(one, **dict(zip(("params", "grads", "optimizer"), placed, strict=True)))]

    plans = tuple(
        replace(one, storage=tuple(item for held in one.storage for item in changed(held))) if one.body == body else one
        for one in plan.decisions.plans
    )
    return replace(plan, decisions=replace(plan.decisions, plans=plans))


Q = "attn.q.weight"
REFUSED: dict[str, tuple[Callable[[], Subject], str, str]] = {
    "a plan that keeps copies": (
        lambda: stored("zero 3", "embed", "embed.weight"),
        "plan embed, embed.weight",
        "it is copied while other parameters are sharded",
    ),
    "a parameter that is copied": (
        lambda: stored("zero 3", "block", Q),
        f"plan block, {Q}",
        "it is copied while other parameters are sharded",
    ),
    "one that is sharded less when it is used later": (
        lambda: stored("zero 3", "block", Q, params="[dp, -]", grads="[-, -]", optimizer="[dp, -]"),
        f"plan block, {Q}",
        "what is used later is sharded less: parameters, then gradients, then the optimizer's state",
    ),
    "states along another axis than gradients": (
        lambda: stored("copies of shards", "block", Q, params="[-, -]", grads="[dp, -]", optimizer="[dp_shard, -]"),
        f"plan block, {Q}",
        "what is used later is sharded less: parameters, then gradients, then the optimizer's state",
    ),
    "copies inside of shards": (
        lambda: stored("copies of shards", "embed", "embed.weight", params="[dp, -]"),
        "plan embed, embed.weight",
        "it has copies along an axis inside of dp",
    ),
    "several dimensions": (
        lambda: stored("copies of shards", "embed", "embed.weight", params="[dp, dp_shard]"),
        "plan embed, embed.weight",
        "it is cut along several dimensions",
    ),
    "unlike axes": (
        lambda: stored("copies of shards", "embed", "embed.weight", params="[dp.dp_shard, -]"),
        "storage",
        "it is sharded over dp.dp_shard and over dp_shard",
    ),
    "levels that differ over micro-batches": (
        lambda: stored("zero 3", "embed", "embed.weight", params="[-, -]", grads="[dp, -]", optimizer="[dp, -]"),
        "storage",
        "some gradients or parameters are sharded and others are not, over micro-batches",
    ),
}


def test_storage_that_no_code_is_written_for_is_refused() -> None:
    for what, (made, place, cause) in REFUSED.items():
        plan = made()
        with pytest.raises(EmissionStorage) as refused:
            kept_of(plan, axes_of(plan))
        assert (refused.value.place, refused.value.cause) == (place, f"this is not emitted yet: {cause}"), what
        assert refused.value.fix == "plan with --fix zero=3, or with --fix zero=0", what


def test_levels_may_differ_within_one_micro_batch() -> None:
    """The most that is sharded counts."""
    plan = stored("zero 3, kept", "embed", "embed.weight", params="[-, -]", grads="[dp, -]", optimizer="[dp, -]")
    assert kept_of(plan, axes_of(plan)).level == 3


def test_the_dimension_that_is_cut_is_told_if_it_is_not_the_first_one() -> None:
    for placed, along in [("[-, dp]", {Q: 1}), ("[dp, -]", {})]:
        plan = stored("zero 3", "block", Q, params=placed)
        assert [dict(unit.along) for unit in kept_of(plan, axes_of(plan)).units] == [{}, along, {}], (placed, along)


def test_shards_of_another_dimension_divide_it() -> None:
    """Of 32 columns: three ranks do not."""
    plan = stored("zero 3", "block", Q, params="[-, dp]")
    stages = tuple(replace(one, mesh=one.mesh.parse("dp=3"), ranks=(0, 1, 2)) for one in plan.decisions.stages)
    wide = replace(plan, decisions=replace(plan.decisions, stages=stages))
    with pytest.raises(EmissionStorage, match="3 shards of 32 along a dimension"):
        kept_of(wide, Axes(("dp",), None))


# What follows -------------------------------------------------------------------------------------------------------

SAID: dict[str, dict[str, Any]] = {
    "copies": {
        "wrapped": True,
        "summed": False,
        "added": False,
        "distributed": False,
        "called": "nn.Module",
        "shared": "dp",
        "copies_said": "group.size()",
        "flattened": (),
        "partial_gradients": False,
        "spread": False,
        "offloaded": False,
        "optimizer": "torch.optim.Optimizer",
    },
    "copies, micro-batches": {"wrapped": True, "called": "DistributedDataParallel", "microbatches": 2},
    "copies in bf16": {"wrapped": False, "summed": False, "added": False, "distributed": True, "stays_gathered": False},
    "zero 1": {"wrapped": False, "summed": False, "added": False, "stays_gathered": False, "called": "nn.Module"},
    "zero 2": {"stays_gathered": True, "hidden": False, "distributed": True, "flattened": ()},
    "zero 3": {"stays_gathered": False, "hidden": False},
    "copies of shards": {"flattened": (("dp", "dp_shard"),), "shared": "dp_dp_shard", "copies_said": "group.size()"},
    "tp": {
        "wrapped": False,
        "summed": False,
        "added": False,
        "distributed": True,
        "shared": None,
        "flattened": (),
        "partial_gradients": False,
    },
    "tp x dp": {"wrapped": False, "summed": True, "added": True, "distributed": True, "flattened": ()},
    "tp+sp": {"partial_gradients": True, "summed": False},
    "tp+sp x dp": {"partial_gradients": True, "flattened": (("dp", "tp"),)},
    "tp+sp x zero 3": {"partial_gradients": False, "summed": False, "flattened": ()},
    "cp": {"spread": False, "wrapped": True, "shared": None, "flattened": ()},
    "cp by heads": {
        "flattened": (("dp", "cp"),),
        "shared": None,
        "copies_said": 'mesh["dp_cp"].size()',
        "wrapped": False,
    },
    "pp": {"spread": True, "wrapped": False, "hidden": False, "shared": None},
    "pp x tp+sp": {"hidden": False, "partial_gradients": True},
    "pp x zero 2": {"hidden": True, "stays_gathered": True},
    "pp x zero 3": {"hidden": True, "stays_gathered": False},
    "pp x cp": {"summed": True, "added": True, "wrapped": False},
    "states on the host": {"offloaded": True, "optimizer": "OnHost"},
}


def test_what_follows_from_axes_and_storage() -> None:
    for kind, said in SAID.items():
        parts: Parts = parts_of(plan_of(kind))
        assert {name: getattr(parts, name) for name in said} == said, kind


def test_a_batch_that_ranks_and_micro_batches_do_not_divide_is_refused_in_stages() -> None:
    plan = plan_of("pp x zero 2")
    plan = replace(plan, workload=replace(FP32, global_batch=6))
    with pytest.raises(EmissionSchedule) as refused:
        emit(plan, Path("/out"))
    assert (refused.value.place, refused.value.cause) == (
        "2 micro-batches",
        "on ranks along dp they do not divide 6 sequences",
    )


def frozen(kind: str, path: str) -> Subject:
    """The plan, of a model that does not train a weight of its blocks."""
    plan = plan_of(kind)
    graph = plan.fold.body["block"].graph
    params = tuple(replace(one, requires_grad=one.path != path) for one in graph.params)
    bodies = tuple(
        replace(one, graph=replace(graph, params=params)) if one.name == "block" else one for one in plan.fold.bodies
    )
    fold = replace(plan.fold, bodies=bodies)
    given = {name: value for name, value in PLANS[kind].items() if name not in ("workload", "layers")}
    return planned(fold, template(fold, Degrees(**given), "torch-gloo"))


def test_what_is_not_trained_is_left_out_of_shards() -> None:
    assert parts_of(frozen("zero 3", Q)).kept.frozen
    ignored = "ignored = {parameter for parameter in model.parameters() if not parameter.requires_grad}"
    assert ignored in lines_of(frozen("zero 3", Q))


def of_tied(fold: Fold) -> Fold:
    """The model, whose head has the table of its embedding."""
    bodies = []
    for body in fold.bodies:
        params = tuple(
            replace(one, paths=("embed.weight", "head.weight")) if one.path in ("embed.weight", "head.weight") else one
            for one in body.graph.params
        )
        bodies.append(replace(body, graph=replace(body.graph, params=params)))
    return replace(fold, bodies=tuple(bodies))


def tied(batch: int = 4, **degrees: Any) -> Subject:
    """The plan, of such a model."""
    fold = of_tied(fold_of(batch=batch))
    return planned(fold, template(fold, Degrees(**degrees), "torch-gloo"))


def test_a_parameter_of_two_places_is_one_again() -> None:
    """Of stages of unlike ranks the gradients are summed; DTensors of one are one; units of shards hold it twice, and
    step it once."""
    assert "made[parameter] = nn.Parameter(part" in lines_of(tied(tp=2))
    assert parts_of(tied(dp=2, zero=3)).untied == (("head.weight", "embed.weight"),)
    assert parts_of(tied(tp=2)).untied == ()
    staged = parts_of(tied(pp=2, microbatches=2, schedule="gpipe"))
    found = staged.pipeline
    assert found is not None
    assert (found.tied, found.twice) == (((0, "embed.weight"), (1, "head.weight")), ())
    text = lines_of(staged.subject)
    assert "sum_tied(model)\nif CLIP:" in text
    assert "self.sharing = group" in text
    assert (staged.untied, staged.held_twice) == ((), ())


def test_a_parameter_of_two_stages_of_a_rank() -> None:
    """Of a V the first group of ranks has the table and the head. Without an axis that cuts modules torch sees that
    they are one; modules that are parted are told so again; units hold it twice, and step it once."""
    both = ((0, "embed.weight"), (3, "head.weight"))
    again = 'held[3].get_submodule("head").weight = held[0].get_parameter("embed.weight")'
    again = f"if 0 in held:  # one parameter again\n{again}"
    for degrees, told, twice in [
        ({}, False, ()),
        ({"tp": 2}, True, ()),
        ({"dp": 2, "zero": 1}, False, (both,)),
        ({"tp": 2, "dp": 2, "zero": 1}, False, (both,)),
    ]:
        v = {"pp": 2, "vp": 2, "microbatches": 4, "schedule": "zbv", "stage_blocks": (0, 1, 1, 0)}
        parts = parts_of(tied(batch=2, **v, **degrees))
        assert parts.pipeline is not None, degrees
        assert (parts.pipeline.held, parts.pipeline.tied, parts.pipeline.twice) == (((0, 3), (1, 2)), (), (both,)), (
            degrees
        )
        assert (parts.held_twice, parts.untied) == (twice, ()), degrees
        text = lines_of(parts.subject)
        assert (again in text, "held = dict(" in text) == (told, told), degrees
        named = '((0, "embed.weight"), (3, "head.weight")),\n)'
        assert (f"the first one is stepped\n{named}" in text) == bool(twice), degrees
        assert ("join_tied(model)\nif CLIP:" in text, "copy_tied(model)" in text) == (bool(twice),) * 2, degrees
        assert "sum_tied" not in text, degrees


def test_stages_of_a_rank_that_have_one_module_wrap_one_each() -> None:
    """All but the last have copies of it, once for all that it holds."""
    weight, bias = ([(stage, f"a.norm.{name}") for stage in (0, 2, 3)] for name in ("weight", "bias"))
    assert shared_modules([weight, bias]) == [(0, "a.norm"), (2, "a.norm")]
    assert shared_modules([[(0, "embed.weight"), (3, "head.weight")]]) == []


def test_groups_of_ranks_that_share_a_parameter_are_those_at_the_ends() -> None:
    """Of two groups that is all there are; of four ranks in a row, the first and the last."""
    assert "self.sharing = group\n" in lines_of(tied(pp=2, microbatches=2, schedule="gpipe"))
    four = tied(pp=4, microbatches=2, schedule="gpipe", stage_blocks=(0, 1, 1, 0))
    assert "sharing = mesh.mesh[[0, 3]].reshape(2, -1).T.tolist()  # ranks that stand alike" in lines_of(four)


def test_names_of_parameters_in_checkpoints_are_the_models() -> None:
    """Whose stage it is in is left out; states of what two stages hold go by the first one's name."""

    def plain_of(held: object, **options: Any) -> Callable[[str], str]:
        made: dict[str, Any] = {"re": re, "TIED": held}
        exec("\n".join(plain(**options)), made)  # noqa: S102
        called: Callable[[str], str] = made["plain"]
        return called

    usual = plain_of((), tied=False)
    assert usual("stages.0.layers.1.stages.2.w") == "layers.1.stages.2.w"
    assert usual("state.stages.1.head.weight.exp_avg") == "state.head.weight.exp_avg"
    both = ((0, "embed.weight"), (1, "head.weight")), ((0, "embed.weight", {}), (1, "head.weight", {0: ("tp",)}))
    for found in (plain_of(both[0], tied=True), plain_of(both[1], tied=True, cuts=True)):
        assert found("state.stages.1.head.weight.exp_avg") == "state.embed.weight.exp_avg"
        assert found("param_groups.stages.1.head.weight.lr") == "param_groups.embed.weight.lr"
        assert found("state.stages.1.norm.weight.exp_avg") == "state.norm.weight.exp_avg"
        assert found("stages.1.head.weight") == "head.weight"
