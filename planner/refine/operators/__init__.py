"""What every mesh axis does in every operator of a plan, chosen anew.

    Candidate -> the block problem of every body plan -> solutions, judged by the evaluator -> a better Candidate

| module | what it has |
|---|---|
| `operators` | the improvement of one plan: bodies solved one by one, and all together |
| `arrangements` | plans from scratch, on the stages, micro-batches and meshes that may have the fastest |
| `bounds` | what no plan on such an arrangement takes less than |
| `bodies` | the bodies of one plan: block problems, answers, and the plans that these stand for, priced |
| `joint` | the problems of all bodies as one, with what they hand to each other |
| `kept` | all else that a body plan says, as the block solver takes it |
| `interfaces` | values that bodies hand on, and parameters that several bodies hold |
| `waiting` | plans whose ranks wait for each other so long that all may do the same work instead |
"""
