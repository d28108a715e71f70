"""Makes `helper` importable from every test file, whatever the working directory."""

import os
import pathlib
import sys

# Counts of compiles must not depend on what earlier runs left on disk; tests of the disk cache name a directory.
os.environ["RSX_CACHE_DIR"] = ""

sys.path.insert(0, str(pathlib.Path(__file__).parent))
