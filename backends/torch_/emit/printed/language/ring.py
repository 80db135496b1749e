"""Attention in a ring: keys and values pass from rank to rank while queries stay.

Torch's fused kernel says, beside its result, the logarithm of each row's sum, by which parts of one attention are put
together; and its derivative, given the whole result and that logarithm, is that of the part alone. So in both passes
every visit is a call of the kernel. Gradients of keys and values travel with the next visit, and one shift more brings
them home.

Of a mask that the model makes (a window), of which a rank has its rows, every visit is given the columns of its keys; a
visit that sees nothing is passed on. Kernels say any logarithm of a row that sees nothing, and it is that of nothing.
Values narrower than keys are widened by zeros for kernels that want both alike. Where tokens lie zigzag, every causal
visit is of half of the pairs, on all ranks alike.
"""

from __future__ import annotations

from collections.abc import Mapping
from types import MappingProxyType

PLAIN_MASKS = ("full", "causal")
"""Those that torch's kernels make themselves. Others a ring is given, for every visit."""
KERNELS: Mapping[str, str] = MappingProxyType(
    {
        "cpu": '''\
def visit(query: Tensor, key: Tensor, value: Tensor, *, causal: bool, scale: float | None) -> tuple[Tensor, Tensor]:
    """Attention to some of the keys, and the logarithm of each row's sum."""
    kernel = torch.ops.aten._scaled_dot_product_flash_attention_for_cpu
    result, norm = kernel(query, key, value, 0.0, causal, scale=scale)
    return result, norm


def visit_backward(grad: Tensor, kept: list[Tensor], *, causal: bool, scale: float | None) -> list[Tensor]:
    """Gradients of queries, keys and values; `kept` are these, the whole result, and the logarithms of whole sums."""
    kernel = torch.ops.aten._scaled_dot_product_flash_attention_for_cpu_backward
    return list(kernel(grad, *kept, 0.0, causal, scale=scale))''',
        "flash": '''\
def visit(query: Tensor, key: Tensor, value: Tensor, *, causal: bool, scale: float | None) -> tuple[Tensor, Tensor]:
    """Attention to some of the keys, and the logarithm of each row's sum."""
    kernel = torch.ops.aten._scaled_dot_product_flash_attention
    result, norm, *_ = kernel(query, key, value, 0.0, causal, scale=scale)
    return result, norm


def visit_backward(grad: Tensor, kept: list[Tensor], *, causal: bool, scale: float | None) -> list[Tensor]:
    """Gradients of queries, keys and values; `kept` are these, the whole result, and the logarithms of whole sums."""
    kernel = torch.ops.aten._scaled_dot_product_flash_attention_backward
    lengths = (kept[0].shape[2], kept[1].shape[2])
    seed = torch.zeros((), dtype=torch.int64, device=grad.device)  # of dropout, which there is none of
    return list(kernel(grad, *kept, None, None, *lengths, 0.0, causal, seed, seed, scale=scale))''',
        "efficient": '''\
def visit(query: Tensor, key: Tensor, value: Tensor, *, causal: bool, scale: float | None) -> tuple[Tensor, Tensor]:
    """Attention to some of the keys, and the logarithm of each row's sum."""
    kernel = torch.ops.aten._scaled_dot_product_efficient_attention
    wide = (one.repeat_interleave(query.shape[1] // one.shape[1], 1) for one in (key, value))
    result, norm, *_ = kernel(query, *wide, None, True, 0.0, causal, scale=scale)
    return result, norm


def visit_backward(grad: Tensor, kept: list[Tensor], *, causal: bool, scale: float | None) -> list[Tensor]:
    """Gradients of queries, keys and values; `kept` are these, the whole result, and the logarithms of whole sums."""
    kernel = torch.ops.aten._scaled_dot_product_efficient_attention_backward
    query, key, value, result, norm = kept
    wide = (one.repeat_interleave(query.shape[1] // one.shape[1], 1) for one in (key, value))
    seed = torch.zeros((), dtype=torch.int64, device=grad.device)  # of dropout, which there is none of
    given, wanted = (None, result, norm, seed, seed, 0.0), [True, True, True, False]
    of_query, *found, _ = kernel(grad, query, *wide, *given, wanted, causal, scale=scale)
    return [of_query, *(one.unflatten(1, (key.shape[1], -1)).sum(2) for one in found)]''',
    }
)
"""Calls of torch's fused kernels; `efficient` alone of those for CUDA computes in fp32, and takes masks."""
MULTIPLE = 32
"""`efficient` rounds the number of its row sums up to a multiple of this (torch 2.13)."""
EQUAL_WIDTHS = ("cpu", "flash")
"""Those that want values as wide as keys."""
MASKED = {
    "value: Tensor, *, causal: bool, scale: float | None) -> tuple": """\
value: Tensor, *, causal: bool, scale: float | None, mask: Tensor | None
) -> tuple""",
    "kept: list[Tensor], *, causal: bool, scale: float | None) -> list": """\
kept: list[Tensor], *, causal: bool, scale: float | None, mask: Tensor | None
) -> list""",
    "def visit(": "def visit(\n    ",
    "def visit_backward(": "def visit_backward(\n    ",
    "causal, scale=scale)": "causal, attn_mask=mask, scale=scale)",
    "return result, norm": "return of_seen(result, norm, mask)",
}
"""What other text a kernel has that is given masks, which are added to scores."""
BIASED = MASKED | {
    "causal, scale=scale)": "causal, scale=scale)",
    "None, True, 0.0": "for_all(mask, query), True, 0.0",
    "(None, result": "(for_all(mask, query), result",
}
"""The same of `efficient`."""

RING = '''\
class Ring(torch.autograd.Function):
    """Attention of this rank's queries to the keys and values of all ranks; a causal one has none of later ranks."""

    @staticmethod
    def forward(ctx: Any, *given: Any) -> Tensor:
        query, key, value, ranks, causal, scale = given
        here, size, visitors = ranks.get_local_rank(), ranks.size(), [key, value]
        for hop in range(size):
            coming, works = pass_on(visitors, ranks) if hop < size - 1 else ([], [])
            if hop == 0:
                result, total = visit(query, key, value, causal=causal, scale=scale)
            elif hop <= here or not causal:
                another, norm = visit(query, *visitors, causal=False, scale=scale)
                share = torch.sigmoid(norm - total).unsqueeze(-1)
                result = torch.lerp(result.float(), another.float(), share)
                total = torch.logaddexp(total, norm)
            visitors = arrived(coming, works)
        result = result.to(query.dtype)
        ctx.save_for_backward(query, key, value, result, total)
        ctx.given = (ranks, causal, scale)
        return result

    @staticmethod
    def backward(ctx: Any, *grads: Tensor) -> Any:
        query, key, value, result, total = ctx.saved_tensors
        ranks, causal, scale = ctx.given
        here, size, visitors = ranks.get_local_rank(), ranks.size(), [key, value]
        of_query = torch.zeros_like(query, dtype=torch.float32)
        of_visitors: list[Tensor] = []
        returning: list[dist.Work] = []
        for hop in range(size):
            coming, works = pass_on(visitors, ranks) if hop < size - 1 else ([], [])
            found = [torch.zeros_like(visitor) for visitor in visitors]
            if hop <= here or not causal:
                kept = [query, *visitors, result, total]
                another, *found = visit_backward(grads[0], kept, causal=causal and hop == 0, scale=scale)
                of_query += another
            for grad, before in zip(found, arrived(of_visitors, returning), strict=hop > 0):
                grad += before
            of_visitors, returning = pass_on(found, ranks)
            visitors = arrived(coming, works)
        return of_query.to(query.dtype), *arrived(of_visitors, returning), None, None, None


def pass_on(tensors: list[Tensor], ranks: DeviceMesh) -> tuple[list[Tensor], list[dist.Work]]:
    """Send tensors to the next rank of the ring; what arrives of the one before."""
    here, size, group = ranks.get_local_rank(), ranks.size(), ranks.get_group()
    given = [one.contiguous() for one in tensors]
    coming = [torch.empty_like(one) for one in given]
    sends = [dist.P2POp(dist.isend, one, group=group, group_peer=(here + 1) % size) for one in given]
    receives = [dist.P2POp(dist.irecv, one, group=group, group_peer=(here - 1) % size) for one in coming]
    return coming, dist.batch_isend_irecv(sends + receives)


def arrived(tensors: list[Tensor], works: list[dist.Work]) -> list[Tensor]:
    """Tensors that have come."""
    for work in works:
        work.wait()
    return tensors'''


IN_ZIGZAG = {
    """\
            elif hop <= here or not causal:
                another, norm = visit(query, *visitors, causal=False, scale=scale)
                share = torch.sigmoid(norm - total).unsqueeze(-1)
                result = torch.lerp(result.float(), another.float(), share)
                total = torch.logaddexp(total, norm)
""": """\
            else:
                rows, keys = meeting(hop, here, query.shape[2], causal)
                kept = [query[:, :, rows], *(one[:, :, keys] for one in visitors)]
                another, norm = visit(*map(torch.Tensor.contiguous, kept), causal=False, scale=scale)
                share = torch.sigmoid(norm - total[:, :, rows]).unsqueeze(-1)
                result[:, :, rows] = torch.lerp(result[:, :, rows], another.float(), share)
                total[:, :, rows] = torch.logaddexp(total[:, :, rows], norm)
""",
    "visit(query, key, value, causal=causal, scale=scale)\n": """\
visit(query, key, value, causal=causal, scale=scale)
                result = result.float()
""",
    """\
            if hop <= here or not causal:
                kept = [query, *visitors, result, total]
                another, *found = visit_backward(grads[0], kept, causal=causal and hop == 0, scale=scale)
                of_query += another
""": """\
            rows, keys = meeting(hop, here, query.shape[2], causal)
            kept = [query[:, :, rows], *(one[:, :, keys] for one in visitors), result[:, :, rows], total[:, :, rows]]
            grad, *kept = (one.contiguous() for one in (grads[0][:, :, rows], *kept))
            another, *parts = visit_backward(grad, kept, causal=causal and hop == 0, scale=scale)
            of_query[:, :, rows] += another
            for whole, part in zip(found, parts, strict=True):
                whole[:, :, keys] += part
""",
}
"""What other text a ring has whose tokens lie zigzag."""
MEETING = '''\
def meeting(hop: int, here: int, length: int, causal: bool) -> tuple[slice, slice]:
    """Which queries of a rank, that has a run from the front and one from the back, meet which keys of a visitor: of
    earlier ranks all of them the first run; of later ranks the last run everything. Nothing is masked there."""
    everything, half = slice(None), length // 2
    if hop == 0 or not causal:
        return everything, everything
    return (everything, slice(half)) if hop <= here else (slice(half, None), everything)'''

WITH_MASKS = {
    "ranks, causal, scale = given": "ranks, causal, scale, *masks = given",
    "ctx.given = (ranks, causal, scale)": "ctx.given = (ranks, causal, scale, masks)",
    "ranks, causal, scale = ctx.given": "ranks, causal, scale, masks = ctx.given",
    "        for hop in range(size):\n": "        for hop, mask in enumerate(masks or [None] * size):\n",
    "hop <= here or not causal:": "reaches(mask, hop <= here or not causal):",
    "causal=causal, scale=scale)": "causal=causal, scale=scale, mask=numbers(mask, query))",
    "causal=False, scale=scale)": "causal=False, scale=scale, mask=numbers(mask, query))",
    "                another, *found = ": """\
                added, own = numbers(mask, query), causal and hop == 0
                another, *found = """,
    "causal=causal and hop == 0, scale=scale)": "causal=own, scale=scale, mask=added)",
    "None, None, None": "None, None, None, *([None] * len(masks))",
}
"""What other text a ring has whose visits are given masks."""
MASKS = '''\
def reaches(mask: Tensor | None, otherwise: bool) -> bool:
    """Whether any of these keys is seen."""
    return otherwise if mask is None else bool(mask.any())


def numbers(mask: Tensor | None, like: Tensor) -> Tensor | None:
    """A mask as numbers that are added to scores."""
    return None if mask is None else like.new_zeros(mask.shape).masked_fill(~mask, -math.inf)


def of_seen(result: Tensor, norm: Tensor, mask: Tensor | None) -> tuple[Tensor, Tensor]:
    """A row that sees nothing has a sum of nothing, whatever a kernel says of it."""
    if mask is None:
        return result, norm
    seen = (mask > -math.inf).any(-1)
    return result.where(seen.unsqueeze(-1), 0.0), norm.where(seen, -math.inf)'''

FOR_ALL = '''\
def for_all(mask: Tensor | None, query: Tensor) -> Tensor | None:
    """A mask for every head."""
    return None if mask is None else mask.expand(*query.shape[:2], -1, -1)'''

NARROW = '''\
def visit_narrow(query: Tensor, key: Tensor, value: Tensor, **options: Any) -> tuple[Tensor, Tensor]:
    """The same of values that are narrower than keys: the kernel is given them widened by zeros."""
    result, norm = visit(query, key, widened(value, key), **options)
    return result[..., : value.shape[-1]].contiguous(), norm


def visit_narrow_backward(grad: Tensor, kept: list[Tensor], **options: Any) -> list[Tensor]:
    query, key, value, result, norm = kept
    grad, wide, result = (widened(one, key) for one in (grad, value, result))
    of_query, of_key, of_value = visit_backward(grad, [query, key, wide, result, norm], **options)
    return [of_query, of_key, of_value[..., : value.shape[-1]]]


def widened(tensor: Tensor, like: Tensor) -> Tensor:
    return F.pad(tensor, (0, like.shape[-1] - tensor.shape[-1]))'''


def kernel_of(device: str, precision: str, *, masked: bool) -> str:
    """Torch's fused kernel that computes attention in a ring."""
    if device == "cpu":
        return "cpu"
    return "efficient" if precision == "fp32" or masked else "flash"


def rows_fit(kernel: str, rows: int) -> bool:
    """Whether a kernel takes this number of queries per rank."""
    return kernel != "efficient" or rows % MULTIPLE == 0


def ring(kernel: str, *, masked: bool, narrow: bool, zigzag: bool) -> str:
    """The functions of ring attention by a kernel: whether the model makes masks for it, whether values are narrower
    than keys, and whether tokens lie in a zigzag. Must: there are no other masks."""
    text, calls, beside = RING, KERNELS[kernel], list[str]()
    if zigzag:
        text = _other(text, IN_ZIGZAG)
        beside.append(MEETING)
    if masked:
        text = _other(text, WITH_MASKS)
        calls = _other(calls, BIASED if kernel == "efficient" else MASKED)
        beside += [MASKS, *([FOR_ALL] if kernel == "efficient" else [])]
    if narrow and kernel in EQUAL_WIDTHS:
        text = _other(text, {" visit(": " visit_narrow(", " visit_backward(": " visit_narrow_backward("})
        beside.append(NARROW)
    return "\n\n\n".join((text, calls, *beside))


def _other(text: str, changes: Mapping[str, str]) -> str:
    """A text with one part replaced, which must be there."""
    for one, other in changes.items():
        assert one in text, one
        text = text.replace(one, other)
    return text


EVERY_RING = tuple(
    ring(kernel, masked=not zigzag, narrow=True, zigzag=zigzag) for kernel in KERNELS for zigzag in (False, True)
)
"""With all the functions that there are."""
