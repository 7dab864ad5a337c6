"""Whether a model, config or name may be packed, and why not."""

from __future__ import annotations

import copy
from types import SimpleNamespace

import pytest
import tiny
import torch
import transformers

from patchwork.packing import PackingRefused, decide


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


def test_a_name_is_resolved_as_the_load_will(monkeypatch):
    seen = {}

    def from_pretrained(name, **kwargs):
        seen.update(kwargs)
        return transformers.LlamaConfig()

    monkeypatch.setattr(transformers.AutoConfig, "from_pretrained", from_pretrained)
    args = SimpleNamespace(model_init_kwargs={"revision": "abc", "dtype": "float32", "subfolder": "text"}, trust_remote_code=True)
    assert decide("somebody/model", args).packing
    assert seen == {"revision": "abc", "subfolder": "text", "trust_remote_code": True}
    args.model_init_kwargs["trust_remote_code"] = False
    decide("somebody/model", args)
    assert seen["trust_remote_code"] is False


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
