"""Faults that people have reported of trainers that pack, each with the real packages."""

from __future__ import annotations

import copy
import functools
import io
import pickle
import subprocess
import sys
import tokenize
from pathlib import Path
from typing import Any

import accelerate
import datasets
import peft
import pytest
import tiny
import torch
import transformers
import trl
import trl.trainer.sft_trainer as sft
from packaging.specifiers import SpecifierSet
from test_sft import LENGTHS, build_without_router_loss, byte_tokenizer, token_lists, trainer

import patchwork
from patchwork import AnchorMissing, Patch, required, rewrite
from patchwork.packing import Boundaries
from patchwork.packing.trainers.dataset_packing import packer_for_training
from patchwork.patches import PATCHES

# Without experts where there is one: some releases of TRL add the router's auxiliary loss whatever the config says.
HYBRID = "qwen3_5" if "qwen3_5" in tiny.recurrent_names() else "qwen3_next"
TEMPLATE = (
    "{% for message in messages %}{% if message['role'] == 'assistant' %}{% generation %}{{ message['content'] + '!' }}"
    "{% endgeneration %}{% else %}{{ message['content'] + '?' }}{% endif %}{% endfor %}"
)


def packed_batch(folder: Path, dataset: Any = None, **settings: Any) -> dict[str, Any]:
    made = trainer(tiny.build("llama"), folder, dataset, packing=True, per_device_train_batch_size=10, max_steps=1, **settings)
    return dict(next(iter(made.get_train_dataloader())))


# ---- before anything is applied: the order of the tests is that of the file ---------------------------------------


def test_nothing_packed_is_as_without_patches(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """48. Constructing with default arguments, and a padded step, bit by bit."""
    monkeypatch.setenv("PATCHWORK_CACHE_DIR", str(tmp_path / "cache"))

    def steps() -> tuple[Any, list[torch.Tensor]]:
        made = trainer(build_without_router_loss(HYBRID), tmp_path, max_steps=2, logging_steps=1, gradient_checkpointing=False)
        made.train()
        return [entry.get("loss") for entry in made.state.log_history], [each.detach() for each in made.model.parameters()]

    losses, parameters = steps()
    patchwork.apply()
    try:
        ours, patched = steps()
        default = trl.SFTTrainer(
            tiny.build("llama"),
            trl.SFTConfig(str(tmp_path), use_cpu=True),
            train_dataset=datasets.Dataset.from_dict({"input_ids": token_lists()}),
            processing_class=byte_tokenizer(),
        )
    finally:
        patchwork.revert()
    assert ours == losses
    assert all(torch.equal(one, two) for one, two in zip(patched, parameters, strict=True))
    assert not default.args.packing


def test_of_two_collators_of_one_name_only_trls_is_patched(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """46."""
    monkeypatch.setenv("PATCHWORK_CACHE_DIR", str(tmp_path / "cache"))
    theirs, ours = transformers.DataCollatorForLanguageModeling.torch_call, sft.DataCollatorForLanguageModeling.torch_call
    before = theirs.__code__, ours.__code__
    patchwork.apply()
    try:
        assert theirs.__code__ is before[0]
        assert ours.__code__ is not before[1]
    finally:
        patchwork.revert()
    assert ours.__code__ is before[1]


@pytest.mark.parametrize("strict", [True, False])
def test_of_many_patches_one_fails(strict: bool, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """45. Strict: it is raised, and nothing is in force; otherwise it is told, and the others are."""
    monkeypatch.setenv("PATCHWORK_CACHE_DIR", str(tmp_path / "cache"))
    fails = Patch(
        name="own.fails",
        target="trl.trainer.sft_trainer:SFTTrainer.log",
        versions={"trl": ">=0.22.2"},
        reason="It is not there.",
        edits=[required("nobody.wrote(this)").remove()],
    )
    stock = sft.DataCollatorForLanguageModeling.torch_call.__code__
    try:
        if strict:
            with pytest.raises(AnchorMissing, match=r"own\.fails"):
                patchwork.apply("trl.sft.*", fails)
            assert sft.DataCollatorForLanguageModeling.torch_call.__code__ is stock
            return
        report = patchwork.apply("trl.sft.*", fails, strict=False)
        states = {outcome.patch: outcome.state for outcome in report.outcomes}
        assert states["own.fails"] == "failed"
        assert states["trl.sft.guard"] == states["trl.sft.preparation"] == "applied"
        assert [outcome.patch for outcome in report.outcomes if outcome.error is not None] == ["own.fails"]
        assert sft.DataCollatorForLanguageModeling.torch_call.__code__ is not stock
    finally:
        patchwork.revert()


def commented(source: str) -> str:
    """The source with a comment at the end of each logical line that has none."""
    lines = source.splitlines(keepends=True)
    tokens = list(tokenize.generate_tokens(io.StringIO(source).readline))
    comments = {token.start[0] for token in tokens if token.type == tokenize.COMMENT}
    for token in tokens:
        row = token.start[0]
        if token.type == tokenize.NEWLINE and row not in comments:
            lines[row - 1] = lines[row - 1].rstrip("\n") + "  # noqa\n"
    return "".join(lines)


@pytest.mark.parametrize("module", ["trl.trainer.sft_trainer", "trl.data_utils"])
def test_comments_on_the_lines_of_upstream_do_not_matter(module: str) -> None:
    """50."""
    source = Path(sys.modules[module].__file__ or "").read_text(encoding="utf-8")
    there = commented(source)
    assert there.count("# noqa") > 200
    tried = 0
    for patch in PATCHES:
        if patch.module != module or trl.__version__ not in SpecifierSet(patch.versions["trl"]):
            continue
        plain = rewrite(source, patch)
        edits = [(edit.action, edit.line) for edit in rewrite(there, patch).edits]
        assert edits == [(edit.action, edit.line) for edit in plain.edits]
        tried += bool(edits)
    assert tried


# ---- boundaries of a batch ----------------------------------------------------------------------------------------


@pytest.mark.parametrize("stream", [False, True], ids=["dataset", "stream"])
@pytest.mark.usefixtures("patched_once")
def test_the_first_batch_of_the_trainer_has_a_boundary_for_each_document(stream: bool, tmp_path: Path) -> None:
    """25."""
    rows = datasets.Dataset.from_dict({"input_ids": token_lists(), "topic": ["a"] * len(LENGTHS)})
    batch = packed_batch(tmp_path, rows.to_iterable_dataset() if stream else rows)
    assert sorted(batch["cu_seq_lens_q"].diff().tolist()) == sorted(LENGTHS)


@pytest.mark.usefixtures("patched_once")
def test_no_document_predicts_the_first_token_of_the_next(tmp_path: Path) -> None:
    """33."""
    rows = datasets.Dataset.from_dict({"input_ids": [[5, 6, 7], [8, 9]]})
    assert packed_batch(tmp_path, rows)["labels"].tolist() == [[-100, 6, 7, -100, 9]]


@pytest.mark.usefixtures("patched_once")
def test_a_batch_on_its_way_to_the_model_keeps_its_boundaries(tmp_path: Path) -> None:
    """31. What deals rows out is refused: test_trainer_guards, test_flattening."""
    batch = packed_batch(tmp_path)
    lengths = batch["cu_seq_lens_q"].diff().tolist()
    moved = accelerate.utils.send_to_device(batch, "cpu")
    for form in (moved, copy.deepcopy(batch), pickle.loads(pickle.dumps(batch))):
        assert form.keys() == batch.keys()
        assert form["cu_seq_lens_q"].diff().tolist() == lengths
        assert type(form["max_length_q"]) is int
        assert list(Boundaries.from_position_ids(form["position_ids"]).lengths) == lengths
    with pytest.raises(TypeError, match="int"):
        accelerate.utils.pad_across_processes(moved, dim=1)
    # Behind accelerate's own loader too.
    loader = accelerate.Accelerator(cpu=True).prepare(torch.utils.data.DataLoader([batch], batch_size=None))
    assert next(iter(loader))["cu_seq_lens_q"].diff().tolist() == lengths


def test_a_shard_that_begins_within_a_document() -> None:
    """32. Of one process, that is; test_trainer_guards has the refusal of context parallelism."""
    shard = Boundaries.from_position_ids(torch.tensor([[3, 4, 5, 0, 1]]))
    assert shard.model_kwargs()["seq_idx"].tolist() == [[0, 0, 0, 1, 1]]
    assert shard.cu_seqlens.tolist() == [0, 3, 5]


# ---- labels and steps ---------------------------------------------------------------------------------------------


def trainable(batches: Any) -> int:
    """Labels that count, the first token of a document not among them: nothing predicts it."""
    count = 0
    for batch in batches:
        labels = batch["labels"].clone()
        starts = batch["position_ids"] == 0 if "seq_idx" in batch else torch.arange(labels.shape[1]).expand_as(labels) == 0
        count += int((labels.masked_fill(starts, -100) != -100).sum())
    return count


@pytest.mark.parametrize("kind", ["completion_mask", "prompt and completion", "assistant_masks"])
@pytest.mark.usefixtures("patched_once")
def test_packing_trains_on_the_same_tokens(kind: str, tmp_path: Path) -> None:
    """34."""
    words, settings, total = ["ab", "cdefg", "h", "ijklmnop"], {}, 0
    if kind == "completion_mask":
        masks = [[0] * (len(tokens) // 2) + [1] * (len(tokens) - len(tokens) // 2) for tokens in token_lists()]
        columns = {"input_ids": token_lists(), "completion_mask": masks}
        settings, total = {"completion_only_loss": True}, sum(sum(mask[1:]) for mask in masks)
    elif kind == "prompt and completion":
        columns = {"prompt": words, "completion": words}
        total = sum(len(word) + 1 for word in words)  # and the end of the text
    else:
        says = [[{"role": "user", "content": word}, {"role": "assistant", "content": word}] for word in words]
        columns = {"messages": says}
        settings, total = {"assistant_only_loss": True}, sum(len(word) + 1 for word in words)
    tokenizer = byte_tokenizer()
    tokenizer.chat_template = TEMPLATE
    counts = {}
    for packing in (False, True):
        quiet = {"bf16": False, "use_cpu": True, "report_to": "none", "max_length": 64, "per_device_train_batch_size": 2}
        made = trl.SFTTrainer(
            model=tiny.build("llama", vocab_size=260),
            args=trl.SFTConfig(str(tmp_path), packing=packing, **quiet, **settings),
            train_dataset=datasets.Dataset.from_dict(columns),
            processing_class=copy.deepcopy(tokenizer),
        )
        counts[packing] = trainable(made.get_train_dataloader())
    assert counts == {False: total, True: total}


@pytest.mark.usefixtures("patched_once")
def test_steps_and_schedule_are_those_of_the_packed_rows(tmp_path: Path) -> None:
    """40."""
    made = trainer(
        tiny.build("llama"),
        tmp_path,
        packing=True,
        per_device_train_batch_size=1,
        gradient_accumulation_steps=2,
        num_train_epochs=1,
        logging_steps=1,
        learning_rate=1e-3,
        lr_scheduler_type="linear",
    )
    rows = len(made.train_dataset)
    assert rows < len(LENGTHS)
    steps = -(-rows // 2)
    made.train()
    assert made.state.global_step == made.state.max_steps == steps
    rates = [entry["learning_rate"] for entry in made.state.log_history if "learning_rate" in entry]
    assert rates == pytest.approx([1e-3 * (steps - step) / steps for step in range(steps)])
    assert made.lr_scheduler.get_last_lr()[0] == 0.0


# ---- models around the one that is trained ------------------------------------------------------------------------


@pytest.mark.usefixtures("patched_once")
def test_adapters_and_a_second_model_of_the_class(tmp_path: Path) -> None:
    """30. Trained with an adapter, and without it again; the second model has met no trainer. More: test_wrapping."""
    first, second = build_without_router_loss(HYBRID), build_without_router_loss(HYBRID)
    with torch.no_grad():
        row = tiny.documents([9])[0]
        before = second(input_ids=row, use_cache=False).logits
        adapter = peft.LoraConfig(target_modules=["o_proj", "out_proj"], task_type="CAUSAL_LM")
        wrapped = peft.get_peft_model(first, adapter)
    made = trainer(wrapped, tmp_path, packing=True, max_steps=2, learning_rate=1e-2, gradient_checkpointing=False)
    made.train()
    with torch.no_grad():
        base = wrapped.get_base_model()
        forward = functools.partial(type(base).forward, base)  # TRL puts its own on the instance
        assert not torch.equal(forward(input_ids=row, use_cache=False).logits, before)
        with wrapped.disable_adapter():
            assert torch.equal(forward(input_ids=row, use_cache=False).logits, before)
        assert torch.equal(second(input_ids=row, use_cache=False).logits, before)


# ---- how it is reached --------------------------------------------------------------------------------------------


@pytest.mark.usefixtures("patched_once")
def test_each_name_of_a_patched_function_is_patched() -> None:
    """44."""
    names = (trl.data_utils.pack_dataset, sft.pack_dataset, getattr(trl, "pack_dataset", sft.pack_dataset))
    rows = datasets.Dataset.from_dict({"input_ids": [[1, 2, 3], [4, 5]]})
    for pack in names:
        assert "seq_lengths" in packer_for_training(pack)(rows, 4, "wrapped").column_names
    classes = (trl.SFTTrainer, trl.trainer.SFTTrainer, sft.SFTTrainer)
    assert all("guarded" in each.__init__.__code__.co_names for each in classes)


_PICKLED = """
import pickle, sys
{lines}
collator = sys.modules["trl.trainer.sft_trainer"].DataCollatorForLanguageModeling(pad_token_id=0, padding_free=True)
things = SFTTrainer, SFTConfig(packing=True, use_cpu=True, bf16=False, output_dir={folder!r}), collator
trainer, config, collator = pickle.loads(pickle.dumps(things))
assert trainer is SFTTrainer and config.packing
example = {{"input_ids": [5, 6, 7], "labels": [5, 6, 7], "seq_lengths": [2, 1]}}
print(collator([example])["seq_idx"].tolist())
"""


@pytest.mark.parametrize("late", [False, True], ids=["apply first", "import first"])
def test_what_was_imported_before_or_after_is_pickled(late: bool, tmp_path: Path) -> None:
    """47. The losses of both orders: test_sft."""
    lines = ["import patchwork; patchwork.apply()", "from trl import SFTConfig, SFTTrainer"]
    script = _PICKLED.format(lines="\n".join(reversed(lines) if late else lines), folder=str(tmp_path))
    done = subprocess.run(
        [sys.executable, "-W", "ignore", "-c", script], capture_output=True, text=True, cwd=tmp_path, check=False
    )
    assert done.stdout.splitlines()[-1:] == ["[[0, 0, 1]]"], done.stderr[-2000:]


@pytest.mark.parametrize("trusted", [True, False])
@pytest.mark.usefixtures("patched_once")
def test_a_name_is_asked_about_as_it_is_loaded(trusted: bool, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """49. What cannot be resolved: test_guard_names, test_trainer_guards."""
    settings = {"packing": True, "use_cpu": True, "bf16": False, "max_length": 64}
    if "trust_remote_code" in trl.SFTConfig.__dataclass_fields__:
        settings["trust_remote_code"] = trusted
    else:
        settings["model_init_kwargs"] = {"trust_remote_code": trusted}
    tiny.build("llama").save_pretrained(tmp_path / "model")
    byte_tokenizer().save_pretrained(tmp_path / "model")
    asked: list[bool] = []
    stock = transformers.AutoConfig.from_pretrained

    def from_pretrained(*given: Any, **named: Any) -> Any:
        asked.append(named.get("trust_remote_code"))
        return stock(*given, **named)

    class Loading(Exception):
        pass

    def load(*_: Any, **named: Any) -> None:
        raise Loading(named.get("trust_remote_code"))

    monkeypatch.setattr(transformers.AutoConfig, "from_pretrained", from_pretrained)
    monkeypatch.setattr(transformers.LlamaForCausalLM, "from_pretrained", load)
    rows = datasets.Dataset.from_dict({"input_ids": token_lists()})
    with pytest.raises(Loading) as loading:
        trl.SFTTrainer(str(tmp_path / "model"), trl.SFTConfig(str(tmp_path), **settings), train_dataset=rows)
    assert loading.value.args == (trusted,)
    assert asked[0] is trusted
