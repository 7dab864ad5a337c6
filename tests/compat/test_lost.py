"""Boundaries that get lost between a dataset and the model: each way is mended, or an error before the loss."""

from __future__ import annotations

import itertools
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import datasets
import pytest
import tiny
import torch
import transformers
from test_flattening import Step, alone, assert_same, build
from transformers import DataCollatorWithFlattening

from patchwork.packing import IsolationError, PackingRefused

LENGTHS = (5, 4, 7)
PLACES = [place for length in LENGTHS for place in range(length)]
NUMBERS = [number for number, length in enumerate(LENGTHS) for _ in range(length)]
COLUMNS = {"seq_lengths": list(LENGTHS), "seq_idx": NUMBERS, "position_ids": PLACES, "packed_seq_lengths": list(LENGTHS)}


def documents() -> list[dict[str, Any]]:
    return [{"input_ids": document[0].tolist()} for document in tiny.documents(LENGTHS)]


def row(**columns: Any) -> dict[str, Any]:
    ids = list(itertools.chain(*(each["input_ids"] for each in documents())))
    return {"input_ids": ids, "labels": ids, **columns}


def rows(*, stream: bool, **columns: Any) -> Any:
    found = datasets.Dataset.from_list([row(**columns)])
    return found.to_iterable_dataset() if stream else found


# ---- the columns of a dataset -----------------------------------------------------------------------------------


@pytest.mark.parametrize("stream", [False, True], ids=["dataset", "stream"])
@pytest.mark.parametrize("name", list(COLUMNS))
def test_rows_that_are_flattened_are_cut_by_whatever_says_where(
    name: str, stream: bool, patched_once: None, tmp_path: Path
) -> None:
    model = build("llama")
    expected = alone(model, documents())
    given = rows(stream=stream, **{name: COLUMNS[name]})
    assert_same(Step(model, given, tmp_path, remove_unused_columns=False).run(), expected)


@pytest.mark.parametrize("stream", [False, True], ids=["dataset", "stream"])
@pytest.mark.parametrize("name", ["seq_idx", "packed_seq_lengths", "seq_lengths"])
def test_no_column_that_says_it_is_dropped_as_unused(name: str, stream: bool, patched_once: None, tmp_path: Path) -> None:
    step = Step(build("llama"), rows(stream=stream, **{name: COLUMNS[name]}), tmp_path, transformers.default_data_collator)
    with pytest.raises(IsolationError, match=rf"it has {name}.* would be dropped"):
        step.run()
    assert step.losses == []


@pytest.mark.skipif(not tiny.has("mamba"), reason="not in this release")
def test_nor_are_positions_that_the_model_does_not_take(patched_once: None, tmp_path: Path) -> None:
    step = Step(build("mamba"), rows(stream=False, position_ids=PLACES), tmp_path, transformers.default_data_collator)
    with pytest.raises(IsolationError, match=r"it has position_ids.* would be dropped"):
        step.run()
    whole = [{**each, "labels": each["input_ids"], "position_ids": [*range(len(each["input_ids"]))]} for each in documents()[:1]]
    Step(build("mamba"), whole, tmp_path, transformers.default_data_collator).run()


# ---- collators --------------------------------------------------------------------------------------------------


def forgetting(examples: list[dict[str, Any]]) -> dict[str, torch.Tensor]:
    ids = torch.tensor([each["input_ids"] for each in examples])
    return {"input_ids": ids, "labels": ids.clone()}


def counting_on(examples: list[dict[str, Any]]) -> dict[str, torch.Tensor]:
    batch = forgetting(examples)
    return {**batch, "position_ids": torch.arange(batch["input_ids"].shape[1])[None]}


def remembering(examples: list[dict[str, Any]]) -> dict[str, torch.Tensor]:
    return {**forgetting(examples), "position_ids": torch.tensor([PLACES])}


@pytest.mark.parametrize("stream", [False, True], ids=["dataset", "stream"])
@pytest.mark.parametrize("collator", [forgetting, counting_on])
@pytest.mark.parametrize("name", ["seq_lengths", "position_ids"])
def test_a_collator_that_forgets_is_an_error(name: str, collator: Any, stream: bool, patched_once: None, tmp_path: Path) -> None:
    given = rows(stream=stream, **{name: COLUMNS[name]})
    step = Step(build("llama"), given, tmp_path, collator, remove_unused_columns=False)
    with pytest.raises(IsolationError, match=rf"hold 3 documents .by their {name}., but {collator.__name__} says nothing"):
        step.run()
    assert step.losses == []
    Step(build("llama"), given, tmp_path, remembering, remove_unused_columns=False).run()


def test_a_batch_that_is_no_mapping_is_the_users_own_affair(patched_once: None, tmp_path: Path) -> None:
    class Bare(transformers.Trainer):
        def compute_loss(self, model: Any, inputs: Any, *_: Any, **__: Any) -> Any:
            return model(input_ids=inputs[0], labels=inputs[0]).loss

    how = {"max_steps": 1, "report_to": "none", "save_strategy": "no", "use_cpu": True, "remove_unused_columns": False}
    arguments = transformers.TrainingArguments(output_dir=str(tmp_path), **how)
    data = datasets.Dataset.from_list(documents()[:1])
    made = Bare(build("llama"), arguments, lambda examples: (torch.tensor([examples[0]["input_ids"]]),), train_dataset=data)
    assert made.train().training_loss > 0


SPAWNED = """
import sys
import torch.multiprocessing
import patchwork
{apply}
import datasets, transformers
from test_flattening import Step, build
from test_lost import row

if __name__ == "__main__":
    torch.multiprocessing.set_start_method(sys.argv[1])
    data = datasets.Dataset.from_list([row(seq_lengths=[5, 4, 7])])
    how = {{"remove_unused_columns": False, "dataloader_num_workers": int(sys.argv[2])}}
    print("LOSS", *Step(build("llama"), data, sys.argv[3], **how).run().losses)
"""


def spawned(folder: Path, method: str, workers: int, *, apply: bool = True) -> float:
    script = folder / "script.py"
    script.write_text(SPAWNED.format(apply="patchwork.apply()" if apply else ""))
    here = Path(__file__).parent
    environment = {**os.environ, "PYTHONPATH": os.pathsep.join(map(str, (here, here / "doubles", here.parent)))}
    command = [sys.executable, str(script), method, str(workers), str(folder)]
    done = subprocess.run(command, capture_output=True, text=True, env=environment, check=False)
    assert done.returncode == 0, done.stderr[-2000:]
    return float(done.stdout.rpartition("LOSS")[2].split()[0])


def test_a_worker_that_is_spawned_is_patched_too(patched_once: None, tmp_path: Path) -> None:
    expected = alone(build("llama"), documents())[0]
    assert spawned(tmp_path, "spawn", 1) == pytest.approx(expected, abs=1e-5)
    assert abs(spawned(tmp_path, "spawn", 0, apply=False) - expected) > 1e-3  # the control


# ---- losses -----------------------------------------------------------------------------------------------------

CALLS = {
    "the ids": lambda model, batch: model(input_ids=batch["input_ids"], labels=batch["labels"]),
    "a copy": lambda model, batch: model(input_ids=batch["input_ids"].clone(), labels=batch["labels"]),
    "detached": lambda model, batch: model(input_ids=batch["input_ids"].detach(), labels=batch["labels"]),
    "all but the last": lambda model, batch: model(input_ids=batch["input_ids"][:, :-1], labels=batch["labels"][:, :-1]),
    "all but the first": lambda model, batch: model(input_ids=batch["input_ids"][:, 1:], labels=batch["labels"][:, 1:]),
    "embeddings": lambda model, batch: model(
        inputs_embeds=model.get_input_embeddings()(batch["input_ids"]), labels=batch["labels"]
    ),
}


def own_loss(call: Any) -> type[transformers.Trainer]:
    class Own(transformers.Trainer):
        def compute_loss(self, model: Any, inputs: Any, *_: Any, **__: Any) -> Any:
            return call(model, inputs).loss

    return Own


def own_trainer(call: Any, data: Any, folder: Path, collator: Any, **settings: Any) -> transformers.Trainer:
    how = {"max_steps": 1, "report_to": "none", "save_strategy": "no", "use_cpu": True, **settings}
    arguments = transformers.TrainingArguments(output_dir=str(folder), per_device_train_batch_size=3, **how)
    return own_loss(call)(build("llama"), arguments, collator, train_dataset=data)


@pytest.mark.parametrize("call", list(CALLS))
def test_a_loss_that_hands_on_the_tokens_alone_is_an_error(call: str, patched_once: None, tmp_path: Path) -> None:
    data = datasets.Dataset.from_list(documents())
    made = own_trainer(CALLS[call], data, tmp_path, DataCollatorWithFlattening())
    with pytest.raises(IsolationError, match=r"has 3 documents and says so .* called with its tokens alone"):
        made.train()
    whole = own_trainer(lambda model, batch: model(**batch), data, tmp_path, DataCollatorWithFlattening())
    assert whole.train().training_loss > 0


def test_and_one_that_is_compiled(patched_once: None, tmp_path: Path) -> None:
    data = datasets.Dataset.from_list(documents())
    how = {"torch_compile": True, "torch_compile_backend": "eager"}
    made = own_trainer(CALLS["the ids"], data, tmp_path, DataCollatorWithFlattening(), **how)
    with pytest.raises(IsolationError, match="called with its tokens alone"):
        made.train()


@pytest.mark.parametrize("side", ["left", "right"])
def test_positions_of_padded_rows_need_not_be_handed_on(side: str, patched_once: None, tmp_path: Path) -> None:
    def pad(examples: list[dict[str, Any]]) -> dict[str, torch.Tensor]:
        parts = [torch.tensor(each["input_ids"]) for each in examples]
        ids = torch.nn.utils.rnn.pad_sequence(parts, batch_first=True, padding_side=side)
        mask = torch.nn.utils.rnn.pad_sequence([torch.ones_like(part) for part in parts], batch_first=True, padding_side=side)
        places = (mask.cumsum(-1) - 1).clamp(0)
        return {"input_ids": ids, "attention_mask": mask, "position_ids": places, "labels": ids.masked_fill(mask == 0, -100)}

    def call(model: Any, batch: Any) -> Any:
        return model(input_ids=batch["input_ids"], attention_mask=batch["attention_mask"], labels=batch["labels"])

    made = own_trainer(call, datasets.Dataset.from_list(documents()), tmp_path, pad)
    assert made.train().training_loss > 0


def test_other_calls_while_a_packed_batch_is_under_way_are_let_alone(patched_once: None, tmp_path: Path) -> None:
    def call(model: Any, batch: Any) -> Any:
        with torch.no_grad():
            other = model(input_ids=torch.flip(batch["input_ids"], dims=(1,)))  # of the batch's shape, of other tokens
            shorter = model(input_ids=batch["input_ids"][:, :4])
            generated = model.generate(batch["input_ids"][:, :4], max_new_tokens=2, do_sample=False)
        assert other.logits.shape[1] == 16
        assert shorter.logits.shape[1] == 4
        assert generated.shape[1] == 6
        return model(**batch)

    made = own_trainer(call, datasets.Dataset.from_list(documents()), tmp_path, DataCollatorWithFlattening())
    assert made.train().training_loss > 0


# ---- SFTTrainer -------------------------------------------------------------------------------------------------


def sft(data: Any, folder: Path, **settings: Any) -> Any:
    import test_sft

    return test_sft.trainer(build("llama"), folder, data, **{"max_steps": 1, "per_device_train_batch_size": 1, **settings})


@pytest.mark.parametrize("packing", [True, False])
def test_a_stream_is_asked_row_by_row(packing: bool, patched: None, tmp_path: Path) -> None:
    """The first row may be one document: packers that fill best put long ones first."""
    first = {"input_ids": row()["input_ids"], "position_ids": [*range(16)]}
    second = {"input_ids": row()["input_ids"], "position_ids": PLACES}
    stream = datasets.Dataset.from_list([first, second]).to_iterable_dataset()
    with pytest.raises(PackingRefused, match="rows hold several documents, by their position_ids"):
        sft(stream, tmp_path, packing=packing, max_length=64, max_steps=2).train()
    sft(stream.take(1), tmp_path, packing=packing, max_length=64).train()


@pytest.mark.parametrize("stream", [False, True], ids=["dataset", "stream"])
@pytest.mark.parametrize("name", ["position_ids", "seq_idx"])
def test_rows_of_a_dataset_that_is_not_prepared_are_asked_too(name: str, stream: bool, patched: None, tmp_path: Path) -> None:
    made = sft(rows(stream=stream, **{name: COLUMNS[name]}), tmp_path, dataset_kwargs={"skip_prepare_dataset": True})
    with pytest.raises(IsolationError, match=rf"it has {name}.* would be dropped"):
        made.train()


@pytest.mark.parametrize(
    "columns",
    [
        {"position_ids": [1, 1, 1, 0, *range(1, 13)]},
        {"position_ids": [*range(12), 0, 0, 0, 0], "attention_mask": [1] * 12 + [0] * 4},
    ],
    ids=["filled", "masked"],
)
def test_padded_rows_with_positions_are_rows_of_one_document(columns: Any, patched: None, tmp_path: Path) -> None:
    sft(rows(stream=False, **columns), tmp_path, packing=False).train()


def test_a_number_called_seq_lengths_is_no_length(patched: None, tmp_path: Path) -> None:
    sft(rows(stream=False, seq_lengths=16), tmp_path, packing=False).train()


@pytest.mark.parametrize("stream", [False, True], ids=["dataset", "stream"])
@pytest.mark.parametrize("packing", [True, False])
def test_packed_rows_longer_than_max_length_stay_whole(packing: bool, stream: bool, patched: None, tmp_path: Path) -> None:
    made = sft(rows(stream=stream, seq_lengths=list(LENGTHS)), tmp_path, packing=packing, max_length=8)
    [batch] = itertools.islice(made.get_train_dataloader(), 1)
    assert batch["input_ids"].tolist() == [row()["input_ids"]]
    made.train()


def test_rows_that_are_not_prepared_are_not_cut_either(patched: None, tmp_path: Path) -> None:
    """Where packing is asked for, and the dataset is not to be touched."""
    data = datasets.Dataset.from_list([{name: row()[name] for name in ("input_ids", "labels")}])
    made = sft(data, tmp_path, packing=True, max_length=8, dataset_kwargs={"skip_prepare_dataset": True})
    [batch] = itertools.islice(made.get_train_dataloader(), 1)
    assert batch["input_ids"].shape == (1, 16)
