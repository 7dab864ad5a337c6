"""Which adapters of PEFT keep the documents of a packed row apart: those that work on each token alone.

Every method that PEFT has is listed here, by reading what its layers compute. A method that is not listed is refused.
"""

from __future__ import annotations

import functools
import sys
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any

# Methods whose layers change weights, or add to or scale what a layer gives for a token, whatever the other tokens are.
# Named by PEFT's folders of tuners, which are its types in lower case.
PER_TOKEN = frozenset(
    {
        *("adalora", "adamss", "adaption_prompt", "beft", "boft", "bone", "c3a", "deft", "delora", "fourierft", "frod", "glora"),
        *("gralora", "hira", "hra", "ia3", "ln_tuning", "loha", "lokr", "lora", "miss", "oft", "osf", "peanut", "psoft", "pvera"),
        *("randlora", "road", "shira", "supertuning", "tinylora", "trainable_tokens", "unilora", "vblora", "vera", "waveft"),
    }
)
PREPENDS = "puts its tokens before the row, not before each document, and does not keep position_ids"
INVOKED = "looks for its invocation tokens once a row, and acts on what follows the last ones, whichever document that is"
BY_ROW = "chooses its weights by row, not by document"
AVERAGES = "averages over all tokens of a call, those of other documents too"
WHOLE_ROW: Mapping[str, str] = {
    **dict.fromkeys(("prompt_tuning", "multitask_prompt_tuning", "p_tuning", "prefix_tuning", "cpt", "cartridge"), PREPENDS),
    "lily": AVERAGES,
    "poly": BY_ROW,
    "xlora": "scales the places of a row, and mixers that run on documents side by side have other rows",
    "shadow": "runs a network of its own beside the model, which boundaries do not reach",
}
NAMES = (
    "the call's adapter_names give each row its adapter, and a row has several documents: choose one with set_adapter, or give "
    "each document a row"
)
_EACH_STEP = "batch_average"  # VeLoRA's projection of gradients, made anew of all tokens in each training step


def config_reason(peft_config: Any) -> str | None:
    """Why adapters of these configs cannot be trained on packed rows, else None.

    `peft_config`: a config of PEFT, a dict of them by adapter, or None.
    """
    each = peft_config.values() if isinstance(peft_config, Mapping) else [peft_config]
    reasons = (_reason_of_config(config) for config in each if config is not None)
    return next((reason for reason in reasons if reason is not None), None)


def _reason_of_config(config: Any) -> str | None:
    named = getattr(config, "peft_type", None)
    kind = str(getattr(named, "value", named))
    if getattr(config, "is_prompt_learning", False):
        return _reason(kind, PREPENDS)
    if getattr(config, "alora_invocation_tokens", None):
        return _reason(f"{kind}, activated", INVOKED)
    if getattr(getattr(config, "velora_config", None), "init_type", None) == _EACH_STEP:
        return _reason(f"{kind}, VeLoRA", AVERAGES)
    return _of_method(kind.lower())


def acting_reason(model: Any, beside: Callable[[Any], bool] | None = None) -> str | None:
    """Why the adapters that act in `model` now cannot work on packed rows, else None.

    Adapters that are disabled, merged or not active do not act. `beside`: modules that are left out, with all inside.
    """
    if "peft" not in sys.modules:
        return None
    for module in _modules(model, beside):
        kind: Any = type(module)
        shape = _shape(kind)
        if shape is None:
            continue
        reason = _prompt_reason(module) if shape == _PROMPTS else _layer_reason(module, shape)
        if reason is not None:
            return reason
    return None


def _modules(model: Any, beside: Callable[[Any], bool] | None) -> Iterator[Any]:
    """All modules inside of one; not by `modules()`, which takes several times as long."""
    ahead = [model]
    while ahead:
        module = ahead.pop()
        if beside is None or not beside(module):
            yield module
            ahead += [child for child in module._modules.values() if child is not None]


_PROMPTS, _WRAPPER = "PeftModel", "AuxiliaryTrainingWrapper"


@functools.cache
def _shape(kind: type) -> str | None:
    """What PEFT made a class for: _PROMPTS of a whole model, _WRAPPER of a copied module, or the method of a tuner's layer.

    None: nothing of PEFT's. A layer of somebody else's method has that of its class, by its full name.
    """
    names = {base.__name__ for base in kind.__mro__ if base.__module__.startswith("peft.")}
    for name in (_PROMPTS, _WRAPPER):
        if name in names:
            return name
    if "BaseTunerLayer" not in names:
        return None
    folders = (base.__module__.split(".") for base in kind.__mro__)
    methods = (path[2] for path in folders if path[:2] == ["peft", "tuners"] and len(path) > 3)
    return next(methods, f"{kind.__module__}.{kind.__qualname__}")


def _prompt_reason(model: Any) -> str | None:
    """Why the prompts of a PeftModel cannot work on packed rows, else None; adapters of other kinds act in layers."""
    if getattr(model, "_adapters_disabled", False):
        return None
    config = model.active_peft_config
    return _reason_of_config(config) if getattr(config, "is_prompt_learning", False) else None


def _layer_reason(layer: Any, method: str) -> str | None:
    hooks = layer._forward_pre_hooks
    if hooks and any("adapter_names" in getattr(hook, "keywords", ()) for hook in hooks.values()):
        return NAMES
    replacement = getattr(layer.__dict__.get("forward"), "__self__", None)
    if type(replacement).__name__.startswith("XLora"):  # it puts a forward of its own on layers of LoRA
        return None if getattr(replacement, "adapters_disabled", False) else _of_method("xlora")
    if method in PER_TOKEN and not layer.__dict__.get("lora_variant"):  # the usual one, soon done with
        return None
    if method == _WRAPPER or layer.disable_adapters or layer.merged:
        return None
    active = layer.active_adapters
    held = layer._get_available_adapters() if hasattr(layer, "_get_available_adapters") else active
    if not any(name in held for name in active):
        return None
    return _variant_reason(layer, active) or _of_method(method)


def _variant_reason(layer: Any, active: Sequence[str]) -> str | None:
    """Of the variants that LoRA's layers have, by adapter."""
    variants = getattr(layer, "lora_variant", {})
    for name in active:
        variant = variants.get(name)
        kind = getattr(variant, "__name__", type(variant).__name__)
        if kind.startswith("ALora"):
            return _reason("LORA, activated", INVOKED)
        if kind.startswith("Velora") and layer.training and layer.lora_velora_init_type[name] == _EACH_STEP:
            return _reason("LORA, VeLoRA", AVERAGES)
    return None


def _of_method(method: str) -> str | None:
    if method in PER_TOKEN:
        return None
    if method in WHOLE_ROW:
        return _reason(method.upper(), WHOLE_ROW[method])
    return _reason(method, "is not known to work on each token alone")


def _reason(kind: str, what: str) -> str:
    return f"the adapter ({kind}) {what}: use another kind, such as LoRA"
