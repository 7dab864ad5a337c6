"""What every test stands on: no network, one thread a process, and no modules of the demo's libraries where torch is missing."""

from __future__ import annotations

import os
from importlib.util import find_spec

# Before any library that reads them is imported. A test that needs the hub is a test that fails on a train.
os.environ.setdefault("HF_HUB_OFFLINE", "1")
os.environ.setdefault("HF_HUB_DISABLE_TELEMETRY", "1")
os.environ.setdefault("TOKENIZERS_PARALLELISM", "false")
# Files run side by side, and so do the processes that tests start.
os.environ.setdefault("OMP_NUM_THREADS", "1")

TORCH = find_spec("torch") is not None
collect_ignore = [] if TORCH else ["packing", "compat"]
