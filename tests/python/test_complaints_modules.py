"""Complaints of section 2.6: modules, optimizers, serialisation, data. See complaints.py."""

import copy
import io
import subprocess
import sys
import threading

import pytest
import rsx
import torch
import torch.nn as nn
from complaints import D, LATER, both


def test_m1_tied_weights_stay_tied():
    """pytorch/xla#2719, #7042."""
    enc, dec = nn.Linear(4, 4, bias=False), nn.Linear(4, 4, bias=False)
    dec.weight = enc.weight
    m = nn.Sequential(enc, dec)
    m.to(D)
    assert m[0].weight is m[1].weight and len(list(m.parameters())) == 1
    assert isinstance(m[0].weight, nn.Parameter) and m[0].weight.device.type == D


def test_m2_copies():
    """pytorch/xla#876, PR#1018."""
    x = torch.zeros(4, device=D)
    y = copy.copy(x)
    y.add_(1)
    assert x.sum().item() == 4 and y.device.type == D
    m = nn.Sequential(nn.Linear(2, 2), nn.Linear(2, 2)).to(D)
    m[1].weight = m[0].weight
    c = copy.deepcopy(m)
    assert c[0].weight is c[1].weight and c[0].weight.device.type == D


def test_m4_save_before_any_sync():
    """aws-neuron-sdk#1315."""
    m = nn.Linear(3, 3).to(D)
    with torch.no_grad():
        m.weight.mul_(0).add_(2)
    file = io.BytesIO()
    torch.save(m.state_dict(), file)
    file.seek(0)
    assert torch.load(file, map_location="cpu")["weight"].sum().item() == 18


def test_m6_memory_of_dropped_tensors():
    """pytorch/pytorch#80942."""
    x = torch.rand(1_000_000)
    for i in range(100):
        y = x.to(D) + 1
        del y
        if i == 20:
            rsx.synchronize()
            before = rsx.metrics()["live_bytes"]
    rsx.synchronize()
    assert rsx.metrics()["live_bytes"] <= before + 64_000_000


def test_m8_checkpointing_survives():
    """pytorch/xla#3455, #7024, #8695: values; the memory is asserted by the issue `The compiler`."""
    from torch.utils.checkpoint import checkpoint

    def f(device):
        torch.manual_seed(0)
        blocks = nn.ModuleList(nn.Sequential(nn.Linear(8, 8), nn.Tanh()) for _ in range(8)).to(device)
        x = torch.rand(4, 8).to(device).requires_grad_()
        y = x
        for b in blocks:
            y = checkpoint(b, y, use_reentrant=False)
        y.sum().backward()
        return x.grad, blocks[0][0].weight.grad

    both(f)


def test_m10_pinned_batches():
    """pytorch/pytorch PR#131858, PR#196801."""
    from torch.utils.data import DataLoader, TensorDataset

    data = TensorDataset(torch.arange(64.0).view(32, 2))
    total = 0
    for (batch,) in DataLoader(data, batch_size=8, pin_memory=True, num_workers=2):
        assert batch.is_pinned()
        total += batch.to(D, non_blocking=True).sum().item()
    assert total == 2016


def test_m11_workers_forked_after_use():
    """pytorch/pytorch#2724, pytorch/xla#8407, #2749, #7074."""
    from torch.utils.data import DataLoader, TensorDataset

    (torch.ones(4, device=D) + 1).sum().item()
    assert sum(b[0].sum().item() for b in DataLoader(TensorDataset(torch.ones(16)), batch_size=4, num_workers=2)) == 16
    code = """
import os, torch
(torch.ones(2, device="rsx") + 1).sum().item()
pid = os.fork()
if pid == 0:
    try:
        torch.ones(2, device="rsx") + 1
        os._exit(3)
    except RuntimeError as e:
        os._exit(0 if "fork" in str(e) else 4)
raise SystemExit(os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1]))
"""
    assert subprocess.run([sys.executable, "-c", code], timeout=120).returncode == 0


@pytest.mark.skip(reason=LATER)
def test_m12_data_parallel():
    """pytorch/xla#8396, #9307, #8841, #3625, #8489: belongs to the issue on several devices."""


def test_m13_constants_under_torch_compile():
    """pytorch/pytorch#163979, #160909, #178019."""
    f = torch.compile(lambda x: x + torch.tensor([1.0, 2.0], device=x.device), backend="rsx")
    assert f(torch.zeros(2, device=D)).tolist() == [1.0, 2.0]


def test_m15_both_ways_to_draw_are_reproducible():
    """pytorch/xla#8861."""
    for draw in (lambda: torch.rand(4, device=D), lambda: torch.rand(4).to(D)):
        torch.manual_seed(5)
        a = draw()
        torch.manual_seed(5)
        assert torch.equal(a.cpu(), draw().cpu())


def test_m16_one_unsupported_op_is_reported():
    """pytorch/xla#2655, #3831, #6015, #3266."""
    rsx.reset_metrics()
    x = torch.rand(4, 4, device=D) + torch.eye(4, device=D)
    with rsx.tier("compiled"):
        torch.linalg.cholesky_ex(x @ x.t())[0].sum().item()
    assert any("cholesky" in op for op in {**rsx.metrics()["calls"], **rsx.metrics()["fallbacks"]})
    report = rsx.report()
    assert "cholesky" in report and "test_complaints_modules.py" in report


def test_threads_share_the_recorder():
    """Several threads that record, run backward and read values at once."""
    errors = []

    def work():
        try:
            net = nn.Linear(8, 8).to(D)
            for _ in range(10):
                net(torch.rand(4, 8, device=D)).sum().backward()
                net.weight.grad.sum().item()
        except Exception as e:  # noqa: BLE001 - whatever it is, the main thread reports it
            errors.append(e)

    threads = [threading.Thread(target=work) for _ in range(4)]
    for t in threads:
        t.start()
    for t in threads:
        t.join()
    assert not errors, errors
