"""The cases that travel with the built-in patches."""

from __future__ import annotations

import ast
import dataclasses

import pytest

from patchwork import AnchorMissing, Case, CaseFails, Patch, PatchError, required, rewrite
from patchwork.engine.cases import check_cases
from patchwork.engine.patch import Edit, OneOf
from patchwork.patches import PATCHES

CASES = [pytest.param(patch, case, id=f"{patch.name}-{number}") for patch in PATCHES for number, case in enumerate(patch.cases)]


def _anchored(patch: Patch) -> bool:
    """Whether a patch has an anchor; one that only adds at the start fits any function of its name."""
    return any(isinstance(change, Edit | OneOf) for change in patch.edits)


@pytest.mark.parametrize(("patch", "case"), CASES)
def test_a_case_of_a_built_in_patch(patch: Patch, case: Case) -> None:
    assert bool(case.untouched) != bool(case.before)
    assert bool(case.before) == bool(case.after)
    if case.untouched:
        done = rewrite(case.untouched, patch)
        assert done.states == {patch.name: "native"}
        assert done.source == case.untouched
        return
    done = rewrite(case.before, patch)
    assert done.states == {patch.name: "applied"}
    assert ast.unparse(ast.parse(done.source)) == ast.unparse(ast.parse(case.after))
    assert done.source == case.after


@pytest.mark.parametrize(("patch", "case"), [case for case in CASES if case.values[1].before])  # type: ignore[attr-defined]
def test_a_case_twice_is_as_once(patch: Patch, case: Case) -> None:
    if removes(patch):
        pytest.skip("a removal leaves nothing to recognise it by")
    again = rewrite(case.after, patch)
    assert again.source == case.after
    assert again.states == {patch.name: "native"}


def removes(patch: Patch) -> bool:
    edits = [edit for change in patch.edits for edit in (change.edits if isinstance(change, OneOf) else [change])]
    return any(isinstance(edit, Edit) and edit.action == "remove" for edit in edits)


@pytest.mark.parametrize("patch", PATCHES, ids=lambda patch: patch.name)
def test_a_built_in_patch_says_why_and_for_which_versions(patch: Patch) -> None:
    assert patch.reason
    assert patch.versions


@pytest.mark.parametrize("patch", [patch for patch in PATCHES if _anchored(patch)], ids=lambda patch: patch.name)
def test_a_built_in_patch_fails_on_a_function_without_its_anchors(patch: Patch) -> None:
    """Never `native` or `applied` on code that has nothing to do with it."""
    name = patch.qualname.rpartition(".")[2]
    source = f"def {name}(self, a, b=None):\n    if a:\n        return None\n    output = self.other(a)\n    return output\n"
    with pytest.raises(PatchError) as caught:
        rewrite(source, patch)
    assert isinstance(caught.value, AnchorMissing)


SUM = Patch("own.sum", "lib:f", [required("a + b").replace("plus(a, b)")])


@pytest.mark.parametrize(
    ("case", "why"),
    [
        (Case(before="def f(a, b): return a + b", after="def f(a, b): return plus(b, a)"), "+def f(a, b): return plus(a, b)"),
        (Case(before="def f(a, b): return a - b", after="def f(a, b): return plus(a, b)"), "required anchor not found"),
        (Case(before="def f(a, b): return plus(a, b)", after="def f(a, b): return plus(a, b)"), "is native there, not applied"),
        (Case(untouched="def f(a, b): return a + b"), "is applied there, not native"),
        (Case(before="def f(: a + b", after="def f(a): pass"), "not valid Python"),
        (Case(before="def f(a, b): return a + b", after="def f(: pass"), "`after` is not Python"),
        (Case(before="def f(a, b): return a + b"), "`before` and `after`, or `untouched`"),
        (Case(), "`before` and `after`, or `untouched`"),
    ],
)
def test_a_case_that_does_not_hold_says_why(case: Case, why: str) -> None:
    good = Case(before="def f(a, b):\n    return a + b", after="def f(a, b): return plus(a,b)")  # formatting aside
    with pytest.raises(CaseFails) as caught:
        check_cases(dataclasses.replace(SUM, cases=(good, case)))
    assert "own.sum: case 2 of 2 does not hold" in str(caught.value)
    assert why in caught.value.nearest


def test_cases_that_hold_are_silent() -> None:
    done = "def f(a, b): return plus(a, b)"
    check_cases(dataclasses.replace(SUM, cases=(Case(before="def f(a, b): return a + b", after=done), Case(untouched=done))))
