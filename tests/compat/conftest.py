"""Lets the tests that run in each matrix cell import their tiny models: `import tiny`."""

from __future__ import annotations

import sys
from pathlib import Path

import torch

sys.path.insert(0, str(Path(__file__).parent))
# The models are tiny: a second thread makes them slower, and the order of sums, so the last digits, depend on the machine.
torch.set_num_threads(1)
