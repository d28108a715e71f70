"""Registers the device with PyTorch, once per process."""

import atexit
import os
import threading

_lock = threading.RLock()
_installed = False


def install() -> None:
    """Make ``device="rsx"`` known to PyTorch. Called by ``import torch`` (autoload) and ``import rsx`` alike."""
    global _installed
    import torch  # may come back here through its autoload

    with _lock:
        if _installed:
            return
        _installed = True
        _register(torch)


def _register(torch) -> None:
    try:
        from rsx import _C
    except ImportError as e:
        raise ImportError(
            f"rsx cannot load its extension module beside torch {torch.__version__}: {e}. C++ extensions fit one minor "
            "version of torch; install torch 2.13.0, or rebuild rsx in this environment (`make build`)."
        ) from e

    built = _C.TORCH_VERSION.split("+")[0]
    if torch.__version__.split("+")[0].split(".")[:2] != built.split(".")[:2]:
        raise ImportError(
            f"rsx was built for torch {built} but torch {torch.__version__} is installed. Install torch {built}, or "
            "rebuild rsx in this environment (`make build`)."
        )
    # Frames of these directories are not the user's: reports skip them.
    _C.init([os.path.dirname(torch.__file__) + os.sep, os.path.dirname(__file__) + os.sep])
    torch.utils.rename_privateuse1_backend("rsx")

    from rsx import _device, _flow, _patches

    torch._register_device_module("rsx", _device)
    torch.utils.generate_methods_for_privateuse1_backend(
        for_tensor=True, for_module=True, for_storage=True, for_packed_sequence=True
    )
    _patches.apply()
    _flow.register()
    # Joins the executor before the interpreter and libtorch are taken down under it.
    atexit.register(_C.shutdown)
