"""Does the shim compile against other versions of torch? Only their headers are used; nothing is linked or run.

    python tests/shim_versions.py 2.11.0 2.15.0

Downloads the wheels (half a gigabyte each) to a cache directory and runs `cargo check -p rsx-ffi` on each, whose build script
compiles all units of ffi/shim.
"""

import argparse
import os
import pathlib
import subprocess
import sys
import zipfile

ROOT = pathlib.Path(__file__).parents[1]


def headers(version: str, cache: pathlib.Path) -> pathlib.Path:
    """The package directory of a version of torch, with its headers alone."""
    at = cache / version
    if not (at / "torch" / "version.py").exists():
        pip = [sys.executable, "-m", "pip", "download", "-q", "--no-deps", f"torch=={version}", "-d", str(at)]
        wheels = list(at.glob("torch-*.whl"))
        if not wheels:
            subprocess.run(pip, check=True)
            wheels = list(at.glob("torch-*.whl"))
        with zipfile.ZipFile(wheels[0]) as z:
            names = [n for n in z.namelist() if n.startswith("torch/include/") or n == "torch/version.py"]
            z.extractall(at, names)
    return at / "torch"


def check(version: str, cache: pathlib.Path) -> bool:
    environment = {**os.environ, "RSX_TORCH": str(headers(version, cache)), "PYO3_PYTHON": sys.executable}
    return subprocess.run(["cargo", "check", "-p", "rsx-ffi"], cwd=ROOT, env=environment).returncode == 0


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("versions", nargs="+")
    parser.add_argument("--cache", type=pathlib.Path, default=pathlib.Path("target/torch-headers"))
    args = parser.parse_args()
    works = [check(version, args.cache.absolute()) for version in args.versions]
    for version, good in zip(args.versions, works):
        print(f"torch {version}: {'all units compile' if good else 'does not compile'}")
    return 0 if all(works) else 1


if __name__ == "__main__":
    sys.exit(main())
