"""The evaluator: from one Program on one cluster with one profile to one Prediction.

Every second and byte that a user sees comes from here. A step is priced as it runs (1: `cost`, remembered by `prices`;
2 to 5: `step`):

1. Each body program has a *ledger* (`ledger`): kernels and transmissions by phase. Kernels are priced by `compute` on
   the slowest device of the stage, transmissions by `collectives` over the group that their axes span (`topology`).
2. A stage runs its bodies as often as the Program repeats them. Per micro-batch,

       forward  = stretch(kernels) + exposed(values) + uncovered(gathers)
       inputs   = the same over what runs again and over gradients of values
       weights  = stretch(kernels of weight gradients)                        backward = inputs + weights

   stretch(kernels) = max(device seconds, launches x host seconds per launch). A host that learns from the device how
   many rows each expert has does not launch ahead: there its seconds are added to the device's. What CUDA graphs replay
   (`graphs`) is not launched. Values that an operator waits for are exposed, but for what the stack hides: chunks of
   them behind products (`tensor`), ring steps behind attention (`ring`), exchanges with experts behind another
   micro-batch (`expert`), those of the backward pass behind weight gradients (`hidden_backward`, where gathered values
   are gathered again). Gathers of parameters ahead of their use, and reductions behind the backward pass, are uncovered
   only as far as they last longer than the compute they run beside:

       uncovered(T) = max(first gather, T - covered x compute)        compute grows by slowdown x (T - uncovered(T))

3. The pipeline simulator (`schedule`) runs the Program's work lists with these durations and with the transfers between
   stages.
4. After a group's last backward: reductions of gradients once per step (behind its last micro-batch's backward, where
   the stack hides `gradients`; what is reduced last is behind nothing), the optimizer, gathers of updated parameters
   (behind the next step's first forward, where it hides `publish`). The step ends with the last group; where groups
   roll on into the next step without waiting for each other (`rolling`), it takes as long as the group whose own work
   and waits are longest.
5. Ranks wait for the slowest of many: the step grows by `straggling` per doubling of hosts.

Memory is `memory`'s. What a price stands on is the weakest provenance among its parts.
"""

from __future__ import annotations

from meshwright.cost_models.hardware.cluster import Cluster
from meshwright.cost_models.ledger.books import Books
from meshwright.cost_models.prediction import Prediction
from meshwright.cost_models.prices import Prices
from meshwright.cost_models.profile import Profile
from meshwright.cost_models.step import Step
from meshwright.ir.errors import WorkloadMissing
from meshwright.ir.program.program import Program


def evaluate(program: Program, cluster: Cluster, profile: Profile) -> Prediction:
    """The price of a program. To price many on one cluster, keep an `Evaluator`."""
    return Evaluator(cluster, profile)(program)


class Evaluator:
    """The price of programs on one cluster with one profile; costs of body programs are remembered."""

    def __init__(self, cluster: Cluster, profile: Profile, books: Books | None = None) -> None:
        self.prices = Prices(cluster, profile, books)

    def __call__(self, program: Program) -> Prediction:
        return self.step(program).prediction()

    def step(self, program: Program) -> Step:
        """The price of a program with all that it is made of."""
        if program.workload is None:
            raise WorkloadMissing(
                place="program", cause="it says nothing of its workload", fix="lower it with a Workload"
            )
        return Step(self.prices, program, program.workload)
