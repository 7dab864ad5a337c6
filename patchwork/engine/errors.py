"""What can go wrong with a patch: errors as values, each saying what, where, the nearest thing found and what to do next.

All derive from `PatchError`, and `PatchError` from `Exception` alone: importers swallow ImportError, AttributeError and
RuntimeError.
"""

from __future__ import annotations

from .holes import as_written


class PatchError(Exception):
    """Base of every refusal of the engine.

    Attributes:
        what: the failure in one sentence.
        patch: name of the patch concerned, or "".
        target: `module:qualname` of the function concerned, or "".
        file: file or release that was looked at, or "".
        where: lines or range in it, or "".
        nearest: the closest thing found, or "".
        hint: what to do next, or "".
    """

    def __init__(
        self, what: str, *, patch: str = "", target: str = "", where: str = "", nearest: str = "", hint: str = ""
    ) -> None:
        what, where, nearest, hint = (as_written(text) for text in (what, where, nearest, hint))
        super().__init__(what)
        self.what = what
        self.patch = patch
        self.target = target
        self.file = ""
        self.where = where
        self.nearest = nearest
        self.hint = hint

    def about(self, *, patch: str = "", target: str = "", file: str = "") -> PatchError:
        """Fill in the fields that the raising code could not know; returns self."""
        self.patch = self.patch or patch
        self.target = self.target or target
        self.file = self.file or ("" if self.where else file)
        return self

    def details(self) -> tuple[tuple[str, str], ...]:
        """Labels and texts of what is known beyond `what`, in the order in which they are told; empty texts are left out."""
        return (
            ("target", self.target),
            ("where", ", ".join(filter(None, (self.file, self.where)))),
            ("nearest", self.nearest),
            ("next", self.hint),
        )

    def __reduce__(self) -> tuple[object, ...]:
        # Exceptions pickle by their positional arguments alone; the fields must survive worker processes too.
        return (_rebuild, (type(self), self.__dict__.copy()))

    def __str__(self) -> str:
        lines = [f"{self.patch}: {self.what}" if self.patch else self.what]
        for label, text in self.details():
            if text:
                first, *rest = text.splitlines()
                lines.append(f"  {label}: {first}")
                lines.extend(f"    {line}" for line in rest)
        return "\n".join(lines)


def _rebuild(kind: type[PatchError], fields: dict[str, str]) -> PatchError:
    error = kind(fields["what"])
    error.__dict__.update(fields)
    return error


class InvalidPatch(PatchError):
    """The patch itself is wrong: a pattern that is not Python, a hole never captured, a bad version range or target."""


class UnknownPatch(PatchError):
    """A selection names no patch."""


class AnchorMissing(PatchError):
    """A required anchor matches nowhere in the target.

    Attributes:
        diff: from the pattern to the nearest code, or "".
        moved_to: functions of the module, with lines, where it does match.
        fixed_upstream: what in the target looks as if the release had made the change itself, or "".
        command: what shows which releases the patch fits, or "".
        last_match: the last release before this one where the patch fits, or "" where none was looked at.
    """

    diff: str = ""
    moved_to: tuple[str, ...] = ()
    fixed_upstream: str = ""
    last_match: str = ""
    command: str = ""

    def details(self) -> tuple[tuple[str, str], ...]:
        """As for any error, with what is known about the near miss."""
        target, where, nearest, hint = super().details()
        return (
            target,
            where,
            nearest,
            ("diff", self.diff),
            ("moved to", "\n".join(self.moved_to)),
            ("fixed upstream?", self.fixed_upstream),
            ("last match", self.last_match),
            hint,
            ("then", f"`{self.command}`" if self.command else ""),
        )


class AnchorMoved(AnchorMissing):
    """A required anchor does not match in the target, but does in another function of the module."""


class UnaccountedUse(PatchError):
    """A completeness guard found a use that no anchor of the patch accounts for."""


class CaptureRebound(PatchError):
    """A captured name is bound again between its capture and the place where the edit would use it."""


class AnchorAmbiguous(PatchError):
    """An anchor matches more often than it may."""


class PatchConflict(PatchError):
    """Two edits touch the same code."""


class PartlyNative(PatchError):
    """`fixed_when` matches although required anchors still do: the release is half repaired."""


class InvalidResult(PatchError):
    """An edit would not give the Python that it describes."""


class ForeignPatch(PatchError):
    """Somebody else replaced the target, or wrapped it, before."""


class SourceMismatch(PatchError):
    """The running code was not made from the source that is on disk."""


class SourceUnavailable(PatchError):
    """There is no Python source to rewrite."""


class TargetMissing(PatchError):
    """The module or function that a patch names does not exist."""


class MissingName(PatchError):
    """Inserted code loads a name that the module does not have."""


class Unswappable(PatchError):
    """The new code cannot take the place of the old in a living function."""


class UnknownRelease(PatchError):
    """What a patch is to be checked against does not exist: a release, a wheel, a folder, or a range that names none."""


class ReleaseUnavailable(PatchError):
    """A release exists or may exist, but its sources cannot be had: no network, no pip, a damaged wheel."""


class InvalidMatrix(PatchError):
    """The matrix file is wrong; `where` gives its path and line."""


class BrokenDependency(PatchError):
    """The target cannot be imported here because another package that it needs is missing or broken: no drift."""


class CaseFails(PatchError):
    """A case that travels with a patch does not hold."""
