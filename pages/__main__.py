"""`python -m pages`: write every page that is generated."""

from __future__ import annotations

from pages.generated import GENERATED, ROOT

for name, made in GENERATED.items():
    path = ROOT / name
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(made(), encoding="utf-8")
