"""Builds the smallest model of an architecture.

Nothing is known of families here. A width is a number of heads times a size per head, so all heads are divided by one
number, all sizes per head by another and all widths by the product of both: what a model's code asks of them (heads x
size = width, groups, expansion, rotary parts) holds as it did. Of the layers the first ones stay, as many as it takes
to have each kind.
"""

from __future__ import annotations

import copy
import math
import re
from dataclasses import dataclass
from itertools import product
from typing import Any

from ..errors import ProbeError
from ..models import config_fields as fields_of
from ..models.config_fields import (
    DROPOUT,
    HEADS,
    PER_HEAD,
    RANK,
    TOKEN,
    WIDTH,
    WIDTH_OF_PART,
    WIDTH_OF_TEXT,
    holders,
    said,
    text_part,
)
from .layer_kinds import shrink_layers

NARROWEST = 64  # hidden size
VOCABULARY = 128
IDS_FROM = 119  # and downwards: where token ids go that are beyond the vocabulary; its end is padding in some models
LARGEST = 60_000_000  # parameters
QUAD = 4  # grouped matrix products want 16 bytes of float32
LONE = 1000  # what it is worth, in width, that two of each kind of head are left

# What is not in proportion to anything. Windows are shorter than the documents that are measured.
_AT_MOST = (
    (re.compile(r"vocab_size|_vocab$"), VOCABULARY),
    (re.compile(r"(d_state|state_size)$"), 16),
    (re.compile(r"sliding_window(_size)?$|attention_window(_size)?$|attention_chunk_size$|^window_size$"), 4),
    (re.compile(r"^(keep_window_size|local_attention|local_attention_window_len|index_block_size)$"), 4),
    (re.compile(r"^index_topk_blocks$"), 2),
    (re.compile(r"^index(er)?_(topk|budget)$"), 4),
    (re.compile(r"^index(er)?_(kpool|compress_ratio)$"), 2),
    (re.compile(r"chunk_size$|^block_size$|^rel_extent$|^num_position_embeddings$"), 16),
    (re.compile(r"max_position_embeddings$|^(n_positions|max_seq_len|model_max_length|context_length|n_ctx)$"), 1024),
    (re.compile(r"^(moe_)?(num|n)_(local_|routed_)?experts$|^zero_expert_num$"), 4),
    (re.compile(r"experts_per_tok(en)?$|^moe_k$|^(moe_)?top_?k(_experts)?$"), 2),
)
_EXPERT_GROUPS, _GROUPS_CHOSEN = re.compile(r"^(n_group|num_expert_group)$"), re.compile(r"^topk_group$")
_ON_GPU = re.compile(r"^use_mamba_kernels$")  # 4.57 refuses them on the CPU, where tiny models are built

# What no rule tells: fields of some model types that stay, and defaults of transformers that no model can be built of.
_STAYS = {("xlstm", "chunk_size")}  # in 4.57 the code for whole chunks does not run, that for the rest of one does
_FEWEST_HEADS = {"codegen": 4}  # its weights lie in four parts
_UNSAID: dict[str, dict[str, Any]] = {
    "deepseek_v2": {"num_experts_per_tok": 6},
    "dots1": {"n_routed_experts": 128, "n_shared_experts": 2, "num_experts_per_tok": 6},
    "granitemoehybrid": {"layer_types": ["mamba", "mamba", "attention"]},
    "lfm2_moe": {"layer_types": ["conv", "conv", "full_attention"]},
    "qwen4_exp_text": {
        "indexer_n_heads": 16,
        "indexer_kv_heads": 1,
        "indexer_head_dim": 256,
        "indexer_budget": 2048,
        "indexer_compress_ratio": 16,
    },
}


def raised() -> tuple[type[Exception], ...]:
    """What code of models and configs raises of what it does not take. Packages that it comes with are loaded here."""
    from huggingface_hub import errors

    usual = (ArithmeticError, AssertionError, AttributeError, LookupError, OSError, RuntimeError, TypeError, ValueError)
    return *usual, getattr(errors, "StrictDataclassError", ValueError)


def reason(error: BaseException) -> str:
    """What an error says, in one line."""
    lines = [line.strip() for line in str(error).splitlines()]
    return f"{type(error).__name__}: {' '.join(filter(None, lines))}"[:240]


@dataclass(frozen=True)
class Scale:
    """What the numbers of heads and the sizes per head of a config are divided by."""

    heads: int = 1
    size: int = 1

    @property
    def width(self) -> int:
        """What widths are divided by."""
        return self.heads * self.size


# ---- public -----------------------------------------------------------------------------------------------------


def shrink(config: Any) -> Any:
    """A deep copy of a transformers config, nested ones included, that builds the same architecture in well under a
    second: each kind of layer at least once and in order, and every ratio between sizes as it was.

    Windows come to 4 tokens and the vocabulary to VOCABULARY, with the token ids inside; dropout is 0. A field of an
    unknown name stays as it is; `tiny_model` names the one that keeps a model large. Raises ProbeError for a config
    that does not take smaller sizes.
    """
    small = copy.deepcopy(config)
    try:
        _shrink(small)
    except raised() as error:
        raise ProbeError(f"{type(config).__name__} cannot be made small ({reason(error)}): give a model instead") from error
    return small


def _shrink(small: Any) -> None:
    parts = list(fields_of.parts(small))
    for part in parts:
        _complete(part)
    text = text_part(small)
    scales = {id(part): scale_of(part) for part in (*parts, text)}
    for holder, name in ((part, name) for part in parts for name in vars(part)):
        if (found := WIDTH_OF_PART.search(name)) and (named := getattr(small, f"{found[1]}_config", None)):
            scales[id(named)] = scales[id(holder)]
    ids = _moved_ids(small)
    for part in parts:
        shrink_layers(part)
        # A config that only holds others may repeat what they say.
        _shrink_sizes(part, scales[id(part if fields_of.width(part) else text)], ids)
    for fields, put in (holder for part in parts for holder in holders(part)):
        for name, value in fields.items():
            if WIDTH_OF_TEXT.search(name) and type(value) is int and fields_of.width(text):
                put(name, fields_of.width(text))


def tiny_model(config: Any, seed: int = 0, std: float = 0.1) -> Any:
    """A float32 model of a config as it is, in evaluation mode, with random weights through which a leak shows.

    Matrices are drawn anew with the standard deviation `std`, vectors stay as the model's own code makes them; those
    that it leaves at 0 or makes not finite are drawn too. Raises ProbeError for a config that no causal language model
    is known for or can be built of, where a package that the model's code needs is missing, and for more than LARGEST
    parameters, naming the field that makes them.
    """
    import torch

    kind, config = model_class(copy.deepcopy(config))
    torch.manual_seed(seed)
    try:
        _check_size(kind, config)
        model = kind._from_config(config, dtype=torch.float32, attn_implementation=_attention(kind))
    except ImportError as error:
        needs = f"{error.name}: pip install {error.name}" if error.name else f"another package ({reason(error)})"
        raise ProbeError(f"the code of {kind.__name__} needs {needs}") from error
    except raised() as error:
        raise ProbeError(
            f"{kind.__name__} cannot be built of its {type(config).__name__} ({reason(error)}): give a config that a model "
            "can be built of, or a model"
        ) from error
    with torch.no_grad():
        for parameter in model.parameters():
            if parameter.ndim > 1 or not parameter.isfinite().all() or not parameter.any():
                parameter.normal_(0.0, std)
    return model.eval()


def model_class(config: Any) -> tuple[Any, Any]:
    """The class of a config's language model, and the part of the config that it takes. Raises ProbeError for none."""
    import transformers

    mapping = transformers.AutoModelForCausalLM._model_mapping
    remote = (getattr(config, "auto_map", None) or {}).get("AutoModelForCausalLM")
    if type(config) in mapping:
        kind, text = mapping[type(config)], text_part(config)
        return kind, text if kind.config_class is type(text) else config
    if remote and not type(config).__module__.startswith("transformers."):
        from transformers.dynamic_module_utils import get_class_from_dynamic_module

        return get_class_from_dynamic_module(remote, config._name_or_path), config
    stem = type(config).__name__.removesuffix("Config")
    for name in (*(getattr(config, "architectures", None) or ()), f"{stem}ForConditionalGeneration"):
        if kind := getattr(transformers, name, None):
            return kind, config
    raise ProbeError(
        f"no causal language model is known for a {type(config).__name__} (model type {config.model_type!r}): give a model "
        "instead"
    )


# ---- sizes ------------------------------------------------------------------------------------------------------


def scale_of(config: Any) -> Scale:
    """The divisors that make a config smallest among those that divide all its heads, sizes per head and its width."""
    heads, sizes = fields_of.numbers(config, HEADS), fields_of.numbers(config, PER_HEAD)
    hidden, own = fields_of.width(config), fields_of.heads(config)
    head = said(config, "head_dim") or said(config, "attention_head_dim") or 0
    if own and hidden and hidden % own == 0 and not head:
        head = hidden // own
        sizes.append(head)
    turned = any("rope" in name or "rotary" in name for name in vars(config))
    step = 4 if hasattr(config, "patch_size") else 2 if turned else 1  # positions turn pairs, in pictures along two axes
    rotary = _rotary(config, head)
    grouped = [number for number in heads if number > 1]
    fewest = _FEWEST_HEADS.get(config.model_type, 2)

    def divides(scale: Scale) -> bool:
        width, size = scale.width, scale.size
        return (
            (not hidden or (hidden % width == 0 and hidden // width % math.gcd(hidden, QUAD) == 0))
            and (not hidden or hidden // width >= min(NARROWEST, hidden))
            and all(each % size == 0 and (each // size) % math.gcd(each, step) == 0 for each in sizes)
            and all(each // size >= (8 if each >= 32 else min(each, 2)) for each in sizes)
            and all(each % size == 0 and each // size >= least for each, least in rotary)
        )

    def cost(scale: Scale) -> tuple[int, int]:
        inner = max(heads, default=1) // scale.heads * (max(sizes, default=1) // scale.size)
        return hidden // scale.width + inner + LONE * (min(grouped, default=fewest) // scale.heads < fewest), -scale.size

    most = math.gcd(*grouped) if grouped else 1
    fewer = [number for number in range(1, most + 1) if most % number == 0]
    scales = [Scale(few, size) for few, size in product(fewer, (1, 2, 4, 8, 16, 32, 64, 128))]
    return min(filter(divides, scales), key=cost, default=Scale())


def _rotary(config: Any, head: int) -> list[tuple[int, int]]:
    """Sizes within a head that positions turn, and the least that may be left of each."""
    found = []
    for name, value in (item for mapping in fields_of.ropes(config) for item in mapping.items()):
        if head and name in ("partial_rotary_factor", "rotary_pct") and isinstance(value, float) and 0 < value < 1:
            found.append((int(head * value) // 2, 1))
        if name == "mrope_section" and value:
            found.append((sum(value), len(value)))
    return found


def _shrink_sizes(config: Any, scale: Scale, ids: dict[int, int]) -> None:
    for fields, put in holders(config):
        for name, value in fields.items():
            listed = isinstance(value, (list, tuple))
            numbers = list(value) if listed else [value]
            if DROPOUT.search(name) and type(value) is float:
                put(name, 0.0)
            elif _ON_GPU.search(name):
                put(name, False)
            elif TOKEN.search(name):
                moved = [ids.get(number, number) if type(number) is int else number for number in numbers]
                put(name, type(value)(moved) if listed else moved[0])
            elif numbers and all(type(number) is int for number in numbers):
                less = [_less(name, number, scale) for number in numbers]
                if less != numbers and (config.model_type, name) not in _STAYS:
                    put(name, type(value)(less) if listed else less[0])
    _shrink_expert_groups(config)
    for mapping in fields_of.ropes(config):
        _shrink_rope(mapping, scale.size)


def _less(name: str, number: int, scale: Scale) -> int:
    if HEADS.search(name):
        return number // scale.heads if number % scale.heads == 0 else number
    if PER_HEAD.search(name):
        return number // scale.size
    if RANK.search(name) or WIDTH.search(name):
        exact, rest = divmod(number, scale.width)
        if not rest and (exact % QUAD == 0 or "intermediate" not in name):
            return exact
        return min(number, max(1, round(number / scale.width / QUAD)) * QUAD)
    return next((min(number, most) for pattern, most in _AT_MOST if pattern.search(name)), number)


def _shrink_expert_groups(config: Any) -> None:
    """Two groups of two experts, of which one is chosen, where there were several."""
    several = max(fields_of.numbers(config, _EXPERT_GROUPS), default=1) > 1
    for fields, put in holders(config):
        for name, value in fields.items():
            if type(value) is int and _EXPERT_GROUPS.search(name):
                put(name, 2 if several else value)
            if type(value) is int and _GROUPS_CHOSEN.search(name):
                put(name, 1)


def _shrink_rope(mapping: dict[str, Any], size: int) -> None:
    if sections := mapping.get("mrope_section"):
        least = [max(1, section // size) for section in sections[1:]]
        mapping["mrope_section"] = [sum(sections) // size - sum(least), *least]
    for name in ("long_factor", "short_factor"):
        if factors := mapping.get(name):
            mapping[name] = factors[: len(factors) // size]


def _moved_ids(config: Any) -> dict[int, int]:
    """Token ids beyond the vocabulary that will be left, and where in it they go: distinct ones stay distinct."""
    found = fields_of.token_ids(config)
    free = (number for number in range(IDS_FROM, -1, -1) if number not in found)
    return {number: next(free, number) for number in sorted(found, reverse=True) if number > IDS_FROM}


def _complete(config: Any) -> None:
    for name, value in _UNSAID.get(config.model_type, {}).items():
        if said(config, name) is None:
            total = fields_of.layers(config)
            setattr(config, name, (value * total)[:total] if isinstance(value, list) else value)
    hidden, heads = fields_of.width(config), fields_of.heads(config)
    if not heads or hidden % heads:
        return
    for name, usual in (("head_dim", hidden // heads), ("num_key_value_heads", heads)):
        if name in vars(config) and said(config, name) is None:  # where a config leaves it open, some models read it
            setattr(config, name, usual)


# ---- building ---------------------------------------------------------------------------------------------------


def _attention(kind: Any) -> str:
    return "sdpa" if getattr(kind, "_supports_sdpa", False) else "eager"


def _check_size(kind: Any, config: Any) -> None:
    """Raises ProbeError for a large model, before any memory is taken for it."""
    import torch

    try:
        with torch.device("meta"):
            shapes = {name: tuple(parameter.shape) for name, parameter in kind._from_config(config).named_parameters()}
    except RuntimeError as error:
        if "meta tensor" not in str(error):
            raise
        return  # it reads its own parameters, which have no values there
    count = sum(map(math.prod, shapes.values()))
    if count <= LARGEST:
        return
    name = max(shapes, key=lambda each: math.prod(shapes[each]))
    long = max(shapes[name])
    sizes = {
        field: value
        for part in fields_of.parts(config)
        for fields, _ in holders(part)
        for field, value in fields.items()
        if type(value) is int and value > 256
    }
    field = min(sizes, key=lambda each: (long % sizes[each] != 0, abs(long - sizes[each])), default="(no field of that size)")
    raise ProbeError(
        f"{type(config).__name__} makes a model of {count:,} parameters; at most {LARGEST:,} can be built here. The largest "
        f"is {name} {shapes[name]}, from the field {field} = {sizes.get(field)}: give a config with less, or a model"
    )
