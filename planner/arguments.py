"""The words of the command line, each declared once.

A verb's function here adds what the verb understands to its parser; the words that several verbs share have a function
of their own. Nothing is imported that ``plan --help`` should not pay for, so help and usage errors are instant for
every verb.
"""

from __future__ import annotations

from argparse import ArgumentParser, ArgumentTypeError

DTYPES = ("bf16", "fp16", "fp32")
STYLES = ("eager", "compiled", "fused")
DEVICES = ("cuda", "cpu")


def positive(text: str) -> int:
    """Parse a count."""
    try:
        number = int(text)
    except ValueError:
        number = 0
    if number < 1:
        raise ArgumentTypeError(f"{text!r} is not a positive whole number")
    return number


def add_model(parser: ArgumentParser) -> None:
    """MODEL, in its three forms."""
    parser.add_argument(
        "model",
        metavar="MODEL",
        help="file.py:factory (the file is executed), a directory with or a path to a Hugging Face config.json, "
        "or a shape .toml",
    )


def add_execution(parser: ArgumentParser) -> None:
    """How the model will be run: what decides which tensors are saved for backward, and their size."""
    parser.add_argument(
        "--dtype", choices=DTYPES, default="bf16", help="dtype of the computation (default: %(default)s)"
    )
    parser.add_argument("--style", choices=STYLES, default="eager", help="how operators run (default: %(default)s)")
    parser.add_argument("--device", choices=DEVICES, default="cuda", help="where they run (default: %(default)s)")


def add_output(parser: ArgumentParser) -> None:
    """What is printed."""
    parser.add_argument("--json", action="store_true", help="print JSON on standard output, errors included")
    parser.add_argument("--dump-after", metavar="STEP", help="print the text form of the artefact that STEP produces")


def add_cluster(parser: ArgumentParser) -> None:
    """CLUSTER, in its three forms."""
    parser.add_argument(
        "cluster",
        metavar="CLUSTER",
        help="HOSTSxGPUSxGPU, as in 2x8xH100 or 2x8xH100,inter=400G (inter is per GPU, in Gb/s), cpu:N, "
        "or a cluster .toml",
    )


def cluster(parser: ArgumentParser) -> None:
    """``plan cluster``."""
    parser.add_argument("action", choices=("show",), help="show: draw it, every number with its provenance")
    add_cluster(parser)
    parser.add_argument("--json", action="store_true", help="print JSON on standard output, errors included")


def inspect(parser: ArgumentParser) -> None:
    """``plan inspect``."""
    add_model(parser)
    parser.add_argument("--batch", type=positive, default=1, metavar="N", help="sequences (default: %(default)s)")
    parser.add_argument("--seq", type=positive, default=1024, metavar="N", help="tokens in each (default: %(default)s)")
    add_execution(parser)
    add_output(parser)
    parser.add_argument(
        "--seed",
        type=int,
        default=0,
        metavar="N",
        help="seed of the draw of blocks that are traced for all that are like them (default: %(default)s)",
    )
