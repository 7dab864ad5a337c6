"""Documents of a packed row equal documents alone, in logits and gradients, whatever else the call carries.

test_grid.py has all descriptions, attentions and kinds of checkpointing; here is what surrounds them.
"""

from __future__ import annotations

import copy
import functools
import warnings

import pytest
import tiny
import torch
from alone import (
    FIRST,
    FORMS,
    LOGITS,
    NAMES,
    Case,
    assert_alone,
    assert_close,
    backbone,
    by_position,
    embedded,
    isolated,
    logits,
    reference,
    run,
    stock,
)

from patchwork.packing import IsolationError

CASE = Case()
TWO_ROWS = Case(rows=((7, 5, 9), (13, 8)))


@pytest.mark.parametrize("case", [CASE, TWO_ROWS], ids=["one row", "two rows"])
@pytest.mark.parametrize("form", FORMS)
@pytest.mark.parametrize("extra", [{"attention_mask": True}, {"attention_mask": True, "use_cache": True}, {"use_cache": True}])
def test_a_mask_of_ones_and_a_cache_of_its_own_do_not_bring_the_leak_back(extra, form, case):
    if "attention_mask" in extra:
        extra = {**extra, "attention_mask": torch.ones_like(case.tokens)}
    assert_alone(isolated(FIRST), case, **case.form(form), **extra)


def test_outer_arguments_by_position():
    assert_alone(isolated(FIRST), call=by_position, **CASE.form())


@pytest.mark.parametrize("form", FORMS)
@pytest.mark.parametrize("call", [embedded, backbone])
def test_embeddings_instead_of_tokens(call, form):
    mask = torch.ones_like(CASE.tokens)
    assert_alone(isolated(FIRST), call=call, **CASE.form(form))
    assert_alone(isolated(FIRST), call=call, attention_mask=mask, **CASE.form(form))


def hidden_states(model, tokens, **arguments):
    """The input of every layer and of the head, side by side."""
    return torch.cat(model(input_ids=tokens, use_cache=False, output_hidden_states=True, **arguments).hidden_states, dim=-1)


@pytest.mark.parametrize("form", FORMS)
@pytest.mark.parametrize("name", NAMES)
def test_hidden_states(name, form):
    assert_alone(isolated(name), Case(name), hidden_states, **CASE.form(form))


@pytest.mark.parametrize("form", FORMS)
@pytest.mark.parametrize("name", NAMES)
def test_the_models_own_loss_is_the_token_weighted_one_if_the_caller_masks_first_tokens(name, form):
    case = Case(name, TWO_ROWS.rows)
    boundaries, model = case.boundaries, isolated(name)
    masked = case.tokens.masked_fill(boundaries.position_ids == 0, -100)
    predicted = [len(part[0]) - 1 for part in case.documents]

    def alone():
        losses = [stock(name)(input_ids=part, labels=part, use_cache=False).loss for part in case.documents]
        return sum(loss * count for loss, count in zip(losses, predicted, strict=True)) / sum(predicted)

    def packed(labels, **arguments):
        kept.append(model(input_ids=case.tokens, labels=labels, use_cache=False, **arguments).loss)
        return kept[-1]

    kept = [alone()]
    expected = tiny.gradients(stock(name), alone)
    found = tiny.gradients(model, lambda: packed(masked, **case.form(form)))
    leaking = tiny.gradients(model, lambda: packed(masked))
    tiny.gradients(model, lambda: packed(case.tokens, **case.form(form)))
    right, ours, leaked, unmasked = (float(loss.detach()) for loss in kept)
    most = reference(case).limits[1]
    assert abs(ours - right) < LOGITS
    assert tiny.worst_difference(found, expected) < most
    assert abs(leaked - right) > 1e2 * LOGITS
    assert tiny.worst_difference(leaking, expected) > 1e2 * most
    assert abs(unmasked - right) > 1e2 * LOGITS, "labels are the caller's: nothing is masked here"


@pytest.mark.parametrize("pads", ["masked", "one each", "one tail"])
def test_a_padded_tail(pads):
    case = Case(total=27)
    arguments = {"position_ids": torch.cat([tiny.positions((7, 5, 9)), torch.zeros(1, 6, dtype=torch.int64)], dim=1)}
    if pads == "masked":
        arguments["attention_mask"] = (torch.arange(27) < 21).long()[None]
    elif pads == "one tail":
        arguments = case.form("full")
    assert_alone(isolated(FIRST), case, **arguments)
    assert torch.isfinite(logits(isolated(FIRST), case.tokens, **arguments)).all()


def test_one_document_with_boundaries_runs_unhindered():
    for total in (11, 16):
        case = Case(rows=((11,),), total=total)
        (found,), _ = run(isolated(FIRST), case, gradients=False, **case.form("full"))
        assert_close(found, logits(stock(FIRST), case.documents[0]))


def test_a_document_has_the_same_logits_wherever_it_stands():
    part = tiny.documents([9])[0]
    twice = torch.cat([part, part], dim=1)
    first, second = logits(isolated(FIRST), twice, position_ids=tiny.positions([9, 9])).split(9, dim=1)
    assert_close(second, first)
    first, second = logits(isolated(FIRST), twice).split(9, dim=1)
    assert (second - first).abs().max() > 1e3 * LOGITS


@pytest.mark.parametrize("reentrant", [True, False])
def test_checkpoint_wrappers_put_around_layers_afterwards(reentrant):
    wrapping = pytest.importorskip("torch.distributed.algorithms._checkpoint.checkpoint_wrapper")
    model = copy.deepcopy(isolated(FIRST))
    model.enable_input_require_grads()
    kind = wrapping.CheckpointImpl.REENTRANT if reentrant else wrapping.CheckpointImpl.NO_REENTRANT
    wrapping.apply_activation_checkpointing(
        model,
        checkpoint_wrapper_fn=functools.partial(wrapping.checkpoint_wrapper, checkpoint_impl=kind),
        check_fn=lambda module: type(module).__name__ == "Qwen3NextDecoderLayer",
    )
    for case in (CASE, TWO_ROWS):
        assert_alone(model, case, **case.form())


@pytest.mark.parametrize("reentrant", [None, True, False])
def test_two_rows_in_flight_before_one_backward(reentrant):
    model = copy.deepcopy(isolated(FIRST))
    if reentrant is not None:
        model.gradient_checkpointing_enable({"use_reentrant": reentrant})
        model.enable_input_require_grads()
    other = Case(rows=((4, 11, 6),))
    between = tiny.documents([21], seed=5)[0]

    def loss_between(which):
        return tiny.loss([between, logits(which, between)])

    def three(packed):
        first, second = (
            tiny.loss(case.split(logits(model, case.tokens, **(case.form() if packed else {})))) for case in (CASE, other)
        )
        return first + loss_between(model) + second

    most = max(reference(case).limits[1] for case in (CASE, other))
    parts = [reference(CASE)[1], reference(other)[1], tiny.gradients(stock(FIRST), lambda: loss_between(stock(FIRST)))]
    total = {name: sum(part[name] for part in parts) for name in parts[0]}
    assert tiny.worst_difference(tiny.gradients(model, lambda: three(True)), total) < most
    assert tiny.worst_difference(tiny.gradients(model, lambda: three(False)), total) > 1e2 * most


# ---- ordinary calls ---------------------------------------------------------------------------------------------


@pytest.mark.parametrize("name", NAMES)
def test_ordinary_calls_are_bit_identical(name):
    ours, theirs = isolated(name), stock(name)
    batch = torch.cat([tiny.documents([12], seed=seed)[0] for seed in (1, 2)])
    right = torch.ones_like(batch)
    right[1, 9:] = 0
    left = torch.ones_like(batch)
    left[1, :4] = 0
    calls = [
        {},
        {"attention_mask": torch.ones_like(batch)},
        {"position_ids": torch.arange(12)[None]},
        {"attention_mask": right},
        {"attention_mask": right, "position_ids": (right.cumsum(1) - 1).masked_fill(right == 0, 1)},
        {"attention_mask": left},
        {"attention_mask": left, "position_ids": (left.cumsum(1) - 1).clamp_min(0)},
    ]
    with torch.no_grad():
        for arguments in calls:
            mine = ours(input_ids=batch, **arguments).logits
            assert torch.equal(mine, theirs(input_ids=batch, **arguments).logits), arguments


@pytest.mark.parametrize("cache", [None, "static"])
@pytest.mark.parametrize("padded", [False, True], ids=["one length", "left-padded"])
@pytest.mark.parametrize("name", NAMES)
def test_generation_and_cached_steps_are_bit_identical(name, padded, cache):
    mask = torch.ones(2, 6, dtype=torch.int64)
    mask[1, : 3 * padded] = 0
    prompt = torch.cat([tiny.documents([6], seed=seed)[0] for seed in (1, 2)])

    def generate(model):
        return (
            copy.deepcopy(model)
            .eval()
            .generate(
                prompt,
                attention_mask=mask,
                max_new_tokens=5,
                min_new_tokens=5,
                do_sample=False,
                output_logits=True,
                return_dict_in_generate=True,
                cache_implementation=cache,
            )
        )

    with torch.no_grad(), warnings.catch_warnings():
        warnings.simplefilter("ignore")
        try:
            theirs = generate(stock(name))
        except (KeyError, ValueError) as error:
            if cache is None:
                raise
            pytest.skip(f"stock cannot do this in this release: {error}")
        mine = generate(isolated(name))
    assert torch.equal(mine.sequences, theirs.sequences)
    for each, other in zip(mine.logits, theirs.logits, strict=True):
        assert torch.equal(each, other)


def test_a_second_model_of_the_class_is_untouched():
    ours = logits(isolated(FIRST), CASE.tokens, **CASE.form())
    leaking = logits(tiny.build(FIRST), CASE.tokens, **CASE.form())
    assert torch.equal(leaking, logits(copy.deepcopy(stock(FIRST)), CASE.tokens, **CASE.form()))
    assert (leaking - ours).abs().max() > 1e3 * LOGITS


# ---- multimodal positions ---------------------------------------------------------------------------------------


@pytest.mark.skipif("qwen3_5_vlm" not in NAMES, reason="this release has no Qwen3.5")
@pytest.mark.parametrize("planes", [3, 4])
def test_multimodal_positions_with_explicit_lengths(planes):
    for case in (Case("qwen3_5_vlm"), Case("qwen3_5_vlm", TWO_ROWS.rows)):
        restarting = case.boundaries.position_ids.expand(planes, -1, -1)
        assert_alone(isolated("qwen3_5_vlm"), case, **case.form("cumulative"), position_ids=restarting)


@pytest.mark.skipif("qwen3_5_vlm" not in NAMES, reason="this release has no Qwen3.5")
def test_multimodal_positions_without_lengths():
    model, restarting = isolated("qwen3_5_vlm"), CASE.boundaries.position_ids
    with pytest.raises(IsolationError, match="all three planes"):
        logits(model, CASE.tokens, position_ids=restarting.expand(3, 1, -1))
    text = torch.arange(21)[None]
    image = torch.stack([text, text, text])
    image[1, 0, 4:8] = torch.tensor([4, 4, 5, 5])
    image[2, 0, 4:8] = torch.tensor([4, 5, 4, 5])
    assert torch.equal(
        logits(model, CASE.tokens, position_ids=image), logits(stock("qwen3_5_vlm"), CASE.tokens, position_ids=image)
    )
