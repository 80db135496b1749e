"""Commands and texts of pages that are not run as samples, each with the reason, and with what runs it instead."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True, slots=True, kw_only=True)
class Left:
    """A command, or a text by its first line, that is not run.

    - `page` is `*` for every page.
    - `by` is the test (`FILE::NAME`) or the script that runs it or holds what is shown; nothing does where it is empty.
    """

    page: str
    begins: str
    why: str
    by: str = ""


MINUTES = "takes minutes to hours"
FORM = "has words that a reader fills in"

LEFT_OUT: tuple[Left, ...] = (
    Left(page="*", begins="make ", why="installs, or runs the tests themselves", by=".ci/run"),
    Left(page="README.md", begins="python3 -m venv", why="installs", by=".ci/first_five_minutes"),
    Left(page="README.md", begins=". venv", why="installs", by=".ci/first_five_minutes"),
    Left(page="README.md", begins="pip ", why="installs", by=".ci/first_five_minutes"),
    Left(page="README.md", begins="plan verify out", why="starts processes there already", by=".ci/first_five_minutes"),
    *(
        Left(
            page=page,
            begins="plan examples/configs/llama-3.1-8b --cluster 8x8xH100 --global-batch 128 --seq 8192 --out out",
            why="takes ten seconds, and is asked by a test already",
            by="tests/e2e/test_plan.py::test_a_real_model_from_its_configuration",
        )
        for page in ("README.md", "docs/plan.md")
    ),
    Left(page="*", begins="python -m benchmarks", why=MINUTES),
    Left(page="docs/calibrate.md", begins="plan calibrate", why="measures the machine for minutes"),
    Left(page="docs/calibrate.md", begins="plan MODEL", why=FORM),
    Left(page="docs/calibrate.md", begins="plan compare PLAN LOG", why=FORM),
    Left(
        page="docs/how-to/slurm.md",
        begins="sbatch ",
        why="needs Slurm; run with stand-ins",
        by="tests/backends/torch_/test_emit_hosts.py",
    ),
    Left(page="docs/cli.md", begins="source <(plan completion zsh)", why="needs zsh"),
    Left(page="docs/cli.md", begins="plan completion fish", why="needs fish"),
    Left(
        page="docs/models.md",
        begins="import meshwright",
        why="registers a rule in whatever process it runs in",
        by="tests/backends/torch_/test_check_rule.py::test_a_true_rule_passes",
    ),
    Left(
        page="docs/emit.md",
        begins="part = meshwright.parallelize",
        why="is a loop that each of several processes runs",
        by="tests/planner/test_parallelize.py::test_a_loop_of_ones_own_learns_what_one_device_does",
    ),
    Left(
        page="docs/emit.md",
        begins="applied = meshwright.jax_apply",
        why="needs several devices from the start of the process on",
        by="tests/planner/test_jax_apply.py::test_a_loop_of_ones_own_has_the_losses_of_one_device",
    ),
    Left(
        page="docs/emit.md",
        begins="train/launch.sh --steps 20 | tee log",
        why="starts four processes, as the first five minutes do",
        by=".ci/first_five_minutes",
    ),
    Left(
        page="docs/emit.md",
        begins="plan compare out log",
        why="reads what that prints",
        by="tests/planner/test_compare.py::test_it_is_shown",
    ),
    *(
        Left(page=page, begins=begins, why="reads what profilers traced", by="tests/planner/traced/test_verbs.py")
        for page, begins in (
            ("docs/emit.md", "with torch.profiler.profile("),
            ("docs/emit.md", "plan compare out trace.0.json"),
            ("docs/emit.md", "plan trace out --measured"),
            ("docs/report.md", "plan trace out --measured"),
        )
    ),
    Left(
        page="docs/exchange.md",
        begins="plan estimate tiny.toml",
        why="needs a model and settings with a slip",
        by="tests/planner/exchange/test_page.py::test_the_refusal_of_the_page_is_what_is_told",
    ),
    Left(
        page="docs/emit.md",
        begins="plan verify unlike",
        why="takes twenty seconds",
        by="tests/backends/torch_/test_emit_unlike.py::test_stages_of_different_meshes_are_exact_and_communicate_what_they_say",
    ),
    Left(
        page="docs/emit.md",
        begins="python in_jax/train.py",
        why="compiles for eight devices",
        by="tests/backends/jax_/test_verify.py::test_scripts_are_exact",
    ),
    Left(
        page="docs/emit.md",
        begins="plan verify in_jax",
        why="compiles for eight devices",
        by="tests/backends/jax_/test_verify.py::test_a_model_is_planned_written_and_verified",
    ),
    Left(
        page="docs/emit.md",
        begins="CROSSING = (",
        why="is of a plan that no command is sure to answer with",
        by="tests/backends/torch_/test_emit_unlike.py::test_the_page_shows_what_crosses",
    ),
)
