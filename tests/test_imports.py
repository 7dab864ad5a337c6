"""`patchwork doctor --imports`: what it says, and the exit code. Needs no torch."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

MODEL = '''
class PreTrainedModel:
    def post_init(self):
        """Doc."""
        self.ready = True
'''


@pytest.fixture
def site(tmp_path: Path) -> Path:
    """A folder with a package that looks like an installed transformers."""
    info = tmp_path / "transformers-5.9.0.dist-info"
    info.mkdir()
    (info / "METADATA").write_text("Metadata-Version: 2.1\nName: transformers\nVersion: 5.9.0\n")
    package = tmp_path / "transformers"
    package.mkdir()
    (package / "__init__.py").touch()
    (package / "modeling_utils.py").write_text(MODEL)
    return tmp_path


def doctor(site: Path, *options: str) -> subprocess.CompletedProcess[str]:
    command = [sys.executable, "-c", "from patchwork.cli import main; main()", "doctor", *options]
    environment = {**os.environ, "PYTHONPATH": str(site), "PATCHWORK_DISABLE": "trl.*"}  # which takes seconds to import
    return subprocess.run(command, capture_output=True, text=True, env=environment, check=False)


def test_nothing_is_imported_unless_asked(site):
    (site / "transformers" / "__init__.py").write_text("raise SystemExit('imported')\n")
    found = json.loads(doctor(site, "--json").stdout)
    assert found["imports"] is None


def test_each_patched_module_that_is_installed_is_tried(site):
    found = json.loads(doctor(site, "--imports", "--json").stdout)
    trials = {trial["module"]: trial for trial in found["imports"]}
    assert trials["transformers.modeling_utils"] == {"module": "transformers.modeling_utils", "kind": None, "error": None}


def test_a_missing_dependency_is_named_with_the_next_command(site):
    (site / "transformers" / "modeling_utils.py").write_text("import nowhere_at_all\n" + MODEL)
    done = doctor(site, "--imports")
    assert done.returncode == 1
    assert "fails    transformers.modeling_utils" in done.stdout
    assert "transformers.modeling_utils cannot be imported: it needs nowhere_at_all, which is not installed" in done.stdout
    assert "next: pip install nowhere_at_all" in done.stdout
    assert "Traceback" not in done.stdout + done.stderr
    isolation = "transformers.isolation.post_init"
    found = json.loads(doctor(site, "--imports", "--json").stdout)
    assert {item["patch"]: item["state"] for item in found["patches"]}[isolation] == "pending", "no drift"
