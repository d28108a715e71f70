"""Command line: ``python -m rsx info``."""

import argparse
import os
import platform

import torch

import rsx


def info() -> str:
    """What a bug report needs: versions, machine, features, settings."""
    from rsx import _C

    rows = {
        "rsx": rsx.__version__,
        "torch": torch.__version__,
        "built for torch": _C.TORCH_VERSION,
        "python": platform.python_version(),
        "machine": f"{platform.system()} {platform.release()} {platform.machine()}",
        "cpu features": torch.backends.cpu.get_cpu_capability(),
        "threads": str(torch.get_num_threads()),
        "memory": f"{torch.rsx.mem_get_info()[1] / 2**30:.1f} GiB",
        "settings": ", ".join(f"{k}={v}" for k, v in sorted(os.environ.items()) if k.startswith("RSX_")) or "(none)",
    }
    return "\n".join(f"{name:<16}{value}" for name, value in rows.items())


def main() -> None:
    parser = argparse.ArgumentParser(prog="python -m rsx", description=rsx.__doc__.split("\n")[0])
    commands = parser.add_subparsers(dest="command", required=True)
    commands.add_parser("info", help="versions, machine and settings")
    parser.parse_args()
    print(info())


if __name__ == "__main__":
    main()
