"""Do something when a module is imported, and again on each further import if it fails."""

from __future__ import annotations

import sys
from collections.abc import Callable
from importlib._bootstrap import _lock_unlock_module  # type: ignore[attr-defined]
from types import ModuleType

import wrapt
from wrapt.importer import ImportHookFinder

_watched: set[str] = set()


def when_imported(name: str, action: Callable[[ModuleType], None]) -> None:
    """Call `action` with the module once it is imported; one registration a name.

    If `action` raises, the import fails with that error, the module is taken out again, and the next import tries once more: an
    importer that swallows the first error must not end up with an unpatched module.
    """
    _come_first()
    if name in _watched:
        return
    _watched.add(name)

    def hook(module: ModuleType) -> None:
        _watched.discard(name)
        try:
            action(module)
        except BaseException:
            sys.modules.pop(name, None)
            when_imported(name, action)
            raise

    wrapt.register_post_import_hook(hook, name)
    # An import in another thread that is past its finders, but not yet in sys.modules, would miss the hook: wait for it.
    _lock_unlock_module(name)
    if name in _watched and (module := sys.modules.get(name)) is not None:
        wrapt.notify_module_loaded(module)


def _come_first() -> None:
    """Have wrapt's finder asked before those that were put before it since: a module that another finder loads runs no hook.

    It is left at its old place too, where an import that another thread has begun may still come to it.
    """
    if not isinstance(next(iter(sys.meta_path), None), ImportHookFinder):
        finders = (finder for finder in sys.meta_path if isinstance(finder, ImportHookFinder))
        sys.meta_path.insert(0, next(finders, None) or ImportHookFinder())
