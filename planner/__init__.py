"""The planner: from a question to a plan that is proved, explained, saved, written as code and checked.

| room | in → out |
|---|---|
| `question` | options and files of users → what is asked, and the price of any configuration under it |
| `space` | what is asked → the configurations that a search is about, and the plans that a person would write |
| `bounds` | a configuration's base and shape → what nothing can undercut, in time and in memory |
| `search` | the space → its configurations in the order of their bounds, until nothing left can be better |
| `block`, `block_solver` | a body, a mesh, prices → what every axis does in every operator |
| `scheduling` | seconds and room of stages → an order of a pipeline's work |
| `refine` | a configuration → plans near it: ranks placed, layers and batches shared out unevenly, operators anew |
| `exchange` | a configuration → the settings of another framework, and back |
| `plan` | a plan → `plan.json` and back, priced again, made small, called from Python |
| `answer` | a question → an answered search; a plan → why it is the one; what would help where none fits |
| `report` | a plan → a page and a trace of what it does with its devices |
| `api` | the Python API: the questions of the command line, in Python |
| `cli` | the command line: verbs, and how answers are shown |

Rooms import those above them in this table, and `api` and `cli` all of them: a contract in pyproject.toml.
"""
