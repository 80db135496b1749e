"""Emitted scripts: what is written for plans of every kind, and what its ranks are to send."""

from __future__ import annotations

import ast
import atexit
import json
from collections.abc import Iterator
from functools import cache, partial
from pathlib import Path
from shutil import rmtree
from tempfile import mkdtemp
from typing import Any
from zlib import crc32

from benchmarks.emitted_matrix import Small
from meshwright.backends.torch_.emit import Subject, emit
from meshwright.backends.torch_.verify.groups import groups_of
from meshwright.ir.names import Degrees
from tests.backends.torch_ import (
    emitted,
    test_emit,
    test_emit_channels,
    test_emit_context,
    test_emit_experts,
    test_emit_meta,
    test_emit_pipeline,
    test_emit_statistics,
    test_emit_storage,
    test_emit_turns,
    test_emit_unlike,
)
from tests.figures import text
from tests.figures.artefacts import EXAMPLES, summed
from tests.figures.plans import ROOT


@cache
def scripts() -> dict[str, partial[Subject]]:
    """Plans of tests that run what is emitted."""
    found = {f"plain: {kind}": partial(test_emit.plan_of, kind) for kind in test_emit.KINDS}
    found |= {f"context: {kind}": partial(test_emit_context.plan_of, kind) for kind in test_emit_context.KINDS}
    found |= {f"meta: {kind}": partial(test_emit_meta.plan_of, kind) for kind in test_emit_meta.KINDS}
    found |= {f"storage: {kind}": partial(test_emit_storage.plan_of, kind) for kind in test_emit_storage.KINDS}
    pipelines = test_emit_pipeline.PIPELINES | test_emit_pipeline.ONE_STAGE
    found |= {f"stages: {kind}": partial(test_emit_pipeline.plan_of, given) for kind, given in pipelines.items()}
    experts = test_emit_experts.EVERYTHING.items()
    found |= {f"experts: {kind}": partial(test_emit_experts.plan_of, **given) for kind, given in experts}
    found |= {
        f"unlike: {kind}": partial(test_emit_unlike.subject, case) for kind, case in test_emit_unlike.EXACT.items()
    }
    statistics = test_emit_statistics.KINDS.items()
    found |= {f"statistics: {kind}": partial(test_emit_statistics.subject, **given) for kind, given in statistics}
    tied = test_emit_pipeline.TIED.items()
    found |= {
        f"tied: {kind}": partial(test_emit_pipeline.plan_of, given | {"reference": test_emit_pipeline.TIED_MODEL})
        for kind, given in tied
    }
    found |= {f"channels: {kind}": partial(channels, kind) for kind in ("groups", "beside copies")}
    turns = test_emit_turns.CASES.items()
    found |= {f"turns: {kind}": partial(turned, **given) for kind, given in turns}
    return found | {f"t5: {kind}": partial(t5, kind) for kind in test_emit_pipeline.SEVERAL}


def channels(kind: str) -> Subject:
    """Convolutions of which the tensor axis cuts channels, or groups."""
    normed, unet = test_emit_channels.NORMED, test_emit_channels.UNET
    if kind == "groups":
        return test_emit_channels.cut(emitted.subject(reference=normed, tp=2), test_emit_channels.CUTS[normed])
    return test_emit_channels.cut(emitted.subject(reference=unet, dp=2, tp=2), test_emit_channels.CUTS[unet])


@cache
def folder() -> Path:
    made = Path(mkdtemp(prefix="figures-"))
    atexit.register(rmtree, made)
    return made


def turned(**degrees: Any) -> Subject:
    """Gemma, whose blocks take turns."""
    config = folder() / "gemma" / "config.json"
    if not config.exists():
        config.parent.mkdir()
        whole = json.loads((EXAMPLES / "configs" / "gemma-3-1b" / "config.json").read_text(encoding="utf-8"))
        whole.pop("sliding_window_pattern")
        config.write_text(json.dumps(whole | test_emit_turns.SMALL), encoding="utf-8")
    return emitted.subject(reference=str(config.parent), **degrees)


def t5(kind: str) -> Subject:
    """An encoder and a decoder in stages."""
    (folder() / kind).mkdir(exist_ok=True)
    made = Small("t5", folder() / kind).subject(kind, Degrees(**test_emit_pipeline.SEVERAL[kind]))
    assert isinstance(made, Subject)
    return made


def script(name: str) -> Iterator[str]:
    """The parts of an emitted script, the files beside it, and what its ranks are to send."""
    plan = scripts()[name]()
    for file, content in emit(plan, Path("/plan")).texts:
        own = content.replace(str(ROOT), "").replace(str(folder()), "")
        parts = [own]
        if file.endswith(".py"):
            parts = [ast.get_source_segment(own, statement) or "" for statement in ast.parse(own).body]
        yield f"{file}: {len(own.splitlines())} lines, {' '.join(f'{crc32(part.encode()):08x}' for part in parts)}"
    for group in groups_of(plan.program, plan.fold):
        yield summed(f"{group.ranks} {group.mesh} {group.last}", text(group))
        for key, number in group.predicted[-1].counts.items():
            yield f"  {number} {text(key)}"
