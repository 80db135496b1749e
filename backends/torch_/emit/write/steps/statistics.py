"""`StatisticsOfAll`: batch norms by the statistics of all copies."""

from __future__ import annotations

from collections.abc import Iterator

from meshwright.backends.torch_.emit.read.recompute import Again
from meshwright.backends.torch_.emit.write.memory.recompute import on_modules
from meshwright.backends.torch_.emit.write.parts import Parts

TEXT = '''\
class Normalize(torch.autograd.Function):
    """Batch norm by given statistics, which are those of all copies: gradients go to what all of them put in."""

    @staticmethod
    def forward(ctx: Any, x: Tensor, mean: Tensor, var: Tensor, weight: Tensor, bias: Tensor, *given: Any) -> Tensor:
        ctx.save_for_backward(x, mean, var, weight)
        ctx.eps, ctx.share, ctx.group = given
        return F.batch_norm(x, mean, var, weight, bias, eps=ctx.eps)

    @staticmethod
    def backward(ctx: Any, *grads: Tensor) -> Any:
        x, mean, var, weight = ctx.saved_tensors
        given = grads[0], x, weight, mean, var, None, None, False, ctx.eps, (True, True, True)
        grad, of_weight, of_bias = torch.ops.aten.native_batch_norm_backward(*given)
        sums = torch.stack((of_weight, of_bias)).double()
        dist.all_reduce(sums, group=ctx.group)
        spread = (var + ctx.eps).rsqrt()
        by_x, by_one = -sums.to(spread.dtype) * weight * spread * ctx.share * x.shape[1] / x.numel()
        by_x = by_x * spread
        wide = (-1, *(1 for _ in x.shape[2:]))
        grad.add_((by_one - by_x * mean).view(wide)).addcmul_(x, by_x.view(wide))
        return grad, None, None, of_weight, of_bias, None, None, None


class StatisticsOfAll(TorchFunctionMode):
    """While it is entered, batch norms in training take the statistics of all copies, of which this one has a share."""

    def __init__(self, group: Any, share: float) -> None:
        super().__init__()
        self.group, self.share = group, share

    def __torch_function__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        normalize = self.batch_norm if func is F.batch_norm else func
        return normalize(*args, **kwargs or {})

    def batch_norm(
        self,
        input: Tensor,
        running_mean: Tensor,
        running_var: Tensor,
        weight: Tensor,
        bias: Tensor,
        training: bool = False,
        momentum: float = 0.1,
        eps: float = 1e-5,
    ) -> Tensor:
        if not training:
            return F.batch_norm(input, running_mean, running_var, weight, bias, eps=eps)
        with torch.no_grad():
            wide = input if input.dtype == torch.float64 else input.float()
            var, mean = torch.var_mean(wide, [dim for dim in range(input.dim()) if dim != 1], correction=0)
            mean, var = mean.double(), var.double()  # of squares little may be left
            moments = torch.stack((mean, var + mean.square())) * self.share
            dist.all_reduce(moments, group=self.group)
            mean, var = moments[0], moments[1] - moments[0].square()
            count = input.numel() / input.shape[1] / self.share
            mean, var = mean.to(running_mean.dtype), var.to(running_var.dtype)
            running_mean.lerp_(mean, momentum)
            running_var.lerp_(var * (count / (count - 1)), momentum)
        normalized: Tensor = Normalize.apply(input, mean, var, weight, bias, eps, self.share, self.group)
        return normalized'''


def shared_by_copies() -> Iterator[str]:
    """The functions of `StatisticsOfAll`."""
    yield from TEXT.split("\n")


def shares_statistics(parts: Parts) -> Iterator[str]:
    """Lines of `parallelize` for the modules of all pieces."""
    axis = parts.axes.data
    yield f'    copies = mesh["{axis}"]'
    share = "SHARES[copies.get_local_rank()] / sum(SHARES)" if parts.shares else "1 / copies.size()"
    mode = f", StatisticsOfAll(copies.get_group(), {share})"
    for piece, modules in parts.statistics:
        yield from on_modules(parts, Again(piece=piece), modules, "run_within", mode)
