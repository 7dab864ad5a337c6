"""The hard cases of a source-rewriting engine, row by row: what each tool is asked, patchwork does, or refuses where it must.

`benchmarks/engines.py` asks other tools the same.
"""

from __future__ import annotations

import sys
from collections.abc import Callable
from pathlib import Path

import pytest

sys.path.insert(0, str(Path(__file__).parent))

from hard_cases import ROWS
from hard_cases.row import Input, Refused, Row, text_edit
from hard_cases.running import RIGHT, Nothing, Patchwork, run

import patchwork
from patchwork import Patch, PatchError

INPUTS = [(row, item) for row in ROWS for item in row.inputs]
Name = Callable[[tuple[Row, Input]], str]


def _id(pair: object) -> str:
    row, item = pair  # type: ignore[misc]
    return row.id_of(item)  # type: ignore[no-any-return]


def readable(item: Input) -> None:
    if sys.version_info < item.python:
        pytest.skip(f"this syntax needs Python {'.'.join(map(str, item.python))}")


every_input = pytest.mark.parametrize("pair", INPUTS, ids=_id)
before_the_import = pytest.mark.parametrize(
    "pair", [(row, item) for row, item in INPUTS if not (item.live_only or item.before or item.setup)], ids=_id
)


@pytest.fixture
def root(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    folder = tmp_path / "root"
    folder.mkdir()
    monkeypatch.syspath_prepend(str(folder))
    return folder


@pytest.mark.filterwarnings("error")
@every_input
def test_row(pair: tuple[Row, Input], root: Path) -> None:
    _, item = pair
    readable(item)
    verdict = run(item, Patchwork(), root)
    assert verdict.kind == RIGHT, verdict
    _check_refusal(item, verdict.error)


@pytest.mark.filterwarnings("error")
@before_the_import
def test_row_before_the_import(pair: tuple[Row, Input], root: Path) -> None:
    _, item = pair
    readable(item)
    verdict = run(item, Patchwork(), root, imported=False)
    assert verdict.kind == RIGHT, verdict
    _check_refusal(item, verdict.error)


def _check_refusal(item: Input, error: BaseException | None) -> None:
    if isinstance(item.patched, Refused):
        assert isinstance(error, PatchError)
        assert item.patched.kind in [kind.__name__ for kind in type(error).__mro__]
        assert [word for word in item.patched.words if word not in str(error)] == []


@pytest.mark.parametrize("pair", [(row, item) for row, item in INPUTS if item.changes], ids=_id)
def test_what_a_row_says_of_the_unpatched_module_is_so(pair: tuple[Row, Input], root: Path) -> None:
    _, item = pair
    readable(item)
    assert run(item, Nothing(), root).seen == item.stock


WITH_BYTES = [pair for pair in INPUTS if pair[1].after is not None]


@pytest.mark.parametrize("pair", WITH_BYTES, ids=_id)
def test_bytes_outside_the_edit_stay(pair: tuple[Row, Input], root: Path) -> None:
    _, item = pair
    item.write(root)
    before = (root / "lib" / "core.py").read_bytes()
    patch = Patch(name="own.patch", target="lib.core:f", edits=item.changes[0].edits)  # type: ignore[arg-type]
    assert patchwork.rewrite(before, patch).source == item.after


def test_each_row_has_three_inputs_or_more_and_each_input_a_name_of_its_own() -> None:
    assert [row.number for row in sorted(ROWS, key=lambda row: row.number)] == list(range(1, 31))
    assert all(len(row.inputs) >= 3 for row in ROWS)
    ids = [row.id_of(item) for row, item in INPUTS]
    assert len(set(ids)) == len(ids) >= 90


@every_input
def test_a_change_can_be_written_as_text(pair: tuple[Row, Input]) -> None:
    _, item = pair
    readable(item)
    for wanted in () if item.not_for else item.changes:
        written = text_edit(item, wanted)
        assert written.before != written.after
        assert written.old in written.before
