"""Random programs of tensor ops on both devices, compared with eager PyTorch: views of views that are written, slices,
index_put, several element types, autograd, copies of storages, cuts at random points.

`RSX_FUZZ_COUNT` programs per tier (default 60), from seed `RSX_FUZZ_SEED` on (default 0). A failure prints the program.
"""

import copy
import linecache
import os
import random

import pytest
import rsx
import torch
from helper import D

COUNT = int(os.environ.get("RSX_FUZZ_COUNT", "60"))
SEED = int(os.environ.get("RSX_FUZZ_SEED", "0"))
SIZES = [(6,), (2, 3), (3, 4), (4, 6), (2, 3, 4), (1, 5), (4, 1, 3)]
DTYPES = [torch.float32] * 4 + [torch.float64, torch.int64, torch.int32, torch.uint8, torch.bool]


class Program:
    """Pairs of tensors, one on each device; every step is applied to both halves."""

    def __init__(self, seed):
        self.r = random.Random(seed)
        self.host = torch.Generator().manual_seed(seed)
        self.pool, self.text = [], []

    def run(self):
        for _ in range(self.r.randint(8, 40)):
            {0: self.make, 1: self.cut, 2: self.forget, 3: self.view, 4: self.view, 5: self.write, 6: self.write}.get(
                self.r.randrange(13), self.compute
            )()
        for k in range(len(self.pool)):
            self.check(k)

    def step(self, what, f, *pairs):
        """Applies f to both halves; both give a result, or both refuse. Adds a tensor that comes out."""
        at = [next((k for k, p in enumerate(self.pool) if p is q), "new") for q in pairs]
        self.text.append(f"{what} {source(f)} of {at}")
        outs = []
        for side in (0, 1):
            try:
                outs.append(f(*[p[side] for p in pairs]))
            except Exception as e:  # noqa: BLE001 - compared
                outs.append(e)
        want, got = outs
        if isinstance(want, Exception) or isinstance(got, Exception):
            raised = [isinstance(e, Exception) for e in (want, got)]
            assert all(raised), (raised, want if raised[0] else got)
        elif isinstance(want, torch.Tensor):
            assert layout(want) == layout(got), ("layout", layout(want), layout(got))
            if want.numel() and want.dim() < 5 and not any(want is p[0] for p in pairs):
                self.pool.append((want, got))

    def pick(self, wanted=lambda t: True):
        fit = [p for p in self.pool if wanted(p[0])]
        if not fit:
            self.make()
            return self.pick() if not wanted(self.pool[-1][0]) and not self.pool else self.pool[-1]
        return self.r.choice(fit)

    def make(self):
        sizes, dtype = self.r.choice(SIZES), self.r.choice(DTYPES)
        values = torch.rand(sizes, generator=self.host) * 2 - 1
        host = values.to(dtype) if dtype.is_floating_point else (values * 3).abs().to(dtype)
        self.text.append(f"make {list(sizes)} {dtype}")
        self.pool.append((host, host.to(D)))

    def forget(self):
        if len(self.pool) > 2:
            self.pool.pop(self.r.randrange(len(self.pool)))

    def check(self, k):
        want, got = self.pool[k]
        # Of all types: an f64 value may come from f32 ones.
        torch.testing.assert_close(got.cpu(), want, rtol=1e-4, atol=1e-4, equal_nan=True)

    def cut(self):
        kind = self.r.choice(["step", "item", "print", "check", "sync", "pointer"])
        self.text.append(f"cut: {kind}")
        if kind == "step":
            rsx.mark_step()
        elif kind == "sync":
            rsx.synchronize()
        elif self.pool:
            k = self.r.randrange(len(self.pool))
            if kind == "item":
                self.pool[k][1].reshape(-1)[0].item()
            elif kind == "print":
                str(self.pool[k][1])
            elif kind == "pointer":
                self.pool[k][1].data_ptr()
            else:
                self.check(k)

    def view(self):
        r, p = self.r, self.pick()
        n = p[0].dim()
        d = r.randrange(n) if n else 0
        a, b, s = r.randint(0, 2), r.randint(1, 6), r.randint(1, 2)
        order = r.sample(range(n), n)
        f = r.choice([
            lambda x: x.transpose(0, d), lambda x: x.permute(order), lambda x: x.unsqueeze(d), lambda x: x.squeeze(),
            lambda x: x.reshape(-1), lambda x: x.view(-1), lambda x: x.narrow(d, a, 2), lambda x: x.select(d, -1),
            lambda x: x[a:b:s], lambda x: x[..., a:b], lambda x: x[..., ::2], lambda x: x.expand(2, *x.shape),
            lambda x: x.diagonal(), lambda x: x.flatten(), lambda x: x.chunk(2, d)[0], lambda x: x.unflatten(d, (-1, 2)),
            lambda x: x.as_strided((2, 2), (1, 2), 1), lambda x: x.view(torch.int32), lambda x: x.unfold(d, 2, 2),
            lambda x: x.movedim(0, d), lambda x: x.T, lambda x: x.detach(), lambda x: x[None, ..., 0], lambda x: x.split(2, d)[-1],
        ])  # fmt: skip
        self.step("view", f, p)

    def write(self):
        r, p = self.r, self.pick()
        v, a, b = r.choice([0, 1, 2, 0.5, 1.25]), r.randint(0, 2), r.randint(1, 4)
        q = r.choice(self.pool)
        rows = torch.tensor([r.randint(-1, 1) for _ in range(2)])
        on = lambda x: (rows % max(x.shape[0], 1)).to(x.device)  # noqa: E731
        f, others = r.choice([
            (lambda x: x.add_(v), ()), (lambda x: x.mul_(v), ()), (lambda x: x.fill_(v), ()), (lambda x: x.zero_(), ()),
            (lambda x, y: x.add_(y, alpha=2), (q,)), (lambda x, y: x.copy_(y), (q,)), (lambda x, y: x.mul_(y), (q,)),
            (lambda x: x[a:b].fill_(v), ()), (lambda x: x[..., a].mul_(v), ()), (lambda x, y: x[:1].copy_(y), (q,)),
            (lambda x: x.__setitem__(on(x), v), ()), (lambda x: x.index_fill_(0, on(x).abs(), v), ()),
            (lambda x, y: x.index_put_((on(x),), y.to(x.dtype), accumulate=True), (q,)), (lambda x: x.t_(), ()),
            (lambda x, y: x.index_add_(0, on(x).abs(), y), (q,)), (lambda x, y: x.masked_fill_(y > 0, v), (q,)),
            (lambda x: x.clamp_(-1, 1), ()), (lambda x: x.neg_(), ()), (lambda x, y: x.sub_(y[:1].clone()), (q,)),
            (lambda x: torch.add(x, v, out=x), ()), (lambda x, y: torch.mul(x, y, out=x), (q,)), (lambda x: x.unsqueeze_(0), ()),
            (lambda x, y: x.scatter_(0, (y > 0).long() * 0, x.clone()), (q,)), (lambda x: x.cumsum_(0), ()),
            (lambda x, y: x.set_(y), (q,)), (lambda x: x.resize_(2, 2) if x.numel() >= 4 else x, ()),
            (lambda x: x.tril_(), ()), (lambda x, y: x.lerp_(y, 0.5), (q,)), (lambda x: x.relu_(), ()),
        ])  # fmt: skip
        self.step("write", f, p, *others)

    def compute(self):
        r, p = self.r, self.pick()
        q, d, keep = r.choice(self.pool), r.randrange(max(p[0].dim(), 1)), r.random() < 0.5
        dtype, v = r.choice([torch.float32, torch.float64]), r.choice([0, 1, 3, 0.25])
        rows = torch.tensor([r.randint(0, 1) for _ in range(3)])
        on = lambda x, d=0: (rows % max(x.shape[d], 1)).to(x.device)  # noqa: E731
        f, others = r.choice([
            (lambda x: x.tanh(), ()), (lambda x: x.relu(), ()), (lambda x: x.abs(), ()), (lambda x: -x, ()), (lambda x: x + v, ()),
            (lambda x: x.sigmoid(), ()), (lambda x: x.exp().clamp(max=9), ()), (lambda x: v - x, ()), (lambda x: x * v, ()),
            (lambda x, y: x + y, (q,)), (lambda x, y: x * y, (q,)), (lambda x, y: x - y, (q,)), (lambda x, y: torch.maximum(x, y), (q,)),
            (lambda x, y: torch.where(y.bool(), x, v), (q,)), (lambda x, y: (x.float() @ y.float()).tanh(), (q,)),
            (lambda x: x.sum(d, keepdim=keep), ()), (lambda x: x.mean(d, keepdim=keep), ()), (lambda x: x.amax(d), ()),
            (lambda x: x.sum(), ()), (lambda x: x.float().softmax(d), ()), (lambda x: x.cumsum(d), ()), (lambda x: x.flip(d), ()),
            (lambda x, y: torch.cat([x, y], d), (q,)), (lambda x, y: torch.stack([x, y]), (q,)), (lambda x: x.roll(1, d), ()),
            (lambda x: x.clone(), ()), (lambda x: x.contiguous(), ()), (lambda x: x.to(dtype), ()), (lambda x: copy.deepcopy(x), ()),
            (lambda x: x.index_select(d, on(x, d)), ()), (lambda x: x[on(x)], ()), (lambda x: x.bool(), ()), (lambda x: x.float(), ()),
            (lambda x: x[x.bool()], ()), (lambda x: x.nonzero(), ()), (lambda x, y: x.gather(0, (y > 0).long().clamp(max=x.shape[0] - 1)), (q,)),
            (lambda x: torch.empty_like(x).fill_(v), ()), (lambda x: torch.zeros_like(x), ()), (lambda x: x.new_ones(3), ()),
            (lambda x: x.repeat(2, *[1] * (x.dim() - 1)), ()), (lambda x: x.sort(d)[0], ()), (lambda x: x.var(d), ()),
            (lambda x, y: torch.addcmul(x, x, y, value=0.5), (q,)), (lambda x: torch.nn.functional.pad(x, (1, 2)), ()),
            (lambda x: torch.nn.functional.layer_norm(x.float(), x.shape[-1:]), ()), (lambda x: gradient(x, d), ()),
            (lambda x: gradient(x, -1), ()), (lambda x: x.view_as(x).T.contiguous(), ()),
        ])  # fmt: skip
        self.step("compute", f, p, *others)


def gradient(x, d):
    """The gradient of a function with views, an in-place write and a reduction in it."""
    leaf = x.detach().double().requires_grad_()
    y = (leaf * 2).tanh()
    y.select(d, 0).mul_(0.5)
    z = y.transpose(0, -1).reshape(-1)[1:] * leaf.sum()
    (z.square().mean() + y.softmax(d).amax()).backward()
    return leaf.grad


def source(f):
    """The text of a lambda and the values it closes over."""
    spots = [s for s in f.__code__.co_positions() if s[0] == f.__code__.co_firstlineno and s[2]]
    line = linecache.getline(f.__code__.co_filename, f.__code__.co_firstlineno)
    names = zip(f.__code__.co_freevars, f.__closure__ or ())
    values = {n: v.cell_contents for n, v in names if not callable(v.cell_contents)}
    return line[min(s[2] for s in spots) : max(s[3] for s in spots)] + (f" with {values}" if values else "")


def layout(t):
    """What a program can see of a tensor besides its values; strides where they matter."""
    strides = [st for st, n in zip(t.stride(), t.shape) if n > 1] if t.numel() > 1 else []
    return t.dtype, t.shape, strides, t.storage_offset()


@pytest.mark.parametrize("tier", ["auto", "eager", "compiled"])
def test_random_programs(tier):
    with rsx.tier(tier):
        for seed in range(SEED, SEED + COUNT):
            program = Program(seed)
            try:
                program.run()
            except BaseException as e:
                raise AssertionError(f"seed {seed}:\n  " + "\n  ".join(program.text)) from e
