import numpy as np
import pytest

from meshwright.ir.errors import BadAttribute, MeshwrightError
from meshwright.ir.graph.graph import Op, Type
from meshwright.ir.rules.base import Signature
from tests.build import Builder


def test_types_come_from_the_rules() -> None:
    g = Builder()
    x = g.input((2, 8, 16), labels=("b", "s", ""))
    w = g.param("up.weight", (32, 16))
    y = g.op("linear", x, w, module="up")
    g.output(y)
    graph = g.graph()
    assert graph.types[y] == Type((2, 8, 32), "f32")
    assert graph.ops[0].module == "up"
    assert graph.param[w].path == "up.weight"


def test_integers_are_read_whatever_library_they_are_of() -> None:
    attrs = (("dim", np.int64(1)), ("sizes", (np.int32(2), 3, True)), ("mode", "sum"), ("mixed", (1, "2")))
    for one in (Op("sum", (), ("o",), attrs), Signature("sum", (), attrs)):
        assert one.integer("dim") == 1
        assert one.integers("sizes") == (2, 3, 1)
        assert {type(found) for found in (one.integer("dim"), *one.integers("sizes"))} == {int}
        for name in ("mode", "mixed"):
            with pytest.raises(MeshwrightError):
                one.integers(name)
    with pytest.raises(BadAttribute):
        Op("sum", (), ("o",), attrs).integer("mode")
