"""Where the text of patched modules is kept, so that tracebacks, pdb and inspect show the lines that run."""

from __future__ import annotations

import hashlib
import linecache
import os
import re
import tempfile
from pathlib import Path

from ..environment.cache_folder import cache_dir

_PUBLISHED = re.compile(r"^<patchwork [0-9a-f]{16} |[/\\]sources[/\\][0-9a-f]{16}[/\\]")


def publish(module: str, data: bytes) -> str:
    """Make a patched module's text readable under a name that follows from its content alone; returns that name.

    A real file, since `linecache` forgets what it was only told; where none can be written, a name that `linecache` is told.
    """
    digest = hashlib.sha256(data).hexdigest()[:16]
    path = cache_dir() / "sources" / digest / (module.replace(".", os.sep) + ".py")
    try:
        if not path.exists() or path.read_bytes() != data:
            _write(path, data)
        return str(path)
    except OSError:
        name = f"<patchwork {digest} {module}>"
        text = data.decode("utf-8", "replace")
        linecache.cache[name] = (len(text), None, text.splitlines(keepends=True), name)
        return name


def is_published(filename: str) -> bool:
    """Whether a code's file name is one that `publish` makes, in whichever cache folder."""
    return _PUBLISHED.search(filename) is not None


def _write(path: Path, data: bytes) -> None:
    """Atomic and private to the user: another process sees the whole file or none."""
    path.parent.mkdir(parents=True, exist_ok=True, mode=0o700)
    handle, temporary = tempfile.mkstemp(dir=path.parent)
    try:
        with os.fdopen(handle, "wb") as stream:
            stream.write(data)
        os.replace(temporary, path)
    except BaseException:
        os.unlink(temporary)
        raise
