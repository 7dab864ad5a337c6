"""Patches by which a kernel reports the boundaries that it is called with."""

from __future__ import annotations

from patchwork import Case, Patch, at_start


def reporting(name: str, target: str, kernel: str, versions: dict[str, str]) -> Patch:
    report = f"from patchwork.packing.hooks import saw\nsaw({kernel!r}, locals())"
    before, after = f'def {kernel}(x, **kwargs):\n    """Doc."""\n', "    return x\n"
    return Patch(
        name=name,
        target=target,
        versions=versions,
        reason=(
            "Whether boundaries reach a kernel is seen by the kernel alone: what calls it may drop or rename them on the way. "
            "It reports its arguments to the packed call that it is in; in any other call that does nothing."
        ),
        edits=[at_start(report)],
        cases=[Case(before=before + after, after=before + "    " + report.replace("\n", "\n    ") + "\n" + after)],
    )
