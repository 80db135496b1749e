"""What tells notes of a plan apart: words that whoever writes one, and whoever shows it, both use."""

from __future__ import annotations

IDLE = "stay idle"
"""Of hosts, and of ranks."""
OWN_MESHES = "its stages have meshes of their own; the configuration shown is the one that it was made of"
UNSURE = "inside the interval of the step time: measure both"
"""Of a plan that a person would write, and that may be as fast."""
PASSED_OVER = "passed over, for no code is written for it"
"""Of a better plan, in whose place the answer was chosen."""
EMISSION_REFUSES = "plan emit refuses it"
"""Of another plan, with the code of the refusal."""
