"""Does the shim compile against other versions of torch? Only their headers are used; nothing is run.

    python tests/shim_versions.py 2.11.0 2.15.0

Downloads the wheels (half a gigabyte each) to a cache directory and checks the syntax of all units of ffi/shim.
"""

import argparse
import pathlib
import subprocess
import sys
import zipfile

SHIM = pathlib.Path(__file__).parents[1] / "ffi" / "shim"


def headers(version: str, cache: pathlib.Path) -> pathlib.Path:
    """The include directory of a version of torch."""
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
    return at / "torch" / "include"


def check(version: str, cache: pathlib.Path, cxx: str) -> list[str]:
    """The units that do not compile."""
    include = headers(version, cache)
    system = [include, include / "torch" / "csrc" / "api" / "include", include / "kineto"]
    flags = ["-std=c++20", "-fPIC", "-Wno-unused-parameter", "-fvisibility=hidden", "-D_GLIBCXX_USE_CXX11_ABI=1"]
    flags += [x for s in system for x in ("-isystem", str(s))]
    failed = []
    for unit in sorted(SHIM.glob("*.cpp")):
        run = subprocess.run([cxx, *flags, "-include", SHIM / "pch.h", "-fsyntax-only", unit])
        if run.returncode:
            failed.append(unit.name)
    return failed


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("versions", nargs="+")
    parser.add_argument("--cache", type=pathlib.Path, default=pathlib.Path("target/torch-headers"))
    parser.add_argument("--cxx", default="g++")
    args = parser.parse_args()
    bad = 0
    for version in args.versions:
        failed = check(version, args.cache.absolute(), args.cxx)
        print(f"torch {version}: {'all units compile' if not failed else 'these do not: ' + ', '.join(failed)}", flush=True)
        bad += bool(failed)
    return bad


if __name__ == "__main__":
    sys.exit(main())
