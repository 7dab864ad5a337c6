"""What the matrix file may say, what is wrong with it and in which line, and how an update is spliced into it."""

from __future__ import annotations

from pathlib import Path

import pytest
from packaging.version import Version

from patchwork.engine.errors import InvalidMatrix
from patchwork.engine.patch import Patch, required
from patchwork.patches import PATCHES
from patchwork.releases import expectations, updating


def patch(name: str, package: str = "lib", **versions: str) -> Patch:
    return Patch(name=name, target=f"{package}.core:f", versions=versions, edits=[required("a()").replace("b()")])


PACK = [patch("lib.one"), patch("lib.two")]
GOOD = """\
# The file's head.
packages:
  lib:
    # Why these.
    releases:
      - 1.0.0
      - 1.1.0  # the odd one
      - 2.0.0

expected:
  # About the first.
  lib.one: {applied: ">=1.0"}  # behind it
  lib.two: {absent: "<1.1", applied: ">=1.1,<2", native: [">=2"]}

cells:
  - {python: "3.11", torch: 2.13.0, lib: 1.1.0, also: ["x<1"]}
"""


def parse(text: str, known: list[Patch] = PACK, complete: bool = True) -> expectations.Matrix:
    return expectations.parse(Path("m.yaml"), text, known, complete=complete)


def refused(old: str, new: str) -> InvalidMatrix:
    """The error for the good file with one change."""
    assert old in GOOD
    with pytest.raises(InvalidMatrix) as caught:
        parse(GOOD.replace(old, new, 1))
    return caught.value


def test_the_file_of_this_repository_covers_every_built_in_patch_on_every_release() -> None:
    path = Path(__file__).parents[2] / "compat_matrix.yaml"
    found = expectations.read(path, PATCHES)
    # No wheels, so no releases to hold their patches against; and those of peft anchor on nothing but a method's start.
    left_out = ("causal_conv1d", "mamba_ssm", "peft")
    listed = tuple(patch for patch in PATCHES if patch.module.partition(".")[0] not in left_out)
    assert list(found.expected) == [patch.name for patch in listed]
    assert found.patches == listed
    assert all(entry.at(item.version) for entry in found.expected.values() for item in found.releases[entry.package])
    assert len(found.cells) >= 4


def test_values_have_their_lines() -> None:
    found = parse(GOOD)
    assert [(item.text, item.line) for item in found.releases["lib"]] == [("1.0.0", 6), ("1.1.0", 7), ("2.0.0", 8)]
    native = found.expected["lib.two"].at(Version("2.5"))
    assert native == expectations.Range("native", ">=2", 13)
    assert found.cells == ({"python": "3.11", "torch": "2.13.0", "lib": "1.1.0"},)


@pytest.mark.parametrize(
    ("old", "new", "line", "says"),
    [
        ("  lib:\n", "  lib: [\n", 6, "this is not YAML"),
        ("      - 1.1.0", "\t- 1.1.0", 7, "this is not YAML"),
        ("# The file's head.", "# \x07", 1, "this is not YAML"),
        ("cells:", "cell:", 15, "the file has an unknown key: cell"),
        ("    releases:", "    release:", 5, "package lib has an unknown key: release"),
        ("python: ", "pyton: ", 16, "a cell has an unknown package or key: pyton"),
        ("lib: 1.1.0", "bil: 1.1.0", 16, "a cell has an unknown package or key: bil"),
        ("lib.one", "lib.oen", 12, "no patch is called 'lib.oen'"),
        ('  lib.one: {applied: ">=1.0"}  # behind it\n', "", 10, "nothing is expected of the patch lib.one"),
        (">=1.1,<2", ">=1.1", 13, "lib.two: applied '>=1.1' and native '>=2' overlap"),
        (">=1.1,<2", ">=1.1,<2.0.1", 13, "lib.two: applied '>=1.1,<2.0.1' and native '>=2' overlap"),
        ("<1.1", "<1", 13, "nothing is expected of lib.two on lib 1.0.0"),
        (">=1.1,<2", "1.1 to 2", 13, "lib.two: '1.1 to 2' is no version range"),
        ("native", "nativ", 13, "lib.two: 'nativ' is no state"),
        ("native", "failed", 13, "lib.two: 'failed' is no state"),
        ("  lib:\n", "  bil:\n", 12, "lib.one is for a package that is not listed: lib"),
        ("- 2.0.0", "- 1.1", 8, "1.1 is a number to YAML"),
        ("- 2.0.0", '- "1.1"', 8, "lib 1.1 is listed twice"),
        ("- 2.0.0", "- 1.0.5", 8, "lib 1.0.5 is out of order"),
        ("- 2.0.0", "- newest", 8, "'newest' is not a version"),
        ("lib.two", "lib.one", 13, "lib.one stands twice in `expected`"),
        ("packages:\n", "packages:\n  lib: {releases: [1.0.0]}\n", 4, "lib stands twice in `packages`"),
        ('native: [">=2"]', 'native: ">=2", native: ">=3"', 13, "native stands twice in lib.two"),
        ("lib: 1.1.0", "lib: 1.1.1", 16, "a cell names lib 1.1.1, which is not listed"),
        ('python: "3.11", ', "", 16, "a cell does not say which Python it runs on"),
        ('{applied: ">=1.0"}', '">=1.0"', 12, "lib.one has to be a mapping"),
        ('{applied: ">=1.0"}', "{applied: }", 12, "a range has to be a text"),
        ('one: {applied: ">=1.0"}', 'one: &x {applied: ">=1.0"}\n  lib.three: *x', 13, "an alias (*x) is not understood"),
        ("cells:", "---\ncells:", 15, "this is not YAML"),
    ],
)
def test_what_is_wrong_is_named_with_its_line(old: str, new: str, line: int, says: str) -> None:
    error = refused(old, new)
    assert error.where == f"m.yaml:{line}", error
    assert error.what.startswith(says)


def test_an_error_names_the_nearest_and_the_other_place() -> None:
    assert refused("lib.one", "lib.oen").nearest.startswith("lib.one")
    assert refused("native", "nativ").nearest == "native"
    assert refused("- 2.0.0", '- "1.1"').nearest == "line 7"
    assert "2.0.0 is in both; the first is in line 13" in refused(">=1.1,<2", ">=1.1,<=2.0").nearest
    assert refused("lib: 1.1.0", "lib: 1.1.1").nearest.startswith("1.1.0")
    assert refused("- 2.0.0", "- 2.1").hint == 'put it in quotes: "2.1"'


def test_ranges_that_overlap_between_two_releases_are_found() -> None:
    between = GOOD.replace('applied: ">=1.1,<2", native: [">=2"]', 'applied: ">=1.1,<1.9,!=1.5", native: [">1.5"]')
    with pytest.raises(InvalidMatrix, match="overlap"):
        parse(between)


@pytest.mark.parametrize("data", [None, b"", b"\xff", b"- a", b"packages: {}", b"expected: {}", b"packages:\nexpected: {}"])
def test_a_file_that_is_none(tmp_path: Path, data: bytes | None) -> None:
    path = tmp_path / "m.yaml"
    if data is not None:
        path.write_bytes(data)
    with pytest.raises(InvalidMatrix) as caught:
        expectations.read(path, PACK)
    assert caught.value.where == (str(path) if data is None else f"{path}:1")


def test_a_patch_of_a_package_that_the_file_does_not_list_is_no_concern_of_it() -> None:
    foreign = patch("other.one", "other")
    assert list(parse(GOOD, [foreign, *PACK]).expected) == ["lib.one", "lib.two"]
    assert parse(GOOD, [foreign, *PACK]).patches == tuple(PACK)
    empty = "packages: {lib: {releases: [1.0.0]}}\nexpected: {}\n"
    assert list(parse(empty, [*PACK, foreign], complete=False).expected) == ["lib.one", "lib.two"]
    with pytest.raises(InvalidMatrix, match=r"nothing is expected of the patch lib\.three"):
        parse(GOOD, [foreign, *PACK, patch("lib.three")])
    with pytest.raises(InvalidMatrix, match=r"other\.one is for a package that is not listed: other"):
        parse(GOOD.replace("cells:", '  other.one: {applied: ">=1"}\ncells:'), [foreign, *PACK])


def chosen(folder: Path, items: str, entries: str = 'mine.a: {applied: ">=1"}') -> expectations.Matrix:
    """A matrix file that says which patches it is about, read in its folder."""
    text = f"packages: {{lib: {{releases: [1.0.0]}}}}\npatches:\n{items}expected:\n  {entries}\n"
    return expectations.parse(folder / "m.yaml", text, PACK)


MINE = """\
from patchwork import Patch, required
PATCHES = [Patch(name=name, target="lib.core:f", edits=[required("a()").replace(new)]) for name, new in %s]
"""


def test_a_file_may_name_the_patches_that_it_is_about(tmp_path: Path) -> None:
    (tmp_path / "mine.py").write_text(MINE % '[("mine.a", "b()"), ("mine.b", "c()")]')
    both = 'mine.a: {applied: ">=1"}\n  mine.b: {applied: ">=1"}'
    found = chosen(tmp_path, "- mine.py\n", both)
    assert [patch.name for patch in found.patches] == ["mine.a", "mine.b"]
    assert list(chosen(tmp_path, "- mine.py::*.a\n").expected) == ["mine.a"]
    for entries, where, says in (
        ('mine.a: {applied: ">=1"}', 4, "nothing is expected of the patch mine.b"),
        (f'{both}\n  lib.one: {{applied: ">=1"}}', 7, "no patch that `patches` names is called 'lib.one'"),
    ):
        with pytest.raises(InvalidMatrix) as caught:
            chosen(tmp_path, "- mine.py\n", entries)
        assert (caught.value.what, caught.value.where) == (says, f"{tmp_path}/m.yaml:{where}")


@pytest.mark.parametrize(
    ("items", "line", "says"),
    [
        ("- mine.py\n- their.py\n", 4, "`patches`: the file of patches cannot be run: FileNotFoundError"),
        ("- mine.py\n- nonsense.*\n", 4, "`patches`: no patch is called 'nonsense.*'"),
        ("- mine.py\n- again.py\n", 4, "`patches`: two patches are called mine.a"),
        ("- transformers.*\n", 3, " is for a package that is not listed: transformers"),
        ("- [mine.py]\n", 3, "a patch has to be a text"),
        ("  []\n", 3, "`patches` names none"),
    ],
)
def test_what_is_wrong_with_the_named_patches(tmp_path: Path, items: str, line: int, says: str) -> None:
    (tmp_path / "mine.py").write_text(MINE % '[("mine.a", "b()")]')
    (tmp_path / "again.py").write_text(MINE % '[("mine.a", "c()")]')
    with pytest.raises(InvalidMatrix) as caught:
        chosen(tmp_path, items)
    assert says in caught.value.what
    assert caught.value.where.startswith(f"{tmp_path}/m.yaml:{line}")


def test_a_fault_in_a_file_of_patches_is_told_with_both_lines(tmp_path: Path) -> None:
    (tmp_path / "mine.py").write_text("one = 1\nnothing()\n")
    with pytest.raises(InvalidMatrix) as caught:
        chosen(tmp_path, "- mine.py\n")
    assert caught.value.where == f"{tmp_path}/m.yaml:3 ({tmp_path}/mine.py:2)"


def test_a_package_is_found_by_its_distribution_too() -> None:
    sklearn = patch("a.b", "sklearn", **{"scikit-learn": ">=1", "numpy": ">=1"})
    assert expectations.package_of(sklearn, ["lib", "Scikit_Learn"]) == "Scikit_Learn"
    assert expectations.package_of(sklearn, ["scikit-learn", "sklearn"]) == "sklearn"
    assert expectations.package_of(sklearn, ["lib"]) is None


def test_a_condition_on_another_package_does_not_make_a_patch_one_of_that() -> None:
    assert expectations.package_of(patch("a.b", lib=">=1", torch=">=2"), ["torch"]) is None


def test_a_patch_without_versions_is_told_to_name_its_distribution() -> None:
    text = 'packages: {attrs: {releases: ["23.1"]}}\nexpected:\n  a.b: {applied: ">=1"}\n'
    with pytest.raises(InvalidMatrix, match="not listed: attr") as caught:
        parse(text, [patch("a.b", "attr")])
    assert caught.value.hint.endswith("write that name into the patch's `versions`")
    assert list(parse(text, [patch("a.b", "attr", attrs=">=1")]).expected) == ["a.b"]


def test_an_update_leaves_all_but_its_entries() -> None:
    new = updating.updated(
        parse(GOOD),
        expected={"lib.two": {"applied": [">=1.0.0,<2.0.0", ">=3"], "native": [">=2.0.0,<3"]}},
        added={"lib": ["3.0.0", "3.1"]},
        replaced={"lib": {"1.1.0": "1.1.2"}},
    )
    assert new == GOOD.replace(
        '{absent: "<1.1", applied: ">=1.1,<2", native: [">=2"]}',
        '{applied: [">=1.0.0,<2.0.0", ">=3"], native: ">=2.0.0,<3"}',
    ).replace("1.1.0", "1.1.2").replace("- 2.0.0\n", '- 2.0.0\n      - 3.0.0\n      - "3.1"\n')
    assert parse(new).expected["lib.two"].at(Version("3.1")) == expectations.Range("applied", ">=3", 15)


def test_an_update_of_nothing_changes_no_byte() -> None:
    assert updating.updated(parse(GOOD)) == GOOD


BLOCK = """\
packages:
  lib:
    releases: [1.0.0, 2.0.0]
expected:
  lib.two:
    applied: ">=1.0"   # why
  # The next one.
  lib.one:
    absent:
    - "<2"
    applied:
    - ">=2"
    # the end
"""


@pytest.mark.parametrize("newline", ["\n", "\r\n"])
def test_block_style_and_line_ends_stay(newline: str) -> None:
    text = BLOCK.replace("\n", newline)
    new = updating.updated(
        parse(text),
        expected={"lib.two": {"native": [">=1"]}, "lib.one": {"absent": ["<1"], "applied": [">=1"]}},
        added={"lib": ["3.0.0"]},
    )
    assert new == BLOCK.replace('applied: ">=1.0"   #', 'native: ">=1"   #').replace("2.0.0]", "2.0.0, 3.0.0]").replace(
        '    absent:\n    - "<2"\n    applied:\n    - ">=2"\n', '    absent: "<1"\n    applied: ">=1"\n'
    ).replace("\n", newline)
    assert parse(new)


@pytest.mark.parametrize(
    "section",
    [
        "expected: {}\n",
        "expected:\n  lib.one: {applied: '>=1'}",
        "expected: {lib.one: {applied: '>=1'}}\n",
        "expected:\n  lib.one:\n    applied: '>=1'  # why\n\n# the end",
    ],
)
def test_a_patch_that_is_new_to_the_file_is_added(section: str) -> None:
    text = "packages: {lib: {releases: [1.0.0]}}\n" + section
    found = parse(text, complete=False)
    missing = [name for name, entry in found.expected.items() if not entry.ranges]
    new = updating.updated(found, expected={name: {"applied": [">=1.0.0"]} for name in missing})
    states = {name: entry.ranges[0].state for name, entry in parse(new).expected.items()}
    assert states == {"lib.one": "applied", "lib.two": "applied"}
    assert new.startswith(text[: text.index("expected:") + 9])
    assert " \n" not in new


def test_ranges_begin_at_releases_and_the_last_is_open() -> None:
    states = [("1.0", "absent"), ("1.1", "applied"), ("1.2", "applied"), ("2.0", "absent"), ("2.1", "native")]
    assert updating.ranges_of(states) == {
        "absent": [">=1.0,<1.1", ">=2.0,<2.1"],
        "applied": [">=1.1,<2.0"],
        "native": [">=2.1"],
    }
