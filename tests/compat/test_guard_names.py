"""A name is decided on by what the trainer will load under it: against the real huggingface_hub and a Hub on the loopback."""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import elsewhere
import pytest
import tiny
import torch
import transformers
from hub import Asker, Hub

from patchwork.packing import decide

LLAMA = {
    "model_type": "llama",
    "architectures": ["LlamaForCausalLM"],
    **{key: tiny.TEXT[key] for key in ("hidden_size", "num_hidden_layers", "num_attention_heads", "vocab_size")},
}
GPT_NEO = {"model_type": "gpt_neo", "architectures": ["GPTNeoForCausalLM"]}
OTHER_CONFIG = "from transformers import Lfm2Config\n\n\nclass OtherConfig(Lfm2Config):\n    model_type = 'other'\n"
WITH_CODE = {"AutoConfig": "configuration_other.OtherConfig", "AutoModelForCausalLM": "modeling_lfm2.OtherForCausalLM"}


@pytest.fixture(scope="module")
def hub() -> Iterator[Hub]:
    hub = Hub()
    yield hub
    hub.close()


@pytest.fixture(scope="module")
def home(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tmp_path_factory.mktemp("home")


@pytest.fixture(scope="module")
def asker(hub: Hub, home: Path) -> Iterator[Asker]:
    asker = Asker(hub.endpoint, home)
    yield asker
    asker.close()


@pytest.fixture(scope="module")
def code(tmp_path_factory: pytest.TempPathFactory) -> dict[str, str]:
    """The files of a checkpoint with code of its own, a copy of Lfm2 under other names."""
    return {"modeling_lfm2.py": _modeling(tmp_path_factory.mktemp("code")), "configuration_other.py": OTHER_CONFIG}


def _modeling(folder: Path, *changes: tuple[str, str]) -> str:
    elsewhere.module("lfm2", folder, *changes)
    return (folder / "transformers_modules" / "somebody" / "modeling_lfm2.py").read_text()


def _other(**changes: Any) -> dict[str, Any]:
    """The config of a tiny Lfm2, as its own kind."""
    config = json.loads(tiny.build("lfm2").config.to_json_string(use_diff=False))
    return {**config, "model_type": "other", "architectures": ["OtherForCausalLM"], "auto_map": WITH_CODE, **changes}


# ---- which config is read ------------------------------------------------------------------------------------------


def test_it_is_read_at_the_revision_that_is_loaded(hub: Hub, asker: Asker) -> None:
    name = hub.add("some/two-versions", {"config.json": LLAMA})
    hub.add(name, {"config.json": GPT_NEO}, revision="v2")
    assert asker.decide(name).packing
    assert "gpt_neo" in asker.decide(name, revision="v2").reasons[0]
    at = {each.path.split("/")[4] for each in hub.fetched(name)}
    assert at in ({"main", "v2"}, {"0123456789abcdef0123456789abcdef00000000", "0123456789abcdef0123456789abcdef00000001"})


@pytest.mark.parametrize("argument", ["token", "use_auth_token"])
def test_the_token_is_sent(hub: Hub, asker: Asker, argument: str) -> None:
    name = hub.add(f"some/private-{argument}", {"config.json": LLAMA}, token="hf_secret")
    assert "private" in asker.decide(name).reasons[0]
    assert asker.decide(name, **{argument: "hf_secret"}).packing
    assert hub.fetched(name)[-1].authorization == "Bearer hf_secret"


def test_it_is_read_in_the_subfolder(hub: Hub, asker: Asker) -> None:
    name = hub.add("some/folders", {"text/config.json": LLAMA})
    assert "`subfolder`" in asker.decide(name).reasons[0]
    assert asker.decide(name, subfolder="text").packing


def test_it_is_read_in_the_cache_that_is_named(hub: Hub, asker: Asker, tmp_path: Path) -> None:
    name = hub.add("some/elsewhere-cached", {"config.json": LLAMA})
    assert asker.decide(name, cache_dir=str(tmp_path)).packing
    assert asker.decide(name, cache_dir=str(tmp_path), local_files_only=True).packing
    assert "not in the cache" in asker.decide(name, local_files_only=True).reasons[0]
    before = len(hub.fetched(name))
    assert asker.decide(name, cache_dir=str(tmp_path), force_download=True).packing
    assert len(hub.fetched(name)) > before


def test_an_adapter_alone_is_its_base_model(hub: Hub, asker: Asker, code: dict[str, str]) -> None:
    base = hub.add("some/base", {"config.json": LLAMA})
    about = {"base_model_name_or_path": base, "peft_type": "LORA"}
    assert asker.decide(hub.add("some/lora", {"adapter_config.json": about})).packing
    hub.add("some/neo", {"config.json": GPT_NEO})
    other = hub.add("some/lora-of-neo", {"adapter_config.json": {**about, "base_model_name_or_path": "some/neo"}})
    assert "gpt_neo" in asker.decide(other).reasons[0]
    for one, other in (("some/one", "some/other"), ("some/other", "some/one"), ("some/itself", "some/itself")):
        hub.add(one, {"adapter_config.json": {**about, "base_model_name_or_path": other}})
    assert not asker.decide("some/one").packing
    assert not asker.decide("some/itself").packing
    own = hub.add("some/base-with-code", {"config.json": _other(), **code})
    decision = asker.decide(
        hub.add("some/lora-of-code", {"adapter_config.json": {**about, "base_model_name_or_path": own}}), trust=True
    )
    assert decision.packing, decision.reasons


# ---- what cannot be read -------------------------------------------------------------------------------------------


@pytest.mark.parametrize("status", [401, 403])
def test_a_gated_repository_is_refused(hub: Hub, asker: Asker, status: int) -> None:
    reason = asker.decide(hub.add(f"some/gated-{status}", {"config.json": LLAMA}, gated=status)).reasons[0]
    assert "granted" in reason
    assert "hf auth login" in reason


def test_what_is_missing_is_refused_with_its_reason(hub: Hub, asker: Asker) -> None:
    assert "no such repository" in asker.decide("some/nowhere").reasons[0]
    name = hub.add("some/versions", {"config.json": LLAMA})
    assert "no revision 'v9'" in asker.decide(name, revision="v9").reasons[0]
    assert "no config.json" in asker.decide(hub.add("some/notes", {"README.md": "nothing else"})).reasons[0]


@pytest.mark.parametrize(
    "config",
    [
        "{not json",
        "[1]",
        "",
        '"llama"',
        {"model_type": "made_up_by_somebody"},
        {**LLAMA, "hidden_size": "many"},
        {**LLAMA, "num_attention_heads": 0},
        {**LLAMA, "layer_types": 7},
        {**_other(), "auto_map": {"AutoConfig": None, "AutoModelForCausalLM": 7}},
    ],
    ids=str,
)
def test_a_config_that_makes_no_sense_is_refused(hub: Hub, asker: Asker, config: Any) -> None:
    decision = asker.decide(hub.add("some/nonsense", {"config.json": config}), trust=True, force_download=True)
    assert not decision.packing
    assert "cannot be resolved" in decision.reasons[0]


@pytest.mark.parametrize("name", ["", "a/b/c", "..", "no such thing", "nul\0"])
def test_a_name_that_is_none_is_refused(asker: Asker, name: str) -> None:
    assert "cannot be resolved" in asker.decide(name).reasons[0]


def test_without_the_hub_the_cache_answers_and_what_is_not_there_is_refused(hub: Hub, asker: Asker, home: Path) -> None:
    cached, unseen = hub.add("some/cached", {"config.json": LLAMA}), hub.add("some/unseen", {"config.json": LLAMA})
    assert asker.decide(cached).packing
    hub.close()
    known, lost = asker.decide(cached), asker.decide(unseen)
    offline = Asker(hub.endpoint, home, HF_HUB_OFFLINE="1")
    known_offline, lost_offline = offline.decide(cached), offline.decide(unseen)
    offline.close()
    hub.open()
    assert known.packing
    assert known_offline.packing
    assert "not reached" in lost.reasons[0]
    assert "not reached" in lost_offline.reasons[0]
    # The Hub's client makes one round of six attempts, 23 seconds of waiting; patchwork adds none.
    assert lost.waited < 30
    assert lost_offline.waited == 0


@pytest.mark.parametrize("fault", ["500", "dropped", "cut"])
def test_a_hub_that_fails_is_a_refusal(hub: Hub, asker: Asker, fault: str) -> None:
    decision = asker.decide(hub.add(f"some/{fault}", {"config.json": LLAMA}, fault=fault))
    assert "cannot be resolved" in decision.reasons[0]
    assert decision.waited < 60


# ---- code that comes with a checkpoint -----------------------------------------------------------------------------


def test_code_is_run_only_if_it_is_trusted_and_never_asked_about(hub: Hub, asker: Asker, code: dict[str, str]) -> None:
    name = hub.add("some/own-code", {"config.json": _other(), **code})
    for trust, arguments in ((None, {}), (False, {}), (True, {"trust_remote_code": False}), (None, {"trust_remote_code": None})):
        assert "say trust_remote_code=True" in asker.decide(name, trust, **arguments).reasons[0]
    assert not hub.fetched(name, "modeling_lfm2.py")
    for trust, arguments in ((True, {}), (None, {"trust_remote_code": True}), (False, {"trust_remote_code": True})):
        decision = asker.decide(name, trust, **arguments)
        assert decision.packing, decision.reasons
        assert decision.ways["OtherAttention"] == "document batching"


def test_an_unknown_mixer_of_its_code_is_refused_by_name(hub: Hub, asker: Asker, code: dict[str, str], tmp_path: Path) -> None:
    shifted = {**code, "modeling_lfm2.py": _modeling(tmp_path, ("self.w1(x)", "self.w1(x.roll(1, 1))"))}
    decision = asker.decide(hub.add("some/shifting", {"config.json": _other(), **shifted}), trust=True)
    assert "OtherMLP" in decision.reasons[0]


def test_its_code_is_read_at_the_revision_that_is_loaded(hub: Hub, asker: Asker, code: dict[str, str], tmp_path: Path) -> None:
    name = hub.add("some/own-code-versions", {"config.json": _other(), **code})
    shifted = {**code, "modeling_lfm2.py": _modeling(tmp_path, ("self.w1(x)", "self.w1(x.roll(1, 1))"))}
    hub.add(name, {"config.json": _other(), **shifted}, revision="v2")
    assert asker.decide(name, trust=True).packing
    assert "OtherMLP" in asker.decide(name, trust=True, revision="v2").reasons[0]
    # where the code lies in another repository, `code_revision` is that repository's
    apart = {key: f"{name}--{value}" for key, value in WITH_CODE.items()}
    other = hub.add("some/code-apart", {"config.json": _other(auto_map=apart)})
    assert asker.decide(other, trust=True).packing
    assert "OtherMLP" in asker.decide(other, trust=True, code_revision="v2").reasons[0]


def test_a_known_config_does_not_make_unknown_code_known(hub: Hub, asker: Asker, code: dict[str, str], tmp_path: Path) -> None:
    """The config class is transformers' own, the model class that the load picks is not."""
    shifted = _modeling(tmp_path, ("self.w1(x)", "self.w1(x.roll(1, 1))"))
    own = {"AutoModelForCausalLM": WITH_CODE["AutoModelForCausalLM"]}
    config = _other(model_type="lfm2", auto_map=own)
    name = hub.add("some/known-config", {"config.json": config, "modeling_lfm2.py": shifted})
    assert "OtherMLP" in asker.decide(name, trust=True).reasons[0]
    assert asker.decide(name).packing  # transformers' own class is loaded


def test_an_architecture_of_transformers_is_loaded_with_its_own_code(hub: Hub, asker: Asker, code: dict[str, str]) -> None:
    config = _other(architectures=["Lfm2ForCausalLM"])
    decision = asker.decide(hub.add("some/known-architecture", {"config.json": config, **code}), trust=True)
    assert decision.packing
    assert "Lfm2ShortConv" in decision.ways


@pytest.mark.parametrize(
    ("before", "after", "reason"),
    [
        ("import torch\n", "import torch\nimport a_package_that_is_not_here\n", "a_package_that_is_not_here"),
        ("import torch\n", "import torch\ndef (:\n", "cannot be loaded: SyntaxError"),
        ("import torch\n", "import torch\n1 / 0\n", "cannot be loaded: ZeroDivisionError"),
        ("class OtherForCausalLM", "class AnotherForCausalLM", "OtherForCausalLM"),
        ("self.lm_head = ", "assert False\n        self.lm_head = ", "without weights (AssertionError: it says nothing"),
        ("self.lm_head = ", "torch.ones(2)[0].item()\n        self.lm_head = ", "without weights (RuntimeError"),
    ],
    ids=["missing-package", "no-python", "fails-when-imported", "no-such-class", "fails-when-built", "needs-weights"],
)
def test_code_that_fails_is_refused(
    hub: Hub, asker: Asker, code: dict[str, str], before: str, after: str, reason: str, request: pytest.FixtureRequest
) -> None:
    text = code["modeling_lfm2.py"]
    assert before in text
    broken = {**code, "modeling_lfm2.py": text.replace(before, after)}
    name = hub.add(f"some/{request.node.callspec.id}", {"config.json": _other(), **broken})
    decision = asker.decide(name, trust=True)
    assert not decision.packing
    assert reason in decision.reasons[0]


def test_code_that_is_not_there_is_refused(hub: Hub, asker: Asker) -> None:
    name = hub.add("some/lost-code", {"config.json": _other(), "configuration_other.py": OTHER_CONFIG})
    assert "modeling_lfm2.py" in asker.decide(name, trust=True).reasons[0]


def test_a_local_checkpoint_with_code_is_decided_like_one_on_the_hub(
    hub: Hub, asker: Asker, code: dict[str, str], tmp_path: Path
) -> None:
    folder = _folder(tmp_path / "local-code", _other())
    for path, text in code.items():
        (folder / path).write_text(text)
    assert asker.decide(str(folder), trust=True).packing
    assert "say trust_remote_code=True" in asker.decide(str(folder)).reasons[0]
    refused = asker.decide(str(folder), trust=True, environment={"PATCHWORK_HYBRID_PACKING": "0"})
    assert "PATCHWORK_HYBRID_PACKING" in refused.reasons[0]


# ---- what the config says ------------------------------------------------------------------------------------------


def _folder(where: Path, config: dict[str, Any]) -> Path:
    where.mkdir(exist_ok=True)
    (where / "config.json").write_text(json.dumps(config))
    return where


def _args(**arguments: Any) -> SimpleNamespace:
    return SimpleNamespace(model_init_kwargs=arguments)


def test_arguments_may_be_json_or_nothing(tmp_path: Path) -> None:
    folder = _folder(tmp_path / "model", LLAMA)
    for given in (None, {}, "{}", '{"num_hidden_layers": 2}'):
        assert decide(folder, SimpleNamespace(model_init_kwargs=given)).packing
    for given in ("{oops", "[1]", 7):
        assert "model_init_kwargs is" in decide(folder, SimpleNamespace(model_init_kwargs=given)).reasons[0]
    assert decide(str(folder), SimpleNamespace()).packing


def test_arguments_that_are_no_part_of_the_config_change_nothing(tmp_path: Path) -> None:
    folder = _folder(tmp_path / "model", LLAMA)
    quantized = transformers.FineGrainedFP8Config()
    rope = {"rope_type": "linear", "factor": 2.0}
    given = {
        **{"dtype": torch.bfloat16, "device_map": {"": "cpu"}, "quantization_config": quantized, "use_cache": False},
        **{"rope_scaling": dict(rope), "key_mapping": {"a": "b"}, "max_memory": {0: "1GB"}, "low_cpu_mem_usage": True},
    }
    args = _args(**given)
    assert decide(folder, args).packing
    assert args.model_init_kwargs == given
    assert args.model_init_kwargs["rope_scaling"] == rope
    for quantization in (quantized, {"load_in_4bit": True}, quantized.to_dict()):
        assert decide(folder, _args(quantization_config=quantization)).packing
    for method in ("bitsandbytes", "gptq", "awq", "fp8", "made up"):
        stored = _folder(tmp_path / method, {**LLAMA, "quantization_config": {"quant_method": method, "bits": 4}})
        assert decide(stored).packing


def test_an_override_counts_as_the_load_counts_it(tmp_path: Path) -> None:
    folder = _folder(tmp_path / "model", LLAMA)
    assert "encoder-decoder" in decide(folder, _args(is_encoder_decoder=True)).reasons[0]
    assert "ForSequenceClassification" in decide(folder, _args(architectures=["LlamaForSequenceClassification"])).reasons[0]


@pytest.mark.skipif("not tiny.has('zaya')", reason="this release has no family without varlen attention")
def test_the_attention_that_is_asked_for_counts(tmp_path: Path) -> None:
    model = tiny.build("zaya")
    config = model.config
    config.save_pretrained(tmp_path)
    assert decide(tmp_path, _args(attn_implementation="sdpa")).packing
    for asked in (str(tmp_path), tmp_path):
        assert "flash_attention_2" in decide(asked, _args(attn_implementation="flash_attention_2")).reasons[0]
    given = _args(config=config, attn_implementation="flash_attention_2")
    assert "flash_attention_2" in decide(str(tmp_path), given).reasons[0]
    assert decide(model).packing  # the config that was given is unchanged
    config._attn_implementation = "flash_attention_2"
    assert "flash_attention_2" in decide(model).reasons[0]


def test_an_architecture_that_is_none_is_not_an_error(tmp_path: Path) -> None:
    for number, named in enumerate((None, [], ["__name__"], ["NobodyForCausalLM"])):
        assert decide(_folder(tmp_path / str(number), {**LLAMA, "architectures": named})).packing
    for number, named in enumerate(("LlamaForCausalLM", 7, [None])):
        decide(_folder(tmp_path / f"odd{number}", {**LLAMA, "architectures": named}))


def test_a_gguf_file_that_cannot_be_read_is_refused(tmp_path: Path) -> None:
    folder = _folder(tmp_path / "model", LLAMA)
    (folder / "model.gguf").write_bytes(b"GGUF")
    assert "cannot be resolved" in decide(folder, _args(gguf_file="model.gguf")).reasons[0]


def test_a_config_that_is_given_is_the_one_that_counts(tmp_path: Path) -> None:
    folder, other = _folder(tmp_path / "model", LLAMA), _folder(tmp_path / "other", GPT_NEO)
    for config in (transformers.GPTNeoConfig(), other, str(other)):
        assert "gpt_neo" in decide(folder, _args(config=config)).reasons[0]
    assert decide("some/nowhere", _args(config=transformers.LlamaConfig())).packing
    assert "neither a config nor a name" in decide(folder, _args(config={"model_type": "llama"})).reasons[0]


@pytest.mark.parametrize(
    "config",
    [
        {"model_type": "t5", "architectures": ["T5ForConditionalGeneration"]},
        {"model_type": "encoder-decoder", "encoder": {"model_type": "bert"}, "decoder": {"model_type": "bert"}},
        {"model_type": "blip-2", "text_config": {"model_type": "t5"}},
    ],
    ids=lambda config: config["model_type"],
)
def test_an_encoder_decoder_is_refused_by_its_name(tmp_path: Path, config: dict[str, Any]) -> None:
    assert "encoder-decoder" in decide(_folder(tmp_path / "model", config)).reasons[0]


def test_a_composite_config_is_judged_by_its_text_part(tmp_path: Path) -> None:
    for text, packs in (("llama", True), ("gpt_neo", False)):
        config = {
            "model_type": "llava",
            "text_config": {"model_type": text},
            "vision_config": {"model_type": "clip_vision_model"},
        }
        assert decide(_folder(tmp_path / text, config)).packing is packs


def test_a_class_that_the_caller_registered_is_decided_by_its_structure(tmp_path: Path) -> None:
    class Config(transformers.Lfm2Config):
        model_type = "registered_by_a_test"

    module = elsewhere.module("lfm2", tmp_path)
    Kind = type("Kind", (module.OtherForCausalLM,), {"config_class": Config, "__module__": module.__name__})
    Config.__module__ = module.__name__
    transformers.AutoConfig.register("registered_by_a_test", Config)
    transformers.AutoModelForCausalLM.register(Config, Kind)
    folder = _folder(tmp_path / "model", {**_other(), "model_type": "registered_by_a_test", "auto_map": {}})
    decision = decide(folder)
    assert decision.packing, decision.reasons
    assert "OtherAttention" in decision.ways
