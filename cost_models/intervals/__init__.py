"""How far a step may be from its price, by what constants were fitted on.

    devices, workload, program -> `Case`;  fitted runs -> `Seen`;  both -> the ends of an interval

| module | what it has |
|---|---|
| `seen` | what is priced, and what of it no fitted run had |
| `widths` | half widths of intervals, and the interval of a case |
"""
