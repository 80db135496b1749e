"""What every mesh axis does in every operator of a plan, chosen anew.

    Candidate -> the block problem of every body plan -> solutions, judged by the evaluator -> a better Candidate

| module | what it has |
|---|---|
| `operators` | the improvement: bodies solved one by one, all together, and with free interfaces |
| `kept` | all else that a body plan says, as the block solver takes it |
| `interfaces` | values that bodies hand on, and parameters that several bodies hold |
| `waiting` | plans whose ranks wait for each other so long that all may do the same work instead |
"""
