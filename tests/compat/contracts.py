"""Calls of public functions that patchwork patches, and the form of what they return. Run with patches and without."""

from __future__ import annotations

import copy
import dataclasses
import inspect
import re
import warnings
from pathlib import Path
from typing import Any

import numpy as np
import torch
import transformers
import trl
from datasets import Dataset, DatasetDict
from pairs import pairs, quiet, word_tokenizer
from test_sft import token_lists, trainer
from tiny import build
from trl.trainer.sft_trainer import DataCollatorForLanguageModeling

from patchwork.packing.errors import PackingWarning

WIDTH = 6
DOCUMENTS = [[10, 11, 12], [20, 21], [30, 31, 32, 33, 34], [40], [50, 51, 52, 53], [60, 61, 62]]  # three rows of WIDTH


def form(value: Any) -> Any:
    """Type, dtype, shape and content of a value, comparable across processes."""
    if isinstance(value, (torch.Tensor, np.ndarray)):
        return type(value).__name__, str(value.dtype), tuple(value.shape), value.tolist()
    if isinstance(value, dict) or hasattr(value, "keys"):
        return type(value).__name__, {name: form(value[name]) for name in value}
    if isinstance(value, (list, tuple)):
        return type(value).__name__, [form(each) for each in value]
    return type(value).__name__, value


def form_of_dataset(data: Any) -> Any:
    if isinstance(data, dict):
        return type(data).__name__, {name: form_of_dataset(part) for name, part in data.items()}
    known = [data.column_names, str(data.features)]
    kept = re.sub(r" at 0x\w+", "", str(getattr(data, "format", None)))  # a function has another address in another process
    return type(data).__name__, known, kept, [form(dict(row)) for row in data]


def documents(kind: str) -> Any:
    rows = Dataset.from_dict({"input_ids": DOCUMENTS, "labels": [[-token for token in each] for each in DOCUMENTS]})
    kinds = {
        "rows": lambda: rows,
        "one column": lambda: rows.select_columns(["input_ids"]),
        "a slice": lambda: rows.select(range(1, 5)),
        "tensors": lambda: rows.with_format("torch"),
        "some columns": lambda: rows.with_format("numpy", columns=["labels"]),
        "two datasets": lambda: DatasetDict({"train": rows, "test": rows.select([0, 1])}),
        "a stream": lambda: rows.to_iterable_dataset(),
    }
    return kinds[kind]()


def packed(kind: str, strategy: str) -> Any:
    return form_of_dataset(trl.pack_dataset(documents(kind), WIDTH, strategy))


def losses_of_chunks(folder: Path, strategy: str, unused: bool) -> Any:
    """A plain Trainer with its default collator, each of whose rows is one text."""
    rows = trl.pack_dataset(documents("rows"), WIDTH, strategy)
    rows = rows.map(lambda row: {"labels": row["input_ids"]})
    return chunks_trained(folder, rows, unused)


def chunks_trained(folder: Path, rows: Any, unused: bool) -> float:
    arguments = transformers.TrainingArguments(
        output_dir=str(folder),
        per_device_train_batch_size=len(rows),
        max_steps=1,
        remove_unused_columns=unused,
        logging_steps=1,
        report_to="none",
        use_cpu=True,
        disable_tqdm=True,
        save_strategy="no",
    )
    made = transformers.Trainer(model=build("llama"), args=arguments, train_dataset=rows)
    made.train()
    return float(made.state.log_history[0]["loss"])


def of_one_document() -> Any:
    return Dataset.from_dict({"input_ids": [[5, 6, 7], [8, 9, 10]], "labels": [[5, 6, 7], [8, 9, 10]], "seq_lengths": [[3], [3]]})


def collated(examples: Any, **settings: Any) -> Any:
    """A batch of the collator; settings that a release does not know are left out."""
    fields = {field.name for field in dataclasses.fields(DataCollatorForLanguageModeling)}
    known = {name: value for name, value in settings.items() if name in fields}
    return form(DataCollatorForLanguageModeling(pad_token_id=0, **known)(copy.deepcopy(examples)))


def prepared(folder: Path, **settings: Any) -> Any:
    """Datasets and collator of an SFTTrainer."""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", PackingWarning)
        made = trainer(build("llama"), folder, evaluation=Dataset.from_dict({"input_ids": token_lists()}), **settings)
    fields = {field.name: getattr(made.data_collator, field.name) for field in dataclasses.fields(made.data_collator)}
    data = [form_of_dataset(each) for each in (made.train_dataset, made.eval_dataset)]
    columns = form_of_dataset(made._remove_unused_columns(made.eval_dataset))
    return type(made.data_collator).__name__, fields, data, columns, made._signature_columns


def loss_of_sft(folder: Path) -> Any:
    """What `compute_loss` returns for a padded batch."""
    made = trainer(build("llama"), folder, packing=False, gradient_checkpointing=False)
    inputs = next(iter(made.get_train_dataloader()))
    loss, outputs = made.compute_loss(made.model, dict(inputs), return_outputs=True)
    return form(inputs), form(loss.detach()), type(outputs).__name__, form(outputs.logits.detach())


def loss_of_dpo(folder: Path) -> Any:
    made = trl.DPOTrainer(
        model=build("llama"),
        ref_model=build("llama"),
        args=trl.DPOConfig(**quiet(folder, gradient_checkpointing=False)),
        train_dataset=Dataset.from_dict(pairs()),
        processing_class=word_tokenizer(),
    )
    made.model_accepts_loss_kwargs = False
    inputs = next(iter(made.get_train_dataloader()))
    loss, outputs = made.compute_loss(made.model, dict(inputs), return_outputs=True)
    made._set_signature_columns_if_needed()
    form_of_outputs = {name: form(value.detach()) for name, value in outputs.items() if isinstance(value, torch.Tensor)}
    kinds = type(outputs).__name__, type(made.data_collator).__name__
    return form(inputs), form(loss.detach()), form_of_outputs, kinds, form_of_dataset(made.train_dataset), made._signature_columns


def flattened(features: Any, call: dict[str, Any], settings: dict[str, Any]) -> Any:
    return form(transformers.DataCollatorWithFlattening(**settings)(copy.deepcopy(features), **call))


def signatures() -> dict[str, str]:
    from trl.trainer.sft_trainer import SFTTrainer

    functions = {
        "pack_dataset": trl.pack_dataset,
        "torch_call": DataCollatorForLanguageModeling.torch_call,
        "SFTTrainer": SFTTrainer.__init__,
        "compute_loss": SFTTrainer.compute_loss,
        "flattening": transformers.DataCollatorWithFlattening.__call__,
        "Trainer": transformers.Trainer.__init__,
        "unused": transformers.Trainer._remove_unused_columns,
    }
    return {name: ", ".join(inspect.signature(function).parameters) for name, function in functions.items()}
