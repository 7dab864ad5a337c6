"""Boundaries that cannot be right: an error with the numbers, whatever head the model has; or handled exactly. Never silence."""

from __future__ import annotations

import families
import pytest
import torch
from alone import Case, assert_equal, isolated, logits, reference, run

from patchwork.packing import BoundariesError, IsolationError

# Heads that hand boundaries on, heads that drop them, and one whose backbone has no parameters for them.
NAMES = [name for name in ("falcon_h1", "mamba", "mamba2", "rwkv", "lfm2", "recurrent_gemma") if name in families.names()]
ROW = Case().tokens
NUMBERS = torch.tensor([[0] * 7 + [1] * 5 + [2] * 9], dtype=torch.int32)
BAD = {
    "a document of no tokens": ({"cu_seq_lens_q": [0, 7, 7, 21]}, BoundariesError, "7 is followed by 7"),
    "boundaries that decrease": ({"cu_seq_lens_q": [0, 12, 7, 21]}, BoundariesError, "12 is followed by 7"),
    "longer than the row": ({"cu_seq_lens_q": [0, 7, 22]}, BoundariesError, "22, past the 21 tokens"),
    "not from 0": ({"cu_seq_lens_q": [3, 7, 21]}, BoundariesError, r"must start at 0, got \[3, 7, 21\]"),
    "floats": ({"cu_seq_lens_q": torch.tensor([0.0, 7.0, 21.0])}, BoundariesError, "must hold integers, got torch.float32"),
    "bools": ({"seq_idx": NUMBERS.bool()}, BoundariesError, "must hold integers, got torch.bool"),
    "numbers that decrease": ({"seq_idx": NUMBERS.flip(1)}, BoundariesError, "from 2 to 1 at token 9"),
    "numbers with a gap": ({"seq_idx": NUMBERS * 2}, BoundariesError, "from 0 to 2 at token 7"),
    "numbers for other tokens": ({"seq_idx": NUMBERS[:, :20]}, BoundariesError, r"\(1, 20\), the tokens \(1, 21\)"),
    "positions for other tokens": (
        {"position_ids": torch.tensor([[*range(7), *range(5), *range(8)]])},
        BoundariesError,
        r"shape \(1, 20\) restart .* the tokens are \(1, 21\)",
    ),
    "no values": ({"seq_idx": NUMBERS.to("meta")}, BoundariesError, "meta device and has no values, the tokens are on cpu"),
    "two that disagree": ({"seq_idx": NUMBERS, "cu_seq_lens_q": [0, 8, 12, 21]}, IsolationError, r"\[7, 5, 9\].*\[8, 4, 9\]"),
    "a limit that is too short": ({"seq_idx": NUMBERS, "max_length_q": 8}, IsolationError, "is 8, but a document has 9"),
}


@pytest.mark.parametrize("bad", BAD)
@pytest.mark.parametrize("name", NAMES)
def test_what_cannot_be_right_raises(name, bad):
    arguments, error, message = BAD[bad]
    given = {
        key: torch.tensor(value, dtype=torch.int32) if isinstance(value, list) else value for key, value in arguments.items()
    }
    with pytest.raises(error, match=message):
        logits(isolated(name), ROW, **given)


@pytest.mark.parametrize("name", NAMES)
def test_shorter_boundaries_leave_a_tail_that_is_kept_apart(name):
    case = Case(name, ((7, 5),), total=21)
    arguments = {"cu_seq_lens_q": torch.tensor([0, 7, 12], dtype=torch.int32)}
    assert_equal(run(isolated(name), case, **arguments), reference(case))


@pytest.mark.parametrize("dtype", [torch.int32, torch.int64])
@pytest.mark.parametrize("name", NAMES)
def test_cumulative_lengths_of_two_rows_are_exact(name, dtype):
    case = Case(name, ((7, 5, 9), (13, 8)))
    arguments = {"cu_seq_lens_q": torch.tensor([0, 7, 12, 21, 34, 42], dtype=dtype)}
    assert_equal(run(isolated(name), case, **arguments), reference(case))
    with pytest.raises(BoundariesError, match=r"tokens 12 to 34 spans two rows of 21"):
        logits(isolated(name), case.tokens, cu_seq_lens_q=torch.tensor([0, 7, 12, 34, 42], dtype=torch.int32))
