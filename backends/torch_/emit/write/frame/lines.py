"""Layout of the lines that call a model's loss."""

from __future__ import annotations

from collections.abc import Iterator

from meshwright.backends.lines import WIDTH, call


def loss_of(deep: int, called: str, batch: str, weight: str = "", own: str | None = None) -> Iterator[str]:
    """The loss of the model's result for a batch, times its weight, on as few lines as possible; `own` says where the
    loss is in the result, if it is the model's own."""
    indent, product = " " * deep, f" * {weight}" if weight else ""
    arguments, function, after = [f"model({called})", batch], "model_file.loss", ""
    if own is not None:
        arguments, function, after = called.split(", "), "model", own
    whole = f"{function}({', '.join(arguments)}){after}{product}"
    before_weight = f"{indent}loss: Tensor = {whole.removesuffix(weight[1:])}"
    if len(f"{indent}loss: Tensor = {whole}") <= WIDTH:
        yield f"{indent}loss: Tensor = {whole}"
    elif weight.startswith("(") and len(before_weight) <= WIDTH:
        yield from (before_weight, f"{indent}    {weight[1:-1]}", f"{indent})")
    elif not weight or weight.startswith("("):
        yield from call(deep, f"loss: Tensor = {function}", arguments, f"{after}{product}")
    elif deep + 4 + len(whole) <= WIDTH:
        yield from (f"{indent}loss: Tensor = (", f"{indent}    {whole}", f"{indent})")
    else:
        yield f"{indent}loss: Tensor = ("
        yield from call(deep + 4, function, arguments, after)
        yield from (f"{indent}    * {weight}", f"{indent})")
