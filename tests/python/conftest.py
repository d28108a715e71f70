"""Makes `helper` importable from every test file, whatever the working directory."""

import pathlib
import sys

sys.path.insert(0, str(pathlib.Path(__file__).parent))
