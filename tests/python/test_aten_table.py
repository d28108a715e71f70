"""The ATen table against eager PyTorch, without a device: `tests/witness/aten.py` does the work."""
import os
import pathlib
import subprocess
import sys

import pytest

ROOT = pathlib.Path(__file__).resolve().parents[2]
WITNESS = ROOT / "tests" / "witness" / "aten.py"
EVAL = pathlib.Path(os.environ.get("CARGO_TARGET_DIR", ROOT / "target")) / "debug" / "examples" / "aten_eval"


@pytest.mark.skipif(not EVAL.exists(), reason="`cargo test -p rsx-lazy` builds the evaluator")
def test_every_row_equals_eager():
    # Also fails if a name in the table is no overload of this PyTorch.
    run = subprocess.run([sys.executable, str(WITNESS), "--quick"], capture_output=True, text=True)
    assert run.returncode == 0, run.stdout[-8000:] + run.stderr[-4000:]
    summary = run.stdout.strip().splitlines()[-1]
    agreeing = int(summary.split(" overloads agree")[0].split()[-1])
    assert agreeing > 1200, summary
