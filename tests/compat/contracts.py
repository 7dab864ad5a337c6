"""What is asked of public functions that are patched: in the process of the tests, and in one where nothing is patched."""

from __future__ import annotations

import inspect
from typing import Any

import datasets
import tiny
import transformers
import trl
from transformers import DataCollatorWithFlattening
from trl.trainer.sft_trainer import DataCollatorForLanguageModeling

DOCUMENTS = [[7 * number + place for place in range(1 + number % 4)] for number in range(12)]
Shapes = dict[str, tuple[str, tuple[int, ...], list[Any]]]
EXAMPLES = {
    "plain": [{"input_ids": [5, 6, 7]}, {"input_ids": [8, 9]}],
    "lengths of one": [{"input_ids": [5, 6, 7], "seq_lengths": [3]}, {"input_ids": [8, 9], "seq_lengths": [2]}],
    "labels": [{"input_ids": [5, 6, 7], "labels": [-100, 6, 7]}, {"input_ids": [8, 9], "labels": [-100, 9]}],
    "completions": [{"input_ids": [5, 6, 7], "completion_mask": [0, 1, 1]}, {"input_ids": [8, 9], "completion_mask": [0, 1]}],
    "several": [{"input_ids": [5, 6, 7, 8], "seq_lengths": [3, 1]}, {"input_ids": [8, 9], "seq_lengths": [2]}],
}


def packed(strategy: str, kind: str) -> tuple[str, list[str], Any, dict[str, Any]]:
    """The kind of what `pack_dataset` returns, its columns, their types, and the values of a row."""
    data = datasets.Dataset.from_dict({"input_ids": DOCUMENTS, "labels": DOCUMENTS})
    given = data.to_iterable_dataset() if kind == "stream" else datasets.DatasetDict(train=data) if kind == "several" else data
    found = trl.pack_dataset(given, 6, strategy, {})
    part = found["train"] if kind == "several" else found
    first = next(iter(part))
    features = None if part.features is None else {name: str(feature) for name, feature in part.features.items()}
    return type(found).__name__, list(first), features, first


def chunked_loss(folder: str) -> float:
    """A plain Trainer on rows of `wrapped`, which it takes for text without documents."""
    model = tiny.build("llama")
    data = trl.pack_dataset(datasets.Dataset.from_dict({"input_ids": DOCUMENTS, "labels": DOCUMENTS}), 6, "wrapped", {})
    how = {"report_to": "none", "save_strategy": "no", "use_cpu": True, "disable_tqdm": True, "remove_unused_columns": False}
    arguments = transformers.TrainingArguments(output_dir=folder, max_steps=2, per_device_train_batch_size=2, **how)
    made = transformers.Trainer(model, arguments, transformers.default_data_collator, train_dataset=data)
    return float(made.train().training_loss)


def collated(name: str, **settings: Any) -> Shapes:
    """What TRL's collator makes of examples: dtype, shape and values of each column."""
    batch = DataCollatorForLanguageModeling(pad_token_id=0, **settings)([dict(each) for each in EXAMPLES[name]])
    return {
        key: (
            str(getattr(each, "dtype", "")),
            tuple(getattr(each, "shape", ())),
            getattr(each, "tolist", lambda each=each: each)(),
        )
        for key, each in batch.items()
    }


def flattened(name: str, **settings: Any) -> Shapes:
    batch = DataCollatorWithFlattening(**settings)([dict(each) for each in EXAMPLES[name]])
    return {
        key: (
            str(getattr(each, "dtype", "")),
            tuple(getattr(each, "shape", ())),
            getattr(each, "tolist", lambda each=each: each)(),
        )
        for key, each in batch.items()
    }


def signatures() -> dict[str, str]:
    """How the public classes and functions that hold patches are called."""
    names: dict[str, Any] = {
        "pack_dataset": trl.pack_dataset,
        "SFTTrainer": trl.SFTTrainer.__init__,
        "SFTTrainer.compute_loss": trl.SFTTrainer.compute_loss,
        "DPOTrainer": trl.DPOTrainer.__init__,
        "Trainer": transformers.Trainer.__init__,
        "Trainer.call_model_init": transformers.Trainer.call_model_init,
        "DataCollatorWithFlattening": DataCollatorWithFlattening.__call__,
        "DataCollatorForLanguageModeling": DataCollatorForLanguageModeling.torch_call,
        "LlamaForCausalLM": transformers.LlamaForCausalLM.forward,
        "LlamaModel": transformers.LlamaModel.forward,
        "gradient_checkpointing_enable": transformers.PreTrainedModel.gradient_checkpointing_enable,
    }
    return {name: str(inspect.signature(function)) for name, function in names.items()}


def training_columns() -> list[str]:
    """The columns that a Trainer leaves of a dataset."""
    data = datasets.Dataset.from_list([{"input_ids": [5, 6], "labels": [5, 6], "text": "two", "position_ids": [0, 1]}])
    arguments = transformers.TrainingArguments(output_dir="unused", report_to="none", use_cpu=True)
    made = transformers.Trainer(tiny.build("llama"), arguments, train_dataset=data)
    return list(made._remove_unused_columns(data).column_names)
