"""Blocks that the backward pass runs again, by `jax.checkpoint` around their equations of the traced loss.

Of a scan that is its body, of blocks that are written out the equations from the first to the last that is known to lie
in one (`Places.spans`). Either all of a block is computed again, or it keeps what costs something to make, as compilers
do, and what else it reads is made again: what is made element by element, or shows a value otherwise, and parameters
that are gathered for each pass. Parameters that are kept as they were gathered enter a block from outside.

What a block that is computed again reads may wait in the host's memory until then (`waiting`): there a value has a name
(`checkpoint_name`), and a policy of JAX sends what has it away and brings it back. XLA for CPUs leaves it where it is.
"""

from __future__ import annotations

import textwrap
from collections.abc import Collection, Iterator, Mapping
from contextlib import suppress

from meshwright.backends.jax_.emit.shardings import Shardings
from meshwright.backends.jax_.emit.tables import table
from meshwright.backends.printing.wires import wires_of
from meshwright.backends.subject import Piece
from meshwright.ir.errors import EmissionRecompute
from meshwright.ir.graph.fold import Call
from meshwright.ir.quoting import literal

CHEAP = """\
abs acos acosh add add_any and asin asinh atan atan2 atanh bitcast_convert_type broadcast_in_dim cbrt ceil clamp
complex concatenate conj convert_element_type copy cos cosh div eq erf erf_inv erfc exp exp2 expm1 floor ge gt imag
integer_pow iota is_finite le log log1p logistic lt max min mul ne neg not or pad pow real reduce_precision rem
reshape rev round rsqrt select_n sharding_constraint sign sin sinh slice split sqrt square squeeze stop_gradient sub
tan tanh transpose xor
"""
"""Primitives that make a value element by element, or show it otherwise."""
BUT_CHEAP = '''\
def but_cheap(primitive: Any, *_: Any, **params: Any) -> bool:
    """Whether a block keeps what this makes for its backward pass: all but what costs little to make again. What has a
    name is kept by its name."""
    cheap = """
NAMES
    """
    return params["name"] == "kept" if primitive.name == "name" else primitive.name not in cheap.split()
'''.replace("NAMES", textwrap.indent(CHEAP.rstrip(), "    "))
POLICY = """\
WAITING = jax.checkpoint_policies.save_and_offload_only_these_names(
    names_which_can_be_saved=[],
    names_which_can_be_offloaded=["waiting"],
    offload_src="device",
    offload_dst="pinned_host",
)
"""
CARRIED = "+"
"""Of a loop's body, where a value of the run before stands among its operands."""


def again(shardings: Shardings) -> dict[str, int | None]:
    """By the place of its first equation, the number after that of a block's last; None where all of a body is one."""
    whole, cheaply = _blocks(shardings)
    found = cheaply | whole
    return dict(sorted(found.items(), key=lambda item: (item[1] or 0, item[0])))


def cheaply(shardings: Shardings) -> set[str]:
    """The places of those that keep what costs something to make."""
    whole, found = _blocks(shardings)
    return set(found) - set(whole)


def _blocks(shardings: Shardings) -> tuple[dict[str, int | None], dict[str, int | None]]:
    """Blocks that are computed again, and those of which only what costs little is."""
    whole: dict[str, int | None] = {}
    found: dict[str, int | None] = {}
    for piece in shardings.subject.pieces:
        computed = _computed(piece)
        whole |= dict(_places(shardings, piece, computed))
        others = tuple(path for path in piece.segment.paths if path not in computed)
        if shardings.gathers_again(piece):
            found |= dict(_places(shardings, piece, others))
        elif keeps(piece) and not (shardings.piped and shardings.scan(piece.segment.paths[0]) is None):
            with suppress(EmissionRecompute):  # then it keeps what JAX keeps of it
                found |= dict(_places(shardings, piece, others))
        if both := whole.keys() & found.keys():
            raise _refuse(piece, f"the loop at {min(both)} computes some of its blocks again, and others not")
    return whole, found


def chooses(shardings: Shardings) -> bool:
    """Whether any block keeps what costs something to make, those included that stages of a pipeline run by
    themselves."""
    by_stages = (piece for piece in shardings.subject.pieces if shardings.piped and keeps(piece))
    written_out = any(shardings.scan(piece.segment.paths[0]) is None and not _computed(piece) for piece in by_stages)
    return written_out or bool(cheaply(shardings))


def keeps(piece: Piece) -> bool:
    """Whether blocks keep only what costs something to make. Loops within them keep what JAX keeps."""
    return piece.repeated and all(op.kind != "opaque" for op in piece.graph.ops)


def _computed(piece: Piece) -> tuple[str, ...]:
    """The blocks of a piece that are computed again."""
    if piece.ahead is not None:  # the first blocks alone
        return piece.segment.paths[: piece.ahead.first]
    return piece.segment.paths if piece.plan.recompute else ()


def _places(shardings: Shardings, piece: Piece, paths: tuple[str, ...]) -> Iterator[tuple[str, int | None]]:
    if not paths:
        return
    if not piece.repeated:
        raise _refuse(piece, "it is run again, and it is no block")
    scan = shardings.scan(paths[0])
    if scan is None:
        yield from (_span(shardings.spans, piece, path) for path in paths)
    elif paths == piece.segment.paths:
        yield f"{scan.place}/0", None
    else:
        raise _refuse(piece, "it is run again, and a scan computes all of its blocks again, or none")


def _span(spans: Mapping[str, tuple[int, int]], piece: Piece, path: str) -> tuple[str, int]:
    first, last = spans[path]
    alike = [one for one in spans.values() if one[0] < last and first < one[1]]
    if len(alike) > 1:
        raise _refuse(piece, "it is run again, and its equations lie in one with those of other blocks")
    return str(first), last


def _refuse(piece: Piece, why: str) -> EmissionRecompute:
    return EmissionRecompute(
        place=f"plan {piece.plan.name}",
        cause=why,
        ways=("--fix recompute=none", "--fix regather=off", "--fix offload=none"),
    )


# What waits in the host's memory --------------------------------------------------------------------------------------


def inputs_that_wait(piece: Piece, shardings: Shardings) -> tuple[int, ...]:
    """Which inputs of a block wait."""
    body = shardings.subject.bodies[piece.plan.name]
    held = {kept.name for kept in body.kept if kept.host}
    if other := held - set(body.inputs):
        raise _refuse(piece, f"it keeps {', '.join(f'%{name}' for name in sorted(other))} on the host, too")
    return tuple(at for at, name in enumerate(body.inputs) if name in held)


def waiting(shardings: Shardings) -> tuple[str, ...]:
    """Where the traced loss makes the values that wait: the equation and its result, `12:0`; of what goes from run to
    run of a loop the loop, `12@+`."""
    if not shardings.subject.decisions.offload.activations:
        return ()
    calls = tuple(shardings.subject.fold.calls())
    sources = wires_of(shardings.subject.fold).sources
    pieces = {path: piece for piece in shardings.subject.pieces if piece.repeated for path in piece.segment.paths}
    found: dict[str, None] = {}
    for call, read in zip(calls, sources, strict=True):
        if (piece := pieces.get(call.path)) is None:
            continue
        for at in inputs_that_wait(piece, shardings):
            source = read[at]
            maker, output = (calls[source[0]], source[1]) if isinstance(source, tuple) else (None, 0)
            found[_made_at(shardings, piece, call, maker, output)] = None
    return tuple(found)


def _made_at(shardings: Shardings, piece: Piece, call: Call, maker: Call | None, output: int) -> str:
    places = shardings.subject.calls.places
    assert places is not None
    if (scan := shardings.scan(call.path)) is not None:
        return f"{scan.place}@{CARRIED}"
    value = maker.body.graph.outputs[output] if maker is not None else "what it reads"
    looped = maker is not None and shardings.scan(maker.path) is not None
    place = places.values.get(maker.body.name, {}).get(value) if maker is not None and not looped else None
    if maker is None or place is None:
        raise _refuse(piece, f"it reads %{value} from the host, which no equation of its own makes")
    if not place.startswith("+"):
        return place
    number, _, rest = place[1:].partition(":")
    return f"{places.begins[maker.path] + int(number)}:{rest}"


# Tables ---------------------------------------------------------------------------------------------------------------


def tables(shardings: Shardings, blocks: Mapping[str, int | None]) -> Iterator[str]:
    """The tables AGAIN, CHEAPLY, GATHERED and ON_HOST."""
    yield "AGAIN: dict[str, int | None] = {  # of blocks that are run again, from the first equation to the last"
    yield from (f"    {literal(place)}: {last}," for place, last in blocks.items())
    yield "}"
    if 0 < len(few := cheaply(shardings)) < len(blocks):
        yield f"CHEAPLY: set[str] = {{{_listed(few)}}}  # of these, where only what costs little is made again"
    if there := waiting(shardings):
        yield "ON_HOST: set[str] = {  # values that wait in the host's memory, by where they are made"
        yield from (f"    {literal(place)}," for place in there)
        yield "}"
        yield from POLICY.rstrip().split("\n")
    if shardings.gathered_again:
        yield from table("GATHERED", shardings.gathered_again, "parameters of blocks, where these read them")


def _listed(places: Collection[str]) -> str:
    return ", ".join(map(literal, sorted(places)))
