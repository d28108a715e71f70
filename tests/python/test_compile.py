"""torch.compile(backend="rsx"): equal to the model itself, training included, and replayed."""

import pytest
import rsx
import torch
import torch._dynamo
import torch.nn as nn
import torch.nn.functional as F
from helper import D, pair, replays

# The fewest recompiles: a test's model is another function.
pytestmark = pytest.mark.filterwarnings("ignore:.*lru_cache.*")


@pytest.fixture(autouse=True)
def fresh():
    torch._dynamo.reset()
    torch._dynamo.utils.counters.clear()
    yield
    torch._dynamo.reset()


def equal(a, b, tol=3e-5):
    torch.testing.assert_close(a.detach().cpu(), b.detach().cpu(), rtol=tol, atol=tol)


def train(net, f, batches, *, lr=0.05):
    """Losses of SGD steps; `f` is the model as it is called."""
    opt = torch.optim.SGD(net.parameters(), lr=lr, momentum=0.9)
    losses = []
    for i, batch in enumerate(batches):
        torch.manual_seed(i)
        opt.zero_grad()
        loss = f(*batch).float().square().mean()
        loss.backward()
        opt.step()
        losses.append(loss)
    return losses


def same_training(make, batches, *, at_least, **options):
    a, b = pair(make)
    compiled = torch.compile(b, backend="rsx", **options)
    before = replays()
    for want, got in zip(train(a, a, batches), train(b, compiled, batches), strict=True):
        equal(got, want, 2e-4)
    for (name, p), (_, q) in zip(a.state_dict().items(), b.state_dict().items()):
        torch.testing.assert_close(q.cpu(), p.cpu(), rtol=1e-3, atol=1e-4, msg=lambda m, n=name: f"{n}: {m}")
    assert replays() - before >= at_least, replays() - before


def mlp():
    return nn.Sequential(nn.Linear(8, 16), nn.GELU(), nn.Linear(16, 4))


class Transformer(nn.Module):
    def __init__(self, dropout: float) -> None:
        super().__init__()
        self.embed = nn.Embedding(11, 16)
        self.block = nn.TransformerEncoderLayer(16, 2, 32, dropout=dropout, batch_first=True, norm_first=True)
        self.head = nn.Linear(16, 11)

    def forward(self, tokens):
        mask = torch.triu(torch.ones(tokens.shape[1], tokens.shape[1], device=tokens.device, dtype=torch.bool), 1)
        return self.head(self.block(self.embed(tokens), src_mask=mask))


def vectors(n, rows=5, width=8):
    return [(torch.randn(rows, width, generator=torch.Generator().manual_seed(i)).to(D),) for i in range(n)]


def tokens(n):
    return [(torch.randint(11, (2, 6), generator=torch.Generator().manual_seed(i)).to(D),) for i in range(n)]


def test_listed():
    assert "rsx" in torch._dynamo.list_backends()


def test_mlp(tier):
    same_training(mlp, vectors(6), at_least=10)


def test_transformer(tier):
    same_training(lambda: Transformer(0.0), tokens(4), at_least=6)


def test_batch_norm_updates_buffers(tier):
    same_training(lambda: nn.Sequential(nn.Linear(8, 8), nn.BatchNorm1d(8), nn.ReLU()), vectors(5), at_least=6)


def test_convolutions(tier):
    def make():
        return nn.Sequential(nn.Conv2d(2, 4, 3, padding=1), nn.BatchNorm2d(4), nn.ReLU(), nn.MaxPool2d(2), nn.Flatten())

    batches = [(torch.randn(2, 2, 6, 6, generator=torch.Generator().manual_seed(i)).to(D),) for i in range(4)]
    same_training(make, batches, at_least=4)


def test_dropout_draws_and_repeats(tier):
    """Masks differ from call to call, follow the seed, and backward uses forward's."""
    net = torch.compile(Transformer(0.3).to(D), backend="rsx")
    x = tokens(1)[0][0]
    outs = []
    for seed in (0, 1, 0, 1):
        torch.manual_seed(seed)
        outs.append(net(x).detach())
    assert torch.equal(outs[0], outs[2]) and torch.equal(outs[1], outs[3])
    assert not torch.equal(outs[0], outs[1])
    drop = torch.compile(lambda x: F.dropout(x, 0.5), backend="rsx")
    for seed in range(4):
        torch.manual_seed(seed)
        y = torch.ones(1000, device=D, requires_grad=True)
        out = drop(y)
        out.sum().backward()
        assert torch.equal(out.detach(), y.grad) and 300 < int((out == 0).sum()) < 700


def test_graph_break(tier):
    class Breaks(nn.Module):
        def __init__(self):
            super().__init__()
            self.a, self.b = nn.Linear(8, 8), nn.Linear(8, 8)

        def forward(self, x):
            y = self.a(x).relu()
            torch._dynamo.graph_break()
            return self.b(y)

    same_training(Breaks, vectors(5), at_least=12)


def test_inference_and_autocast(tier):
    a, b = pair(mlp)
    c = torch.compile(b, backend="rsx")
    before = replays()
    for (x,) in vectors(4):
        with torch.no_grad():
            equal(c(x), a(x))
        with torch.no_grad(), torch.autocast(D, dtype=torch.bfloat16):
            got, want = c(x), a(x)
            assert got.dtype == want.dtype == torch.bfloat16
            equal(got, want, 2e-2)
    assert replays() - before >= 4


@pytest.mark.parametrize("mark", [True, False])
def test_dynamic_batch(tier, mark):
    a, b = pair(mlp)
    c = torch.compile(b, backend="rsx", dynamic=None if mark else True)
    for rows in (3, 7, 5, 3, 7, 2, 5):
        x = torch.randn(rows, 8, device=D)
        if mark:
            torch._dynamo.mark_dynamic(x, 0)
        for net, f in ((a, a), (b, c)):
            net.zero_grad()
            out = f(x)
            out.sum().backward()
        equal(f(x), a(x))
        for p, q in zip(a.parameters(), b.parameters()):
            equal(p.grad, q.grad, 1e-4)
    assert torch._dynamo.utils.counters["stats"]["unique_graphs"] <= 2


def test_arguments_written_in_place(tier):
    def f(x, y):
        x.add_(y)
        return x * 2, y.view(-1)

    c = torch.compile(f, backend="rsx")
    for _ in range(4):
        x, y = torch.randn(2, 3, device=D), torch.randn(2, 3, device=D)
        x2 = x.clone()
        want, got = f(x, y), c(x2, y)
        equal(x2, x)
        for w, g in zip(want, got):
            equal(g, w)
        assert got[1].untyped_storage().data_ptr() == y.untyped_storage().data_ptr()


def test_numbers_change(tier):
    c = torch.compile(lambda x, s: x * s + s, backend="rsx")
    x = torch.randn(4, device=D)
    for s in (1.5, 2.5, 2.5, -1.0, 3, 4):
        equal(c(x, s), x * s + s)


def test_optimizer_step_compiled(tier):
    a, b = pair(mlp)
    x = vectors(1)[0][0]
    opts = [torch.optim.AdamW(n.parameters(), lr=1e-2, capturable=True) for n in (a, b)]
    step = torch.compile(opts[1].step, backend="rsx")
    for _ in range(5):
        for net, opt, go in ((a, opts[0], opts[0].step), (b, opts[1], step)):
            opt.zero_grad()
            net(x).square().sum().backward()
            go()
    for p, q in zip(a.parameters(), b.parameters()):
        equal(q, p, 1e-4)


def test_retained_graph_and_two_backwards(tier):
    a, b = pair(mlp)
    c = torch.compile(b, backend="rsx")
    for (x,) in vectors(4):
        for net, f in ((a, a), (b, c)):
            loss = f(x).square().sum()
            loss.backward(retain_graph=True)
            loss.backward()
    for p, q in zip(a.parameters(), b.parameters()):
        equal(p.grad, q.grad, 1e-4)


def test_cpu_tensors_are_an_error():
    c = torch.compile(lambda x: x + 1, backend="rsx")
    with pytest.raises(Exception, match="move the model and its inputs to device 'rsx'"):
        c(torch.ones(3))
