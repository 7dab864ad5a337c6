"""Lets the tests that run in each matrix cell import their tiny models: `import tiny`."""

from __future__ import annotations

import sys
from pathlib import Path

sys.path.insert(0, str(Path(__file__).parent))
