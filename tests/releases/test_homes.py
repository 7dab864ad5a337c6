"""A target that its module merely hands on: the report says where it is defined."""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING

import pytest

from patchwork import Patch
from patchwork.releases.checking import check_all
from patchwork.releases.trees import Tree

if TYPE_CHECKING:
    from conftest import Shelf

CLIENT = "class Client:\n    def send(self):\n        return a()\n"


def nearest(shelf: Shelf, patch: Patch, version: str, init: str, **files: str) -> str:
    wheel = shelf.wheel("lib", version, {"lib/__init__.py": init, **{f"lib/{name}.py": text for name, text in files.items()}})
    [finding] = check_all([patch], [Tree("lib", version, wheel)], workers=1)
    assert finding.outcome.error is not None
    return finding.outcome.error.nearest


@pytest.fixture
def send(patch: Callable[..., Patch]) -> Patch:
    made = patch()
    return Patch(name=made.name, target="lib:Client.send", edits=made.edits)


@pytest.mark.parametrize(
    "init", ["from ._client import Client\n", "from ._client import *\n", "_lazy = {'_client': ['Client']}\n"]
)
def test_the_module_that_defines_the_class_is_named(shelf: Shelf, send: Patch, init: str) -> None:
    assert nearest(shelf, send, "1.0", init, _client=CLIENT, _other="Client = 1\n") == "Client is defined in lib._client"


def test_it_is_found_where_it_moved_to(shelf: Shelf, send: Patch) -> None:
    init = "from .new import Client\n"
    assert nearest(shelf, send, "1.0", init, old=CLIENT, new="from .old import Client") == "Client is defined in lib.old"
    assert nearest(shelf, send, "2.0", init, new=CLIENT, old="def ClientError(): pass") == "Client is defined in lib.new"


def test_what_the_module_does_not_know_or_defines_itself_is_sought_nowhere(shelf: Shelf, send: Patch) -> None:
    assert nearest(shelf, send, "1.0", "import os\n", _client=CLIENT) == ""
    assert nearest(shelf, send, "2.0", "class Client:\n    pass\n", _client=CLIENT) == ""
    assert nearest(shelf, send, "3.0", "from elsewhere import Client\n") == ""
