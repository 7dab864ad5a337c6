"""transformers.integrations.hub_kernels: an installed fla is found."""

from __future__ import annotations

from patchwork import Case, Patch, required

_LOOKUP = "implementation = resolve_internal_import(module, full_path)"
_FURTHER = """\
if implementation is None and internal_path is not None:
    implementation = getattr(importlib.import_module(f"{package}.{internal_path}"), func_name, None)
"""
_BEFORE = f"""\
def use_kernel_func_from_hub_with_fallback(func_name, package, internal_path=None):
    full_path = func_name if internal_path is None else f"{{internal_path}}.{{func_name}}"

    def decorator(torch_function):
        module = importlib.import_module(package)
        {_LOOKUP}
        return implementation or torch_function

    return decorator
"""
_AFTER = _BEFORE.replace(_LOOKUP, _LOOKUP + "\n" + " " * 8 + _FURTHER.strip().replace("\n", "\n" + " " * 8))

PATCHES = (
    Patch(
        name="transformers.hub_kernels.submodules",
        target="transformers.integrations.hub_kernels:use_kernel_func_from_hub_with_fallback",
        versions={"transformers": ">=5.15,<5.17"},
        reason=(
            "A kernel is looked up from the root of its package, but fla's root does not import what lies below, so the torch "
            "function is taken although fla is installed. From 5.17 on the module is imported, as here. Modeling files that "
            "were imported before apply() keep what they found."
        ),
        edits=[required(_LOOKUP).insert_after(_FURTHER)],
        cases=[Case(before=_BEFORE, after=_AFTER)],
    ),
)
