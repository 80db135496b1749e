"""The configurations that `benchmarks.estimate_cost` prices are legal, and as they are said to be."""

from itertools import islice

from benchmarks.estimate_cost import BLOCKS, GLOBAL_BATCH, MESHES, RANKS, configurations
from meshwright.planner.question.pins import fill, read


def test_random_configurations_are_legal_and_repeat() -> None:
    found = list(islice(configurations(1), 300))
    assert found == list(islice(configurations(1), 300))
    for pins in found:
        config = fill(read(pins, "test"), ranks=RANKS, global_batch=GLOBAL_BATCH)
        config.degrees()
        assert BLOCKS % (config.pp * config.vp) == 0
    assert sum(int(pins["pp"]) > 1 for pins in found) >= len(found) / 2


def test_few_meshes() -> None:
    found = [(pins["tp"], pins["cp"], pins["pp"]) for pins in islice(configurations(2, MESHES), 300)]
    assert 1 < len(set(found)) <= MESHES
