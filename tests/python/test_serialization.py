"""Saving, loading, copying, pickling."""

import copy
import io
import pickle

import pytest
import torch
import torch.nn as nn
from helper import D, python, same


def save(obj) -> io.BytesIO:
    b = io.BytesIO()
    torch.save(obj, b)
    b.seek(0)
    return b


def trained():
    torch.manual_seed(0)
    net = nn.Sequential(nn.Linear(8, 16), nn.GELU(), nn.LayerNorm(16), nn.Linear(16, 4)).to(D)
    opt = torch.optim.AdamW(net.parameters(), lr=1e-2)
    for _ in range(2):
        opt.zero_grad()
        net(torch.ones(2, 8, device=D)).sum().backward()
        opt.step()
    return net, opt


def test_state_dicts_before_any_sync():
    net, opt = trained()
    b = save({"net": net.state_dict(), "opt": opt.state_dict()})
    loaded = torch.load(b)
    for key, value in net.state_dict().items():
        assert loaded["net"][key].device.type == "rsx"
        same(loaded["net"][key], value)
    opt.load_state_dict(loaded["opt"])
    other = nn.Sequential(nn.Linear(8, 16), nn.GELU(), nn.LayerNorm(16), nn.Linear(16, 4))
    b.seek(0)
    other.load_state_dict(torch.load(b, map_location="cpu")["net"])
    same(net[0].weight, other[0].weight)
    other.to(D).load_state_dict(loaded["net"])
    same(other[0].weight, net[0].weight)


def test_views_stay_views():
    x = torch.arange(12.0, device=D).view(3, 4)
    a, b, c = torch.load(save([x, x[1], x.t()]))
    a[1, 0] = 100
    assert b[0].item() == 100 and c[0, 1].item() == 100


def test_two_fresh_tensors_of_different_types():
    """Their storages must not be mistaken for one: both start without memory."""
    a, b = torch.load(save([torch.zeros(3, device=D), torch.zeros(3, dtype=torch.int64, device=D)]))
    assert a.dtype == torch.float32 and b.dtype == torch.int64


def test_cpu_file_onto_rsx():
    assert torch.load(save(torch.ones(3)), map_location=D).device.type == "rsx"


def test_file_of_rsx_loads_where_rsx_is_absent(tmp_path):
    path = tmp_path / "x.pt"
    torch.save({"w": torch.arange(3.0, device=D)}, path)
    python(
        f"""
        import torch
        assert not hasattr(torch, "rsx")
        try:
            torch.load({str(path)!r})
        except RuntimeError as e:
            assert "map_location" in str(e) or "rsx" in str(e), e
        else:
            raise AssertionError("loaded without the device")
        assert torch.load({str(path)!r}, map_location="cpu")["w"].tolist() == [0, 1, 2]
        """,
        TORCH_DEVICE_BACKEND_AUTOLOAD="0",
    )


def test_file_of_a_device_that_does_not_exist():
    data = save(torch.ones(2, device=D)).getvalue().replace(b"rsx:0", b"rsx:7")
    with pytest.raises(RuntimeError):
        torch.load(io.BytesIO(data))


def test_pickle():
    x = torch.randn(3, 3, device=D)
    y = pickle.loads(pickle.dumps(x))
    assert y.device.type == "rsx"
    same(y, x)
    p = pickle.loads(pickle.dumps(nn.Parameter(x)))
    assert isinstance(p, nn.Parameter) and p.device.type == "rsx"
    s = pickle.loads(pickle.dumps(x.storage()))  # a storage by itself is written through its raw address
    assert s.device.type == "rsx" and s.tolist() == x.flatten().tolist()


def test_deepcopy_keeps_ties_and_device():
    net, _ = trained()
    net[3].bias = net[0].bias
    twin = copy.deepcopy(net)
    assert twin[3].bias is twin[0].bias and twin[0].weight.device.type == "rsx"
    same(twin[0].weight, net[0].weight)
    twin[0].weight.data.add_(1)
    assert (twin[0].weight - net[0].weight).abs().min().item() > 0.5
    x = torch.zeros(4, device=D)
    a, b = copy.deepcopy([x, x[1:3]])
    a.add_(1)
    assert b.sum().item() == 2 and x.sum().item() == 0


def test_copy_shares_storage():
    x = torch.zeros(4, device=D)
    y = copy.copy(x)
    x.add_(1)
    assert y.device.type == "rsx" and y.sum().item() == 4


def test_module_to_keeps_parameters_and_ties():
    net = nn.Sequential(nn.Linear(4, 4), nn.Linear(4, 4))
    net[1].weight = net[0].weight
    weight, count = net[0].weight, len(list(net.parameters()))
    opt = torch.optim.SGD(net.parameters(), lr=0.1)
    net(torch.ones(1, 4)).sum().backward()
    net.to(D)
    assert net[0].weight is weight and net[1].weight is weight and weight.is_rsx and weight.grad.is_rsx
    assert len(list(net.parameters())) == count
    opt.step()
    net.cpu()
    assert net[0].weight is weight and weight.device.type == "cpu"


def test_save_while_the_storage_is_written_later():
    a, b = torch.ones(3, device=D), torch.ones(3, device=D)
    c = a + b
    a.add_(1)
    data = save(a)
    a.add_(1)
    assert torch.load(data).tolist() == [2, 2, 2] and a.tolist() == [3, 3, 3] and c.tolist() == [2, 2, 2]


def test_print_is_one_copy_and_no_compile():
    import rsx

    x = torch.randn(8, 4096, device=D) + 1
    rsx.synchronize()
    before = rsx.metrics()
    text = repr(x)
    after = rsx.metrics()
    squeeze = lambda t: "".join(t.split())  # noqa: E731
    assert squeeze(text).replace(",device='rsx:0'", "") == squeeze(repr(x.cpu()))
    assert after["records"] == before["records"] and after["segments"] == before["segments"]
    y = torch.ones(2, device=D, requires_grad=True) * 2
    assert "grad_fn=<MulBackward0>" in repr(y)
    assert repr(torch.empty(0, 3, device=D)) == "tensor([], device='rsx:0', size=(0, 3))"


def test_dlpack_aliases():
    x = torch.zeros(4, device=D)
    assert x.__dlpack_device__()[1] == 0
    y = torch.utils.dlpack.from_dlpack(x)
    x[0] = 9
    assert y[0].item() == 9
