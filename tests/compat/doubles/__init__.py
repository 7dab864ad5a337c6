"""Doubles of the CUDA kernels (causal-conv1d, flash-linear-attention, mamba-ssm), and how a model on the CPU is brought to them.

The packages lie as source in ``packages/``; ``install`` copies them to a folder on the path, as they are or with a fault, so
they are imported, inspected and patched like the real ones. They enforce the contract of the real kernels.
"""

from __future__ import annotations

import ast
import contextlib
import functools
import importlib
import inspect
import re
import shutil
import sys
import types
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any, Literal

import pytest
import torch

Variant = Literal["exact", "ignores", "renamed"]

SOURCE = Path(__file__).with_name("packages")
# What each package counts as, its distributions, the argument that carries the boundaries, and its name when renamed.
PACKAGES: dict[str, tuple[str, tuple[str, ...], str, str]] = {
    "causal_conv1d": ("conv", ("causal_conv1d",), "seq_idx", "sequence_ids"),
    "fla": ("scan", ("flash_linear_attention", "fla_core"), "cu_seqlens", "offsets"),
    "mamba_ssm": ("scan", ("mamba_ssm",), "seq_idx", "sequence_ids"),
}
# The module of each kernel; kernels that are called by other names too.
KERNELS = {
    "causal_conv1d_fn": "causal_conv1d",
    "causal_conv1d_update": "causal_conv1d",
    "chunk_gated_delta_rule": "fla.ops.gated_delta_rule",
    "fused_recurrent_gated_delta_rule": "fla.ops.gated_delta_rule",
    "chunk_kda": "fla.ops.kda",
    "mamba_chunk_scan_combined": "mamba_ssm.ops.triton.ssd_combined",
    "mamba_split_conv1d_scan_combined": "mamba_ssm.ops.triton.ssd_combined",
    "selective_state_update": "mamba_ssm.ops.triton.selective_state_update",
    "selective_scan_fn": "mamba_ssm.ops.selective_scan_interface",
    "mamba_inner_fn": "mamba_ssm.ops.selective_scan_interface",
}
ALIASES = {"falcon_mamba_inner_fn": "mamba_inner_fn", "recurrent_gated_delta_rule": "fused_recurrent_gated_delta_rule"}


# ---- packages ---------------------------------------------------------------------------------------------------


def write(folder: Path, conv: Variant | None = "exact", scan: Variant | None = "exact") -> None:
    """Writes the packages to a folder; put it on the path of a new process (PYTHONPATH) and all eras but those with attributes
    or globals, see ``use``, take them from there.

    Args:
        conv: causal-conv1d; scan: flash-linear-attention and mamba-ssm. "exact": right. "ignores": takes its boundaries,
            checks them, and keeps nothing apart. "renamed": has another name for that argument. None: is not there.
    """
    for package, (role, distributions, argument, other) in PACKAGES.items():
        variant = conv if role == "conv" else scan
        if variant is None:
            continue
        for path in sorted((SOURCE / package).rglob("*.py")):
            text = path.read_text()
            if variant == "ignores":
                text = re.sub(r"(?m)^    documents = \w+$", "    documents = None", text)
            elif variant == "renamed":
                text = re.sub(rf"\b{argument}\b", other, text)
            target = folder / path.relative_to(SOURCE)
            target.parent.mkdir(parents=True, exist_ok=True)
            target.write_text(text)
        version = re.search(r'__version__ = "(.+)"', (SOURCE / package / "__init__.py").read_text())
        for distribution in distributions:
            info = folder / f"{distribution}-{version[1]}.dist-info"  # type: ignore[index]
            info.mkdir()
            (info / "METADATA").write_text(f"Metadata-Version: 2.1\nName: {distribution}\nVersion: {version[1]}\n")
            (info / "top_level.txt").write_text(f"{package}\n")


def install(
    monkeypatch: pytest.MonkeyPatch, folder: Path, conv: Variant | None = "exact", scan: Variant | None = "exact"
) -> None:
    """Makes the packages importable until ``monkeypatch`` is undone, in ``folder``; arguments as for ``write``.

    A package of the same name that is installed, or was imported before, is out of sight.
    """
    _import_families()
    shutil.rmtree(folder / "doubles", ignore_errors=True)
    write(folder / "doubles", conv, scan)
    for package, (role, *_) in PACKAGES.items():
        absent = (conv if role == "conv" else scan) is None
        for name in {*_modules(package), *(name for name in sys.modules if name.split(".")[0] == package)}:
            # Set first, so that what a test imports is gone when this is undone.
            monkeypatch.setitem(sys.modules, name, None)  # type: ignore[arg-type]
            if not absent:
                del sys.modules[name]
    monkeypatch.syspath_prepend(folder / "doubles")
    # Asked once for each class, which outlives the doubles: tests after this one have no kernels.
    monkeypatch.setattr("patchwork.packing.runtime.mixer_forward.fast_kernels", lambda: False)


@functools.cache
def _import_families() -> None:
    """From 5.15 a module of transformers looks for kernels when it is imported, and would keep the doubles for other tests."""
    import families

    for name in families.names():
        importlib.import_module(f"transformers.models.{name}.modeling_{name}")


def _modules(package: str) -> Iterator[str]:
    for path in (SOURCE / package).rglob("*.py"):
        yield ".".join(path.relative_to(SOURCE).with_suffix("").parts).removesuffix(".__init__")


def kernel(name: str) -> Callable[..., Any] | None:
    """The function of that name; None if its package is not there."""
    name = ALIASES.get(name, name)
    try:
        return getattr(importlib.import_module(KERNELS[name]), name)
    except ModuleNotFoundError:
        return None


def calls() -> list[tuple[str, torch.Tensor | None]]:
    """The kernels that ran since ``install``, package by package, each with the boundaries it was given."""
    modules = (sys.modules.get(f"{package}.calls") for package in PACKAGES)
    return [call for module in modules if module is not None for call in module.calls]


def forget_calls() -> None:
    """Empties ``calls``."""
    for package in PACKAGES:
        if (module := sys.modules.get(f"{package}.calls")) is not None:
            module.calls.clear()


# ---- models -----------------------------------------------------------------------------------------------------


def use(monkeypatch: pytest.MonkeyPatch, model: torch.nn.Module) -> None:
    """Brings a built model on the CPU to the kernels that are installed, in any release, until ``monkeypatch`` is undone.

    What it undoes is what a machine without CUDA prevents; the code of transformers that then runs is its own. Call it after
    ``install``, and after patches are applied; it does not matter whether the model is isolated already. What was set on an
    instance stays there when another ``install`` leaves that kernel out: build the model anew.
    * From 5.15, and for each module: its decorated functions are resolved again, by transformers' own decorator.
    * Before: kernels that a mixer holds as attributes are set on it. Those that are globals of its module are set there, and
      the question whether the weights are on "cuda", in the forward of a mixer that has ``cuda_kernels_forward``, is asked
      about the CPU.
    """
    parts = list(model.modules())
    for module in {sys.modules[type(part).__module__] for part in parts}:
        if hasattr(module, "use_kernel_func_from_hub_with_fallback"):
            _resolve_again(monkeypatch, module)
    for kind in {type(part) for part in parts if hasattr(part, "cuda_kernels_forward")}:
        if _set_globals(monkeypatch, kind):
            _allow_kernels(monkeypatch, [part for part in parts if type(part) is kind])
            _ask_about_cpu(monkeypatch, kind)
    for part in parts:
        for name in {*KERNELS, *ALIASES} & set(vars(part)):
            if (function := kernel(name)) is not None:
                monkeypatch.setattr(part, name, function)


def _resolve_again(monkeypatch: pytest.MonkeyPatch, module: types.ModuleType) -> None:
    decorate = module.use_kernel_func_from_hub_with_fallback
    for node in ast.parse(inspect.getsource(module)).body:
        for call in getattr(node, "decorator_list", ()):
            if isinstance(call, ast.Call) and ast.unparse(call.func) == decorate.__name__:
                arguments = [ast.literal_eval(argument) for argument in call.args]
                fallback = getattr(module, node.name).__wrapped__
                monkeypatch.setattr(module, node.name, decorate(*arguments)(fallback))


def _set_globals(monkeypatch: pytest.MonkeyPatch, kind: Any) -> bool:
    """Whether all kernels that the class calls are there."""
    module = sys.modules[kind.__module__]
    called = {*inspect.unwrap(kind.cuda_kernels_forward).__code__.co_names, *vars(module)} & {*KERNELS, *ALIASES}
    found = {name: kernel(name) for name in called}
    fast = all(found.values())
    for name, function in found.items():
        monkeypatch.setattr(module, name, function, raising=False)  # some are not even None where a package is absent
    # In 4.57 Mamba fetches the convolution when it is first needed.
    if hasattr(module, "_causal_conv1d_cache"):
        monkeypatch.setattr(module, "_causal_conv1d_cache", tuple(map(kernel, ("causal_conv1d_update", "causal_conv1d_fn"))))
    if hasattr(module, "is_fast_path_available"):
        monkeypatch.setattr(module, "is_fast_path_available", fast)
    return fast


def _allow_kernels(monkeypatch: pytest.MonkeyPatch, mixers: list[Any]) -> None:
    """Jamba and Zamba are told whether to use kernels, and raise, or stop using them, where they cannot."""
    for mixer in mixers:
        if hasattr(mixer, "use_fast_kernels"):
            monkeypatch.setattr(mixer, "use_fast_kernels", True)
        if hasattr(config := getattr(mixer, "config", None), "use_mamba_kernels"):
            monkeypatch.setattr(config, "use_mamba_kernels", True)
    # Some enter these around a kernel.
    for name in ("device", "stream", "default_stream"):
        monkeypatch.setattr(torch.cuda, name, lambda *_: contextlib.nullcontext())


def _ask_about_cpu(monkeypatch: pytest.MonkeyPatch, kind: type) -> None:
    """Puts a copy of the innermost ``forward`` in its place, below decorators and wrappers: the function itself stays as it is,
    since patches know it by its code, and the copy is made at each call, since they change that code."""
    holder: Any = next(base for base in kind.__mro__ if "forward" in vars(base))
    name, inner = "forward", holder.forward
    while below := [cell for cell in inner.__closure__ or () if getattr(cell.cell_contents, "__name__", "") == "forward"]:
        holder, name, inner = below[0], "cell_contents", below[0].cell_contents

    @functools.wraps(inner)
    def forward(*args: Any, **kwargs: Any) -> Any:
        code = inner.__code__
        constants = tuple("cpu" if constant == "cuda" else constant for constant in code.co_consts)
        code = code.replace(co_consts=constants)
        copied = types.FunctionType(code, inner.__globals__, inner.__name__, inner.__defaults__, inner.__closure__)
        copied.__kwdefaults__ = inner.__kwdefaults__
        return copied(*args, **kwargs)

    monkeypatch.setattr(holder, name, forward)
