"""Packed weights that are kept between runs: found again while nobody writes, never stale, however a weight changes."""

import ctypes
import gc
import threading

import pytest
import rsx
import torch
import torch.nn as nn
from helper import D

N, K = 96, 80


def make(seed=0, conv=False):
    torch.manual_seed(seed)
    return nn.Conv2d(16, 32, 3, padding=1) if conv else nn.Linear(K, N)


def inputs(i, conv=False):
    g = torch.Generator().manual_seed(1000 + i)
    return torch.randn(2, 16, 32, 32, generator=g) if conv else torch.randn(64, K, generator=g)


class Twin:
    """A layer on the device beside the same layer on the CPU."""

    def __init__(self, seed=0, conv=False):
        self.conv, self.runs = conv, 0
        self.cpu, self.dev = make(seed, conv), make(seed, conv).to(D)

    def agree(self, times=1):
        for _ in range(times):
            x = inputs(self.runs, self.conv)
            self.runs += 1
            with torch.no_grad():
                got = self.dev(x.to(D))
                rsx.mark_step()
                torch.testing.assert_close(got.cpu(), self.cpu(x), rtol=1e-4, atol=1e-4)

    def warm(self):
        before = rsx.metrics()["prepack_hits"]
        with rsx.tier("compiled"):
            self.agree(4)
        m = rsx.metrics()
        assert m["prepack_hits"] > before and m["packed_bytes"] > 0

    def both(self, change):
        for layer in (self.cpu, self.dev):
            with torch.no_grad():
                change(layer)


def optimizer_step(layer):
    with torch.enable_grad():
        opt = torch.optim.SGD(layer.parameters(), lr=0.1)
        x = inputs(5, isinstance(layer, nn.Conv2d)).to(layer.weight.device)
        layer(x).square().mean().backward()
        opt.step()
        opt.zero_grad()


def adamw_steps(layer):
    with torch.enable_grad():
        opt = torch.optim.AdamW(layer.parameters(), lr=1e-2)
        for i in range(3):
            layer(inputs(i, isinstance(layer, nn.Conv2d)).to(layer.weight.device)).square().mean().backward()
            opt.step()
            opt.zero_grad()


def swap_data(layer):
    layer.weight.data = (layer.weight.detach() * -2).clone()


def view_write(layer):
    layer.weight.view(-1)[3:40].mul_(5)


def free_and_renew(layer):
    shape, device = layer.weight.shape, layer.weight.device
    layer.weight = None
    gc.collect()
    rsx.synchronize()
    layer.weight = nn.Parameter(torch.linspace(-1, 1, shape.numel()).reshape(shape).to(device))


def load(layer):
    state = make(seed=3, conv=isinstance(layer, nn.Conv2d)).state_dict()
    layer.load_state_dict(state)


def assign(layer):
    state = make(seed=4, conv=isinstance(layer, nn.Conv2d)).to(layer.weight.device).state_dict()
    layer.load_state_dict(state, assign=True)


WAYS = {
    "optimizer": optimizer_step,
    "adamw": adamw_steps,
    "copy_ from the host": lambda m: m.weight.copy_(torch.full(m.weight.shape, 0.25)),
    "copy_ of a part": lambda m: m.weight[1:3].copy_(torch.ones(m.weight[1:3].shape)),
    "in place": lambda m: m.weight.mul_(1.5),
    "through a view": view_write,
    "through a transposed view": lambda m: m.weight.transpose(0, 1)[2].zero_(),
    "one element": lambda m: m.weight.view(-1).__setitem__(7, 42.0),
    "fill of another program's result": lambda m: m.weight.copy_((m.weight @ m.weight.mT).tanh() @ m.weight),
    ".data": swap_data,
    "set_": lambda m: m.weight.set_(torch.ones_like(m.weight) * 0.5),
    "load_state_dict": load,
    "load_state_dict(assign=True)": assign,
    "freed": free_and_renew,
    "init": lambda m: nn.init.constant_(m.weight, 0.1),
}


@pytest.mark.parametrize("conv", [False, True], ids=["linear", "conv"])
@pytest.mark.parametrize("way", WAYS)
def test_every_change_is_seen(way, conv):
    twin = Twin(conv=conv)
    twin.warm()
    for _ in range(2):
        twin.both(WAYS[way])
        twin.agree(4)


@pytest.mark.parametrize("tier", ["eager", "auto", "compiled"])
def test_changes_between_all_runs(tier):
    twin = Twin()
    twin.warm()
    with rsx.tier(tier):
        for i in range(6):
            twin.both(lambda m, i=i: m.weight.add_(0.01 * i))
            twin.agree()


def test_writes_through_an_address():
    twin = Twin()
    twin.warm()
    rsx.synchronize()
    address = twin.dev.weight.data_ptr()
    for i in range(4):
        for layer, p in ((twin.cpu, twin.cpu.weight.data_ptr()), (twin.dev, address)):
            ctypes.memmove(p, (ctypes.c_float * 3)(i, -i, 2 * i), 12)
            assert layer.weight.data_ptr() == p
        twin.agree(2)


def test_two_programs_share_a_parameter():
    twin = Twin()
    twin.warm()
    packed = rsx.metrics()["packed_bytes"]
    for rows in (32, 48, 128):
        for i in range(4):
            x = torch.randn(rows, K)
            with torch.no_grad(), rsx.tier("compiled"):
                got = twin.dev(x.to(D)).relu()
                rsx.mark_step()
                torch.testing.assert_close(got.cpu(), twin.cpu(x).relu(), rtol=1e-4, atol=1e-4)
    assert rsx.metrics()["packed_bytes"] <= packed, "the same form serves all"
    twin.both(lambda m: m.weight.neg_())
    twin.agree(3)


def test_training_keeps_nothing():
    torch.manual_seed(0)
    net = nn.Sequential(nn.Linear(K, 64), nn.ReLU(), nn.Linear(64, N)).to(D)
    opt = torch.optim.AdamW(net.parameters(), lr=1e-3)
    rsx.synchronize()
    before = rsx.metrics()
    with rsx.tier("compiled"):
        for i in range(6):
            opt.zero_grad()
            net(inputs(i).to(D)).square().mean().backward()
            opt.step()
            rsx.mark_step()
    rsx.synchronize()
    after = rsx.metrics()
    assert after["packed_bytes"] <= before["packed_bytes"] and after["prepack_hits"] == before["prepack_hits"]


def test_freed_weights_take_their_copies_along():
    rsx.synchronize()
    before = rsx.metrics()["packed_bytes"]
    twin = Twin(seed=9)
    twin.warm()
    assert rsx.metrics()["packed_bytes"] > before
    del twin
    gc.collect()
    rsx.synchronize()
    assert rsx.metrics()["packed_bytes"] <= before


def test_one_row_keeps_nothing():
    rsx.synchronize()
    before = rsx.metrics()["packed_bytes"]
    torch.manual_seed(0)
    layer = nn.Linear(512, 512, bias=False).to(D)
    with torch.no_grad(), rsx.tier("compiled"):
        for i in range(5):
            layer(torch.randn(1, 512).to(D))
            rsx.mark_step()
    rsx.synchronize()
    assert rsx.metrics()["packed_bytes"] <= before


def test_empty_cache_gives_them_up():
    twin = Twin()
    twin.warm()
    rsx.synchronize()
    torch.rsx.empty_cache()
    assert rsx.metrics()["packed_bytes"] == 0
    twin.agree(3)


def test_replayed_steps_see_changes():
    twin = Twin()

    @rsx.jit
    def step(x):
        with torch.no_grad():
            return twin.dev(x)

    for i in range(10):
        x = inputs(i)
        if i in (5, 8):
            twin.both(lambda m: m.weight.mul_(-1.5))
        torch.testing.assert_close(step(x.to(D)).cpu(), twin.cpu(x).detach(), rtol=1e-4, atol=1e-4)


def test_threads():
    twins = [Twin(seed=s) for s in range(3)]
    for t in twins:
        t.warm()
    errors = []

    def work(twin):
        try:
            for i in range(10):
                if i % 3 == 2:
                    twin.both(lambda m: m.weight.mul_(1.1))
                twin.agree()
        except BaseException as e:  # noqa: BLE001 (handed to the test's own thread)
            errors.append(e)

    threads = [threading.Thread(target=work, args=(t,)) for t in twins]
    for t in threads:
        t.start()
    for t in threads:
        t.join()
    assert not errors, errors[0]
