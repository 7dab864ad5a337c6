"""What happened: one outcome a patch, as values. Text is made where it is shown."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator
from dataclasses import asdict, dataclass

from .errors import PatchError

STATES = ("applied", "native", "pending", "skipped", "absent", "failed")
# Of patches for other releases, for packages that are not installed, or that are switched off.
_ELSEWHERE = ("skipped", "absent")


@dataclass(frozen=True)
class Outcome:
    """What became of one patch.

    Attributes:
        patch: its name.
        target: `module:qualname`.
        state: `applied`, `native` (the release has it already), `pending` (previewed; swapped when the module is imported),
            `skipped` (version or switch), `absent` (package not installed), `failed`.
        detail: why, in a sentence; "" where there is nothing to add.
        edits: the changes, as `action at line N`.
        error: the error of a failed patch.
    """

    patch: str
    target: str
    state: str
    detail: str = ""
    edits: tuple[str, ...] = ()
    error: PatchError | None = None

    def as_dict(self) -> dict[str, object]:
        """Plain values, for JSON."""
        values = asdict(self)
        values["error"] = None if self.error is None else str(self.error)
        values["edits"] = list(self.edits)
        return values


@dataclass(frozen=True)
class Report:
    """The outcomes of one call, in the order of the patches."""

    outcomes: tuple[Outcome, ...] = ()

    def __iter__(self) -> Iterator[Outcome]:
        return iter(self.outcomes)

    def __len__(self) -> int:
        return len(self.outcomes)

    def __getitem__(self, name: str) -> Outcome:
        """The outcome of the patch `name`; KeyError if the report has none."""
        for outcome in self.outcomes:
            if outcome.patch == name:
                return outcome
        raise KeyError(name)

    @property
    def ok(self) -> bool:
        """Whether no patch failed."""
        return all(outcome.state != "failed" for outcome in self.outcomes)

    def as_dict(self) -> dict[str, object]:
        """Plain values, for JSON."""
        return {"ok": self.ok, "outcomes": [outcome.as_dict() for outcome in self.outcomes]}

    def __str__(self) -> str:
        """Failures first, then what else concerns the installed packages, a line each; the others are counted.

        Where no patch concerns them, each has its line, which says why.
        """
        concerned = [outcome for outcome in self.outcomes if outcome.state not in _ELSEWHERE]
        shown = sorted(concerned or self.outcomes, key=lambda outcome: outcome.state != "failed")
        width = max((len(outcome.patch) for outcome in shown), default=0)
        lines = [f"{outcome.patch:<{width}}  {outcome.state:<8} {outcome.detail}".rstrip() for outcome in shown]
        if counts := Counter(outcome.state for outcome in self.outcomes if outcome not in shown):
            states = ", ".join(f"{count} {state}" for state, count in counts.items())
            lines.append(f"({counts.total()} more do not concern what is installed: {states})")
        return "\n".join(lines) or "no patches"
