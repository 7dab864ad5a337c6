"""What `patchwork doctor` says of a package, in a process of its own with a path of its own."""

from __future__ import annotations

import json
import os
import subprocess
import sys


def doctor(package: str, *folders: str) -> tuple[object, object, list[str]]:
    """Version and file of a package, and the warnings that name it; `folders` come first on the path, their .pth files read."""
    code = "import sys; from patchwork.cli import main; main()"
    setup = "import site, sys\n" + "".join(
        f"sys.path.insert({at}, {folder!r}); site.addsitedir({folder!r})\n" for at, folder in enumerate(folders)
    )
    done = subprocess.run(
        [sys.executable, "-c", f"{setup}sys.argv = ['patchwork', 'doctor', '--json']\n{code}"],
        capture_output=True,
        text=True,
        check=False,
        env=dict(os.environ),
    )
    found = json.loads(done.stdout)
    item = found["packages"][package]
    return item["version"], item["path"], [text for text in found["warnings"] if package in text]
