"""Takes a model apart whose code is not part of transformers: its parts are recognised by their shapes.

Code that comes with a checkpoint has names of its own, so its parts are recognised by what they hold: a causal depthwise
convolution with the parameters of a gated delta rule, of Mamba or of a short convolution; attention that goes through
transformers' registry; and parts that work on each token alone. All others are unknown, and one unknown part refuses the
model. What is recognised runs on documents side by side, attention too, since nothing is known about the masks.
"""

from __future__ import annotations

import inspect
import re
from collections.abc import Iterator
from types import CodeType, FunctionType
from typing import Any

import torch

from ..argument_names import BOUNDARIES, CACHES
from ..errors import IsolationError
from .dispatch import REGISTRY
from .families import Family, written
from .known_code import Anatomy, mixes
from .mixers import DROPPED, Mixer

_HIDDEN = ("hidden_states", "x", "hidden", "inputs", "input")
# What a mixer's or attention's call may hold beside its hidden states.
_PER_TOKEN = ("position_embeddings",)
_HARMLESS = ("output_attentions", "use_cache", "layer_idx", *BOUNDARIES, *CACHES)
_PROJECTIONS = ({"q_proj", "k_proj", "v_proj"}, {"qkv_proj"}, {"query_key_value"}, {"Wqkv"}, {"c_attn"})
_POINTWISE = re.compile(r"Norm|MLP|Mlp|FeedForward|FFN|Experts?$|Router|Gate$|MoE|Moe|Rotary|Embedding")
_TORCH_ALONE = (
    *(torch.nn.Linear, torch.nn.Embedding, torch.nn.Dropout, torch.nn.Identity, torch.nn.LayerNorm),
    *(torch.nn.ModuleList, torch.nn.ModuleDict, torch.nn.Sequential),
)
# Functions that move or add things up along a dimension; a part that works on each token alone needs none of them.
_MOVING = {
    "cat",
    "concat",
    "concatenate",
    "conv1d",
    "cummax",
    "cumprod",
    "cumsum",
    "flip",
    "pad",
    "roll",
    "scan",
    "shift",
    "unfold",
    "logcumsumexp",
}


def anatomy_by_structure(backbone: Any) -> Anatomy:
    """Takes a backbone of unlisted code apart. Raises IsolationError naming the parts that are of no known shape."""
    layers = {
        f"{name}.{key}": layer
        for name, child in backbone.named_children()
        if isinstance(child, torch.nn.ModuleList)
        for key, layer in child.named_children()
    }
    if not layers:
        raise IsolationError(f"{type(backbone).__name__} has no list of layers, as a text backbone has")
    found = _Sorted(layers)
    for path, child in _children(backbone):
        found.sort(path, child)
    found.unknown += [name for name in found.mixers if not any(name.startswith(f"{path}.") for path in layers)]
    if found.unknown:
        raise IsolationError(
            f"the code of {type(backbone).__name__} ({type(backbone).__module__}) is not part of transformers, and these parts "
            f"are of no known shape: {', '.join(found.unknown[:8])}"
        )
    kinds = tuple(dict.fromkeys(type(layer).__name__ for layer in layers.values()))
    return Anatomy(Family(type(backbone).__module__.split(".")[-1], type(backbone).__name__, kinds), layers, found.mixers)


def _children(module: Any, prefix: str = "") -> Iterator[tuple[str, Any]]:
    for name, child in module.named_children():
        yield (f"{prefix}.{name}" if prefix else name), child


class _Sorted:
    """The parts of a backbone: mixers, unknown ones, and, in neither, those that work on each token alone."""

    def __init__(self, layers: dict[str, Any]) -> None:
        self.layers = layers
        self.mixers: dict[str, tuple[Any, Mixer]] = {}
        self.unknown: list[str] = []

    def sort(self, path: str, module: Any) -> None:
        entry = recurrent_entry(module) or attention_entry(module)
        if entry is not None:
            self.mixers[path] = (module, entry)
            return
        if not self._alone(path, module):
            self.unknown.append(f"{path} ({type(module).__name__})")
            return
        for inner, child in _children(module, path):
            self.sort(inner, child)

    def _alone(self, path: str, module: Any) -> bool:
        """Whether a part, what it holds aside, works on each token alone."""
        kind = type(module)
        if isinstance(module, _TORCH_ALONE) or kind.__module__ == "torch.nn.modules.activation":
            return kind.__name__ != "MultiheadAttention"
        if kind.__module__.startswith(("transformers.activations", "peft.")):
            return True
        if kind.__module__.startswith("torch."):
            return False
        if path not in self.layers and (mixes(kind) or not _POINTWISE.search(kind.__name__)):
            return False
        return "Rotary" in kind.__name__ or not _names_in(kind) & _MOVING


def recurrent_entry(module: Any) -> Mixer | None:
    """The entry of a recurrent mixer of a known shape, else None: a causal depthwise convolution, and beside it the decay of a
    gated delta rule or of Mamba, or nothing but projections into and out of it."""
    convolutions = [child for _, child in module.named_children() if isinstance(child, torch.nn.Conv1d)]
    if not convolutions or not all(map(_causal_depthwise, convolutions)):
        return None
    own = {name for name, _ in module.named_parameters(recurse=False)}
    projections = {name for name, child in module.named_children() if isinstance(child, torch.nn.Linear)}
    scanned = "A_log" in own and bool(own & {"D", "dt_bias"})
    if not scanned and not (not own and {"in_proj", "out_proj"} <= projections):
        return None
    if not projections & {"out_proj", "o_proj"}:
        return None
    return _entry(module, masks=())


def _causal_depthwise(convolution: Any) -> bool:
    reach = (convolution.kernel_size[0] - 1) * convolution.dilation[0]
    return convolution.groups == convolution.in_channels and convolution.stride[0] == 1 and tuple(convolution.padding) == (reach,)


def attention_entry(module: Any) -> Mixer | None:
    """The entry of attention that goes through transformers' registry, which takes a mask or makes it causal; else None."""
    names = {name for name, _ in module.named_children()}
    if not any(wanted <= names for wanted in _PROJECTIONS) or REGISTRY not in _names_in(type(module)):
        return None
    if not getattr(module, "is_causal", False):
        return None
    return _entry(module, masks=("attention_mask",))


def _entry(module: Any, masks: tuple[str, ...]) -> Mixer | None:
    """None where the call takes anything by which a row could get in that is not known here."""
    parameters = list(inspect.signature(written(type(module).forward)).parameters.values())[1:]
    if not parameters or parameters[0].name not in _HIDDEN:
        return None
    per_token, strange = [], []
    for parameter in parameters[1:]:
        if parameter.name in _PER_TOKEN or (masks and parameter.name == "position_ids"):
            per_token.append(parameter.name)
        elif parameter.name not in (*DROPPED, *_HARMLESS, *masks) and parameter.kind not in (
            parameter.VAR_KEYWORD,
            parameter.VAR_POSITIONAL,
        ):
            strange.append(parameter.name)
    if strange:
        return None
    name = type(module).__name__
    return Mixer(
        name, "", hidden=parameters[0].name, per_token=tuple(per_token), masks=masks, results=(0,), closed="unlisted code"
    )


def _names_in(kind: type) -> set[str]:
    """The names that the methods of a class use, those of its bases outside of torch too."""
    found: set[str] = set()
    for base in kind.__mro__:
        if base.__module__.split(".")[0] in ("torch", "builtins"):
            continue
        for member in vars(base).values():
            function = written(member) if isinstance(member, FunctionType) else None
            if isinstance(function, FunctionType) and function.__name__ != "__init__":
                found.update(_code_names(function.__code__))
    return found


def _code_names(code: CodeType) -> set[str]:
    names = set(code.co_names)
    for constant in code.co_consts:
        if isinstance(constant, CodeType):
            names |= _code_names(constant)
    return names
