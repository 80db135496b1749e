"""What a plan does with its devices, for people: one page to look at, one trace to zoom in.

    Reloaded -> `facts` -> plain data -> `page` -> one HTML file
                                      -> `trace` -> trace-event JSON

What is computed is apart from how it is drawn: `facts` asks the evaluator and knows nothing of pages; `page` and
`trace` draw what `facts` says and price nothing. Every second and byte is the evaluator's own.

| module | in → out |
|---|---|
| `facts/` | a plan that was priced again → frozen data: summary, timeline, memory, traffic, placements, prices |
| `page/` | these → one HTML file with its drawings, which needs nothing beside itself |
| `trace` | a timeline, and a measured step → slices for Perfetto and chrome://tracing |
"""
