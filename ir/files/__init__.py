"""Users' files: reading them, and saying where they are wrong.

| module | in | out |
|---|---|---|
| `reading` | a path | its text: of a regular file, no longer than a limit, UTF-8 |
| `documents` | a text | what it says; without keys given twice, NaN, numbers without end |
| `schema` | a document and a table of keys | values of our own types; or what is wrong, by the path of the key |
| `store` | a digest | what an earlier run kept under it |

A user's file goes through the first three in turn. `Form` (in `schema`) says by which errors a kind of document is
refused, `FileForm` also where a file of it cannot be read. Only `schema` imports pydantic, and only what reads a file
imports `schema`: help and usage errors do not wait for it.
"""
