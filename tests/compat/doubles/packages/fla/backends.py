"""The layer that the real package has between a caller and a kernel: other backends may take the call. Here none does."""

from __future__ import annotations

import functools


def dispatch(entry_point):
    """Above a function, or called with the name of an operation."""
    if isinstance(entry_point, str):
        return dispatch

    @functools.wraps(entry_point)
    def dispatched(*args, **kwargs):
        return entry_point(*args, **kwargs)

    return dispatched
