"""Answers to a question that is asked again with something changed: what it would bring, and how a model scales.

| module | in → out |
|---|---|
| `outcome` | a question → its plan, or in a sentence why there is none |
| `what_if` | a question, its answer and a change → the changed answer, and the plan kept |
| `scale` | a question and numbers of devices → a plan for each, and how well they scale |
"""
