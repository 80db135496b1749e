"""What the process of a verification does: each script's own functions, and the user's model on one device.

    python -m meshwright.backends.jax_.verify.run JOBS.json

For every job: the parameters that the script begins with; for every step the loss of its own compiled step, every
gradient of its loss, and the parameters after its optimizer's step with these. Beside it the model on the first device,
with the parameters that the script began with: the factory's own functions as the front end calls them, no line of the
script's; in micro-batches, too, where these mean something else to it (`apart`). The reference's optimizer is given
the gradients of the run, which are compared themselves: of what is nothing but noise Adam makes a step of full length,
and no two runs agree on its direction. A batch that says nothing (zeros) is drawn. Of a script some of whose values are
off all is done once more, from the same numbers in fp64.
"""

from __future__ import annotations

import importlib.util
import json
import sys
from pathlib import Path
from typing import Any

import jax
import numpy as np
import optax
from jax.extend.random import define_prng_impl
from jax.tree_util import keystr

from meshwright.backends.jax_.verify.apart import Cuts
from meshwright.backends.jax_.verify.waiting import traced_bytes
from meshwright.ir.frontends.door import load_model
from meshwright.ir.frontends.jax_.source import loss_of

BESIDE = ("train_shardings", "train_pipeline")
FLOOR = 6e-3
"""Of the largest element of all, below which differences of a tensor are not measured by its own size: 2^-24, by which
fp32 rounds a term as large as that one, is 1e-5 of it."""


def main(jobs: Path) -> None:
    """Run all jobs, and write what was found beside each script."""
    given = json.loads(jobs.read_text(encoding="utf-8"))
    jax.config.update("jax_num_cpu_devices", given["devices"])
    for job in given["jobs"]:
        found = _run(job, given["steps"])
        Path(job["result"]).write_text(json.dumps(found), encoding="utf-8")


def load(path: str) -> Any:
    """An emitted script as a module. Files beside it have one name in all folders, and are imported anew."""
    spec = importlib.util.spec_from_file_location("emitted", path)
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    sys.modules[spec.name] = module
    folder = str(Path(path).parent)
    for beside in BESIDE:
        sys.modules.pop(beside, None)
    sys.path.insert(0, folder)
    try:
        spec.loader.exec_module(module)
    finally:
        sys.path.remove(folder)
    return module


def _run(job: dict[str, Any], steps: int) -> dict[str, Any]:
    """What a script leaves; where values are off, that may be rounding, so it is run again in fp64 then."""
    script: Any = load(job["script"])
    found = _compared(script, job, steps)
    if all(by <= job["exact"] for by in found["off"].values()):
        return found
    try:
        with jax.enable_x64(True):
            return found | {"in_fp64": _compared(script, job, steps, wide=True)["off"]}
    except (Exception, SystemExit) as error:  # noqa: BLE001 - what a model's own code makes of fp64 is no fault of a run
        return found | {"failed_in_fp64": f"{type(error).__name__}: {error}".splitlines()[0]}


def _compared(script: Any, job: dict[str, Any], steps: int, *, wide: bool = False) -> dict[str, Any]:
    """The steps of a script and of the model on one device; `wide`: from the same numbers, in fp64."""
    with jax.enable_x64(False):
        state, states, *rest = script.start()
        rest = [_still(one) for one in rest] if job["still"] else rest
        begun = jax.jit(script.begin)()
        batches = [_batch(script, number, job["words"]) for number in range(steps)]
    if wide:
        state, rest, begun, batches = (_widened(tree) for tree in (state, rest, begun, batches))
        states = jax.jit(script.optimizer.init, out_shardings=script.kept)(state)
    as_model = getattr(script, "model_state", lambda tree: tree)
    held = rest[0] if rest else getattr(script, "rest", ())
    cuts = Cuts(**job["cuts"])
    first = next(cuts.parts(batches[0]))[-1]
    reference = _Reference(job["model"], cuts, as_model(state), held, first, still=job["still"])
    gradients = jax.jit(script.gradients_of)
    update = jax.jit(script.updated, out_shardings=(script.stored, script.kept))
    compiled, temp, waiting = None, 0, 0
    off: dict[str, float] = {}
    losses, compared = [], 0
    off |= _far("the parameter at the start ", state, begun)
    for number, host in enumerate(batches):
        batch = script.placed(host)
        if compiled is None:
            traced = script.step.trace(state, states, *rest, batch)
            waiting = traced_bytes(traced.jaxpr)
            compiled = traced.lower().compile(compiler_options={"xla_disable_hlo_passes": job["apart"]})
            temp = compiled.memory_analysis().temp_size_in_bytes
            if not wide:
                Path(job["hlo"]).write_text(compiled.as_text(), encoding="utf-8")
        _, grads = gradients(state, *rest, batch)
        expected, model_grads, after, left = reference.step(host, as_model(grads))
        stepped = update(state, states, grads)
        _, _, *rest, loss = compiled(state, states, *rest, batch)
        state, states = stepped
        losses.append(float(loss))
        for what, one, other in (
            ("the loss", loss, expected),
            ("the gradient of ", as_model(grads), model_grads),
            ("the parameter ", as_model(state), after),
            *(("the buffer ", reference.compared(jax.tree.map(_shown, one)), left) for one in rest),
        ):
            far = _far(f"step {number}: {what}", one, other)
            compared = max(compared, len(far))
            off |= far
    tensors = 2 * compared + sum(len(jax.tree.leaves(one)) for one in rest)
    return {"losses": losses, "tensors": tensors, "off": off, "temp_bytes": temp, "waiting_bytes": waiting}


def _widened(tree: Any) -> Any:
    """The same numbers in fp64."""
    return jax.tree.map(
        lambda one: one.astype(np.float64) if jax.numpy.issubdtype(one.dtype, np.floating) else one, tree
    )


def _batch(script: Any, number: int, words: int) -> dict[str, Any]:
    """A batch of the user's, with numbers drawn in place of such as are all alike."""
    drawn = np.random.default_rng(number)

    def told(one: Any) -> Any:
        value = np.asarray(one)
        if value.size < 2 or not np.all(value == value.flat[0]):
            return value
        if np.issubdtype(value.dtype, np.integer):
            return drawn.integers(0, words, value.shape).astype(value.dtype)
        floating = np.issubdtype(value.dtype, np.floating)
        return drawn.standard_normal(value.shape).astype(value.dtype) if floating else value

    return {name: told(one) for name, one in script.model_file.example_inputs(script.GLOBAL_BATCH, script.SEQ).items()}


class _Reference:
    """The user's model on one device, beginning with the parameters of a run."""

    def __init__(self, model: str, cuts: Cuts, state: Any, rest: Any, batch: Any, *, still: bool) -> None:
        source: Any = load_model(model)
        made = source.made(jax.eval_shape(lambda: batch))
        tree = jax.tree.structure(made.state)
        trained = [leaf.kind == "param" for leaf in made.leaves]
        make = source.hooks["optimizer"] or (lambda: optax.adamw(3e-4, weight_decay=0.01))
        self.optimizer = make()

        def loss_and_left(state: Any, rest: Any, batch: Any) -> Any:
            parts = {True: iter(jax.tree.leaves(state)), False: iter(rest)}
            outputs, after = made.run(jax.tree.unflatten(tree, [next(parts[one]) for one in trained]), batch)
            left = [one for one, its in zip(jax.tree.leaves(after), trained, strict=True) if not its]
            return loss_of(source, outputs, batch), left

        def step(state: Any, states: Any, grads: Any) -> Any:
            updates, states = self.optimizer.update(grads, states, state)
            return optax.apply_updates(state, updates), states

        self.apart = still and not made.keyed  # keys of a run are not the model's own
        self.cuts, self.updated = cuts, jax.jit(step)
        self.gradients = jax.jit(jax.value_and_grad(loss_and_left, has_aux=True))
        self.state = self._here(state)
        self.rest = [self._here(one) for one in jax.tree.leaves(self._own(rest))]
        self.states = jax.jit(self.optimizer.init)(self.state)
        self.random = [leaf.random for leaf in made.leaves if leaf.kind != "param"] if still else []

    def _here(self, tree: Any) -> Any:
        return jax.device_put(jax.device_get(tree), jax.devices()[0])

    def step(self, batch: Any, grads: Any) -> tuple[Any, Any, Any, Any]:
        """The loss, the gradients, the parameters after a step with those of the run, and what else the model holds."""
        sums: Any = None
        rests = [self.rest] if self.cuts.copies == 1 else [_of_copy(self.rest, at) for at in range(self.cuts.copies)]
        for weight, copy, part in self.cuts.parts(jax.device_get(batch)):
            (loss, rests[copy]), own = self.gradients(self.state, rests[copy], self._here(part))
            weighed = jax.tree.map(lambda one, weight=weight: weight * one, (loss, own))
            sums = weighed if sums is None else jax.tree.map(jax.numpy.add, sums, weighed)
        loss, own = sums
        self.rest = [one if _is_key(one) else left for one, left in zip(self.rest, rests[0], strict=True)]
        self.state, self.states = self.updated(self.state, self.states, self._here(grads))
        return loss, own, self.state, self.compared([_shown(one) for one in self.rest])

    def compared(self, rest: Any) -> Any:
        """What of what the model holds besides is compared: where nothing is drawn, not what draws come from."""
        if not self.random:
            return rest
        own = jax.tree.leaves(self._own(rest))
        return [one for one, random in zip(own, self.random, strict=True) if not random]

    def _own(self, rest: Any) -> Any:
        """What the model itself holds of what a run holds."""
        return rest.get("held", ()) if self.apart and isinstance(rest, dict) else rest


def _still(tree: Any) -> Any:
    """The same with keys of which everything that is drawn is made of zeros: no dropout drops anything."""

    def zeros(key: Any, width: int, shape: tuple[int, ...]) -> Any:
        return jax.numpy.zeros(shape, f"uint{width}")

    no_draws = define_prng_impl(
        key_shape=(2,),
        seed=lambda seed: jax.numpy.zeros(2, "uint32"),
        split=lambda key, shape: jax.numpy.zeros((*shape, 2), "uint32"),
        random_bits=zeros,
        fold_in=lambda key, data: key,
        name="no_draws",
    )

    def still(keys: Any) -> Any:
        return jax.random.wrap_key_data(jax.numpy.zeros((*keys.shape, 2), "uint32"), impl=no_draws)

    return jax.tree.map(lambda one: still(one) if _is_key(one) else one, tree)


def _is_key(one: Any) -> bool:
    return bool(jax.numpy.issubdtype(one.dtype, jax.dtypes.prng_key))


def _of_copy(rest: list[Any], copy: int) -> list[Any]:
    """What the model holds besides, with the keys that this copy has for itself."""

    def own(keys: Any) -> Any:
        made = [jax.random.fold_in(key, copy) for key in keys.reshape(-1)]
        return jax.numpy.stack(made).reshape(keys.shape)

    return [own(one) if _is_key(one) else one for one in rest]


def _shown(one: Any) -> Any:
    """An array as numbers: of keys, those that they are made of."""
    return jax.random.key_data(one) if _is_key(one) else one


def _far(what: str, found: Any, expected: Any) -> dict[str, float]:
    """How far leaves of the same tree are apart, by the largest element; of each its path."""
    pairs = [
        (keystr(keys, simple=True, separator="."), np.asarray(one, np.float64), np.asarray(other, np.float64))
        for (keys, one), other in zip(
            jax.tree_util.tree_flatten_with_path(jax.device_get(found))[0],
            jax.tree.leaves(jax.device_get(expected)),
            strict=True,
        )
    ]
    sizes = {path: float(np.max(np.abs(other), initial=0.0)) for path, _, other in pairs}
    least = FLOOR * max(sizes.values(), default=0.0)
    far = {}
    for path, one, other in pairs:
        apart = float(np.max(np.abs(one - other), initial=0.0))
        far[f"{what}{path}"] = apart / max(sizes[path], least, float(np.finfo(np.float32).tiny))
    return far


if __name__ == "__main__":
    main(Path(sys.argv[1]))
