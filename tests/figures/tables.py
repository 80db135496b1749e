"""All tables of figures, by name."""

from functools import partial

from tests.figures import Cases
from tests.figures.artefacts import artefacts
from tests.figures.plans import plans, printings, searches
from tests.figures.prices import STEPS, clusters, groups, step, table
from tests.figures.scripts import script, scripts

TABLES: dict[str, Cases] = {
    "groups": {name: partial(groups, name) for name in clusters()},
    "steps": table(STEPS, step),
    "plans": plans(),
    "words": printings(),
    "searches": searches(),
    **artefacts(),
    "scripts": {name: partial(script, name) for name in scripts()},
}
