"""What about this machine? Packages and where they are loaded from, each patch, and whether packing is safe here.

Imports neither torch nor transformers unless a model is asked about.
"""

from __future__ import annotations

import importlib.metadata
import importlib.util
import multiprocessing
import os
import platform
import sys
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from packaging.version import Version

from .catalog import all_patches, newest_tested, old_tool_installed, switched_off
from .engine.preview import Preview, preview
from .packing.mixers import FAMILIES

# Distribution name by import name, where the two differ.
_PACKAGES = {
    "torch": "torch",
    "transformers": "transformers",
    "trl": "trl",
    "datasets": "datasets",
    "accelerate": "accelerate",
    "peft": "peft",
    "unsloth_zoo": "unsloth_zoo",
    "causal_conv1d": "causal-conv1d",
    "fla": "flash-linear-attention",
    "mamba_ssm": "mamba-ssm",
    "flash_attn": "flash-attn",
}


@dataclass(frozen=True)
class Package:
    """One package of the stack: `version` and `path` are None where it is not installed."""

    name: str
    version: str | None
    path: str | None


@dataclass(frozen=True)
class Verdict:
    """Whether packed rows are safe. `safe` is False where packing is refused or a patch that it needs fails."""

    safe: bool
    sentence: str
    reasons: tuple[str, ...] = ()


@dataclass(frozen=True)
class Diagnosis:
    """Everything `patchwork doctor` says, as values."""

    python: str
    packages: tuple[Package, ...]
    patches: tuple[Preview, ...]
    warnings: tuple[str, ...]
    packing: Verdict
    model: str | None = None

    @property
    def ok(self) -> bool:
        """Nothing falls short: no patch fails, and packing is safe (for the model, if one was asked about)."""
        return self.packing.safe and all(item.outcome.state != "failed" for item in self.patches)

    def as_dict(self) -> dict[str, Any]:
        """Plain values, for JSON."""
        return {
            "ok": self.ok,
            "python": self.python,
            "packages": {item.name: {"version": item.version, "path": item.path} for item in self.packages},
            "patches": [patch_as_dict(item) for item in self.patches],
            "warnings": list(self.warnings),
            "model": self.model,
            "packing": {
                "safe": self.packing.safe,
                "sentence": self.packing.sentence,
                "reasons": list(self.packing.reasons),
            },
        }


def patch_as_dict(item: Preview) -> dict[str, Any]:
    """One previewed patch as plain values."""
    return {
        **item.outcome.as_dict(),
        "reason": item.patch.reason,
        "versions": dict(item.patch.versions),
        "path": item.path,
    }


def previews() -> list[Preview]:
    """Every patch on what is installed here, nothing applied; switches in the environment count."""
    patches = all_patches()
    return preview(patches, switched_off=switched_off((), patches), tested=newest_tested())


def diagnose(model: str | None = None) -> Diagnosis:
    """Look at this machine, and at a model (a name, a path or a config's folder) if one is given."""
    packages = tuple(_package(name, distribution) for name, distribution in _PACKAGES.items())
    patches = tuple(previews())
    versions = {item.name: item.version for item in packages}
    verdict = _verdict_on_stack(versions, patches)
    if model is not None and verdict.safe:
        verdict = _verdict_on_model(model)
    return Diagnosis(f"{platform.python_version()} ({sys.executable})", packages, patches, tuple(_warnings()), verdict, model)


def _package(name: str, distribution: str) -> Package:
    spec = importlib.util.find_spec(name)
    if spec is None:
        return Package(name, None, None)
    try:
        version = importlib.metadata.version(distribution)
    except importlib.metadata.PackageNotFoundError:
        version = "unknown"
    return Package(name, version, spec.origin or next(iter(spec.submodule_search_locations or []), None))


def _verdict_on_stack(versions: Mapping[str, str | None], patches: tuple[Preview, ...]) -> Verdict:
    absent = [name for name in ("torch", "transformers") if versions[name] is None]
    if absent:
        return Verdict(False, f"nothing to pack with: {' and '.join(absent)} not installed here")
    off = [f"{item.patch.name}: {item.outcome.detail or item.outcome.state}" for item in patches if _in_the_way(item)]
    if off:
        return Verdict(False, "patches that packing needs are not in force", tuple(off))
    kernels = " and ".join(name for name in ("causal_conv1d", "fla") if versions[name] is not None)
    here = [family for family in FAMILIES if Version(family.since) <= Version(versions["transformers"] or "0")]
    recurrent = ", ".join(family.name for family in here if family.layer)
    attention = ", ".join(family.name for family in here if not family.layer)
    return Verdict(
        True,
        "exact after patchwork.apply()",
        (
            f"document batching, {f'with {kernels}' if kernels else 'without kernels'}: {recurrent}",
            f"attention masks from restarting positions: {attention}",
            "any other family is refused when it meets a packed row; ask about a model with --model",
        ),
    )


def _in_the_way(item: Preview) -> bool:
    """Whether packing cannot be vouched for because of this patch: it fails, or what isolates models is left out."""
    isolates = item.patch.set_name == "transformers.isolation"
    return item.outcome.state == "failed" or (isolates and item.outcome.state == "skipped")


def _verdict_on_model(model: str) -> Verdict:
    from .packing import decide

    decision = decide(model)
    if decision.packing:
        return Verdict(True, f"packing is exact for {model}", tuple(decision.reasons))
    return Verdict(False, f"packing is refused for {model}", tuple(decision.reasons))


def _warnings() -> list[str]:
    found = []
    if clash := old_tool_installed():
        found.append(clash)
    method = multiprocessing.get_start_method(allow_none=True) or multiprocessing.get_all_start_methods()[0]
    if method != "fork":
        found.append(
            f"worker processes start by {method} and do not inherit patches: call patchwork.apply() in each "
            "(for a DataLoader, in worker_init_fn)"
        )
    if disabled := os.environ.get("PATCHWORK_DISABLE"):
        found.append(f"PATCHWORK_DISABLE={disabled} leaves patches out")
    return found
