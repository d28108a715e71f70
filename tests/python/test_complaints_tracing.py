"""Complaints of section 2.2: tracing, compiling, deep graphs. See complaints.py."""

import torch
from complaints import D


def test_p4_deep_unevaluated_graph():
    """mlx#1712, mlx#114: bounded, no recursion. (20 000 here; the full 200 000 behind `--full`.)"""
    a = torch.zeros(4, device=D)
    for _ in range(20_000):
        a = a + 1
    assert a[0].item() == 20_000
