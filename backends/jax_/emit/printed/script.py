"""The file of a printed model, and how `train.py` takes gradients of it.

Every device runs the same code on its own parts (`jax.shard_map`, manual along all axes): it reads parameters where
they are stored, and sums gradients as the Program does, those of micro-batches after the last.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, replace
from functools import cached_property

from meshwright.backends.jax_.capabilities import TARGETS
from meshwright.backends.jax_.emit.accumulation import counted_in, weight_of
from meshwright.backends.jax_.emit.model import CARRIED_ARGUMENTS, changes, draws, invoked, rest_paths, with_keys
from meshwright.backends.jax_.emit.printed.bodies import Printed, Sums, printed_of, summed_apart, sums_of
from meshwright.backends.jax_.emit.printed.dialect import CHANGED, KEY
from meshwright.backends.jax_.emit.printed.expressions import group
from meshwright.backends.jax_.emit.printed.moves import used_by
from meshwright.backends.jax_.emit.printed.passes import Pass
from meshwright.backends.jax_.emit.shardings import Shardings
from meshwright.backends.jax_.emit.specs import Spec, spec_of
from meshwright.backends.jax_.emit.tables import pattern, table
from meshwright.backends.lines import fitted
from meshwright.backends.subject import Subject
from meshwright.ir.analysis.weights import COUNT, MEAN
from meshwright.ir.errors import EmissionPrinted
from meshwright.ir.program.lower import lower
from meshwright.ir.quoting import literal
from meshwright.ir.sharding.placement import Placement
from meshwright.ir.sharding.reshard import Step

GRADS, EACH, ONCE = "GRADS", "SUMS_OF_EACH", "SUMS"

ALIASES = {
    "Axes": "str | tuple[str, ...]",
    "Move": "Callable[[Array], Array]",
    "Ways": "tuple[tuple[int, Callable[[Array], Array], int, Callable[[Array], Array]], ...]",
}
"""Types that functions name."""

PATHS = '''\
def path_of(keys: Any) -> str:
    return PATH


def at(table: Mapping[str, Any], keys: Any) -> Any:
    """What a table has for a path; it may speak of numbered siblings as one."""
    path = path_of(keys)
    return table[path] if path in table else table[re.sub(r"(?<![^.])\\d+(?![^.])", "*", path)]


def specs_of(table: dict[str, P], tree: Any) -> Any:
    """For every leaf its PartitionSpec."""
    return tree_map_with_path(lambda keys, _: at(table, keys), tree)


def lie(table: dict[str, P], tree: Any) -> Any:
    """For every leaf its sharding."""
    return tree_map_with_path(lambda keys, _: NamedSharding(mesh, at(table, keys)), tree)


def by_path(tree: Any) -> Params:
    return {path_of(keys): leaf for keys, leaf in tree_flatten_with_path(tree)[0]}
'''

SUMMED = '''\
def summed(grads: Any, sums: Mapping[str, Callable[[Array], Array]]) -> Any:
    """Gradients as devices have them, added up."""
    return tree_map_with_path(lambda keys, grad: at(sums, keys)(grad), grads)
'''


ADDED = """\
    def added(sums: Any, micro: Batch) -> tuple[Any, None]:
        return jax.tree.map(jnp.add, sums, one(micro)), None

    shapes = jax.eval_shape(one, jax.tree.map(lambda rows: rows[0], batch))
    sums, _ = jax.lax.scan(added, jax.tree.map(jnp.zeros_like, shapes), batch)"""
ADDED_CHANGES = """\
    def added(carry: Any, micro: Batch) -> tuple[Any, None]:
        sums, rest = carry
        own, rest = one(rest, micro)
        return (jax.tree.map(jnp.add, sums, own), rest), None

    shapes, _ = jax.eval_shape(one, rest, jax.tree.map(lambda rows: rows[0], batch))
    (sums, rest), _ = jax.lax.scan(added, (jax.tree.map(jnp.zeros_like, shapes), rest), batch)"""
"""Micro-batches one after the other; where each changes what the model holds besides, it is handed from one to the
next."""


@dataclass(frozen=True)
class PrintedScript:
    """What is printed of a plan."""

    shardings: Shardings
    printed: Printed

    @staticmethod
    def of(subject: Subject) -> PrintedScript:
        """What is printed of a plan. Gradients that several readers leave of a value are added before they are summed,
        which XLA's partitioner may not do. Raises an `EmissionPrinted` for what no code is written for."""
        how = replace(TARGETS[subject.decisions.target].lowering(), adds_first=True).for_stack(subject.workload.stack)
        program = lower(subject.fold, subject.decisions, how, subject.workload)
        own = with_keys(replace(subject, program=program))
        return PrintedScript(Shardings(own), printed_of(own))

    @property
    def subject(self) -> Subject:
        return self.shardings.subject

    @cached_property
    def sums(self) -> dict[str, tuple[Sums, bool]]:
        """The sums of every parameter's gradient, by path as the user's state has it; and whether it is stacked."""
        found: dict[str, tuple[Sums, bool]] = {}
        apart = summed_apart(self.shardings)
        for path, slot, body, stacked in self.shardings.slots():
            sums = sums_of(body, slot)
            if sums is None:
                continue
            sums = replace(sums, once=sums.once[len(apart.get((body.name, slot.value), ())) :])
            if found.setdefault(path, (sums, stacked)) != (sums, stacked):
                raise EmissionPrinted(place=path, cause="parts of the model that share it sum its gradient otherwise")
        return found

    @property
    def several(self) -> bool:
        return self.subject.program.microbatches > 1

    @property
    def shared(self) -> tuple[str, ...]:
        """The tables that the script takes from the file beside it."""
        return (GRADS, *self.functions_of_sums, *["REST"] * bool(self.shardings.rest))

    @property
    def calls(self) -> tuple[str, ...]:
        """The functions that it takes from there last."""
        return ("summed",) if self.functions_of_sums else ()

    # the file beside the script

    def tables(self) -> Iterator[str]:
        """GRADS, where gradients lie in the end, and the sums that bring them there."""
        placed = {path: _spec(sums.there, path, stacked) for path, (sums, stacked) in self.sums.items()}
        yield from table(GRADS, placed, "where gradients lie that are added up")
        for name, (functions, what) in self.functions_of_sums.items():
            yield from _rows(name, functions, what)

    @cached_property
    def functions_of_sums(self) -> dict[str, tuple[dict[str, str], str]]:
        """The tables of sums that gradients are added up by, where they are not by themselves: of each the functions,
        by path, and what is said of it."""
        whole = {} if self.several else {path: (*sums.each, *sums.once) for path, (sums, _) in self.sums.items()}
        each = {path: sums.each for path, (sums, _) in self.sums.items()} if self.several else {}
        once = {path: sums.once for path, (sums, _) in self.sums.items()} if self.several else whole
        return {
            name: ({path: self.function(one, self.sums[path][1]) for path, one in steps.items()}, what)
            for name, steps, what in ((EACH, each, "of every micro-batch"), (ONCE, once, "after the last micro-batch"))
            if any(steps.values())
        }

    def summed(self, name: str, grads: str = "grads") -> str:
        """Gradients summed by a table, as code."""
        return f"summed({grads}, {name})" if name in self.functions_of_sums else grads

    def function(self, steps: tuple[Step, ...], stacked: bool) -> str:
        """The function that takes the steps of a gradient, which may be those of stacked parameters."""
        text = "grad"
        for step in steps:
            at = replace(step, dim=step.dim + (stacked and step.dim >= 0))
            if step.kind not in ("all_reduce", "reduce_scatter", "all_gather", "slice") or str(step.layout):
                raise EmissionPrinted(place=str(step), cause="a gradient takes it")
            name = "cut" if step.kind == "slice" else step.kind
            text = f"{name}({text}, {group(step.axes)}{f', {at.dim}' * (step.dim >= 0)})"
        return f"lambda grad: {text}"

    def functions(self) -> Iterator[str]:
        """The functions of constants, of bodies, and of the loss."""
        for name, lines in self.printed.constants.items():
            yield f"def {name}() -> Array:"
            yield from (f"    {called} = {text}" for called, text in lines[:-1])
            yield from (f"    return {lines[-1][1]}", "", "")
        for body in self.printed.bodies.values():
            one = body.function
            key = [f"{KEY}: Array"] * body.draws
            given = ", ".join(["params: Params", *key, *(f"{name}: Array" for name in one.arguments)])
            made = one.returns[: len(one.returns) - len(body.writes)]
            changed = dict(zip(body.writes, one.returns[len(made) :], strict=True))
            rows = [f"{CHANGED} = {{", *(f"    {literal(path)}: {to}," for path, to in changed.items()), "}"]
            last = f"return {', '.join((*made, *[CHANGED] * bool(changed)))}"
            yield f"def {body.name}({given}) -> Any:"
            inside = returned([*one.lines, *rows * bool(changed), last])
            yield from (part for line in inside for part in fitted(f"    {line}"))
            yield from ("", "")
        if self.shardings.rest:
            yield "def loss_of(state: Any, rest: Any, batch: Mapping[str, Array]) -> Any:"
            also = ", and what the model holds besides then" * changes(self.subject)
            yield f'    """The loss, of what this device has of parameters, rest and batch{also}."""'
            yield from self._begun()
        else:
            yield "def loss_of(state: Any, batch: Mapping[str, Array]) -> Array:"
            yield '    """The loss, of what this device has of parameters and batch."""'
            yield "    params = by_path(state)"
        whole = returned(list(Pass(self.printed, self.shardings).lines()))
        yield from (part for line in whole for part in fitted(f"    {line}".rstrip()))

    def _begun(self) -> Iterator[str]:
        """The first lines of a loss that is given a rest: parameters by path, what is left of buffers, and a key."""
        held, own = "rest", True
        if draws(self.subject):
            held, own = 'rest["held"]', bool(rest_paths(invoked(self.subject)))
            yield '    rngs = rest["rngs"]'
            yield f'    {KEY} = jax.random.fold_in(rngs["key"], rngs["count"])'
        yield f"    params = {{**by_path(state), **by_path({held})}}" if own else "    params = by_path(state)"
        if any(body.updates for body in self.subject.program.bodies):
            yield f"    left = dict(by_path({held}))"

    def beside(self, path: str) -> Iterator[str]:
        """The file after its mesh: functions that the printed ones use come first."""
        functions = [*self.functions(), "", "", *self.tables(), ""]
        own = [*([*SUMMED.splitlines(), "", ""] if self.functions_of_sums else []), *functions]
        yield "Params = Mapping[str, Any]"
        helpers = list(used_by(sorted(names_in(own))))
        aliases = {name: text for name, text in ALIASES.items() if name in names_in([*helpers, *own, PATHS])}
        yield from (f"{name} = {text}" for name, text in aliases.items())
        yield from ("", "")
        yield from (line for text in helpers for line in (*text.splitlines(), "", ""))
        yield from PATHS.replace("PATH", path).splitlines()
        yield from ("", "", *own)

    def imports(self, body: list[str]) -> tuple[tuple[str, ...], tuple[str, ...]]:
        """What the file imports: from Python, and from JAX."""
        used = names_in(body)
        python = [f"import {name}" for name in ("itertools", "math", "re") if name in used]
        abstract = [name for name in ("Callable", "Mapping", "Sequence") if name in used]
        python += [f"from collections.abc import {', '.join(abstract)}"]
        python += ["from functools import partial"] * ("partial" in used) + ["from typing import Any"]
        theirs = ["import jax", "import jax.numpy as jnp"] + ["import numpy as np"] * ("np" in used)
        named = ["from jax.ad_checkpoint import checkpoint_name"] * ("checkpoint_name" in used)
        tree = [name for name in ("keystr", "tree_flatten_with_path", "tree_map_with_path") if name in used]
        theirs += ["from jax import Array", *named, "from jax.sharding import AxisType, NamedSharding"]
        theirs += ["from jax.sharding import PartitionSpec as P", f"from jax.tree_util import {', '.join(tree)}"]
        return tuple(python), tuple(theirs)

    # gradients in the script

    def gradients(self) -> Iterator[str]:
        """The function `gradients_of`: the loss of a batch and its gradients."""
        casts = self.subject.workload.states.casts
        held = "cast(state, jnp.bfloat16)" if casts else "state"
        rest, changed = bool(self.shardings.rest), changes(self.subject)
        aux = ", has_aux=True" * changed
        loss = "(loss, rest)" if changed else "loss"
        given = "state, rest, batch" if rest else "state, batch"
        arguments, carried = "state: Tree, batch: Batch", CARRIED_ARGUMENTS
        result = "tuple[tuple[jax.Array, Tree], Tree]" if changed else "tuple[jax.Array, Tree]"
        yield f"def on_each({carried if rest else arguments}) -> {result}:"
        yield '    """The loss and its gradients, on every device those of its parts."""'
        weighs = False
        if self.several:
            weight = weight_of(self.subject)
            weighs, mean = weight.kind == COUNT, weight == MEAN
            data = group(self.printed.batch) if self.printed.batch else ""
            yield ""
            yield f"    def one({'rest: Tree, ' * changed}micro: Batch) -> Any:"
            yield "        own, micro = jax.lax.optimization_barrier((state, micro))  # gathered for every micro-batch"
            inner = f"{held.replace('state', 'own')}{', rest' * rest}, micro"
            yield f"        {loss}, grads = jax.value_and_grad(loss_of{aux})({inner})"
            if EACH in self.functions_of_sums:
                yield f"        grads = {self.summed(EACH)}"
            if casts:
                yield "        grads = cast(grads, jnp.float32)"
            if weighs:
                count = counted_in(weight)
                yield f"        count = {f'jax.lax.psum({count}, {data})' if data else count}"
                made = "jax.tree.map(lambda one: count * one, (loss, grads, 1.0))"
            else:
                made = "(loss, grads)" if changed else "loss, grads"
            yield f"        return {made}{', rest' * changed}"
            yield ""
            yield from (ADDED_CHANGES if changed else ADDED).splitlines()
            yield f"    loss, grads{', count' * weighs} = sums"
            by = "count" if weighs else "MICROBATCHES" if mean else ""
            if by:
                yield f"    loss, grads = jax.tree.map(lambda one: one / {by}, (loss, grads))"
        else:
            yield f"    {loss}, grads = jax.value_and_grad(loss_of{aux})({given.replace('state', held)})"
        narrow = casts and (not self.several or ONCE in self.functions_of_sums)
        grads = self.summed(ONCE, "cast(grads, jnp.bfloat16)" if narrow and self.several else "grads")
        yield f"    return {loss}, {f'cast({grads}, jnp.float32)' if narrow else grads}"
        yield ""
        yield ""
        yield f"def gradients_of({carried if changed else arguments}) -> {result}:"
        yield '    """The loss of a batch and its gradients, added up."""'
        yield "    specs, summed_specs = specs_of(PARAMS, state), specs_of(GRADS, state)"
        yield from ["    held = specs_of(REST, rest)"] * rest
        outs = "((P(), held), summed_specs)" if changed else "(P(), summed_specs)"
        yield from [f"    outs = {outs}"] * rest
        how = f"in_specs=(specs, {'held, ' * rest}ROWS), out_specs={'outs' if rest else outs}, check_vma=False"
        yield f"    every = jax.shard_map(on_each, mesh=mesh, {how})"
        yield f"    return every({given})"


def returned(lines: list[str]) -> list[str]:
    """Lines whose last one returns a name, with what was assigned to it just before returned instead."""
    *rest, before, last = lines if len(lines) > 1 else ["", *lines]
    name, assigned, text = before.partition(" = ")
    return [*rest, f"return {text}"] if assigned and last == f"return {name}" else lines


def names_in(lines: Iterable[str]) -> set[str]:
    """The words of code."""
    return {word for line in lines for word in re.findall(r"[A-Za-z_]\w*", line)}


def _spec(placement: Placement, path: str, stacked: bool) -> Spec:
    spec = spec_of(placement, path)
    return ((), *spec) if stacked and spec else spec


def _rows(name: str, functions: Mapping[str, str], what: str) -> Iterator[str]:
    """A table of functions by path; those of numbered siblings that are alike as one."""
    alike: dict[str, set[str]] = {}
    for path, text in functions.items():
        alike.setdefault(pattern(path), set()).add(text)
    rows = {(pattern(path) if len(alike[pattern(path)]) == 1 else path): text for path, text in functions.items()}
    yield f"{name}: dict[str, Callable[[Array], Array]] = {{  # {what}"
    yield from (f"    {literal(path)}: {text}," for path, text in rows.items())
    yield "}"
