"""Masks that describe documents, where positions do not restart: read exactly, or refused; all others are as in stock."""

from __future__ import annotations

import copy
import re

import pytest
import tiny
import torch
import transformers
from alone import (
    FIRST,
    Case,
    assert_close,
    assert_equal,
    assert_leaks,
    backbone,
    embedded,
    isolated,
    logits,
    reference,
    run,
    stock,
)
from torch.utils._python_dispatch import TorchDispatchMode

from patchwork.packing import BoundariesError, IsolationError, adopt

CASE = Case()
TWO = Case(rows=((7, 5, 9), (13, 8)))
PADDED = Case(rows=((7, 5, 6),), total=21)
RECURRENT = [name for name in (FIRST, "lfm2", "mamba2", "jamba", "falcon_h1", "rwkv", "xlstm") if tiny.has(name)]
LOWEST = torch.finfo(torch.float32).min


def numbers(case):
    """1, 1, 2, 2, 3, and 0 for padding."""
    numbered = case.boundaries.seq_idx.long() + 1
    for row, documents in zip(numbered, case.rows, strict=True):
        row[sum(documents) :] = 0
    return numbered


def blocks(case):
    """(B, 1, S, S): each token sees its document up to itself."""
    which = numbers(case)
    together = (which[:, :, None] == which[:, None, :]) & (which > 0)[:, None, :]
    return together[:, None] & torch.ones(which.shape[1], which.shape[1]).tril().bool()


def additive(visible):
    return torch.zeros(visible.shape).masked_fill(~visible, LOWEST)


def assert_alone(model, case, call=logits, **arguments):
    """The rows equal their documents alone, forward and backward; without the mask they do not."""
    expected = reference(case, call)
    assert_equal(run(model, case, call, **arguments), expected)
    assert_leaks(run(model, case, call), expected, case)


# ---- numbers -----------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("case", [CASE, TWO, PADDED], ids=lambda case: str(case.rows))
@pytest.mark.parametrize("name", ["llama", *RECURRENT])
def test_numbers_are_boundaries(name, case):
    case = Case(name, case.rows, total=case.total)
    assert_alone(isolated(name), case, attention_mask=numbers(case))


@pytest.mark.parametrize("name", ["llama", FIRST])
def test_numbers_of_any_integers_beside_what_agrees_with_them(name):
    case = Case(name)
    for dtype in (torch.int32, torch.uint8):
        assert_alone(isolated(name), case, attention_mask=numbers(case).to(dtype), **case.form())
    assert_alone(isolated(name), case, attention_mask=numbers(case) + 4, **case.form("full"))
    assert_alone(isolated(name), case, embedded, attention_mask=numbers(case))
    assert_alone(isolated(name), case, backbone, attention_mask=numbers(case))


@pytest.mark.parametrize("name", ["llama", FIRST, "rwkv"])
@pytest.mark.parametrize(
    ("mask", "error", "message"),
    [
        (torch.tensor([[1] * 7 + [2] * 5 + [1] * 9]), BoundariesError, r"\[1, 2, 1\], not 1, 2, 3"),
        (torch.tensor([[1] * 7 + [3] * 14]), BoundariesError, r"\[1, 3\], not 1, 2, 3"),
        (torch.tensor([[0] * 2 + [1] * 5 + [2] * 14]), BoundariesError, "padding must come last"),
    ],
)
def test_numbers_that_cannot_be_right_raise(name, mask, error, message):
    with pytest.raises(error, match=message):
        logits(isolated(name), CASE.tokens, attention_mask=mask)


@pytest.mark.parametrize("name", ["llama", FIRST])
def test_numbers_that_positions_or_boundaries_contradict_raise(name):
    for arguments in (
        {"position_ids": torch.arange(21)[None]},
        {"position_ids": Case(rows=((8, 4, 9),)).boundaries.position_ids},
        {"cu_seq_lens_q": torch.tensor([0, 8, 12, 21])},
    ):
        with pytest.raises(IsolationError, match="contradict each other"):
            logits(isolated(name), CASE.tokens, attention_mask=numbers(CASE), **arguments)
    cache = transformers.DynamicCache(config=isolated(name).config)
    names = isolated(name).model.forward.__func__.__wrapped__.__code__.co_varnames
    with pytest.raises(IsolationError, match="would stay empty"):
        logits(
            isolated(name),
            CASE.tokens,
            attention_mask=numbers(CASE),
            **{"cache" if "cache" in names else "past_key_values": cache},
        )


@pytest.mark.parametrize("name", ["llama", *RECURRENT])
def test_one_document_a_row_is_padded_whatever_its_number(name):
    tokens, mask = CASE.tokens.expand(2, -1), torch.ones(2, 21, dtype=torch.int64)
    mask[1, 15:] = 0
    expected = logits(stock(name), tokens, attention_mask=mask)
    assert torch.equal(logits(isolated(name), tokens, attention_mask=mask), expected)
    numbered = mask * torch.tensor([[1], [2]])
    assert torch.equal(logits(isolated(name), tokens, attention_mask=numbered), expected)
    for same in (mask.bool(), mask.float()):
        assert torch.equal(logits(isolated(name), tokens, attention_mask=same), logits(stock(name), tokens, attention_mask=same))


def test_numbers_reach_guarded_models():
    config = transformers.BloomConfig(n_layer=1, hidden_size=32, n_head=2, vocab_size=tiny.VOCABULARY)
    model = transformers.BloomForCausalLM(config).eval()
    plain = copy.deepcopy(model)
    for module in (model.transformer, model):
        adopt(module)
    with pytest.raises(IsolationError, match="3 documents reached BloomForCausalLM"):
        logits(model, CASE.tokens, attention_mask=numbers(CASE))
    for mask in (torch.ones(1, 21, dtype=torch.int64), torch.tensor([[2] + [1] * 18 + [0] * 2])):  # as Longformer's
        assert torch.equal(logits(model, CASE.tokens, attention_mask=mask), logits(plain, CASE.tokens, attention_mask=mask))


# ---- prepared masks ----------------------------------------------------------------------------------------------

FORMS = {
    "bool": lambda case: blocks(case),
    "additive": lambda case: additive(blocks(case)),
    "heads": lambda case: additive(blocks(case)).expand(-1, 4, -1, -1),
    "three dimensions": lambda case: additive(blocks(case))[:, 0],
}


@pytest.mark.parametrize("form", FORMS)
@pytest.mark.parametrize("case", [CASE, TWO, PADDED], ids=lambda case: str(case.rows))
@pytest.mark.parametrize("name", RECURRENT)
def test_blocks_are_boundaries_in_recurrent_models(name, case, form):
    case = Case(name, case.rows, total=case.total)
    assert_alone(isolated(name), case, attention_mask=FORMS[form](case))


@pytest.mark.parametrize("attention", ["sdpa", "eager"])
def test_blocks_of_bools_are_exact_in_recurrent_models_under_any_attention(attention):
    """Eager attention adds masks, so stock has them wrong in every document."""
    case = Case(FIRST, attention=attention)
    assert_alone(isolated(FIRST, attention), case, attention_mask=blocks(case))
    assert_alone(isolated(FIRST, attention), case, attention_mask=blocks(case), **case.form())


@pytest.mark.parametrize("attention", ["sdpa", "eager"])
@pytest.mark.parametrize("form", FORMS)
def test_attention_alone_is_left_to_the_mask(attention, form):
    if form == "three dimensions":
        pytest.skip("no mask in these models")
    case, ours = Case("llama", attention=attention), isolated("llama", attention)
    mask = FORMS[form](case)
    assert torch.equal(
        logits(ours, case.tokens, attention_mask=mask), logits(stock("llama", attention), case.tokens, attention_mask=mask)
    )
    if attention == "sdpa" or form != "bool":
        assert_equal(run(ours, case, attention_mask=mask), reference(case))


def test_one_mask_for_each_kind_of_layer():
    case, model = Case(FIRST), isolated(FIRST)
    mask = additive(blocks(case))
    assert_alone(model, case, attention_mask={"full_attention": mask, "linear_attention": None})
    assert_alone(model, case, attention_mask={"full_attention": mask, "linear_attention": torch.ones(1, 21)})
    causal = additive(torch.ones(1, 1, 21, 21).tril().bool())
    with pytest.raises(IsolationError, match="keep different documents apart"):
        logits(model, case.tokens, attention_mask={"full_attention": mask, "sliding_attention": causal})


@pytest.mark.parametrize("name", RECURRENT)
def test_a_block_mask_of_flex_attention(name):
    from torch.nn.attention.flex_attention import create_block_mask

    case, model = Case(name), isolated(name)
    which = numbers(case)[0]
    mask = create_block_mask(
        lambda batch, head, query, key: (which[query] == which[key]) & (query >= key), 1, None, 21, 21, device="cpu"
    )
    assert_equal(run(model, case, gradients=False, attention_mask=mask), reference(case))


def window(size):
    distance = torch.arange(21)[:, None] - torch.arange(21)
    return ((distance >= 0) & (distance < size))[None, None]


def left_padded():
    mask = torch.ones(21, 21).tril().bool()
    mask[:, :4] = False
    return mask[None, None]


def seen_ahead():
    mask = torch.ones(21, 21).tril().bool()
    mask[:6, :6] = True
    return mask[None, None]


ORDINARY = {
    "causal": lambda: window(21),
    "window": lambda: window(4),
    "left-padded": left_padded,
    "left-padded, padding sees all": lambda: left_padded() | ~left_padded().any(-1, keepdim=True),
    "prefix": seen_ahead,
    "all": lambda: torch.ones(1, 1, 21, 21).bool(),
}


@pytest.mark.parametrize("ordinary", ORDINARY)
@pytest.mark.parametrize("name", ["llama", *RECURRENT])
def test_masks_that_keep_no_documents_apart_are_those_of_stock(name, ordinary):
    mask = ORDINARY[ordinary]()
    for given in (mask, additive(mask), mask.expand(2, -1, -1, -1)):
        tokens = CASE.tokens.expand(given.shape[0], -1)
        for positions in (None, torch.arange(21)[None]):
            arguments = {"attention_mask": given, "position_ids": positions}
            try:
                expected = logits(stock(name), tokens, **arguments)
            except RuntimeError as error:  # a mixer that multiplies by its mask, in some releases
                with pytest.raises(RuntimeError, match=re.escape(str(error))):
                    logits(isolated(name), tokens, **arguments)
                continue
            assert torch.equal(logits(isolated(name), tokens, **arguments).nan_to_num(), expected.nan_to_num())


def branches():
    """Two continuations of one prefix."""
    mask = torch.ones(21, 21).tril().bool()
    mask[14:, 7:14] = False
    return mask[None, None]


def shared_ends():
    """Each document begins with the last token of the one before."""
    mask = blocks(CASE).clone()
    mask[..., 7:12, 6] = mask[..., 12:, 11] = True
    return mask


def seen_ahead_in_documents():
    return blocks(CASE) | blocks(CASE).mT


IRREGULAR = {
    "branches": branches,
    "shared ends": shared_ends,
    "documents that see ahead": seen_ahead_in_documents,
    "a window in documents": lambda: blocks(CASE) & window(4),
    "heads that differ": lambda: torch.cat([blocks(CASE), window(21)], dim=1),
}


@pytest.mark.parametrize("irregular", IRREGULAR)
@pytest.mark.parametrize("name", RECURRENT)
def test_masks_that_hide_tokens_otherwise_are_refused_in_recurrent_models(name, irregular):
    mask = IRREGULAR[irregular]()
    for given in (mask, additive(mask)):
        with pytest.raises(IsolationError, match="attention_mask hides earlier tokens"):
            logits(isolated(name), CASE.tokens, attention_mask=given)
    expected = logits(stock("llama"), CASE.tokens, attention_mask=mask[:, :1])
    assert torch.equal(logits(isolated("llama"), CASE.tokens, attention_mask=mask[:, :1]), expected)


def test_blocks_that_positions_contradict_are_refused():
    with pytest.raises(IsolationError, match="contradict each other"):
        logits(isolated(FIRST), CASE.tokens, attention_mask=blocks(CASE), position_ids=torch.arange(21)[None])
    with pytest.raises(IsolationError, match="contradict each other"):
        logits(isolated(FIRST), CASE.tokens, attention_mask=blocks(CASE), seq_idx=Case(rows=((8, 4, 9),)).boundaries.seq_idx)


# ---- what it costs -----------------------------------------------------------------------------------------------


class Reads(TorchDispatchMode):
    """Counts reads from the device: values that Python gets to see."""

    def __init__(self):
        super().__init__()
        self.count = 0

    def __torch_dispatch__(self, function, types, args=(), kwargs=None):
        self.count += function is torch.ops.aten._local_scalar_dense.default
        return function(*args, **(kwargs or {}))


@pytest.mark.parametrize("name", ["llama", FIRST])
def test_an_ordinary_call_reads_once_for_its_mask_and_positions(name):
    def more(**arguments):
        counts = []
        for model in (isolated(name), stock(name)):
            with torch.no_grad(), Reads() as reads:
                logits(model, CASE.tokens, **arguments)
            counts.append(reads.count)
        return counts[0] - counts[1]

    mask = torch.ones(1, 21, dtype=torch.int64)
    mask[0, 15:] = 0
    assert more() == 0
    assert more(attention_mask=mask.bool()) == 0
    assert more(attention_mask=mask) <= 2  # a list of two flags is read value by value on the CPU
    assert more(attention_mask=mask, position_ids=torch.arange(21)[None]) <= 2


@pytest.mark.parametrize("name", ["llama", FIRST])
def test_compiled_calls_with_a_mask_stay_one_graph_and_refuse_numbers(name):
    tokens, mask = CASE.tokens, torch.ones(1, 21, dtype=torch.int64)
    mask[0, 15:] = 0
    torch._dynamo.reset()
    with torch.no_grad():
        for model in (stock(name), isolated(name)):
            try:
                compiled = torch.compile(copy.deepcopy(model), backend="eager", fullgraph=True)
                found = logits(compiled, tokens, attention_mask=mask)
            except torch._dynamo.exc.TorchDynamoException as error:
                if model is isolated(name):
                    raise
                pytest.skip(f"stock cannot do this in this release: {type(error).__name__}")
        torch.testing.assert_close(found, logits(stock(name), tokens, attention_mask=mask), atol=1e-5, rtol=1e-5)
        with pytest.raises(RuntimeError, match="attention_mask numbers documents"):
            logits(compiled, tokens, attention_mask=numbers(CASE))
    torch._dynamo.reset()


def test_a_compiled_recurrent_model_reads_blocks():
    torch._dynamo.reset()
    with torch.no_grad():
        try:
            logits(torch.compile(copy.deepcopy(stock(FIRST)), backend="eager"), CASE.tokens)
        except torch._dynamo.exc.TorchDynamoException as error:
            pytest.skip(f"stock cannot do this in this release: {type(error).__name__}")
        compiled = torch.compile(copy.deepcopy(isolated(FIRST)), backend="eager")
        assert_equal(run(compiled, CASE, gradients=False, attention_mask=blocks(CASE)), reference(CASE))
    torch._dynamo.reset()


@pytest.mark.parametrize("name", ["llama", "qwen3"])
def test_code_that_was_compiled_for_a_model_as_it_was_is_not_run_in_an_isolated_one(name):
    case = Case(name)
    torch._dynamo.reset()
    with torch.no_grad():
        logits(torch.compile(copy.deepcopy(stock(name)), backend="eager"), case.tokens, cu_seq_lens_q=torch.tensor([0, 21]))
        ours = torch.compile(copy.deepcopy(isolated(name)), backend="eager")
        found = run(ours, case, gradients=False, **case.form("cumulative"))
    assert_equal(found, reference(case))
    torch._dynamo.reset()


# ---- one document and its padding --------------------------------------------------------------------------------


@pytest.mark.parametrize("numbered", ["seq_idx", "cu_seq_lens_q", "positions", "all"])
@pytest.mark.parametrize("name", ["llama", FIRST, "mamba2"])
def test_one_document_and_padding_that_is_numbered_is_not_packed(name, numbered, monkeypatch):
    """As TRL's collator makes it under pad_to_multiple_of, and as a padded row of stock computes it."""
    monkeypatch.setenv("PATCHWORK_HYBRID_PACKING", "0")
    case, model = Case(name, ((15,),), total=21), isolated(name)
    full = case.boundaries.model_kwargs()
    names = {"positions": ["position_ids"], "all": list(full)}.get(numbered, [numbered])
    mask = torch.tensor([[1] * 15 + [0] * 6])
    arguments = {name: full[name] for name in names}
    found = logits(model, case.tokens, attention_mask=mask, **arguments)
    assert_close(case.split(found)[0], logits(stock(name), case.documents[0]))
    if name == "llama" or numbered == "positions":
        return
    with pytest.raises(IsolationError, match="PATCHWORK_HYBRID_PACKING=0"):  # a tail that nothing shows is a document
        logits(model, case.tokens, **arguments)


def test_the_batch_of_a_collator_that_pads_one_document_is_not_packed(patched):
    trainer = pytest.importorskip("trl.trainer.sft_trainer")
    from patchwork.packing.runtime.call_boundaries import resolve

    collator = trainer.DataCollatorForLanguageModeling(pad_token_id=0, padding_free=True, pad_to_multiple_of=128)

    def rows(lengths):
        batch = collator([{"input_ids": [3] * sum(lengths), "seq_lengths": lengths}])
        found = resolve(batch)
        return found.rows, found.packed

    assert rows([100]) == (((100,),), False)
    assert rows([60, 40]) == (((60, 40),), True)
