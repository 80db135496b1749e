"""What pages say that commands print, beside what they print.

    python -m pages.samples [PAGE …]         run them, and write what is printed now into the pages
    python -m pages.samples --check [PAGE …] the same, and write nothing

The blocks of a page are gone through in order, in an empty folder of its own that has the repository's `examples`. A
command of `plan` is run in this process (so is `picture`, of this folder), any other by bash; what is printed (where it
is refused, errors too) must be what the page shows. `…` stands for anything: on a line of its own for any lines, inside
one for a part of it. A command of which nothing is shown must end well. A text with `title="FILE"` is written to that
file; where there is one already (code that was emitted, an example), the text must be a part of it, with the same `…`.
Python without a title is run.
A comment `<!-- before: COMMAND -->` on the line before a block is run first, and is not seen by readers.

Left out are the commands of `left_out.py`.
"""

from __future__ import annotations

import contextlib
import io
import os
import re
import shlex
import subprocess
import sys
import tempfile
from argparse import ArgumentParser
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from importlib import import_module
from pathlib import Path

from pages.fenced import Block, Command, blocks
from pages.left_out import LEFT_OUT, Left

ROOT = Path(__file__).resolve().parents[1]
BEFORE = re.compile(r"<!-- before: ((?:(?!-->).)+) -->\n *```[^\n]*\n$", re.DOTALL)
GENERATED = re.compile(r"^(?:Generated|Written) by `python -m", re.MULTILINE)
"""What is made by code has no samples that people wrote."""
ANYTHING = "…"
REFUSED = re.compile(r"^(?:error MW\d{4} |nothing fits$)", re.MULTILINE)
TIME_LIMIT_S = 300
OURS = {"plan": "meshwright.planner.cli.main", "picture": "pages.picture"}
"""Commands that are run in this process, by the module that has their `main`."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Off:
    """A sample that is not what the page shows.

    - `start` and `end` are where the page shows it; None where nothing can be written in its place.
    """

    line: int
    words: str
    found: str
    start: int | None = None
    end: int | None = None

    def __str__(self) -> str:
        return f"line {self.line}: {self.words}\n{self.found}"


def samples(root: Path = ROOT) -> tuple[str, ...]:
    """The pages with samples: README.md, and what people write in docs/."""
    found = [root / "README.md", *sorted(root.glob("docs/**/*.md"))]
    return tuple(str(path.relative_to(root)) for path in found if _checked(path.read_text(encoding="utf-8")))


def _checked(text: str) -> bool:
    return bool(blocks(text)) and not GENERATED.search(text)


def left_out(page: str, words: str) -> Left | None:
    """Why a command, or a text by its first line, is not run."""
    return next((one for one in LEFT_OUT if one.page in (page, "*") and words.startswith(one.begins)), None)


def check(page: str, root: Path = ROOT) -> list[Off]:
    """The samples of a page that are not what it shows."""
    text = (root / page).read_text(encoding="utf-8")
    with tempfile.TemporaryDirectory() as name, _in(Path(name).resolve()):
        (Path(name) / "examples").symlink_to(ROOT / "examples")
        found: list[Off] = []
        for block in blocks(text):
            for before in before_of(text, block):
                code, said = run(before)
                if code:
                    found.append(Off(line=block.line, words=before, found=f"exit code {code}\n{said}"))
            found += _checked_block(page, block)
    return found


def before_of(text: str, block: Block) -> list[str]:
    """The commands of the comment before a block."""
    found = BEFORE.search(text, 0, block.start)
    return found[1].splitlines() if found else []


def _checked_block(page: str, block: Block) -> Iterator[Off]:
    if not block.commands:
        yield from _checked_text(page, block)
        return
    at = block.start
    for command in block.commands:
        end = at
        if command.printed is not None:
            at = block.start + block.text.index(command.printed, at - block.start)
            end = at + len(command.printed)
        if left_out(page, command.words) is None:
            yield from _checked_command(command, block.line, at, end)
        at = end


def _checked_command(command: Command, line: int, start: int, end: int) -> Iterator[Off]:
    code, said = run(command.words)
    if code and not REFUSED.search(command.printed or ""):
        yield Off(line=line, words=command.words, found=f"exit code {code}\n{said}")
    elif command.printed is not None and not same(command.printed, said):
        elided = ANYTHING in command.printed
        yield Off(
            line=line, words=command.words, found=said, start=None if elided else start, end=None if elided else end
        )


def _checked_text(page: str, block: Block) -> Iterator[Off]:
    """A text: a file, a part of one, or Python that is run."""
    first = block.text.strip().partition("\n")[0].strip()
    if left_out(page, first) is not None:
        return
    if block.title:
        path = Path(block.title)
        if not path.exists():
            path.parent.mkdir(parents=True, exist_ok=True)
            path.write_text(block.text, encoding="utf-8")
        elif not within(block.text, there := path.read_text(encoding="utf-8")):
            yield Off(line=block.line, words=f"{block.title}: {first}", found=there)
    elif block.language == "python":
        try:
            with contextlib.redirect_stdout(io.StringIO()):
                exec(compile(block.text, f"{page}:{block.line}", "exec"), {"__name__": "__main__"})  # noqa: S102
        except Exception as error:  # noqa: BLE001 - whatever it is, the page is wrong
            yield Off(line=block.line, words=first, found=f"{type(error).__name__}: {error}")
    else:
        yield Off(line=block.line, words=first, found="a text without title, and not in pages/left_out.py")


def run(words: str) -> tuple[int, str]:
    """The exit code of a command, and what it prints, its lines without spaces at their ends.

    Of one that ends well that is its standard output: on the other stands how it goes on.
    """
    name, *argv = shlex.split(words, comments=True)
    if name not in OURS or re.search(r"[|<>&;$]", re.sub(r"'[^']*'", "", words)):
        return _by_bash(words)
    ours = import_module(OURS[name]).main
    out, errors = io.StringIO(), io.StringIO()
    path = list(sys.path)
    with contextlib.redirect_stdout(out), contextlib.redirect_stderr(errors):
        try:
            code = ours(argv)
        except SystemExit as end:  # of argparse
            code = end.code if isinstance(end.code, int) else 1
        finally:
            sys.path[:] = path
    return code, _stripped(out.getvalue() + (errors.getvalue() if code else ""))


def _by_bash(words: str) -> tuple[int, str]:
    path = f"{Path(sys.executable).parent}:{os.environ['PATH']}"
    done = subprocess.run(
        ["bash", "-euo", "pipefail", "-c", words],
        capture_output=True,
        text=True,
        timeout=TIME_LIMIT_S,
        check=False,
        env=os.environ | {"PATH": path, "REPOSITORY": str(ROOT)},
    )
    return done.returncode, _stripped(done.stdout + (done.stderr if done.returncode else ""))


def _stripped(text: str) -> str:
    return "".join(f"{line.rstrip()}\n" for line in text.splitlines())


def same(shown: str, printed: str) -> bool:
    """Whether a page shows what is printed."""
    return re.fullmatch(_pattern(shown), printed) is not None


def within(shown: str, text: str) -> bool:
    """Whether a text is a part of another, of whole lines."""
    return re.search(rf"^{_pattern(shown)}", f"{text}\n", re.MULTILINE) is not None


def _pattern(shown: str) -> str:
    """The expression that a text with `…` is."""
    lines = [
        r"(?:.*\n)*?" if line.strip() == ANYTHING else rf"{'.*'.join(map(re.escape, line.rstrip().split(ANYTHING)))}\n"
        for line in shown.splitlines()
    ]
    return "".join(lines)


@contextlib.contextmanager
def _in(folder: Path) -> Iterator[None]:
    """Work in a folder, and forget the modules that were loaded from it: pages call theirs alike."""
    with contextlib.chdir(folder):
        yield
    for name, module in list(sys.modules.items()):
        if str(getattr(module, "__file__", None) or "").startswith(f"{folder}/"):
            del sys.modules[name]


def written(page: str, found: Sequence[Off], root: Path = ROOT) -> None:
    """Write what is printed into a page, from its end on."""
    path = root / page
    text = path.read_text(encoding="utf-8")
    for off in reversed(found):
        if off.start is not None:
            text = f"{text[: off.start]}{off.found}{text[off.end :]}"
    path.write_text(text, encoding="utf-8")


def main(argv: Sequence[str]) -> int:
    """Exit with 1 if a page shows what is not printed, and cannot be written."""
    parser = ArgumentParser(prog="python -m pages.samples", description=(__doc__ or "").partition("\n")[0])
    parser.add_argument("--check", action="store_true", help="write nothing")
    parser.add_argument("pages", nargs="*", metavar="PAGE", help="README.md, docs/plan.md, …; all unless given")
    args = parser.parse_args(argv)
    os.environ.update(MESHWRIGHT_CACHE="off", MESHWRIGHT_PROFILES=f"{os.devnull}/profiles")
    os.environ.pop("COLUMNS", None)
    left = 0
    for page in args.pages or samples():
        print(page, file=sys.stderr, flush=True)
        found = check(page)
        if not args.check:
            written(page, found)
        wrong = [off for off in found if args.check or off.start is None]
        left += len(wrong)
        for off in wrong:
            print(f"{page}, {off}")
    return 1 if left else 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
