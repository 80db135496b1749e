"""The words of the command line, each declared once.

A verb's function adds what the verb understands to its parser, in the module of its group; the words that several verbs
share are in `common`. Nothing is imported that ``plan --help`` should not pay for, so help and usage errors are instant
for every verb.
"""
