"""Trains the demo's model with TRL, packed and padded, and measures its speed.

One short SFTTrainer run per way of batching, from the same weights, over the same documents, a step of warm-up left
out of the clock. Tokens are counted in the batches that reach the model: padding is no token.
"""

from __future__ import annotations

import logging
import time
import warnings
from collections.abc import Callable
from contextlib import contextmanager
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any

from ..packing.argument_names import BOUNDARIES
from .demo_data import DemoError, byte_tokenizer

if TYPE_CHECKING:
    from collections.abc import Iterator

    from torch import Tensor
    from transformers import PreTrainedModel, PreTrainedTokenizerBase

ROW_LENGTH = 2048
LONGEST_DOCUMENT = 1024
FEWEST_TOKENS = 4 * ROW_LENGTH  # a shorter text is read several times: a step of warm-up, and some to time
SEED = 0
# What TRL passes beside `position_ids`. A stock model on the CPU refuses them or ignores them, by release.
BOUNDARY_ARGUMENTS = (*BOUNDARIES, "seq_lengths")
NOISY = ("accelerate", "datasets", "huggingface_hub", "torch", "transformers", "trl")


@dataclass(frozen=True)
class Subject:
    """The model under test: `build()` gives a new one with the same weights at each call."""

    name: str
    tokenizer: PreTrainedTokenizerBase
    build: Callable[[], PreTrainedModel]


@dataclass
class TrainingRun:
    """What one training run took. Counts leave the warm-up step out; losses do not."""

    steps: int = 0
    tokens: int = 0  # real ones
    slots: int = 0  # tokens and padding
    seconds: float = 0.0
    losses: list[float] = field(default_factory=list)
    packed: bool = False  # whether the batches were rows of several documents, whatever was asked for

    @property
    def tokens_per_second(self) -> float:
        return self.tokens / self.seconds

    @property
    def padding(self) -> float:
        """The share of the batches that was padding, 0 to 1."""
        return 1 - self.tokens / self.slots

    def as_dict(self) -> dict[str, Any]:
        """Plain values, for JSON."""
        return asdict(self) | {"tokens_per_second": self.tokens_per_second, "padding": self.padding}


def tiny_qwen() -> Subject:
    """Qwen3.5 with random weights: three gated delta nets and one attention layer, about 2 million parameters.

    The weights have a standard deviation of 0.1: at the usual 0.02 a leak hides in the noise. Releases of
    transformers before Qwen3.5 get its predecessor, Qwen3-Next, which has the same token mixer.
    """
    import torch
    import transformers

    tokenizer = byte_tokenizer()
    shape: dict[str, Any] = {
        "vocab_size": len(tokenizer),
        "hidden_size": 192,
        "intermediate_size": 512,
        "num_hidden_layers": 4,
        "layer_types": ["linear_attention"] * 3 + ["full_attention"],
        "num_attention_heads": 4,
        "num_key_value_heads": 2,
        "head_dim": 48,
        "linear_num_key_heads": 4,
        "linear_num_value_heads": 8,
        "linear_key_head_dim": 32,
        "linear_value_head_dim": 32,
        "max_position_embeddings": ROW_LENGTH,
        "initializer_range": 0.1,
        "use_cache": False,
        "eos_token_id": tokenizer.eos_token_id,
        "pad_token_id": tokenizer.pad_token_id,
    }
    if hasattr(transformers, "Qwen3_5ForCausalLM"):
        name, model_class = "Qwen3.5", transformers.Qwen3_5ForCausalLM
        config = transformers.Qwen3_5TextConfig(**shape)
    else:
        name, model_class = "Qwen3-Next", transformers.Qwen3NextForCausalLM
        config = transformers.Qwen3NextConfig(**shape, mlp_only_layers=[0, 1, 2, 3])

    def build() -> PreTrainedModel:
        torch.manual_seed(SEED)
        return model_class(config)

    return Subject(f"a tiny {name} with random weights", tokenizer, build)


def load(name: str) -> Subject:
    """A pretrained model, by its name on the hub or a folder. Raises DemoError where there is none to load."""
    from transformers import AutoConfig, AutoModelForCausalLM, AutoTokenizer

    if not name.strip():
        raise DemoError("--model is empty. Give a model's name on the hub, or a folder with config.json.")
    try:
        config = AutoConfig.from_pretrained(name)
        tokenizer = AutoTokenizer.from_pretrained(name)
    except (OSError, ValueError) as error:
        reason = str(error).strip().splitlines()
        raise DemoError(
            f"--model {name}: cannot be loaded ({reason[0] if reason else type(error).__name__}). "
            "Give a model's name on the hub (it must be reachable or cached), or a folder with config.json and a tokenizer."
        ) from error
    vocabulary = getattr(config.get_text_config(), "vocab_size", None)
    if not len(tokenizer):
        raise DemoError(f"--model {name}: has no tokenizer. Save one beside the model: tokenizer.save_pretrained(folder).")
    if vocabulary is not None and len(tokenizer) > vocabulary:
        raise DemoError(
            f"--model {name}: its tokenizer has {len(tokenizer)} tokens, its embedding {vocabulary}. Give the tokenizer it was "
            "trained with, or resize the embedding."
        )
    if tokenizer.pad_token_id is None:
        tokenizer.pad_token = tokenizer.eos_token

    def build() -> PreTrainedModel:
        try:
            model: PreTrainedModel = AutoModelForCausalLM.from_pretrained(name, dtype="float32")
        except (OSError, ValueError) as error:
            raise DemoError(f"--model {name}: has no weights of a causal language model ({error}).") from error
        model.config.use_cache = False
        return model

    return Subject(name, tokenizer, build)


def train(
    model: PreTrainedModel,
    subject: Subject,
    rows: list[list[int]],
    folder: Path,
    *,
    packing: bool,
    pass_boundaries: bool = True,
    seconds: float,
    on_tokens: Callable[[int], object] = lambda tokens: None,
) -> TrainingRun:
    """SFTTrainer over `rows` (token ids of each document) once, or until FEWEST_TOKENS, ended early after `seconds`.

    A packed row holds ROW_LENGTH tokens; a padded batch holds as many documents as such a row does on average, so
    that a step sees as much text either way. `pass_boundaries=False` leaves the model with `position_ids` alone.
    """
    from datasets import Dataset
    from transformers import PrinterCallback
    from trl import SFTTrainer

    documents_per_row = max(2, round(ROW_LENGTH * len(rows) / sum(map(len, rows))))
    run = TrainingRun()

    class Measured(SFTTrainer):  # type: ignore[misc]
        def training_step(self, model: Any, inputs: dict[str, Any], *args: Any, **kwargs: Any) -> Tensor:
            run.packed = "position_ids" in inputs
            slots = inputs["input_ids"].numel()
            tokens = int(inputs["attention_mask"].sum()) if "attention_mask" in inputs else slots
            if not pass_boundaries:
                inputs = {name: value for name, value in inputs.items() if name not in BOUNDARY_ARGUMENTS}
            loss: Tensor = super().training_step(model, inputs, *args, **kwargs)
            clock.count(tokens, slots, float(loss))
            return loss

    clock = _Clock(run, seconds, on_tokens)
    trainer = Measured(
        model=model,
        args=_arguments(folder, packing, documents_per_row, -(-FEWEST_TOKENS // sum(map(len, rows)))),
        train_dataset=Dataset.from_dict({"input_ids": rows}),
        processing_class=subject.tokenizer,
    )
    trainer.remove_callback(PrinterCallback)
    trainer.add_callback(clock.callback())
    trainer.train()
    return run


def _arguments(folder: Path, packing: bool, documents_per_row: int, epochs: int) -> Any:
    """The trainer's arguments: float32 on a CPU, quiet, nothing saved."""
    import torch
    from trl import SFTConfig

    return SFTConfig(
        output_dir=str(folder),
        packing=packing,
        max_length=ROW_LENGTH if packing else LONGEST_DOCUMENT,
        per_device_train_batch_size=1 if packing else documents_per_row,
        learning_rate=1e-3,
        bf16=torch.cuda.is_available(),
        gradient_checkpointing=False,  # on by default; it would cost each of the runs a second forward
        num_train_epochs=epochs,
        seed=SEED,
        logging_strategy="no",
        save_strategy="no",
        report_to="none",
        disable_tqdm=True,
        dataloader_pin_memory=False,
    )


class _Clock:
    """Times whole optimizer steps, the first one left out, and ends the run when its time is over."""

    def __init__(self, run: TrainingRun, limit: float, on_tokens: Callable[[int], object]) -> None:
        self.run = run
        self.limit = limit
        self.on_tokens = on_tokens
        self.begin = 0.0
        self.tokens = self.slots = 0

    def count(self, tokens: int, slots: int, loss: float) -> None:
        self.tokens, self.slots = tokens, slots
        self.run.losses.append(loss)

    def callback(self) -> Any:
        from transformers import TrainerCallback

        clock = self

        class Steps(TrainerCallback):  # type: ignore[misc]
            def on_step_begin(self, args: Any, state: Any, control: Any, **kwargs: Any) -> None:
                clock.begin = time.perf_counter()

            def on_step_end(self, args: Any, state: Any, control: Any, **kwargs: Any) -> None:
                clock.step_ended(warm_up=state.global_step == 1)
                if clock.run.seconds > clock.limit:
                    control.should_training_stop = True

        return Steps()

    def step_ended(self, *, warm_up: bool) -> None:
        if not warm_up:
            self.run.steps += 1
            self.run.seconds += time.perf_counter() - self.begin
            self.run.tokens += self.tokens
            self.run.slots += self.slots
        self.on_tokens(self.tokens)


@contextmanager
def quiet() -> Iterator[None]:
    """Keep the libraries' progress bars, logs and warnings out of the report. patchwork's own warnings stay."""
    import datasets
    import transformers

    levels = {name: logging.getLogger(name).level for name in NOISY}
    bars = datasets.are_progress_bars_disabled()
    try:
        for name in NOISY:
            logging.getLogger(name).setLevel(logging.ERROR)
        datasets.disable_progress_bars()
        transformers.logging.disable_progress_bar()
        with warnings.catch_warnings():
            for name in NOISY:
                warnings.filterwarnings("ignore", module=rf"{name}\b")
            yield
    finally:
        for name, level in levels.items():
            logging.getLogger(name).setLevel(level)
        transformers.logging.enable_progress_bar()
        if not bars:
            datasets.enable_progress_bars()
