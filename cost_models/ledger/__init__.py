"""Ledgers: the kernels and transmissions of one run of a body program, before any price.

| module | what it has |
|---|---|
| `ledger` | work, bytes, collectives; `operators`: what it reads off each operator |
| `chains` | memory-bound operators as the kernels that run them |
| `signatures` | what statements are on one rank, whatever the batch and the copies |
| `books` | ledgers remembered |
"""
