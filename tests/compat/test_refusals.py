"""What cannot be kept apart is refused or guarded, by name, and left as it was."""

from __future__ import annotations

import copy
import functools
import inspect

import pytest
import tiny
import torch
import transformers
from alone import FIRST, FORMS, Case, assert_alone, isolated, logits, stock

from patchwork.packing import BoundariesError, IsolationError, adopt, isolate, restore

CASE = Case()


def unknown():
    config = transformers.BloomConfig(n_layer=1, hidden_size=32, n_head=2, vocab_size=tiny.VOCABULARY)
    return transformers.BloomForCausalLM(config).eval()


def test_a_mixer_whose_forward_was_replaced_is_noticed():
    model = copy.deepcopy(isolated(FIRST))
    mixer = model.model.layers[0].linear_attn
    original = type(mixer).forward.__wrapped__
    mixer.forward = lambda *args, **kwargs: original(mixer, *args, **kwargs)
    with pytest.raises(IsolationError, match="1 token mixers, 0 were reached"):
        logits(model, CASE.tokens, **CASE.form())
    logits(model, CASE.tokens)


def test_a_forward_replaced_before_is_refused_and_nothing_changes():
    model = copy.deepcopy(stock(FIRST))
    mixer = model.model.layers[2].linear_attn
    mixer.forward = functools.partial(type(mixer).forward, mixer)
    with pytest.raises(IsolationError, match="replaced on the instance"):
        isolate(model)
    assert not any("_patchwork_isolation" in vars(module) for module in model.modules())


def test_a_forward_wrapped_on_the_instance_is_not_dropped():
    model = copy.deepcopy(stock(FIRST))
    layer = model.model.layers[1]
    theirs = functools.wraps(type(layer).forward)(lambda self, *args, **kwargs: None)
    layer.forward = theirs.__get__(layer)
    with pytest.raises(IsolationError, match="replaced on the instance"):
        isolate(model)


def test_an_unlisted_recurrent_module_is_refused_by_name():
    class Stranger(torch.nn.Module):
        def __init__(self):
            super().__init__()
            self.conv = torch.nn.Conv1d(4, 4, 3)

    model = copy.deepcopy(stock(FIRST))
    model.model.layers[3].self_attn.extra = Stranger()
    with pytest.raises(IsolationError, match=r"layers\.3\.self_attn\.extra\.conv \(Conv1d\)"):
        isolate(model)


def gpt_neo():
    sizes = {"num_layers": 1, "num_heads": 2, "hidden_size": 32, "attention_types": [[["global"], 1]]}
    ids = {"vocab_size": tiny.VOCABULARY, "bos_token_id": 1, "eos_token_id": 2, "pad_token_id": 0}
    config = transformers.GPTNeoConfig(**sizes, **ids)
    return transformers.GPTNeoForCausalLM(config).eval()


def test_an_unknown_family_is_refused_and_guarded():
    model = gpt_neo()
    with pytest.raises(IsolationError, match=r"attention of GPTNeoForCausalLM .GPTNeo.* does not go through"):
        isolate(model)
    row, positions = CASE.tokens, CASE.boundaries.position_ids
    plain = model(input_ids=row).logits
    for module in (model.transformer, model):
        adopt(module)
    assert torch.equal(model(input_ids=row).logits, plain)
    assert torch.equal(model(input_ids=row, position_ids=torch.arange(21)[None]).logits, plain)
    with pytest.raises(IsolationError, match=r"3 documents reached GPTNeo.*does not go through"):
        model(input_ids=row, position_ids=positions)
    assert model.generate(row, max_new_tokens=2).shape == (1, 23)
    restore(model)
    model(input_ids=row, position_ids=positions)


def test_a_family_that_is_not_known_is_guarded_where_the_arguments_arrive():
    model = unknown()
    for module in (model.transformer, model):
        adopt(module)
    row = CASE.tokens
    with pytest.raises(IsolationError, match="3 documents reached BloomForCausalLM"):
        model(input_ids=row, **CASE.form())
    assert model(input_ids=row).logits.shape[1] == 21


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ({"cu_seq_lens_q": [0, 7, 7, 21]}, "7 is followed by 7"),
        ({"cu_seq_lens_q": [0, 7, 22]}, "past the 21 tokens"),
        ({"seq_idx": torch.tensor([[0] * 7 + [3] * 14])}, "from 0 to 3 at token 7"),
        ({"seq_idx": torch.zeros(1, 20, dtype=torch.int64)}, "one number per token"),
    ],
)
def test_malformed_boundaries_are_no_way_past_a_guard(arguments, message):
    model = unknown()
    for module in (model.transformer, model):
        adopt(module)
    with pytest.raises(BoundariesError, match=message):
        model(input_ids=CASE.tokens, **arguments)
    restore(model)


@pytest.mark.parametrize("form", FORMS)
def test_a_prepared_mask_is_no_way_past_a_guard(form):
    model = gpt_neo()
    adopt(model)
    prepared = torch.ones(1, 1, 21, 21).tril()
    arguments = CASE.form(form)
    if form == "positions":
        model(input_ids=CASE.tokens, attention_mask=prepared, **arguments)
        return
    with pytest.raises(IsolationError, match="3 documents reached GPTNeoForCausalLM"):
        model(input_ids=CASE.tokens, attention_mask=prepared, **arguments)


def test_adopting_what_transformers_builds():
    model = copy.deepcopy(stock(FIRST))
    for module in (model.model, model):
        adopt(module)
    assert_alone(model, **CASE.form())
    llama = stock("llama")  # kept for other tests, so not to be built on the meta device
    with torch.device("meta"):
        empty = type(llama)(llama.config)
    adopt(empty.model)
    adopt(torch.nn.Linear(2, 2))


def cache_of(model, row, **arguments):
    """The cache that holds ``row``, under the name that this release has for it."""
    filled = model(input_ids=row, use_cache=True, **arguments)
    for name in ("past_key_values", "cache"):
        if getattr(filled, name, None) is not None:
            return {name: getattr(filled, name)}
    raise AssertionError("no cache came back")


def test_a_cache_in_use_is_left_alone():
    model = copy.deepcopy(isolated(FIRST)).eval()
    row = tiny.documents([8])[0]
    with torch.no_grad():
        step = model(input_ids=row[:, :1], **cache_of(model, row)).logits
        whole = model(input_ids=torch.cat([row, row[:, :1]], dim=1)).logits
    torch.testing.assert_close(step[:, -1], whole[:, -1], atol=1e-4, rtol=1e-4)


# ---- packed rows with padding before the end, or with a cache ----------------------------------------------------


@functools.cache
def guarded():
    model = gpt_neo()
    for module in (model.transformer, model):
        adopt(module)
    return model


MODELS = {FIRST: lambda: isolated(FIRST), "llama": lambda: isolated("llama"), "gpt_neo": guarded}


@pytest.mark.parametrize("name", MODELS)
def test_a_packed_row_with_padding_before_its_end_is_refused(name):
    model, tokens = MODELS[name](), CASE.tokens.clone()
    ids = CASE.boundaries.position_ids
    left, between = torch.ones_like(tokens), torch.ones_like(tokens)
    left[:, :2] = 0
    between[:, 7] = 0
    for mask in (left, between):
        with pytest.raises(IsolationError, match="padding last"):
            logits(model, tokens, attention_mask=mask, position_ids=ids)
    neighbour = torch.cat([left, torch.ones_like(left)])
    with pytest.raises(IsolationError, match="padding last"):
        logits(
            model,
            tokens.expand(2, -1),
            attention_mask=neighbour,
            position_ids=torch.cat([(left.cumsum(1) - 1).clamp_min(0), ids]),
        )


@pytest.mark.parametrize("name", MODELS)
@pytest.mark.parametrize("fill", [0, 1])
def test_padded_rows_stay_bit_identical(name, fill):
    model = MODELS[name]()
    plain = copy.deepcopy(model)
    restore(plain)
    tokens = CASE.tokens.expand(2, -1)
    left, hole = torch.ones_like(tokens), torch.ones_like(tokens)
    left[1, :5] = 0
    hole[0, 4:6] = 0
    for mask in (left, hole):
        counted = (mask.cumsum(1) - 1).masked_fill(mask == 0, fill)
        for ids in (counted, torch.arange(21)[None]):
            arguments = {"attention_mask": mask, "position_ids": ids}
            assert torch.equal(logits(model, tokens, **arguments), logits(plain, tokens, **arguments))


@pytest.mark.parametrize("form", FORMS)
@pytest.mark.parametrize("name", MODELS)
def test_a_packed_row_cannot_continue_a_cache(name, form):
    model = copy.deepcopy(MODELS[name]()).eval()
    with torch.no_grad():
        cache = cache_of(model, CASE.tokens)
        with pytest.raises(IsolationError, match="holds tokens already"):
            model(input_ids=CASE.tokens, **cache, **CASE.form(form))
        model(input_ids=CASE.tokens, **cache)


@pytest.mark.parametrize("name", [FIRST, "llama"])
def test_generation_from_a_packed_row_is_refused(name):
    model = copy.deepcopy(isolated(name)).eval()
    cache = transformers.DynamicCache(config=model.config)
    argument = "cache" if "cache" in inspect.signature(type(model.model).forward).parameters else "past_key_values"
    with pytest.raises(IsolationError, match="would stay empty"):
        model(input_ids=CASE.tokens, **{argument: cache}, **CASE.form())
    assert torch.isfinite(model(input_ids=CASE.tokens, use_cache=True, **CASE.form()).logits).all()
    assert model.generate(CASE.tokens, max_new_tokens=2, min_new_tokens=2).shape == (1, 23)


@pytest.mark.parametrize("name", [FIRST, "llama"])
def test_one_described_document_keeps_its_cache(name):
    model, one = copy.deepcopy(isolated(name)).eval(), {"cu_seq_lens_q": torch.tensor([0, 21]), "max_length_q": 21}
    row, step = CASE.tokens, torch.tensor([[9]])
    with torch.no_grad():
        whole = logits(model, torch.cat([row, step], dim=1))
        followed = model(input_ids=step, **cache_of(model, row, **one)).logits
        without = logits(model, step)
    torch.testing.assert_close(followed[:, -1], whole[:, -1], atol=1e-4, rtol=1e-4)
    assert (without[:, -1] - whole[:, -1]).abs().max() > 1e-2


@pytest.mark.parametrize("extra", [{"prefill_chunk_size": 3}, {"prompt_lookup_num_tokens": 2}, {"num_beams": 2}], ids=str)
@pytest.mark.parametrize("name", MODELS)
def test_other_ways_to_generate_are_bit_identical(name, extra):
    model = copy.deepcopy(MODELS[name]()).eval()
    plain = copy.deepcopy(model)
    restore(plain)
    prompt = torch.cat([tiny.documents([8], seed=seed)[0] for seed in (1, 2)])
    mask = torch.ones_like(prompt)
    mask[1, :5] = 0
    if "prompt_lookup_num_tokens" in extra:
        prompt, mask = prompt[:1], mask[:1]

    def generate(model):
        return model.generate(prompt, attention_mask=mask, max_new_tokens=5, min_new_tokens=5, do_sample=False, **extra)

    try:
        theirs = generate(plain)
    except (AttributeError, TypeError, ValueError) as error:
        pytest.skip(f"stock cannot do this in this release: {error}")
    assert torch.equal(generate(model), theirs)


def test_the_switch_refuses_packed_rows_at_the_call(monkeypatch):
    monkeypatch.setenv("PATCHWORK_HYBRID_PACKING", "0")
    with pytest.raises(IsolationError, match="PATCHWORK_HYBRID_PACKING=0"):
        logits(isolated(FIRST), CASE.tokens, **CASE.form())
    assert torch.equal(logits(isolated(FIRST), CASE.tokens), logits(stock(FIRST), CASE.tokens))
    logits(isolated("llama"), CASE.tokens, **CASE.form())
    monkeypatch.delenv("PATCHWORK_HYBRID_PACKING")
    assert_alone(isolated(FIRST), **CASE.form())


# ---- variants of listed families, and surgery --------------------------------------------------------------------


class Convolution(torch.nn.Conv1d):
    """A part of torch's under a name of its own."""


class DeltaNetVariant(torch.nn.Module):
    """Looks recurrent by its name."""


class Derived(DeltaNetVariant):
    """Looks recurrent by what it derives from."""


STRANGERS = {
    "Convolution": lambda: Convolution(4, 4, 3),
    "Conv2d": lambda: torch.nn.Conv2d(4, 4, 3),
    "LSTM": lambda: torch.nn.LSTM(4, 4),
    "GRUCell": lambda: torch.nn.GRUCell(4, 4),
    "Derived": Derived,
}


@pytest.mark.parametrize("stranger", STRANGERS)
def test_a_variant_of_a_listed_family_with_a_mixer_of_its_own_is_refused_by_name(stranger):
    class Variant(type(stock("llama").model)):
        pass

    model = copy.deepcopy(stock("llama"))
    model.model.__class__ = Variant
    assert isolate(copy.deepcopy(model)), "the control: a subclass alone, as FSDP makes them, is known"
    model.model.layers[1].self_attn.extra = STRANGERS[stranger]()
    with pytest.raises(IsolationError, match=rf"layers\.1\.self_attn\.extra \({stranger}\)"):
        isolate(model)
    adopt(model.model)
    with pytest.raises(IsolationError, match=rf"layers\.1\.self_attn\.extra \({stranger}\)"):
        logits(model, CASE.tokens, **CASE.form())
    logits(model, CASE.tokens)


def other():
    return copy.deepcopy(stock(FIRST)).model.layers


def whole_layer(layers):
    layers[0] = other()[0]


def recurrent_for_attention(layers):
    layers[3] = other()[0]


def one_mixer(layers):
    layers[1].linear_attn = other()[1].linear_attn


def one_more_mixer(layers):
    layers[1].mlp.extra = other()[1].linear_attn
    layers[1].mlp.register_forward_pre_hook(lambda mlp, arguments: (mlp.extra(arguments[0]),))


def a_skipped_layer(layers):
    layers[0].__class__ = type("Skipping", (type(layers[0]),), {"__call__": lambda self, hidden, *_, **__: hidden})


def a_removed_layer(layers):
    del layers[3]


@pytest.mark.parametrize("operate", [whole_layer, recurrent_for_attention, one_mixer, one_more_mixer, a_removed_layer])
def test_surgery_after_isolation_is_noticed(operate):
    model = copy.deepcopy(isolated(FIRST))
    operate(model.model.layers)
    for _ in range(2):
        with pytest.raises(IsolationError, match=r"isolate"):
            logits(model, CASE.tokens, **CASE.form())
    logits(model, CASE.tokens)


def test_isolating_again_after_surgery():
    model = copy.deepcopy(isolated(FIRST))
    model.model.layers[0] = other()[0]
    isolate(model)
    assert_alone(model, **CASE.form())


def test_a_layer_that_was_skipped_is_noticed():
    model = copy.deepcopy(isolated(FIRST))
    a_skipped_layer(model.model.layers)
    with pytest.raises(IsolationError, match="4 token mixers, 3 were reached"):
        logits(model, CASE.tokens, **CASE.form())
    logits(model, CASE.tokens)


def test_another_model_called_within_a_packed_call_is_on_its_own():
    model, seen = copy.deepcopy(isolated(FIRST)), []
    teacher = stock(FIRST)
    expected = logits(teacher, CASE.tokens)
    model.model.layers[1].mlp.register_forward_pre_hook(lambda *_: seen.append(logits(teacher, CASE.tokens)))
    assert_alone(model, gradients=False, **CASE.form())
    assert seen
    assert all(torch.equal(each, expected) for each in seen)
