"""Data: loaders, pinned memory, indexing, results whose shape depends on values."""

import pytest
import torch
from helper import D, both, fallbacks, same
from torch.utils.data import DataLoader, TensorDataset


@pytest.mark.parametrize("workers", [0, 2])
def test_pinned_batches(workers):
    torch.ones(2, device=D).add_(1)  # workers fork after use
    loader = DataLoader(TensorDataset(torch.arange(64.0).view(32, 2)), batch_size=8, pin_memory=True, num_workers=workers)
    total = 0
    for (batch,) in loader:
        assert batch.is_pinned() and batch[1:].is_pinned()
        total += batch.to(D, non_blocking=True).sum().item()
    assert total == 2016


def test_pinned_memory_is_reused():
    a = torch.empty(1000).pin_memory()
    p = a.data_ptr()
    del a
    assert torch.empty(1000).pin_memory().data_ptr() == p
    assert not torch.ones(3).is_pinned()
    assert torch.empty(3, pin_memory=True).is_pinned()


def test_uploads_do_not_cut_and_keep_what_pending_work_reads():
    import rsx

    x = torch.zeros(4, device=D)
    rsx.synchronize()
    segments = rsx.metrics()["segments"]
    sums = []
    for i in range(5):
        x.copy_(torch.full((4,), float(i)))
        sums.append(x * 2)
    assert rsx.metrics()["segments"] == segments
    assert [s[0].item() for s in sums] == [0, 2, 4, 6, 8]
    assert x.tolist() == [4, 4, 4, 4]


def test_downloads():
    x = torch.arange(12.0, device=D).view(3, 4)
    assert x[1, 2].item() == 6 and bool(x[0, 0] == 0) and int(x.sum()) == 66 and f"{x.mean():.1f}" == "5.5"
    same(x.t().cpu(), torch.arange(12.0).view(3, 4).t())
    same(x[:, 1::2].cpu(), torch.arange(12.0).view(3, 4)[:, 1::2].clone())
    host = torch.empty(4, 3).t()
    host.copy_(x)
    assert host.tolist() == x.tolist()
    with pytest.raises(TypeError, match="can't convert rsx:0 device type tensor to numpy"):
        x.numpy()


def test_indexing():
    def program(d):
        a = torch.randn(5, 6).to(d)
        i = torch.tensor([0, 2, 4])
        out = [a[i], a[i.to(d)], a[a > 0], a[:, i.to(d), None], a[i.to(d), i.to(d)], a[..., 1:3, None]]
        a[a > 0] = 0
        a[i] = 1
        a[i.to(d), 1] = torch.tensor(9.0)
        a[a < -1] += 3
        b = a.clone()
        b[b != 0] = b[b != 0] * 2
        b.index_put_((i.to(d),), torch.ones(3, 6).to(d), accumulate=True)
        return out + [a, b, a.index_select(0, i.to(d)), a.gather(1, i.to(d)[None]), torch.take(a, i.to(d))]

    both(program)


def test_masked_assignment_of_one_value_does_not_wait():
    import rsx

    x = torch.randn(8, 8, device=D)
    mask = x > 0
    rsx.synchronize()
    before = rsx.metrics()
    x[mask] = 1.0
    x[x < -1] = torch.tensor(2.0, device=D)
    x[:, mask[0]] = 3.0
    after = rsx.metrics()
    assert after["segments"] == before["segments"] and after["host_waits"] == before["host_waits"]
    assert (x[mask] >= 1).all().item()


def test_mask_forms():
    def program(d):
        x = torch.arange(24.0).view(2, 3, 4).to(d)
        m = (torch.arange(12) % 3 == 0).view(3, 4).to(d)
        out = [x[:, m], x[0][m], x[torch.tensor([True, False]).to(d)]]
        x[:, m] = -1.0
        x[torch.tensor([False, True]).to(d), 0] = 5.0
        x[0][m] = torch.arange(float(m.sum())).to(d)
        return out + [x]

    both(program)


def test_data_dependent_shapes():
    def program(d):
        a = torch.tensor([3, 1, 2, 3, 1], device=d)
        return [
            a.unique(),
            torch.unique(a, return_counts=True),
            torch.bincount(a),
            a.repeat_interleave(a),
            a.nonzero(),
            torch.masked_select(a, a > 1),
            torch.where(a > 1),
            torch.histc(a.float(), 3),
            torch.unique_consecutive(a),
        ]

    before = fallbacks()
    both(program)
    assert sum(fallbacks().values()) > sum(before.values())  # counted, not hidden


def test_equal():
    a = torch.tensor([1.0, 2.0], device=D)
    assert torch.equal(a, a.clone()) and not torch.equal(a, a + 1) and not torch.equal(a, a[:1])
    nan = torch.tensor([float("nan")], device=D)
    assert not torch.equal(nan, nan.clone()) and torch.equal(a[:0], a[:0])


def test_arange_with_moving_bounds():
    def program(d):
        return [torch.arange(i, i + 5, device=d) for i in range(3)] + [
            torch.arange(0, 1, 0.3, device=d),
            torch.arange(5, 0, -2, device=d),
            torch.arange(4, dtype=torch.float64, device=d),
            torch.linspace(0, 1, 5, device=d),
            torch.arange(0, device=d),
        ]

    both(program)


def test_custom_ops_written_in_python():
    @torch.library.custom_op("rsx_test::twice", mutates_args=())
    def twice(x: torch.Tensor) -> torch.Tensor:
        return x.clone() * 2

    x = torch.ones(3, device=D) + 1
    assert twice(x).tolist() == [4, 4, 4] and twice(x).device.type == "rsx"
