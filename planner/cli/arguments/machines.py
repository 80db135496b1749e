"""Words of the verbs of machines."""

from __future__ import annotations

from argparse import ArgumentParser, _SubParsersAction

from meshwright.planner.cli.arguments.common import add_cluster, add_config, add_force, positive


def cluster(parser: ArgumentParser) -> None:
    """``plan cluster``."""
    actions = parser.add_subparsers(dest="action", metavar="ACTION", required=True)
    show = _action(actions, "show", "draw a cluster, every number with its provenance")
    add_cluster(show)
    show.add_argument("-v", "--verbose", action="store_true", help="show every number of every device, and every link")
    show.add_argument("--json", action="store_true", help="print JSON on standard output, errors included")
    detect = _action(actions, "detect", "write the cluster file of this machine, or of the job that it is in")
    detect.add_argument("--hostfile", metavar="FILE", help="hosts like this one, one a line (default: those of Slurm)")
    add_found(detect)
    imported = _action(actions, "import", "write the cluster file of machines whose tools' outputs were saved")
    imported.add_argument(
        "files",
        metavar="FILES",
        nargs="+",
        help="outputs of nvidia-smi, ibstat, ethtool, lscpu, NCCL, Slurm; hostfiles; a folder holds those of one host",
    )
    add_found(imported)


def _action(actions: _SubParsersAction[ArgumentParser], name: str, told: str) -> ArgumentParser:
    return actions.add_parser(name, help=told, description=told, allow_abbrev=False)


def add_found(parser: ArgumentParser) -> None:
    """Add how a cluster that was found is described, and where it is written."""
    parser.add_argument("--like", metavar="GPU", help="describe GPUs that the table of devices lacks as this one")
    parser.add_argument("--out", metavar="FILE", help="write the cluster file there (default: standard output)")
    add_force(parser)
    parser.add_argument("--json", action="store_true", help="print JSON on standard output, errors included")


def gpus(parser: ArgumentParser) -> None:
    """``plan gpus``."""
    parser.add_argument("name", metavar="NAME", nargs="?", help="one of them, by any of its names: all of its numbers")
    parser.add_argument("--json", action="store_true", help="print JSON on standard output, errors included")


def calibrate(parser: ArgumentParser) -> None:
    """``plan calibrate``."""
    add = parser.add_argument
    add("--ranks", type=positive, default=2, metavar="N", help="ranks of a host (default: %(default)s)")
    add("--threads", type=positive, default=1, metavar="N", help="threads of a rank (default: %(default)s)")
    add("--target", default="torch-gloo", metavar="TARGET", help="what runs there (default: %(default)s)")
    add("--dtype", choices=("fp32", "bf16", "fp64"), action="append", help="precisions (default: fp32)")
    add_config(parser)
    add("--for", dest="model", metavar="MODEL", help="measure what its plans run, too")
    add("--global-batch", type=positive, default=8, metavar="N", help="of --for (default: %(default)s)")
    add("--seq", type=positive, default=128, metavar="N", help="of --for (default: %(default)s)")
    add("--quick", action="store_true", help="a coarser grid, and fewer samples")
    add("--plan-only", action="store_true", help="list the cases and about how long they take, and measure nothing")
    add("--force", action="store_true", help="measure though something else runs, which the profile will say")
    add("--name", metavar="NAME", help="of the profile (default: what --out is called)")
    add("--out", metavar="FILE", help="write the profile there, samples beside it (default: where plans look for it)")
    add("--json", action="store_true", help="print JSON on standard output, errors included")


def cache(parser: ArgumentParser) -> None:
    """``plan cache``."""
    parser.add_argument(
        "action",
        choices=("show", "clear"),
        nargs="?",
        default="show",
        help="show: where results of earlier runs are, and how many; clear: remove them (default: %(default)s)",
    )
    parser.add_argument("--json", action="store_true", help="print JSON on standard output, errors included")


def profile(parser: ArgumentParser) -> None:
    """``plan profile``."""
    parser.add_argument(
        "action",
        choices=("show", "list", "merge", "diff"),
        help="show: what one holds; list: those in a folder; merge: several of one machine as one; diff: two of them",
    )
    parser.add_argument("paths", metavar="PATH", nargs="*", help="profiles, or a folder (default: those that are kept)")
    parser.add_argument("--out", metavar="FILE", help="where merge writes")
    parser.add_argument("--json", action="store_true", help="print JSON on standard output, errors included")
