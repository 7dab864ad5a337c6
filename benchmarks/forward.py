"""Compares the time of a packed forward with that at an earlier commit.

Two processes, one with the packages of this checkout, one with those of the earlier commit, run the same tiny models (those of
benchmarks/packing.py: hidden size 256, four layers, float32, CPU). They take turns, in processor time, so a machine that is busy
slows both. Where a process has its memory moves the time of its arithmetic by up to a tenth, so the pair is made anew several
times, and two figures are printed for each model:

    rows of 2,048 tokens    the median over pairs of this checkout / the earlier commit, with the smallest and the largest
    a row of 64 tokens      the difference a forward: what a call costs around its arithmetic, and the share of a long forward
                            that this is

    python benchmarks/forward.py COMMIT [--pairs 6] [--turns 5] [--models llama,...]   # about ten minutes

Exit code 1 if that share is above 0.02 in a model, which the first figure is too noisy to tell.
"""

from __future__ import annotations

import argparse
import os
import subprocess
import sys
import tempfile
import time
from pathlib import Path
from statistics import median

GOAL = 0.02
SHORT = 40  # forwards of a short row in a turn
HERE = Path(__file__).resolve().parent


def work(name: str) -> None:
    """For each line of standard input prints the seconds of a forward of a long row, and of a short one."""
    import torch
    from documents import Mix, log_normal_lengths, sampled
    from packing import Arguments, build, packed_rows, tokens_of

    from patchwork.packing import isolate

    torch.set_num_threads(1)
    model = build(name, 256)
    isolate(model)
    long = packed_rows(tokens_of(Mix("log-normal", sampled(log_normal_lengths(median=256, spread=1.0)))))
    short = packed_rows([[torch.arange(length) for length in (20, 30, 14)]])

    def forward(rows: list[Arguments]) -> float:
        begin = time.process_time()
        for row in rows:
            model(**row)
        return (time.process_time() - begin) / len(rows)

    with torch.no_grad():
        for _ in sys.stdin:
            print(forward(long), forward(short * SHORT), flush=True)


class Worker:
    """A process in which `patchwork` is that of a checkout."""

    def __init__(self, checkout: Path, name: str) -> None:
        folders = os.pathsep.join([str(checkout), str(checkout / "benchmarks")])  # -P: this script's folder is not one of them
        environment = {**os.environ, "PYTHONPATH": folders, "OMP_NUM_THREADS": "1"}
        command = [sys.executable, "-P", "-W", "ignore", str(HERE / "forward.py"), "--work", name]
        self.process = subprocess.Popen(
            command, env=environment, text=True, stdin=subprocess.PIPE, stdout=subprocess.PIPE, cwd=checkout
        )
        self.turn()  # the first makes plans and touches memory

    def turn(self) -> tuple[float, float]:
        """Seconds of a forward of a long row, and of a short one."""
        assert self.process.stdin is not None
        assert self.process.stdout is not None
        print(file=self.process.stdin, flush=True)
        long, short = map(float, self.process.stdout.readline().split())
        return long, short

    def close(self) -> None:
        self.process.communicate()


def pair(name: str, before: Path, turns: int) -> tuple[float, float, float]:
    """Of one pair of processes, medians over turns: the ratio of long forwards, the difference of short ones, and the seconds
    of a long one at the earlier commit."""
    workers = Worker(HERE.parent, name), Worker(before, name)
    taken: list[tuple[tuple[float, float], tuple[float, float]]] = []
    for number in range(turns):
        took = {worker: worker.turn() for worker in (workers if number % 2 else workers[::-1])}
        taken.append((took[workers[0]], took[workers[1]]))
    for worker in workers:
        worker.close()
    ratio = median(ours[0] / theirs[0] for ours, theirs in taken)
    return ratio, median(ours[1] - theirs[1] for ours, theirs in taken), median(theirs[0] for _, theirs in taken)


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("commit", nargs="?", default="HEAD~1")
    parser.add_argument("--pairs", type=int, default=6)
    parser.add_argument("--turns", type=int, default=5)
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
                found = [pair(name, before, options.turns) for _ in range(options.pairs)]
                ratios = sorted(ratio for ratio, _, _ in found)
                more, whole = median(each[1] for each in found), median(each[2] for each in found)
                slower |= more > GOAL * whole
                print(
                    f"{name:<8} {median(ratios):.3f} ({ratios[0]:.3f} to {ratios[-1]:.3f}) x the time of {options.commit}; "
                    f"{1e3 * more:+.2f} ms a call, {more / whole:+.2%} of a long forward",
                    flush=True,
                )
        finally:
            subprocess.run(["git", "worktree", "remove", "--force", str(before)], cwd=HERE, check=True)
    return int(slower)


if __name__ == "__main__":
    sys.exit(main())
