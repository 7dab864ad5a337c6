"""How trainers of TRL that cannot run here hand packed rows to a model: read from every release, nothing is imported."""

from __future__ import annotations

import ast
import zipfile
from collections.abc import Iterator
from pathlib import Path

import pytest
import yaml
from packaging.specifiers import SpecifierSet
from packaging.version import Version

from patchwork.engine.errors import ReleaseUnavailable
from patchwork.patches import PATCHES
from patchwork.releases.wheels import fetch

MATRIX = yaml.safe_load((Path(__file__).parents[1] / "compat_matrix.yaml").read_text())
RELEASES = [Version(release) for release in MATRIX["packages"]["trl"]["releases"]]
GRPO, DISTILLATION = (f"trl/experimental/{name}/{name}_trainer.py" for name in ("async_grpo", "async_distillation"))
GOLD, GKD = (f"trl/experimental/{name}/{name}_trainer.py" for name in ("gold", "gkd"))
# Where TRL packs, flattens, or handles positions, and what patchwork knows of it. A file that is new here was not looked at.
KNOWN = {
    "trl/data_utils.py": "packs: patched",
    "trl/trainer/sft_trainer.py": "packs, flattens: patched",
    "trl/trainer/sft_config.py": "settings",
    "trl/trainer/dpo_trainer.py": "flattens to 0.28: patched",
    "trl/trainer/dpo_config.py": "settings",
    "trl/trainer/utils.py": "hands positions on",
    "trl/trainer/ppo_trainer.py": "padded rows: positions from their masks",
    GRPO: "flattens: positions, checked below",
    "trl/experimental/async_grpo/packing.py": "trees, checked below",
    DISTILLATION: "flattens: positions, checked below",
    GOLD: "packs with a collator of its own, checked below",
    "trl/experimental/ppo/ppo_trainer.py": "padded rows: positions from their masks",
    "trl/experimental/utils.py": "padded rows: positions from their masks",
    "trl/__init__.py": "names",
    **dict.fromkeys(
        (
            "trl/experimental/sdft/sdft_trainer.py",
            "trl/experimental/sdpo/sdpo_trainer.py",
            "trl/experimental/ssd/ssd_trainer.py",
            "trl/experimental/self_distillation/online_rollout_mixin.py",
        ),
        "seq_idx counts rows there",
    ),
}
FORWARDS = ("model", "backbone", "unwrapped_model.base_model")
_PACKING = ("position_ids", "padding_free", "pack_dataset", "seq_idx", "cu_seq_lens_q", "cu_seqlens")


def since(path: str, releases: str) -> list[object]:
    return [
        pytest.param(path, release, id=f"{Path(path).stem} {release}")
        for release in RELEASES
        if release in SpecifierSet(releases)
    ]


def wheel(release: Version) -> zipfile.ZipFile:
    try:
        return zipfile.ZipFile(fetch("trl", release))
    except ReleaseUnavailable as error:
        pytest.skip(f"the published wheel is needed: {error.what}")


def parsed(path: str, release: Version) -> ast.Module:
    return ast.parse(wheel(release).read(path))


def definition(tree: ast.AST, name: str) -> ast.AST:
    [found] = [node for node in ast.walk(tree) if isinstance(node, ast.ClassDef | ast.FunctionDef) and node.name == name]
    return found


def calls(tree: ast.AST) -> Iterator[tuple[str, dict[str | None, str], ast.Call]]:
    """Each call: what is called, and its keywords; of `**several`, the last."""
    for node in ast.walk(tree):
        if isinstance(node, ast.Call):
            yield ast.unparse(node.func), {each.arg: ast.unparse(each.value) for each in node.keywords}, node


def says_packing(tree: ast.AST) -> bool:
    """Whether code, not text, of a module has to do with packed rows."""
    for node in ast.walk(tree):
        name = (
            getattr(node, "id", None) or getattr(node, "attr", None) or getattr(node, "arg", None) or getattr(node, "value", None)
        )
        if name in _PACKING:
            return True
    return False


@pytest.mark.slow
@pytest.mark.parametrize("release", RELEASES, ids=str)
def test_all_files_that_pack_are_known(release: Version) -> None:
    archive = wheel(release)
    sources = [name for name in archive.namelist() if name.startswith("trl/") and name.endswith(".py")]
    likely = [name for name in sources if any(word.encode() in archive.read(name) for word in _PACKING)]
    found = {name for name in likely if says_packing(ast.parse(archive.read(name)))}
    assert "trl/trainer/sft_trainer.py" in found
    assert found <= KNOWN.keys(), f"not looked at: {sorted(found - KNOWN.keys())}"


@pytest.mark.slow
@pytest.mark.parametrize(("path", "release"), [*since(GRPO, ">=1.7,<1.16"), *since(DISTILLATION, ">=1.11")])
def test_flattened_rows_reach_the_model_with_positions_that_restart_and_without_padding(path: str, release: Version) -> None:
    tree = parsed(path, release)
    collator = ast.unparse(definition(tree, "DataCollatorForRollout"))
    assert "position_ids.append(torch.cat([torch.arange(n) for n in seq_lengths]))" in collator
    assert "attention_mask.append(torch.ones(len(ids), dtype=torch.long))" in collator
    trainer = next(node for node in ast.walk(tree) if isinstance(node, ast.ClassDef) and node.name.endswith("Trainer"))
    lines = ast.unparse(trainer)
    for name in ("input_ids", "position_ids"):
        assert f"{name} = inputs['{name}'][mask_bool].unsqueeze(0)" in lines
    forwards = [keywords for name, keywords, _ in calls(trainer) if name in FORWARDS and "input_ids" in keywords]
    assert len(forwards) == 1
    assert forwards[0]["position_ids"] == "position_ids"
    assert "attention_mask" not in forwards[0]


@pytest.mark.slow
@pytest.mark.parametrize("release", [release for release in RELEASES if release in SpecifierSet(">=1.7,<1.16")], ids=str)
def test_the_head_that_these_trainers_put_on_a_model_hands_positions_on(release: Version) -> None:
    utilities = parsed("trl/trainer/utils.py", release)
    name = "patch_chunked_lm_head" if release < Version("1.15") else "add_fused_lm_head"
    inner = [
        keywords
        for called, keywords, _ in calls(definition(utilities, name))
        if called.startswith(("self.model", "getattr(self"))
    ]
    assert inner
    assert all(keywords.get(None) == "kwargs" for keywords in inner)


@pytest.mark.slow
@pytest.mark.parametrize("release", [release for release in RELEASES if release in SpecifierSet(">=1.0,<1.7")], ids=str)
def test_before_they_were_flattened_rollouts_were_padded(release: Version) -> None:
    [forward] = [keywords for name, keywords, _ in calls(parsed(GRPO, release)) if name == "model" and "input_ids" in keywords]
    assert forward["attention_mask"] == "attention_mask"
    assert "position_ids" not in forward


@pytest.mark.slow
@pytest.mark.parametrize("release", [release for release in RELEASES if release in SpecifierSet(">=1.16")], ids=str)
def test_trees_of_rollouts_are_told_to_an_attention_of_their_own(release: Version) -> None:
    tree = parsed(GRPO, release)
    [forward] = [ast.unparse(node) for name, keywords, node in calls(tree) if name == "model" and "input_ids" in keywords]
    assert "**tree_kwargs" in forward
    assert any(keywords.get("attn_implementation") == "TREE_ATTENTION" for _, keywords, _ in calls(tree))
    assert "TREE_ATTENTION = 'tree_fa3'" in ast.unparse(parsed("trl/experimental/async_grpo/packing.py", release))


@pytest.mark.slow
@pytest.mark.parametrize(("path", "release"), [*since(GOLD, ">=0.25.1"), *since(GKD, ">=0.26.2")])
def test_trainers_with_a_collator_of_their_own_hand_it_to_the_sft_trainer(path: str, release: Version) -> None:
    """There it is seen, and packing refused: their rows do not say where documents begin."""
    tree = parsed(path, release)
    trainer = next(node for node in ast.walk(tree) if isinstance(node, ast.ClassDef) and node.name.endswith("Trainer"))
    begin = definition(trainer, "__init__")
    [handed] = [keywords for name, keywords, _ in calls(begin) if name == "super().__init__"]
    assert handed["data_collator"] == "data_collator"
    assert handed["args"] == "args"
    tests = [ast.unparse(node.test) for node in ast.walk(begin) if isinstance(node, ast.If)]
    assert "data_collator is None" in tests
    packers = [
        node.name
        for node in trainer.body
        if isinstance(node, ast.FunctionDef) and "pack_dataset" in {n for n, _, _ in calls(node)}
    ]
    assert packers == (["_prepare_dataset_with_original_text"] if path == GOLD else [])


def test_no_patch_is_for_an_engine_of_inference() -> None:
    for patch in PATCHES:
        assert not {"vllm", "sglang"} & {patch.target.split(":")[0].split(".")[0], *patch.versions}
