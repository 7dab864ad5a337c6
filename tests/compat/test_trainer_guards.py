"""What an unchanged script gets from SFTTrainer where its model, data or setup cannot be packed."""

from __future__ import annotations

import contextlib
import inspect
import types
import warnings
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import datasets
import peft
import pytest
import tiny
import torch
import transformers
import trl
from packaging.version import Version
from test_sft import ROW, build_without_router_loss, byte_tokenizer, loss_of_documents, token_lists

from patchwork.packing import PackingRefused
from patchwork.packing.errors import PackingWarning

# Without experts where there is one: some releases of TRL add the router's auxiliary loss whatever the config says.
HYBRID = "qwen3_5" if "qwen3_5" in tiny.recurrent_names() else "qwen3_next"
# A composite whose text part packs; in transformers 4.57 there is no composite with recurrent mixers.
MULTIMODAL = "qwen3_5_vlm" if "qwen3_5_vlm" in tiny.recurrent_names() else "llava"
TRL = Version(trl.__version__)


class Prepared(trl.SFTTrainer):
    """Counts how often data is prepared."""

    times = 0

    def _prepare_dataset(self, *args: Any, **kwargs: Any) -> Any:
        Prepared.times += 1
        return super()._prepare_dataset(*args, **kwargs)


pytestmark = pytest.mark.usefixtures("patched_once")


@pytest.fixture(autouse=True)
def nothing_prepared(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(Prepared, "times", 0)


def settings(folder: Path, **more: Any) -> trl.SFTConfig:
    quiet = {"bf16": False, "use_cpu": True, "report_to": "none", "save_strategy": "no", "disable_tqdm": True}
    how = {"packing": True, "max_length": ROW, "per_device_train_batch_size": 10, "max_steps": 1, "gradient_checkpointing": False}
    how["logging_steps"] = 1
    return trl.SFTConfig(output_dir=str(folder / "out"), **{**quiet, **how, **more})


def documents() -> datasets.Dataset:
    return datasets.Dataset.from_dict({"input_ids": token_lists()})


def made(model: Any, args: trl.SFTConfig, dataset: Any = None, **given: Any) -> tuple[Prepared, list[warnings.WarningMessage]]:
    """The trainer, and the PackingWarnings while it was made."""
    given = {"train_dataset": documents() if dataset is None else dataset, "processing_class": byte_tokenizer(), **given}
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        trainer = Prepared(model=model, args=args, **given)
    return trainer, [each for each in caught if issubclass(each.category, PackingWarning)]


def trained(trainer: trl.SFTTrainer) -> float:
    """The loss of its only step."""
    trainer.train()
    return float(trainer.state.log_history[0]["loss"])


def with_an_unlisted_mixer(model: Any = None) -> Any:
    """A model of a known family with a convolution that nobody listed; it takes no part in the forward."""
    model = tiny.build("llama") if model is None else model
    model.model.layers[1].self_attn.k_conv = torch.nn.Conv1d(4, 4, 3)
    return model


def saved(folder: Path, model: Any = None) -> str:
    """The name of a model with its tokenizer, as a script gives it. Of a ``model`` that is not to be loaded, its config."""
    (tiny.build("llama") if model is None else model.config).save_pretrained(folder)
    byte_tokenizer().save_pretrained(folder)
    return str(folder)


def stops_at_the_load(monkeypatch: pytest.MonkeyPatch, kind: str = "LlamaForCausalLM") -> type[Exception]:
    """Loading a model of that class raises, whatever it was asked for."""

    class Loading(Exception):
        pass

    def from_pretrained(*_: Any, **__: Any) -> None:
        raise Loading

    monkeypatch.setattr(getattr(transformers, kind), "from_pretrained", from_pretrained)
    return Loading


def is_padded(trainer: trl.SFTTrainer) -> bool:
    """Whether the first batch is one of a document in each row."""
    batch = next(iter(trainer.get_train_dataloader()))
    assert not {"seq_idx", "cu_seq_lens_q"} & set(batch)
    return batch["input_ids"].shape[0] == len(token_lists())


# ---- a model that is refused --------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("asked", "reason"),
    [
        (with_an_unlisted_mixer, "layers.1.self_attn.k_conv"),
        (lambda: tiny.build("bloom"), "does not go through transformers' registry"),
        (lambda: tiny.build("t5"), "encoder-decoder"),
    ],
    ids=["mixer", "attention", "encoder-decoder"],
)
@pytest.mark.parametrize("switch", ["packing", "padding_free", "eval_packing"])
def test_a_refused_model_gets_padded_batches_and_one_warning(
    asked: Callable[[], Any], reason: str, switch: str, tmp_path: Path
) -> None:
    model = asked()
    args = settings(tmp_path, **{"packing": False, switch: True})
    trainer, found = made(model, args)
    assert len(found) == 1
    text = str(found[0].message)
    assert type(model).__name__ in text
    assert text.count(reason) == 1
    assert f"{switch}=True" in text
    assert "It goes on without packing" in text
    assert "PATCHWORK_ON_REFUSAL=raise" in text
    assert found[0].filename == __file__
    assert is_padded(trainer)


def test_several_reasons_are_one_warning_and_each_stands_once(tmp_path: Path) -> None:
    pictures = datasets.Dataset.from_dict({"input_ids": token_lists(), "images": [[]] * len(token_lists())})
    prompt = peft.PromptTuningConfig(num_virtual_tokens=2, task_type="CAUSAL_LM")
    given = {"train_dataset": pictures, "eval_dataset": pictures, "processing_class": byte_tokenizer(), "peft_config": prompt}
    with warnings.catch_warnings(record=True) as caught, contextlib.suppress(ValueError):  # TRL's own, of the pictures
        warnings.simplefilter("always")
        trl.SFTTrainer(model=with_an_unlisted_mixer(), args=settings(tmp_path, eval_packing=True), **given)
    found = [str(each.message) for each in caught if issubclass(each.category, PackingWarning)]
    assert len(found) == 1
    for reason in ("k_conv", "pictures or sound", "PROMPT_TUNING"):
        assert found[0].count(reason) == 1, found[0]


@pytest.mark.parametrize(
    "asked", [with_an_unlisted_mixer, lambda: build_without_router_loss(HYBRID)], ids=["mixer", "switched off"]
)
def test_the_padded_batches_have_the_loss_of_the_documents_alone(
    asked: Callable[[], Any], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("PATCHWORK_HYBRID_PACKING", "0")
    model = asked()
    mean, tokens, rows = loss_of_documents(model), sum(map(len, token_lists())), len(token_lists())
    trainer, found = made(model, settings(tmp_path))
    assert len(found) == 1
    unpacked, _ = made(asked(), settings(tmp_path, packing=False))
    loss = trained(unpacked)
    assert trained(trainer) == loss
    # Some releases count the first token of a document too, though nothing predicts it.
    assert loss in (pytest.approx(mean, abs=1e-4), pytest.approx(mean * (tokens - rows) / tokens, abs=1e-4))


def test_raise_stops_before_any_data_is_prepared(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PATCHWORK_ON_REFUSAL", "raise")
    with pytest.raises(PackingRefused, match="k_conv"):
        made(with_an_unlisted_mixer(), settings(tmp_path))
    assert Prepared.times == 0
    monkeypatch.setenv("PATCHWORK_ON_REFUSAL", "pad")
    made(with_an_unlisted_mixer(), settings(tmp_path))
    assert Prepared.times == 1


def test_another_value_of_the_switch_is_an_error(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PATCHWORK_ON_REFUSAL", "error")
    with pytest.raises(ValueError, match=r"PATCHWORK_ON_REFUSAL='error': it is 'pad' .* or 'raise'"):
        made(with_an_unlisted_mixer(), settings(tmp_path))
    assert Prepared.times == 0


@pytest.mark.parametrize("asked", [with_an_unlisted_mixer, lambda: tiny.build("llama")], ids=["refused", "packed"])
def test_the_users_arguments_stay_as_they_were(asked: Callable[[], Any], tmp_path: Path) -> None:
    args = settings(tmp_path, eval_packing=True, accelerator_config={"split_batches": False})
    before = {name: repr(value) for name, value in vars(args).items()}
    trainer, _ = made(asked(), args, eval_dataset=documents())
    trainer.train()
    assert {name: repr(value) for name, value in vars(args).items()} == before


def test_without_packing_nothing_is_asked(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PATCHWORK_ON_REFUSAL", "raise")
    args = settings(tmp_path, packing=False)
    trainer, found = made(with_an_unlisted_mixer(), args)
    assert found == []
    assert trainer.args is args
    assert is_padded(trainer)


def test_the_switch_for_hybrids_leaves_attention_packed(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PATCHWORK_HYBRID_PACKING", "0")
    trainer, found = made(build_without_router_loss(HYBRID), settings(tmp_path))
    assert len(found) == 1
    assert "PATCHWORK_HYBRID_PACKING=0" in str(found[0].message)
    assert is_padded(trainer)
    trainer, found = made(tiny.build("llama"), settings(tmp_path))
    assert found == []
    assert "seq_idx" in next(iter(trainer.get_train_dataloader()))


# ---- a model by its name ------------------------------------------------------------------------------------------


def test_a_name_is_packed_with_what_its_load_is_told(tmp_path: Path) -> None:
    name = saved(tmp_path / "model")
    dtype = "torch_dtype" if Version("0.24") > TRL else "dtype"
    loading = {"revision": "main", dtype: "float32", "attn_implementation": "eager"}
    args = settings(tmp_path, model_init_kwargs=loading)
    trainer, found = made(name, args, processing_class=None)
    assert found == []
    expected = loss_of_documents(trainer.model)
    assert trainer.model.config._attn_implementation == "eager"
    assert trained(trainer) == pytest.approx(expected, abs=1e-4)


def test_a_name_is_refused_before_it_is_loaded(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    name = saved(tmp_path / "model", tiny.build("bloom"))
    stops_at_the_load(monkeypatch, "BloomForCausalLM")
    monkeypatch.setenv("PATCHWORK_ON_REFUSAL", "raise")
    with pytest.raises(PackingRefused, match="bloom"):
        made(name, settings(tmp_path))
    assert Prepared.times == 0


def test_a_name_that_cannot_be_resolved_is_refused(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "model").mkdir()
    (tmp_path / "model" / "config.json").write_text('{"model_type": "made_up_by_somebody", "architectures": ["MadeUp"]}')
    monkeypatch.setenv("PATCHWORK_ON_REFUSAL", "raise")
    with pytest.raises(PackingRefused, match="config cannot be resolved"):
        made(str(tmp_path / "model"), settings(tmp_path))


@pytest.mark.parametrize("switch", ["pad", "raise"])
def test_a_name_is_confirmed_on_the_model_that_it_became(switch: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    name, other = saved(tmp_path / "model"), with_an_unlisted_mixer()
    monkeypatch.setattr(transformers.LlamaForCausalLM, "from_pretrained", lambda *_, **__: other)
    monkeypatch.setenv("PATCHWORK_ON_REFUSAL", switch)
    args = settings(tmp_path)
    if switch == "raise":
        with pytest.raises(PackingRefused, match="k_conv"):
            made(name, args)
        assert Prepared.times == 0
        return
    trainer, found = made(name, args)
    assert len(found) == 1
    assert str(found[0].message).count("k_conv") == 1
    assert found[0].filename == __file__
    assert is_padded(trainer)
    trainer.train()


def quantized() -> Any:
    return transformers.BitsAndBytesConfig(load_in_8bit=True)


@pytest.mark.parametrize("place", ["trainer", "model_init_kwargs"])
def test_quantization_does_not_disturb_the_decision(place: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    if place == "trainer" and "quantization_config" not in inspect.signature(trl.SFTTrainer.__init__).parameters:
        pytest.skip("this release of TRL takes it in model_init_kwargs only")
    name = saved(tmp_path / "model")
    loading = stops_at_the_load(monkeypatch)
    args = settings(tmp_path, model_init_kwargs={"quantization_config": quantized()} if place != "trainer" else None)
    given = {"quantization_config": quantized()} if place == "trainer" else {}
    with warnings.catch_warnings():
        warnings.simplefilter("error", PackingWarning)
        with pytest.raises(loading):
            made(name, args, **given)
    assert args.model_init_kwargs is None or isinstance(
        args.model_init_kwargs["quantization_config"], transformers.BitsAndBytesConfig
    )


# ---- adapters -----------------------------------------------------------------------------------------------------


def test_lora_packs(tmp_path: Path) -> None:
    model = build_without_router_loss(HYBRID)
    expected = loss_of_documents(model)  # an adapter adds nothing before its first step
    adapter = peft.LoraConfig(target_modules="all-linear", task_type="CAUSAL_LM")
    trainer, found = made(model, settings(tmp_path), peft_config=adapter)
    assert found == []
    assert trained(trainer) == pytest.approx(expected, abs=1e-4)


@pytest.mark.parametrize("kind", ["PromptTuningConfig", "PrefixTuningConfig", "PromptEncoderConfig"])
@pytest.mark.parametrize("before", [False, True], ids=["config", "wrapped before"])
def test_adapters_that_put_tokens_before_the_row_are_refused(
    kind: str, before: bool, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("PATCHWORK_ON_REFUSAL", "raise")
    adapter = getattr(peft, kind)(num_virtual_tokens=2, task_type="CAUSAL_LM")
    if kind == "PromptEncoderConfig":
        adapter.encoder_hidden_size = 16
    model = tiny.build("llama")
    model, given = (peft.get_peft_model(model, adapter), {}) if before else (model, {"peft_config": adapter})
    with pytest.raises(PackingRefused, match="puts its tokens before the row"):
        made(model, settings(tmp_path), **given)
    assert Prepared.times == 0


@pytest.mark.parametrize("before", [False, True], ids=["config", "wrapped before"])
def test_an_activated_adapter_is_trained_on_padded_batches(before: bool, tmp_path: Path) -> None:
    model = tiny.build("llama")
    adapter = peft.LoraConfig(target_modules=["q_proj"], alora_invocation_tokens=[11, 12], task_type="CAUSAL_LM")
    model, given = (peft.get_peft_model(model, adapter), {}) if before else (model, {"peft_config": adapter})
    trainer, found = made(model, settings(tmp_path), **given)
    assert not trainer.args.packing
    assert len(found) == 1
    assert "looks for its invocation tokens once a row" in str(found[0])


# ---- data that is more than text ----------------------------------------------------------------------------------


class Source:
    """A stream that does not know its columns, and counts how often it is begun."""

    def __init__(self, **columns: Any) -> None:
        self.started, self.columns = 0, columns

    def rows(self) -> Iterator[dict[str, Any]]:
        self.started += 1
        for tokens in token_lists():
            yield {"input_ids": tokens, **self.columns}

    def stream(self) -> datasets.IterableDataset:
        stream = datasets.IterableDataset.from_generator(self.rows)
        assert stream.column_names is None
        return stream


class Processor(transformers.ProcessorMixin):
    """What comes with a multimodal model, as far as text goes."""

    attributes = ("tokenizer",)
    tokenizer_class = "PreTrainedTokenizerFast"

    def __init__(self, tokenizer: Any = None, chat_template: str | None = None) -> None:
        super().__init__(tokenizer, chat_template=chat_template)

    def __call__(self, text: Any = None, **how: Any) -> Any:
        texts = [text] if isinstance(text, str) else text  # processors give a batch, of one text too
        return self.tokenizer(texts, **{name: value for name, value in how.items() if name != "images"})


@pytest.mark.parametrize("column", ["image", "images"])
def test_pictures_are_not_packed(column: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PATCHWORK_ON_REFUSAL", "raise")
    pictures = datasets.Dataset.from_dict({"prompt": ["a"] * 3, "completion": ["b"] * 3, column: [["x"]] * 3})
    for given in ({"train_dataset": pictures}, {"eval_dataset": {"one": documents(), "two": pictures}}):
        with pytest.raises(PackingRefused, match="pictures or sound"):
            made(tiny.build(MULTIMODAL), settings(tmp_path), **{"processing_class": Processor(byte_tokenizer()), **given})
    assert Prepared.times == 0


def test_pictures_go_on_unpacked(tmp_path: Path) -> None:
    pictures = datasets.Dataset.from_dict({"prompt": ["a"] * 3, "completion": ["b"] * 3, "images": [["x"]] * 3})
    trainer, found = made(tiny.build(MULTIMODAL), settings(tmp_path), pictures, processing_class=Processor(byte_tokenizer()))
    assert len(found) == 1
    assert "pictures or sound" in str(found[0].message)
    assert type(trainer.data_collator).__name__ == "DataCollatorForVisionLanguageModeling"


@pytest.mark.parametrize("by_name", [False, True], ids=["object", "name"])
def test_of_a_stream_that_does_not_know_its_columns_a_multimodal_model_has_one_example_looked_at(
    by_name: bool, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("PATCHWORK_ON_REFUSAL", "raise")
    model = tiny.build(MULTIMODAL)
    if by_name:
        model = saved(tmp_path / "model", model)
    source = Source(images=[])
    stream = source.stream()
    with pytest.raises(PackingRefused, match="pictures or sound"):
        made(model, settings(tmp_path), stream, processing_class=Processor(byte_tokenizer()))
    assert source.started == 1
    assert [row["input_ids"] for row in stream] == token_lists()


def test_a_stream_that_was_looked_at_gives_all_its_rows_in_order(tmp_path: Path) -> None:
    source = Source()
    trainer, found = made(
        tiny.build(MULTIMODAL),
        settings(tmp_path, packing=False, padding_free=True, max_length=None),
        source.stream(),
        processing_class=Processor(byte_tokenizer()),
    )
    assert found == []
    batch = next(iter(trainer.get_train_dataloader()))
    assert batch["input_ids"][0].tolist() == [token for tokens in token_lists() for token in tokens]


def test_a_stream_for_a_model_of_text_is_not_touched(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The guard is the first to see the data, so what it began is begun when the first thing after it is."""
    source, began = Source(), []
    monkeypatch.setattr(
        trl.trainer.sft_trainer, "next", lambda *given: began.append(source.started) or next(*given), raising=False
    )
    _, found = made(tiny.build("llama"), settings(tmp_path), source.stream())
    assert found == []
    assert began[0] == 0
    assert source.started >= 1


# ---- text for a model that could see ------------------------------------------------------------------------------


@pytest.mark.parametrize("text", [False, True], ids=["tokens", "text"])
def test_text_packs_although_the_model_has_a_processor(text: bool, tmp_path: Path) -> None:
    model, tokenizer = tiny.build(MULTIMODAL), byte_tokenizer()
    rows = documents()
    if text:
        rows = datasets.Dataset.from_dict({"text": ["ab", "cdefg", "hijklmnopqrst", "u"]})
    expected = loss_of_documents(model, [tokenizer(each + "<eos>")["input_ids"] for each in rows["text"]] if text else None)
    trainer, found = made(model, settings(tmp_path), rows, processing_class=Processor(tokenizer))
    assert found == []
    assert "seq_idx" in next(iter(trainer.get_train_dataloader()))
    assert trained(trainer) == pytest.approx(expected, abs=1e-4)


# ---- what stands beside the model ---------------------------------------------------------------------------------


@pytest.mark.parametrize("switch", [{"packing": True}, {"packing": False, "eval_packing": True}], ids=["packing", "eval_packing"])
def test_a_collator_of_the_users_own_gets_rows_of_one_document(switch: dict[str, bool], tmp_path: Path) -> None:
    rows: list[int] = []

    def collator(examples: list[dict[str, Any]]) -> dict[str, torch.Tensor]:
        rows.extend(len(example["input_ids"]) for example in examples)
        width = max(rows)
        ids = torch.tensor([example["input_ids"] + [0] * (width - len(example["input_ids"])) for example in examples])
        return {"input_ids": ids, "labels": ids.masked_fill(ids == 0, -100), "attention_mask": (ids != 0).long()}

    args = settings(tmp_path, **switch, per_device_eval_batch_size=10)
    trainer, found = made(tiny.build("llama"), args, data_collator=collator, eval_dataset=documents())
    assert len(found) == 1
    assert "the data collator (function) is not SFTTrainer's own" in str(found[0].message)
    next(iter(trainer.get_train_dataloader()))
    next(iter(trainer.get_eval_dataloader()))
    assert sorted(rows) == sorted([len(tokens) for tokens in token_lists()] * 2)


@pytest.mark.parametrize("size", ["cp_size", "sp_size"])
@pytest.mark.parametrize("place", ["arguments", "environment"])
def test_parallelism_that_cuts_rows_is_refused(size: str, place: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PATCHWORK_ON_REFUSAL", "raise")
    args = settings(tmp_path)
    if place == "arguments":
        args.parallelism_config = types.SimpleNamespace(**{"cp_size": 1, "sp_size": 1, size: 2})
    else:
        monkeypatch.setenv(f"PARALLELISM_CONFIG_{size.upper()}", "2")
    with pytest.raises(PackingRefused, match=f"parallelism \\({size}=2\\) cuts rows anywhere"):
        made(build_without_router_loss(HYBRID), args)
    assert Prepared.times == 0


def test_the_parallelism_of_accelerate_is_refused_before_it_needs_other_processes(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    from accelerate.parallelism_config import ParallelismConfig

    monkeypatch.setenv("PATCHWORK_ON_REFUSAL", "raise")
    args = settings(tmp_path)
    args.parallelism_config = ParallelismConfig(cp_size=2)
    with pytest.raises(PackingRefused, match=r"context parallelism \(cp_size=2\)"):
        made(tiny.build("llama"), args)
    args.parallelism_config = ParallelismConfig()
    made(tiny.build("llama"), args)


def test_a_row_is_not_dealt_out_by_data_parallel(tmp_path: Path) -> None:
    model = tiny.build("llama")
    trainer, _ = made(model, settings(tmp_path))
    calls: list[Any] = []
    model.register_forward_pre_hook(lambda *given: calls.append(given))
    trainer.args._n_gpu = 2
    with pytest.raises(PackingRefused, match="DataParallel over 2 GPUs"):
        trainer.train()
    assert calls == []
