"""Write tables of figures anew."""

import sys

from tests.figures import FOLDER, written
from tests.figures.tables import TABLES

for name in sys.argv[1:] or TABLES:
    FOLDER.mkdir(parents=True, exist_ok=True)
    (FOLDER / f"{name}.txt").write_text(written(TABLES[name]), encoding="utf-8")
