"""Errors and warnings of packing. PackingRefused is beside the decision that it holds: patchwork.packing.decision."""

from __future__ import annotations


class BoundariesError(ValueError):
    """A description of documents that cannot be right; the message names the argument, the numbers and the way out."""


class IsolationError(Exception):
    """Documents of a packed row cannot be kept apart here, or two descriptions of them contradict each other.

    Not a RuntimeError: importers and trainers swallow those.
    """


class PackingWarning(UserWarning):
    """Packing goes on, or is left out, in a way that its user should know of."""


class ProbeError(Exception):
    """A model cannot be found, or not be built small. The message says what to do instead."""


class Unresolved(Exception):
    """What would be loaded cannot be told; the message says why, and what to do."""
