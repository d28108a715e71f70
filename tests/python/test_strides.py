"""Strides of results are those of the CPU: elementwise ops propagate them, channels_last goes through, views are exact.

Only strides that a program can see the effect of are compared here (sizes above 1); `helper.same` compares all of them.
"""

import pytest
import torch
import torch.nn.functional as F
from helper import D


def inputs(device):
    """The same values under many layouts, all of sizes (2, 4, 6, 6)."""
    x = torch.linspace(-1, 1, 2 * 4 * 6 * 6).reshape(2, 4, 6, 6).to(device)
    wide = torch.linspace(-1, 1, 2 * 4 * 6 * 12).reshape(2, 4, 6, 12).to(device)
    return {
        "contiguous": x,
        "transposed": x.transpose(2, 3),
        "batch last": x.permute(1, 0, 2, 3).contiguous().permute(1, 0, 2, 3),
        "channels_last": x.contiguous(memory_format=torch.channels_last),
        "reversed": x.permute(3, 2, 1, 0).contiguous().permute(3, 2, 1, 0),
        "sliced": wide[..., 3:9],
        "stepped": wide[..., ::2],
        "sliced and transposed": wide[..., :6].transpose(1, 0).contiguous().transpose(1, 0)[..., :6].transpose(2, 3),
        "expanded": x[:, :1].expand(2, 4, 6, 6),
        "expanded columns": x[..., :1].expand(2, 4, 6, 6),
        "stepped rows": x.contiguous(memory_format=torch.channels_last)[:, ::1, :, :],
    }


def w(x, *sizes):
    return torch.linspace(-1, 1, torch.Size(sizes).numel(), device=x.device, dtype=x.dtype).reshape(sizes)


def long(x, *values):
    return torch.tensor(values, device=x.device)


OPS = {
    name: getattr(torch, name)
    for name in (
        "abs neg exp log sqrt rsqrt sin cos tan tanh sigmoid relu erf floor ceil round trunc frac sign sgn square reciprocal "
        "logical_not isnan isfinite isinf signbit positive digamma lgamma expm1 log1p log2 log10 exp2 asin acos atan sinh cosh "
        "asinh acosh atanh erfc erfinv logit nan_to_num deg2rad rad2deg i0 sinc clone isposinf isneginf isreal"
    ).split()
} | {
    "add": lambda x: x + x,
    "add number": lambda x: x + 1,
    "add column": lambda x: x + x[..., :1],
    "add row": lambda x: x[:, :, :1] + x,
    "add channels": lambda x: x + w(x, 4, 1, 1),
    "add to contiguous": lambda x: w(x, 2, 4, 6, 6) + x,
    "add contiguous": lambda x: x + w(x, 2, 4, 6, 6),
    "rsub": lambda x: 1 - x,
    "mul": lambda x: x * x.flip(0),
    "div": lambda x: x / (x + 3),
    "floor_divide": lambda x: x // 0.3,
    "remainder": lambda x: x % 0.3,
    "fmod": lambda x: torch.fmod(x, 0.3),
    "pow": lambda x: x**2,
    "pow tensor": lambda x: (x.abs()) ** x,
    "number to the power": lambda x: 2**x,
    "maximum": lambda x: torch.maximum(x, w(x, 6)),
    "fmax": lambda x: torch.fmax(x, x),
    "atan2": lambda x: torch.atan2(x, x),
    "hypot": lambda x: torch.hypot(x, x),
    "copysign": lambda x: torch.copysign(x, x),
    "heaviside": lambda x: torch.heaviside(x, x),
    "logaddexp": lambda x: torch.logaddexp(x, x),
    "xlogy": lambda x: torch.xlogy(x, x),
    "gt": lambda x: x > 0,
    "eq": lambda x: x == x,
    "logical_and": lambda x: torch.logical_and(x, x),
    "isclose": lambda x: torch.isclose(x, x),
    "where": lambda x: torch.where(x > 0, x, 0.0),
    "where tensors": lambda x: torch.where(x > 0, x, -x),
    "where contiguous": lambda x: torch.where(w(x, 2, 4, 6, 6) > 0, x, x),
    "masked_fill": lambda x: x.masked_fill(x > 0, 0.0),
    "masked_fill row": lambda x: x.masked_fill(w(x, 6) > 0, 0.0),
    "clamp": lambda x: x.clamp(-0.5, 0.5),
    "clamp tensors": lambda x: torch.clamp(x, w(x, 6), x),
    "lerp": lambda x: torch.lerp(x, x, 0.3),
    "addcmul": lambda x: torch.addcmul(x, x, x),
    "addcdiv": lambda x: torch.addcdiv(x, x, x + 3),
    "to double": lambda x: x.to(torch.double),
    "to bool": lambda x: x.bool(),
    "contiguous": lambda x: x.contiguous(),
    "to channels_last": lambda x: x.contiguous(memory_format=torch.channels_last),
    "clone contiguous": lambda x: x.clone(memory_format=torch.contiguous_format),
    "zeros_like": torch.zeros_like,
    "ones_like": torch.ones_like,
    "empty_like": lambda x: torch.empty_like(x).fill_(0),
    "rand_like": lambda x: torch.rand_like(x) * 0,
    "full_like": lambda x: torch.full_like(x, 2),
    "new_empty": lambda x: x.new_empty(x.shape).fill_(0),
    "gelu": F.gelu,
    "gelu tanh": lambda x: F.gelu(x, approximate="tanh"),
    "silu": F.silu,
    "elu": F.elu,
    "selu": F.selu,
    "celu": F.celu,
    "leaky_relu": F.leaky_relu,
    "relu6": F.relu6,
    "hardtanh": F.hardtanh,
    "hardswish": F.hardswish,
    "hardsigmoid": F.hardsigmoid,
    "softplus": F.softplus,
    "softshrink": F.softshrink,
    "hardshrink": F.hardshrink,
    "tanhshrink": F.tanhshrink,
    "softsign": F.softsign,
    "mish": F.mish,
    "logsigmoid": F.logsigmoid,
    "prelu": lambda x: F.prelu(x, w(x, 4)),
    "threshold": lambda x: F.threshold(x, 0.1, 0.0),
    "glu": lambda x: F.glu(x, 1),
    "dropout eval": lambda x: F.dropout(x, 0.5, training=False),
    "softmax": lambda x: x.softmax(1),
    "softmax last": lambda x: x.softmax(-1),
    "log_softmax": lambda x: x.log_softmax(1),
    "sum": lambda x: x.sum(1),
    "sum keepdim": lambda x: x.sum(1, keepdim=True),
    "sum two": lambda x: x.sum((0, 2)),
    "mean": lambda x: x.mean(3),
    "amax": lambda x: x.amax(1),
    "max dim": lambda x: x.max(1),
    "min dim": lambda x: x.min(2),
    "argmax": lambda x: x.argmax(1),
    "prod": lambda x: x.prod(1),
    "all": lambda x: (x > 0).all(1),
    "any": lambda x: (x > 0).any(2),
    "var": lambda x: x.var(1),
    "std": lambda x: x.std(2),
    "var_mean": lambda x: torch.var_mean(x, 1),
    "norm": lambda x: x.norm(dim=1),
    "logsumexp": lambda x: x.logsumexp(1),
    "cumsum": lambda x: x.cumsum(1),
    "cumprod": lambda x: x.cumprod(2),
    "cummax": lambda x: x.cummax(1),
    "logcumsumexp": lambda x: x.logcumsumexp(1),
    "sort": lambda x: x.sort(1),
    "sort last": lambda x: x.sort(dim=-1, stable=True),
    "argsort": lambda x: x.argsort(1),
    "topk": lambda x: x.topk(2, 1)[0],
    "kthvalue": lambda x: x.kthvalue(2, 1),
    "median": lambda x: x.median(1),
    "flip": lambda x: x.flip(1),
    "roll": lambda x: x.roll(1, 2),
    "rot90": lambda x: x.rot90(1, (2, 3)),
    "repeat": lambda x: x.repeat(1, 2, 1, 1),
    "repeat_interleave": lambda x: x.repeat_interleave(2, 1),
    "tile": lambda x: x.tile(2, 1),
    "cat": lambda x: torch.cat([x, x], 1),
    "cat batch": lambda x: torch.cat([x, x]),
    "cat mixed": lambda x: torch.cat([w(x, 2, 4, 6, 6), x], 1),
    "stack": lambda x: torch.stack([x, x], 1),
    "tril": lambda x: x.tril(),
    "triu": lambda x: x.triu(1),
    "diff": lambda x: x.diff(dim=1),
    "pad": lambda x: F.pad(x, (1, 1)),
    "pad channels": lambda x: F.pad(x, (0, 0, 0, 0, 1, 1)),
    "pad reflect": lambda x: F.pad(x, (1, 1, 1, 1), mode="reflect"),
    "pad replicate": lambda x: F.pad(x, (1, 1, 1, 1), mode="replicate"),
    "index_select": lambda x: x.index_select(1, long(x, 0, 2)),
    "index": lambda x: x[long(x, 0, 1)],
    "index middle": lambda x: x[:, long(x, 0, 1)],
    "index two": lambda x: x[:, long(x, 0, 1), :, long(x, 2, 3)],
    "index adjacent": lambda x: x[:, :, long(x, 0, 1), long(x, 2, 3)],
    "gather": lambda x: x.gather(1, torch.zeros_like(x, dtype=torch.long)),
    "take": lambda x: x.take(long(x, 1, 2)),
    "take_along_dim": lambda x: x.take_along_dim(x.argsort(1), 1),
    "scatter": lambda x: x.scatter(1, torch.zeros_like(x, dtype=torch.long), x),
    "scatter_add": lambda x: x.scatter_add(1, torch.zeros_like(x, dtype=torch.long), x),
    "index_add": lambda x: x.index_add(1, long(x, 0, 1), x[:, :2]),
    "index_fill": lambda x: x.index_fill(1, long(x, 0), 2.0),
    "index_copy": lambda x: x.index_copy(1, long(x, 0, 1), x[:, :2]),
    "index_put": lambda x: x.index_put((long(x, 0, 1),), x),
    "masked_scatter": lambda x: x.masked_scatter(x > 0, x),
    "select_scatter": lambda x: x.select_scatter(x[:, 0], 1, 1),
    "slice_scatter": lambda x: x.slice_scatter(x[:, :2], 1, 1, 3),
    "diagonal_scatter": lambda x: x.diagonal_scatter(x.diagonal(0, 2, 3), 0, 2, 3),
    "unfold": lambda x: F.unfold(x, 3),
    "matmul": lambda x: x @ x,
    "matmul row": lambda x: x @ w(x, 6),
    "linear": lambda x: F.linear(x, w(x, 5, 6)),
    "mm": lambda x: x[0, 0] @ x[1, 1],
    "bmm": lambda x: torch.bmm(x[0], x[1]),
    "baddbmm": lambda x: torch.baddbmm(x[0], x[0], x[1]),
    "addmm": lambda x: torch.addmm(x[0, 0], x[0, 1], x[1, 1]),
    "einsum": lambda x: torch.einsum("bchw,bcwk->bhk", x, x),
    "outer": lambda x: torch.outer(x[0, 0, 0], x[0, 0, 1]),
    "cdist": lambda x: torch.cdist(x, x),
    "conv2d": lambda x: F.conv2d(x, w(x, 3, 4, 3, 3)),
    "conv2d bias": lambda x: F.conv2d(x, w(x, 3, 4, 3, 3), w(x, 3), stride=2, padding=1),
    "conv2d depthwise": lambda x: F.conv2d(x, w(x, 4, 1, 3, 3), groups=4),
    "conv2d 1x1": lambda x: F.conv2d(x, w(x, 3, 4, 1, 1)),
    "conv2d weight channels_last": lambda x: F.conv2d(x, w(x, 3, 4, 3, 3).contiguous(memory_format=torch.channels_last)),
    "conv_transpose2d": lambda x: F.conv_transpose2d(x, w(x, 4, 3, 3, 3), stride=2),
    "max_pool2d": lambda x: F.max_pool2d(x, 2),
    "max_pool2d indices": lambda x: F.max_pool2d(x, 2, return_indices=True),
    "avg_pool2d": lambda x: F.avg_pool2d(x, 2),
    "adaptive_avg_pool2d": lambda x: F.adaptive_avg_pool2d(x, 3),
    "adaptive_avg_pool2d to 1": lambda x: F.adaptive_avg_pool2d(x, 1),
    "adaptive_max_pool2d": lambda x: F.adaptive_max_pool2d(x, 3),
    "batch_norm": lambda x: F.batch_norm(x, w(x, 4), w(x, 4).abs() + 1),
    "batch_norm training": lambda x: F.batch_norm(x, None, None, w(x, 4), w(x, 4), training=True),
    "instance_norm": lambda x: F.instance_norm(x),
    "group_norm": lambda x: F.group_norm(x, 2),
    "group_norm with a gradient": lambda x: F.group_norm(x.detach().requires_grad_(), 2),
    "layer_norm": lambda x: F.layer_norm(x, x.shape[-1:]),
    "rms_norm": lambda x: F.rms_norm(x, x.shape[-1:]),
    "local_response_norm": lambda x: F.local_response_norm(x, 2),
    "normalize": lambda x: F.normalize(x),
    "interpolate nearest": lambda x: F.interpolate(x, scale_factor=2),
    "interpolate bilinear": lambda x: F.interpolate(x, scale_factor=2, mode="bilinear"),
    "interpolate bicubic": lambda x: F.interpolate(x, scale_factor=2, mode="bicubic"),
    "interpolate area": lambda x: F.interpolate(x, size=3, mode="area"),
    "pixel_shuffle": lambda x: F.pixel_shuffle(x, 2),
    "pixel_unshuffle": lambda x: F.pixel_unshuffle(x, 2),
    "channel_shuffle": lambda x: F.channel_shuffle(x, 2),
    "grid_sample": lambda x: F.grid_sample(x, w(x, 2, 3, 3, 2), align_corners=False),
    "attention": lambda x: F.scaled_dot_product_attention(x, x, x),
    "attention causal": lambda x: F.scaled_dot_product_attention(x, x, x, is_causal=True),
    "attention masked": lambda x: F.scaled_dot_product_attention(x, x, x, w(x, 6, 6)),
    "attention masked and causal": lambda x: F.scaled_dot_product_attention(x, x, x, w(x, 6, 6) > 0, is_causal=True)
    if x.stride(3) == 1
    else x,
    "attention over other keys": lambda x: F.scaled_dot_product_attention(x, x[:, :, :3], x[:, :, :3]),
    "attention, wider values": lambda x: F.scaled_dot_product_attention(x, x, torch.cat([x, x], 3)),
    "attention, three axes": lambda x: F.scaled_dot_product_attention(x[0], x[0], x[0]),
    "attention double": lambda x: F.scaled_dot_product_attention(x.double(), x.double(), x.double()),
    "mse_loss": lambda x: F.mse_loss(x, x, reduction="none"),
    "l1_loss": lambda x: F.l1_loss(x, x, reduction="none"),
    "smooth_l1_loss": lambda x: F.smooth_l1_loss(x, x + 1, reduction="none"),
    "huber_loss": lambda x: F.huber_loss(x, x + 1, reduction="none"),
    "bce": lambda x: F.binary_cross_entropy(x.sigmoid(), x.sigmoid(), reduction="none"),
    "bce_with_logits": lambda x: F.binary_cross_entropy_with_logits(x, x, reduction="none"),
    "kl_div": lambda x: F.kl_div(x, x, reduction="none"),
    "cross_entropy": lambda x: F.cross_entropy(x, x[:, 0].long() * 0, reduction="none"),
    "embedding": lambda x: F.embedding((x[:, 0] > 0).long(), w(x, 3, 5)),
    "one_hot": lambda x: F.one_hot((x[:, 0] > 0).long(), 3),
    "bucketize": lambda x: torch.bucketize(x, w(x, 4)),
    "complex": lambda x: torch.complex(x, x),
    "reshape": lambda x: x.reshape(8, 36),
    "flatten": lambda x: x.flatten(1),
    "reshape images": lambda x: x.reshape(2, 4, 36),
    "unflatten": lambda x: x.unflatten(1, (2, 2)),
    "movedim": lambda x: x.movedim(1, 3),
    "squeeze": lambda x: x[:, :1].squeeze(1),
    "diagonal": lambda x: x.diagonal(0, 2, 3),
    "unfold dim": lambda x: x.unfold(3, 2, 2),
    "broadcast": lambda x: x[:, :1].expand_as(x),
    "grad conv2d": lambda x: grads(lambda x, k: F.conv2d(x, k), x, w(x, 3, 4, 3, 3)),
    "grad conv2d depthwise": lambda x: grads(lambda x, k: F.conv2d(x, k, groups=4, padding=1), x, w(x, 4, 1, 3, 3)),
    "grad conv2d grouped": lambda x: grads(lambda x, k: F.conv2d(x, k, groups=2), x, w(x, 4, 2, 3, 3)),
    "grad conv2d 1x1": lambda x: grads(lambda x, k: F.conv2d(x, k), x, w(x, 3, 4, 1, 1)),
    "grad conv_transpose2d": lambda x: grads(lambda x, k: F.conv_transpose2d(x, k), x, w(x, 4, 3, 3, 3)),
    "grad max_pool2d": lambda x: grads(lambda x: F.max_pool2d(x, 2), x),
    "grad avg_pool2d": lambda x: grads(lambda x: F.avg_pool2d(x, 2), x),
    "grad batch_norm": lambda x: grads(lambda x, a: F.batch_norm(x, None, None, a, training=True), x, w(x, 4)),
    "grad group_norm": lambda x: grads(lambda x, a: F.group_norm(x, 2, a), x, w(x, 4)),
    "grad group_norm of its output": lambda x: grads(lambda x: F.group_norm(F.group_norm(x, 4) * 2, 2), x),
    "grad layer_norm": lambda x: grads(lambda x, a: F.layer_norm(x, x.shape[-1:], a), x, w(x, 6)),
    "grad gelu": lambda x: grads(F.gelu, x),
    "grad silu": lambda x: grads(F.silu, x),
    "grad softmax": lambda x: grads(lambda x: x.softmax(1), x),
    "grad matmul": lambda x: grads(lambda x: x @ x, x),
    "grad linear": lambda x: grads(lambda x, k: F.linear(x, k), x, w(x, 5, 6)),
    "grad interpolate": lambda x: grads(lambda x: F.interpolate(x, scale_factor=2, mode="bilinear"), x),
    "grad index": lambda x: grads(lambda x: x[:, long(x, 0, 1)], x),
    "grad cat": lambda x: grads(lambda x: torch.cat([x, x], 1) * 2, x),
    "grad attention": lambda x: grads(lambda x: F.scaled_dot_product_attention(x, x, x), x),
    "grad where": lambda x: grads(lambda x: torch.where(x > 0, x, x * 2), x),
    "grad pad": lambda x: grads(lambda x: F.pad(x, (1, 1, 1, 1), mode="reflect"), x),
}


def grads(f, *leaves):
    leaves = [x.detach().requires_grad_() for x in leaves]
    y = f(*leaves)
    return torch.autograd.grad(y, leaves, y.detach())


def visible(out):
    outs = out if isinstance(out, (tuple, list)) else [out]
    return [[s for s, n in zip(t.stride(), t.shape) if n > 1] for t in outs]


@pytest.mark.parametrize("name", OPS)
def test_strides(name):
    wrong = {}
    for (layout, x), y in zip(inputs("cpu").items(), inputs(D).values()):
        want, got = visible(OPS[name](x)), visible(OPS[name](y))
        if want != got:
            wrong[layout] = (want, got)
    assert not wrong, wrong


def test_group_norm_whose_gradient_is_undefined():
    class Nothing(torch.autograd.Function):
        @staticmethod
        def forward(ctx, x):
            return x * 1

        @staticmethod
        def backward(ctx, grad):
            return None

    for d in ("cpu", D):
        x = torch.randn(2, 8, 4, 4).to(memory_format=torch.channels_last).to(d).requires_grad_()
        (Nothing.apply(F.group_norm(x, 2)).sum() + x.sum()).backward()
        assert x.grad.sum().item() == x.numel()
