"""Times `import patchwork; patchwork.apply()` in a fresh process, against importing transformers.

Prints the median of several fresh processes, cold (the folder of patched sources is empty), the ratio to `import transformers` in
the same run, and whether torch or transformers were imported. Goal: 1 s or less, neither imported.

    python benchmarks/startup.py [--repeats 7]
"""

from __future__ import annotations

import argparse
import json
import os
import statistics
import subprocess
import sys
import tempfile

GOAL_SECONDS = 1.0
APPLY = """
import time, sys, json
start = time.perf_counter()
import patchwork
report = patchwork.apply()
seconds = time.perf_counter() - start
states = [outcome.state for outcome in report]
print(json.dumps([seconds, [name for name in ("torch", "transformers") if name in sys.modules], states]))
"""
IMPORT = """
import time, json
start = time.perf_counter()
import transformers
from transformers import PreTrainedModel
print(json.dumps([time.perf_counter() - start, [], []]))
"""


def measure(code: str, cache: str) -> tuple[float, list[str], list[str]]:
    """Seconds, heavy modules imported, and patch states, of one fresh process."""
    environment = {**os.environ, "PATCHWORK_CACHE_DIR": cache}
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True, env=environment)
    seconds, modules, states = json.loads(done.stdout.splitlines()[-1])
    return seconds, modules, states


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0] if __doc__ else None)
    parser.add_argument("--repeats", type=int, default=7)
    repeats = parser.parse_args().repeats
    ours, theirs, imported, states = [], [], set(), []
    for _ in range(repeats):  # interleaved, so that both meet the same machine
        with tempfile.TemporaryDirectory() as cache:
            seconds, modules, states = measure(APPLY, cache)
        ours.append(seconds)
        imported |= set(modules)
        theirs.append(measure(IMPORT, "")[0])
    mine, peer = statistics.median(ours), statistics.median(theirs)
    print(f"import patchwork; patchwork.apply()   {mine:.3f} s  (goal {GOAL_SECONDS:.0f} s; patches: {', '.join(states)})")
    print(f"import transformers' model class      {peer:.3f} s  ratio {mine / peer:.2f}")
    print(f"imported by apply(): {', '.join(sorted(imported)) or 'neither torch nor transformers'}")
    return int(mine > GOAL_SECONDS or bool(imported))


if __name__ == "__main__":
    sys.exit(main())
