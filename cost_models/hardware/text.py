"""The values of `--cluster`: a shorthand, `cpu:N`, or the path of a TOML file.

    2048x8xH100                 hosts x GPUs per host x GPU; NICs are those that the GPU usually has
    2048x8xH100,inter=400G      400 Gb/s between hosts for each GPU
    4x8xL40S,inter=100G,nic=roce,price=1.2
    cpu:4                       one host, four ranks of one core each
    site.toml                   see `cluster_toml`

A shorthand is one pool, named after its device. `inter=R` means one NIC of R Gb/s beside each GPU; `nic` says of which
kind (default: the usual kind of the device, else infiniband); `price` is per GPU-hour.
"""

from __future__ import annotations

import os
import re
from collections.abc import Mapping
from decimal import Decimal, InvalidOperation
from pathlib import Path

from meshwright.cost_models.hardware import toml as cluster_toml
from meshwright.cost_models.hardware.cluster import Cluster
from meshwright.cost_models.hardware.devices import NIC_KINDS, Device, device
from meshwright.cost_models.hardware.parts import Nic, Pool
from meshwright.cost_models.hardware.quantity import Quantity, given
from meshwright.ir.errors import ClusterFileMissing, ClusterKeyUnknown, ClusterSyntax, ClusterValueBad, instead, nearest
from meshwright.ir.files.documents import SHOWN
from meshwright.ir.files.near import did_you_mean
from meshwright.ir.files.reading import Unreadable, read_text
from meshwright.ir.limits import DIGITS, FILE_BYTES, HOSTS, PER_HOST, Limit
from meshwright.ir.target.capabilities import PROCESSOR

_SHORTHAND = re.compile(r"(?P<hosts>[0-9]+)\s*[x×]\s*(?P<gpus>[0-9]+)\s*[x×]\s*(?P<gpu>[^,=]+)(?P<options>(,[^,]*)*)")
_CPU = re.compile(r"cpu:(?P<ranks>[0-9]+)")
OPTIONS = ("inter", "nic", "price")
FALLBACK_NIC = "infiniband"


def read_cluster(reference: str) -> Cluster:
    """The cluster that `reference` names or describes."""
    if found := _CPU.fullmatch(reference):
        ranks = _count(reference, "ranks", found["ranks"], PER_HOST)
        return Cluster(pools=(Pool(name="cpu", hosts=1, device=device(PROCESSOR), gpus_per_host=ranks),))
    if found := _SHORTHAND.fullmatch(reference):
        return _shorthand(reference, found)
    path = Path(reference)
    if path.suffix == ".toml" or os.path.isfile(path):  # noqa: PTH113 - Path raises where a name is too long
        return read_file(path)
    raise ClusterSyntax(
        place=f"cluster {reference!r}",
        cause="it is no HOSTSxGPUSxGPU, no cpu:N and no .toml file",
        fix=f"{did_you_mean(path)}write for example 2x8xH100, or 2x8xH100,inter=400G, or cpu:4",
    )


def resized(reference: str, hosts: int, gpus: int) -> str:
    """A shorthand with other numbers of hosts, and of GPUs in each; empty for other forms."""
    found = _SHORTHAND.fullmatch(reference)
    return f"{hosts}x{gpus}x{found['gpu']}{found['options']}" if found else ""


def read_file(path: Path) -> Cluster:
    """Read the cluster of a TOML file."""
    try:
        text = read_text(path, FILE_BYTES)
    except Unreadable as error:
        raise ClusterFileMissing(
            place=str(path),
            cause=f"it cannot be read: {error.cause}",
            fix=did_you_mean(path) + "give the path of a cluster file",
        ) from None
    return cluster_toml.read(text, place=str(path), folder=path.parent)


def _shorthand(reference: str, found: re.Match[str]) -> Cluster:
    hosts = _count(reference, "hosts", found["hosts"], HOSTS)
    gpus = _count(reference, "GPUs per host", found["gpus"], PER_HOST)
    one = device(found["gpu"].strip())
    options = _options(reference, found["options"])
    place = f"cluster {reference!r}"
    nics = nics_of(place, options, one, gpus)
    price = price_of(place, options["price"]) if "price" in options else None
    return Cluster(pools=(Pool(name=one.name, hosts=hosts, device=one, gpus_per_host=gpus, nics=nics, price=price),))


def _count(reference: str, what: str, digits: str, limit: Limit) -> int:
    number = int(digits[:DIGITS])
    if not number or (cause := limit.refused(number)):
        raise ClusterValueBad(
            place=f"cluster {reference[:SHOWN]!r}, {what}",
            cause=cause if number else f"{digits[:DIGITS]} is no count",
            fix=f"give 1 to {limit.most:,}",
        )
    return number


def _options(reference: str, text: str) -> dict[str, str]:
    options: dict[str, str] = {}
    for word in filter(None, (word.strip() for word in text.split(","))):
        key, equals, value = (part.strip() for part in word.partition("="))
        if key not in OPTIONS or not equals or key in options:
            meant = nearest(key, OPTIONS)
            raise ClusterKeyUnknown(
                place=f"cluster {reference!r}",
                cause=f"cannot read {word!r}" + (", given twice" if key in options else ""),
                fix=f"did you mean {meant}=…?" if meant and key not in OPTIONS else f"options: {', '.join(OPTIONS)}",
            )
        options[key] = value
    return options


def nics_of(place: str, options: Mapping[str, str], one: Device, gpus: int) -> tuple[Nic, ...]:
    """The adapters of a host of so many devices, by `inter` and `nic`; none where neither is given."""
    kind = options.get("nic", one.nic.kind if one.nic else FALLBACK_NIC)
    if kind not in NIC_KINDS:
        raise ClusterValueBad(place=f"{place}, nic", cause=f"{kind!r} is unknown", fix=instead(kind, NIC_KINDS))
    if "inter" in options:
        return (Nic(kind=kind, rate=_inter(f"{place}, inter", options["inter"]), count=gpus),)
    if "nic" in options:
        raise ClusterValueBad(
            place=f"{place}, nic", cause="a kind without a rate", fix=f"add inter=400G, per GPU ({kind})"
        )
    return ()


def _inter(place: str, text: str) -> Quantity:
    if found := re.fullmatch(r"([0-9]{1,12}(?:\.[0-9]{1,12})?)\s*(GB|GBps|GB/s|GiB|GiB/s)", text):
        bits = 8 * Decimal(found[1])
        raise ClusterValueBad(
            place=place,
            cause=f"{text} is in bytes, and rates are in bits",
            fix=f"write inter={bits.normalize():f}G if you mean bytes, inter={found[1]}G if you mean bits",
        )
    found = re.fullmatch(r"([0-9]{1,12}(?:\.[0-9]{1,12})?)\s*([GT])?(?:b|bps|b/s|bit|bit/s)?", text)
    value = Decimal(found[1]) * (1000 if found[2] == "T" else 1) if found else Decimal(0)
    if not 0 < value <= 10**12:
        raise ClusterValueBad(place=place, cause=f"{text!r} is no rate", fix="write Gb/s per GPU, as in inter=400G")
    return given(float(value), "Gb/s")


def price_of(place: str, text: str) -> Quantity:
    """A price per GPU-hour."""
    try:
        value = Decimal(text)
    except InvalidOperation:
        value = Decimal(0)
    if not (value.is_finite() and 0 < value <= 10**12):
        raise ClusterValueBad(place=f"{place}, price", cause=f"{text!r} is no price", fix="give a positive number")
    return given(float(value), "1/device-hour")
