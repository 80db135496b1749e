"""``python -m meshwright`` is ``plan``."""

import sys

from meshwright.planner.cli import main

sys.exit(main())
