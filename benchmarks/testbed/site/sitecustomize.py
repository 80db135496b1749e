"""What Python runs at its start in ranks of the testbed: where a rate is declared, they sleep their compute."""

import os

if "RANK" in os.environ and "TESTBED_FLOPS_PER_S" in os.environ:
    from benchmarks.testbed.sleeping import begin

    begin()
