"""Settings of every test: no network, one thread a process, no limits of time, and no tests of torch where it is missing."""

from __future__ import annotations

import os
from importlib.util import find_spec

from hypothesis import HealthCheck, settings

# Before any library that reads them is imported. A test that needs the hub is a test that fails on a train.
os.environ.setdefault("HF_HUB_OFFLINE", "1")
os.environ.setdefault("HF_HUB_DISABLE_TELEMETRY", "1")
os.environ.setdefault("TOKENIZERS_PARALLELISM", "false")
# Files run side by side, and so do the processes that tests start, which inherit this; the models are tiny, so that a second
# thread makes them slower. Set to 2 it has to pass too: sums then run in another order.
os.environ.setdefault("OMP_NUM_THREADS", "1")

# How long an example takes depends on the load, and two runs of one checkout would share a folder of failures.
settings.register_profile("any machine", deadline=None, suppress_health_check=[HealthCheck.too_slow], database=None)
settings.load_profile("any machine")

TORCH = find_spec("torch") is not None
collect_ignore = [] if TORCH else ["packing", "compat"]
