"""What cannot be kept apart is refused or guarded, by name, and left as it was."""

from __future__ import annotations

import copy
import functools

import pytest
import tiny
import torch
import transformers
from alone import FIRST, FORMS, Case, assert_alone, isolated, logits, stock

from patchwork.packing import BoundariesError, IsolationError, adopt, isolate, restore

CASE = Case()


def mamba():
    config = transformers.MambaConfig(num_hidden_layers=1, hidden_size=32, vocab_size=tiny.VOCABULARY, state_size=4)
    return transformers.MambaForCausalLM(config).eval()


def test_a_mixer_whose_forward_was_replaced_is_noticed():
    model = copy.deepcopy(isolated(FIRST))
    mixer = model.model.layers[0].linear_attn
    original = type(mixer).forward.__wrapped__
    mixer.forward = lambda *args, **kwargs: original(mixer, *args, **kwargs)
    with pytest.raises(IsolationError, match="1 recurrent mixers, 0 were reached"):
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


def test_an_unknown_family_is_refused_and_guarded():
    config = transformers.GPT2Config(n_layer=1, n_head=2, n_embd=32, vocab_size=tiny.VOCABULARY)
    model = transformers.GPT2LMHeadModel(config).eval()
    with pytest.raises(IsolationError, match="no text backbone of a known family in GPT2LMHeadModel"):
        isolate(model)
    row, positions = CASE.tokens, CASE.boundaries.position_ids
    plain = model(input_ids=row).logits
    for module in (model.transformer, model):
        adopt(module)
    assert torch.equal(model(input_ids=row).logits, plain)
    assert torch.equal(model(input_ids=row, position_ids=torch.arange(21)[None]).logits, plain)
    with pytest.raises(IsolationError, match=r"3 documents reached GPT2.*is of no family"):
        model(input_ids=row, position_ids=positions)
    assert model.generate(row, max_new_tokens=2).shape == (1, 23)
    restore(model)
    model(input_ids=row, position_ids=positions)


def test_a_recurrent_family_that_is_not_known_is_guarded_where_the_arguments_arrive():
    model = mamba()
    for module in (model.backbone, model):
        adopt(module)
    row = CASE.tokens
    with pytest.raises(IsolationError, match="3 documents reached MambaForCausalLM"):
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
    model = mamba()
    for module in (model.backbone, model):
        adopt(module)
    with pytest.raises(BoundariesError, match=message):
        model(input_ids=CASE.tokens, **arguments)
    restore(model)


@pytest.mark.parametrize("form", FORMS)
def test_a_prepared_mask_is_no_way_past_a_guard(form):
    model = transformers.GPT2LMHeadModel(
        transformers.GPT2Config(n_layer=1, n_head=2, n_embd=32, vocab_size=tiny.VOCABULARY, attn_pdrop=0.0)
    )
    adopt(model)
    prepared = torch.ones(1, 1, 21, 21).tril()
    arguments = CASE.form(form)
    if form == "positions":
        model(input_ids=CASE.tokens, attention_mask=prepared, **arguments)
        return
    with pytest.raises(IsolationError, match="3 documents reached GPT2LMHeadModel"):
        model(input_ids=CASE.tokens, attention_mask=prepared, **arguments)


def test_adopting_what_transformers_builds():
    model = copy.deepcopy(stock(FIRST))
    for module in (model.model, model):
        adopt(module)
    assert_alone(model, **CASE.form())
    with torch.device("meta"):
        empty = type(stock("llama"))(stock("llama").config)
    adopt(empty.model)
    adopt(torch.nn.Linear(2, 2))


def test_a_cache_in_use_with_boundaries_is_left_alone():
    model = copy.deepcopy(isolated(FIRST)).eval()
    row = tiny.documents([8])[0]
    with torch.no_grad():
        filled = model(input_ids=row, use_cache=True)
        cache = getattr(filled, "past_key_values", None)
        name = "past_key_values" if cache is not None else "cache"
        step = model(input_ids=row[:, :1], **{name: cache if cache is not None else filled.cache}).logits
        whole = model(input_ids=torch.cat([row, row[:, :1]], dim=1)).logits
    torch.testing.assert_close(step[:, -1], whole[:, -1], atol=1e-4, rtol=1e-4)
