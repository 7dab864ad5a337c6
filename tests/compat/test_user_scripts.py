"""Scripts as users write them, from names in a cache, with nothing added but `patchwork.apply()`."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import datasets
import pytest
import tiny
import torch
import trl
from alone import LOGITS, assert_close
from packaging.version import Version
from test_sft import byte_tokenizer, loss_of_documents

HYBRID = "qwen3_5" if "qwen3_5" in tiny.recurrent_names() else "qwen3_next"
MODEL, DATA = "somebody/tiny-hybrid", "somebody/sentences"
COMMIT = "0123456789abcdef0123456789abcdef01234567"
TEXTS = [f"{word} " * (number + 2) for number, word in enumerate(("alpha", "beta", "gamma", "delta", "epsilon", "zeta", "eta"))]

APPLY = "import patchwork\npatchwork.apply()\n"
# A user's script; nothing in it knows of patchwork.
SCRIPT = f"""
from datasets import load_dataset
from trl import SFTConfig, SFTTrainer

sentences = load_dataset({DATA!r}, split="train")
training_args = SFTConfig(packing=True, eval_packing=True, use_cpu=True)
trainer = SFTTrainer({MODEL!r}, args=training_args, train_dataset=sentences, eval_dataset=sentences)
trainer.train()
"""
# TRL's own script, as a module that is run, in the process that has the patches.
COMMAND = """
import runpy, sys
import trl.trainer.sft_trainer as module
made = []
class Kept(module.SFTTrainer):
    def __init__(self, *given, **named):
        super().__init__(*given, **named)
        made.append(self)
import trl
trl.SFTTrainer = Kept
sys.argv = ["sft.py", {arguments}]
runpy.run_module("trl.scripts.sft", run_name="__main__")
trainer = made[0]
"""
REPORT = """
import json
batch = next(iter(trainer.get_train_dataloader()))
documents = int(batch["seq_idx"].max()) + 1 if "seq_idx" in batch else 0
losses = [entry["train_loss"] for entry in trainer.state.log_history if "train_loss" in entry]
if trainer.eval_dataset is not None:
    trainer.save_model("trained")
    losses = [trainer.evaluate()["eval_loss"]]
    import torch, transformers
    again = transformers.AutoModelForCausalLM.from_pretrained("trained")  # in float32
    with torch.no_grad():
        logits = again(**{name: value for name, value in batch.items() if name != "labels"}, use_cache=False).logits
    torch.save((batch["input_ids"], batch["seq_idx"], logits), "row.pt")
print(json.dumps({"documents": documents, "rows": len(batch["input_ids"]), "loss": losses[0]}))
"""


@pytest.fixture(scope="module")
def home(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A cache as huggingface_hub leaves it after a download, and a folder that is called as the data set is."""
    folder = tmp_path_factory.mktemp("home")
    repository = folder / "hub" / f"models--{MODEL.replace('/', '--')}"
    snapshot = repository / "snapshots" / COMMIT
    model().save_pretrained(snapshot)
    tokenizer = byte_tokenizer()
    tokenizer.chat_template = "{{ messages }}"  # without one, TRL 0.22's script fetches another model's
    tokenizer.save_pretrained(snapshot)
    (repository / "refs").mkdir()
    (repository / "refs" / "main").write_text(COMMIT)
    data = folder / "scripts" / DATA
    data.mkdir(parents=True)
    datasets.Dataset.from_dict({"text": TEXTS}).to_parquet(data / "train-00000-of-00001.parquet")
    return folder


def model() -> Any:
    """Without experts: the script computes in bfloat16, which turns some choices of a router."""
    dense = {"mlp_only_layers": [0, 1, 2, 3]} if "next" in HYBRID else {}
    return tiny.build(HYBRID, vocab_size=260, pad_token_id=0, eos_token_id=1, bos_token_id=None, **dense)


def ran(script: str, home: Path, folder: Path) -> subprocess.CompletedProcess[str]:
    environment = {
        name: value for name, value in os.environ.items() if not name.startswith(("HF_", "TRANSFORMERS_", "PATCHWORK_"))
    }
    environment |= {
        "HF_HOME": str(home),
        "HF_HUB_OFFLINE": "1",
        "PATCHWORK_CACHE_DIR": str(folder / "cache"),
        "WANDB_MODE": "disabled",
    }
    environment |= {"CUDA_VISIBLE_DEVICES": ""}
    path = home / "scripts" / f"{folder.name}.py"
    path.write_text(script)
    return subprocess.run(
        [sys.executable, path.name], capture_output=True, text=True, cwd=path.parent, env=environment, check=False
    )


def reported(done: subprocess.CompletedProcess[str]) -> dict[str, Any]:
    assert done.returncode == 0, done.stderr[-3000:]
    return dict(json.loads(done.stdout.splitlines()[-1]))


def alone(trained: Any) -> float:
    """The loss of the sentences, each forwarded by itself."""
    return loss_of_documents(trained, [byte_tokenizer()(text + "<eos>")["input_ids"] for text in TEXTS])


def test_a_packing_script_runs_unchanged(home: Path, tmp_path: Path) -> None:
    done = ran(APPLY + SCRIPT + REPORT, home, tmp_path)
    found = reported(done)
    assert (found["documents"], found["rows"]) == (len(TEXTS), 1)
    trained = type(model()).from_pretrained(home / "scripts" / "trained")
    assert abs(alone(trained) - alone(model())) > 1e-2
    # The script evaluates in bfloat16, which moves a loss by more than processors differ in float32: 3e-4 against 6e-3.
    with torch.autocast("cpu", dtype=torch.bfloat16):
        assert found["loss"] == pytest.approx(alone(trained), abs=5e-3)
    # A leak moves the mean by as little, where it is up for some tokens and down for others; not so each token's logits.
    row, numbers, packed = torch.load(home / "scripts" / "row.pt")
    lengths = numbers[0].bincount().tolist()
    with torch.no_grad():
        leaking = trained(input_ids=row, use_cache=False).logits.split(lengths, 1)[1:]
        expected = [trained(input_ids=part, use_cache=False).logits for part in row.split(lengths, 1)]
    for ours, theirs in zip(packed.split(lengths, 1), expected, strict=True):
        assert_close(ours, theirs)
    assert min(float((ours - theirs).abs().max()) for ours, theirs in zip(leaking, expected[1:], strict=True)) > 1e3 * LOGITS
    assert "PackingWarning" not in done.stderr


@pytest.mark.skipif(Version(trl.__version__) < Version("1.16"), reason="before 1.16 it trains, and leaks")
def test_the_script_does_not_run_without_patches(home: Path, tmp_path: Path) -> None:
    done = ran(SCRIPT + REPORT, home, tmp_path)
    assert done.returncode != 0
    assert "packed sequences apart" in done.stderr


def test_the_command_of_trl_packs(home: Path, tmp_path: Path) -> None:
    arguments = ["--model_name_or_path", MODEL, "--dataset_name", DATA, "--packing", "--output_dir", str(tmp_path / "out")]
    arguments += ["--max_steps", "1", "--report_to", "none", "--use_cpu", "--bf16", "false"]
    script = APPLY + COMMAND.format(arguments=", ".join(map(repr, arguments)))
    found = reported(ran(script + REPORT, home, tmp_path))
    assert (found["documents"], found["rows"]) == (len(TEXTS), 1)
    assert found["loss"] == pytest.approx(alone(model()), abs=1e-4)
    assert any((tmp_path / "out").glob("*.safetensors"))
