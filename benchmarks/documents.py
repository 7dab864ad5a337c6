"""The documents that the benchmarks of packing run on, and how they fill rows.

Docstrings are those of the standard library, a token a byte, documents of more than 1,024 tokens cut, as in the demo. Rows are
filled best fit decreasing, as TRL's "bfd" does, and every so many of them are run.
"""

from __future__ import annotations

import random
import statistics
from collections.abc import Iterator
from dataclasses import dataclass

from patchwork.commands.demo_data import standard_library_docstrings

TOKENS, ROWS = 2048, 5
LONGEST_DOCSTRING = 1024


@dataclass(frozen=True)
class Mix:
    """Rows of document lengths, and how fast they have to run: at least so many times stock; 0 is no goal."""

    name: str
    rows: list[list[int]]
    goal: float = 0.0

    def __str__(self) -> str:
        return f"{self.name} ({len(self.lengths)} documents)"

    @property
    def lengths(self) -> list[int]:
        return [length for row in self.rows for length in row]


def docstring_lengths() -> list[int]:
    """In tokens: a byte is one, and so is the end of a document."""
    return [min(len(text.encode()) + 1, LONGEST_DOCSTRING) for text in standard_library_docstrings(300_000)]


def log_normal_lengths(median: float, spread: float, number: int = 1000) -> list[int]:
    """Many short ones and few long ones, as in data of chats; the logarithm has this standard deviation. None exceeds a row."""
    chance = random.Random(0)
    return [min(max(2, round(median * chance.lognormvariate(0, spread))), TOKENS) for _ in range(number)]


def stretched(lengths: list[int], mean: float) -> list[int]:
    """Lengths of the same shape with about this mean, none longer than a row."""
    low, high = 0.0, 100.0
    for _ in range(40):
        factor = (low + high) / 2
        made = [min(max(1, round(factor * length)), TOKENS) for length in lengths]
        low, high = (factor, high) if statistics.mean(made) < mean else (low, factor)
    return made


def sampled(lengths: list[int]) -> list[list[int]]:
    """Some of the rows that the documents fill: from the middle of equal parts of all, since those of long documents come
    first, those of short ones last."""
    rows = _packed(lengths)
    return [rows[(2 * number + 1) * len(rows) // (2 * ROWS)] for number in range(ROWS)]


def _packed(lengths: list[int]) -> list[list[int]]:
    """Best fit decreasing: each document goes to the fullest row that still has room."""
    rows: list[list[int]] = []
    for length in sorted(lengths, reverse=True):
        fitting = [row for row in rows if sum(row) + length <= TOKENS]
        if fitting:
            max(fitting, key=sum).append(length)
        else:
            rows.append([length])
    return rows


def batches(rows: list[list[int]]) -> Iterator[list[tuple[int, int]]]:
    """The documents of rows as a trainer takes them without packing: in a shuffled order, as many to a batch as a row holds on
    average, so that a step sees as much text either way. Of each document: its row, and its place there."""
    places = [(row, place) for row, lengths in enumerate(rows) for place in range(len(lengths))]
    random.Random(0).shuffle(places)
    size = round(len(places) / len(rows))
    for begin in range(0, len(places), size):
        yield places[begin : begin + size]


def described(name: str, lengths: list[int]) -> str:
    short = sum(length < 64 for length in lengths) / len(lengths)
    return f"{name}: {len(lengths)} documents, mean {statistics.mean(lengths):.0f} tokens, {short:.0%} under 64"
