"""The patch of unsloth_zoo on the published source of each monthly release, which nobody imports here."""

from __future__ import annotations

import ast
import dataclasses
import functools
import io
import tokenize
import zipfile
from pathlib import Path

import pytest
import yaml

from patchwork import AnchorMissing, ReleaseUnavailable, UnaccountedUse
from patchwork.engine.patch import Anchor, Patch
from patchwork.engine.rewriting import rewrite
from patchwork.patches.unsloth_zoo.dataset_utils import PATCHES
from patchwork.releases.checking import check
from patchwork.releases.trees import Tree
from patchwork.releases.wheels import fetch

MATRIX = yaml.safe_load((Path(__file__).parents[1] / "compat_matrix.yaml").read_text())
RELEASES = [str(release) for release in MATRIX["packages"]["unsloth_zoo"]["releases"]]
[PATCH] = PATCHES


@functools.cache
def tree(release: str) -> Tree:
    try:
        return Tree("unsloth_zoo", release, fetch("unsloth_zoo", release))
    except ReleaseUnavailable as error:
        pytest.skip(f"the published wheel is needed: {error.what}")


@functools.cache
def source(release: str) -> str:
    """The function alone."""
    wheel = zipfile.ZipFile(tree(release).path)
    text = wheel.read("unsloth_zoo/dataset_utils.py").decode().replace("\r\n", "\n")
    [function] = [node for node in ast.parse(text).body if getattr(node, "name", "") == "sft_prepare_dataset"]
    return (ast.get_source_segment(text, function) or "") + "\n"


@pytest.mark.parametrize("release", RELEASES)
def test_it_fits_and_leaves_every_line_as_it_was(release: str) -> None:
    """unsloth edits the text of this function in its turn, by lines that it knows: they are all there still."""
    [finding] = check([PATCH], tree(release), keep_rewrites=True)
    assert finding.outcome.state == "applied", finding.outcome.detail
    assert finding.rewrite is not None
    before, after = finding.rewrite.before, finding.rewrite.source
    assert before.count(b"\r\n") == before.count(b"\n")  # as it is published
    assert after.count(b"\r\n") == after.count(b"\n") == before.count(b"\n") + 4
    changes = [line for line in finding.diff.splitlines() if line[:1] in "+-" and not line.startswith(("+++", "---"))]
    assert [line[0] for line in changes] == ["+"] * 4
    assert rewrite(after, PATCH).states == {PATCH.name: "native"}


@pytest.mark.parametrize("release", RELEASES)
def test_a_comment_on_any_line_is_no_drift(release: str) -> None:
    text = source(release)
    lines = text.splitlines(keepends=True)
    ends = {
        token.end[0]: token.start[1]
        for token in tokenize.generate_tokens(io.StringIO(text).readline)
        if token.type in (tokenize.NEWLINE, tokenize.NL)
    }
    for number, column in ends.items():
        line = lines[number - 1].rstrip("\n")
        lines[number - 1] = f"{line[:column]}  # noqa: F821{line[column:]}\n"
    commented = "".join(lines)
    assert "pack_dataset(  # noqa: F821" in commented
    assert rewrite(commented, PATCH).states == {PATCH.name: "applied"}


def without(pattern: str) -> Patch:
    """The patch as it was before somebody looked at a place."""
    edits = [edit for edit in PATCH.edits if not (isinstance(edit, Anchor) and pattern in edit.pattern)]
    assert len(edits) < len(PATCH.edits)
    narrower: Patch = dataclasses.replace(PATCH, edits=edits)
    return narrower


def test_the_third_place_that_a_release_added_was_drift() -> None:
    patch = without("truncate_messages = do_truncation")
    assert rewrite(source("2026.9.9"), patch).states == {PATCH.name: "applied"}
    with pytest.raises(UnaccountedUse, match="truncate_messages = do_truncation"):
        rewrite(source("2026.10.9"), patch)


@pytest.mark.parametrize("release", [RELEASES[0], RELEASES[-1]])
@pytest.mark.parametrize(
    "added",
    [
        "if do_truncation: dataset = cut(dataset)",
        "cut_images = do_truncation and is_vlm",
        'dataset = dataset.map(lambda row: {"input_ids": row["input_ids"][:max_seq_length]})',
        "limit = max_seq_length",
        'tokens = tokenizer("text", truncation = True)["input_ids"]',
        'tokens = tokenizer("text", truncation = do_truncation)["input_ids"]',
    ],
)
@pytest.mark.parametrize("place", ["    do_formatting_func = False\n", "    if packing:\n"])
def test_whatever_else_may_cut_documents_is_drift(release: str, added: str, place: str) -> None:
    text = source(release)
    before, there, after = text.partition(place)
    assert there
    assert text.rpartition(place)[0] == before
    with pytest.raises(UnaccountedUse) as caught:
        rewrite(f"{before}    {added}\n{there}{after}", PATCH)
    assert added.partition(" = ")[0].partition(":")[0] in caught.value.where


@pytest.mark.parametrize(
    ("old", "new"),
    [
        ("do_truncation = max_seq_length != 0", "do_truncation = max_seq_length not in (0, None)"),
        ("dataset = pack_dataset(", "dataset = pack_rows("),
        ("truncation = do_truncation,", "cut = do_truncation,"),
    ],
)
def test_what_the_patch_builds_on_must_be_there(old: str, new: str) -> None:
    text = source(RELEASES[-1])
    assert old in text
    with pytest.raises(AnchorMissing):
        rewrite(text.replace(old, new), PATCH)
