"""One recorder, many threads."""

import threading
import time

import rsx
import torch
import torch.nn as nn
from helper import D


def run_all(*programs):
    errors = []

    def guarded(program):
        try:
            program()
        except BaseException as e:  # noqa: BLE001 - shown by the assertion
            errors.append(e)

    threads = [threading.Thread(target=guarded, args=(p,)) for p in programs]
    for t in threads:
        t.start()
    for t in threads:
        t.join(120)
    assert not errors, errors
    assert not any(t.is_alive() for t in threads), "deadlock"


def test_training_in_four_threads():
    torch.manual_seed(0)
    nets = [nn.Sequential(nn.Linear(8, 16), nn.GELU(), nn.Linear(16, 4)).to(D) for _ in range(4)]
    x = torch.ones(4, 8, device=D)

    def train(net):
        opt = torch.optim.SGD(net.parameters(), lr=0.01)
        for step in range(20):
            opt.zero_grad()
            loss = net(x).pow(2).mean()
            loss.backward()
            opt.step()
            if step % 5 == 0:
                loss.item()

    run_all(*[lambda net=net: train(net) for net in nets])
    for net in nets:
        assert all(torch.isfinite(p).all().item() for p in net.parameters())


def test_reads_cuts_and_writes_race():
    shared = torch.zeros(16, device=D)

    def write():
        for _ in range(200):
            shared.add_(1)

    def read():
        for _ in range(50):
            shared.sum().item()

    def cut():
        for _ in range(100):
            rsx.mark_step()

    def drop():
        for _ in range(200):
            torch.ones(64, device=D).mul_(2)

    run_all(write, write, read, cut, drop)
    assert shared.tolist() == [400.0] * 16


def test_waiting_releases_the_gil():
    """While one thread waits for the device, others run Python."""
    x = torch.randn(1024, 1024, device=D)
    ticks = []
    done = threading.Event()

    def tick():
        while not done.is_set():
            ticks.append(time.perf_counter())
            time.sleep(0.001)

    ticker = threading.Thread(target=tick)
    ticker.start()
    time.sleep(0.02)
    begin = time.perf_counter()
    for _ in range(8):
        x = (x @ x).sin()
    x.sum().item()
    end = time.perf_counter()
    done.set()
    ticker.join()
    inside = [t for t in ticks if begin < t < end]
    if end - begin > 0.05:  # a fast machine leaves nothing to see
        assert len(inside) >= 3, (len(inside), end - begin)


def test_tensors_freed_by_another_thread():
    box = [torch.ones(100, device=D) for _ in range(100)]
    run_all(box.clear)
    assert (torch.ones(3, device=D) + 1).sum().item() == 6
