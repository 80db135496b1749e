"""Numbers of devices that one model is planned for: --scale 64..4096, which doubles, or --scale 64,96,128.

    text -> sizes;   a size, arguments -> the arguments of the question on so many devices

The cluster that is asked about says what its hosts are like. A size is whole hosts of these, or a part of one. With
strong scaling the global batch stays; with weak scaling each device has as many sequences as on that cluster.
"""

from __future__ import annotations

import re
from argparse import Namespace

from meshwright.cost_models.hardware.changed import with_ranks
from meshwright.cost_models.hardware.cluster import Cluster
from meshwright.cost_models.hardware.text import read_cluster, resized
from meshwright.ir.errors import ScaleImpossible, instead
from meshwright.ir.limits import DIGITS, RANKS

OPTION = "--scale"
STRONG, WEAK = "strong", "weak"
SCALINGS = (STRONG, WEAK)
_NUMBER = rf"\s*([0-9]{{1,{DIGITS}}})\s*"
_RANGE = re.compile(rf"{_NUMBER}\.\.{_NUMBER}")
_LIST = re.compile(rf"{_NUMBER}(?:,{_NUMBER})*")
EXAMPLE = "give a range, as in 64..4096, or a list, as in 64,96,128"


def read_sizes(text: str) -> tuple[int, ...]:
    """Read sizes, the smallest first."""
    if found := _RANGE.fullmatch(text):
        first, last = int(found[1]), int(found[2])
        _check(text, first, last)
        if last < first:
            raise _impossible(text, "it ends before it begins", EXAMPLE)
        return tuple(first << power for power in range((last // first).bit_length()))
    if not _LIST.fullmatch(text):
        raise _impossible(text, "it is no range and no list of numbers", EXAMPLE)
    sizes = tuple(sorted({int(word) for word in text.split(",")}))
    _check(text, *sizes)
    return sizes


def _check(text: str, *sizes: int) -> None:
    for size in sizes:
        if cause := "there is no cluster of 0 devices" if not size else RANKS.refused(size):
            raise _impossible(text, cause, f"give 1 to {RANKS.most:,} devices")


def at_size(args: Namespace, size: int, scaling: str) -> Namespace:
    """The arguments of a question on so many devices."""
    if scaling not in SCALINGS:
        raise _impossible(str(size), f"{scaling!r} is no way of scaling", instead(scaling, SCALINGS))
    named = args.cluster if isinstance(args.cluster, str) else None
    cluster: Cluster = args.cluster if named is None else read_cluster(named)
    if cluster.matrix is not None:
        cause = f"rates between its hosts are a link matrix of {len(cluster.matrix.rows):,} rows"
        raise _impossible(str(size), cause, "describe hosts by their NICs, without a link_matrix")
    if len(cluster.pools) > 1:
        names = ", ".join(pool.name for pool in cluster.pools)
        fix = f"scale a cluster of one pool, or change one of them: --what-if {cluster.pools[0].name}.hosts=N"
        raise _impossible(str(size), f"the cluster has unlike pools ({names})", fix)
    (pool,) = cluster.pools
    found = with_ranks(cluster, size)
    if found is None:
        less = size - size % pool.gpus_per_host
        cause = f"{size:,} devices are no whole hosts of {pool.gpus_per_host}"
        raise _impossible(str(size), cause, f"give {less:,} or {less + pool.gpus_per_host:,}")
    (own,) = found.pools
    reference = resized(named, own.hosts, own.gpus_per_host) if named else None
    made = Namespace(**vars(args))
    made.cluster, made.cluster_reference = found, reference or (f"{named} at {size:,} devices" if named else None)
    if scaling == WEAK and args.global_batch is not None:
        made.global_batch = _share(args.global_batch, cluster.ranks, size)
    return made


def _share(batch: int, ranks: int, size: int) -> int:
    """As many sequences for each of so many devices."""
    found, left = divmod(batch * size, ranks)
    if left or not found:
        cause = f"{batch:,} sequences on {ranks:,} devices are no whole number on {size:,}"
        raise _impossible(str(size), cause, "give a --global-batch that the --cluster's devices divide, or other sizes")
    return found


def _impossible(text: str, cause: str, fix: str) -> ScaleImpossible:
    return ScaleImpossible(place=f"{OPTION} {text[:60]}", cause=cause, fix=fix)
