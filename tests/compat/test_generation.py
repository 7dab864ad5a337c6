"""What generation does, and a call that continues a cache, is as in stock: token for token, bit for bit, error for error."""

from __future__ import annotations

import copy
import inspect

import families
import peft
import pytest
import tiny
import torch
import transformers
from alone import FIRST, Case, isolated, logits, stock

from patchwork.packing import IsolationError, adopt
from patchwork.packing.models.families import released

NAMES = [name for name in ("llama", FIRST, "lfm2", "mamba2", "bamba", "jamba") if tiny.has(name)]
PROMPTS = {
    "no padding": [[1] * 8, [1] * 8],
    "left": [[1] * 8, [0] * 3 + [1] * 5],
    "right": [[1] * 8, [1] * 5 + [0] * 3],
    "one at the right": [[1] * 8, [1] * 7 + [0]],
    "hole": [[1] * 8, [1, 1, 1, 0, 0, 1, 1, 1]],
    "hole and right": [[1] * 5 + [0] * 3, [1, 0, 0, 1, 1, 1, 0, 0]],
}
WAYS = {
    "dynamic": {},
    "static": {"cache_implementation": "static"},
    "no cache": {"use_cache": False},
    "beams": {"num_beams": 2},
    "beams, no cache": {"num_beams": 2, "use_cache": False},
    "beams, static": {"num_beams": 2, "cache_implementation": "static"},
    "chunks": {"prefill_chunk_size": 3},
    "assisted": {"prompt_lookup_num_tokens": 2},
    "assisted, no cache": {"prompt_lookup_num_tokens": 2, "use_cache": False},
}

# Here upstream hands each chunk of a padded prompt the positions of the last one: they restart where no padding is, so the call
# is refused, and stock computes other positions than those of the prompt.
if released("5.0") and not released("5.9"):
    del WAYS["chunks"]


def outcome(call, *arguments):
    """What a call returns, or the error that it raises."""
    try:
        return call(*arguments)
    except Exception as error:
        return f"{type(error).__name__}: {error}"


def assert_same(ours, theirs):
    if isinstance(ours, str) or isinstance(theirs, str):
        assert ours == theirs
    else:
        assert all(torch.equal(mine, other) for mine, other in zip(ours, theirs, strict=True))


def generated(model, prompt, how):
    tokens, mask = torch.cat([tiny.documents([8], seed=seed)[0] for seed in (1, 2)]), torch.tensor(PROMPTS[prompt])
    if "prompt_lookup_num_tokens" in WAYS[how]:  # one row at a time
        tokens, mask = tokens[1:], mask[1:]
    asked = {"max_new_tokens": 4, "min_new_tokens": 4, "do_sample": False}
    found = model.generate(tokens, attention_mask=mask, return_dict_in_generate=True, output_logits=True, **asked, **WAYS[how])
    return found.sequences, torch.stack(found.logits)


@pytest.mark.parametrize("prompt", PROMPTS)
@pytest.mark.parametrize("name", NAMES)
def test_generation_is_that_of_stock(name, prompt):
    ours, theirs = copy.deepcopy(isolated(name)).eval(), copy.deepcopy(stock(name)).eval()
    for how in WAYS:
        assert_same(outcome(generated, ours, prompt, how), outcome(generated, theirs, prompt, how))
    assert not isinstance(outcome(generated, ours, prompt, "no cache"), str), "nothing was generated"


def with_prefix(model):
    """PEFT's prefix tuning, with the same prefix for all."""
    torch.manual_seed(0)
    return peft.get_peft_model(model, peft.PrefixTuningConfig(task_type="CAUSAL_LM", num_virtual_tokens=3)).eval()


@pytest.mark.parametrize("prompt", PROMPTS)
@pytest.mark.parametrize("name", ["llama", FIRST])
def test_generation_behind_a_prefix_is_that_of_stock(name, prompt):
    ours, theirs = (with_prefix(copy.deepcopy(model)) for model in (isolated(name), stock(name)))
    asked = {"attention_mask": torch.tensor(PROMPTS[prompt]), "max_new_tokens": 4, "min_new_tokens": 4, "do_sample": False}
    tokens = torch.cat([tiny.documents([8], seed=seed)[0] for seed in (1, 2)])

    def generates(model):
        return (model.generate(input_ids=tokens, **asked),)

    assert_same(outcome(generates, ours), outcome(generates, theirs))


@pytest.mark.parametrize("prompt", ["right", "hole and right"])
def test_generation_of_a_guarded_model_is_that_of_stock(prompt):
    ids = {"vocab_size": tiny.VOCABULARY, "bos_token_id": 1, "eos_token_id": 2, "pad_token_id": 0}
    sizes = {"num_layers": 1, "num_heads": 2, "hidden_size": 32, "attention_types": [[["global"], 1]]}
    theirs = transformers.GPTNeoForCausalLM(transformers.GPTNeoConfig(**sizes, **ids)).eval()
    ours = copy.deepcopy(theirs)
    for module in (ours.transformer, ours):
        adopt(module)
    for how in WAYS:
        assert_same(outcome(generated, ours, prompt, how), outcome(generated, theirs, prompt, how))
    with pytest.raises(IsolationError, match="3 documents"):
        logits(ours, Case().tokens, **Case().form())


@pytest.mark.parametrize("name", ["llama", FIRST])
def test_a_packed_row_like_a_padded_prompt_is_refused_outside_of_generation(name):
    """Two documents, the second padded at its start: the positions and the mask of a right-padded prompt of 7 tokens and 5 new
    ones. Stock reads them as one document."""
    tokens, model = Case(rows=((7, 6),)).tokens, isolated(name)
    mask = torch.tensor([[1] * 7 + [0] + [1] * 5])
    arguments = {"attention_mask": mask, "position_ids": torch.tensor([[*range(7), *range(6)]])}
    for more in ({}, {"logits_to_keep": 1}):  # with gradients nobody generates
        with pytest.raises(IsolationError, match="padding last"):
            logits(model, tokens, **arguments, **more)
    with torch.no_grad():
        with pytest.raises(IsolationError, match="padding last"):
            logits(model, tokens, **arguments)
        expected = logits(stock(name), tokens, **arguments, logits_to_keep=1)
        assert torch.equal(logits(model, tokens, **arguments, logits_to_keep=1), expected)
        packed = {**arguments, "position_ids": torch.tensor([[*range(7), 0, *range(5)]])}
        with pytest.raises(IsolationError, match="padding last"):  # a document that begins at a token that is kept is one
            logits(model, tokens, **packed, logits_to_keep=1)
        with pytest.raises(IsolationError, match="padding last"):
            logits(model, tokens, attention_mask=mask, seq_idx=torch.tensor([[0] * 7 + [1] * 6]), logits_to_keep=1)


# ---- calls that continue a cache ---------------------------------------------------------------------------------

CACHED = ("llama", FIRST, "lfm2", "mamba", "mamba2", "bamba", "jamba", "rwkv", "xlstm", "gemma2", "falcon_h1")
MASKS = {
    "no padding": [[1] * 7] * 2,
    "left": [[1] * 7, [0, 0, 1, 1, 1, 1, 1]],
    "left, beyond the cache": [[1] * 7, [0] * 5 + [1] * 2],
    "hole": [[1] * 7, [1, 1, 1, 1, 1, 0, 1]],
    "right": [[1] * 7, [1] * 5 + [0] * 2],
}


def continued(model, mask, positions, static):
    """The logits of three tokens behind a cache of four."""
    parameters = inspect.signature(type(model).forward).parameters
    tokens, mask = torch.cat([tiny.documents([7], seed=seed)[0] for seed in (1, 2)]), torch.tensor(mask)
    counted = {
        "counted": (mask.cumsum(1) - 1).masked_fill(mask == 0, 0),
        "of all": torch.arange(7)[None].expand(2, -1),
    }.get(positions)

    def call(begin, end, **cache):
        more = {} if counted is None else {"position_ids": counted[:, begin:end]}
        if "cache_position" in parameters:
            more["cache_position"] = torch.arange(begin, end)
        return model(input_ids=tokens[:, begin:end], attention_mask=mask[:, :end], use_cache=True, **more, **cache)

    names = [name for name in ("cache", "past_key_values", "cache_params", "state") if name in parameters]
    cache = {names[0]: transformers.StaticCache(config=model.config, max_cache_len=16)} if static else {}
    with torch.no_grad():
        first = call(0, 4, **cache)
        held = {name: getattr(first, name) for name in names if getattr(first, name, None) is not None}
        return (call(4, 7, **held).logits,)


@pytest.mark.parametrize("static", [False, True])
@pytest.mark.parametrize("name", [name for name in CACHED if tiny.has(name)])
def test_a_call_that_continues_a_cache_is_that_of_stock(name, static):
    ours, theirs = families.duplicate(isolated(name)).eval(), families.duplicate(stock(name)).eval()
    for mask in MASKS.values():
        for positions in ("counted", "of all", "none"):
            assert_same(*(outcome(continued, each, mask, positions, static) for each in (ours, theirs)))
