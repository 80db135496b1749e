"""Benchmarks: what is claimed about speed, size and accuracy, each shown by one command.

A benchmark is a module of this package with a ``main(argv) -> int``, run by ``python -m benchmarks.NAME``; one line in
``BENCHMARKS`` makes it part of ``make bench``. ``data/`` holds published measurements, with their sources.
"""

BENCHMARKS: dict[str, str] = {
    "inspect_cost": "CPU time and memory of `plan inspect`, beside importing the frameworks and exporting two blocks",
    "b200_single_node": "allocated memory of eight runs of Megatron-Core on eight B200, beside what we predict",
}
"""Name of the module, and what it shows."""
