"""Whether a model, config or name may be packed, and why not."""

from __future__ import annotations

import copy

import peft
import pytest
import tiny
import torch
import transformers
from transformers.models.auto.configuration_auto import CONFIG_MAPPING

from patchwork.packing import Decision, PackingRefused, decide
from patchwork.packing.models.adapters import config_reason
from patchwork.packing.models.by_name import failures


@pytest.fixture(scope="module")
def model():
    return tiny.build("qwen3_next")


def test_known_models_configs_and_paths_are_packed(model, tmp_path):
    model.config.save_pretrained(tmp_path)
    for asked in (model, model.config, tmp_path, str(tmp_path)):
        decision = decide(asked)
        assert decision.packing, decision
        built = "document batching" if asked is model else "native kernels, or document batching without"
        assert decision.ways["Qwen3NextGatedDeltaNet"] == built
    assert decide(tiny.build("llama")).packing
    assert decide(tiny.build("llama").config).packing


@pytest.mark.skipif("qwen3_5_vlm" not in tiny.recurrent_names(), reason="this release has no Qwen3.5")
def test_a_multimodal_config_is_judged_by_its_text_part():
    assert decide(tiny.build("qwen3_5_vlm").config).packing
    assert decide(tiny.build("qwen3_5_vlm")).packing


def test_the_switch_is_read_at_each_call(model, monkeypatch):
    monkeypatch.setenv("PATCHWORK_HYBRID_PACKING", "0")
    for asked in (model, model.config):
        assert not decide(asked).packing
        assert "PATCHWORK_HYBRID_PACKING" in decide(asked).reasons[0]
    assert decide(tiny.build("llama")).packing
    monkeypatch.setenv("PATCHWORK_HYBRID_PACKING", "1")
    assert decide(model).packing


def test_refusals_have_reasons(tmp_path):
    refused = {
        "encoder-decoder": transformers.T5Config(),
        "gpt_neo": transformers.GPTNeoConfig(),
        "bloom": transformers.BloomConfig(),
    }
    for reason, asked in refused.items():
        decision = decide(asked)
        assert not decision.packing
        assert reason in decision.reasons[0]
    assert "config cannot be resolved" in decide(str(tmp_path / "nowhere")).reasons[0]
    (tmp_path / "config.json").write_text('{"model_type": "made_up_by_somebody"}')
    assert "config cannot be resolved" in decide(tmp_path).reasons[0]


def test_code_from_elsewhere_is_refused():
    class Config(transformers.LlamaConfig):
        pass

    Config.__module__ = "transformers_modules.somebody.modeling"
    assert "not part of transformers" in decide(Config()).reasons[0]


def test_no_config_of_this_release_raises():
    """All default configs, which a name may lead to."""
    for name, kind in CONFIG_MAPPING.items():
        try:
            config = kind()
        except failures():  # it has no defaults, or needs a package
            continue
        decision = decide(config)
        assert decision.packing or decision.reasons, name


def test_what_answers_once_for_a_row_is_refused():
    config = transformers.Qwen3Config(**tiny.TEXT)
    model = transformers.Qwen3ForSequenceClassification(config)
    config.architectures = ["Qwen3ForSequenceClassification"]
    for asked in (model, config, torch.nn.Sequential(model)):
        assert "one answer for a whole row" in decide(asked).reasons[0]
    assert decide(transformers.Qwen3Model(config)).packing
    assert decide(transformers.Qwen3ForTokenClassification(config)).packing  # an answer for each token


def test_any_module_or_thing_is_decided_on():
    for asked in (torch.nn.Linear(2, 2), torch.nn.Sequential(), torch.nn.LSTM(2, 2), None, 7, {"model_type": "llama"}, object()):
        decision = decide(asked)
        assert not decision.packing
        assert decision.reasons[0]
    assert decide(torch.nn.Sequential(tiny.build("llama"))).packing


LORA = peft.LoraConfig(task_type="CAUSAL_LM", r=2, target_modules=["q_proj"])
PROMPTS = {
    "PROMPT_TUNING": peft.PromptTuningConfig(task_type="CAUSAL_LM", num_virtual_tokens=2),
    "PREFIX_TUNING": peft.PrefixTuningConfig(task_type="CAUSAL_LM", num_virtual_tokens=2),
    "P_TUNING": peft.PromptEncoderConfig(task_type="CAUSAL_LM", num_virtual_tokens=2, encoder_hidden_size=8),
}


@pytest.mark.parametrize("kind", PROMPTS)
def test_an_adapter_that_puts_tokens_before_the_row_is_refused(kind):
    adapted = peft.get_peft_model(tiny.build("llama"), PROMPTS[kind])
    for asked in (adapted, torch.nn.Sequential(adapted)):
        assert kind in decide(asked).reasons[0]
    for config in (PROMPTS[kind], {"default": PROMPTS[kind]}, {"one": LORA, "other": PROMPTS[kind]}):
        assert kind in config_reason(config)


def test_an_adapter_on_weights_is_packed():
    adapted = peft.get_peft_model(tiny.build("llama"), LORA)
    assert decide(adapted).packing
    assert decide(peft.inject_adapter_in_model(LORA, tiny.build("llama"))).packing
    for config in (LORA, {"default": LORA}, {}, None):
        assert config_reason(config) is None


def test_a_reason_is_kept_once():
    assert Decision(False, ("one", "other", "one")).reasons == ("one", "other")


def test_a_model_with_an_unlisted_mixer_is_refused_by_name(model):
    changed = copy.deepcopy(model)
    changed.model.layers[3].self_attn.k_conv = torch.nn.Conv1d(4, 4, 3)
    decision = decide(changed)
    assert not decision.packing
    assert "layers.3.self_attn.k_conv" in decision.reasons[0]
    with pytest.raises(PackingRefused, match="k_conv"):
        raise PackingRefused(decision)


def test_asking_changes_nothing(model):
    decide(model)
    assert not any("_patchwork_isolation" in vars(module) for module in model.modules())


def test_attention_weights_are_refused_before_the_first_step(model):
    changed = copy.deepcopy(model)
    changed.config._attn_implementation = "eager"
    changed.config.output_attentions = True
    for asked in (changed, changed.config):
        assert "attention weights" in decide(asked).reasons[0]
