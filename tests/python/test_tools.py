"""rsx.guard, rsx.profile, the profiler's lane, programs in files."""

import json
import re

import pytest
import rsx
import torch
import torch.nn as nn
from helper import D, python


def test_guard_raises_at_the_line():
    x = torch.ones(3, device=D)
    reads = {
        "item": lambda: x.sum().item(),
        "print": lambda: str(x),
        "copy_to_host": lambda: x.cpu(),
        "synchronize": lambda: torch.rsx.synchronize(),
        "data_ptr": lambda: x.data_ptr(),
    }
    for what, read in reads.items():
        with rsx.guard(no_host_wait=True), pytest.raises(RuntimeError, match=rf"would wait for the device \({what}\) at .*test_tools"):
            read()
        read()
    with rsx.guard(no_host_wait=True), pytest.raises(RuntimeError, match="data_dependent_shape"):
        x.nonzero()
    with rsx.guard(no_host_wait=True), rsx.guard(no_host_wait=False):
        assert x.sum().item() == 3


def test_guard_lets_training_steps_pass():
    net = nn.Linear(3, 3).to(D)
    opt = torch.optim.AdamW(net.parameters())
    with rsx.guard(no_host_wait=True):
        for _ in range(3):
            opt.zero_grad()
            net(torch.ones(2, 3, device=D)).sum().backward()
            opt.step()


@pytest.mark.parametrize("tier", ["eager", "compiled"])
def test_profile_writes_all_rows(tmp_path, tier):
    path = tmp_path / "trace.json"
    x = torch.randn(64, 64, device=D)
    fast = rsx.jit(lambda x: (x @ x).relu())
    with rsx.tier(tier):
        for _ in range(3):
            fast(x)
        with rsx.profile(path):
            y = (x @ x).softmax(-1)
            y.sum().item()
            fast(x)
    events = [e for e in json.loads(path.read_text())["traceEvents"] if e["ph"] == "X"]
    rows = {}
    for e in events:
        rows.setdefault(e["cat"], set()).add(e["name"])
    assert {"record", "cut: item", "wait: item", "replay"} <= rows["host"]
    assert "segment" in rows["executor"]
    assert ("compile" in rows.get("compiler", ())) == (tier == "compiled")
    if tier == "eager":
        assert {"aten::mm", "aten::_softmax"} <= rows["device"]
    assert len([e for e in events if e["cat"] == "device"]) >= 3
    assert all(e["ts"] >= 0 and e["dur"] >= 0 for e in events)
    with rsx.profile(path):  # and it was switched off in between
        pass
    assert len(json.loads(path.read_text())["traceEvents"]) <= 11


def test_profiler_has_a_lane():
    """A process of its own: the profiler's set-up happens once."""
    python(
        """
        import json, os, tempfile, torch, rsx
        from torch.profiler import ProfilerActivity as A, profile
        x = torch.randn(64, 64, device="rsx")
        with rsx.tier("eager"):
            (x @ x).relu(); rsx.synchronize()
            with profile(activities=[A.CPU, A.PrivateUse1]) as p:
                y = (x @ x).relu()
                rsx.synchronize()
        path = os.path.join(tempfile.mkdtemp(), "t.json")
        p.export_chrome_trace(path)
        kernels = [e for e in json.load(open(path))["traceEvents"] if e.get("cat") == "kernel"]
        assert {"aten::mm", "aten::relu"} <= {e["name"] for e in kernels}, kernels
        on_device = [e.name for e in p.events() if e.device_type != torch.autograd.DeviceType.CPU]
        assert "aten::mm" in on_device, on_device
        """
    )


def test_programs_are_called(tmp_path):
    torch.manual_seed(0)
    net = nn.Sequential(nn.Linear(4, 8), nn.Tanh(), nn.Linear(8, 2)).to(D)
    x = torch.randn(3, 4, device=D)

    def f(x, scale, flag=True):
        return {"y": net(x) * scale, "n": 3, "flag": flag}, x + 1

    program = rsx.compile(f, x, 2.0)
    path = tmp_path / "p.rsx"
    program.save(path)
    loaded = rsx.load(path)
    for p in (program, loaded):
        y = torch.randn(3, 4, device=D)
        got, want = p(y, 2.0), f(y, 2.0)
        assert got[0]["n"] == 3 and got[0]["flag"] is True
        torch.testing.assert_close(got[0]["y"].cpu(), want[0]["y"].detach().cpu())
        torch.testing.assert_close(got[1].cpu(), want[1].cpu())
        for wrong in ((torch.randn(4, 4, device=D), 2.0), (y, 3.0), (y.double(), 2.0), (y,), (y.cpu(), 2.0)):
            with pytest.raises(TypeError, match=r"this program takes float32\[3, 4\] on rsx, 2.0"):
                p(*wrong)
    with torch.no_grad():
        net[2].bias.add_(1)
    torch.testing.assert_close(program(x, 2.0)[0]["y"].cpu(), f(x, 2.0)[0]["y"].detach().cpu())
    torch.testing.assert_close(loaded(x, 2.0)[0]["y"].cpu() + 2, f(x, 2.0)[0]["y"].detach().cpu())


def test_programs_run_in_another_process(tmp_path):
    torch.manual_seed(0)
    net = nn.Sequential(nn.Conv2d(1, 2, 3), nn.ReLU(), nn.Flatten(), nn.Dropout(0.5)).to(D)
    x = torch.ones(1, 1, 5, 5)
    rsx.compile(net, x.to(D)).save(tmp_path / "p.rsx")
    torch.manual_seed(3)
    want = net(x.to(D)).detach().cpu()
    torch.save((x, want), tmp_path / "x.pt")
    python(
        f"""
        import rsx, torch
        x, want = torch.load(r"{tmp_path}/x.pt")
        p = rsx.load(r"{tmp_path}/p.rsx")
        for _ in range(2):
            torch.manual_seed(3)
            torch.testing.assert_close(p(x.to("rsx")).cpu(), want)
        """
    )


def test_programs_that_cannot_be(tmp_path):
    x = torch.ones(3, device=D)
    w = torch.ones(3, device=D)
    with pytest.raises(RuntimeError, match=r"ahead of time: a value is read on the host \(item\)"):
        rsx.compile(lambda x: x * x.sum().item(), x)
    with pytest.raises(ValueError, match="writes a tensor that is no argument"):
        rsx.compile(lambda x: w.add_(x) + 1, x).save(tmp_path / "p")
    with pytest.raises(RuntimeError, match="move it to rsx"):
        rsx.compile(lambda x: x + 1, torch.ones(3))


def test_damaged_programs_are_errors(tmp_path):
    import zipfile

    path = tmp_path / "p"
    rsx.compile(lambda x: x + 1, torch.ones(3, device=D)).save(path)
    with zipfile.ZipFile(path) as z:
        parts = {n: z.read(n) for n in z.namelist()}
    for cut in (0, 7, 8, 40, len(parts["ops"]) - 1):
        with zipfile.ZipFile(path, "w") as z:
            for n, b in parts.items():
                z.writestr(n, b[:cut] if n == "ops" else b)
        with pytest.raises(ValueError, match="damaged|cut short|not a program"):
            rsx.load(path)
    path.write_bytes(b"PK nonsense")
    with pytest.raises(ValueError, match="not a program of rsx"):
        rsx.load(path)


COPYING = """
import torch, torch.nn as nn, torch.nn.functional as F
d = "rsx"
def train(net, *shape, steps=2, cast=False):
    net = net.to(d)
    opt = torch.optim.AdamW(net.parameters())
    for _ in range(steps):
        opt.zero_grad()
        with torch.autocast(d, torch.bfloat16, enabled=cast):
            out = net(torch.randn(*shape, device=d))
        out = out[0] if isinstance(out, tuple) else out
        out.float().square().mean().backward()
        opt.step()
train(nn.TransformerEncoderLayer(16, 2, 32, batch_first=True), 2, 6, 16)
train(nn.TransformerEncoderLayer(16, 2, 32, batch_first=True), 2, 6, 16, cast=True)
train(nn.LSTM(4, 8, 2, batch_first=True), 2, 5, 4)
conv = lambda i, o, s=1: nn.Sequential(nn.Conv2d(i, o, 3, s, 1, bias=False), nn.BatchNorm2d(o), nn.ReLU())
train(nn.Sequential(conv(3, 32), conv(32, 64, 2), nn.Flatten()), 2, 3, 16, 16)
train(nn.Sequential(conv(3, 32), conv(32, 64, 2)).to(memory_format=torch.channels_last), 2, 3, 16, 16)
x, y = torch.randn(6, 8, device=d), torch.randn(6, 8, device=d)
ids = torch.tensor([1, 2], device=d)
for _ in range(2):
    both = torch.cat([x, y.flip(1)], 1)
    wide = F.pad(both, (1, 2, 0, 1))
    parts = both.t().reshape(8, 12).cumsum(1), both.view(6, 4, 4).transpose(0, 1).contiguous(), both[1:3].clone()
    x[:, 2:5] += 1
    x.t()[1].copy_(y[0, :6])
    x.index_add_(0, ids, y[:2])
    kept = x.clone()
    x, y = y, x
    again, half = kept.clone(), kept.to(torch.bfloat16)
    torch.rsx.synchronize()
"""


def test_every_copy_in_a_dump_says_why(tmp_path):
    run = python(COPYING, RSX_TIER="compiled", RSX_DUMP_TO=str(tmp_path), RSX_CACHE_DIR="")
    assert run.returncode == 0, run.stderr
    moves = {"parameter", "constant", "iota", "reshape", "transpose", "broadcast_in_dim", "slice", "pad", "concatenate", "reverse", "convert"}
    thunks, kernels = 0, 0
    for path in tmp_path.glob("*.program.txt"):
        head, *bodies = re.split(r"^kernel \d+ ", path.read_text(), flags=re.M)
        ops = {b.split()[0]: set(re.findall(r"^ *%\S+ = (\w+)", b, flags=re.M)) for b in bodies}
        reads = {b.split()[0]: re.search(r"tensor<\d", b.split("func", 1)[1].split("{", 1)[0]) for b in bodies}
        for line in head.splitlines():
            call = re.match(r"(?:thunk \d+: | +)(\w+)\(", line)
            if call and call[1] == "copy":
                assert " // " in line, f"{path}: {line}"
                thunks += 1
            elif call and call[1] in ops and ops[call[1]] <= moves and reads[call[1]]:
                assert "is a copy: " in line, f"{path}: {line}"
                kernels += 1
    assert thunks >= 3 and kernels >= 10, (thunks, kernels)
