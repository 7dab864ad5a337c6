"""The command line as a user sees it: output, exit codes, errors without a traceback. Needs no torch."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

import patchwork
from patchwork.engine.report import STATES
from patchwork.selection import all_patches

POST_INIT = '''
class PreTrainedModel:
    def post_init(self):
        """Doc."""
        self.ready = True

    def _set_gradient_checkpointing(self, enable=True, gradient_checkpointing_func=None):
        self.checkpoint = gradient_checkpointing_func
'''


TRAINER = """
class Trainer:
    def __init__(self, model=None):
        self.model = model

    def _prepare_inputs(self, inputs):
        inputs = self._prepare_input(inputs)
        return inputs

    def _get_dataloader(self, dataset):
        data_collator = self.data_collator
        dataloader_params = {"collate_fn": data_collator}
        return DataLoader(dataset, **dataloader_params)

    def call_model_init(self, trial=None):
        model = self.model_init()
        return model

    def _run_epoch(self, model, inputs):
        return self.training_step(model, inputs)

    def evaluation_loop(self, model, inputs):
        return self.prediction_step(model, inputs)
"""


def run(*arguments: str, path: Path | None = None, **environment: str) -> subprocess.CompletedProcess[str]:
    """`patchwork ARGUMENTS` in a process of its own; packages in `path` come before the installed ones."""
    settings = {**os.environ, "PYTHONPATH": str(path or ""), **environment}
    command = [sys.executable, "-c", "from patchwork.cli import main; main()", *arguments]
    return subprocess.run(command, capture_output=True, text=True, env=settings, check=False)


def install(folder: Path, name: str, version: str, **files: str) -> Path:
    """A package that looks installed: its files, and the metadata that pip would leave."""
    for file, text in files.items():
        (folder / name).mkdir(parents=True, exist_ok=True)
        (folder / name / f"{file}.py").write_text(text)
    info = folder / f"{name}-{version}.dist-info"
    info.mkdir(parents=True)
    (info / "METADATA").write_text(f"Metadata-Version: 2.1\nName: {name}\nVersion: {version}\n")
    return folder


def outcome(listed: list[dict[str, Any]], name: str) -> dict[str, Any]:
    return next(item for item in listed if item["patch"] == name)


def test_list_names_every_patch_with_its_state_and_reason() -> None:
    done = run("list", "--json")
    listed = json.loads(done.stdout)
    assert [item["patch"] for item in listed] == [patch.name for patch in all_patches()]
    assert {item["state"] for item in listed} <= set(STATES)
    assert all(item["reason"] for item in listed)
    assert done.returncode == 0


def test_list_previews_what_is_installed(tmp_path: Path) -> None:
    path = install(tmp_path, "transformers", "5.24.0", __init__="", modeling_utils=POST_INIT, trainer=TRAINER)
    found = outcome(json.loads(run("list", "--json", path=path).stdout), "transformers.isolation.post_init")
    assert (found["state"], found["edits"]) == ("pending", ["at_start at line 5"])
    assert found["path"] == str(path / "transformers" / "modeling_utils.py")


def test_drift_is_said_with_exit_code_1(tmp_path: Path) -> None:
    drifted = POST_INIT.replace("post_init", "after_init")
    path = install(tmp_path, "transformers", "5.24.0", __init__="", modeling_utils=drifted, trainer=TRAINER)
    done = run("list", path=path)
    assert done.returncode == 1
    assert "the module defines no function PreTrainedModel.post_init" in done.stdout
    assert "nearest: PreTrainedModel.after_init" in done.stdout
    assert str(path / "transformers" / "modeling_utils.py") in done.stdout


def test_diff_prints_the_change_with_its_file(tmp_path: Path) -> None:
    path = install(tmp_path, "transformers", "5.24.0", __init__="", modeling_utils=POST_INIT, trainer=TRAINER)
    done = run("diff", "transformers.isolation.post*", path=path)
    assert done.returncode == 0
    lines = done.stdout.splitlines()
    assert lines[0] == f"--- {path / 'transformers' / 'modeling_utils.py'}"
    assert "+        adopt(self)" in lines


def test_an_unknown_patch_is_wrong_use_and_names_the_closest() -> None:
    done = run("diff", "trl.sft.colator")
    assert done.returncode == 2
    assert "no patch is called 'trl.sft.colator'" in done.stderr
    assert "nearest: trl.sft.collator" in done.stderr
    assert "Traceback" not in done.stderr


@pytest.mark.parametrize("arguments", [("nonsense",), ("diff",), ("doctor", "--nonsense")])
def test_wrong_use_exits_with_2(arguments: tuple[str, ...]) -> None:
    done = run(*arguments)
    assert done.returncode == 2
    assert "Traceback" not in done.stderr


def test_a_switch_that_names_no_patch_is_wrong_use() -> None:
    done = run("list", PATCHWORK_DISABLE="nonsense")
    assert done.returncode == 2
    assert "no patch is called 'nonsense'" in done.stderr


def test_doctor_says_where_packages_are_loaded_from(tmp_path: Path) -> None:
    path = install(tmp_path, "transformers", "5.24.0", __init__="", modeling_utils=POST_INIT, trainer=TRAINER)
    found = json.loads(run("doctor", "--json", path=path).stdout)
    assert found["packages"]["transformers"] == {
        "version": "5.24.0",
        "path": str(path / "transformers" / "__init__.py"),
    }


def test_doctor_calls_packing_unsafe_where_isolation_is_switched_off(tmp_path: Path) -> None:
    path = install(tmp_path, "transformers", "5.24.0", __init__="", modeling_utils=POST_INIT, trainer=TRAINER)
    install(path, "torch", "2.13.0", __init__="")
    # Of modules that this release has, and this folder has not.
    off = "transformers.kda.*,transformers.unused_columns.*,transformers.flattening.*"
    assert json.loads(run("doctor", "--json", path=path, PATCHWORK_DISABLE=off).stdout)["packing"]["safe"]
    done = run("doctor", path=path, PATCHWORK_DISABLE=f"{off},transformers.isolation.*")
    assert done.returncode == 1
    assert "not safe" in done.stdout
    assert "switched off by PATCHWORK_DISABLE" in done.stdout


def test_doctor_calls_packing_unsafe_on_an_unsupported_release(tmp_path: Path) -> None:
    path = install(tmp_path, "transformers", "4.50.0", __init__="", modeling_utils=POST_INIT, trainer=TRAINER)
    install(path, "torch", "2.13.0", __init__="")
    done = run("doctor", path=path)
    assert done.returncode == 1
    assert "for transformers >=4.57; 4.50.0 is installed" in done.stdout


def test_a_release_newer_than_the_last_checked_is_marked_untested(tmp_path: Path) -> None:
    path = install(tmp_path, "transformers", "99.0.0", __init__="", modeling_utils=POST_INIT, trainer=TRAINER)
    found = outcome(json.loads(run("list", "--json", path=path).stdout), "transformers.isolation.post_init")
    assert found["state"] == "pending"
    assert found["detail"].startswith("untested: transformers 99.0.0 is newer than ")


def test_the_old_tool_of_the_same_import_name_is_told(tmp_path: Path) -> None:
    path = install(tmp_path, "patchwork", "1.0.1")
    done = run("doctor", path=path)
    assert "the distribution 'patchwork' 1.0.1 is installed: an old deployment tool" in done.stdout
    assert "pip uninstall patchwork" in done.stdout
    command = [sys.executable, "-c", "import patchwork; patchwork.apply('trl.*')"]
    applied = subprocess.run(command, capture_output=True, text=True, env={**os.environ, "PYTHONPATH": str(path)}, check=False)
    assert "pip uninstall patchwork" in applied.stderr


def test_a_terminal_that_lacks_a_character_still_gets_the_message() -> None:
    done = run("diff", "\u65e5\u672c", PYTHONIOENCODING="ascii")
    assert done.returncode == 2
    assert "no patch is called '\\u65e5\\u672c'" in done.stderr
    assert "Traceback" not in done.stderr


def test_version() -> None:
    assert run("--version").stdout.strip() == f"patchwork-packing {patchwork.__version__}"
