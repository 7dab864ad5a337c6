"""Documents of a packed row equal documents alone, in logits and gradients, on whichever transformers is installed.

Each comparison comes with a positive control: the same row without boundaries must differ, past the first document.
"""

from __future__ import annotations

import copy
import functools
import inspect
import io
import warnings

import pytest
import tiny
import torch

from patchwork.packing import Boundaries, IsolationError, adopt, isolate, restore

LENGTHS = (7, 5, 9)
ALL_LENGTHS = [LENGTHS, (1, 64, 65, 2), (300, 3, 1)]
NAMES = tiny.recurrent_names()
FIRST = "qwen3_next"  # in every release
LOGITS = 1e-5  # of logits of about 3
GRADIENTS = 1e-4  # of a parameter's gradient norm


@functools.cache
def stock(name: str, attention: str = "sdpa") -> torch.nn.Module:
    return tiny.build(name, attention)


@functools.cache
def isolated(name: str, attention: str = "sdpa") -> torch.nn.Module:
    model = copy.deepcopy(stock(name, attention))
    isolate(model)
    return model


@functools.cache
def reference(name: str, lengths: tuple[int, ...], attention: str = "sdpa"):
    """Documents, their row, logits alone, gradients of a loss on the documents after the first."""
    model = stock(name, attention)
    parts = tiny.documents(lengths)
    alone = [output.detach() for output in tiny.logits_alone(model, parts)]
    found = tiny.gradients(model, lambda: tiny.loss(tiny.logits_alone(model, parts)))
    return parts, torch.cat(parts, dim=1), alone, found


def run(model, row, lengths, **arguments):
    """Logits by document and the gradients of the loss on them."""
    kept = []

    def forward():
        outputs = tiny.split(tiny.logits(model, input_ids=row, **arguments), lengths)
        kept.extend(output.detach() for output in outputs)
        return tiny.loss(outputs)

    return tiny.gradients(model, forward), kept


def assert_alone(name, lengths, model, attention="sdpa", row=None, **arguments):
    """The call equals the documents alone, and the control, which has no boundaries, does not."""
    _, plain, alone, expected = reference(name, lengths, attention)
    found, outputs = run(model, plain if row is None else row, lengths, **arguments)
    for ours, theirs in zip(outputs, alone, strict=True):
        torch.testing.assert_close(ours, theirs, atol=LOGITS, rtol=LOGITS)
    assert tiny.worst_difference(found, expected) < GRADIENTS
    assert control(name, lengths, attention)


@functools.cache
def control(name, lengths, attention="sdpa"):
    """Whether the row without boundaries leaks in the last documents' logits, and in gradients, well above noise."""
    _, plain, alone, expected = reference(name, lengths, attention)
    found, outputs = run(isolated(name, attention), plain, lengths)
    leak = min((ours - theirs).abs().max() for ours, theirs in zip(outputs[1:], alone[1:], strict=True))
    return leak > 1e3 * LOGITS and tiny.worst_difference(found, expected) > 1e2 * GRADIENTS


def arguments_of(form: str, lengths) -> dict:
    full = Boundaries.from_seq_lens(lengths).model_kwargs()
    names = {
        "positions": ["position_ids"],
        "full": list(full),
        "cumulative": [name for name in full if name not in ("seq_idx", "position_ids")],
        "cumulative and positions": [name for name in full if name != "seq_idx"],
        "seq_idx": ["seq_idx"],
        "seq_idx and positions": ["seq_idx", "position_ids"],
    }
    return {name: full[name] for name in names[form]}


@pytest.mark.parametrize("name", NAMES)
@pytest.mark.parametrize(
    "form",
    ["positions", "full", "cumulative", "cumulative and positions", "seq_idx", "seq_idx and positions"],
)
def test_a_packed_row_equals_its_documents_alone(name, form):
    assert_alone(name, LENGTHS, isolated(name), **arguments_of(form, LENGTHS))


@pytest.mark.parametrize("name", NAMES)
@pytest.mark.parametrize("lengths", ALL_LENGTHS[1:])
def test_documents_around_the_chunk_length(name, lengths):
    assert_alone(name, lengths, isolated(name), **arguments_of("positions", lengths))


@pytest.mark.parametrize("name", NAMES)
def test_eager_attention(name):
    assert_alone(name, LENGTHS, isolated(name, "eager"), "eager", **arguments_of("positions", LENGTHS))


def test_a_mask_of_ones_and_a_cache_of_its_own_do_not_bring_the_leak_back():
    _, row, alone, _ = reference(FIRST, LENGTHS)
    for extra in ({"attention_mask": torch.ones_like(row)}, {"use_cache": True}, {}):
        output = isolated(FIRST)(input_ids=row, position_ids=tiny.positions(LENGTHS), **extra).logits
        torch.testing.assert_close(output, torch.cat(alone, dim=1), atol=LOGITS, rtol=LOGITS)


def test_outer_arguments_by_position():
    _, row, alone, _ = reference(FIRST, LENGTHS)
    output = isolated(FIRST)(row, None, tiny.positions(LENGTHS)).logits
    torch.testing.assert_close(output, torch.cat(alone, dim=1), atol=LOGITS, rtol=LOGITS)


def test_the_backbone_alone_with_embeddings():
    parts, row, _, _ = reference(FIRST, LENGTHS)
    model = isolated(FIRST)
    embedded = model.get_input_embeddings()(row)
    together = model.model(inputs_embeds=embedded, position_ids=tiny.positions(LENGTHS)).last_hidden_state
    alone = [model.model(input_ids=part, use_cache=False).last_hidden_state for part in parts]
    torch.testing.assert_close(together, torch.cat(alone, dim=1), atol=LOGITS, rtol=LOGITS)


@pytest.mark.parametrize("name", NAMES)
def test_two_packed_rows(name):
    _, first, alone, _ = reference(name, LENGTHS)
    other = (13, 8)
    _, second, alone_too, _ = reference(name, other)
    rows = torch.cat([first, second])
    positions = torch.cat([tiny.positions(LENGTHS), tiny.positions(other)])
    expected = torch.stack([torch.cat(alone, dim=1)[0], torch.cat(alone_too, dim=1)[0]])
    output = tiny.logits(isolated(name), input_ids=rows, position_ids=positions)
    torch.testing.assert_close(output, expected, atol=LOGITS, rtol=LOGITS)
    numbers = Boundaries.from_seq_lens([LENGTHS, other])
    output = tiny.logits(isolated(name), input_ids=rows, **numbers.model_kwargs())
    torch.testing.assert_close(output, expected, atol=LOGITS, rtol=LOGITS)


@pytest.mark.parametrize("pads", ["masked", "one each", "one tail"])
def test_a_padded_tail(pads):
    _, row, _, _ = reference(FIRST, LENGTHS)
    padded = torch.cat([row, torch.zeros(1, 6, dtype=row.dtype)], dim=1)
    positions = torch.cat([tiny.positions(LENGTHS), torch.zeros(1, 6, dtype=row.dtype)], dim=1)
    arguments = {"position_ids": positions}
    if pads == "masked":
        arguments["attention_mask"] = (torch.arange(27) < 21).long()[None]
    elif pads == "one tail":
        arguments = Boundaries.from_seq_lens(LENGTHS, total=27).model_kwargs()
    assert_alone(FIRST, LENGTHS, isolated(FIRST), row=padded, **arguments)
    assert torch.isfinite(tiny.logits(isolated(FIRST), input_ids=padded, **arguments)).all()


def test_one_document_with_boundaries_runs_unhindered():
    row = tiny.documents([11])[0]
    expected = tiny.logits(stock(FIRST), input_ids=row)
    for total in (11, 16):
        padded = torch.nn.functional.pad(row, (0, total - 11))
        arguments = Boundaries.from_seq_lens([11], total=total).model_kwargs()
        output = tiny.logits(isolated(FIRST), input_ids=padded, **arguments)
        torch.testing.assert_close(output[:, :11], expected, atol=LOGITS, rtol=LOGITS)


def test_a_document_has_the_same_loss_wherever_it_stands():
    part = tiny.documents([9])[0]
    output = tiny.logits(isolated(FIRST), input_ids=torch.cat([part, part], 1), position_ids=tiny.positions([9, 9]))
    torch.testing.assert_close(output[:, 9:], output[:, :9], atol=LOGITS, rtol=LOGITS)


# ---- checkpointing ----------------------------------------------------------------------------------------------


@pytest.mark.parametrize("name", NAMES[:2])
@pytest.mark.parametrize("reentrant", [True, False])
def test_gradient_checkpointing(name, reentrant):
    model = copy.deepcopy(isolated(name))
    model.gradient_checkpointing_enable({"use_reentrant": reentrant})
    model.enable_input_require_grads()
    calls = []
    layer = next(module for module in model.modules() if type(module).__name__.endswith("DecoderLayer"))
    layer.input_layernorm.register_forward_hook(lambda *_: calls.append(1))
    assert_alone(name, LENGTHS, model, **arguments_of("positions", LENGTHS))
    assert len(calls) == 2, "the layer was not run again, so nothing was shown"


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
    _, row, _, expected = reference(FIRST, LENGTHS)
    found, _ = run(model, row, LENGTHS, position_ids=tiny.positions(LENGTHS))
    found = {name.replace("_checkpoint_wrapped_module.", ""): gradient for name, gradient in found.items()}
    assert tiny.worst_difference(found, expected) < GRADIENTS


@pytest.mark.parametrize("reentrant", [None, True, False])
def test_two_rows_in_flight_before_one_backward(reentrant):
    model = copy.deepcopy(isolated(FIRST))
    if reentrant is not None:
        model.gradient_checkpointing_enable({"use_reentrant": reentrant})
        model.enable_input_require_grads()
    other = (4, 11, 6)
    _, row, _, expected = reference(FIRST, LENGTHS)
    _, row_too, _, expected_too = reference(FIRST, other)
    unpacked = tiny.documents([21])[0]
    plain = tiny.gradients(stock(FIRST), lambda: tiny.loss([row, tiny.logits(stock(FIRST), input_ids=unpacked)]))

    def both():
        losses = [
            tiny.loss(tiny.split(tiny.logits(model, input_ids=row, position_ids=tiny.positions(LENGTHS)), LENGTHS)),
            tiny.loss([row, tiny.logits(model, input_ids=unpacked)]),
            tiny.loss(tiny.split(tiny.logits(model, input_ids=row_too, position_ids=tiny.positions(other)), other)),
        ]
        return sum(losses)

    total = {name: expected[name] + expected_too[name] + plain[name] for name in expected}
    assert tiny.worst_difference(tiny.gradients(model, both), total) < GRADIENTS


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


@pytest.mark.parametrize("name", NAMES)
def test_generation_and_cached_steps_are_bit_identical(name):
    left = torch.ones(2, 6, dtype=torch.int64)
    left[1, :3] = 0
    prompt = torch.cat([tiny.documents([6], seed=seed)[0] for seed in (1, 2)])
    models = [copy.deepcopy(each).eval() for each in (isolated(name), stock(name))]
    with torch.no_grad(), warnings.catch_warnings():
        warnings.simplefilter("ignore")
        for arguments in ({"attention_mask": torch.ones_like(left)}, {"attention_mask": left}):
            mine, theirs = (
                model.generate(
                    prompt,
                    **arguments,
                    max_new_tokens=5,
                    min_new_tokens=5,
                    do_sample=False,
                    output_logits=True,
                    return_dict_in_generate=True,
                )
                for model in models
            )
            assert torch.equal(mine.sequences, theirs.sequences)
            for each, other in zip(mine.logits, theirs.logits, strict=True):
                assert torch.equal(each, other)


def test_a_second_model_of_the_class_is_untouched():
    isolated(FIRST)
    _, row, _, _ = reference(FIRST, LENGTHS)
    fresh, again = tiny.build(FIRST), copy.deepcopy(stock(FIRST))
    positions = tiny.positions(LENGTHS)
    leaking = tiny.logits(fresh, input_ids=row, position_ids=positions)
    assert torch.equal(leaking, tiny.logits(again, input_ids=row, position_ids=positions))
    assert not torch.allclose(leaking, tiny.logits(isolated(FIRST), input_ids=row, position_ids=positions), atol=1e-2)


# ---- wrapping, copying, saving ----------------------------------------------------------------------------------


def assert_isolated(model, name=FIRST, rename=lambda key: key):
    _, row, alone, _ = reference(name, LENGTHS)
    output = model(input_ids=row, position_ids=tiny.positions(LENGTHS), use_cache=False).logits
    torch.testing.assert_close(output, torch.cat(alone, dim=1), atol=LOGITS, rtol=LOGITS)
    assert control(name, LENGTHS)


def test_copies_and_pickles_stay_isolated():
    model = isolated(FIRST)
    copied = copy.deepcopy(model)
    with torch.no_grad():
        for parameter in model.parameters():
            parameter.mul_(1)
    assert_isolated(copied)
    buffer = io.BytesIO()
    torch.save(model, buffer)
    buffer.seek(0)
    assert_isolated(torch.load(buffer, weights_only=False))


def test_a_copy_runs_its_own_weights():
    copied = copy.deepcopy(isolated(FIRST))
    _, row, _, _ = reference(FIRST, LENGTHS)
    with torch.no_grad():
        copied.lm_head.weight.zero_()
    assert not tiny.logits(copied, input_ids=row, position_ids=tiny.positions(LENGTHS)).any()
    assert_isolated(isolated(FIRST))


def test_names_signatures_and_weights_stay():
    ours, theirs = copy.deepcopy(isolated(FIRST)), stock(FIRST)
    assert ours.state_dict().keys() == theirs.state_dict().keys()
    assert [name for name, _ in ours.named_modules()] == [name for name, _ in theirs.named_modules()]
    for mine, other in zip(ours.modules(), theirs.modules(), strict=True):
        assert type(mine) is type(other)
        assert inspect.ismethod(mine.forward)
        assert inspect.signature(mine.forward) == inspect.signature(inspect.unwrap(type(other).forward).__get__(other))


def test_saved_and_loaded(tmp_path):
    isolated(FIRST).save_pretrained(tmp_path)
    loaded = type(stock(FIRST)).from_pretrained(tmp_path).train()
    isolate(loaded)
    assert_isolated(loaded)


def test_isolating_twice_and_restoring():
    model = copy.deepcopy(stock(FIRST))
    first = isolate(model)
    forward, call = type(model.model).forward, type(model.model.layers[0]).__call__
    assert isolate(model) == first
    assert type(model.model).forward is forward
    assert type(model.model.layers[0]).__call__ is call
    ways = {part.role: part.way for part in first}
    assert ways["mixer"] == "document batching"
    assert ways["backbone"] == "attention mask"
    assert sum(part.role == "mixer" for part in first) == 3
    restore(model)
    _, row, _, _ = reference(FIRST, LENGTHS)
    positions = tiny.positions(LENGTHS)
    assert torch.equal(
        tiny.logits(model, input_ids=row, position_ids=positions),
        tiny.logits(stock(FIRST), input_ids=row, position_ids=positions),
    )


@pytest.mark.parametrize("before", [True, False])
def test_peft(before):
    peft = pytest.importorskip("peft")
    config = peft.LoraConfig(r=2, target_modules=["out_proj", "o_proj", "q_proj"])
    model = copy.deepcopy(stock(FIRST))
    if before:
        isolate(model)
    adapted = peft.get_peft_model(model, config)
    if not before:
        isolate(adapted)
    assert_isolated(adapted)
    with adapted.disable_adapter():
        assert_isolated(adapted)


@pytest.mark.parametrize("before", [True, False])
def test_hooks_of_accelerate(before):
    accelerate = pytest.importorskip("accelerate")
    model = copy.deepcopy(stock(FIRST))
    if before:
        isolate(model)
    for module in list(model.modules()):
        accelerate.hooks.add_hook_to_module(module, accelerate.hooks.ModelHook())
    if not before:
        isolate(model)
    assert_isolated(model)
    accelerate.hooks.remove_hook_from_module(model, recurse=True)
    assert_isolated(model)


def test_prepared_and_unwrapped_by_accelerate():
    accelerate = pytest.importorskip("accelerate")
    accelerator = accelerate.Accelerator(cpu=True)
    prepared = accelerator.prepare(copy.deepcopy(isolated(FIRST)))
    assert_isolated(prepared)
    assert_isolated(accelerator.unwrap_model(prepared))


def test_recorded_hidden_states_before_and_after():
    model = copy.deepcopy(stock(FIRST))
    _, row, alone, _ = reference(FIRST, LENGTHS)
    model(input_ids=row, output_hidden_states=True)
    isolate(model)
    output = model(input_ids=row, position_ids=tiny.positions(LENGTHS), output_hidden_states=True)
    assert len(output.hidden_states) == 5
    torch.testing.assert_close(output.logits, torch.cat(alone, dim=1), atol=LOGITS, rtol=LOGITS)
    assert_isolated(model)


def test_compiled():
    name = "qwen3_5" if "qwen3_5" in NAMES else FIRST
    compiled = torch.compile(copy.deepcopy(isolated(name)), backend="eager")
    with torch.no_grad():
        assert_isolated(compiled, name)
        plain = tiny.documents([12])[0]
        assert torch.equal(tiny.logits(compiled, input_ids=plain), tiny.logits(isolated(name), input_ids=plain))
    torch._dynamo.reset()


# ---- refusals ---------------------------------------------------------------------------------------------------


def test_a_mixer_whose_forward_was_replaced_is_noticed():
    model = copy.deepcopy(isolated(FIRST))
    mixer = model.model.layers[0].linear_attn
    original = type(mixer).forward.__wrapped__
    mixer.forward = lambda *args, **kwargs: original(mixer, *args, **kwargs)
    _, row, _, _ = reference(FIRST, LENGTHS)
    with pytest.raises(IsolationError, match="1 recurrent mixers, 0 were reached"):
        tiny.logits(model, input_ids=row, position_ids=tiny.positions(LENGTHS))
    tiny.logits(model, input_ids=row)


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
    import transformers

    config = transformers.GPT2Config(n_layer=1, n_head=2, n_embd=32, vocab_size=tiny.VOCABULARY)
    model = transformers.GPT2LMHeadModel(config).eval()
    with pytest.raises(IsolationError, match="no text backbone of a known family in GPT2LMHeadModel"):
        isolate(model)
    row, positions = torch.cat(tiny.documents(LENGTHS), dim=1), tiny.positions(LENGTHS)
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
    import transformers

    config = transformers.MambaConfig(num_hidden_layers=1, hidden_size=32, vocab_size=tiny.VOCABULARY, state_size=4)
    model = transformers.MambaForCausalLM(config).eval()
    for module in (model.backbone, model):
        adopt(module)
    row = torch.cat(tiny.documents(LENGTHS), dim=1)
    with pytest.raises(IsolationError, match="3 documents reached MambaForCausalLM"):
        model(input_ids=row, position_ids=tiny.positions(LENGTHS))
    assert model(input_ids=row).logits.shape[1] == 21


def test_adopting_what_transformers_builds():
    model = copy.deepcopy(stock(FIRST))
    for module in (model.model, model):
        adopt(module)
    assert_isolated(model)
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


# ---- multimodal positions ---------------------------------------------------------------------------------------


@pytest.mark.skipif("qwen3_5_vlm" not in NAMES, reason="this release has no Qwen3.5")
@pytest.mark.parametrize("planes", [3, 4])
def test_multimodal_positions_with_explicit_lengths(planes):
    restarting = tiny.positions(LENGTHS).expand(planes, 1, -1)
    arguments = arguments_of("cumulative", LENGTHS) | {"position_ids": restarting}
    assert_alone("qwen3_5_vlm", LENGTHS, isolated("qwen3_5_vlm"), **arguments)


@pytest.mark.skipif("qwen3_5_vlm" not in NAMES, reason="this release has no Qwen3.5")
def test_multimodal_positions_without_lengths():
    _, row, _, _ = reference("qwen3_5_vlm", LENGTHS)
    model = isolated("qwen3_5_vlm")
    with pytest.raises(IsolationError, match="all three planes"):
        tiny.logits(model, input_ids=row, position_ids=tiny.positions(LENGTHS).expand(3, 1, -1))
    text = torch.arange(21)[None]
    image = torch.stack([text, text, text])
    image[1, 0, 4:8] = torch.tensor([4, 4, 5, 5])
    image[2, 0, 4:8] = torch.tensor([4, 5, 4, 5])
    assert torch.equal(
        tiny.logits(model, input_ids=row, position_ids=image),
        tiny.logits(stock("qwen3_5_vlm"), input_ids=row, position_ids=image),
    )


# ---- attention only ---------------------------------------------------------------------------------------------


@pytest.mark.parametrize("name", sorted(tiny.ATTENTION))
def test_families_of_attention_only(name):
    from patchwork.packing.mixers import family_of

    attention = "eager" if name == "gemma2" else "sdpa"
    plain = stock(name, attention)
    if family_of(type(plain.model)) is None:
        with pytest.raises(IsolationError, match="no text backbone of a known family"):
            isolate(copy.deepcopy(plain))
        return
    _, row, alone, _ = reference(name, LENGTHS, attention)
    assert_alone(name, LENGTHS, isolated(name, attention), attention, position_ids=tiny.positions(LENGTHS))
    masked = isolated(name, attention)(input_ids=row, position_ids=tiny.positions(LENGTHS), attention_mask=torch.ones_like(row))
    torch.testing.assert_close(masked.logits, torch.cat(alone, dim=1), atol=LOGITS, rtol=LOGITS)
    batch = torch.cat([row, row])
    mask = torch.ones_like(batch)
    mask[1, :5] = 0
    assert torch.equal(
        isolated(name, attention)(input_ids=batch, attention_mask=mask).logits,
        plain(input_ids=batch, attention_mask=mask).logits,
    )


def test_every_family_of_attention_only_is_tested():
    from patchwork.packing.mixers import FAMILIES

    assert {family.name for family in FAMILIES if not family.recurrent} == set(tiny.ATTENTION)
