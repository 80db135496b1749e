"""``python -m meshwright.ir.errors`` prints docs/errors.md."""

from meshwright.ir.errors import render

if __name__ == "__main__":
    print(render(), end="")  # noqa: T201
