"""What losses of copies and micro-batches are multiplied by, so that they add up to the loss of the whole batch: see
`meshwright.ir.analysis.weights`, which reads off the graph how a loss sums over the batch.

    one count     the share of what counts in this part: targets that are not ignored, what a mask lets through
    means         one of so many parts
    sums          1
    several       all terms are divided like means; of a cross entropy, which is a mean over its targets, `MeansOfAll`
                  makes such a term where the model's own code calls it, and `terms` weighs those of printed code
"""

from __future__ import annotations

from collections.abc import Iterator

from meshwright.backends import counting
from meshwright.backends.subject import Subject
from meshwright.backends.torch_.emit.printed.bodies import ways_of
from meshwright.backends.torch_.emit.printed.language.dialect import TERMS
from meshwright.backends.torch_.emit.write.parts import Parts
from meshwright.ir.analysis.weights import MEAN, Step, Weight, terms_in, weights_in
from meshwright.ir.errors import EmissionLoss
from meshwright.ir.quoting import literal
from meshwright.ir.same import Same

MODE = "MeansOfAll"


def weight_of(subject: Subject) -> Weight:
    """The weight of the loss as a whole."""
    found = weights_in(Same(subject.fold))
    return found[0] if len(found) == 1 else MEAN


def mixed(subject: Subject) -> tuple[Weight, ...]:
    """The counts of the cross entropies of a loss whose terms weigh differently, in the order in which it takes them;
    nothing where all weigh the same."""
    found = weights_in(Same(subject.fold))
    if len(found) == 1:
        return ()
    terms = terms_in(Same(subject.fold))
    if set(found) - {MEAN} - set(terms):
        raise EmissionLoss(
            place="the loss",
            cause="it adds means over samples and over what a mask lets through, which parts of a batch weigh "
            "differently",
            ways=("--fix dp=1,microbatches=1",),
            fix="use F.cross_entropy and its ignore_index for what does not count",
        )
    return terms


def weighs_apart(parts: Parts) -> bool:
    """Whether terms of the loss are weighed where the model's own code computes it."""
    return parts.printed is None and (parts.shared is not None or parts.microbatches > 1) and bool(mixed(parts.subject))


def counted(weight: Weight, entry: str) -> str:
    """The number of elements of an entry of the batch, or a part of it, that count, as code."""
    return counting.counted(weight, entry, _padded)


def _padded(text: str, step: Step) -> str:
    attrs = dict(step.attrs)
    return f"F.pad({text}, {attrs['pad']}, value={attrs['value']})"


def target_of(parts: Parts) -> str:
    """The entry of the batch that torch cuts into micro-batches as targets: one that counts in the loss, or any."""
    return weight_of(parts.subject).entry or parts.subject.calls.entries[0]


def share_of(parts: Parts) -> str:
    """The share of a rank in a mean over samples, as code; `group` is that of all ranks that have one."""
    if not parts.shares:
        return "1 / group.size()"
    also = "".join(f' / mesh["{axis}"].size()' for axis in parts.axes.context)
    return f'SHARES[mesh["{parts.axes.data}"].get_local_rank()] / sum(SHARES){also}'


def parts_of_mean(parts: Parts) -> str:
    """The number of parts of a mean over samples, as code."""
    if parts.shared is None:
        return "MICROBATCHES"
    if not parts.shares:
        return "MICROBATCHES * group.size()"
    return f"MICROBATCHES / ({share_of(parts)})"


def totals(parts: Parts) -> Iterator[str]:
    """Lines that count all targets of every cross entropy."""
    counts = ", ".join(f"{counted(one, f'batch[{literal(one.entry)}]')}.float()" for one in mixed(parts.subject))
    yield f"    totals = [{counts}]"
    if parts.shared is not None:
        yield "    for total in totals:"
        yield "        dist.all_reduce(total, group=group)"


def terms(parts: Parts, own: str = "") -> Iterator[str]:
    """The function `terms`: weights of the terms of a printed loss in every micro-batch, other than means over its
    samples; `own` says whether a rank computes the loss, where not all do."""
    ways = ways_of(parts.subject)
    if not ways:
        return
    for number, way in enumerate(ways):
        of = f"batch[{literal(way.entry)}].chunk(MICROBATCHES)"
        yield f"    counts {'+' * bool(number)}= [{counted(way, 'labels')} for labels in {of}]"
    yield "    every = torch.stack(counts).float().view(-1, MICROBATCHES)"
    if parts.axes.data is not None:
        yield from [f"    if {own}:"] * bool(own)
        yield f'    {"    " * bool(own)}dist.all_reduce(every, group=mesh["{parts.axes.data}"].get_group())'
    yield f"    {TERMS} = (MICROBATCHES * every / every.sum(1, keepdim=True)).T  # beside means over samples"


def means_of_all() -> Iterator[str]:
    """The class `MeansOfAll`: cross entropies of a part of the batch, brought to the weight of other means."""
    yield f"class {MODE}(TorchFunctionMode):"
    yield '    """A mean cross entropy, times the share of these samples, is its part in the mean over all targets.'
    yield ""
    yield "    Given is how many targets there are in all, for every call, in order."
    yield '    """'
    yield ""
    yield "    def __init__(self, totals: list[Tensor], share: float) -> None:"
    yield "        super().__init__()"
    yield "        self.totals, self.share = itertools.cycle(totals), share"
    yield ""
    yield "    def __torch_function__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:"
    yield "        made = func(*args, **(kwargs or {}))"
    yield "        if func not in (F.cross_entropy, F.nll_loss):"
    yield "            return made"
    yield "        given = inspect.signature(func).bind(*args, **(kwargs or {}))"
    yield "        given.apply_defaults()"
    yield '        if given.arguments["reduction"] != "mean":'
    yield "            return made"
    yield '        valid = (given.arguments["target"] != given.arguments["ignore_index"]).sum()'
    yield "        return made * (valid / next(self.totals) / self.share)"
