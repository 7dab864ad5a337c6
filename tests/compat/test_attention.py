"""Attention that goes through transformers' registries keeps documents apart, and is stock otherwise.

Each comparison is of logits and of all parameter gradients, against documents alone, with the same call without its
boundaries as positive control. Models are of families' own default configs, shrunk: windows and chunks are of 4 tokens.
"""

from __future__ import annotations

import copy
import functools

import pytest
import tiny
import torch
import transformers
from alone import (
    Case,
    assert_alone,
    assert_close,
    assert_equal,
    assert_leaks,
    isolated,
    logits,
    of_each,
    reference,
    run,
    stock,
)
from transformers.models.auto.configuration_auto import CONFIG_MAPPING

from patchwork.packing import Boundaries, IsolationError, adopt, isolate, restore
from patchwork.packing.models.families import ATTENTION_ONLY, released
from patchwork.packing.probing.model_sources import config_of
from patchwork.packing.probing.tiny_models import shrink, tiny_model

ROWS = ((20, 1, 33, 2, 17),)
TWO_ROWS = ((7, 5, 9), (13, 8))
# What a family adds to plain causal attention, and the implementation that has it.
KINDS = {
    "mistral": "sdpa",  # a sliding window in all layers
    "gemma2": "eager",  # soft caps
    "gemma3_text": "sdpa",  # windows in some layers
    "llama4_text": "sdpa",  # chunks in some layers
    "gpt_oss": "eager",  # sinks, windows
    "qwen2": "sdpa",  # grouped heads
    "deepseek_v3": "sdpa",  # latent attention
    "opt": "sdpa",  # learned positions
    "gpt2": "sdpa",
}
TWENTY = [
    "llama",
    "mistral",
    "qwen2",
    "qwen3",
    "qwen3_moe",
    "gemma2",
    "gemma3_text",
    "gpt2",
    "gpt_neox",
    "opt",
    "phi",
    "phi3",
    "mixtral",
    "olmo2",
    "glm4",
    "granite",
    "cohere2",
    "starcoder2",
    "gpt_oss",
    "llama4_text",
    "smollm3",
    "deepseek_v3",
]


def there(name):
    if not tiny.has(name):
        pytest.skip(f"this release has no {name}")
    return name


def another(name, attention):
    """An isolated model of its own, with the weights of ``stock(name)``, that looks another attention up."""
    model = copy.deepcopy(stock(name))
    model.config._attn_implementation = attention
    isolate(model)
    return model


# ---- kinds of attention -----------------------------------------------------------------------------------------

CALLS = {
    "positions": (ROWS, lambda case: case.form()),
    "a mask of ones": (ROWS, lambda case: {**case.form(), "attention_mask": torch.ones_like(case.tokens)}),
    "an automatic cache": (ROWS, lambda case: {**case.form(), "use_cache": None}),
    "everything": (ROWS, lambda case: {**case.form("full"), "attention_mask": torch.ones_like(case.tokens)}),
    "lengths": (ROWS, lambda case: case.form("cumulative")),
    "two rows": (TWO_ROWS, lambda case: case.form()),
    "two rows, everything": (TWO_ROWS, lambda case: case.form("full")),
}


@pytest.mark.parametrize("call", CALLS)
@pytest.mark.parametrize("name", KINDS)
def test_documents_are_alone(name, call):
    rows, arguments = CALLS[call]
    case = Case(there(name), rows, KINDS[name])
    assert_alone(isolated(name, KINDS[name]), case, **arguments(case))


@pytest.mark.parametrize("name", KINDS)
def test_a_padded_tail_with_zeros_in_the_mask(name):
    case = Case(there(name), ((7, 5, 9),), KINDS[name], total=27)
    mask = (torch.arange(27) < 21).long()[None]
    model = isolated(name, KINDS[name])
    positions = torch.cat([tiny.positions((7, 5, 9)), torch.zeros(1, 6, dtype=torch.int64)], dim=1)
    assert_alone(model, case, position_ids=positions, attention_mask=mask)
    assert torch.isfinite(logits(model, case.tokens, position_ids=positions, attention_mask=mask)).all()


# ---- implementations --------------------------------------------------------------------------------------------


@pytest.mark.parametrize("rows", [ROWS, TWO_ROWS], ids=["one row", "two rows"])
@pytest.mark.parametrize("name", ["llama", "mistral", "gemma3_text", "llama4_text"])
@pytest.mark.parametrize("attention", ["eager", "flex_attention"])
def test_implementations(attention, name, rows, monkeypatch):
    case = Case(there(name), rows)
    if attention == "flex_attention":
        from torch.nn.attention import flex_attention as torch_flex
        from transformers.integrations import flex_attention as flex

        def as_it_is(query, key, value, training=False, **rest):
            return torch_flex.flex_attention(query, key, value, **rest)

        # Compiling it takes the CPU half a minute, and it has no gradients there.
        monkeypatch.setattr(flex, "compile_friendly_flex_attention", as_it_is)
        monkeypatch.setattr(torch_flex, "_FLEX_ATTENTION_DISABLE_COMPILE_DEBUG", True, raising=False)
    assert_alone(another(name, attention), case, gradients=attention == "eager", **case.form())


@pytest.fixture
def register(monkeypatch):
    """Registers attention, and a function for its masks, for one test."""
    from transformers import masking_utils
    from transformers.modeling_utils import AttentionInterface

    for interface in (AttentionInterface, masking_utils.AttentionMaskInterface):
        monkeypatch.setattr(interface, "_global_mapping", dict(interface._global_mapping))

    def put(name, attention, mask=None):
        AttentionInterface.register(name, attention)
        if mask is not None:
            masking_utils.AttentionMaskInterface.register(name, mask)

    return put


def sdpa(seen):
    """Attention of sdpa that keeps the shapes of queries and masks."""
    from transformers.integrations.sdpa_attention import sdpa_attention_forward

    def mine(module, query, key, value, attention_mask, **kwargs):
        seen.append((query.shape, None if attention_mask is None else attention_mask.shape))
        return sdpa_attention_forward(module, query, key, value, attention_mask, **kwargs)

    return mine


@pytest.mark.parametrize("rows", [ROWS, TWO_ROWS], ids=["one row", "two rows"])
def test_registered_attention_without_masks(register, rows):
    seen = []
    register("mine", sdpa(seen))
    case = Case("llama", rows)
    assert_alone(another("llama", "mine"), case, **case.form())
    assert seen


@pytest.mark.parametrize("name", ["llama", "mistral"])
def test_registered_attention_with_masks_made_once_for_the_longest_document(register, name):
    from transformers.masking_utils import sdpa_mask

    seen, made = [], []

    @functools.wraps(sdpa_mask)
    def mask(*args, **kwargs):
        made.append((kwargs.get("batch_size"), kwargs["kv_length"]))
        return sdpa_mask(*args, **kwargs)

    register("mine", sdpa(seen), mask)
    case = Case(name, ROWS)
    model = another(name, "mine")
    assert_alone(model, case, **case.form())
    seen.clear()
    made.clear()
    logits(model, case.tokens, **case.form())
    assert {length for _, length in made} == {33}
    assert len(made) == 1
    assert max(shape[2] for shape, _ in seen) == 33
    assert all(shape is None or max(shape[2:]) <= 33 for _, shape in seen)


def test_plain_causal_attention_makes_no_mask_of_the_row(monkeypatch):
    shapes, original = [], torch.nn.functional.scaled_dot_product_attention

    def watched(query, key, value, attn_mask=None, **kwargs):
        shapes.append((tuple(query.shape[2:3]), attn_mask))
        return original(query, key, value, attn_mask=attn_mask, **kwargs)

    monkeypatch.setattr(torch.nn.functional, "scaled_dot_product_attention", watched)
    case = Case("llama", ROWS)
    logits(isolated("llama"), case.tokens, **case.form())
    assert shapes
    assert all(mask is None for _, mask in shapes)
    assert max(length for (length,), _ in shapes) == 33


# ---- flash ------------------------------------------------------------------------------------------------------


class Flash:
    """A double of the kernels that transformers loads: it holds calls to their contract, and records them."""

    def __init__(self):
        self.told = []
        self.dense = 0

    def varlen(
        self, q, k, v, cu_seqlens_q, cu_seqlens_k, max_seqlen_q, max_seqlen_k,
        dropout_p=0.0, softmax_scale=None, causal=False, window_size=(-1, -1), softcap=0.0, deterministic=False, s_aux=None,
    ):  # fmt: skip
        for tensor, ends, longest in ((q, cu_seqlens_q, max_seqlen_q), (k, cu_seqlens_k, max_seqlen_k)):
            assert tensor.ndim == 3
            assert ends.dtype is torch.int32
            assert ends.ndim == 1
            assert ends[0] == 0
            assert ends[-1] == len(tensor)
            assert type(longest) is int
            assert longest >= int(ends.diff().max())
        assert torch.equal(cu_seqlens_q, cu_seqlens_k)
        assert causal is True
        assert not softcap
        self.told.append((tuple(cu_seqlens_q.tolist()), max_seqlen_q, window_size))
        cut = [tensor.split(cu_seqlens_q.diff().tolist()) for tensor in (q, k, v)]
        return torch.cat([self.one(*each, softmax_scale, window_size[0], s_aux) for each in zip(*cut, strict=True)])

    def one(self, q, k, v, scale, before, sinks):
        q, k, v = (tensor.transpose(0, 1) for tensor in (q, k, v))
        k, v = (tensor.repeat_interleave(len(q) // len(k), 0) for tensor in (k, v))
        weights = q @ k.transpose(1, 2) * (q.shape[-1] ** -0.5 if scale is None else scale)
        place = torch.arange(q.shape[1])
        back = place[:, None] - place
        weights = weights.masked_fill((back < 0) | ((back > before) if before >= 0 else False), -torch.inf)
        if sinks is not None:
            weights = torch.cat([weights, sinks[:, None, None].expand(-1, q.shape[1], 1)], dim=-1)
        return (weights.softmax(-1)[..., : q.shape[1]] @ v).transpose(0, 1)

    def whole(self, q, k, v, dropout_p=0.0, softmax_scale=None, causal=False, window_size=(-1, -1), **kwargs):
        self.dense += 1
        return torch.stack(
            [self.one(*each, softmax_scale, window_size[0], kwargs.get("s_aux")) for each in zip(q, k, v, strict=True)]
        )


@pytest.fixture
def flash(monkeypatch):
    from transformers import modeling_flash_attention_utils as utils

    double = Flash()
    loaded = {"_flash_fn": double.whole, "_flash_varlen_fn": double.varlen, "_flash_with_kvcache_fn": None}
    functions = [function for name, function in loaded.items() if hasattr(utils, name)]
    found = (*functions, utils._pad_input, utils._unpad_input)
    monkeypatch.setattr(utils, "_lazy_imports", lambda *args, **kwargs: found)
    for name in (*loaded, "_pad_fn", "_unpad_fn", "_process_flash_kwargs_fn", "_loaded_implementation"):
        if hasattr(utils, name):
            monkeypatch.setattr(utils, name, None)
    return double


@pytest.mark.parametrize("rows", [ROWS, TWO_ROWS], ids=["one row", "two rows"])
@pytest.mark.parametrize("form", ["positions", "full", "cumulative"])
@pytest.mark.parametrize("name", ["llama", "mistral", "gpt_oss", "opt"])
def test_flash_is_told_all_four_arguments(flash, name, form, rows):
    case = Case(there(name), rows, KINDS.get(name, "sdpa"))
    model = copy.deepcopy(stock(name, case.attention))
    try:
        model.config._attn_implementation = "flash_attention_2"
    except ValueError as error:
        pytest.skip(f"{name} takes another kernel in this release: {error!s:.80}")
    isolate(model)
    assert_alone(model, case, **case.form(form))
    flash.told.clear()
    flash.dense = 0
    logits(model, case.tokens, **case.form(form))
    ends = tuple(case.boundaries.cu_seqlens.tolist())
    assert len(flash.told) == len(list(attention(model)))
    assert {told[:2] for told in flash.told} == {(ends, case.boundaries.max_seqlen)}
    assert flash.dense == 0
    if name == "mistral":
        assert {told[2][0] for told in flash.told} == {3}


def attention(model):
    return (part for part in model.modules() if getattr(part.__dict__.get("_patchwork_isolation"), "role", "") == "attention")


# ---- multimodal positions ---------------------------------------------------------------------------------------

MROPE = ["qwen2_vl", "qwen2_5_vl", "qwen3_vl", "qwen3_vl_moe"]


@functools.cache
def multimodal(name):
    """A model of three planes of positions, and the same isolated."""
    rope = {"rope_type": "default", "type": "default", "mrope_section": [2, 3, 3], "rope_theta": 10_000.0}
    text = {**tiny.TEXT, "num_experts": 4, "num_experts_per_tok": 2, "moe_intermediate_size": 32}
    text["rope_parameters" if released("5.0") else "rope_scaling"] = rope
    vision = {**tiny.VISION, "embed_dim": 32, "fullatt_block_indexes": [0], "deepstack_visual_indexes": [0]}
    if name == "qwen2_vl":
        vision["hidden_size"] = 64
    ids = {
        f"{kind}_token_id": tiny.VOCABULARY - 4 + at for at, kind in enumerate(("vision_start", "image", "video", "vision_end"))
    }
    config = CONFIG_MAPPING[name](text_config=text, vision_config=vision, **ids)
    plain = tiny_model(config).train()
    restore(plain)
    ours = copy.deepcopy(plain)
    isolate(ours)
    return plain, ours


@pytest.mark.parametrize("rows", [ROWS, TWO_ROWS], ids=["one row", "two rows"])
@pytest.mark.parametrize("name", MROPE)
def test_multimodal_positions(name, rows):
    plain, ours = multimodal(there(name))
    case = Case("", rows)
    ids = case.boundaries.position_ids
    expected = of_each(plain, case)
    for arguments in (
        case.form(),
        case.form("full"),
        {"position_ids": ids.expand(4, -1, -1)},
        {**case.form("cumulative"), "position_ids": ids.expand(3, -1, -1)},
    ):
        assert_equal(run(ours, case, **arguments), expected)
    assert_leaks(run(ours, case), expected, case)
    with pytest.raises(IsolationError, match="all three planes"):
        logits(ours, case.tokens, position_ids=ids.expand(3, -1, -1))


# ---- more families ------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("name", [name for name in (*TWENTY, "qwen2_moe", "cohere", "gemma", "olmo") if name not in KINDS])
def test_families(name):
    there(name)
    if not released(ATTENTION_ONLY[name]):
        with pytest.raises(IsolationError, match="does not go through transformers' registry"):
            isolate(copy.deepcopy(stock(name)))
        return
    # Calls that leak in stock: its masks come of positions, and only where there is no other mask.
    case, two = Case(name, ROWS), Case(name, TWO_ROWS)
    assert_alone(isolated(name), case, **case.form(), attention_mask=torch.ones_like(case.tokens))
    assert_alone(isolated(name), two, **two.form("cumulative"))


# ---- recomputed and compiled ------------------------------------------------------------------------------------


@pytest.mark.parametrize("reentrant", [True, False])
@pytest.mark.parametrize("name", ["mistral", "gpt_oss"])
def test_gradient_checkpointing(name, reentrant):
    case = Case(there(name), ROWS, KINDS[name])
    model = copy.deepcopy(isolated(name, KINDS[name]))
    model.gradient_checkpointing_enable({"use_reentrant": reentrant})
    model.enable_input_require_grads()
    assert_alone(model, case, **case.form())


SEVERAL = [((7, 5, 9),), ((13, 8),), ((4, 11, 6),), ((2, 1, 3, 15),)]


@pytest.mark.slow
@pytest.mark.parametrize("part", ["model", "layers"])
def test_compiled(part):
    torch._dynamo.reset()
    torch._dynamo.utils.counters.clear()
    model = copy.deepcopy(isolated("llama"))
    if part == "model":
        model = torch.compile(model, backend="eager")
    else:
        for layer in model.model.layers:
            layer.compile(backend="eager")
    graphs = []
    with torch.no_grad():
        for rows in SEVERAL:
            case = Case("llama", rows)
            for ours, theirs in zip(case.split(logits(model, case.tokens, **case.form())), reference(case)[0], strict=True):
                assert_close(ours, theirs)
            graphs.append(torch._dynamo.utils.counters["stats"]["unique_graphs"])
    torch._dynamo.reset()
    assert graphs[-1] == graphs[-2], graphs


# ---- refusals ---------------------------------------------------------------------------------------------------


REFUSED = {
    "bert": "bidirectional encoder",
    "t5": "encoder-decoder",
    "bart": "encoder-decoder",
    "whisper": "encoder-decoder",
    "prophetnet": "encoder-decoder|cannot restart",
    "bloom": "does not go through transformers' registry",
}


@functools.cache
def refused(name):
    config = shrink(config_of(name))
    kinds = {"bert": "BertModel", "t5": "T5ForConditionalGeneration", "bart": "BartForConditionalGeneration"}
    kinds |= {"whisper": "WhisperForConditionalGeneration", "prophetnet": "ProphetNetForConditionalGeneration"}
    return getattr(transformers, kinds.get(name, "BloomForCausalLM"))(config).eval()


@pytest.mark.parametrize("name", REFUSED)
def test_what_is_refused_says_why(name):
    model = copy.deepcopy(refused(name))
    with pytest.raises(IsolationError, match=REFUSED[name]):
        isolate(model)


def test_a_refused_model_raises_at_a_packed_row():
    model = copy.deepcopy(refused("bert"))
    adopt(model)
    tokens = Case().tokens
    with pytest.raises(IsolationError, match=r"3 documents reached BertModel.*bidirectional"):
        model(input_ids=tokens, position_ids=Case().boundaries.position_ids)
    model(input_ids=tokens)
    restore(model)


def test_attention_weights_are_refused():
    case = Case("llama", attention="eager")
    with pytest.raises(IsolationError, match="attention weights"):
        logits(isolated("llama", "eager"), case.tokens, output_attentions=True, **case.form())
    assert isolated("llama", "eager")(input_ids=case.tokens, output_attentions=True).attentions[0] is not None


def test_attention_that_was_replaced_is_noticed():
    case = Case("llama")
    model = copy.deepcopy(isolated("llama"))
    model.model.layers[1].self_attn = copy.deepcopy(stock("llama")).model.layers[1].self_attn
    with pytest.raises(IsolationError, match="put into the model after isolate"):
        logits(model, case.tokens, **case.form())
    logits(model, case.tokens)


def test_a_layer_that_was_replaced_is_noticed():
    case = Case("llama")
    model = copy.deepcopy(isolated("llama"))
    model.model.layers[1] = copy.deepcopy(stock("llama")).model.layers[1]
    with pytest.raises(IsolationError, match="put into the model after isolate"):
        logits(model, case.tokens, **case.form())


def test_keys_of_another_length_are_refused(monkeypatch):
    """As a cache that a layer keeps by itself would make them."""
    from transformers.models.llama import modeling_llama

    rotated = modeling_llama.apply_rotary_pos_emb

    def longer(*args, **kwargs):
        query, key = rotated(*args, **kwargs)
        return query, torch.cat([key, key], dim=2)

    monkeypatch.setattr(modeling_llama, "apply_rotary_pos_emb", longer)
    case = Case("llama")
    with pytest.raises(IsolationError, match=r"keys of shape \(1, 2, 42, 16\)"):
        logits(isolated("llama"), case.tokens, **case.form())


# ---- ordinary calls ---------------------------------------------------------------------------------------------


def batch():
    return torch.cat([tiny.documents([12], seed=seed)[0] for seed in (1, 2)])


def masks():
    right, left = torch.ones(2, 12, dtype=torch.int64), torch.ones(2, 12, dtype=torch.int64)
    right[1, 9:] = 0
    left[1, :4] = 0
    return right, left


@pytest.mark.parametrize("name", TWENTY)
def test_ordinary_calls_are_bit_identical(name):
    ours, theirs = isolated(there(name)), stock(name)
    right, left = masks()
    for arguments in ({}, {"attention_mask": right}, {"attention_mask": left}, {"position_ids": torch.arange(12)[None]}):

        def outputs(model, arguments=arguments):
            return logits(model, batch(), **arguments)

        kept = []
        for model in (ours, theirs):
            model.zero_grad()
            kept.append(outputs(model).detach())
            kept.append(tiny.gradients(model, lambda model=model: outputs(model).pow(2).sum()))
        assert torch.equal(kept[0], kept[2]), arguments
        for key, value in kept[3].items():
            assert torch.equal(kept[1][key], value), key


@pytest.mark.parametrize("name", TWENTY)
def test_generation_is_bit_identical(name):
    _, left = masks()

    def generate(model):
        with torch.no_grad():
            return copy.deepcopy(model).eval().generate(
                batch(), attention_mask=left, max_new_tokens=3, min_new_tokens=3, do_sample=False,
                output_logits=True, return_dict_in_generate=True,
            )  # fmt: skip

    mine, theirs = generate(isolated(there(name))), generate(stock(name))
    assert torch.equal(mine.sequences, theirs.sequences)
    assert all(torch.equal(*pair) for pair in zip(mine.logits, theirs.logits, strict=True))


def test_a_restored_copy_is_stock_again():
    case = Case("llama")
    model = copy.deepcopy(isolated("llama"))
    restore(model)
    assert torch.equal(logits(model, case.tokens, **case.form()), logits(stock("llama"), case.tokens, **case.form()))


def test_several_streams_of_tokens():
    """Csm: ids (B, S, codebooks)."""
    sizes = {"hidden_size": 32, "intermediate_size": 32, "num_hidden_layers": 2, "num_attention_heads": 4, "head_dim": 8}
    config = transformers.CsmConfig(num_codebooks=3, vocab_size=64, text_vocab_size=64, num_key_value_heads=2, **sizes)
    torch.manual_seed(0)
    plain = transformers.CsmBackboneModel(config).eval()
    for parameter in plain.parameters():
        if parameter.ndim > 1:
            torch.nn.init.normal_(parameter, std=0.1)
    model = copy.deepcopy(plain)
    isolate(model)
    ids, boundaries = torch.randint(0, 60, (1, 21, 3)), Boundaries.from_seq_lens([7, 5, 9])
    packed = {"input_ids": ids, "position_ids": boundaries.position_ids, "attention_mask": torch.ones(1, 21)}
    alone = torch.cat([plain(input_ids=part).last_hidden_state for part in ids.split([7, 5, 9], 1)], 1)
    assert (model(**packed).last_hidden_state - alone).abs().max() < 1e-5
    assert (plain(**packed).last_hidden_state - alone).abs().max() > 0.1


@pytest.mark.skipif(not released("5.0"), reason="this release makes no mask of types of tokens without pictures")
def test_what_is_seen_in_both_directions_stays_so():
    """PaliGemma's prefix: its types of tokens make a mask that says more than positions do."""
    sizes = {"hidden_size": 32, "intermediate_size": 48, "num_hidden_layers": 2, "num_attention_heads": 4}
    text = {"model_type": "gemma", "vocab_size": 64, "num_key_value_heads": 2, "head_dim": 8, **sizes}
    vision = {"model_type": "siglip_vision_model", "hidden_size": 16, "intermediate_size": 16, "num_hidden_layers": 1}
    vision |= {"num_attention_heads": 2, "image_size": 16, "patch_size": 8, "projection_dim": 32}
    config = transformers.PaliGemmaConfig(text_config=text, vision_config=vision, image_token_id=60, projection_dim=32)
    torch.manual_seed(0)
    plain = transformers.PaliGemmaForConditionalGeneration(config).train()
    for parameter in plain.parameters():
        if parameter.ndim > 1:
            torch.nn.init.normal_(parameter, std=0.1)
    restore(plain)
    model = copy.deepcopy(plain)
    isolate(model)
    ids, lengths = torch.randint(3, 59, (1, 21)), [7, 5, 9]
    positions = Boundaries.from_seq_lens(lengths).position_ids + 1
    prefix, causal = (positions > 3).long(), torch.ones_like(positions)
    calls = {"input_ids": ids, "position_ids": positions}
    with torch.no_grad():
        stock_row, row = (each(**calls, token_type_ids=prefix).logits for each in (plain, model))
        assert torch.equal(row, stock_row)
        assert (row - plain(**calls, token_type_ids=causal).logits).abs().max() > 1e-3


def test_a_mask_of_the_caller_s_own_beside_explicit_boundaries_is_refused():
    case = Case("llama")
    mask = torch.ones(1, 1, 21, 21, dtype=torch.bool).tril()
    with pytest.raises(IsolationError, match="prepared attention mask"):
        logits(isolated("llama"), case.tokens, attention_mask=mask, **case.form("cumulative"))
    assert torch.equal(*(logits(each("llama"), case.tokens, attention_mask=mask) for each in (isolated, stock)))
