"""Two processes whose rows fall into different numbers of buckets train one model to the gradients of documents alone."""

from __future__ import annotations

import pytest
import ranks
import torch
from alone import GRADIENTS, limit


@pytest.mark.slow
def test_data_parallel_and_sharded_steps(tmp_path):
    torch.multiprocessing.spawn(ranks.step, (str(tmp_path),), nprocs=2)
    for rank in range(2):
        differences = torch.load(tmp_path / f"{rank}.pt")
        most = limit(GRADIENTS, differences.pop("nudged"))
        assert differences.pop("control") > 1e2 * most
        assert {name: value for name, value in differences.items() if value > most} == {}
