"""The command line.

| module | what it has |
|---|---|
| `main` | the table of verbs; where an exception becomes a message and an exit code |
| `arguments/` | the words of the command line, each declared once; imports nothing heavy |
| `completion/` | completion scripts, made of what was declared |
| `declared` | what was declared there, as data |
| `exits` | exit codes |
| `interrupts` | Ctrl-C and SIGTERM |
| `output` | what is there already where a command writes |
| `questions/` | questions in files, which --config reads |
| `parser` | argparse, whose refusals say what was meant |
| `progress` | the line on a terminal that says how a command goes on |
| `verbs/` | one module for each verb: reads its arguments, asks the rooms above, shows the answer |
| `views/` | answers as a person reads them; `views/tables.py` makes them fit |

Arguments, verbs and views are in like groups: of plans, of a model's code, of machines, for reference.
"""
