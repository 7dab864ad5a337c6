"""An isolated model stays isolated when it is copied, saved, adapted, hooked, prepared or compiled."""

from __future__ import annotations

import copy
import inspect
import io

import pytest
import tiny
import torch
import transformers
from alone import (
    DENSE,
    FIRST,
    Case,
    assert_alone,
    assert_close,
    assert_equal,
    assert_leaks,
    isolated,
    logits,
    reference,
    run,
    stock,
)

from patchwork.packing import IsolationError, adopt, isolate, isolation, restore
from patchwork.packing.decision import adopt_model
from patchwork.packing.runtime.document_batching import plan
from patchwork.packing.runtime.markers import FLAG

CASE = Case()


def test_copies_and_pickles_stay_isolated():
    assert_alone(copy.deepcopy(isolated(FIRST)), **CASE.form())
    fresh = tiny.build(FIRST)
    isolate(fresh)
    buffer = io.BytesIO()
    torch.save(fresh, buffer)
    buffer.seek(0)
    assert_alone(torch.load(buffer, weights_only=False), **CASE.form())


def test_a_copy_runs_its_own_weights():
    copied = copy.deepcopy(isolated(FIRST))
    with torch.no_grad():
        copied.lm_head.weight.zero_()
    assert not logits(copied, CASE.tokens, **CASE.form()).any()
    assert_alone(isolated(FIRST), **CASE.form())


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
    assert_alone(loaded, **CASE.form())


def test_isolating_twice_and_restoring():
    model = copy.deepcopy(stock(FIRST))
    first = isolate(model)
    forward, call = type(model.model).forward, type(model.model.layers[0]).__call__
    assert isolate(model) == first
    assert type(model.model).forward is forward
    assert type(model.model.layers[0]).__call__ is call
    ways = {part.role: part.way for part in first}
    assert ways["mixer"] == "document batching"
    assert ways["backbone"] == ways["attention"] == "document batching"
    assert sum(part.role == "mixer" for part in first) == 3
    restore(model)
    assert torch.equal(logits(model, CASE.tokens, **CASE.form()), logits(stock(FIRST), CASE.tokens, **CASE.form()))


# ---- given to a trainer ------------------------------------------------------------------------------------------


def natives(model):
    return {flag.native for module in model.modules() if (flag := vars(module).get(FLAG)) and flag.role == "mixer"}


def without_kernels(name=FIRST):
    model = copy.deepcopy(stock(name))
    isolate(model, native=False)
    return model


def untouched(model):
    pass


def one_layer_swapped(model):
    model.model.layers[1] = copy.deepcopy(stock(FIRST)).model.layers[1]


def all_layers_swapped(model):
    model.model.layers = copy.deepcopy(stock(FIRST)).model.layers


def adapted(model):
    peft = pytest.importorskip("peft")
    peft.get_peft_model(model, peft.LoraConfig(r=2, target_modules=["out_proj", "o_proj"]))


@pytest.mark.parametrize("since", [untouched, one_layer_swapped, all_layers_swapped, adapted])
def test_a_trainer_leaves_mixers_in_the_way_that_they_were_told(since):
    model = without_kernels()
    since(model)
    adopt_model(model)
    assert natives(model) == {False}
    assert_alone(model, gradients=since is not adapted, **CASE.form())


def test_a_trainer_lets_all_others_use_their_kernels():
    models = copy.deepcopy(stock(FIRST)), copy.deepcopy(isolated(FIRST)), without_kernels()
    restore(models[2])
    for model in models:
        adopt_model(model)
        assert natives(model) == {True}
    isolate(models[0], native=False)
    isolate(models[0])
    assert natives(models[0]) == {True}, "whoever asks again, asks anew"


def test_a_model_that_was_restored_is_as_one_that_was_built_before():
    model = copy.deepcopy(isolated(FIRST))
    restore(model)
    assert not isolation.isolated(model)
    adopt_model(model)
    assert_alone(model, **CASE.form())


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
    assert_alone(adapted, gradients=False, **CASE.form())
    with adapted.disable_adapter():
        assert_alone(adapted, gradients=False, **CASE.form())


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
    assert_alone(model, **CASE.form())
    accelerate.hooks.remove_hook_from_module(model, recurse=True)
    assert_alone(model, **CASE.form())


def test_prepared_and_unwrapped_by_accelerate():
    accelerate = pytest.importorskip("accelerate")
    accelerator = accelerate.Accelerator(cpu=True)
    prepared = accelerator.prepare(copy.deepcopy(isolated(FIRST)))
    assert_alone(prepared, **CASE.form())
    assert_alone(accelerator.unwrap_model(prepared), **CASE.form())


def test_recorded_hidden_states_before_and_after():
    model = copy.deepcopy(stock(FIRST))
    model(input_ids=CASE.tokens, output_hidden_states=True)
    isolate(model)
    output = model(input_ids=CASE.tokens, output_hidden_states=True, **CASE.form())
    assert len(output.hidden_states) == 5
    assert_alone(model, **CASE.form())


def test_hooks_on_a_mixer_run_once_and_those_on_its_children_once_a_bucket():
    """What sharding stands on: gathering the parameters of a whole mixer is one step on every rank (test_ranks.py)."""
    case = Case(rows=((90, 7, 40),))
    buckets = len(plan(case.boundaries).shapes)
    assert buckets > 1
    model, calls = copy.deepcopy(isolated(FIRST)), {"mixer": 0, "child": 0}
    mixer = model.model.layers[1].linear_attn

    def count(name):
        def hook(*_):
            calls[name] += 1

        return hook

    mixer.register_forward_pre_hook(count("mixer"))
    mixer.register_full_backward_hook(count("mixer"))
    mixer.out_proj.register_forward_pre_hook(count("child"))
    found = run(model, case, **case.form())
    assert calls == {"mixer": 2, "child": buckets}
    assert_equal(found, reference(case))
    assert_leaks(run(model, case), reference(case), case)


@pytest.mark.slow
def test_compiled():
    compiled = torch.compile(copy.deepcopy(isolated(DENSE)), backend="eager")
    with torch.no_grad():
        assert_alone(compiled, Case(DENSE), gradients=False, **CASE.form())
        plain = tiny.documents([12])[0]
        assert torch.equal(logits(compiled, plain), logits(isolated(DENSE), plain))
    torch._dynamo.reset()


@pytest.mark.slow
@pytest.mark.parametrize("name", [name for name in (DENSE, "lfm2", "mamba2") if tiny.has(name)])
def test_compiled_code_takes_rows_of_other_layouts(name):
    compiled = torch.compile(copy.deepcopy(isolated(name)), backend="eager")
    torch._dynamo.reset()
    try:
        for lengths in ((7, 5, 9), (6, 6, 9), (12, 3, 2, 4), (9, 14)):
            case = Case(name, rows=(lengths,))
            assert_alone(compiled, case, gradients=False, **case.form())
    finally:
        torch._dynamo.reset()


def gpt_neo():
    sizes = {"num_layers": 1, "num_heads": 2, "hidden_size": 32, "attention_types": [[["global"], 1]]}
    ids = {"vocab_size": tiny.VOCABULARY, "bos_token_id": 1, "eos_token_id": 2, "pad_token_id": 0}
    config = transformers.GPTNeoConfig(**sizes, **ids)
    model = transformers.GPTNeoForCausalLM(config).eval()
    guarded = copy.deepcopy(model)
    for module in (guarded.transformer, guarded):
        adopt(module)
    return model, guarded


@pytest.mark.slow
@pytest.mark.parametrize("name", ["gpt_neo", DENSE])
def test_an_ordinary_call_compiles_into_one_graph(name):
    plain, ours = gpt_neo() if name == "gpt_neo" else (stock(name), copy.deepcopy(isolated(name)))
    row = tiny.documents([12])[0]
    torch._dynamo.reset()
    with torch.no_grad():
        expected = logits(plain, row)
        for model in (copy.deepcopy(plain), ours):
            try:
                found = logits(torch.compile(model, backend="eager", fullgraph=True), row)
            except torch._dynamo.exc.TorchDynamoException as error:
                if model is ours:
                    raise
                pytest.skip(f"stock cannot do this in this release: {type(error).__name__}")
            assert_close(found, expected)
        with_positions = torch.compile(ours, backend="eager")
        torch.testing.assert_close(logits(with_positions, row, position_ids=torch.arange(12)[None]), expected)
        if name == "gpt_neo":
            with pytest.raises(IsolationError, match="3 documents"):
                logits(with_positions, CASE.tokens, **CASE.form())
    torch._dynamo.reset()


@pytest.mark.slow
@pytest.mark.parametrize("strict", [True, False])
def test_a_guarded_model_is_exported(strict):
    plain, guarded = gpt_neo()
    row = tiny.documents([12])[0]
    arguments = {"input_ids": row, "position_ids": torch.arange(12)[None], "use_cache": False}
    torch.export.export(plain, (), arguments, strict=strict)
    exported = torch.export.export(guarded, (), arguments, strict=strict).module()
    torch.testing.assert_close(exported(**arguments).logits, plain(**arguments).logits)
    with pytest.raises(IsolationError, match="cannot be exported"):
        torch.export.export(guarded, (), {**arguments, "seq_idx": torch.zeros_like(row)}, strict=False)


def test_a_run_on_shapes_alone_is_ordinary():
    from torch._subclasses.fake_tensor import FakeTensorMode

    plain, guarded = gpt_neo()
    for model in (plain, guarded):
        with FakeTensorMode(allow_non_fake_inputs=True) as mode:
            arguments = {"position_ids": mode.from_tensor(CASE.boundaries.position_ids)}
            try:
                found = logits(model, mode.from_tensor(CASE.tokens), **arguments)
            except (RuntimeError, ValueError) as error:
                if model is guarded:
                    raise
                pytest.skip(f"stock cannot do this in this release: {type(error).__name__}")
        assert found.shape == (1, 21, tiny.VOCABULARY)
    with pytest.raises(IsolationError, match="3 documents"):
        logits(guarded, CASE.tokens, **CASE.form())


def test_threads_have_boundaries_of_their_own():
    from concurrent.futures import ThreadPoolExecutor

    model, row = isolated(FIRST), tiny.documents([21], seed=7)[0]
    packed, plain = logits(model, CASE.tokens, **CASE.form()), logits(stock(FIRST), row)
    with torch.no_grad(), ThreadPoolExecutor(4) as pool:
        calls = [
            pool.submit(logits, model, *((CASE.tokens,) if number % 2 else (row,)), **(CASE.form() if number % 2 else {}))
            for number in range(12)
        ]
        for number, call in enumerate(calls):
            assert_close(call.result(), packed if number % 2 else plain)
