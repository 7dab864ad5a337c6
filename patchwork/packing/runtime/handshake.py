"""Checks that the kernels of a mixer received the boundaries of the packed call that it is in.

Source patches let each kernel report its own arguments, after whatever filtered them on the way. Both halves of a mixer,
convolution and scan, must have reported: either alone leaks.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from .call_scope import AMBIENT, NATIVE, Scope


def saw(name: str, arguments: Mapping[str, Any]) -> None:
    """Called by a kernel as it begins, with its arguments by name.

    Does nothing but within a mixer that counts on the kernel. Raises IsolationError where the boundaries did not arrive,
    or are not those of the call.
    """
    scope = AMBIENT.scope
    if scope is None or scope.extent != NATIVE:
        return
    from ..errors import IsolationError
    from ..models.kernels import KERNELS, SEQ_IDX, titled

    argument = KERNELS[name].argument
    expected = scope.boundaries.seq_idx if argument == SEQ_IDX else scope.boundaries.cu_seqlens
    given = arguments.get(argument)
    if given is None:
        raise IsolationError(
            f"{scope.module}: {name} was called in a packed call without {argument}, so documents would leak: something between "
            f"the mixer and {titled(KERNELS[name])} dropped it; isolate(model, native=False) runs documents side by side instead"
        )
    # Identity first: comparing values waits for the device.
    if given is not expected and not (given.shape == expected.shape and bool((given == expected).all())):
        raise IsolationError(
            f"{scope.module}: {titled(KERNELS[name])} was called with a {argument} of shape {tuple(given.shape)} that is not the "
            f"packed call's ({tuple(expected.shape)}): isolate(model, native=False) runs documents side by side instead"
        )
    scope.seen.append(name)


def confirm(scope: Scope, states: set[str]) -> None:
    """After a native mixer's forward: raises IsolationError if a state was reset by no kernel that reported."""
    from ..errors import IsolationError
    from ..models.kernels import KERNELS

    left = states.difference(*(KERNELS[name].resets for name in scope.seen))
    if left:
        seen = ", ".join(scope.seen) or "none"
        raise IsolationError(
            f"{scope.module}: its kernels were to keep documents apart, but none for the {' and the '.join(sorted(left))} "
            f"reported (seen: {seen}): another implementation ran (kernelize, compile, export?), so documents would leak; "
            "isolate(model, native=False) runs documents side by side instead"
        )
