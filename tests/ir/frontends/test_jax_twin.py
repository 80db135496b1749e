"""Small twins of models in JAX: what is made small in each of the four ways of writing one, and what is refused."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

jax = pytest.importorskip("jax")
pytest.importorskip("flax")
pytest.importorskip("equinox")

from meshwright.ir.errors import NoTwin  # noqa: E402
from meshwright.ir.frontends.door import load_model, twin_of  # noqa: E402
from meshwright.ir.frontends.jax_.small.trial import computed, ran, trial_of  # noqa: E402
from meshwright.ir.frontends.jax_.small.twin import HOW  # noqa: E402
from meshwright.ir.frontends.twin import Scale  # noqa: E402

SCALE = Scale(layers=2, seq=16, tokens=16)
HOOKS = """

def example_inputs(batch, seq):
    return {"x": jnp.zeros((batch, seq, 4))}


def loss(outputs, batch):
    return jnp.sum(outputs**2)
"""
CONFIGURED = """
from dataclasses import dataclass
from functools import partial
from typing import Any

import jax
import jax.numpy as jnp


@dataclass(frozen=True)
class Config:
    width: int = 512
    heads: int = 16
    layers: int = 12
    dtype: Any = jnp.bfloat16


def init(key, config):
    w = config.width
    block = {"up": jnp.ones((config.layers, w, 4 * w)), "down": jnp.ones((config.layers, 4 * w, w))}
    return jax.tree.map(lambda one: one.astype(config.dtype), {"into": jnp.ones((4, w)), "blocks": block})


def apply(params, x, config):
    x = x.astype(config.dtype) @ params["into"]

    def block(x, p):
        h = (x @ p["up"]).reshape(*x.shape[:2], config.heads, -1)
        return x + jnp.tanh(h).reshape(*x.shape[:2], -1) @ p["down"], None

    return jax.lax.scan(block, x, params["blocks"])[0]


def model(config):
    return lambda key: init(key, config), lambda params, x: apply(params, x, config)
"""
SMALL = "Config(width=64, heads=8, layers=2, dtype=jax.numpy.float32)"
NUMBERED = """
import jax
import jax.numpy as jnp
from flax import nnx

WIDTH, HEADS, LAYERS = 512, 16, 6


class Block(nnx.Module):
    def __init__(self, rngs):
        self.up, self.down = (nnx.Linear(WIDTH, WIDTH, rngs=rngs) for _ in range(2))

    def __call__(self, x):
        return x + self.down(apart(self.up(x)))


@jax.jit
def apart(x):
    return jnp.tanh(x.reshape(*x.shape[:2], HEADS, -1)).reshape(x.shape)


class Model(nnx.Module):
    def __init__(self, *, rngs):
        self.into = nnx.Linear(4, WIDTH, rngs=rngs)
        self.blocks = nnx.List([Block(rngs) for _ in range(LAYERS)])

    def __call__(self, x):
        x = self.into(x)
        for block in self.blocks:
            x = block(x)
        return x


def big():
    return Model(rngs=nnx.Rngs(0))
"""


def written(folder: Path, text: str, name: str = "") -> Path:
    """A model file of a name of its own: twins import it."""
    file = folder / f"{name or folder.name}.py"
    file.write_text(f"{text}{HOOKS}")
    return file


def twin_in(folder: Path, file: Path) -> str:
    """The text of the twin's file, which is written beside."""
    ((name, text),) = twin_of(load_model(f"{file}:big"), f"{file}:big", SCALE).files(folder)
    (folder / name).write_text(text)
    return text


def held(reference: Path) -> dict[str, tuple[int, ...]]:
    return dict(ran(trial_of(load_model(f"{reference}:twin"), 16)).parameters)


BLOCKS = {
    **{f"blocks.{at}.up": (64, 256) for at in range(2)},
    **{f"blocks.{at}.down": (256, 64) for at in range(2)},
}


@pytest.mark.parametrize(
    ("made", "says"),
    [
        ("return model(Config())", f"model(config={SMALL})"),
        (
            "config = Config(); return partial(init, config=config), partial(apply, config=config)",
            f"functools.partial(init, config=(config_1 := {SMALL})), functools.partial(apply, config=config_1)",
        ),
    ],
)
def test_calls_that_made_a_pair_of_functions_are_made_with_small_numbers(made: str, says: str, tmp_path: Path) -> None:
    """Blocks of a scan too. What two functions are given is made once; all is in fp32."""
    text = twin_in(tmp_path, written(tmp_path, f"{CONFIGURED}\n\ndef big():\n    {made}\n"))
    assert says in text
    assert held(tmp_path / "twin.py") == {"into": (4, 64), **BLOCKS}


def test_a_factory_with_sizes_is_called_with_small_ones(tmp_path: Path) -> None:
    text = twin_in(tmp_path, written(tmp_path, f"{CONFIGURED}\n\ndef big(of=Config()):\n    return model(of)\n"))
    assert f"big(of={SMALL})" in text


def test_numbers_of_the_file_are_small_ones(tmp_path: Path) -> None:
    """Those that no shape of an inner function's arguments shows, too: what JAX has traced with others is forgotten,
    by the trials and by what comes after them."""
    file = written(tmp_path, NUMBERED)
    source: Any = load_model(f"{file}:big")
    twin = twin_of(source, f"{file}:big", SCALE)
    ((_, text),) = twin.files(tmp_path)
    assert f"{tmp_path.name}.WIDTH = 64\n{tmp_path.name}.HEADS = 8\n{tmp_path.name}.LAYERS = 2\n" in text
    assert "return Model(rngs=flax.nnx.rnglib.Rngs(default=0))" in text
    shapes = [shape for step in ran(trial_of(source, 16)).steps for shape in step.shapes]
    assert (2, 16, 16, 32) in shapes
    assert (2, 16, 8, 8) not in shapes


def test_the_files_own_twin_is_taken(tmp_path: Path) -> None:
    file = written(
        tmp_path, f"{CONFIGURED}\n\ndef big():\n    return model(Config())\n\n\ndef twin():\n    return big()\n"
    )
    twin = twin_of(load_model(f"{file}:big"), f"{file}:big", SCALE)
    assert (twin.reference, twin.text) == (f"{file}:twin", None)


INLINE = """
import jax.numpy as jnp


def big():
    return lambda key: {{"w": jnp.ones((4, {width}), {dtype})}}, lambda params, x: jnp.tanh(x @ params["w"])
"""


@pytest.mark.parametrize(
    ("width", "dtype", "says"),
    [
        (2**28, "jnp.float32", "its numbers make no model that holds and makes less than"),
        (64, "jnp.bfloat16", "it computes in less than fp32 whatever it is given (w)"),
    ],
)
def test_models_that_cannot_be_made_small_are_refused(width: int, dtype: str, says: str, tmp_path: Path) -> None:
    file = written(tmp_path, INLINE.format(width=width, dtype=dtype))
    with pytest.raises(NoTwin) as caught:
        twin_of(load_model(f"{file}:big"), f"{file}:big", SCALE)
    assert (caught.value.place, caught.value.fix) == (str(file), HOW)
    assert says in caught.value.cause


def test_a_model_that_is_small_as_it_is_is_its_own_twin(tmp_path: Path) -> None:
    assert "return big()" in twin_in(tmp_path, written(tmp_path, INLINE.format(width=64, dtype="jnp.float32")))


def test_a_file_that_only_imports_from_a_file_of_jax_is_of_jax(tmp_path: Path) -> None:
    model = written(tmp_path, INLINE.format(width=64, dtype="jnp.float32"))
    again = tmp_path / "again.py"
    again.write_text(f"from {model.stem} import big, example_inputs, loss\n")
    assert load_model(f"{again}:big").framework == "jax_"


RUNS = """
import jax
import jax.numpy as jnp


def example_inputs(batch, seq):
    return {"x": jnp.zeros((batch, seq), jnp.int32)}


def loss(outputs, batch):
    return jnp.sum(outputs)


def init(key):
    return {
        "table": jnp.ones((50, 24)), "q": jnp.ones((24, 2, 3)), "experts": jnp.ones((5, 6, 7)), "scale": jnp.ones(7),
        "places": jnp.ones((9, 24)), "unread": jnp.ones(3), "blocks": [{"w": jnp.ones((7, 7))} for _ in range(2)],
    }


def apply(params, x):
    h = params["table"][x] + params["places"][jnp.arange(x.shape[1])]
    h = jnp.einsum("bsd,dhk->bshk", h, params["q"]).reshape(*x.shape, 6)
    h = jnp.einsum("bsd,edf->ebsf", h, params["experts"])[0] * params["scale"]
    h = jax.lax.top_k(h, 3)[0] @ params["blocks"][0]["w"][:3] @ params["blocks"][1]["w"]
    return h * jax.random.bernoulli(jax.random.key(0), 0.5, h.shape)


def big():
    return init, apply
"""


def test_what_a_run_says(tmp_path: Path) -> None:
    """Heads and what they hold are one dimension of a matrix; words are looked up by an entry of the batch, positions
    are not; a selection says how many of how many it keeps."""
    file = tmp_path / "model.py"
    file.write_text(RUNS)
    source: Any = load_model(f"{file}:big")
    found = ran(trial_of(source, 5))
    assert found.parameters["q"] == (24, 6)
    assert found.parameters["table"] == (50, 24)
    assert {prefix: dict(kinds) for prefix, kinds in found.kinds.items()} == {"blocks.": {("w",): 2}}
    assert [(one.rows, one.words) for one in found.steps if one.rows is not None] == [(50, True), (9, False)]
    assert [one.chosen for one in found.steps if one.chosen] == [(3, 7)]
    assert len([one for one in found.steps if one.chances is not None]) == 1
    reads = dict(found.read_by or {})
    assert (reads["table"], reads["scale"], reads["q"]) == ("look-up", "elementwise", "dot_general")
    assert found.unread("unread")
    assert computed(source, 5) == computed(source, 5) is not None
