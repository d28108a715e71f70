"""torch.rsx, torch.accelerator, device contexts: what PyTorch itself asks of a device."""

import pytest
import rsx
import torch
import torch.nn as nn
from helper import D, python


def test_autoload_without_import():
    python(
        """
        import torch, importlib.metadata
        loaded = any(e.name == "rsx" for e in importlib.metadata.entry_points(group="torch.backends"))
        assert not loaded or torch.ones(2, device="rsx").sum().item() == 2
        """
    )


@pytest.mark.parametrize("order", ["import torch, rsx", "import rsx, torch", "import rsx"])
def test_import_orders(order):
    python(f"{order}\nimport torch\nassert (torch.ones(2, device='rsx') + 1).sum().item() == 4")


NAMES = """
is_available is_initialized _lazy_init _is_in_bad_fork device_count current_device set_device device synchronize Stream
Event stream current_stream set_stream default_stream manual_seed manual_seed_all seed seed_all initial_seed
get_rng_state get_rng_state_all set_rng_state set_rng_state_all get_amp_supported_dtype amp memory_allocated
max_memory_allocated memory_reserved memory_stats memory_summary reset_peak_memory_stats empty_cache mem_get_info
get_device_properties get_device_capability is_bf16_supported _utils
""".split()


@pytest.mark.parametrize("name", NAMES)
def test_module_is_complete(name):
    assert hasattr(torch.rsx, name)


def test_simple_answers():
    assert torch.rsx.is_available() and torch.rsx.device_count() == 1 and torch.rsx.current_device() == 0
    assert torch.get_device_module("rsx") is torch.rsx
    with torch.rsx.device(0), torch.rsx.device_of(torch.ones(1, device=D)):
        assert torch.rsx.current_device() == 0
    assert torch.rsx._utils._get_device_index("rsx:0") == 0
    assert torch.rsx.get_device_properties().total_memory > 0
    assert "rsx" in torch.rsx.memory_summary()
    torch.rsx.synchronize()


def test_accelerator():
    a = torch.accelerator
    assert a.is_available() and a.current_accelerator().type == "rsx" and a.device_count() == 1
    assert a.current_device_index() == 0
    a.set_device_index(0)
    a.synchronize()
    assert a.current_stream().device.type == "rsx"
    with a.device_index(0):
        pass
    assert a.memory_allocated() >= 0 and a.max_memory_allocated() >= 0 and a.memory_reserved() >= 0
    a.reset_peak_memory_stats()
    a.empty_cache()
    free, total = a.get_memory_info()
    assert 0 <= free <= total


def test_events_and_streams():
    start, end = (torch.Event(device="rsx", enable_timing=True) for _ in range(2))
    start.record()
    x = torch.randn(64, 64, device=D)
    for _ in range(3):
        x = x @ x
    end.record()
    end.synchronize()
    assert end.query() and start.elapsed_time(end) >= 0
    s = torch.rsx.Stream()
    with torch.rsx.stream(s):
        y = x + 1
    s.synchronize()
    assert s.query() and torch.rsx.current_stream() == torch.rsx.default_stream()
    e = torch.rsx.Event(enable_timing=True)
    e.record(s)
    e.wait(s)
    s.wait_event(e)
    y.record_stream(s)


def test_device_contexts():
    with torch.device("rsx"):
        x, net = torch.ones(3), nn.Linear(2, 2)
    assert x.is_rsx and net.weight.is_rsx
    torch.set_default_device("rsx")
    try:
        assert torch.zeros(2).is_rsx
    finally:
        torch.set_default_device(None)
    with torch.device("meta"):
        net = nn.Linear(2, 2)
    net.to_empty(device=D)
    net.reset_parameters()
    assert torch.isfinite(net.weight).all().item()


def test_generated_methods():
    x = torch.ones(2).rsx()
    assert x.is_rsx and nn.Linear(2, 2).rsx().weight.is_rsx and x.untyped_storage().is_rsx
    packed = nn.utils.rnn.pack_sequence([torch.ones(2)]).rsx()
    assert packed.data.is_rsx


def test_memory_is_given_back():
    x = torch.ones(1 << 20, device=D)
    rsx.synchronize()
    before = torch.rsx.memory_allocated()
    y = x + 1
    rsx.synchronize()
    assert torch.rsx.memory_allocated() - before >= 4 << 20
    del y
    rsx.synchronize()
    assert torch.rsx.memory_allocated() <= before
    assert torch.rsx.max_memory_allocated() >= before + (4 << 20)
    for _ in range(1000):
        torch.empty(1 << 20, device=D)
    assert torch.rsx.memory_allocated() <= before


def test_metrics_have_the_promised_keys():
    m = rsx.metrics()
    for key in ("records segments compiles compile_seconds cache_hits eager_runs calls fallbacks cuts host_waits kernels "
                "bytes_moved live_bytes peak_bytes").split():
        assert key in m, key
    assert isinstance(m["cuts"], dict) and isinstance(m["calls"], dict)


def test_report_names_cause_and_line():
    rsx.reset_metrics()
    x = torch.ones(3, device=D) + 1
    x.sum().item()  # the reported line
    x.unique()
    text = rsx.report()
    assert "item" in text and "test_device_module.py" in text and "unique" in text
    assert rsx.metrics()["host_waits"] >= 1


def test_hidden_waits_are_none():
    """Shapes, strides, devices and dtypes are known without the device."""
    rsx.synchronize()
    before = rsx.metrics()
    x = torch.randn(4, 4, device=D)
    y = (x @ x.t()).softmax(-1)
    assert y.shape == (4, 4) and y.dtype == torch.float32 and y.is_contiguous() and y.numel() == 16
    assert y.untyped_storage().nbytes() == 64 and len(y) == 4 and y[1:].storage_offset() == 4
    after = rsx.metrics()
    assert after["segments"] == before["segments"] and after["host_waits"] == before["host_waits"]


def test_profiler_sees_ops():
    with torch.profiler.profile(activities=[torch.profiler.ProfilerActivity.CPU]) as p:
        (torch.ones(3, device=D) + 1).sum().item()
    assert any("aten::add" in e.key for e in p.key_averages())


@pytest.mark.parametrize("backend", ["eager", "aot_eager"])
def test_torch_compile_of_others(backend):
    f = torch.compile(lambda x: (x * 2).sin(), backend=backend)
    x = torch.ones(2, device=D, requires_grad=True)
    f(x).sum().backward()
    torch.testing.assert_close(x.grad.cpu(), 2 * torch.cos(torch.full((2,), 2.0)))


def test_info():
    run = python("import runpy, sys; sys.argv = ['rsx', 'info']; runpy.run_module('rsx', run_name='__main__')")
    assert "torch" in run.stdout and "2.13" in run.stdout


def test_share_memory_does_not_crash():
    try:
        torch.ones(2, device=D).share_memory_()
    except (RuntimeError, NotImplementedError) as e:
        assert str(e)
