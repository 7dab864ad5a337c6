"""transformers' Trainer with `DataCollatorWithFlattening`: the first step is that of the documents alone, or there is none."""

from __future__ import annotations

import inspect
import itertools
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import datasets
import numpy
import pytest
import tiny
import torch
import transformers
from alone import DENSE
from transformers import DataCollatorWithFlattening

import patchwork
from patchwork.packing import BoundariesError, IsolationError, restore

LENGTHS = (7, 5, 9, 1, 30)
NAMES = [name for name in (DENSE, "lfm2", "llama") if tiny.has(name)]
MARKS = ("return_position_ids", "return_flash_attn_kwargs", "return_seq_idx")
FORMS = [dict(zip(MARKS, on, strict=True)) for on in itertools.product((True, False), repeat=3)]
MARKED, SILENT = FORMS[:-1], FORMS[-1]


FORMED = [*((DENSE, form) for form in MARKED), *((name, form) for name in NAMES[1:] for form in MARKED[::3])]


def _named(value: Any) -> str:
    return value if isinstance(value, str) else " ".join(name.removeprefix("return_") for name in value if value[name])


@pytest.fixture
def stock(patched_once: None) -> Iterator[None]:
    patchwork.revert()
    yield
    patchwork.apply()


def features(**columns: Callable[[list[int]], Any]) -> list[dict[str, Any]]:
    """One feature for each document; ``columns`` are made of its token ids."""
    ids = [document[0].tolist() for document in tiny.documents(LENGTHS)]
    return [{"input_ids": each, **{name: make(each) for name, make in columns.items()}} for each in ids]


def prompt_masked(ids: list[int]) -> list[int]:
    """Labels of which the first third is a prompt."""
    return [-100] * (len(ids) // 3) + ids[len(ids) // 3 :]


class Step:
    """The first optimizer step of a real Trainer: the losses of its micro-batches, and the gradients before the update."""

    def __init__(self, model: Any, data: Any, folder: Path, collator: Any = None, **settings: Any) -> None:
        losses: list[float] = []
        self.losses, self.gradients = losses, {}

        class Recording(transformers.Trainer):
            def compute_loss(self, *args: Any, **kwargs: Any) -> Any:
                loss = super().compute_loss(*args, **kwargs)
                losses.append(float(loss.detach()))
                return loss

        found = self.gradients

        class Gradients(transformers.TrainerCallback):
            def on_pre_optimizer_step(self, *args: Any, **kwargs: Any) -> None:
                found.update({name: each.grad.clone() for name, each in model.named_parameters() if each.grad is not None})

        how = {
            "per_device_train_batch_size": len(LENGTHS),
            "max_steps": 1,
            "learning_rate": 0.0,
            "max_grad_norm": 0.0,
            **settings,
        }
        quiet = {"report_to": "none", "save_strategy": "no", "disable_tqdm": True, "use_cpu": True}
        arguments = transformers.TrainingArguments(output_dir=str(folder), **quiet, **how)
        if isinstance(data, list):
            data = datasets.Dataset.from_list(data)
        self.trainer = Recording(
            model, arguments, collator or DataCollatorWithFlattening(), train_dataset=data, callbacks=[Gradients()]
        )

    def run(self) -> Step:
        self.trainer.train()
        return self


def build(name: str) -> torch.nn.Module:
    return tiny.build(name, **({"router_aux_loss_coef": 0.0} if name in tiny.RECURRENT and name != "qwen3_5" else {}))


def alone(model: torch.nn.Module, data: list[dict[str, Any]]) -> tuple[float, dict[str, torch.Tensor]]:
    """Mean loss over all predicted tokens and its gradients, each document forwarded in a row of its own."""
    found: list[float] = []

    def mean() -> torch.Tensor:
        total, count = torch.zeros(()), 0
        for each in data:
            ids, labels = torch.tensor([each["input_ids"]]), torch.tensor(each.get("labels", each["input_ids"]))[1:]
            logits = model(input_ids=ids, use_cache=False).logits[0, :-1]
            total = total + torch.nn.functional.cross_entropy(logits, labels, reduction="sum")
            count += int((labels != -100).sum())
        found.append(float((total / count).detach()))
        return total / count

    gradients = tiny.gradients(model, mean)
    return found[0], gradients


def assert_same(step: Step, expected: tuple[float, dict[str, torch.Tensor]]) -> None:
    assert sum(step.losses) == pytest.approx(expected[0], abs=1e-5)
    missing = {name: torch.zeros_like(value) for name, value in expected[1].items() if name not in step.gradients}
    assert tiny.worst_difference({**step.gradients, **missing}, expected[1]) < 1e-4


# ---- exact ------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(("name", "form"), FORMED, ids=_named)
def test_the_first_step_is_that_of_the_documents_alone(
    name: str, form: dict[str, bool], patched_once: None, tmp_path: Path
) -> None:
    model, data = build(name), features()
    expected = alone(model, data)
    assert_same(Step(model, data, tmp_path, DataCollatorWithFlattening(**form)).run(), expected)


@pytest.mark.parametrize("name", NAMES)
def test_the_stock_step_leaks(name: str, stock: None, tmp_path: Path) -> None:
    """The control: a row with its marks off, which is what is left of one wherever marks are not understood."""
    model, data = build(name), features()
    restore(model)
    loss, gradients = alone(model, data)
    step = Step(model, data, tmp_path, DataCollatorWithFlattening(**SILENT)).run()
    assert abs(step.losses[0] - loss) > 1e-3
    missing = {name: torch.zeros_like(value) for name, value in gradients.items() if name not in step.gradients}
    assert tiny.worst_difference({**step.gradients, **missing}, gradients) > 1e-2


def padded(batch: list[dict[str, Any]]) -> dict[str, torch.Tensor]:
    """Documents in rows of their own, with as many labels as flattened: none for a first token."""
    ids, labels = ([torch.tensor(each[name]) for each in batch] for name in ("input_ids", "labels"))
    return {
        "input_ids": torch.nn.utils.rnn.pad_sequence(ids, batch_first=True),
        "attention_mask": torch.nn.utils.rnn.pad_sequence([torch.ones_like(each) for each in ids], batch_first=True),
        "labels": torch.nn.utils.rnn.pad_sequence(
            [each.index_fill(0, torch.tensor([0]), -100) for each in labels], batch_first=True, padding_value=-100
        ),
    }


@pytest.mark.parametrize("name", NAMES)
def test_labels_of_completions_and_accumulated_steps(name: str, patched_once: None, tmp_path: Path) -> None:
    """Two micro-batches of different size: each token of the step weighs the same, and the step is that of padded rows.

    Not that of the documents alone: releases differ in whether they divide gradients by the number of micro-batches too.
    """
    model, data = build(name), features(labels=prompt_masked)
    how = {"per_device_train_batch_size": 3, "gradient_accumulation_steps": 2}
    step = Step(model, data, tmp_path, **how).run()
    assert len(step.losses) == 2
    expected = Step(model, data, tmp_path, padded, **how).run()
    assert sum(step.losses) == pytest.approx(alone(model, data)[0], abs=1e-5)
    assert step.losses == pytest.approx(expected.losses, abs=1e-5)
    assert tiny.worst_difference(step.gradients, expected.gradients) < 1e-4


def test_checkpointing(patched_once: None, tmp_path: Path) -> None:
    model, data = build(DENSE), features()
    expected = alone(model, data)
    how = {"gradient_checkpointing": True, "gradient_checkpointing_kwargs": {"use_reentrant": False}}
    assert_same(Step(model, data, tmp_path, **how).run(), expected)


def test_a_stream_that_is_dispatched_is_exact_or_an_error(patched_once: None, tmp_path: Path) -> None:
    """Accelerate slices what it dispatches along the first dimension: of cumulative lengths that leaves the leading zero."""
    data = features()
    stream = datasets.Dataset.from_list(data).to_iterable_dataset()
    for form in MARKED:
        model = build(DENSE)
        expected = alone(model, data)
        step = Step(model, stream, tmp_path, DataCollatorWithFlattening(**form))
        if form["return_flash_attn_kwargs"]:
            with pytest.raises(BoundariesError, match="cu_seqlens holds no document"):
                step.run()
        else:
            assert_same(step.run(), expected)


# ---- what the collator is given -----------------------------------------------------------------------------------


def test_the_first_label_of_each_document_is_masked_and_no_other(patched_once: None) -> None:
    for data in (features(), features(labels=list)):
        batch = DataCollatorWithFlattening()(data)
        ids = batch["input_ids"][0]
        first = batch["position_ids"][0] == 0
        assert batch["labels"][0].tolist() == torch.where(first, -100, ids).tolist()
        assert int(first.sum()) == len(LENGTHS)


def test_a_separator_is_predicted_by_the_document_before_it_alone(patched_once: None) -> None:
    """A separator of the user's own is a label: the last token of each document but the last one is to predict it."""
    model, data = build(DENSE), features()
    ends = [[2], [2], [2], [2], []]
    total, count = 0.0, 0
    with torch.no_grad():
        for each, end in zip(data, ends, strict=True):
            labels = torch.tensor([*each["input_ids"][1:], *end])
            logits = model(input_ids=torch.tensor([each["input_ids"]]), use_cache=False).logits[0, : len(labels)]
            total += float(torch.nn.functional.cross_entropy(logits, labels, reduction="sum"))
            count += len(labels)
        loss = model(**DataCollatorWithFlattening(separator_id=2)(data), use_cache=False).loss
    assert float(loss) == pytest.approx(total / count, abs=1e-5)


@pytest.mark.parametrize("return_tensors", ["pt", "np"])
@pytest.mark.parametrize("make", [numpy.array, torch.tensor], ids=["numpy", "torch"])
def test_arrays_and_tensors_make_the_batch_that_lists_make(
    make: Callable[[list[int]], Any], return_tensors: str, patched_once: None
) -> None:
    collator = DataCollatorWithFlattening(return_tensors=return_tensors, **FORMS[0])
    expected = collator(features(labels=prompt_masked))
    made = [{name: make(values) for name, values in each.items()} for each in features(labels=prompt_masked)]
    found = collator(made)
    assert found.keys() == expected.keys()
    for name, value in expected.items():
        assert type(found[name]) is type(value)
        assert numpy.asarray(found[name]).tolist() == numpy.asarray(value).tolist()


def test_empty_documents_are_left_out(patched_once: None) -> None:
    collator, data = DataCollatorWithFlattening(**FORMS[0]), features()
    expected = collator(data)
    found = collator([{"input_ids": []}, *data[:2], {"input_ids": []}, *data[2:], {"input_ids": []}])
    for name, value in expected.items():
        assert numpy.asarray(found[name]).tolist() == numpy.asarray(value).tolist(), name
    with pytest.raises(BoundariesError, match="none of the 2 examples of this batch holds a token"):
        collator([{"input_ids": []}] * 2)


def test_rows_that_were_packed_before_are_cut_into_their_documents(patched_once: None) -> None:
    collator, data = DataCollatorWithFlattening(**FORMS[0]), features(labels=prompt_masked)
    row = {name: [value for each in data[:3] for value in each[name]] for name in ("input_ids", "labels")}
    found, expected = collator([{**row, "seq_lengths": [7, 0, 5, 9]}, *data[3:]]), collator(data)
    for name, value in expected.items():
        assert numpy.asarray(found[name]).tolist() == numpy.asarray(value).tolist(), name


@pytest.mark.parametrize(
    ("data", "message"),
    [
        ([{"input_ids": [5, 6], "seq_lengths": [1]}], r"seq_lengths of example 0 are \[1\], which sum to 1, but it has 2 tokens"),
        ([{"input_ids": [5, 6], "seq_lengths": [3, -1]}], "seq_lengths of example 0"),
        ([{"input_ids": [5, 6]}, {"input_ids": [5], "labels": [5]}], "example 0 has no labels"),
        ([{"input_ids": [5, 6], "labels": [5]}, {"input_ids": [5], "labels": [5, 6]}], "example 0 has 2 input_ids and 1 labels"),
        ([{"input_ids": torch.ones(1, 3)}], r"shape \(1, 3\)"),
    ],
    ids=["short lengths", "negative length", "labels of some", "short labels", "two dimensions"],
)
def test_features_that_do_not_fit_are_named(data: list[dict[str, Any]], message: str, patched_once: None) -> None:
    with pytest.raises(BoundariesError, match=message):
        DataCollatorWithFlattening()(data)


def test_one_document_needs_no_mark_and_several_do(patched_once: None, tmp_path: Path) -> None:
    model, data = build(DENSE), features()
    expected = alone(model, data[:1])
    silent = DataCollatorWithFlattening(**SILENT)
    assert_same(Step(model, data[:1], tmp_path, silent).run(), expected)
    step = Step(model, data, tmp_path, silent)
    with pytest.raises(IsolationError, match="would lay 5 documents end to end and say nothing"):
        step.run()
    assert step.losses == []


def test_arrays_never_reach_the_model_as_an_ordinary_row(patched_once: None, tmp_path: Path) -> None:
    with pytest.raises((TypeError, AttributeError, ValueError, IsolationError)):
        Step(build(DENSE), features(), tmp_path, DataCollatorWithFlattening(return_tensors="np", **FORMS[0])).run()


@pytest.mark.parametrize("stream", [False, True], ids=["dataset", "stream"])
def test_the_lengths_of_packed_rows_are_not_dropped_as_an_unused_column(stream: bool, patched_once: None, tmp_path: Path) -> None:
    """Kept, they are heard."""
    model, data = build(DENSE), features()
    row = {"input_ids": [token for each in data for token in each["input_ids"]], "seq_lengths": list(LENGTHS)}
    expected, rows = alone(model, data), datasets.Dataset.from_list([row])
    given = rows.to_iterable_dataset() if stream else rows
    step = Step(model, given, tmp_path)
    with pytest.raises(IsolationError, match="that column would be dropped"):
        step.run()
    assert step.losses == []
    assert_same(Step(model, given, tmp_path, remove_unused_columns=False).run(), expected)


def test_a_column_of_that_name_with_one_number_a_row_is_dropped_like_any_other(patched_once: None, tmp_path: Path) -> None:
    rows = [{**each, "seq_lengths": number} for number, each in enumerate(features())]
    expected = alone(model := build(DENSE), features())
    for given in (datasets.Dataset.from_list(rows), datasets.Dataset.from_list(rows).to_iterable_dataset()):
        assert_same(Step(model, given, tmp_path).run(), expected)


@pytest.mark.skipif(
    "position_ids_start" not in inspect.signature(DataCollatorWithFlattening.__init__).parameters, reason="not in this release"
)
def test_positions_may_start_elsewhere(patched_once: None, tmp_path: Path) -> None:
    model, data = build(DENSE), features()
    expected = alone(model, data)
    assert_same(Step(model, data, tmp_path, DataCollatorWithFlattening(position_ids_start=2)).run(), expected)


# ---- unsloth's argument --------------------------------------------------------------------------------------------


def rows_of(data: list[dict[str, Any]], lengths: Any, positions: bool) -> Callable[[Any], dict[str, Any]]:
    """A collator of a batch with `packed_seq_lengths`; two rows of 21 and 31 tokens become rows of 31."""

    def collate(_: Any) -> dict[str, Any]:
        parts = [torch.tensor(each["input_ids"]) for each in data]
        rows = [torch.cat(parts[:3]), torch.cat(parts[3:])]
        ids, labels = (torch.nn.utils.rnn.pad_sequence(rows, batch_first=True, padding_value=at) for at in (0, -100))
        first = torch.zeros_like(ids, dtype=torch.bool)
        first[0, [0, 7, 12]], first[1, [0, 1]] = True, True
        places = [tiny.positions(LENGTHS[:3])[0], tiny.positions(LENGTHS[3:])[0]]
        batch = {"input_ids": ids, "labels": labels.masked_fill(first, -100), "packed_seq_lengths": lengths}
        if positions:
            batch["position_ids"] = torch.nn.utils.rnn.pad_sequence(places, batch_first=True)
        return batch

    return collate


def one_row(data: list[dict[str, Any]], lengths: Any, positions: bool) -> Callable[[Any], dict[str, Any]]:
    def collate(_: Any) -> dict[str, Any]:
        batch = DataCollatorWithFlattening(return_position_ids=True)([dict(each) for each in data])
        if not positions:
            del batch["position_ids"]
        return {**batch, "packed_seq_lengths": lengths}

    return collate


AS = {
    "list": list,
    "int32": lambda lengths: torch.tensor(lengths, dtype=torch.int32),
    "int64": torch.tensor,
}


@pytest.mark.parametrize("positions", [False, True], ids=["alone", "with positions"])
@pytest.mark.parametrize(("name", "kind"), [*((DENSE, kind) for kind in AS), *((name, "int32") for name in NAMES[1:])])
def test_packed_seq_lengths(name: str, kind: str, positions: bool, patched_once: None, tmp_path: Path) -> None:
    model, data = build(name), features()
    expected = alone(model, data)
    collate = one_row(data, AS[kind](LENGTHS), positions)
    assert_same(Step(model, data, tmp_path, collate).run(), expected)


@pytest.mark.parametrize("positions", [False, True], ids=["alone", "with positions"])
def test_packed_seq_lengths_of_several_rows(positions: bool, patched_once: None, tmp_path: Path) -> None:
    model, data = build(DENSE), features()[:5]
    rows = data[:3], [data[3], data[4]]
    assert sum(len(each["input_ids"]) for each in rows[0]) == 21
    expected = alone(model, data)
    # Row by row, the padding of the first row included, as it has no other place in a flat list.
    collate = rows_of(data, torch.tensor([7, 5, 9, 10, 1, 30], dtype=torch.int32), positions)
    assert_same(Step(model, data, tmp_path, collate).run(), expected)


@pytest.mark.parametrize(
    ("lengths", "positions", "message"),
    [
        ([7, 6, 8, 1, 30], True, "position_ids and packed_seq_lengths contradict each other"),
        ([7, 5, 9, 31, 1], False, "describes 53 tokens|spans two rows|packed_seq_lengths"),
        ([7, 5, 0, 40], False, "each length must be at least 1"),
        (torch.tensor([7.0, 5.0, 40.0]), False, "must hold integers"),
    ],
    ids=["other starts", "too many tokens", "empty document", "floats"],
)
def test_packed_seq_lengths_that_cannot_be_right(
    lengths: Any, positions: bool, message: str, patched_once: None, tmp_path: Path
) -> None:
    model, data = build(DENSE), features()
    step = Step(model, data, tmp_path, one_row(data, lengths, positions))
    with pytest.raises((BoundariesError, IsolationError), match=message):
        step.run()
    assert step.losses == []


# ---- what slices batches -------------------------------------------------------------------------------------------


def first_share(batch: dict[str, Any]) -> dict[str, Any]:
    """What the first of two replicas of DataParallel gets: tensors are cut along their first dimension, numbers are copied."""
    return {name: value.chunk(2)[0] if isinstance(value, torch.Tensor) else value for name, value in batch.items()}


@pytest.mark.parametrize("form", [form for form in MARKED if form["return_flash_attn_kwargs"]], ids=_named)
@pytest.mark.parametrize("name", NAMES)
def test_cumulative_lengths_that_a_replica_gets_a_part_of_are_an_error(
    name: str, form: dict[str, bool], patched_once: None
) -> None:
    model = build(name)
    batch = DataCollatorWithFlattening(**form)(features())
    share = first_share(batch)
    assert share["input_ids"].shape == batch["input_ids"].shape
    assert len(share["cu_seq_lens_q"]) == 3
    with pytest.raises((IsolationError, BoundariesError)):
        model(**share, use_cache=False)


@pytest.mark.parametrize("positions", [False, True], ids=["alone", "with positions"])
def test_packed_seq_lengths_that_a_dispatcher_cuts_are_an_error(positions: bool, patched_once: None, tmp_path: Path) -> None:
    data = features()
    stream = datasets.Dataset.from_list(data).to_iterable_dataset()
    step = Step(build(DENSE), stream, tmp_path, one_row(data, torch.tensor(LENGTHS), positions))
    with pytest.raises(IsolationError):
        step.run()
    assert step.losses == []
