"""Clusters at random, and the pieces to build them by hand."""

from __future__ import annotations

from dataclasses import replace

from hypothesis import strategies as st

from meshwright.cost_models.hardware.cluster import Cluster
from meshwright.cost_models.hardware.devices import NIC_KINDS, Device, HostLink, Island, devices
from meshwright.cost_models.hardware.parts import LinkMatrix, Nic, Pool, PoolLink
from meshwright.cost_models.hardware.quantity import given

decimals = st.decimals("0.001", "9999", places=3, allow_nan=False)
kinds = st.sampled_from(NIC_KINDS)


def gbps(value: float) -> object:
    return given(float(value), "Gb/s")


nics = st.builds(
    Nic, kind=kinds, rate=decimals.map(lambda number: given(float(number), "Gb/s")), count=st.integers(1, 9)
)


@st.composite
def own_devices(draw: st.DrawFn, name: str) -> Device:
    """A device that a user describes, whole or like another one."""

    def number(unit: str, scale: int) -> object:
        return given(float(draw(decimals) * scale), unit)

    if draw(st.booleans()):
        base = draw(st.sampled_from(devices()))
        memory = number("bytes", 10**9)
        return replace(base, name=name, aliases=(), like=base.name, memory=memory, driver_memory=None)
    size = given(float(draw(st.integers(2, 16))), "devices")
    island = Island(kind="nvlink", bandwidth=number("bytes/s", 10**9), size=size, spans_hosts=draw(st.booleans()))
    return Device(
        name=name,
        vendor="",
        peaks=(("fp32", number("flop/s", 10**12)), ("bf16", number("flop/s", 10**12))),
        memory=number("bytes", 10**9),
        memory_bandwidth=number("bytes/s", 10**9),
        host_link=HostLink(kind="pcie", bandwidth=number("bytes/s", 10**9)),
        island=draw(st.sampled_from([None, island])),
    )


@st.composite
def clusters(draw: st.DrawFn, *, with_matrix: bool = True) -> Cluster:
    """One to three pools, joined in a chain or by a matrix."""
    names = draw(st.lists(st.text(min_size=1, max_size=5), min_size=1, max_size=3, unique=True))
    names = [name.encode("utf-8", "replace").decode() for name in names]
    names = [f"{index}{name}" for index, name in enumerate(names)]
    pools = []
    for index, name in enumerate(names):
        own = draw(st.booleans())
        one = draw(own_devices(f"own{index}")) if own else draw(st.sampled_from(devices()))
        price = draw(st.one_of(st.none(), decimals.map(lambda number: given(float(number), "1/device-hour"))))
        pools.append(
            Pool(
                name=name,
                hosts=draw(st.integers(1, 5)),
                device=one,
                gpus_per_host=draw(st.integers(1, 9)),
                nics=tuple(draw(st.lists(nics, min_size=1, max_size=2))),
                price=price,
            )
        )
    links = tuple(
        PoolLink(
            between=(names[index], names[index + 1]),
            kind=draw(kinds),
            rate=given(float(draw(decimals)), "Gb/s"),
            latency=given(float(draw(decimals) / 10**6), "s"),
        )
        for index in range(len(names) - 1)
    )
    matrix = None
    if with_matrix and draw(st.booleans()):
        size = sum(pool.hosts for pool in pools)
        entries = {(i, j): float(draw(decimals)) for i in range(size) for j in range(i)}
        matrix = LinkMatrix(
            tuple(tuple(entries.get((max(i, j), min(i, j)), 0.0) for j in range(size)) for i in range(size))
        )
    return Cluster(pools=tuple(pools), links=links, matrix=matrix)
