"""Is a packed forward as fast as at an earlier commit?

Two processes, one with the packages of this checkout, one with those of the earlier commit, run the same rows of the same tiny
models (those of benchmarks/packing.py: hidden size 256, four layers, float32, CPU, rows of 2,048 tokens). They take turns, and
a turn is a forward over every row in processor time, so a machine that is busy slows both. Printed is the median of the ratios
of neighbouring turns, this checkout / the earlier commit, with the middle half of them.

    python benchmarks/forward.py COMMIT [--turns 15] [--models llama,...]   # about five minutes

Exit code 1 if the median of a model is above 1.02.
"""

from __future__ import annotations

import argparse
import os
import statistics
import subprocess
import sys
import tempfile
import time
from pathlib import Path

GOAL = 1.02
HERE = Path(__file__).resolve().parent


def work(name: str) -> None:
    """Runs all rows once for each line of standard input, and prints the seconds that it took."""
    import torch
    from documents import Mix, log_normal_lengths, sampled
    from packing import build, packed_rows, tokens_of

    from patchwork.packing import isolate

    torch.set_num_threads(1)
    model = build(name, 256)
    isolate(model)
    rows = packed_rows(tokens_of(Mix("log-normal", sampled(log_normal_lengths(median=256, spread=1.0)))))
    with torch.no_grad():
        for _ in sys.stdin:
            begin = time.process_time()
            for row in rows:
                model(**row)
            print(time.process_time() - begin, flush=True)


class Worker:
    """A process in which `patchwork` is that of a checkout."""

    def __init__(self, checkout: Path, name: str) -> None:
        environment = {**os.environ, "PYTHONPATH": os.pathsep.join([str(checkout), str(HERE)]), "OMP_NUM_THREADS": "1"}
        command = [sys.executable, "-W", "ignore", str(HERE / "forward.py"), "--work", name]
        self.process = subprocess.Popen(
            command, env=environment, text=True, stdin=subprocess.PIPE, stdout=subprocess.PIPE, cwd=checkout
        )

    def turn(self) -> float:
        assert self.process.stdin is not None
        assert self.process.stdout is not None
        print(file=self.process.stdin, flush=True)
        return float(self.process.stdout.readline())

    def close(self) -> None:
        self.process.communicate()


def ratios(name: str, before: Path, turns: int) -> list[float]:
    workers = Worker(HERE.parent, name), Worker(before, name)
    for worker in workers:
        worker.turn()  # the first makes plans and touches memory
    found = []
    for number in range(turns):
        took = {worker: worker.turn() for worker in (workers if number % 2 else workers[::-1])}
        found.append(took[workers[0]] / took[workers[1]])
    for worker in workers:
        worker.close()
    return found


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("commit", nargs="?", default="HEAD~1")
    parser.add_argument("--turns", type=int, default=15)
    parser.add_argument("--models", default="llama,qwen3.5,gpt_oss,lfm2")
    parser.add_argument("--work", help=argparse.SUPPRESS)
    options = parser.parse_args()
    if options.work:
        work(options.work)
        return 0
    slower = False
    with tempfile.TemporaryDirectory() as folder:
        before = Path(folder) / "before"
        subprocess.run(["git", "worktree", "add", "--quiet", "--detach", str(before), options.commit], cwd=HERE, check=True)
        try:
            for name in options.models.split(","):
                found = ratios(name, before, options.turns)
                low, middle, high = statistics.quantiles(found, n=4)
                slower |= middle > GOAL
                print(f"{name:<8} {middle:.3f} ({low:.3f} to {high:.3f}) x the time of {options.commit}", flush=True)
        finally:
            subprocess.run(["git", "worktree", "remove", "--force", str(before)], cwd=HERE, check=True)
    return int(slower)


if __name__ == "__main__":
    sys.exit(main())
