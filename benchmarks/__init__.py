"""Benchmarks: what is claimed about speed, size and accuracy, each shown by one command.

A benchmark is a module of this package with a ``main(argv) -> int``, run by ``python -m benchmarks.NAME``; one line in
``BENCHMARKS`` makes it part of ``make bench``. ``data/`` holds published measurements, with their sources. Commands
that are timed start cold: what earlier runs kept is left alone.
"""

import os

os.environ.setdefault("MESHWRIGHT_CACHE", "off")

BENCHMARKS: dict[str, str] = {
    "published_runs": "error of step times, memory and fit, on published training runs",
    "kernels": "error of the prices of products, attention and collectives, on measurements they were not fitted on",
    "inspect_cost": "CPU time and memory of `plan inspect`, beside importing the frameworks and exporting two blocks",
    "estimate_cost": "CPU time of `plan estimate` beside capturing the model, for one configuration and for many",
    "b200_single_node": "step time and allocated memory of runs of Megatron-Core on eight B200, beside what we predict",
    "block_cost": "CPU time to build and solve the problem of one block, on meshes of one to three axes",
    "bound_check": "bounds of the search beside prices, on configurations drawn from the space at random",
    "every_plan": "all legal plans of tiny models, one by one, beside the plan that is found",
    "pins_never_win": "pinned plans beside free ones, and the gap that was printed with those",
    "switches": "where the best kind of context parallelism changes, and what experts on ranks of their own save",
    "search_cost": "CPU time and memory of cold searches, and how far they are from proved",
    "beat_published": "configurations that people tuned and published, beside what the search finds",
    "custom_schedules": "step times with a schedule made for the plan, beside the best schedule that has a name",
    "emitted_matrix": "models by kinds of plans: what is emitted and exact in `plan verify`, and what is refused",
    "emitted_jax": "the same of models in JAX, and of plans that are drawn",
    "compiled_for_tpus": "scripts of plans for TPUs, compiled without one: what they communicate and hold",
    "closed_loop": "plans of small models run on this machine, beside what shipped and calibrated prices predict",
    "registry": "models that packages ship: inspected, planned, and small twins emitted, run and compared",
    "fake_ranks": "one rank of each stage of Llama-3.1-405B on 16,384 ranks, alone, beside what was priced",
    "mutants": "faults planted in the five rooms, and whether the tests nearest to them notice",
    "fuzz": "inputs of the command line drawn by seed: tracebacks, internal errors, hangs, nonsense that is accepted",
    "simulate_cost": "time to make, order and simulate pipeline schedules, a large and a small one",
}
"""Name of the module, and what it shows."""
