"""Bad arguments over many ops: refused on rsx as on the CPU, with the same type of error and the same words."""

import re

import pytest
import torch
import torch.nn.functional as F
from helper import D


def ones(d):
    return lambda *shape, dtype=torch.float32: torch.ones(shape, dtype=dtype, device=d)


def long(d, *values):
    return torch.tensor(values, device=d)


# Name: program of (o, d); o makes ones, d is the device.
BAD = {
    "conv1d channels": lambda o, d: F.conv1d(o(1, 3, 8), o(4, 2, 3)),
    "conv1d kernel too large": lambda o, d: F.conv1d(o(1, 2, 3), o(4, 2, 5)),
    "conv1d rank": lambda o, d: F.conv1d(o(2, 3, 4, 5), o(4, 3, 3)),
    "conv2d kernel too large": lambda o, d: F.conv2d(o(1, 2, 3, 3), o(4, 2, 5, 5)),
    "conv2d groups": lambda o, d: F.conv2d(o(1, 4, 5, 5), o(3, 2, 3, 3), groups=2),
    "conv2d bias": lambda o, d: F.conv2d(o(1, 2, 5, 5), o(3, 2, 3, 3), o(4)),
    "conv2d stride 0": lambda o, d: F.conv2d(o(1, 2, 5, 5), o(3, 2, 3, 3), stride=0),
    "conv2d padding -1": lambda o, d: F.conv2d(o(1, 2, 5, 5), o(3, 2, 3, 3), padding=-1),
    "conv2d dilation 0": lambda o, d: F.conv2d(o(1, 2, 5, 5), o(3, 2, 3, 3), dilation=0),
    "conv2d strides": lambda o, d: F.conv2d(o(1, 2, 5, 5), o(3, 2, 3, 3), stride=(1, 1, 1)),
    "conv2d same with stride": lambda o, d: F.conv2d(o(1, 2, 5, 5), o(3, 2, 3, 3), stride=2, padding="same"),
    "conv2d rank of weight": lambda o, d: F.conv2d(o(1, 2, 5, 5), o(3, 2, 3)),
    "conv3d channels": lambda o, d: F.conv3d(o(1, 2, 4, 4, 4), o(3, 1, 2, 2, 2)),
    "conv3d kernel too large": lambda o, d: F.conv3d(o(1, 2, 1, 4, 4), o(3, 2, 2, 2, 2)),
    "conv_transpose1d channels": lambda o, d: F.conv_transpose1d(o(1, 3, 8), o(2, 4, 3)),
    "conv_transpose1d empty": lambda o, d: F.conv_transpose1d(o(1, 2, 1), o(2, 4, 1), padding=1),
    "conv_transpose2d empty": lambda o, d: F.conv_transpose2d(o(1, 2, 2, 2), o(2, 3, 2, 2), padding=2),
    "conv_transpose2d zero": lambda o, d: F.conv_transpose2d(o(1, 2, 1, 1), o(2, 3, 2, 2), padding=1),
    "conv_transpose2d no rows": lambda o, d: F.conv_transpose2d(o(1, 2, 1, 5), o(2, 3, 2, 2), padding=(1, 0)),
    "conv_transpose2d no image": lambda o, d: F.conv_transpose2d(o(1, 2, 0, 3), o(2, 3, 2, 2)),
    "conv_transpose1d no image": lambda o, d: F.conv_transpose1d(o(1, 2, 0), o(2, 3, 2)),
    "conv_transpose3d no depth": lambda o, d: F.conv_transpose3d(o(1, 2, 1, 4, 4), o(2, 3, 2, 2, 2), padding=(1, 0, 0)),
    "conv2d no image, padded": lambda o, d: F.conv2d(o(1, 2, 0, 3), o(3, 2, 2, 2), padding=1),
    "conv1d no image, padded": lambda o, d: F.conv1d(o(1, 2, 0), o(3, 2, 2), padding=1),
    "conv_transpose2d output_padding": lambda o, d: F.conv_transpose2d(o(1, 2, 4, 4), o(2, 3, 2, 2), output_padding=2),
    "conv_transpose2d bias": lambda o, d: F.conv_transpose2d(o(1, 2, 4, 4), o(2, 3, 2, 2), o(2)),
    "conv_transpose3d empty": lambda o, d: F.conv_transpose3d(o(1, 2, 1, 1, 1), o(2, 3, 1, 1, 1), padding=1),
    "conv_transpose2d groups": lambda o, d: F.conv_transpose2d(o(1, 3, 4, 4), o(3, 3, 2, 2), groups=2),
    "matmul": lambda o, d: o(2, 3, 4) @ o(2, 5, 4),
    "matmul of numbers": lambda o, d: torch.matmul(o(), o(2)),
    "matmul batches": lambda o, d: o(2, 3, 4) @ o(3, 4, 5),
    "mm rank": lambda o, d: torch.mm(o(2, 3, 4), o(4, 5)),
    "bmm batches": lambda o, d: torch.bmm(o(2, 3, 4), o(3, 4, 5)),
    "addmm bias": lambda o, d: torch.addmm(o(7), o(2, 3), o(3, 4)),
    "addmm": lambda o, d: torch.addmm(o(4), o(2, 3), o(2, 4)),
    "baddbmm": lambda o, d: torch.baddbmm(o(5, 5), o(2, 3, 4), o(2, 4, 6)),
    "mv": lambda o, d: torch.mv(o(2, 3), o(4)),
    "dot": lambda o, d: torch.dot(o(2), o(3)),
    "einsum": lambda o, d: torch.einsum("ij,jk->ik", o(2, 3), o(4, 5)),
    "cat sizes": lambda o, d: torch.cat([o(2, 3), o(2, 4)]),
    "cat dim": lambda o, d: torch.cat([o(2, 3), o(2, 3)], 2),
    "cat of nothing": lambda o, d: torch.cat([]),
    "stack sizes": lambda o, d: torch.stack([o(2, 3), o(2, 4)]),
    "stack dim": lambda o, d: torch.stack([o(2), o(2)], 3),
    "chunk": lambda o, d: o(4).chunk(0),
    "split": lambda o, d: o(5).split([2, 2]),
    "index too many": lambda o, d: o(2, 3)[long(d, 0), long(d, 0), long(d, 0)],
    "index of floats": lambda o, d: o(3)[o(2)],
    "index shapes": lambda o, d: o(3, 3)[long(d, 0, 1), long(d, 0, 1, 2)],
    "index_select dim": lambda o, d: o(3).index_select(1, long(d, 0)),
    "index_select index rank": lambda o, d: o(3).index_select(0, torch.zeros(2, 2, dtype=torch.long, device=d)),
    "gather rank": lambda o, d: o(3, 3).gather(0, long(d, 0)),
    "gather size": lambda o, d: o(3, 3).gather(0, torch.zeros(2, 5, dtype=torch.long, device=d)),
    "gather int32": lambda o, d: o(3).gather(0, torch.zeros(2, dtype=torch.int16, device=d)),
    "scatter rank": lambda o, d: o(3, 3).scatter(0, long(d, 0), o(3)),
    "scatter size": lambda o, d: o(3).scatter(0, long(d, 0, 1, 2, 0), o(2)),
    "scatter_add dtype": lambda o, d: o(3).scatter_add(0, long(d, 0), o(1, dtype=torch.double)),
    "index_add size": lambda o, d: o(3, 2).index_add(0, long(d, 0, 1), o(3, 2)),
    "index_copy": lambda o, d: o(3, 2).index_copy(0, long(d, 0), o(2, 2)),
    "masked_fill shape": lambda o, d: o(3).masked_fill(o(4, dtype=torch.bool), 0.0),
    "masked_scatter": lambda o, d: o(3).masked_scatter(o(3), o(3)),
    "index_put shape": lambda o, d: o(3).index_put_((long(d, 0, 1),), o(3)),
    "take_along_dim": lambda o, d: torch.take_along_dim(o(3, 3), long(d, 0), 1),
    "layer_norm weight": lambda o, d: F.layer_norm(o(2, 3), (3,), o(4)),
    "layer_norm shape": lambda o, d: F.layer_norm(o(2, 3), (2, 4)),
    "group_norm groups": lambda o, d: F.group_norm(o(2, 5, 3), 2),
    "group_norm weight": lambda o, d: F.group_norm(o(2, 4, 3), 2, o(3)),
    "batch_norm stats": lambda o, d: F.batch_norm(o(2, 3, 4), o(4), o(4)),
    "batch_norm one value": lambda o, d: F.batch_norm(o(1, 3), o(3), o(3), training=True),
    "instance_norm one value": lambda o, d: F.instance_norm(o(1, 3, 1)),
    "rms_norm": lambda o, d: F.rms_norm(o(2, 3), (4,)),
    "cross_entropy batch": lambda o, d: F.cross_entropy(o(2, 3), long(d, 0, 0, 0)),
    "cross_entropy float targets": lambda o, d: F.cross_entropy(o(2, 3), o(2, 4)),
    "cross_entropy weight": lambda o, d: F.cross_entropy(o(2, 3), long(d, 0, 0), o(4)),
    "nll_loss rank": lambda o, d: F.nll_loss(o(2, 3, 4), long(d, 0, 0)),
    "bce size": lambda o, d: F.binary_cross_entropy(o(2), o(3)),
    "bce_with_logits size": lambda o, d: F.binary_cross_entropy_with_logits(o(2), o(3)),
    "mse_loss": lambda o, d: F.mse_loss(o(2, 3), o(4)),
    "l1_loss": lambda o, d: F.l1_loss(o(2, 3), o(4)),
    "kl_div reduction": lambda o, d: F.kl_div(o(2), o(2), reduction="all"),
    "cosine_embedding": lambda o, d: F.cosine_embedding_loss(o(2, 3), o(2, 4), o(2)),
    "embedding of floats": lambda o, d: F.embedding(o(2), o(3, 3)),
    "embedding padding": lambda o, d: F.embedding(long(d, 0), o(3, 3), padding_idx=5),
    "embedding rank": lambda o, d: F.embedding(long(d, 0), o(3)),
    "embedding_bag offsets": lambda o, d: F.embedding_bag(long(d, 0, 1), o(3, 3)),
    "max_pool2d kernel": lambda o, d: F.max_pool2d(o(1, 1, 2, 2), 3),
    "max_pool2d padding": lambda o, d: F.max_pool2d(o(1, 1, 4, 4), 2, padding=2),
    "max_pool2d stride": lambda o, d: F.max_pool2d(o(1, 1, 4, 4), 2, stride=(0, 1)),
    "avg_pool2d kernel": lambda o, d: F.avg_pool2d(o(1, 1, 2, 2), 3),
    "avg_pool2d divisor": lambda o, d: F.avg_pool2d(o(1, 1, 4, 4), 2, divisor_override=0),
    "avg_pool1d rank": lambda o, d: F.avg_pool1d(o(2), 2),
    "adaptive_avg_pool2d": lambda o, d: F.adaptive_avg_pool2d(o(1, 2, 3, 3), (-1, 2)),
    "adaptive_max_pool2d": lambda o, d: F.adaptive_max_pool2d(o(2, 3), 2),
    "max_unpool": lambda o, d: F.max_unpool2d(o(1, 1, 2, 2), o(1, 1, 2, 2), 2),
    "pad reflect too large": lambda o, d: F.pad(o(1, 1, 3), (4, 0), mode="reflect"),
    "pad circular too large": lambda o, d: F.pad(o(1, 1, 3), (4, 0), mode="circular"),
    "pad replicate rank": lambda o, d: F.pad(o(3), (1, 1), mode="replicate"),
    "pad odd": lambda o, d: F.pad(o(3), (1,)),
    "pad negative": lambda o, d: F.pad(o(3), (-2, -2)),
    "view": lambda o, d: o(2, 3).view(4, 2),
    "view of transposed": lambda o, d: o(2, 3).t().view(6),
    "view -1": lambda o, d: o(2, 3).view(-1, 4),
    "view two -1": lambda o, d: o(2, 3).view(-1, -1),
    "reshape": lambda o, d: o(2, 3).reshape(5),
    "expand": lambda o, d: o(2, 3).expand(4, 3),
    "expand fewer": lambda o, d: o(2, 3).expand(3),
    "permute": lambda o, d: o(2, 3).permute(0, 0),
    "transpose": lambda o, d: o(2, 3).transpose(0, 2),
    "squeeze dim": lambda o, d: o(2, 3).squeeze(5),
    "unflatten": lambda o, d: o(6).unflatten(0, (4, 2)),
    "narrow": lambda o, d: o(3).narrow(0, 2, 2),
    "select": lambda o, d: o(3).select(0, 3),
    "as_strided": lambda o, d: o(3).as_strided((2, 2), (2, -1)),
    "view dtype": lambda o, d: o(3).view(torch.double),
    "diagonal": lambda o, d: o(3, 3).diagonal(0, 0, 0),
    "sum dim": lambda o, d: o(2, 3).sum(2),
    "sum twice": lambda o, d: o(2, 3).sum((0, 0)),
    "mean of long": lambda o, d: o(2, dtype=torch.long).mean(),
    "max of nothing": lambda o, d: o(0).max(),
    "max dim": lambda o, d: o(2, 0).max(1),
    "argmax of nothing": lambda o, d: o(0).argmax(),
    "amax dims": lambda o, d: o(2, 3).amax((0, 3)),
    "var dim": lambda o, d: o(2, 3).var(4),
    "norm dim": lambda o, d: o(2, 3).norm(dim=4),
    "softmax dim": lambda o, d: torch.softmax(o(2, 3), 2),
    "cumsum dim": lambda o, d: o(2, 3).cumsum(2),
    "sort dim": lambda o, d: o(2, 3).sort(2),
    "topk": lambda o, d: o(3).topk(4),
    "kthvalue": lambda o, d: o(3).kthvalue(4),
    "flip": lambda o, d: o(3).flip(0, 0),
    "roll": lambda o, d: o(3).roll((1, 2), 0),
    "tril rank": lambda o, d: o(3).tril(),
    "trace": lambda o, d: o(3).trace(),
    "interpolate scale and size": lambda o, d: F.interpolate(o(1, 1, 4, 4), size=2, scale_factor=2),
    "interpolate rank": lambda o, d: F.interpolate(o(1, 1, 4), size=(2, 2), mode="bilinear"),
    "interpolate size 0": lambda o, d: F.interpolate(o(1, 1, 4, 4), size=(0, 2)),
    "interpolate mode": lambda o, d: F.interpolate(o(1, 1, 4, 4), size=2, mode="cubic"),
    "grid_sample": lambda o, d: F.grid_sample(o(1, 1, 4, 4), o(2, 2, 2, 2), align_corners=False),
    "pixel_shuffle": lambda o, d: F.pixel_shuffle(o(1, 3, 2, 2), 2),
    "sdpa heads": lambda o, d: F.scaled_dot_product_attention(o(1, 2, 4, 8), o(1, 2, 4, 6), o(1, 2, 4, 8)),
    "sdpa mask shape": lambda o, d: F.scaled_dot_product_attention(o(1, 1, 4, 8), o(1, 1, 4, 8), o(1, 1, 4, 8), o(3, 3)),
    "sdpa rank": lambda o, d: F.scaled_dot_product_attention(o(8), o(8), o(8)),
    "dropout p": lambda o, d: F.dropout(o(3), 1.5),
    "bernoulli_ p": lambda o, d: o(3).bernoulli_(2.0),
    "normal_ std": lambda o, d: o(3).normal_(0.0, -1.0),
    "uniform_ range": lambda o, d: o(3).uniform_(2.0, 1.0),
    "randint range": lambda o, d: torch.randint(3, 3, (2,), device=d),
    "in-place broadcast": lambda o, d: o(3).add_(o(2, 3)),
    "in-place overlap": lambda o, d: o(1).expand(3).add_(1),
    "out overlap": lambda o, d: (lambda x: torch.add(x[:-1], 1, out=x[1:]))(o(4)),
    "bool subtract": lambda o, d: o(2, dtype=torch.bool) - o(2, dtype=torch.bool),
    "bitwise of floats": lambda o, d: o(2) & o(2),
    "where shape": lambda o, d: torch.where(o(3) > 0, o(4), o(3)),
    "clamp": lambda o, d: o(3).clamp(),
    "lerp shape": lambda o, d: torch.lerp(o(3), o(4), 0.5),
    "arange step": lambda o, d: torch.arange(0, 3, -1, device=d),
    "linspace steps": lambda o, d: torch.linspace(0, 1, -2, device=d),
    "full size": lambda o, d: torch.full((-1,), 0.0, device=d),
    "eye": lambda o, d: torch.eye(-1, device=d),
    "one_hot of floats": lambda o, d: F.one_hot(o(2)),
    "cdist": lambda o, d: torch.cdist(o(2, 3), o(2, 4)),
    "unfold": lambda o, d: F.unfold(o(1, 1, 2, 2), 3),
    "fold": lambda o, d: F.fold(o(1, 4, 5), (4, 4), 2),
    "glu": lambda o, d: F.glu(o(3)),
    "prelu": lambda o, d: F.prelu(o(2, 3), o(2)),
    "multinomial": lambda o, d: torch.multinomial(o(2, 2, 2), 1),
    "multinomial too many": lambda o, d: torch.multinomial(o(2), 3),
    "lstm": lambda o, d: torch.nn.LSTM(3, 4).to(d)(o(5, 2, 7)),
    "backward of many": lambda o, d: o(3).requires_grad_().mul(2).backward(),
    "backward twice": lambda o, d: (lambda y: (y.backward(), y.backward()))(o(3).requires_grad_().exp().sum()),
    "changed for backward": lambda o, d: (lambda x: (lambda y: (y.add_(1), y.sum().backward()))(x.exp()))(o(3).requires_grad_()),
    "leaf in place": lambda o, d: o(3).requires_grad_().add_(1),
}


def refusal(name, device):
    """Type and first line of the error at the line itself; nothing is read."""
    try:
        BAD[name](ones(device), device)
    except Exception as e:  # noqa: BLE001 - the point is which one
        return type(e), str(e).split("\n")[0]
    return None


def words(text):
    """Without what says where tensors live."""
    text = re.sub(r"torch\.FloatTensor|torch\.rsx\.FloatTensor|rsxFloatType|CPUFloatType", "TENSOR", text)
    return re.sub(r"rsx:0|rsx|cpu|PrivateUse1|CPU", "DEVICE", text)


@pytest.mark.parametrize("name", BAD)
def test_refused_in_the_same_words(name):
    want, got = refusal(name, "cpu"), refusal(name, D)
    assert want is not None, "the CPU does not refuse this"
    assert got is not None, f"not refused; the CPU says {want}"
    assert got[0] is want[0] and words(got[1]) == words(want[1]), (got, want)
    assert (torch.ones(2, device=D) + 1).tolist() == [2, 2]  # the next op works
