"""Element types: promotion, conversion, and every type through storage and back."""

import itertools

import pytest
import torch
import torch.nn.functional as F
from helper import D, both, same

ALL = [torch.float32, torch.float64, torch.bfloat16, torch.float16, torch.int64, torch.int32, torch.int16, torch.int8,
       torch.uint8, torch.bool, torch.complex64, torch.complex128]
REAL = [d for d in ALL if not d.is_complex]


@pytest.mark.parametrize("dtype", ALL, ids=str)
def test_round_trip(dtype):
    x = torch.arange(-4, 8).reshape(3, 4).to(dtype)
    same(x.to(D), x)
    same(x.to(D).t().contiguous(), x.t().contiguous())


@pytest.mark.parametrize("dtype", [torch.int32, torch.uint8, torch.float16, torch.bool, torch.float64, torch.bfloat16], ids=str)
@pytest.mark.parametrize("other", [2, 2.5, True, 1j, torch.tensor(3), torch.tensor(2.5), torch.tensor(2.5, dtype=torch.float64)], ids=repr)
def test_promotion_with_numbers(dtype, other):
    def program(d):
        x = torch.ones(3, dtype=dtype).to(d)
        y = other.to(d) if isinstance(other, torch.Tensor) else other
        return x + y, x * other, torch.where(x > 0, x, other) if not isinstance(other, complex) else x

    both(program, tol=1e-2)


@pytest.mark.parametrize("a, b", itertools.combinations(REAL, 2), ids=str)
def test_promotion_of_pairs(a, b):
    def program(d):
        x, y = torch.ones(3, dtype=a).to(d), torch.ones(3, dtype=b).to(d)
        return x * y, torch.cat([x, y]), x == y

    both(program)


@pytest.mark.parametrize("a", REAL, ids=str)
def test_casts(a):
    x = torch.tensor([0, 1, 3, 100]).to(a)
    for b in REAL:
        same(x.to(D).to(b), x.to(b))
        same(x.to(D, b), x.to(b))
        same(torch.zeros(4, dtype=b, device=D).copy_(x), torch.zeros(4, dtype=b).copy_(x))


def test_uploads_convert_broadcast_and_transpose():
    def program(d):
        a = torch.zeros(3, 4, dtype=torch.float64, device=d)
        a.copy_(torch.arange(4, dtype=torch.int32))
        b = torch.zeros(4, 3, device=d).t()
        b.copy_(torch.arange(12.0).reshape(3, 4))
        c = torch.zeros(3, 4, device=d)
        c[:, 1] = torch.arange(3)
        return a, b, c

    both(program)


def test_numbers_and_zero_dim_tensors_of_the_host():
    def program(d):
        x = torch.arange(3.0, device=d)
        return x + torch.tensor(2), torch.tensor(2.0) * x, torch.add(x, 1, alpha=3), x.clamp(max=torch.tensor(1.0).to(d))

    both(program)


def test_integer_division_and_remainder():
    def program(d):
        x = torch.tensor([-7, -1, 0, 5], device=d)
        return x // 2, x % 3, torch.div(x, 2, rounding_mode="trunc"), x / 2, x.remainder(-3)

    both(program)


def test_complex_arithmetic():
    def program(d):
        a = torch.randn(4, 4).to(d)
        c = torch.view_as_complex(a.view(4, 2, 2))
        return torch.fft.rfft(a), c.conj() * 2, c.abs(), c.angle()

    both(program, tol=1e-4)


def test_linalg():
    def program(d):
        a = torch.randn(4, 4).to(d) + 4 * torch.eye(4).to(d)
        return torch.linalg.inv(a), torch.linalg.det(a), torch.linalg.solve(a, a), torch.linalg.svdvals(a)

    for seed in range(2):
        results = []
        for d in ("cpu", D):
            torch.manual_seed(seed)
            results.append(program(d))
        for w, g in zip(*results):
            torch.testing.assert_close(g.cpu(), w, rtol=1e-3, atol=1e-3)


def test_the_default_dtype_may_change():
    """What ops on integers give depends on it, and nothing of the operands tells."""
    x = torch.arange(1, 5)
    programs = [lambda x: x / 2, lambda x: x.true_divide(x), lambda x: torch.sqrt(x), lambda x: x * 0.5, lambda x: x.sigmoid()]
    before = torch.get_default_dtype()
    try:
        for dtype in (torch.float32, torch.float64, torch.bfloat16, torch.float32):
            torch.set_default_dtype(dtype)
            for f in programs:
                got, want = f(x.to(D)), f(x)
                assert got.dtype == want.dtype == dtype
                torch.testing.assert_close(got.cpu(), want)
    finally:
        torch.set_default_dtype(before)


def test_integers_divide():
    """Kernels are asked about integer operands before there are values: divisors of theirs must not be zero."""
    for f in (torch.floor_divide, torch.remainder, torch.fmod, torch.true_divide, lambda a, b: a // b, lambda a, b: a % b):
        for dtype in (torch.int64, torch.int32, torch.uint8):
            a, b = torch.tensor([7, 9, 100]), torch.tensor([2, 4, 7])
            a, b = a.to(dtype), b.to(dtype)
            same(f(a.to(D), b.to(D)), f(a, b))
            same(f(a.to(D), 3), f(a, 3))


NARROW = {
    "conv": lambda x, w, v: F.conv2d(x, w, v, padding=1),
    "conv stride": lambda x, w, v: F.conv2d(x, w, v, stride=2),
    "batch norm": lambda x, w, v: F.batch_norm(x, None, None, w[0, :, 0, 0], v, True),
    "batch norm relu": lambda x, w, v: F.relu(F.batch_norm(x, None, None, w[0, :, 0, 0], v, True)),
    "group norm": lambda x, w, v: F.group_norm(x, 4, w[0, :, 0, 0], v),
    "mean": lambda x, w, v: x.mean((2, 3)) * v,
    "silu": lambda x, w, v: F.silu(x),
    "mish": lambda x, w, v: F.mish(x),
    "gelu": lambda x, w, v: F.gelu(x),
    "softmax": lambda x, w, v: x.softmax(1),
    "layer norm": lambda x, w, v: F.layer_norm(x, x.shape[2:]),
    "average pool": lambda x, w, v: F.avg_pool2d(x, 2) * v[:, None, None],
}


@pytest.mark.parametrize("name", NARROW)
@pytest.mark.parametrize("sizes", [(2, 16, 9, 9), (8, 16, 4, 4), (1, 16, 16, 16)], ids=str)
def test_bfloat16_is_as_close_to_float64_as_eager(name, sizes):
    """Sums, statistics and what stands between ops of a kernel are kept in float32: results and gradients are off by no more
    than the CPU's own bfloat16 kernels, compared with float64 on the same numbers."""
    torch.manual_seed(0)
    channels = sizes[1]
    inputs = torch.randn(sizes) + torch.randn(channels, 1, 1), torch.randn(channels, channels, 3, 3), torch.randn(channels)
    inputs = [t.bfloat16() for t in inputs]

    def run(device, dtype):
        leaves = [t.clone().to(device, dtype).requires_grad_() for t in inputs]
        out = NARROW[name](*leaves)
        torch.manual_seed(1)
        out.backward(torch.randn(out.shape).bfloat16().to(device, dtype))
        return [out.detach().cpu().double()] + [t.grad.cpu().double() for t in leaves if t.grad is not None]

    exact, eager, ours = run("cpu", torch.float64), run("cpu", torch.bfloat16), run(D, torch.bfloat16)
    for e, c, o in zip(exact, eager, ours):
        # Half a unit in the last place of each element is what storing in bfloat16 costs at most.
        assert (o - e).norm() <= max(1.05 * (c - e).norm(), 2**-8 * e.norm()), name
