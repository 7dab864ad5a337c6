"""What a program calls: patches are applied, previewed and taken out, in this process."""

from __future__ import annotations

import importlib
import importlib.metadata
import warnings
from collections.abc import Iterable

from .engine import transaction
from .engine.environment.installed import version_of
from .engine.errors import AnchorMissing, PatchError
from .engine.patch import Patch
from .engine.preview import Preview, preview
from .engine.report import Report
from .selection import all_patches, newest_tested, select, switched_off, tell_command


def apply(*selection: str | Patch, exclude: Iterable[str] = (), strict: bool = True) -> Report:
    """Apply patches to what is installed; call it before or after the libraries are imported.

    Args:
        selection: names, globs or Patch objects; none: every patch that fits what is installed.
        exclude: names or globs to leave out. The environment variable `PATCHWORK_DISABLE` (comma-separated) adds to it.
        strict: raise if any patch for an installed package fails, and change nothing; otherwise leave out the failed patch's
            whole set, apply the others and say so in the report.

    Returns:
        A Report with one Outcome a patch. Calling again changes nothing.

    Raises:
        PatchError: one of its kinds, naming the patch, its target, what was found instead and what to do.
    """
    if clash := old_tool_installed():
        warnings.warn(clash, stacklevel=2)
    patches = all_patches()
    chosen = select(selection, patches) if selection else patches
    off = switched_off(exclude, [*patches, *chosen])
    try:
        report = transaction.apply(chosen, strict=strict, switched_off=off, tested=newest_tested())
    except AnchorMissing as error:
        tell_last_match(error, chosen)
        raise
    for outcome in report:
        tell_last_match(outcome.error, chosen)
    return report


def previews(patches: Iterable[Patch], *, switches: bool = True) -> list[Preview]:
    """Patches on what is installed here, nothing applied; `switches`: those that the environment switches off are skipped."""
    chosen = tuple(patches)
    off = switched_off((), [*all_patches(), *chosen]) if switches else {}
    found = preview(chosen, switched_off=off, tested=newest_tested())
    for item in found:
        tell_last_match(item.outcome.error, chosen)
    return found


def tell_last_match(error: PatchError | None, patches: Iterable[Patch]) -> None:
    """Where an anchor missed in what is installed: fill in the last release that fits, if it is known without a network."""
    patch = next((patch for patch in patches if error is not None and patch.name == error.patch), None)
    if patch is None or not isinstance(error, AnchorMissing) or error.last_match:
        return
    from .releases.checking import last_match  # only here: it takes time, and nothing has failed yet elsewhere

    package = patch.module.partition(".")[0]
    installed, tested = version_of(package), newest_tested().get(package)
    tell_command(error, patch)
    error.last_match = last_match(patch, installed)
    if not error.last_match and tested and patch in importlib.import_module("patchwork.patches").PATCHES:
        error.last_match = f"{package} {tested}, the newest release that this patch was checked on"


def revert(*selection: str | Patch) -> Report:
    """Take patches out, all or some, and give the functions their original code back; returns what is left in force.

    Models that were isolated while the patches were in force stay isolated; `patchwork.packing.restore(model)` undoes that.
    """
    if not selection:
        return transaction.revert()
    return transaction.revert(patch.name for patch in select(selection, [*all_patches(), *transaction.applied_patches()]))


def status() -> Report:
    """The outcome of every patch applied in this process and not reverted, as things stand now."""
    return transaction.status()


def old_tool_installed() -> str:
    """What to do about the old deployment tool that has the same import name; "" where it is not installed."""
    try:
        version = importlib.metadata.version("patchwork")
    except importlib.metadata.PackageNotFoundError:
        return ""
    return (
        f"the distribution 'patchwork' {version} is installed: an old deployment tool whose files lie in the same folder as "
        "patchwork-packing's. Run: pip uninstall patchwork && pip install --force-reinstall --no-deps patchwork-packing"
    )
