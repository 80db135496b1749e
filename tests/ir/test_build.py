from meshwright.ir.graph.graph import Type
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
