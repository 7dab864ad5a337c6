"""Activation checkpointing wherever it is put: exact, or an error before gradients leak, and never worse than stock."""

from __future__ import annotations

import copy
import functools
import threading
from collections.abc import Callable
from typing import Any

import pytest
import tiny
import torch
from alone import Case
from torch.utils.checkpoint import checkpoint

from patchwork.packing import IsolationError, isolate, restore
from patchwork.packing.probing.model_sources import config_of
from patchwork.packing.probing.tiny_models import shrink, tiny_model
from patchwork.packing.runtime.markers import FLAG
from patchwork.packing.runtime.recompute import RUNNING, Carrying, carrying

ROWS = ((7, 5, 9), (13, 8))
NAMES = [name for name in ("qwen3_5", "qwen3_next", "mamba2", "lfm2", "llama", "gpt_oss") if tiny.has(name)]
PUT = "_gradient_checkpointing_func"
DENSE = "qwen3_5" if "qwen3_5" in NAMES else "qwen3_next"


# ---- modules that run others again -------------------------------------------------------------------------------


class Instead(torch.nn.Module):
    """In the place of a module, with its attributes."""

    def __init__(self, module: torch.nn.Module) -> None:
        super().__init__()
        self.module = module

    def __getattr__(self, name: str) -> Any:
        try:
            return super().__getattr__(name)
        except AttributeError:
            return getattr(super().__getattr__("module"), name)


class Rerun(Instead):
    """Checkpoints a module, and whatever ``around`` it is run with."""

    def __init__(self, how: Callable[..., Any], module: torch.nn.Module, around: Callable[..., Any] | None = None) -> None:
        super().__init__(module)
        self.how, self.around = how, around

    def forward(self, *args: Any, **kwargs: Any) -> Any:
        # What needs a gradient goes by position: reentrant checkpoints see nothing else.
        hidden, *rest = [*args, *([kwargs.pop("hidden_states")] if "hidden_states" in kwargs else [])]

        def again(hidden: torch.Tensor) -> Any:
            return (self.around or call)(self.module, hidden, *rest, **kwargs)

        return self.how(again, hidden)


class Passing(Instead):
    """Returns what it is given."""

    def forward(self, hidden_states: torch.Tensor, *_: Any, **__: Any) -> torch.Tensor:
        return hidden_states


def call(module: torch.nn.Module, *args: Any, **kwargs: Any) -> Any:
    return module(*args, **kwargs)


def by_torch(reentrant: bool) -> Callable[..., Any]:
    return functools.partial(checkpoint, use_reentrant=reentrant)


class Handwritten(torch.autograd.Function):
    """Checkpointing as people write it themselves: run without gradients, and once more in the backward pass."""

    @staticmethod
    def forward(ctx: Any, function: Callable[..., Any], hidden: torch.Tensor) -> Any:
        ctx.function = function
        ctx.save_for_backward(hidden)
        with torch.no_grad():
            return function(hidden)

    @staticmethod
    def backward(ctx: Any, *gradients: Any) -> Any:
        hidden = ctx.saved_tensors[0].detach().requires_grad_()
        with torch.enable_grad():
            outputs = ctx.function(hidden)
        output = outputs[0] if isinstance(outputs, tuple) else outputs
        torch.autograd.backward(output, gradients[0])
        return None, hidden.grad


def by_saved_tensors(function: Callable[..., Any], hidden: torch.Tensor) -> Any:
    """The other kind: what is saved for the backward pass is computed again as it is asked for."""
    saved: list[torch.Tensor] = []

    def unpack(number: int) -> torch.Tensor:
        if not found:
            with torch.enable_grad(), torch.autograd.graph.saved_tensors_hooks(found.append, lambda each: each):
                function(hidden.detach().requires_grad_())
        return found[number]

    def pack(tensor: torch.Tensor) -> int:
        saved.append(tensor.new_empty(0))
        return len(saved) - 1

    found: list[torch.Tensor] = []
    with torch.autograd.graph.saved_tensors_hooks(pack, unpack):
        return function(hidden)


# ---- where they are put ------------------------------------------------------------------------------------------


def layers_of(model: Any) -> torch.nn.ModuleList:
    return (model.backbone if hasattr(model, "backbone") else model.model).layers


def places_of(model: Any, *roles: str) -> list[tuple[Any, str]]:
    """Modules of these roles, each by the one that holds it and its name there."""
    return [
        (holder, name)
        for layer in layers_of(model)
        for holder in layer.modules()
        for name, child in holder.named_children()
        if (flag := vars(child).get(FLAG)) is not None and flag.role in roles
    ]


def around(role: str, model: Any, how: Callable[..., Any]) -> int:
    found = places_of(model, role)
    for holder, name in found:
        setattr(holder, name, Rerun(how, getattr(holder, name)))
    return len(found)


def layers(model: Any, how: Callable[..., Any]) -> int:
    found = layers_of(model)
    for at, layer in enumerate(found):
        found[at] = Rerun(how, layer)
    return len(found)


def halves(model: Any, how: Callable[..., Any]) -> int:
    """The mixer or attention of a layer together with the norm before it."""
    found = places_of(model, "mixer", "attention")
    for layer, name in found:
        norm = next(each for each in ("input_layernorm", "operator_norm", "norm") if hasattr(layer, each))
        before = getattr(layer, norm)
        setattr(layer, norm, Passing(before))
        half = functools.partial(lambda before, module, hidden, *rest, **kwargs: module(before(hidden), *rest, **kwargs), before)
        setattr(layer, name, Rerun(how, getattr(layer, name), half))
    return len(found)


def two_layers(model: Any, how: Callable[..., Any]) -> int:
    found = layers_of(model)
    second = found[1]
    both = functools.partial(lambda second, first, hidden, *rest, **kw: second(first(hidden, *rest, **kw), *rest, **kw), second)
    found[0], found[1] = Rerun(how, found[0], both), Passing(second)
    return 1


def nested(model: Any, how: Callable[..., Any]) -> int:
    return halves(model, how) + layers(model, how)


PLACES: dict[str, Callable[..., int]] = {
    "layers": layers,
    "mixers": functools.partial(around, "mixer"),
    "attention": functools.partial(around, "attention"),
    "half a layer": halves,
    "two layers": two_layers,
    "nested": nested,
}
KINDS = pytest.mark.parametrize("reentrant", [True, False], ids=["reentrant", "not reentrant"])
EVERYWHERE = pytest.mark.parametrize("place", PLACES)


# ---- the same rows, checkpointed ---------------------------------------------------------------------------------


@functools.cache
def model_of(name: str) -> torch.nn.Module:
    """An isolated model whose first two layers take the same mask."""
    if name == "gpt_oss":
        config = shrink(config_of(name))
        config.layer_types = ["sliding_attention"] * len(config.layer_types)
        model = tiny_model(config).train()
    else:
        model = tiny.build(name)
    isolate(model)
    return model


class Checkpointed:
    """A copy of a model with checkpoints in a place, or as ``put`` puts them."""

    def __init__(
        self, name: str, place: str = "", how: Callable[..., Any] = call, put: Any = None, isolated: bool = True
    ) -> None:
        self.model = copy.deepcopy(model_of(name))
        if not isolated:
            restore(self.model)
        self.parameters = dict(self.model.named_parameters())
        if not (put or PLACES[place])(self.model, how):
            pytest.skip(f"{name} has no {place}")
        self.model.enable_input_require_grads()

    def gradients(self, run: Callable[[Any], torch.Tensor]) -> dict[str, torch.Tensor]:
        self.model.zero_grad()
        run(self.model).backward()
        return {name: each.grad.clone() for name, each in self.parameters.items() if each.grad is not None}

    def check(self, name: str, rows: Any = ROWS) -> None:
        """Packed rows are exact, and without boundaries they are not."""
        case = Case(name, rows)
        assert_exact(self.gradients(lambda model: loss_of(model, case, **case.form())), alone(name, case))
        assert_off(self.gradients(lambda model: loss_of(model, case)), alone(name, case))
        assert not RUNNING


def loss_of(model: Any, case: Case, **arguments: Any) -> torch.Tensor:
    return tiny.loss(case.split(model(input_ids=case.tokens, use_cache=False, **arguments).logits))


@functools.cache
def alone(name: str, case: Case) -> dict[str, torch.Tensor]:
    """Gradients of the documents alone, without checkpoints."""
    model = model_of(name)
    found = tiny.gradients(model, lambda: tiny.loss([model(input_ids=each, use_cache=False).logits for each in case.documents]))
    return {name: gradient for name, gradient in found.items() if gradient.any()}


def assert_exact(found: dict[str, torch.Tensor], expected: dict[str, torch.Tensor]) -> None:
    assert tiny.worst_difference({name: found[name] for name in expected}, expected) < 1e-4


def assert_off(found: dict[str, torch.Tensor], expected: dict[str, torch.Tensor]) -> None:
    assert tiny.worst_difference({name: found[name] for name in expected}, expected) > 1e-2


@KINDS
@EVERYWHERE
@pytest.mark.parametrize("name", NAMES)
def test_packed_rows(name: str, place: str, reentrant: bool) -> None:
    Checkpointed(name, place, by_torch(reentrant)).check(name)


@KINDS
@EVERYWHERE
@pytest.mark.parametrize("name", [DENSE, "llama"])
def test_ordinary_rows_between_packed_ones(name: str, place: str, reentrant: bool) -> None:
    """All in flight before one backward pass."""
    made, case, other = Checkpointed(name, place, by_torch(reentrant)), Case(name, ROWS), Case(name, ((4, 11, 6),))
    whole = Case(name, ((21,),))

    def losses(model: Any) -> torch.Tensor:
        return loss_of(model, case, **case.form()) + weighed(model, whole) + loss_of(model, other, **other.form())

    plain = model_of(name)
    parts = [alone(name, case), tiny.gradients(plain, lambda: weighed(plain, whole)), alone(name, other)]
    expected = {key: sum(part.get(key, torch.zeros(())) for part in parts) for key in parts[0]}
    assert_exact(made.gradients(losses), expected)


def weighed(model: Any, case: Case) -> torch.Tensor:
    outputs = model(input_ids=case.tokens, use_cache=False).logits
    return tiny.loss([outputs, outputs])


@EVERYWHERE
@pytest.mark.parametrize("how", [Handwritten.apply, by_saved_tensors], ids=["function", "saved tensors"])
@pytest.mark.parametrize("name", NAMES)
def test_checkpointing_of_others_raises_for_packed_rows_alone(name: str, how: Callable[..., Any], place: str) -> None:
    made, case, whole = Checkpointed(name, place, how), Case(name, ROWS), Case(name, ((21,),))
    plain = model_of(name)
    expected = tiny.gradients(plain, lambda: weighed(plain, whole))
    expected = {key: gradient for key, gradient in expected.items() if gradient.any()}
    for _ in range(2):
        with pytest.raises(IsolationError, match="run again in the backward pass"):
            made.gradients(lambda model: loss_of(model, case, **case.form()))
        assert not RUNNING
        assert_exact(made.gradients(lambda model: weighed(model, whole)), expected)


@pytest.mark.parametrize("name", NAMES)
def test_a_checkpointing_function_of_others_that_transformers_is_given(name: str, patched_once: None) -> None:
    """As unsloth's, which takes the place of torch's."""

    def put(model: Any, how: Callable[..., Any]) -> bool:
        model._set_gradient_checkpointing(True, how)
        return True

    made = Checkpointed(name, how=Handwritten.apply, put=put)
    made.check(name)
    given = [vars(each)[PUT] for each in copy.deepcopy(made.model).modules() if PUT in vars(each)]
    assert given
    assert all(isinstance(function, Carrying) for function in given)


def test_torchs_own_function_stays_as_it_is_given() -> None:
    for function in (checkpoint, functools.partial(checkpoint, use_reentrant=False)):
        assert carrying(function) is function
    other = carrying(Handwritten.apply)
    assert isinstance(other, Carrying)
    assert carrying(functools.partial(other)).func is other


# ---- what people use ---------------------------------------------------------------------------------------------


@KINDS
@pytest.mark.parametrize("order", ["wrapped before", "wrapped after"])
@pytest.mark.parametrize("kind", ["DecoderLayer", "Attention", "MLP"])
def test_wrappers_of_torch(kind: str, order: str, reentrant: bool) -> None:
    """As recipes for FSDP put them, by the name of a class."""
    wrapping = pytest.importorskip("torch.distributed.algorithms._checkpoint.checkpoint_wrapper")

    def put(model: Any, _: Any) -> bool:
        implementation = wrapping.CheckpointImpl.REENTRANT if reentrant else wrapping.CheckpointImpl.NO_REENTRANT
        wrapper = functools.partial(wrapping.checkpoint_wrapper, checkpoint_impl=implementation)
        wrapping.apply_activation_checkpointing(
            model, checkpoint_wrapper_fn=wrapper, check_fn=lambda module: type(module).__name__ == f"Llama{kind}"
        )
        isolate(model)
        return True

    Checkpointed("llama", put=put, isolated=order == "wrapped after").check("llama")


@pytest.mark.parametrize("name", [DENSE, "llama"])
def test_the_composable_kind_of_torch(name: str) -> None:
    composable = pytest.importorskip("torch.distributed._composable.checkpoint_activation")

    def put(model: Any, _: Any) -> bool:
        for holder, part in places_of(model, "mixer", "attention"):
            composable.checkpoint(getattr(holder, part))
        return True

    Checkpointed(name, put=put).check(name)


@pytest.mark.parametrize("name", [DENSE, "llama"])
def test_activations_kept_on_the_cpu_instead(name: str) -> None:
    wrapping = pytest.importorskip("torch.distributed.algorithms._checkpoint.checkpoint_wrapper")

    def put(model: Any, _: Any) -> bool:
        for holder, part in places_of(model, "mixer", "attention"):
            setattr(holder, part, wrapping.offload_wrapper(getattr(holder, part)))
        return True

    Checkpointed(name, put=put).check(name)


@pytest.mark.parametrize("check", ["default", "none"])
def test_a_check_of_determinism_that_is_off(check: str) -> None:
    how = functools.partial(checkpoint, use_reentrant=False, determinism_check=check, early_stop=False)
    Checkpointed(DENSE, "mixers", how).check(DENSE)


@KINDS
@pytest.mark.parametrize("name", [DENSE, "mamba2", "llama"])
def test_a_whole_backbone(name: str, reentrant: bool) -> None:
    """The head of mamba2 hands boundaries on to its backbone in no other way than by what carries them."""
    Checkpointed(name, how=by_torch(reentrant), put=backbone).check(name)


def backbone(model: Any, how: Callable[..., Any]) -> bool:
    name = "backbone" if hasattr(model, "backbone") else "model"
    inner = getattr(model, name)

    class Whole(Instead):
        def forward(self, input_ids: torch.Tensor, inputs_embeds: None = None, **kwargs: Any) -> Any:
            embedded = inner.get_input_embeddings()(input_ids)
            hidden = how(lambda each: inner(inputs_embeds=each, **kwargs).last_hidden_state, embedded)
            return Hidden(hidden)

    setattr(model, name, Whole(inner))
    return True


class Hidden:
    """What a head reads of a backbone's output, whatever its release calls the rest."""

    def __init__(self, last_hidden_state: torch.Tensor) -> None:
        self.last_hidden_state = last_hidden_state

    def __getattr__(self, name: str) -> None:
        return None

    def __getitem__(self, number: int) -> torch.Tensor:
        return self.last_hidden_state


@pytest.mark.parametrize("name", [DENSE, "mamba2", "llama"])
def test_a_whole_backbone_by_checkpointing_of_others(name: str) -> None:
    made, case = Checkpointed(name, how=Handwritten.apply, put=backbone), Case(name, ROWS)
    if name != "mamba2":
        return made.check(name)
    with pytest.raises(IsolationError, match="run again in the backward pass"):
        made.gradients(lambda model: loss_of(model, case, **case.form()))
    return None


def test_a_model_called_while_gradients_of_another_are_computed() -> None:
    """From a hook: its own call, whatever is under way."""
    model, case, whole = copy.deepcopy(model_of(DENSE)), Case(DENSE, ROWS), Case(DENSE, ((21,),))
    with torch.no_grad():
        expected = {form: model(input_ids=case.tokens, use_cache=False, **case.form()).logits for form in ("positions",)}
        expected["ordinary"] = model(input_ids=whole.tokens, use_cache=False).logits
    found = []

    def asked(*_: Any) -> None:
        with torch.no_grad():
            found.append(model(input_ids=whole.tokens, use_cache=False).logits)
            found.append(model(input_ids=case.tokens, use_cache=False, **case.form()).logits)

    for part in (model.model.norm, model.model.layers[1], model.model.layers[0].linear_attn):
        part.register_full_backward_hook(asked)
    loss_of(model, case, **case.form()).backward()
    assert len(found) == 6
    assert all(torch.equal(each, expected["ordinary"]) for each in found[::2])
    assert all(torch.equal(each, expected["positions"]) for each in found[1::2])
    assert not RUNNING


def test_a_backward_pass_that_fails_leaves_nothing_behind() -> None:
    made, case = Checkpointed("llama", "attention", Handwritten.apply), Case("llama", ROWS)
    loss = loss_of(made.model, case, **case.form())
    with pytest.raises(IsolationError):
        loss.backward()
    del loss
    assert not RUNNING


@KINDS
def test_gradients_of_several_backward_passes_through_one_forward(reentrant: bool) -> None:
    made, case = Checkpointed(DENSE, "mixers", by_torch(reentrant)), Case(DENSE, ROWS)

    def twice(model: Any) -> torch.Tensor:
        loss = loss_of(model, case, **case.form())
        loss.backward(retain_graph=True)
        return loss

    found = made.gradients(twice)
    assert_exact(found, {name: 2 * each for name, each in alone(DENSE, case).items()})


def test_another_thread_is_not_held_up() -> None:
    """An ordinary call of a model in one thread, while another computes gradients of a packed one."""
    made, case, whole = Checkpointed("llama", "attention", by_torch(True)), Case("llama", ROWS), Case("llama", ((21,),))
    expected = weighed(made.model, whole).item()
    found: list[float] = []

    def hook(*_: Any) -> None:
        thread = threading.Thread(target=lambda: found.append(weighed(made.model, whole).item()))
        thread.start()
        thread.join()

    made.model.model.layers[1].register_full_backward_hook(hook)
    assert_exact(made.gradients(lambda model: loss_of(model, case, **case.form())), alone("llama", case))
    assert found == [expected]


@KINDS
@pytest.mark.parametrize("form", ["full", "seq_idx", "cumulative"])
def test_boundaries_that_are_given_themselves(form: str, reentrant: bool) -> None:
    made, case = Checkpointed(DENSE, "mixers", by_torch(reentrant)), Case(DENSE, ROWS)
    assert_exact(made.gradients(lambda model: loss_of(model, case, **case.form(form))), alone(DENSE, case))


@pytest.mark.slow
@pytest.mark.parametrize("reentrant", [True, False, None], ids=["reentrant", "not reentrant", "handwritten"])
def test_compiled_attention(reentrant: bool | None) -> None:
    torch._dynamo.reset()
    made = Checkpointed("llama", "half a layer", Handwritten.apply if reentrant is None else by_torch(reentrant))
    for holder, name in places_of(made.model, "attention"):
        getattr(holder, name).compile(backend="eager")
    if reentrant is not None:
        made.check("llama")
    else:
        case = Case("llama", ROWS)
        made.gradients(lambda model: loss_of(model, case))
        with pytest.raises(IsolationError, match="run again in the backward pass"):
            made.gradients(lambda model: loss_of(model, case, **case.form()))
    torch._dynamo.reset()
