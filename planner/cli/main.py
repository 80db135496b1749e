"""The command ``plan``: a table of verbs, and the one place where an exception becomes a message and an exit code.

A verb is one entry of ``VERBS``: its name, its help, the function that declares its arguments (in
``planner.cli.arguments``, which imports nothing heavy) and the module whose ``run(args) -> int`` does the work. That
module is imported when the verb is run, and not before: ``plan --help`` and ``plan --version`` never see torch.

Exit codes: 0 ok, 1 internal, 2 usage, 3 nothing fits, 4 gap above --max-gap, 5 cannot trace, 6 bad cluster or config,
7 verification mismatch, 8 environment, 130 interrupted (`meshwright.planner.cli.interrupts`),
141 the reader of our output has gone.
"""

from __future__ import annotations

import io
import json
import os
import re
import sys
import traceback
from argparse import ArgumentParser, Namespace
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from importlib import import_module

from meshwright import __version__
from meshwright.ir.errors import InternalError, MeshwrightError, nearest
from meshwright.ir.processes import collect_rarely
from meshwright.planner.cli.arguments import code, machines, plans, reference
from meshwright.planner.cli.declared import declared, loosened
from meshwright.planner.cli.exits import INTERRUPTED, READER_GONE
from meshwright.planner.cli.parser import HELP_ALL, Parser

LOADING = "loading the model"
DEFAULT_VERB = "plan"
"""The verb of a command line that begins with a model, or with an option."""
CONFIG = "--config"
HELP = {"-h", "--help", HELP_ALL}
ABOUT = {"plans": "plans", "code": "models and code", "machines": "machines", "reference": "reference"}
"""What verbs are about, by the folder of their modules."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Verb:
    """One subcommand. ``module`` must define ``run(args) -> int``, the exit code.

    - `begins` is what it is doing until it says otherwise (`args.progress`), if it may take long.
    """

    name: str
    help: str
    arguments: Callable[[ArgumentParser], None]
    module: str
    begins: str = ""


VERBS = (
    Verb(
        name=DEFAULT_VERB,
        help="find the fastest plan that fits, prove how good it is, and say why; `plan MODEL …` means this verb",
        arguments=plans.plan,
        module="meshwright.planner.cli.verbs.plans.plan",
        begins=LOADING,
    ),
    Verb(
        name="explain",
        help="explain a saved plan, or say what another one would cost, and why (--why-not)",
        arguments=plans.explain,
        module="meshwright.planner.cli.verbs.plans.explain",
        begins=LOADING,
    ),
    Verb(
        name="diff",
        help="what two plans decide otherwise, and what that costs, share by share",
        arguments=plans.diff,
        module="meshwright.planner.cli.verbs.plans.diff",
        begins=LOADING,
    ),
    Verb(
        name="report",
        help="a saved plan as one HTML page: the step in time, memory, links, operators, and why it is the one",
        arguments=plans.report,
        module="meshwright.planner.cli.verbs.plans.report",
        begins=LOADING,
    ),
    Verb(
        name="trace",
        help="the predicted step of a saved plan as trace events, for Perfetto",
        arguments=plans.trace,
        module="meshwright.planner.cli.verbs.plans.trace",
        begins=LOADING,
    ),
    Verb(
        name="emit",
        help="write a saved plan as a training script in stock PyTorch, or as settings of another framework (--to)",
        arguments=code.emit,
        module="meshwright.planner.cli.verbs.code.emit",
        begins=LOADING,
    ),
    Verb(
        name="verify",
        help="run the code of a plan on this machine, and compare it with the model on one device",
        arguments=code.verify,
        module="meshwright.planner.cli.verbs.code.verify",
        begins=LOADING,
    ),
    Verb(
        name="compare",
        help="what a run of an emitted script measured, beside what the plan predicted",
        arguments=plans.compare,
        module="meshwright.planner.cli.verbs.plans.compare",
    ),
    Verb(
        name="inspect",
        help="show what the planner sees in a model: blocks, parameters, FLOPs, saved activations, cuts, coverage",
        arguments=code.inspect,
        module="meshwright.planner.cli.verbs.code.inspect",
        begins=LOADING,
    ),
    Verb(
        name="cluster",
        help="show a cluster, or write the file of one: pools, devices, links, each number with its provenance",
        arguments=machines.cluster,
        module="meshwright.planner.cli.verbs.machines.cluster",
    ),
    Verb(
        name="gpus",
        help="GPUs and other devices that clusters are made of: memory, peaks, links, and where each number is from",
        arguments=machines.gpus,
        module="meshwright.planner.cli.verbs.machines.gpus",
    ),
    Verb(
        name="estimate",
        help="price a configuration on a cluster: step time, memory, where the time goes; or many, ranked",
        arguments=plans.estimate,
        module="meshwright.planner.cli.verbs.plans.estimate",
        begins=LOADING,
    ),
    Verb(
        name="calibrate",
        help="measure this machine: kernels, launches and collectives, for prices that are of it (--profile)",
        arguments=machines.calibrate,
        module="meshwright.planner.cli.verbs.machines.calibrate",
    ),
    Verb(
        name="profile",
        help="show what `plan calibrate` found: of which machine, when, and in what range",
        arguments=machines.profile,
        module="meshwright.planner.cli.verbs.machines.profile",
    ),
    Verb(
        name="cache",
        help="what earlier runs kept of models and answers on this machine: show it, or remove it",
        arguments=machines.cache,
        module="meshwright.planner.cli.verbs.machines.cache",
    ),
    Verb(
        name="init",
        help="write a question to `plan` as a file to be edited: every key, what it means, and what is given here",
        arguments=reference.init,
        module="meshwright.planner.cli.verbs.reference.init",
    ),
    Verb(
        name="errors",
        help="what an error means, with an example and its fix; without a code, which errors there are",
        arguments=reference.errors,
        module="meshwright.planner.cli.verbs.reference.errors",
    ),
    Verb(
        name="completion",
        help="print the script by which a shell completes command lines of `plan`",
        arguments=reference.completion,
        module="meshwright.planner.cli.verbs.reference.completion",
    ),
    Verb(
        name="schema",
        help="print what a kind of file may hold, as JSON Schema",
        arguments=reference.schema,
        module="meshwright.planner.cli.verbs.reference.schema",
    ),
)


def build_parser(verbs: Sequence[Verb] = VERBS, *, completed: bool = False) -> ArgumentParser:
    """Return the parser of the whole command line; where a file will complete it, of what is said alone."""
    parser = Parser(
        prog="plan",
        description="Meshwright: an automatic parallelism planner, built like a compiler.",
        allow_abbrev=False,
    )
    parser.add_argument("--version", action="version", version=f"meshwright {__version__}")
    subparsers = parser.add_subparsers(dest="verb", metavar="VERB", required=True)
    parser.menu = _menu(verbs)
    for verb in verbs:
        subparser = subparsers.add_parser(verb.name, help=verb.help, description=verb.help, allow_abbrev=False)
        verb.arguments(subparser)
        if completed:
            loosened(subparser)
        subparser.set_defaults(module=verb.module)
    return parser


def _menu(verbs: Sequence[Verb]) -> tuple[tuple[str, tuple[tuple[str, str], ...]], ...]:
    """Verbs by what they are about, each with the first part of what its own help says."""
    folders = {verb.name: verb.module.split(".")[-2] for verb in verbs if verb.module.count(".")}
    return tuple(
        (about, tuple((verb.name, _first_part(verb.help)) for verb in verbs if folders.get(verb.name) == folder))
        for folder, about in ABOUT.items()
        if folder in folders.values()
    )


def _first_part(told: str) -> str:
    return re.split(r"[;:] ", told)[0]


def main(argv: Sequence[str] | None = None, *, verbs: Sequence[Verb] = VERBS) -> int:
    """Run one command line and return its exit code. Argparse itself exits, after help and after a usage error."""
    for stream in (sys.stdout, sys.stderr):
        if isinstance(stream, io.TextIOWrapper):
            stream.reconfigure(errors="replace")  # a terminal that cannot show a character shows ? instead
    words = with_verb(sys.argv[1:] if argv is None else argv, verbs)
    completed = _completes(words)
    args = build_parser(verbs, completed=completed).parse_args(words)
    collect_rarely()
    try:
        if completed:
            args = _completed(args, verbs)
        with _progress(args, verbs):
            exit_code: int = import_module(args.module).run(args)
        sys.stdout.flush()
    except MeshwrightError as error:
        return _refuse(error, args)
    except KeyboardInterrupt:
        return INTERRUPTED
    except BrokenPipeError:
        # Python flushes stdout once more on its way out; give it somewhere to go.
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        return READER_GONE
    except Exception as error:  # noqa: BLE001 - the last resort is to say that the fault is ours
        if os.environ.get("MESHWRIGHT_DEBUG") == "1":
            traceback.print_exc()
        return _refuse(_internal(error, args), args)
    return exit_code


@contextmanager
def _progress(args: Namespace, verbs: Sequence[Verb]) -> Iterator[None]:
    """Say how a verb goes on that takes a while; others do not pay for that."""
    begins = next(verb.begins for verb in verbs if verb.name == args.verb)
    if not begins:
        yield
        return
    from meshwright.planner.cli.progress import Progress

    with Progress(sys.stderr) as args.progress:
        args.progress.phase(begins)
        yield


def _completes(words: Sequence[str]) -> bool:
    """Whether a file completes what is said. Help is shown as it is without one."""
    return any(word.split("=")[0] == CONFIG for word in words) and not HELP.intersection(words)


def _completed(said: Namespace, verbs: Sequence[Verb]) -> Namespace:
    """The arguments with what the file of --config says, and what is so where nobody says it."""
    from meshwright.planner.cli.questions.reading import settled

    return settled(said, next(verb.arguments for verb in verbs if verb.name == said.verb))


def with_verb(argv: Sequence[str], verbs: Sequence[Verb]) -> list[str]:
    """The command line with its verb: `plan MODEL …` is short for `plan plan MODEL …`, and so is `plan -q MODEL …`.

    What is close to a verb is left to be refused as a slip, unless there is such a file.
    """
    known = {verb.name: verb.arguments for verb in verbs}
    first = argv[0] if argv else "-h"
    if DEFAULT_VERB not in known or first in known:
        return list(argv)
    if first.startswith("-"):
        own = {name for option in declared(known[DEFAULT_VERB]).options for name in option.names}
        meant = first.split("=")[0] in own - HELP
    else:
        meant = nearest(first, known) is None or os.path.exists(first)  # noqa: PTH110 - Path raises where a name is too long
    return [DEFAULT_VERB, *argv] if meant else list(argv)


def _internal(error: Exception, args: Namespace) -> InternalError:
    return InternalError(
        place=f"plan {args.verb}",
        cause=f"internal error: {type(error).__name__}: {error}",
        fix="run it again with MESHWRIGHT_DEBUG=1 and report the traceback",
    )


def _refuse(error: MeshwrightError, args: Namespace) -> int:
    told = str(error)
    if sys.stderr.isatty():
        from meshwright.planner.cli.views.reference.errors import broken

        told = broken(error, sys.stderr)
    print(told, file=sys.stderr)  # noqa: T201
    if getattr(args, "json", False):
        print(json.dumps({"error": error.to_json()}))  # noqa: T201
    return error.exit_code
