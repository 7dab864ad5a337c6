"""The command `patchwork doctor`: packages and where they are loaded from, each patch, and whether packing is safe here.

Imports neither torch nor transformers unless a model is asked about.
"""

from __future__ import annotations

import importlib.util
import multiprocessing
import os
import platform
import sys
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from packaging.version import InvalidVersion, Version

from ..api import old_tool_installed, previews
from ..engine.environment.distributions import copies
from ..engine.preview import Preview
from ..packing.models.families import ATTENTION_ONLY, FAMILIES
from ..packing.settings import hybrid_packing, wrong_switches
from ..selection import all_patches
from .import_trials import Trial, try_imports

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
_KERNELS = ("causal_conv1d", "fla", "mamba_ssm")


@dataclass(frozen=True)
class Package:
    """One package of the stack: `version` and `path` are None where it is not installed. `others`: copies that are not used."""

    name: str
    version: str | None
    path: str | None
    others: tuple[str, ...] = ()


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
    imports: tuple[Trial, ...] | None = None

    @property
    def ok(self) -> bool:
        """Nothing falls short: no patch fails, packing is safe (for the model, if one was asked about), every import works."""
        fits = all(item.outcome.state != "failed" for item in self.patches)
        return self.packing.safe and fits and all(item.error is None for item in self.imports or ())

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
            "imports": None if self.imports is None else [item.as_dict() for item in self.imports],
        }


def patch_as_dict(item: Preview) -> dict[str, Any]:
    """One previewed patch as plain values."""
    return {
        **item.outcome.as_dict(),
        "reason": item.patch.reason,
        "versions": dict(item.patch.versions),
        "path": item.path,
    }


def diagnose(model: str | None = None, *, with_imports: bool = False) -> Diagnosis:
    """Look at this machine, and at a model (a name, a path or a config's folder) if one is given.

    `with_imports` also tries to import the modules that the patches are for, in another process.
    """
    packages = tuple(_package(name, distribution) for name, distribution in _PACKAGES.items())
    patches = tuple(previews(all_patches()))
    versions = {item.name: item.version for item in packages}
    verdict = _verdict_on_stack(versions, patches)
    if model is not None and verdict.safe:
        verdict = _verdict_on_model(model)
    here = dict.fromkeys(item.patch.module for item in patches if item.outcome.state not in ("absent", "skipped"))
    imports = tuple(try_imports(list(here))) if with_imports else None
    python = f"{platform.python_version()} ({sys.executable})"
    return Diagnosis(python, packages, patches, tuple(_warnings(packages)), verdict, model, imports)


def _package(name: str, distribution: str) -> Package:
    spec = importlib.util.find_spec(name)
    if spec is None:
        return Package(name, None, None)
    found = copies(distribution, spec.origin)
    path = spec.origin or next(iter(spec.submodule_search_locations or []), None)
    return Package(name, found.version or "unknown", path, found.others)


def _verdict_on_stack(versions: Mapping[str, str | None], patches: tuple[Preview, ...]) -> Verdict:
    absent = [name for name in ("torch", "transformers") if versions[name] is None]
    if absent:
        return Verdict(False, f"nothing to pack with: {' and '.join(absent)} not installed here")
    off = [f"{item.patch.name}: {item.outcome.detail or item.outcome.state}" for item in patches if _in_the_way(item)]
    if off:
        return Verdict(False, "patches that packing needs are not in force", tuple(off))
    if wrong := wrong_switches():
        return Verdict(False, "environment variables hold values that are none of theirs", tuple(wrong))
    kernels = ", ".join(name for name in _KERNELS if versions[name] is not None)
    release = _comparable(versions["transformers"])
    recurrent = ", ".join(family.name for family in FAMILIES if _is_here(family.name))
    attention = ", ".join(name for name, since in sorted(ATTENTION_ONLY.items()) if Version(since) <= release and _is_here(name))
    way = f"{f'native kernels where {kernels} take boundaries, else ' if kernels else ''}document batching"
    return Verdict(
        True,
        "exact after patchwork.apply()",
        (
            f"{way if hybrid_packing() else 'refused, by PATCHWORK_HYBRID_PACKING=0'}: {recurrent}",
            f"attention alone, documents side by side or varlen kernels: {attention}",
            "any other family is refused when it meets a packed row; ask about a model with --model",
        ),
    )


def _is_here(family: str) -> bool:
    """Whether the installed transformers has the family."""
    spec = importlib.util.find_spec("transformers")
    places = (spec.submodule_search_locations or []) if spec is not None else []
    return any((Path(place) / "models" / family).is_dir() for place in places)


def _comparable(version: str | None) -> Version:
    try:
        return Version(version or "0")
    except InvalidVersion:  # a copy that does not say which it is
        return Version("0")


def _in_the_way(item: Preview) -> bool:
    """Whether packing cannot be vouched for because of this patch: it fails, or what isolates models is left out."""
    isolates = item.patch.set_name == "transformers.isolation"
    return item.outcome.state == "failed" or (isolates and item.outcome.state == "skipped")


def _verdict_on_model(model: str) -> Verdict:
    from ..packing import decide

    decision = decide(model)
    if decision.packing:
        ways = tuple(f"{kind}: {way}" for kind, way in (decision.ways or {}).items())
        return Verdict(True, f"packing is exact for {model}", ways)
    return Verdict(False, f"packing is refused for {model}", tuple(decision.reasons))


def _warnings(packages: Sequence[Package]) -> list[str]:
    found = [
        f"{item.name} {item.version} is loaded from {item.path}; another copy is not used: {', '.join(item.others)}"
        for item in packages
        if item.others
    ]
    if clash := old_tool_installed():
        found.append(clash)
    method = multiprocessing.get_start_method(allow_none=True) or multiprocessing.get_all_start_methods()[0]
    if method != "fork":
        found.append(
            f"worker processes start by {method} and do not inherit patches: those of a Trainer's loaders apply them, in others "
            "call patchwork.apply() (in a DataLoader of your own, in worker_init_fn)"
        )
    if disabled := os.environ.get("PATCHWORK_DISABLE"):
        found.append(f"PATCHWORK_DISABLE={disabled} leaves patches out")
    return found
