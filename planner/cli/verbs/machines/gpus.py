"""`plan gpus`: the devices that clusters can be made of; with a name, every number that is known of one.

The table is data (`cost_models/profiles/devices.json`, `compute.json`); here it is shown as prices take it.
"""

from __future__ import annotations

import json
from argparse import Namespace

from meshwright import __version__
from meshwright.cost_models.compute.known import all_known, known

FORMAT_VERSION = 1


def run(args: Namespace) -> int:
    """The verb."""
    found = all_known() if args.name is None else (known(args.name),)
    if args.json:
        devices = [one.to_json() for one in found]
        print(json.dumps({"format_version": FORMAT_VERSION, "meshwright": __version__, "devices": devices}, indent=2))  # noqa: T201
        return 0
    from meshwright.planner.cli.views.machines.gpus import show_all, show_one

    if args.name is None:
        show_all(found)
    else:
        show_one(found[0])
    return 0
