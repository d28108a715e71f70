"""Makes `helper` importable from every test file, whatever the working directory; fixtures of several files."""

import os
import pathlib
import sys

# Counts of compiles must not depend on what earlier runs left on disk; tests of the disk cache name a directory.
os.environ["RSX_CACHE_DIR"] = ""

sys.path.insert(0, str(pathlib.Path(__file__).parent))

import pytest  # noqa: E402


@pytest.fixture(params=["eager", "compiled"])
def tier(request):
    """The test at both ends of the tiers; its value is the tier's name."""
    import rsx

    with rsx.tier(request.param):
        yield request.param
