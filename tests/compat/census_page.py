"""Writes docs/census.md from what `patchwork probe --all --json` found, stock and with patchwork, in some releases.

Writes the page, and ends with 1 where patchwork falls short. Neither torch nor transformers is needed.
"""

from __future__ import annotations

import argparse
import json
import re
import sys
from pathlib import Path
from typing import Any

from packaging.version import Version

from patchwork.commands.census import FALLS_SHORT, STATES, Finding, by_reason

BEGIN = """\
# Census of model types

Is packing exact for your model? Look for its `model_type` (of its `config.json`) below. All types of causal language models
that a release of transformers has are here, as it is and with `patchwork.apply()`. `make census` (`nox -s census`) made this
page: it installs each release, without kernels, and runs there

    patchwork probe --all --json --jobs 2 --stock
    patchwork probe --all --json --jobs 2

What runs is a tiny model of the type's default config, on the CPU, under sdpa where it can: documents of 7, 5 and 9 tokens,
and of 13, 1, 22, 2 and 15, alone and in one row with restarting `position_ids`. Outputs, gradients of all parameters and
the effect of each document on the others are compared; the limit of all errors is 1e-4. The same command measures the
transformers that you have (`--only TYPES`: some of them), and `patchwork probe MODEL` your own model.
"""
CELLS = """\
## Types
A cell holds stock → patchwork, or one word where both are the same; - is a release that has not got the type. The numbers
are those of the reasons below.
"""
REASONS = """\
## Reasons
Models whose reasons differ in nothing but their names share one, with … for the name.
"""

Found = dict[str, dict[str, dict[str, Finding]]]  # by release, by "stock" or "patchwork", by type


def read(reports: list[dict[str, Any]]) -> Found:
    """The findings of some reports, releases ascending."""
    found: Found = {}
    for report in sorted(reports, key=lambda each: Version(each["transformers"])):
        findings = [Finding(kind=told.pop("class"), **told) for told in (dict(each) for each in report["types"])]
        how = "stock" if report["how"] == "stock" else "patchwork"
        found.setdefault(report["transformers"], {})[how] = {finding.type: finding for finding in findings}
    return found


def page(found: Found) -> str:
    """docs/census.md."""
    types = sorted({kind for release in found.values() for how in release.values() for kind in how})
    reasons = numbered(found)
    heads = ["release", "", "types", *STATES]
    counts = [
        [release, how, str(len(of)), *(str(sum(each.state == state for each in of.values())) for state in STATES)]
        for release, hows in found.items()
        for how, of in sorted(hows.items(), reverse=True)
    ]
    rows = [[f"`{kind}`", *(cell(hows, kind, reasons) for hows in found.values())] for kind in types]
    return "\n".join(
        (
            BEGIN,
            table(heads, counts),
            "\n".join(f"* **{state}**: {meaning}." for state, meaning in STATES.items()) + "\n",
            CELLS,
            table(["type", *found], rows),
            REASONS,
            *_listed(found),
            "",
        )
    )


def numbered(found: Found) -> dict[str, int]:
    """The number of each reason, by its shape: of what is not isolated, nor just leaking in stock; by state."""
    return {shape: number for number, shape in enumerate(dict.fromkeys(each.shape for each in _with_reasons(found)), 1)}


def cell(hows: dict[str, dict[str, Finding]], kind: str, reasons: dict[str, int]) -> str:
    """What became of a type in a release."""
    if kind not in hows["stock"]:
        return "-"
    before, after = (_word(hows[how][kind], how, reasons) for how in ("stock", "patchwork"))
    return after if before == after else f"{before} → {after}"


def table(heads: list[str], rows: list[list[str]]) -> str:
    """A table of Markdown."""
    lines = [heads, ["---"] * len(heads), *rows]
    return "\n".join(f"| {' | '.join(line)} |" for line in lines) + "\n"


def _word(finding: Finding, how: str, reasons: dict[str, int]) -> str:
    return f"{finding.state} ({reasons[finding.shape]})" if _told(finding, how) else finding.state


def _told(finding: Finding, how: str) -> bool:
    return finding.state != "isolated" and not (finding.state == "leaking" and how == "stock")


def _with_reasons(found: Found) -> list[Finding]:
    told = [each for hows in found.values() for how, of in hows.items() for each in of.values() if _told(each, how)]
    return sorted(told, key=lambda finding: list(STATES).index(finding.state))


def _listed(found: Found) -> list[str]:
    """The lines of the reasons, as they are numbered."""
    groups = by_reason(_with_reasons(found))
    return [f"{number}. {_plain(reason)} ({group[0].state})" for number, (reason, group) in enumerate(groups.items(), 1)]


def _plain(text: str) -> str:
    """The first sentence of a reason, as Markdown shows it as it is. Upstream's further ones are advice."""
    return re.sub(r"([*_<`\[\]])", r"\\\1", re.split(r"(?<=[a-z)])\. ", text)[0].rstrip("."))


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--out", type=Path, required=True, help="the page")
    parser.add_argument("reports", nargs="+", type=Path, help="what the command printed")
    given = parser.parse_args()
    found = read([json.loads(path.read_text(encoding="utf-8")) for path in given.reports])
    given.out.write_text(page(found), encoding="utf-8")
    short = [
        f"{release}: {finding.type} {finding.state}: {finding.reason}"
        for release, hows in found.items()
        for finding in hows["patchwork"].values()
        if finding.state in FALLS_SHORT
    ]
    sys.exit("\n".join(short) or 0)


if __name__ == "__main__":
    main()
