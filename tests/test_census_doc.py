"""docs/census.md holds what its last run found: releases that are listed, all types, and no packed row that is not exact."""

from __future__ import annotations

import re
import sys
from collections import Counter
from pathlib import Path

import yaml

from patchwork.commands.census import FALLS_SHORT, STATES, Finding

ROOT = Path(__file__).parents[1]
sys.path.insert(0, str(ROOT / "tests" / "compat"))
import census_page  # noqa: E402

PAGE = (ROOT / "docs" / "census.md").read_text(encoding="utf-8")
LISTED = yaml.safe_load((ROOT / "compat_matrix.yaml").read_text(encoding="utf-8"))["packages"]["transformers"]["releases"]


def cells(line: str) -> list[str]:
    return [cell.strip() for cell in line.strip("|").split("|")]


def counts() -> dict[tuple[str, str], list[int]]:
    """By release and "stock" or "patchwork", how many types there are, and in each state."""
    rows = [cells(line) for line in PAGE.splitlines() if re.match(r"\| \d", line)]
    return {(release, how): list(map(int, numbers)) for release, how, *numbers in rows}


def rows() -> dict[str, list[str]]:
    """By type, what is said of it in each release."""
    return {name.strip("`"): said for name, *said in (cells(line) for line in PAGE.splitlines() if line.startswith("| `"))}


def test_the_releases_are_listed_ones_ascending_and_the_newest_is_the_last() -> None:
    releases = list(dict.fromkeys(release for release, _ in counts()))
    assert releases == sorted(releases, key=LISTED.index)
    assert releases[-1] == LISTED[-1], "make census"
    assert f"| type | {' | '.join(releases)} |" in PAGE


def test_the_counts_are_those_of_the_rows() -> None:
    for number, release in enumerate(dict.fromkeys(release for release, _ in counts())):
        said = [row[number].split(" → ") for row in rows().values() if row[number] != "-"]
        for how, at in (("stock", 0), ("patchwork", -1)):
            found = Counter(each[at].split(" ")[0] for each in said)
            assert counts()[release, how] == [len(said), *(found[state] for state in STATES)]


def test_nothing_leaks_or_fails_with_patchwork() -> None:
    short = {name: row for name, row in rows().items() for cell in row if cell.split(" → ")[-1].startswith(FALLS_SHORT)}
    assert short == {}


def test_each_number_of_a_row_is_that_of_a_reason_of_its_state() -> None:
    reasons = dict(re.findall(r"^(\d+)\. .+ \((\w+)\)$", PAGE, re.MULTILINE))
    used = [found for row in rows().values() for cell in row for found in re.findall(r"(\w+) \((\d+)\)", cell)]
    assert used
    assert {number: state for state, number in used} == reasons


def test_a_page_is_made_of_reports() -> None:
    types = [
        [Finding("opt", "OPT", "leaking", "by 1").as_dict(), Finding("t5", "T5", "leaking", "by 2").as_dict()],
        [Finding("opt", "OPT", "isolated").as_dict(), Finding("t5", "T5", "refused", "an *encoder*").as_dict()],
    ]
    hows = list(zip(("stock", "patchwork.apply()"), types, strict=True))
    reports = [{"transformers": "5.9.0", "how": how, "types": of} for how, of in hows]
    reports += [{"transformers": "5.10.0", "how": how, "types": of[:1]} for how, of in hows]
    page = census_page.page(census_page.read(reports[::-1]))
    assert "| `opt` | leaking → isolated | leaking → isolated |\n| `t5` | leaking → refused (1) | - |" in page
    assert "| 5.9.0 | patchwork | 2 | 1 | 1 | 0 | 0 | 0 | 0 |\n| 5.10.0 | stock | 1 | 0 | 0 | 1 | 0 | 0 | 0 |" in page
    assert page.endswith("\n1. an \\*encoder\\* (refused)\n")
