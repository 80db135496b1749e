"""The page of a report: one HTML file with its drawings, that asks for nothing from outside.

    Report -> `document` -> text

Every section is a function from facts to markup. User's words reach the page through `markup.escape` alone: `tag`
escapes whatever is not `Markup`. What a drawing shows is also in a table, or in its description.

| module | what it has |
|---|---|
| `document` | the whole page |
| `first` | the first screen: the plan in words and figures, where the step goes |
| `timeline` | what groups of ranks do in a step, and what of it is drawn |
| `memory` | what ranks hold, stage by stage, under what a device has |
| `links` | hosts, and what goes over their links |
| `placements` | what mesh axes do to operators |
| `tradeoff` | step time against memory |
| `rivals` | baselines and alternatives, and why they lost |
| `markup` | elements, tables, and the one escape |
| `colours` | colours for light and dark, with the contrast that they have |
| `assets` | the style sheet and the script |
"""
