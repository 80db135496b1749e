"""Hypothesis profiles: HYPOTHESIS_PROFILE=long searches; the default replays the same bounded examples everywhere."""

import os

from hypothesis import settings

settings.register_profile("ci", derandomize=True, max_examples=50, deadline=None)
settings.register_profile("long", max_examples=5000, deadline=None)
settings.load_profile(os.environ.get("HYPOTHESIS_PROFILE", "ci"))
