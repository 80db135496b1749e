import pytest
from hypothesis import given
from hypothesis import strategies as st

from meshwright.ir.errors import MeshSyntax, UnknownAxis
from meshwright.ir.sharding.mesh import Mesh
from tests.ir.strategies import meshes


@given(meshes())
def test_text_round_trips(mesh: Mesh) -> None:
    assert Mesh.parse(str(mesh)) == mesh


@given(meshes())
def test_a_rank_is_its_coordinates(mesh: Mesh) -> None:
    assert [mesh.rank(mesh.coordinates(rank)) for rank in range(mesh.size)] == list(range(mesh.size))


@given(meshes(), st.data())
def test_every_rank_is_in_one_group(mesh: Mesh, data: st.DataObject) -> None:
    axes = data.draw(st.lists(st.sampled_from(mesh.names), unique=True)) if mesh.names else []
    groups = mesh.groups(axes)
    assert sorted(rank for group in groups for rank in group) == list(range(mesh.size))
    for group in groups:
        assert all(mesh.group(rank, axes) == group for rank in group)


def test_the_last_axis_varies_fastest() -> None:
    mesh = Mesh.parse("dp=2@rail tp=4@nvlink")
    assert mesh.coordinates(5) == {"dp": 1, "tp": 1}
    assert mesh.groups(("tp",)) == ((0, 1, 2, 3), (4, 5, 6, 7))
    assert mesh.groups(("dp",)) == ((0, 4), (1, 5), (2, 6), (3, 7))


def test_a_group_follows_the_order_of_its_axes() -> None:
    mesh = Mesh.parse("a=2 b=2")
    assert mesh.group(0, ("a", "b")) == (0, 1, 2, 3)
    assert mesh.group(0, ("b", "a")) == (0, 2, 1, 3)


@pytest.mark.parametrize("text", ["dp", "dp=", "dp=x", "dp=2@", "2=dp", "dp=-1"])
def test_what_is_no_mesh_is_refused(text: str) -> None:
    with pytest.raises(MeshSyntax):
        Mesh.parse(text)


def test_an_unknown_axis_is_refused() -> None:
    with pytest.raises(UnknownAxis, match="use one of dp"):
        Mesh.parse("dp=2").axis("tp")
