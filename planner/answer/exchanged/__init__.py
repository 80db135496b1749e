"""Plans and the settings of other frameworks, priced side by side.

    said     a plan -> what a target can say of it -> its price beside the plan's          (`plan emit --to`)
    beside   a file of settings -> its price beside the price of a plan for the same       (`plan --beat`)

Both are prices of the one evaluator: what a target can say is a configuration again, is checked against the model as
every configuration is, lowered, and priced. It is priced as the plan was where the target has the plan's software; else
for no target of ours, for it is not our code that runs.
"""
