"""What a report prints: failures first, what concerns the installed packages, and a count of the rest."""

from __future__ import annotations

from patchwork import Outcome, Report


def outcome(patch: str, state: str, detail: str = "") -> Outcome:
    return Outcome(patch, "lib.core:f", state, detail)


def test_failures_come_first_and_what_is_for_others_is_counted() -> None:
    report = Report(
        (
            outcome("a.one", "applied"),
            outcome("a.two", "skipped", "for lib >=2"),
            outcome("b.long_name", "native", "line 3"),
            outcome("c.bad", "failed", "anchor not found"),
            outcome("d", "absent", "lib is not installed"),
            outcome("e", "skipped", "for lib >=2"),
        )
    )
    assert str(report).splitlines() == [
        "c.bad        failed   anchor not found",
        "a.one        applied",
        "b.long_name  native   line 3",
        "(3 more do not concern what is installed: 2 skipped, 1 absent)",
    ]
    assert [each.patch for each in report] == ["a.one", "a.two", "b.long_name", "c.bad", "d", "e"]


def test_where_nothing_else_is_there_each_line_says_why() -> None:
    assert str(Report((outcome("a", "skipped", "for lib >=2"),))) == "a  skipped  for lib >=2"
    assert str(Report()) == "no patches"
