"""Calls of the model beside the loss, while a packed batch is there: calls of their own equal stock's, lost boundaries raise."""

from __future__ import annotations

import threading
from collections.abc import Callable
from pathlib import Path
from typing import Any

import datasets
import pytest
import tiny
import torch
import transformers
from test_flattening import build
from transformers import DataCollatorWithFlattening

from patchwork.packing import IsolationError, restore

# The second is hard: the first document is all but the last token of its batch.
BATCHES = {"40 and 8": (40, 8), "40 and 1": (40, 1), "5, 30 and 7": (5, 30, 7), "1 and 40": (1, 40)}
EVENTS = ("on_step_begin", "on_substep_end", "on_pre_optimizer_step", "on_step_end", "on_log", "on_epoch_end", "on_train_end")

pytestmark = pytest.mark.usefixtures("patched_once")
Call = Callable[[Any, torch.Tensor], torch.Tensor]


def rows(lengths: tuple[int, ...]) -> list[dict[str, Any]]:
    return [{"input_ids": document[0].tolist()} for document in tiny.documents(lengths)]


def forwarded(model: Any, document: torch.Tensor) -> torch.Tensor:
    return model(input_ids=document, use_cache=False).logits


def embedded(model: Any, document: torch.Tensor) -> torch.Tensor:
    return model(inputs_embeds=model.get_input_embeddings()(document), use_cache=False).logits


def generated(model: Any, document: torch.Tensor) -> torch.Tensor:
    return model.generate(document, max_new_tokens=3, do_sample=False, pad_token_id=0)


def generated_without_cache(model: Any, document: torch.Tensor) -> torch.Tensor:
    return model.generate(document, max_new_tokens=3, do_sample=False, pad_token_id=0, use_cache=False)


CALLS = (forwarded, embedded, generated, generated_without_cache)


def evaluating(model: Any, call: Call, document: torch.Tensor) -> torch.Tensor:
    training = model.training
    model.eval()
    with torch.no_grad():
        found = call(model, document).clone()
    model.train(training)
    return found


def assert_stock(model: Any, found: list[tuple[Call, torch.Tensor, torch.Tensor]]) -> None:
    """What calls returned is, to the bit, what they return without patchwork."""
    assert found
    restore(model)
    for call, document, output in found:
        assert torch.equal(output, evaluating(model, call, document))


def trainer(model: Any, lengths: tuple[int, ...], folder: Path, kind: Any = transformers.Trainer, **given: Any) -> Any:
    settings = {"max_steps": 2, "learning_rate": 0.0, "logging_steps": 1, **given.pop("settings", {})}
    arguments = transformers.TrainingArguments(
        output_dir=str(folder),
        per_device_train_batch_size=len(lengths),
        per_device_eval_batch_size=len(lengths),
        **{"report_to": "none", "save_strategy": "no", "use_cpu": True, "disable_tqdm": True},
        **settings,
    )
    data = datasets.Dataset.from_list(rows(lengths))
    ordered = {"_get_train_sampler": lambda self, *_: torch.utils.data.SequentialSampler(self.train_dataset)}
    kind = type(kind.__name__, (kind,), ordered)
    return kind(model, arguments, DataCollatorWithFlattening(), train_dataset=data, eval_dataset=data, **given)


class Calling(transformers.TrainerCallback):
    """Calls the model at each event of a trainer with each document of its batch."""

    def __init__(self, documents: list[torch.Tensor]) -> None:
        self.documents, self.events, self.found = documents, set[str](), []

    def __getattribute__(self, name: str) -> Any:
        if name not in EVENTS:
            return super().__getattribute__(name)

        def event(*_: Any, model: Any, **__: Any) -> None:
            self.events.add(name)
            for document in self.documents:
                self.found += [(call, document, evaluating(model, call, document)) for call in CALLS]

        return event


@pytest.mark.parametrize("lengths", list(BATCHES.values()), ids=list(BATCHES))
def test_callbacks_call_the_model_with_documents_of_the_batch(lengths: tuple[int, ...], tmp_path: Path) -> None:
    model, calling = build("llama"), Calling(tiny.documents(lengths))
    trainer(model, lengths, tmp_path, callbacks=[calling]).train()
    assert {"on_step_end", "on_log", "on_pre_optimizer_step"} <= calling.events
    assert_stock(model, calling.found)


@pytest.mark.parametrize("name", ["llama", "qwen3_next"])
def test_callbacks_may_call_it_with_the_whole_row_as_one_text(name: str, tmp_path: Path) -> None:
    """The step is over then, and one row without boundaries is one document."""
    model, calling = build(name), Calling([torch.cat(tiny.documents((40, 8)), 1)])
    trainer(model, (40, 8), tmp_path, callbacks=[calling]).train()
    assert_stock(model, calling.found)


@pytest.mark.parametrize("lengths", list(BATCHES.values()), ids=list(BATCHES))
def test_a_loss_calls_the_model_with_documents_of_its_batch(lengths: tuple[int, ...], tmp_path: Path) -> None:
    found: list[Any] = []

    class Own(transformers.Trainer):
        def compute_loss(self, model: Any, inputs: Any, *args: Any, **kwargs: Any) -> Any:
            for document in [*inputs["input_ids"].split(lengths, 1), *tiny.documents(lengths)]:  # parts of the batch, and copies
                if document.shape[1] > 1:
                    found.extend((call, document, evaluating(model, call, document)) for call in CALLS)
            return super().compute_loss(model, inputs, *args, **kwargs)

    model = build("llama")
    trainer(model, lengths, tmp_path, Own).train()
    assert_stock(model, found)


def test_a_loss_generates_from_several_documents_of_its_batch(tmp_path: Path) -> None:
    lengths, found = (20, 8, 13), []
    ids = torch.zeros(3, 20, dtype=torch.long)
    mask = torch.zeros_like(ids)
    for number, document in enumerate(tiny.documents(lengths)):
        ids[number, 20 - document.shape[1] :], mask[number, 20 - document.shape[1] :] = document[0], 1

    def padded(model: Any, ids: torch.Tensor) -> torch.Tensor:
        return model.generate(ids, attention_mask=mask, max_new_tokens=3, do_sample=False, pad_token_id=0)

    class Own(transformers.Trainer):
        def compute_loss(self, model: Any, inputs: Any, *args: Any, **kwargs: Any) -> Any:
            found.append((padded, ids, evaluating(model, padded, ids)))
            return super().compute_loss(model, inputs, *args, **kwargs)

    model = build("llama")
    trainer(model, lengths, tmp_path, Own).train()
    assert_stock(model, found)


@pytest.mark.parametrize("batched", [False, True])
def test_metrics_call_the_model_with_documents_of_the_last_batch(batched: bool, tmp_path: Path) -> None:
    lengths, found = (40, 1), []
    model = build("llama")

    def metrics(*_: Any, compute_result: bool = True, **__: Any) -> dict[str, float]:
        row = torch.cat(tiny.documents(lengths), 1)
        found.extend((call, each, evaluating(model, call, each)) for each in (*tiny.documents(lengths), row) for call in CALLS)
        return {"calls": float(len(found))}

    settings = {"eval_strategy": "steps", "eval_steps": 1, "batch_eval_metrics": batched}
    trainer(model, lengths, tmp_path, compute_metrics=metrics, settings=settings).train()
    assert_stock(model, found)


# ---- what has lost its boundaries ---------------------------------------------------------------------------------

LOST = {
    "the ids": lambda ids: ids,
    "a copy": lambda ids: ids.clone(),
    "as int32": lambda ids: ids.int(),
    "all but the last": lambda ids: ids[:, :-1],
    "all but the first": lambda ids: ids[:, 1:],
    "a copy of all but the first": lambda ids: ids[:, 1:].clone(),
    "all but both ends": lambda ids: ids[:, 1:-1],
    "cut short": lambda ids: ids[:, :12],
    "a copy cut short": lambda ids: ids[:, :12].clone(),
    "a chunk": lambda ids: ids[:, 8:14],
    "twice": lambda ids: ids.repeat(2, 1),
}


def losing(call: Callable[[Any, Any], Any]) -> type[transformers.Trainer]:
    class Losing(transformers.Trainer):
        def compute_loss(self, model: Any, inputs: Any, *_: Any, **__: Any) -> Any:
            return call(model, inputs["input_ids"]).logits.sum()

    return Losing


@pytest.mark.parametrize("embeds", [False, True], ids=["ids", "embeddings"])
@pytest.mark.parametrize("part", list(LOST))
def test_a_part_across_a_border_raises(part: str, embeds: bool, tmp_path: Path) -> None:
    def call(model: Any, ids: torch.Tensor) -> Any:
        made = LOST[part](ids)
        return model(inputs_embeds=model.get_input_embeddings()(made)) if embeds else model(input_ids=made)

    if embeds and part in ("a chunk", "all but both ends", "twice"):
        pytest.skip("embeddings are compared with whole rows, their starts and their ends")
    with pytest.raises(IsolationError, match=r"has 3 documents and says so .* called with its tokens alone"):
        trainer(build("llama"), (9, 4, 9), tmp_path, losing(call)).train()


@pytest.mark.parametrize("last", [True, False], ids=["all but the first", "all but the last"])
def test_the_hard_batch_raises_where_the_border_is_crossed(last: bool, tmp_path: Path) -> None:
    """40 tokens and 1: all but the last are the first document, all but the first are not."""
    made = trainer(build("llama"), (40, 1), tmp_path, losing(lambda model, ids: model(ids[:, 1:] if last else ids[:, :-1])))
    if last:
        with pytest.raises(IsolationError, match="has 2 documents"):
            made.train()
    else:
        made.train()


def test_embeddings_with_noise_are_known(tmp_path: Path) -> None:
    def call(model: Any, ids: torch.Tensor) -> Any:
        embeddings = model.get_input_embeddings()(ids)
        return model(inputs_embeds=embeddings + 0.1 * embeddings.std() * torch.randn_like(embeddings))

    with pytest.raises(IsolationError, match="has 2 documents"):
        trainer(build("llama"), (9, 9), tmp_path, losing(call)).train()
    other = torch.cat(tiny.documents((9, 9), seed=5), 1)  # of that shape, of another text
    trainer(build("llama"), (9, 9), tmp_path, losing(lambda model, _: model(inputs_embeds=model.get_input_embeddings()(other))))


def test_a_table_that_cannot_be_read_leaves_the_shape(tmp_path: Path) -> None:
    def call(model: Any, ids: torch.Tensor) -> Any:
        embeddings = model.get_input_embeddings()(ids)
        model.model.get_input_embeddings = lambda: torch.nn.Identity()
        return model(inputs_embeds=embeddings)

    with pytest.raises(IsolationError, match="has 2 documents"):
        trainer(build("llama"), (9, 9), tmp_path, losing(call)).train()


def test_a_batch_of_evaluation_that_is_lost_raises_too(tmp_path: Path) -> None:
    made = trainer(build("llama"), (9, 9), tmp_path, losing(lambda model, ids: model(ids)))
    with pytest.raises(IsolationError, match="has 2 documents"):
        made.evaluate()


# ---- threads, and trainers within trainers ------------------------------------------------------------------------


def test_an_evaluation_within_a_step_leaves_the_batch_of_that_step(tmp_path: Path) -> None:
    def call(model: Any, ids: torch.Tensor) -> Any:
        inner.evaluate()
        return model(ids)

    model = build("llama")
    inner = trainer(model, (3, 3), tmp_path / "inner")
    with pytest.raises(IsolationError, match="has 2 documents"):
        trainer(model, (9, 9), tmp_path, losing(call)).train()


def test_another_batch_that_a_loss_prepares_is_remembered_beside_the_first(tmp_path: Path) -> None:
    class Auxiliary(transformers.Trainer):
        def compute_loss(self, model: Any, inputs: Any, *_: Any, **__: Any) -> Any:
            other = self._prepare_inputs(DataCollatorWithFlattening()(rows((4, 4))))
            model(**other)
            return model(inputs["input_ids"]).logits.sum()

    with pytest.raises(IsolationError, match="has 2 documents"):
        trainer(build("llama"), (9, 9), tmp_path, Auxiliary).train()


def test_two_threads_know_of_their_own_batch_alone(tmp_path: Path) -> None:
    """One is in the step of a packed batch, the other forwards the same tokens as one text, then loses a batch of its own."""
    inside, done = threading.Event(), threading.Event()
    model, errors = build("llama"), []

    class Waiting(transformers.Trainer):
        def compute_loss(self, model: Any, *args: Any, **kwargs: Any) -> Any:
            inside.set()
            assert done.wait(60)
            return super().compute_loss(model, *args, **kwargs)

    made = trainer(build("llama"), (9, 9), tmp_path / "one", Waiting, settings={"max_steps": 1})
    losing_one = trainer(model, (6, 3), tmp_path / "two", losing(lambda model, ids: model(ids)))

    def first() -> None:
        try:
            made.train()
        except BaseException as error:
            errors.append(error)

    thread = threading.Thread(target=first)
    thread.start()
    try:
        assert inside.wait(60)
        row = torch.cat(tiny.documents((9, 9)), 1)
        found = [(call, row, evaluating(model, call, row)) for call in CALLS]
        with pytest.raises(IsolationError, match="has 2 documents"):
            losing_one.train()
    finally:
        done.set()
        thread.join()
    assert errors == []
    assert_stock(model, found)


def test_a_step_that_fails_leaves_nothing_behind(tmp_path: Path) -> None:
    kept: list[Any] = []

    class Failing(transformers.Trainer):
        def compute_loss(self, model: Any, inputs: Any, *_: Any, **__: Any) -> Any:
            kept.append(inputs)
            raise KeyError("the user's own")

    model = build("llama")
    with pytest.raises(KeyError):
        trainer(model, (9, 9), tmp_path, Failing).train()
    row = kept[0]["input_ids"]
    assert_stock(model, [(call, row, evaluating(model, call, row)) for call in CALLS])


def test_a_loop_of_ones_own_is_watched_until_its_next_batch(tmp_path: Path) -> None:
    model = build("llama")
    made = trainer(model, (9, 9), tmp_path)
    batch = made._prepare_inputs(DataCollatorWithFlattening()(rows((9, 9))))
    with pytest.raises(IsolationError, match="has 2 documents"):
        model(batch["input_ids"])
    made._prepare_inputs(DataCollatorWithFlattening()(rows((3,))))
    model(batch["input_ids"])
