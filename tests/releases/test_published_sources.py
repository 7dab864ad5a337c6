"""One patch on the published sources of a package that nobody here installs: unsloth_zoo, whose function kept growing uses."""

from __future__ import annotations

from pathlib import Path

import pytest

from patchwork import Patch, ReleaseUnavailable, UnaccountedUse, every, optional, required
from patchwork.releases.checking import Finding, check
from patchwork.releases.trees import Tree
from patchwork.releases.wheels import fetch

EDITS = (
    required("$CALL($$$ARGS, truncation=do_truncation)").set_argument("truncation", "do_truncation and not packing"),
    optional("if do_truncation and max_seq_length > 0:\n    $$$BODY").replace(
        "if do_truncation and not packing and max_seq_length > 0:\n    $$$BODY"
    ),
)
GUARD = every("do_truncation", accounted_by="do_truncation = $VALUE")


@pytest.fixture(scope="module")
def cache(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tmp_path_factory.mktemp("wheels")


def found(release: str, *edits: object, cache: Path, monkeypatch: pytest.MonkeyPatch) -> Finding:
    monkeypatch.setenv("PATCHWORK_CACHE_DIR", str(cache))
    try:
        wheel = fetch("unsloth_zoo", release)
    except ReleaseUnavailable as error:
        pytest.skip(f"the published wheel is needed: {error.what}")
    patch = Patch("own.zoo", "unsloth_zoo.dataset_utils:sft_prepare_dataset", edits)  # type: ignore[arg-type]
    [finding] = check([patch], Tree("unsloth_zoo", release, wheel), keep_rewrites=True)
    return finding


@pytest.mark.slow
@pytest.mark.parametrize(("release", "edits"), [("2025.8.9", 1), ("2026.2.1", 1), ("2026.3.7", 2), ("2026.9.9", 2)])
def test_releases_whose_uses_are_known_fit(release: str, edits: int, cache: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    finding = found(release, *EDITS, GUARD, cache=cache, monkeypatch=monkeypatch)
    assert finding.outcome.state == "applied"
    assert len(finding.outcome.edits) == edits
    assert finding.rewrite is not None
    before, after = finding.rewrite.before, finding.rewrite.source
    assert before.count(b"\r\n") == after.count(b"\r\n") == after.count(b"\n")  # published with CRLF


@pytest.mark.slow
def test_a_third_use_that_nobody_looked_at_is_drift_and_without_the_guard_is_missed(
    cache: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    guarded = found("2026.10.9", *EDITS, GUARD, cache=cache, monkeypatch=monkeypatch).outcome
    assert isinstance(guarded.error, UnaccountedUse)
    assert "truncate_messages = do_truncation" in guarded.error.where
    assert found("2026.10.9", *EDITS, cache=cache, monkeypatch=monkeypatch).outcome.state == "applied"
