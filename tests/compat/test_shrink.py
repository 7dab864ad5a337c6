"""Every family's config, and real ones, become small ones of the same architecture, which build, run and learn."""

from __future__ import annotations

import copy
from typing import Any

import pytest
import tiny
import torch
import transformers
from alone import LOGITS, limit
from packaging.version import Version
from real_configs import ATTENTION, REAL, RECURRENT
from transformers.models.auto.configuration_auto import CONFIG_MAPPING

from patchwork.packing.errors import ProbeError
from patchwork.packing.models.config_fields import layers, overrides, text_part, token_ids
from patchwork.packing.probing.layer_kinds import kinds_of
from patchwork.packing.probing.model_sources import config_of
from patchwork.packing.probing.tiny_models import LARGEST, VOCABULARY, shrink, tiny_model

RELEASE = Version(transformers.__version__)
# Default configs that transformers itself cannot run.
BROKEN = {"zamba2": Version("5.0") <= RELEASE < Version("5.4")}
NAMES = [name for name in (*RECURRENT, *ATTENTION, *REAL) if REAL.get(name, (name,))[0] in CONFIG_MAPPING]


def config(name: str) -> Any:
    kind, settings = REAL.get(name, (name, {}))
    return CONFIG_MAPPING[kind](**copy.deepcopy(settings))


def small_text(name: str) -> Any:
    return shrink(config(name)).get_text_config()


def built(name: str) -> torch.nn.Module:
    try:
        return tiny_model(shrink(config(name)))
    except ProbeError as error:
        if isinstance(error.__cause__, ImportError):
            pytest.skip(str(error))
        raise


@pytest.mark.parametrize("name", NAMES)
def test_a_small_model_runs_learns_and_reads_its_past_and_not_its_future(name: str) -> None:
    if BROKEN.get(name):
        pytest.skip("this release cannot run the default config")
    model = built(name)
    assert sum(parameter.numel() for parameter in model.parameters()) < LARGEST / 4
    ids = torch.randint(3, 100, (1, 21), generator=torch.Generator().manual_seed(1))
    logits = model(input_ids=ids, use_cache=False).logits
    logits.square().sum().backward()
    gradients = [parameter.grad for parameter in model.parameters() if parameter.grad is not None]
    assert all(gradient.isfinite().all() for gradient in gradients)
    with torch.no_grad():
        scale = logits.abs().max()
        start, rest = (model(input_ids=part, use_cache=False).logits for part in (ids[:, :9], ids[:, 9:]))
        moved = float((tiny.nudged(model)(input_ids=ids[:, :9], use_cache=False).logits - start).abs().max() / scale)
    assert (logits[:, :9] - start).abs().max() < limit(LOGITS, moved) * scale
    assert (logits[:, 9:] - rest).abs().max() > 0.05 * scale


@pytest.mark.parametrize("name", NAMES)
def test_each_kind_of_layer_stays_in_its_order(name: str) -> None:
    before, after = config(name).get_text_config(), small_text(name)
    whole, kept = (pattern(kinds_of(each)) for each in (before, after))
    if name in ("lfm2_moe", "granitemoehybrid") and before.layer_types is None:
        pytest.skip("the default config says nothing of its layers")
    assert set(kept) == set(whole)
    assert kept == whole[: len(kept)]
    assert 2 <= layers(after) == len(kept) <= len(whole)


def pattern(kinds: list[Any]) -> list[int]:
    """For each layer, the first one of its kind."""
    return [kinds.index(kind) for kind in kinds]


def test_layers_of_real_models_are_few() -> None:
    found = {name: layers(small_text(name)) for name in NAMES if name in REAL}
    assert max(found.values()) <= 12
    assert found.get("jamba_52b", 5) == 5, "attention is in each eighth layer from the fifth, experts in each second"
    assert found.get("bamba_9b", 10) == 10, "the first attention layer is the tenth"
    assert found.get("nemotron_h_8b", 8) == 8, "M-M-M-M*"
    assert found.get("qwen3_5_27b", 4) == 4
    assert found.get("lfm2_moe_8b", 4) == 4, "two dense layers, attention in the third, and the first plain one after it"


def ratio(config: Any, name: str, other: str) -> float:
    return getattr(config, name) / getattr(config, other)


@pytest.mark.parametrize(
    ("name", "first", "second"),
    [
        ("qwen3_next_80b", "num_attention_heads", "num_key_value_heads"),
        ("qwen3_5_27b", "linear_num_value_heads", "linear_num_key_heads"),
        ("falcon_h1_500m", "mamba_d_ssm", "hidden_size"),
        ("falcon_h1_34b", "mamba_n_heads", "mamba_n_groups"),
        ("zamba", "attention_hidden_size", "hidden_size"),
        ("recurrent_gemma_9b", "lru_width", "hidden_size"),
        ("rwkv_169m", "attention_hidden_size", "hidden_size"),
        ("mamba", "intermediate_size", "hidden_size"),
        ("deepseek_v3", "qk_nope_head_dim", "qk_rope_head_dim"),
        ("deepseek_v3", "q_lora_rank", "kv_lora_rank"),
        ("llama_135m", "num_attention_heads", "num_key_value_heads"),
    ],
)
def test_ratios_stay(name: str, first: str, second: str) -> None:
    if name not in NAMES:
        pytest.skip("not in this release")
    before, after = config(name).get_text_config(), small_text(name)
    assert ratio(after, first, second) == ratio(before, first, second)


def test_heads_times_their_size_stay_the_width() -> None:
    for name in {"bamba_9b", "mamba2_3b", "mamba2", "zamba2_1b", "granite_4_tiny"} & set(NAMES):
        small = small_text(name)
        names = {"mamba_n_heads", "n_mamba_heads"} & vars(small).keys() or {"num_heads"}
        heads = getattr(small, names.pop())
        size = getattr(small, ({"mamba_d_head", "mamba_headdim"} & vars(small).keys() or {"head_dim"}).pop())
        expand = getattr(small, "mamba_expand", None) or getattr(small, "expand", None)
        assert heads * size == expand * small.hidden_size, name
    falcon = small_text("falcon_h1_34b")
    assert falcon.mamba_n_heads * falcon.mamba_d_head == falcon.mamba_d_ssm
    assert falcon.mamba_n_heads % falcon.mamba_n_groups == 0
    assert falcon.mamba_n_groups == 2
    deepseek = small_text("deepseek_v3")
    assert deepseek.qk_head_dim == deepseek.qk_nope_head_dim + deepseek.qk_rope_head_dim


def test_experts_that_are_chosen_by_groups_can_be() -> None:
    small = small_text("deepseek_v3")
    assert (small.n_routed_experts, small.n_group, small.topk_group, small.num_experts_per_tok) == (4, 2, 1, 2)


def test_rotary_sections_fill_the_part_that_turns() -> None:
    if "qwen3_5_9b" not in NAMES:
        pytest.skip("not in this release")
    small = small_text("qwen3_5_9b")
    rope = small.rope_parameters
    assert sum(rope["mrope_section"]) == small.head_dim * rope["partial_rotary_factor"] / 2
    assert min(rope["mrope_section"]) > 0


def test_windows_are_shorter_than_a_document() -> None:
    assert small_text("mistral").sliding_window == 4
    assert small_text("recurrent_gemma_9b").attention_window_size == 4
    before = config("mistral")
    before.sliding_window = None
    assert shrink(before).sliding_window is None


def test_token_ids_lie_in_the_vocabulary_and_stay_distinct() -> None:
    for name in NAMES:
        before, after = config(name), shrink(config(name))
        old, new = ({number for number in token_ids(each) if number >= 0} for each in (before, after))
        assert len(new) == len(old), name
        assert max(new, default=0) < after.get_text_config().vocab_size <= VOCABULARY, name


def test_nested_configs_shrink_and_their_projections_meet() -> None:
    if "qwen3_5_9b" not in NAMES:
        pytest.skip("not in this release")
    small = shrink(config("qwen3_5_9b"))
    assert small.vision_config.depth == 2
    assert small.vision_config.out_hidden_size == small.text_config.hidden_size
    assert small.vision_config.hidden_size % small.vision_config.num_heads == 0


def test_the_config_that_was_given_is_left_alone() -> None:
    before = config("qwen3_next_80b")
    plain = copy.deepcopy(before.to_dict())
    small = shrink(before)
    assert before.to_dict() == plain
    small.layer_types[0] = "full_attention"
    assert before.to_dict() == plain


@pytest.mark.parametrize("std", [0.05, 0.1])
def test_weights_are_of_the_size_asked_for_and_the_same_each_time(std: float) -> None:
    small = shrink(config("qwen3_next_80b"))
    one, two = (tiny_model(small, std=std) for _ in range(2))
    other = tiny_model(small, std=std, seed=1)
    for (name, ours), theirs in zip(one.named_parameters(), two.parameters(), strict=True):
        assert torch.equal(ours, theirs)
        assert ours.isfinite().all()
        assert ours.any(), name
        assert ours.ndim < 2 or abs(ours.std().item() / std - 1) < 0.3, name
    assert not torch.equal(one.lm_head.weight, other.lm_head.weight)


# ---- what configs leave out, and what single layers and parts have of their own ------------------------------------


def needs(kind: str, field: str = "") -> Any:
    """The default config of a model type, where this release has it, with that field."""
    if kind not in CONFIG_MAPPING:
        pytest.skip("not in this release")
    found = config_of(kind)
    if field and not hasattr(type(found), field):
        pytest.skip("this release says it in another way")
    return found


@pytest.mark.parametrize(
    "kind",
    [
        *("blt", "cohere_compass_text", "dbrx", "deepseek_v2", "glm4_moe", "mllama"),
        *("musicgen", "phi4_multimodal", "reformer", "xlm", "xmod"),
    ],
)
def test_a_type_whose_default_config_leaves_out_what_its_code_needs_runs(kind: str) -> None:
    found = needs(kind)
    if kind == "dbrx" and getattr(found.ffn_config, "hidden_size", found.d_model) != found.d_model:
        pytest.skip("the experts of this release are not of the model's width")
    model = tiny_model(shrink(found))
    logits = model(input_ids=torch.arange(3, 24)[None], use_cache=False).logits
    assert logits.isfinite().all()
    assert logits.std() > 0.01


def test_heads_that_a_config_leaves_open_are_those_that_are_usual() -> None:
    small = shrink(needs("hunyuan_v1_dense"))
    assert small.num_key_value_heads == small.num_attention_heads
    assert small.head_dim * small.num_attention_heads == small.hidden_size


def test_layers_with_sizes_of_their_own_keep_their_ratio_to_the_others() -> None:
    before = needs("gemma4_text", "is_heterogeneous")
    whole, small = overrides(before), overrides(shrink(before))
    assert list(whole) == [5, 11, 17, 23, 29]
    assert list(small) == [5]
    assert small[5]["head_dim"] / vars(shrink(before))["head_dim"] == whole[5]["head_dim"] / vars(before)["head_dim"]
    assert overrides(before) == whole, "the config that was given is left alone"


def test_layers_that_read_keys_of_earlier_ones_stay_and_find_each_kind_there() -> None:
    small = shrink(needs("gemma3n_text"))
    total, reading = small.num_hidden_layers, small.num_kv_shared_layers
    assert (total, reading) == (20, 5)
    assert set(small.layer_types[-reading:]) == set(small.layer_types[:-reading])
    assert len(tiny_model(small).model.layers) == 20


def test_widths_of_embeddings_follow_the_hidden_size() -> None:
    for kind, field in (("opt", "word_embed_proj_dim"), ("roformer", "embedding_size")):
        before = needs(kind)
        before.hidden_size = getattr(before, field)
        small = shrink(before)
        assert getattr(small, field) == small.hidden_size < before.hidden_size


def test_the_parts_of_a_model_that_feed_each_other_shrink_alike() -> None:
    small = shrink(needs("blt"))
    assert small.encoder_config.hidden_size_global == small.global_config.hidden_size
    assert small.decoder_config.hidden_size_global == 2 * small.decoder_config.hidden_size


def test_windows_under_other_names_are_short_too() -> None:
    assert shrink(needs("doge")).keep_window_size == 4
    small = shrink(needs("modernbert-decoder"))
    assert getattr(small, "local_attention", 4) == small.sliding_window == 4


def test_of_a_text_encoder_and_a_decoder_the_decoder_is_the_language_model() -> None:
    before = needs("musicgen")
    assert text_part(before) is before.decoder
    assert type(tiny_model(shrink(before))).__name__ == "MusicgenForCausalLM"


# ---- configs of other people's code -------------------------------------------------------------------------------


class ForeignConfig(transformers.PretrainedConfig):
    """As remote code has it: sizes in a mapping, layers numbered from one."""

    model_type = "patchwork_foreign"

    def __init__(self, filters: int = 64, **settings: Any) -> None:
        self.hidden_size = 2304
        self.vocab_size = 160_000
        self.num_hidden_layers = 27
        self.num_attention_heads = 32
        self.filters = filters
        self.linear_attn_config = {
            "kda_layers": [layer for layer in range(1, 28) if layer % 4 and layer != 27],
            "full_attn_layers": [4, 8, 12, 16, 20, 24, 27],
            "num_heads": 32,
            "head_dim": 128,
            "short_conv_kernel_size": 4,
        }
        super().__init__(**settings)


class ForeignModel(transformers.PreTrainedModel):
    config_class = ForeignConfig

    def __init__(self, config: ForeignConfig) -> None:
        super().__init__(config)
        if config.filters == 1:
            raise ImportError("\nno such\n  library\n")
        if config.filters == 2:
            self.known = torch.nn.Parameter(torch.ones(1)).item()
        self.embed = torch.nn.Embedding(config.vocab_size, config.hidden_size)
        self.wide = torch.nn.Linear(config.hidden_size, config.filters)
        self.post_init()


transformers.AutoConfig.register("patchwork_foreign", ForeignConfig)
transformers.AutoModelForCausalLM.register(ForeignConfig, ForeignModel)


def test_fields_in_mappings_shrink_too() -> None:
    small = shrink(ForeignConfig())
    assert small.linear_attn_config == {
        "kda_layers": [1, 2, 3, 5],
        "full_attn_layers": [4],
        "num_heads": small.num_attention_heads,
        "head_dim": 128 * small.hidden_size // (2304 * small.num_attention_heads // 32),
        "short_conv_kernel_size": 4,
    }
    assert small.num_hidden_layers == 5
    assert tiny_model(small).embed.weight.shape == (VOCABULARY, small.hidden_size)


def test_a_field_of_an_unknown_name_that_keeps_a_model_large_is_named() -> None:
    with pytest.raises(ProbeError, match=r"wide\.weight .* field filters = 5000000: give a config with less, or a model"):
        tiny_model(shrink(ForeignConfig(filters=5_000_000)))


def test_a_config_without_a_language_model_is_refused() -> None:
    with pytest.raises(ProbeError, match=r"no causal language model is known for a ViTConfig .* give a model instead"):
        tiny_model(shrink(transformers.ViTConfig()))


def test_a_config_that_no_model_can_be_built_of_is_refused() -> None:
    broken = shrink(config("llama"))
    broken.hidden_act = "no such function"
    with pytest.raises(ProbeError, match="LlamaForCausalLM cannot be built of its LlamaConfig"):
        tiny_model(broken)


def test_what_a_config_raises_is_told_in_one_line(monkeypatch: pytest.MonkeyPatch) -> None:
    def refusing(*_: Any, **__: Any) -> None:
        raise RuntimeError("layers differ:\n  ask one of them")

    config = ForeignConfig()
    monkeypatch.setattr(ForeignConfig, "get_text_config", refusing)
    line = r"^ForeignConfig cannot be made small \(RuntimeError: layers differ: ask one of them\): give a model instead$"
    with pytest.raises(ProbeError, match=line):
        shrink(config)


def test_a_type_without_a_default_config_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    def refusing(**settings: Any) -> None:
        raise ValueError("two sizes\nare needed")

    monkeypatch.setitem(CONFIG_MAPPING._extra_content, "patchwork_refusing", refusing)
    with pytest.raises(ProbeError, match=r"^patchwork_refusing has no default config \(ValueError: two sizes are needed\)"):
        config_of("patchwork_refusing")


def test_a_package_that_is_missing_is_told_in_one_line() -> None:
    with pytest.raises(ProbeError, match=r"^the code of ForeignModel needs another package \(ImportError: no such library\)$"):
        tiny_model(shrink(ForeignConfig(filters=1)))


def test_code_that_reads_its_own_parameters_can_be_built() -> None:
    assert tiny_model(shrink(ForeignConfig(filters=2))).known == 1
