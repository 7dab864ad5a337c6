"""The varlen kernels that keep documents apart, and whether a mixer will call them with boundaries.

Asked before each packed call of a mixer, since a model may have moved, been compiled or got other kernels since. The answer
is the reason as text; "" means that the kernels can be used. What they then receive is checked by
patchwork.packing.runtime.handshake.
"""

from __future__ import annotations

import functools
import importlib.metadata
import inspect
import sys
from contextlib import suppress
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from packaging.specifiers import SpecifierSet

from .families import written
from .mixers import Mixer

if TYPE_CHECKING:
    from ..boundaries import Boundaries

SEQ_IDX, CU_SEQLENS = "seq_idx", "cu_seqlens"
# By what names a mixer's forward takes boundaries, in every release: upstream's own, which source patches use too.
TOLD = ("seq_idx", "cu_seq_lens_q")
_ON_DEVICE = ("cuda", "xpu")
# The distributions that may hold a package of kernels; the first one that is installed does.
_DISTRIBUTIONS = {
    "causal_conv1d": ("causal-conv1d",),
    "fla": ("fla-core", "flash-linear-attention"),
    "mamba_ssm": ("mamba-ssm",),
}


@dataclass(frozen=True)
class Kernel:
    """A varlen kernel: its package and function, the argument by which it is told documents, and which state it resets.

    `documents`: a bound on documents times value heads, 0 for none; it goes with `cu_seqlens`, which takes one row.
    """

    package: str
    name: str
    argument: str
    resets: tuple[str, ...]
    documents: int = 0


KERNELS = {
    kernel.name: kernel
    for kernel in (
        Kernel("causal_conv1d", "causal_conv1d_fn", SEQ_IDX, ("convolution",)),
        Kernel("fla", "chunk_gated_delta_rule", CU_SEQLENS, ("scan",), 65535),
        Kernel("fla", "chunk_kda", CU_SEQLENS, ("scan",), 65535),
        Kernel("mamba_ssm", "mamba_chunk_scan_combined", SEQ_IDX, ("scan",)),
        Kernel("mamba_ssm", "mamba_split_conv1d_scan_combined", SEQ_IDX, ("convolution", "scan")),
    )
}


def titled(kernel: Kernel) -> str:
    """A kernel as reasons name it, with the distribution and version that it comes from: fla-core 0.3.2's chunk_kda."""
    version = getattr(sys.modules.get(kernel.package), "__version__", None)
    return f"{kernel.package if version is None else _release(kernel.package, str(version))}'s {kernel.name}"


@functools.cache
def _release(package: str, version: str) -> str:
    for distribution in _DISTRIBUTIONS[package]:
        with suppress(importlib.metadata.PackageNotFoundError):
            importlib.metadata.version(distribution)
            return f"{distribution} {version}"
    return f"{package} {version}"


def resets(entry: Mixer) -> set[str]:
    """The states that must be reset where a document begins, for a mixer with kernels."""
    return {state for name, _ in entry.kernels for state in KERNELS[name].resets}


def arguments_for(boundaries: Boundaries) -> dict[str, Any]:
    """What a mixer on the native way is called with."""
    return {"seq_idx": boundaries.seq_idx, "cu_seq_lens_q": boundaries.cu_seqlens}


def gap(module: Any, entry: Mixer, boundaries: Boundaries | None = None) -> str:
    """Why boundaries would not reach the kernels of this mixer; empty if they would, so far as can be told beforehand.

    `boundaries`: of the call, where there is one; some batches are beyond what a kernel takes.
    """
    reason = closed_here(entry) or _not_dispatched(module)
    for name, called in entry.kernels:
        reason = reason or _not_held(module, KERNELS[name], called) or _too_many(module, KERNELS[name], boundaries)
    return reason or _unheard(type(module), entry)


def closed_here(entry: Mixer) -> str:
    """Why no mixer of this class can hand boundaries on in the transformers that is imported; empty if it can."""
    if not entry.kernels:
        return entry.closed
    release = sys.modules["transformers"].__version__
    if entry.native and SpecifierSet(entry.native).contains(release, prereleases=True):
        return ""
    return entry.closed or f"in transformers {release} its forward does not hand boundaries on"


def _unheard(kind: Any, entry: Mixer) -> str:
    """Not cached: a source patch lets a forward hand boundaries on, and takes that away at a revert. A forward with
    `**kwargs` may swallow them: one that goes on to another method has to name them, and cumulative lengths are renamed."""
    code = written(kind.forward).__code__
    named = code.co_varnames[: code.co_argcount + code.co_kwonlyargcount]
    swallows = bool(code.co_flags & inspect.CO_VARKEYWORDS) and not hasattr(kind, "cuda_kernels_forward")
    wanted = {KERNELS[name].argument for name, _ in entry.kernels}
    dropped = [SEQ_IDX] if SEQ_IDX not in named and not swallows else []
    if CU_SEQLENS in wanted and CU_SEQLENS not in _constants(code.co_consts):
        dropped.append(CU_SEQLENS)
    return f"its forward does not hand on {' and '.join(dropped)} (is the source patch in force?)" if dropped else ""


def _constants(constants: tuple[Any, ...]) -> set[Any]:
    """Of a code object, with those in tuples: keywords of calls are there."""
    return {each for constant in constants for each in (constant if isinstance(constant, tuple) else (constant,))}


def _not_dispatched(module: Any) -> str:
    """Releases whose forward picks a branch go to the kernels on a device only."""
    if not hasattr(type(module), "cuda_kernels_forward"):
        return ""
    device = next((parameter.device.type for parameter in module.parameters()), "none")
    return "" if device in _ON_DEVICE else f"its forward goes to the kernels on a GPU only, and it is on {device}"


def _not_held(module: Any, kernel: Kernel, names: tuple[str, ...]) -> str:
    scope = sys.modules[type(module).__module__].__dict__
    held: Any = next((place[name] for place in (module.__dict__, scope) for name in names if name in place), None)
    function = _implementation(held)
    home = str(getattr(function, "__module__", "")).split(".")[0]
    if not inspect.isfunction(function) or home != kernel.package or getattr(function, "__name__", "") != kernel.name:
        return f"it does not call {titled(kernel)}"
    if kernel.argument not in _parameters(function):
        return f"{titled(kernel)} has no argument {kernel.argument}"
    if "saw" not in getattr(getattr(inspect.unwrap(function), "__code__", None), "co_names", ()):
        return f"nobody watches what {titled(kernel)} receives (patchwork.apply() would)"
    return ""


@functools.cache
def _parameters(function: Any) -> frozenset[str]:
    return frozenset(inspect.signature(function).parameters)


def _implementation(held: Any) -> Any:
    """What the function that a modeling file calls goes on to: releases from 5.15 resolve it once, in a closure."""
    if inspect.isfunction(held) and "implementation" in held.__code__.co_freevars:
        return (held.__closure__ or ())[held.__code__.co_freevars.index("implementation")].cell_contents
    return held


def _too_many(module: Any, kernel: Kernel, boundaries: Boundaries | None) -> str:
    if boundaries is None or kernel.argument != CU_SEQLENS:
        return ""
    if len(boundaries.rows) > 1:
        return f"{kernel.name} takes one row with {kernel.argument}, the batch has {len(boundaries.rows)}"
    heads = int(getattr(module, "num_v_heads", None) or getattr(module, "num_heads", None) or 1)
    documents = len(boundaries.segments[0])
    if kernel.documents and documents * heads > kernel.documents:
        return f"{kernel.name} takes {kernel.documents // heads} documents with {heads} heads, the row has {documents}"
    return ""
