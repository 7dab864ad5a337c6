"""docs/families.md holds what its last run measured, and speaks of the families, mixers and releases that there are."""

from __future__ import annotations

import re
import sys
import zipfile
from pathlib import Path

import pytest
import yaml

from patchwork.packing.models.families import FAMILIES, Family
from patchwork.packing.models.mixers import MIXERS

ROOT = Path(__file__).parents[1]
sys.path.insert(0, str(ROOT / "tests" / "compat"))
import families_page  # noqa: E402

PAGE = (ROOT / "docs" / "families.md").read_text(encoding="utf-8")
RECURRENT = [family.name for family in FAMILIES if family.recurrent]
LISTED = yaml.safe_load((ROOT / "compat_matrix.yaml").read_text(encoding="utf-8"))["packages"]["transformers"]["releases"]
ERROR = r"\d+\.\d+(?:\.\d+)?: (\S+) / (\S+?)(?=<br>| \|)"


def rows() -> dict[str, str]:
    """The line of each family."""
    return dict(re.findall(r"^\| `(\w+)` (\|.*)$", PAGE, re.MULTILINE))


def releases(row: str) -> list[str]:
    return re.findall(r"(\d+\.\d+\.\d+): ", row)


def test_each_recurrent_family_has_one_line() -> None:
    assert sorted(re.findall(r"^\| `(\w+)` \| [^|]*\| \d", PAGE, re.MULTILINE)) == sorted(RECURRENT)


def test_every_release_is_a_listed_one_and_the_newest_is_the_last() -> None:
    for name in RECURRENT:
        named = releases(rows()[name])
        assert set(named) <= set(LISTED), name
        assert named == sorted(named, key=LISTED.index), name
        assert named[-1] == LISTED[-1], f"{name} was not measured on the newest listed release: make families"


def test_every_error_is_below_the_limit() -> None:
    for name in RECURRENT:
        errors = re.findall(ERROR, rows()[name])
        assert len(errors) == len(releases(rows()[name]))
        assert all(float(value) <= 1e-4 for pair in errors for value in pair), name


def test_every_recurrent_mixer_is_named_with_the_releases_of_its_native_way_and_why_not_in_others() -> None:
    closed = [line for line in PAGE.split("path is left closed")[1].splitlines() if line.startswith("|")]
    for mixer in MIXERS:
        if mixer.attention:
            continue
        row = rows()[mixer.family]
        assert f"`{mixer.name}`" in row
        assert families_page.native(mixer, releases(row)[0]) in row
        said = [line for line in closed if f"`{mixer.name}`" in line]
        assert [mixer.closed in line for line in said] == [True] * bool(mixer.closed), mixer.name


def test_attention_is_a_mixer_where_it_is_listed_as_one_for_good() -> None:
    for name in RECURRENT:
        entries = [mixer for mixer in MIXERS if name == mixer.family and mixer.attention]
        said = rows()[name].split("|")[-2]
        assert ("as a mixer" in said) == bool(entries) or name == "glm5_next", name
        assert ("no flash" in said) == (not family(name).flash), name


def family(name: str) -> Family:
    return next(each for each in FAMILIES if each.name == name)


@pytest.mark.parametrize(
    ("having", "expected"),
    [(["1"], ("1",)), (["1", "2"], ("1", "2")), (["1", "2", "3"], ("1", "2", "3")), (["2", "3", "4", "5"], ("2", "4", "5"))],
)
def test_first_middle_and_newest_are_read_from_the_wheels(having, expected, tmp_path) -> None:
    held = {}
    for release in "12345":
        held[release] = tmp_path / f"{release}.whl"
        with zipfile.ZipFile(held[release], "w") as wheel:
            for name in RECURRENT if release in having else []:
                wheel.writestr(f"transformers/models/{name}/modeling_{name}.py", "")
    assert set(families_page.releases(held).values()) == {expected}
