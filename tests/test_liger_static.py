"""A row's description reaches the backbone through the forwards that Liger puts on models. Read from its wheels.

Liger needs Triton. Its forwards fuse the head with the loss, in place of the outer model's own. Documents are kept apart in
the backbone, by restarting positions at the least.
"""

from __future__ import annotations

import ast
import functools
import re
import zipfile

import pytest

from patchwork import ReleaseUnavailable
from patchwork.releases.wheels import fetch

RELEASES = ("0.3.1", "0.5.10", "0.6.5", "0.7.0", "0.8.5")
TAKES_ALL = RELEASES[2:]  # before, boundaries by other names than position_ids go to the loss, or are a TypeError
FORWARDS = re.compile(r"(lce|causal|multimodal)_forward")
BACKBONE = re.compile(r"self\.(\w+\.)*model")


@functools.cache
def sources(release: str) -> dict[str, str]:
    """The files of the package."""
    try:
        wheel = zipfile.ZipFile(fetch("liger-kernel", release))
    except ReleaseUnavailable as error:
        pytest.skip(str(error))
    with wheel:
        return {name: wheel.read(name).decode() for name in wheel.namelist() if name.endswith(".py")}


@functools.cache
def forwards(release: str) -> dict[str, ast.FunctionDef]:
    """Its forwards of outer models, by file and name. The deprecated ones are for transformers before 4.46."""
    found = {}
    for name, text in sources(release).items():
        if "/transformers/model/" in name:
            for node in ast.parse(text).body:
                if isinstance(node, ast.FunctionDef) and FORWARDS.match(node.name) and "deprecated" not in node.name:
                    found[f"{name.rsplit('/', 1)[-1]}:{node.name}"] = node
    return found


def backbone_calls(forward: ast.FunctionDef) -> list[ast.Call]:
    calls = [node for node in ast.walk(forward) if isinstance(node, ast.Call)]
    return [call for call in calls if BACKBONE.fullmatch(ast.unparse(call.func))]


def hands_on(call: ast.Call, name: str) -> bool:
    return any(keyword.arg == name and ast.unparse(keyword.value) == name for keyword in call.keywords)


@pytest.mark.parametrize("release", RELEASES)
def test_every_forward_calls_the_backbone_once_and_gives_it_the_positions(release: str) -> None:
    assert {"llama.py:lce_forward", "qwen2.py:lce_forward"} <= forwards(release).keys()
    for name, forward in forwards(release).items():
        (call,) = backbone_calls(forward)
        assert hands_on(call, "position_ids"), name


@pytest.mark.parametrize("release", TAKES_ALL)
def test_every_forward_hands_all_other_arguments_on_to_the_backbone(release: str) -> None:
    for name, forward in forwards(release).items():
        (call,) = backbone_calls(forward)
        assert forward.args.kwarg is not None, name
        everything = {ast.unparse(keyword.value) for keyword in call.keywords if keyword.arg is None}
        assert everything & {forward.args.kwarg.arg, "model_kwargs"}, name  # Mllama takes those out that are its loss's


@pytest.mark.parametrize("release", TAKES_ALL)
def test_the_recurrent_families_that_it_knows_keep_their_mixers(release: str) -> None:
    """Forwards are set on outer models, norms and feed-forward modules: on nothing that mixes tokens."""
    text = next(text for name, text in sources(release).items() if name.endswith("/transformers/monkey_patch.py"))
    owners = set()
    for node in ast.walk(ast.parse(text)):
        if isinstance(node, ast.Assign):
            owners |= {ast.unparse(target.value) for target in node.targets if getattr(target, "attr", "") == "forward"}
    assert "model" in owners
    assert {owner for owner in owners if not re.search(r"For(CausalLM|ConditionalGeneration)$|MLP$|^model$", owner)} == set()
