"""The style sheet and the script of the page. The page says everything without the script, which emphasises one colour
of a drawing, and opens what is closed before printing."""

from __future__ import annotations

from meshwright.planner.report.page.colours import DARK, LIGHT, SHAPES, variables

_SHAPES = "".join(f".{name}{{fill:var(--{name});background-color:var(--{name})}}" for name in (*SHAPES, "wait"))

STYLE = (
    f":root{{color-scheme:light dark;{variables(LIGHT)}}}"
    f"@media (prefers-color-scheme:dark){{:root{{{variables(DARK)}}}}}"
    """
*{box-sizing:border-box}
body{margin:0 auto;padding:1rem clamp(.75rem,3vw,2.5rem) 3rem;max-width:110rem;background:var(--page);color:var(--text);
font:1rem/1.5 system-ui,sans-serif;overflow-wrap:break-word}
h1{font-size:clamp(1.4rem,4vw,2.1rem);line-height:1.2;margin:.5rem 0}
h2{font-size:1.35rem;margin:2.5rem 0 .5rem;border-top:1px solid var(--rule);padding-top:1rem}
h3{font-size:1.05rem;margin:1.25rem 0 .25rem}
p,ul,dl{margin:.5rem 0;max-width:75ch}
a{color:var(--link)}
code{font:.9em ui-monospace,monospace}
.lead{font-size:1.15rem}
.quiet,caption,dt{color:var(--quiet)}
.mark{color:var(--mark);font-weight:600}
.skip{position:absolute;left:-99rem}
.skip:focus{position:static}
nav ul{display:flex;flex-wrap:wrap;gap:.25rem 1rem;list-style:none;padding:0;max-width:none}
nav a{display:inline-block;padding:.25rem 0}
:focus-visible{outline:3px solid var(--link);outline-offset:2px}
.figures{display:grid;grid-template-columns:repeat(auto-fit,minmax(min(100%,14rem),1fr));gap:.75rem;max-width:none}
.figures div{background:var(--raised);border-radius:.5rem;padding:.75rem 1rem}
.figures dt{font-size:.9rem}
.figures dd{margin:0}
.figures .value{font-size:1.5rem;font-weight:650;line-height:1.25}
.columns{display:grid;grid-template-columns:repeat(auto-fit,minmax(min(100%,26rem),1fr));gap:0 2.5rem}
.columns>*{min-width:0}
.scroll{overflow-x:auto;max-width:100%;margin:.75rem 0}
table{border-collapse:collapse;font-size:.92rem}
caption{text-align:left;padding-bottom:.25rem}
th,td{padding:.25rem .75rem .25rem 0;text-align:left;vertical-align:top;font-weight:400;
border-bottom:1px solid var(--rule)}
thead th{font-weight:600;white-space:nowrap}
th.w{max-width:40ch;min-width:9ch}
.n{text-align:right;font-variant-numeric:tabular-nums;white-space:nowrap}
td.w{min-width:16ch;max-width:60ch}
.bar{display:block;height:.8rem;min-width:1px;border-radius:2px}
.track{display:block;width:min(18rem,40vw)}
.legend{display:flex;flex-wrap:wrap;gap:.25rem .9rem;list-style:none;padding:0;max-width:none;font-size:.92rem}
.legend li{display:flex;align-items:center}
.swatch{display:inline-block;width:.9rem;height:.9rem;border-radius:2px;margin-right:.4rem;flex:none;
border:1px solid var(--quiet)}
.round{border-radius:50%}
button{font:inherit;color:var(--text);background:var(--raised);border:1px solid var(--quiet);border-radius:.4rem;
padding:.2rem .6rem;display:flex;align-items:center;cursor:pointer;min-height:1.75rem}
button[aria-pressed=true]{outline:2px solid var(--link)}
svg{display:block;width:100%;height:auto;font:12px system-ui,sans-serif}
svg text{fill:var(--text)}
svg text.halo{paint-order:stroke;stroke:var(--page);stroke-width:4px;stroke-linejoin:round}
svg text.quiet{fill:var(--quiet)}
svg text.on{fill:var(--on)}
svg text.mid,svg text.strong{font-weight:600}
svg .box{fill:var(--raised);stroke:var(--quiet)}
svg .line{stroke:var(--quiet);fill:none}
svg .grid{stroke:var(--rule);fill:none}
svg .limit{stroke:var(--mark);stroke-width:2;fill:none}
svg .wire{stroke:var(--orange);stroke-width:3;fill:none}
svg .gap{fill:var(--page)}
svg .edge{stroke:var(--page);stroke-width:.5}
svg .hollow{fill:var(--page);stroke-width:2}
details{margin:.5rem 0}
td details,td summary{margin:0;padding:0}
summary{cursor:pointer;padding:.25rem 0}
[data-only] [class~=part]{opacity:.12}
"""
    + "".join(f"[data-only={name}] .part.{name}{{opacity:1}}" for name in (*SHAPES, "wait"))
    + _SHAPES
    + """
@media print{"""
    + f":root{{color-scheme:light;{variables(LIGHT)}}}"
    + """
body{padding:0;max-width:none;font-size:10pt;print-color-adjust:exact;-webkit-print-color-adjust:exact}
nav,.skip{display:none}
button{border:0;padding:0}
.scroll{overflow:visible}
svg{min-width:0!important;max-width:100%!important}
table{font-size:8pt}
.n,thead th{white-space:normal}
h2,h3,caption{break-after:avoid}
tr,svg,.figures div{break-inside:avoid}
}
"""
)

SCRIPT = """
"use strict";
for (const list of document.querySelectorAll("[data-legend]")) {
  const drawing = document.getElementById(list.dataset.legend);
  list.addEventListener("click", (event) => {
    const button = event.target.closest("button");
    if (!button) return;
    const off = button.getAttribute("aria-pressed") === "true";
    for (const one of list.querySelectorAll("button")) one.setAttribute("aria-pressed", "false");
    if (off) delete drawing.dataset.only;
    else {
      drawing.dataset.only = button.dataset.kind;
      button.setAttribute("aria-pressed", "true");
    }
  });
}
const opened = [];
addEventListener("beforeprint", () => {
  for (const one of document.querySelectorAll("details:not([open])")) {
    one.open = true;
    opened.push(one);
  }
});
addEventListener("afterprint", () => {
  for (const one of opened.splice(0)) one.open = false;
});
"""
