"""The folder where patchwork keeps files of its own: patched sources, downloaded wheels."""

from __future__ import annotations

import os
import sys
from pathlib import Path


def cache_dir() -> Path:
    """The user's folder for patchwork's files: `PATCHWORK_CACHE_DIR`, else the platform's cache folder."""
    if chosen := os.environ.get("PATCHWORK_CACHE_DIR"):
        return Path(chosen)
    if sys.platform == "win32":
        base = Path(os.environ.get("LOCALAPPDATA") or Path.home() / "AppData" / "Local")
    elif sys.platform == "darwin":
        base = Path.home() / "Library" / "Caches"
    else:
        base = Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache")
    return base / "patchwork"
