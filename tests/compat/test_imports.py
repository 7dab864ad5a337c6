"""`patchwork doctor --imports` on the real packages: all work; a missing dependency is named through their wrappings."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

BLOCK = """
import sys

class Blocking:
    @staticmethod
    def find_spec(name, path=None, target=None):
        if name == "safetensors":
            raise ModuleNotFoundError("No module named 'safetensors'", name="safetensors")

sys.meta_path.insert(0, Blocking)
"""


def doctor(path: Path) -> tuple[int, dict[str, Any]]:
    """Exit code and report of `patchwork doctor --imports`; `path` may hold a sitecustomize, which every process runs first."""
    command = [sys.executable, "-c", "from patchwork.cli import main; main()", "doctor", "--imports", "--json"]
    environment = {**os.environ, "PYTHONPATH": str(path)}
    done = subprocess.run(command, capture_output=True, text=True, env=environment, check=False)
    return done.returncode, json.loads(done.stdout)


def test_every_patched_module_can_be_imported(tmp_path):
    code, found = doctor(tmp_path)
    assert code == 0
    modules = [trial["module"] for trial in found["imports"]]
    assert {"transformers.modeling_utils", "transformers.trainer", "trl.trainer.sft_trainer"} <= set(modules)
    assert [trial["error"] for trial in found["imports"]] == [None] * len(modules)


def test_a_missing_dependency_is_named_and_is_not_taken_for_drift(tmp_path):
    (tmp_path / "sitecustomize.py").write_text(BLOCK)
    code, found = doctor(tmp_path)
    assert code == 1
    assert not any(item["state"] == "failed" for item in found["patches"])
    failed = {trial["module"]: trial for trial in found["imports"] if trial["error"]}
    assert {"transformers.modeling_utils", "trl.trainer.sft_trainer"} <= set(failed)
    for module, trial in failed.items():
        assert trial["kind"] == "BrokenDependency"
        assert f"{module} cannot be imported: it needs safetensors, which is not installed" in trial["error"]
        assert "next: pip install safetensors" in trial["error"]
