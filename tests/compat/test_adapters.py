"""Adapters: those that work on each token alone are packed exactly, the others are refused wherever a packed row may reach them.

METHODS and VARIANTS decide on everything that the installed PEFT has; what is new in it fails here until it is read and listed.
"""

from __future__ import annotations

import copy
import functools
import warnings
from collections.abc import Callable
from pathlib import Path
from typing import Any

import peft
import pytest
import tiny
import torch
from peft.tuners.lora.layer import LoraVariant
from peft.tuners.tuners_utils import BaseTunerLayer

from patchwork.packing import IsolationError, decide, isolate, restore
from patchwork.packing.decision import adopt_model
from patchwork.packing.models.adapters import PER_TOKEN, WHOLE_ROW, acting_reason, config_reason

LENGTHS = [7, 5, 9]
CALL = [11, 12]  # the invocation tokens
MODELS = ["llama", "qwen3_5" if tiny.has("qwen3_5") and "qwen3_5" in tiny.recurrent_names() else "qwen3_next"]
HYBRID = MODELS[1]


@functools.cache
def documents() -> list[torch.Tensor]:
    found = tiny.documents(LENGTHS)
    found[0][0, 2:4] = found[1][0, 1:3] = torch.tensor(CALL)
    found[2][0, 5:7] = torch.tensor(CALL)
    return found


def row() -> torch.Tensor:
    return torch.cat(documents(), 1)


@functools.cache
def _built(name: str) -> Any:
    return tiny.build(name)


def built(name: str) -> Any:
    model = copy.deepcopy(_built(name))
    model.config.use_cache = False
    return model


def targets(name: str) -> list[str]:
    return ["q_proj", "v_proj", "down_proj"] if name == "llama" else ["q_proj", "v_proj", "out_proj"]


def adapter(kind: str, name: str, **settings: Any) -> Any:
    return getattr(peft, kind)(**{"target_modules": targets(name), "task_type": "CAUSAL_LM", **settings})


def lora(name: str = "llama", **settings: Any) -> Any:
    return adapter("LoraConfig", name, **{"r": 4, **settings})


def activated(name: str = "llama", **settings: Any) -> Any:
    return lora(name, alora_invocation_tokens=CALL, **settings)


def strengthened(model: Any) -> Any:
    """The same with adapters that act: most begin with none. Weights of LoRA that are not active act too."""
    torch.manual_seed(0)
    with torch.no_grad():
        for name, value in model.named_parameters():
            if (value.requires_grad or "lora_" in name) and value.is_floating_point():
                value.add_(torch.randn_like(value) * 0.2)
    return model


def adapted(name: str, config: Any) -> Any:
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        model = built(name)
        isolate(model)
        return strengthened(peft.get_peft_model(model, config)).eval()


def alone(model: Any, **arguments: Any) -> list[torch.Tensor]:
    return [tiny.logits(model, input_ids=part, **arguments) for part in documents()]


def packed(model: Any, boundaries: bool = True, **arguments: Any) -> list[torch.Tensor]:
    if boundaries:
        arguments["position_ids"] = tiny.positions(LENGTHS)
    return tiny.split(tiny.logits(model, input_ids=row(), **arguments), LENGTHS)


def distance(ours: list[torch.Tensor], theirs: list[torch.Tensor]) -> float:
    return max((one - other).abs().max().item() for one, other in zip(ours, theirs, strict=True))


@torch.no_grad()
def assert_exact(model: Any) -> None:
    expected = alone(model)
    assert distance(packed(model), expected) < 1e-4
    assert distance(packed(model, boundaries=False), expected) > 0.1, "the control must see a leak"


# ---- what each method does ----------------------------------------------------------------------------------------

Config = Callable[[str], Any]


def of(kind: str, **settings: Any) -> Config:
    return lambda name: adapter(kind, name, **settings)


EXACT: dict[str, Config] = {
    "lora": lora,
    "lora, rank-stabilised": lambda name: lora(name, use_rslora=True),
    "lora, DoRA": lambda name: lora(name, use_dora=True),
    "lora, biases": lambda name: lora(name, lora_bias=True, bias="all", init_lora_weights=False),
    "lora, embeddings": lambda name: lora(name, target_modules=["embed_tokens", "lm_head", "q_proj"]),
    "lora, modules to save": lambda name: lora(name, modules_to_save=["lm_head", "embed_tokens"]),
    "lora, tokens": lambda name: lora(name, trainable_token_indices=[5, 6, 7, *CALL]),
    "lora, MiCA": lambda name: lora(name, init_lora_weights="mica"),
    "lora, VeLoRA": lambda name: lora(name, velora_config=peft.VeloraConfig(num_groups=4, init_type="random")),
    "lora, KaSA": lambda name: lora(name, kasa_config=peft.KasaConfig()),
    "lora, MonteCLoRA": lambda name: lora(name, monteclora_config=peft.MontecloraConfig()),
    "adalora": of("AdaLoraConfig", total_step=10),
    "adaption_prompt": lambda name: peft.AdaptionPromptConfig(adapter_len=4, adapter_layers=2, task_type="CAUSAL_LM"),
    "beft": of("BeftConfig"),
    "boft": of("BOFTConfig", boft_block_size=8),
    "c3a": of("C3AConfig", block_size=16),
    "deft": of("DeftConfig", r=4),
    "delora": of("DeloraConfig", r=4),
    "fourierft": of("FourierFTConfig", n_frequency=50),
    "frod": of("FrodConfig", progressbar=False),
    "glora": of("GloraConfig"),
    "gralora": of("GraloraConfig", r=4),
    "hira": of("HiraConfig", r=4),
    "hra": of("HRAConfig", r=4),
    "ia3": of("IA3Config", feedforward_modules=[]),
    "ln_tuning": of("LNTuningConfig", target_modules=["input_layernorm"]),
    "loha": of("LoHaConfig", r=4),
    "lokr": of("LoKrConfig", r=4),
    "miss": of("MissConfig", r=4),
    "miss, bat": of("MissConfig", r=4, init_weights="bat"),
    "oft": of("OFTConfig", oft_block_size=8),
    "osf": of("OSFConfig"),
    "peanut": of("PeanutConfig", r=4),
    "psoft": of("PsoftConfig", r=4),
    "pvera": of("PveraConfig", r=4),
    "randlora": of("RandLoraConfig", r=4),
    "road": of("RoadConfig", group_size=16),
    "shira": of("ShiraConfig", r=4),
    "supertuning": of("SupertuningConfig"),
    "tinylora": of("TinyLoraConfig"),
    "trainable_tokens": of("TrainableTokensConfig", token_indices=[5, 6, 7, *CALL], target_modules=["embed_tokens"]),
    "unilora": of("UniLoraConfig", r=4),
    "vblora": of("VBLoRAConfig", r=4, vector_length=16, num_vectors=16, topk=2),
    "vera": of("VeraConfig", r=4),
    "waveft": of("WaveFTConfig", n_frequency=50),
}
PROMPTS: dict[str, Config] = {
    "prompt_tuning": lambda name: peft.PromptTuningConfig(task_type="CAUSAL_LM", num_virtual_tokens=2),
    "prefix_tuning": lambda name: peft.PrefixTuningConfig(task_type="CAUSAL_LM", num_virtual_tokens=2),
    "p_tuning": lambda name: peft.PromptEncoderConfig(task_type="CAUSAL_LM", num_virtual_tokens=2, encoder_hidden_size=8),
    "cpt": lambda name: peft.CPTConfig(task_type="CAUSAL_LM", cpt_token_ids=[5, 6], cpt_mask=[1, 1], cpt_tokens_type_mask=[1, 2]),
    "multitask_prompt_tuning": lambda name: peft.MultitaskPromptTuningConfig(
        task_type="CAUSAL_LM", num_virtual_tokens=2, num_tasks=2
    ),
    "cartridge": lambda name: peft.CartridgeConfig(task_type="CAUSAL_LM", num_virtual_tokens=2),
}
LAYERS: dict[str, Config] = {
    "lora, activated": activated,
    "lily": of("LilyConfig", r=4),
    "poly": of("PolyConfig", r=4, n_tasks=2),
    "shadow": lambda name: peft.ShadowConfig(task_type="CAUSAL_LM", shadow_dropout=0.0),
}
ELSEWHERE = {"adamss", "bone", "xlora"}  # needs scikit-learn; is gone; has a test of its own
VARIANTS = {  # of LoRA, by the start of their names: whether they work on each token alone
    **dict.fromkeys(("Arrow", "BdLora", "Dora", "Kasa", "MiCA", "Monteclora", "QALora", "_DoraConvNd"), True),
    **{"ALora": False, "Velora": False},  # Velora: unless its projection is random or made once
}


def installed(kinds: dict[str, Config]) -> list[str]:
    """Those that this PEFT has."""
    known = {str(kind.value).lower() for kind in peft.PeftType}
    return [kind for kind in kinds if kind.partition(",")[0] in known]


def test_every_method_of_peft_is_decided_on() -> None:
    known = {str(kind.value).lower() for kind in peft.PeftType}
    assert known <= PER_TOKEN | WHOLE_ROW.keys(), "read what the layers of the new methods compute, and list them"
    tested = {kind.partition(",")[0] for kind in (*EXACT, *PROMPTS, *LAYERS)} | ELSEWHERE
    assert PER_TOKEN | WHOLE_ROW.keys() == tested
    assert not PER_TOKEN & WHOLE_ROW.keys()


def test_every_variant_of_lora_is_decided_on() -> None:
    import peft.tuners.lora.gptq
    import peft.tuners.lora.variants  # noqa: F401

    def below(kind: type) -> set[str]:
        return {each for sub in kind.__subclasses__() for each in ({sub.__name__} | below(sub))}

    assert [name for name in below(LoraVariant) if not name.startswith(tuple(VARIANTS))] == []


@pytest.mark.parametrize("name", MODELS)
@pytest.mark.parametrize("kind", installed(EXACT))
def test_what_works_on_each_token_alone_is_exact(kind: str, name: str) -> None:
    if kind == "adaption_prompt" and name != "llama":
        pytest.skip("PEFT has it for a few families")
    config = EXACT[kind](name)
    assert config_reason(config) is None
    model = adapted(name, config)
    assert decide(model).packing
    isolate(model)
    assert_exact(model)
    with model.disable_adapter(), torch.no_grad():
        off = alone(model)
    assert distance(off, alone(model)) > 0.01, "it does not act"


@pytest.mark.parametrize("kind", ["lora", "lora, DoRA", "ia3", "oft", "vera", "miss", "trainable_tokens"])
@pytest.mark.parametrize("name", MODELS)
def test_gradients_too(kind: str, name: str) -> None:
    model = adapted(name, EXACT[kind](name))

    def kept(gradients: dict[str, torch.Tensor]) -> dict[str, torch.Tensor]:
        return {key: value for key, value in gradients.items() if value.norm() > 0}

    expected = kept(tiny.gradients(model, lambda: tiny.loss(alone(model))))
    found = kept(tiny.gradients(model, lambda: tiny.loss(packed(model))))
    without = kept(tiny.gradients(model, lambda: tiny.loss(packed(model, boundaries=False))))
    assert tiny.worst_difference(found, expected) < 1e-4
    assert tiny.worst_difference(without, expected) > 1e-2


# ---- refused in all three places ------------------------------------------------------------------------------------


@pytest.mark.parametrize("name", MODELS)
@pytest.mark.parametrize("kind", installed(LAYERS))
def test_what_acts_by_row_is_refused_everywhere(kind: str, name: str) -> None:
    config = LAYERS[kind](name)
    reason = config_reason(config)
    assert reason is not None
    assert config_reason({"one": lora(name), "other": config}) == reason
    model = adapted(name, config)
    assert decide(model).reasons == (reason,)
    assert decide(torch.nn.Sequential(model)).reasons == (reason,)
    with pytest.raises(IsolationError) as raised:
        isolate(model)
    assert reason in str(raised.value)
    tasks = {"task_ids": torch.tensor([1])} if kind == "poly" else {}
    adopt_model(model)  # a trainer gets it: it does not become a guard, since the adapter may be disabled
    for mode in (model.eval, model.train):
        mode()
        with pytest.raises(IsolationError) as raised:
            packed(model, **tasks)
        assert reason in str(raised.value)
    with pytest.raises(IsolationError):  # as a fused loss calls it
        model.get_base_model().model(input_ids=row(), position_ids=tiny.positions(LENGTHS))
    model.eval()
    with model.disable_adapter():
        assert decide(model).packing
        assert_exact(model)


@pytest.mark.parametrize("kind", installed(LAYERS))
def test_a_call_that_packs_nothing_is_stock(kind: str) -> None:
    name = "llama"
    model = adapted(name, LAYERS[kind](name))
    stock = copy.deepcopy(model)
    restore(stock)
    tasks = {"task_ids": torch.tensor([1, 0])} if kind == "poly" else {}
    batch = torch.cat([part[:, :5] for part in documents()[::2]])
    places = torch.arange(5).expand(2, -1)
    with torch.no_grad():
        for arguments in ({}, {"attention_mask": torch.ones_like(batch)}, {"position_ids": places}):
            expected = tiny.logits(stock, input_ids=batch, **arguments, **tasks)
            assert torch.equal(tiny.logits(model, input_ids=batch, **arguments, **tasks), expected)


@torch.no_grad()
def test_what_stock_does_with_an_activated_adapter() -> None:
    """The last document alone has the adapter where it belongs."""
    model = strengthened(peft.get_peft_model(built("llama"), activated())).eval()
    restore(model)
    errors = [distance([ours], [theirs]) for ours, theirs in zip(packed(model), alone(model), strict=True)]
    assert errors[0] > 0.1
    assert errors[1] > 0.1
    assert errors[2] < 1e-4


# ---- which adapter acts ---------------------------------------------------------------------------------------------


@pytest.mark.parametrize("name", MODELS)
def test_switching_between_adapters(name: str) -> None:
    model = adapted(name, activated(name))
    model.add_adapter("plain", lora(name))
    strengthened(model)
    for chosen, packs in (("plain", True), ("default", False), ("plain", True)):
        model.set_adapter(chosen)
        assert decide(model).packing is packs
        if packs:
            isolate(model)
            assert_exact(model)
        else:
            with pytest.raises(IsolationError, match="invocation tokens"):
                packed(model)
    model.base_model.set_adapter(["plain", "default"])
    with pytest.raises(IsolationError, match="invocation tokens"):
        packed(model)


def test_merged_and_unloaded() -> None:
    model = adapted("llama", lora())
    model.add_adapter("activated", activated())
    model.merge_adapter(["default"])
    assert_exact(model)
    model.set_adapter("activated")
    model.unmerge_adapter()
    assert not decide(model).packing
    model.delete_adapter("activated")
    model.set_adapter("default")
    assert_exact(model.merge_and_unload())


def test_without_a_peft_model_around() -> None:
    model = built("llama")
    isolate(model)
    peft.inject_adapter_in_model(activated(), model)
    assert not decide(model).packing
    with pytest.raises(IsolationError, match="invocation tokens"):
        packed(model)


def test_added_by_transformers() -> None:
    added = built("llama")
    isolate(added)
    try:
        added.add_adapter(lora(), "plain")
    except ValueError as error:
        pytest.skip(str(error))  # transformers wants a newer PEFT
    added.add_adapter(activated(), "activated")  # which is now the active one
    for model in (added, strengthened(added)):
        assert not decide(model).packing
        with pytest.raises(IsolationError, match="invocation tokens"):
            packed(model)
    added.set_adapter("plain")
    assert_exact(added.eval())
    added.set_adapter("activated")
    added.disable_adapters()
    assert_exact(added)


def test_loaded_from_a_checkpoint(tmp_path: Path) -> None:
    adapted("llama", activated()).save_pretrained(tmp_path)
    model = built("llama")
    isolate(model)
    loaded = peft.PeftModel.from_pretrained(model, tmp_path)
    assert not decide(loaded).packing
    with pytest.raises(IsolationError, match="invocation tokens"):
        packed(loaded)


def test_a_mixed_model() -> None:
    model = built("llama")
    isolate(model)
    mixed = peft.get_peft_model(model, lora(), mixed=True)
    mixed.add_adapter("other", adapter("LoHaConfig", "llama", r=4))
    mixed.set_adapter(["default", "other"])
    assert decide(mixed).packing
    assert_exact(strengthened(mixed).eval())
    mixed.add_adapter("activated", activated())
    assert decide(mixed).packing
    mixed.set_adapter(["default", "activated"])
    assert not decide(mixed).packing
    with pytest.raises(IsolationError, match="invocation tokens"):
        packed(mixed)


def test_an_adapter_on_the_head_alone() -> None:
    model = adapted("llama", activated(target_modules=["lm_head"]))
    assert not decide(model).packing
    with pytest.raises(IsolationError, match="invocation tokens"):
        packed(model)
    with model.disable_adapter():
        assert_exact(model)


@torch.no_grad()
@pytest.mark.parametrize("name", MODELS)
def test_adapters_that_a_call_gives_to_rows(name: str) -> None:
    model = adapted(name, lora(name))
    model.add_adapter("other", lora(name))
    strengthened(model)
    with pytest.raises(IsolationError, match="adapter_names"):
        packed(copy.deepcopy(model), adapter_names=["other"])  # a copy, since PEFT's hooks stay where a call raises
    stock = copy.deepcopy(model)
    restore(stock)
    batch = torch.cat([documents()[0][:, :5], documents()[1]])
    names = ["default", "other"]
    expected = tiny.logits(stock, input_ids=batch, adapter_names=names)
    found = tiny.logits(model, input_ids=batch, adapter_names=names, position_ids=torch.arange(5).expand(2, -1))
    assert torch.equal(found, expected)
    assert distance([expected], [tiny.logits(model, input_ids=batch)]) > 0.01


def test_velora_by_its_projection() -> None:
    moving = lora(velora_config=peft.VeloraConfig(num_groups=4))
    assert "averages" in (config_reason(moving) or "")
    model = adapted("llama", moving)
    assert_exact(model)  # gradients alone are projected, in training
    model.train()
    assert not decide(model).packing
    with pytest.raises(IsolationError, match="VeLoRA"):
        packed(model)


@pytest.mark.parametrize("name", MODELS)
def test_x_lora(name: str, tmp_path: Path) -> None:
    for number in range(2):
        adapted(name, lora(name)).save_pretrained(tmp_path / str(number))
    model = built(name)
    isolate(model)
    folders = {str(number): str(tmp_path / str(number)) for number in range(2)}
    config = peft.XLoraConfig(task_type="CAUSAL_LM", hidden_size=64, adapters=folders)
    model = peft.get_peft_model(model, config)
    assert config_reason(config) == decide(model).reasons[0]
    with pytest.raises(IsolationError, match="XLORA"):
        packed(model)
    with model.disable_adapter():
        assert_exact(model)


@pytest.mark.parametrize("how", ["names", "activated"])
def test_a_refused_call_leaves_nothing_behind(how: str, patched_once: None) -> None:
    model = adapted("llama", lora() if how == "names" else activated())
    before = tiny.logits(model, input_ids=row())
    with pytest.raises(IsolationError):
        packed(model, **({"adapter_names": ["default"]} if how == "names" else {}))
    assert not any(module._forward_pre_hooks for module in model.modules())
    assert torch.equal(tiny.logits(model, input_ids=row()), before)


@torch.no_grad()
def test_an_ordinary_call_compiles_to_one_graph(patched_once: None) -> None:
    model = adapted("llama", lora())
    compiled = torch.compile(model, backend="eager", fullgraph=True)
    assert torch.equal(tiny.logits(compiled, input_ids=row()), tiny.logits(model, input_ids=row()))


# ---- prompts --------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("kind", installed(PROMPTS))
def test_prompts_are_refused_everywhere(kind: str, patched_once: None) -> None:
    config = PROMPTS[kind]("llama")
    reason = config_reason(config)
    assert reason is not None
    assert kind.upper() in reason
    model = adapted("llama", config)
    assert decide(model).reasons == (reason,)
    with pytest.raises(IsolationError, match="puts its tokens before the row"):
        isolate(model)
    tasks = {"task_ids": torch.tensor([1])} if kind == "multitask_prompt_tuning" else {}
    with pytest.raises(IsolationError, match="puts its tokens before the row"):
        packed(model, **tasks)
    with torch.no_grad():
        whole = torch.arange(sum(LENGTHS))[None]
        expected = tiny.logits(model, input_ids=row(), **tasks)
        assert torch.equal(tiny.logits(model, input_ids=row(), attention_mask=torch.ones_like(row()), **tasks), expected)
        tiny.logits(model, input_ids=row(), position_ids=whole, **tasks)  # PEFT's own warning, no error
    with model.disable_adapter():
        assert_exact(model)


# ---- what nobody has read --------------------------------------------------------------------------------------------


class OwnLayer(torch.nn.Module, BaseTunerLayer):
    """A layer of a tuner that is none of PEFT's."""

    adapter_layer_names = ("own",)

    def __init__(self, base_layer: torch.nn.Module) -> None:
        super().__init__()
        self.base_layer = base_layer
        self.own = torch.nn.ModuleDict({"default": torch.nn.Identity()})

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.base_layer(x) + x.mean(1, keepdim=True)


def test_a_tuner_that_nobody_has_read_is_refused() -> None:
    model = built("llama")
    isolate(model)
    attention = model.model.layers[0].self_attn
    attention.q_proj = layer = OwnLayer(attention.q_proj)
    assert "OwnLayer) is not known" in decide(model).reasons[0]
    with pytest.raises(IsolationError, match="is not known to work on each token alone"):
        packed(model)
    layer.enable_adapters(False)
    assert decide(model).packing

    class Config:
        peft_type = "OWN"

    assert "(own) is not known" in (config_reason(Config()) or "")


def test_a_model_without_adapters_has_no_reason() -> None:
    assert acting_reason(built(HYBRID)) is None
    assert config_reason(None) is None
    assert config_reason({}) is None
