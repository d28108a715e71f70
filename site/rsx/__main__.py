"""Command line: ``python -m rsx info``, ``python -m rsx cache {ls,info,clear}`` (also as ``rsx``)."""

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


def size(n: float) -> str:
    for unit in ("B", "KiB", "MiB"):
        if n < 1024:
            return f"{n:.0f} {unit}" if unit == "B" else f"{n:.1f} {unit}"
        n /= 1024
    return f"{n:.1f} GiB"


def age(seconds: float) -> str:
    for unit, length in (("d", 86400), ("h", 3600), ("min", 60)):
        if seconds >= length:
            return f"{seconds / length:.0f} {unit}"
    return f"{seconds:.0f} s"


def cache(action: str, directory: str | None) -> str:
    """The disk cache of compiled programs, for people."""
    from rsx import _C

    if action == "clear":
        return f"{_C.cache_clear(directory)} entries removed"
    if action == "info":
        i = _C.cache_info(directory)
        counts = [f"{kind}s: {i[kind][0]}, {size(i[kind][1])}" for kind in ("program", "kernel")]
        limit = f"limit: {size(i['limit'])}" if i["limit"] < 2**60 else ""
        return "\n".join([f"directory: {i['directory']}", *counts, limit]).rstrip()
    rows = [("kind", "size", "unused for", "key", "what")]
    for kind, key, nbytes, seconds, label in _C.cache_list(directory):
        rows.append((kind, size(nbytes), age(seconds), key[:12], label))
    widths = [max(len(r[c]) for r in rows) for c in range(4)]
    return "\n".join("  ".join([*(c.ljust(w) for c, w in zip(r, widths)), r[4]]) for r in rows)


def main() -> None:
    parser = argparse.ArgumentParser(prog="rsx", description=rsx.__doc__.split("\n")[0])
    commands = parser.add_subparsers(dest="command", required=True)
    commands.add_parser("info", help="versions, machine and settings")
    c = commands.add_parser("cache", help="the disk cache of compiled programs and kernels")
    c.add_argument("action", choices=["ls", "info", "clear"], help="list entries, count them, or remove them all")
    c.add_argument("--dir", help="another directory than $RSX_CACHE_DIR (default: rsx in the user's cache directory)")
    args = parser.parse_args()
    print(info() if args.command == "info" else cache(args.action, args.dir))


if __name__ == "__main__":
    main()
