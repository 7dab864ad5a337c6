"""The command `patchwork demo`: shows on real text that packing leaks, that patchwork ends it, and what that costs.

A stock model is measured and trained, packed and padded; then `patchwork.apply()`, and a model built after it is
measured and trained in the same way. Nothing is assumed from one half for the other.
"""

from __future__ import annotations

import json
import tempfile
from collections.abc import Callable
from dataclasses import dataclass
from importlib.util import find_spec
from pathlib import Path
from typing import TYPE_CHECKING, Any

from rich.console import Console
from rich.markup import escape
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeElapsedColumn
from rich.table import Table

from .demo_data import FEWEST_DOCUMENTS, DemoError, read_documents, standard_library_docstrings, tokenize

if TYPE_CHECKING:
    import torch

    from ..engine.report import Report
    from ..packing import Decision, LeakReport
    from .demo_training import Subject, TrainingRun

NEEDED = ("torch", "transformers", "trl", "datasets", "tokenizers", "matplotlib")
TOKENS = 60_000
SECONDS = 25.0
SHOWN_DOCUMENTS = 6
SHOWN_LENGTHS = range(16, 65)  # short enough that what leaks across one document still shows in the next
STYLE: Any = {"title_justify": "left", "title_style": "bold", "box": None, "header_style": "", "pad_edge": False}


@dataclass(frozen=True)
class DemoResult:
    """What one demo measured. Where packing was refused, `after`, `exact` and `picture` are None."""

    model: str
    text: str
    documents: int
    tokens: int
    before: LeakReport
    after: LeakReport | None
    padded: TrainingRun
    stock: TrainingRun
    exact: TrainingRun | None
    decision: Decision
    patches: Report
    picture: Path | None

    @property
    def passed(self) -> bool:
        """Whether packing is exact here: allowed, measured, and really used by the trainer."""
        packed = self.exact is not None and self.exact.packed
        return packed and self.patches.ok and self.after is not None and self.after.passed

    def as_dict(self) -> dict[str, Any]:
        """Plain values, for JSON."""
        return {
            "passed": self.passed,
            "model": self.model,
            "text": self.text,
            "documents": self.documents,
            "tokens": self.tokens,
            "refused": list(self.decision.reasons),
            "leak": {"before": self.before.as_dict(), "after": self.after and self.after.as_dict()},
            "training": {
                "padded": self.padded.as_dict(),
                "packed_stock": self.stock.as_dict(),
                "packed_exact": self.exact and self.exact.as_dict(),
            },
            "patches": self.patches.as_dict(),
            "picture": self.picture and str(self.picture),
        }


def run(
    model: str | None,
    dataset: str | None,
    out: Path,
    console: Console,
    *,
    tokens: int = TOKENS,
    seconds: float = SECONDS,
) -> DemoResult:
    """Measure, train, print to `console`, and write `leak.png` and `demo.json` into the folder `out`.

    `model`: a name on the hub or a folder; None is a tiny Qwen3.5. `dataset`: a .jsonl or .txt file; None is the
    docstrings of the standard library. Each of the three training runs sees the same `tokens` tokens, and is ended
    after `seconds`. Applies all patches that fit and leaves them applied, so call it in a process of its own.
    Raises DemoError for input that cannot be used, before anything is patched.
    """
    _check_installed()
    text, documents = _documents(dataset)
    from .demo_training import LONGEST_DOCUMENT, load, quiet, tiny_qwen

    with quiet():
        subject = tiny_qwen() if model is None else load(model)
        rows = tokenize(documents, subject.tokenizer, LONGEST_DOCUMENT)
        if len(rows) < FEWEST_DOCUMENTS:
            raise DemoError(
                f"--model {subject.name}: its tokenizer finds tokens in {len(rows)} of {len(documents)} documents; packing needs "
                f"at least {FEWEST_DOCUMENTS}. Check the tokenizer that lies beside the model."
            )
        _check_folder(out)
        result = _measure(subject, text, _first(rows, tokens), _shown(rows), out, seconds, console)
    show(result, console)
    (out / "demo.json").write_text(json.dumps(result.as_dict(), indent=2) + "\n", encoding="utf-8")
    return result


def _check_installed() -> None:
    missing = [name for name in NEEDED if find_spec(name) is None]
    if missing:
        raise DemoError(f"The demo trains a model and needs {', '.join(missing)}. Install: pip install {' '.join(missing)}")


def _check_folder(out: Path) -> None:
    try:
        out.mkdir(parents=True, exist_ok=True)
    except OSError as error:
        raise DemoError(f"--out {out}: cannot be made a folder ({error.strerror}).") from error


def _documents(dataset: str | None) -> tuple[str, list[str]]:
    if dataset is None:
        documents = standard_library_docstrings()
        return f"{len(documents):,} docstrings of the Python standard library", documents
    documents = read_documents(dataset)
    return f"{len(documents):,} documents of {dataset}", documents


def _first(rows: list[list[int]], tokens: int) -> list[list[int]]:
    """The first rows that together hold `tokens` tokens."""
    chosen: list[list[int]] = []
    size = 0
    for row in rows:
        if size >= tokens:
            break
        chosen.append(row)
        size += len(row)
    return chosen


def _shown(rows: list[list[int]]) -> list[torch.Tensor]:
    """The documents of the leak matrix: the first ones of a good length, or the first ones, cut to it."""
    import torch

    fitting = [row for row in rows if len(row) in SHOWN_LENGTHS][:SHOWN_DOCUMENTS]
    if len(fitting) < SHOWN_DOCUMENTS:
        fitting = [row[: SHOWN_LENGTHS[-1]] for row in rows[:SHOWN_DOCUMENTS]]
    return [torch.tensor(row) for row in fitting]


def _measure(
    subject: Subject,
    text: str,
    rows: list[list[int]],
    shown: list[torch.Tensor],
    out: Path,
    seconds: float,
    console: Console,
) -> DemoResult:
    import patchwork

    from ..packing import decide, probe
    from .demo_training import train
    from .picture import as_png

    total = sum(map(len, rows))
    columns = TextColumn("{task.description:<24}"), BarColumn(), MofNCompleteColumn(), TimeElapsedColumn()
    with tempfile.TemporaryDirectory() as scratch, Progress(*columns, console=console, transient=True) as progress:

        def bar(name: str, size: int) -> Callable[[int], None]:
            task = progress.add_task(name, total=size)
            return lambda done: progress.advance(task, done)

        def leak(name: str) -> LeakReport:
            advance = bar(name, 1)
            report = probe(subject.build(), shown)
            advance(1)
            return report

        def training(name: str, **how: bool) -> TrainingRun:
            advance = bar(name, total)
            return train(subject.build(), subject, rows, Path(scratch), seconds=seconds, on_tokens=advance, **how)

        before = leak("leak, stock")
        padded = training("train, padded", packing=False)
        stock = training("train, packed, stock", packing=True, pass_boundaries=False)
        patchwork.apply()
        decision = decide(subject.build())
        after = leak("leak, patched") if decision.packing else None
        exact = training("train, packed, patched", packing=True) if decision.packing else None
    picture = None
    if after is not None:
        picture = out / "leak.png"
        as_png({"stock": before.matrix, "patchwork.apply()": after.matrix}, picture, f"documents in one row, {subject.name}")
    return DemoResult(
        model=subject.name,
        text=text,
        documents=len(rows),
        tokens=total,
        before=before,
        after=after,
        padded=padded,
        stock=stock,
        exact=exact,
        decision=decision,
        patches=patchwork.status(),
        picture=picture,
    )


def show(result: DemoResult, console: Console) -> None:
    """Print the result: the leak, the speed, the patches, and what follows."""
    from .picture import in_terminal

    console.print(f"[bold]model[/]  {escape(result.model)}")
    console.print(f"[bold]text[/]   {escape(result.text)}; trained on {result.documents:,}, {result.tokens:,} tokens")
    console.print(
        "\n[bold]Leak matrix[/]: documents packed into one row; when the document of a line is changed, "
        "how far do the logits of the others move?"
    )
    matrices = {"stock": result.before.matrix}
    if result.after is not None:
        matrices["after patchwork.apply()"] = result.after.matrix
    console.print(in_terminal(matrices), soft_wrap=False)
    for table in (_leaks(result), _speeds(result), _patches(result)):
        console.print()
        console.print(table, soft_wrap=False)
    console.print()
    for reason in result.decision.reasons:
        console.print(f"[bold red]packing is refused here:[/] {escape(reason)}")
    if result.picture is not None:
        console.print(f"Picture: {escape(str(result.picture))}", soft_wrap=True)
    console.print(_verdict(result))


def _leaks(result: DemoResult) -> Table:
    table = Table(title="Packed against alone, largest error", **STYLE)
    for heading in ("", "stock", "patched", "control: no boundaries"):
        table.add_column(heading, justify="left" if not heading else "right")
    after = result.after
    table.add_row(
        "logits",
        f"{result.before.forward.worst:.1e}",
        "refused" if after is None else f"{after.forward.worst:.1e}",
        f"{result.before.control.worst:.1e}",
    )
    table.add_row(
        "parameter gradients",
        f"{result.before.backward.worst:.1e}",
        "refused" if after is None else f"{after.backward.worst:.1e}",
        f"{result.before.control_backward.worst:.1e}",
    )
    return table


def _speeds(result: DemoResult) -> Table:
    table = Table(title="SFTTrainer on the same documents", **STYLE)
    for heading in ("", "tokens/s", "against padded", "padding"):
        table.add_column(heading, justify="left" if not heading else "right")
    stock = "exact" if result.before.passed else "leaks"
    runs = {"padded": result.padded, f"packed, stock ({stock})": result.stock}
    if result.exact is not None:
        runs["packed, patched (exact)"] = result.exact
    for name, training in runs.items():
        ratio = training.tokens_per_second / result.padded.tokens_per_second
        table.add_row(name, f"{training.tokens_per_second:,.0f}", f"{ratio:.1f} x", f"{training.padding:.0%}")
    return table


def _patches(result: DemoResult) -> Table:
    table = Table(title="Patches", show_header=False, **STYLE)
    table.add_column(no_wrap=True)
    concerned = [outcome for outcome in result.patches if outcome.state not in ("skipped", "absent")]
    for outcome in concerned:
        table.add_row(outcome.patch, outcome.state, escape(outcome.detail))
    if others := len(result.patches) - len(concerned):
        table.add_row(f"({others} more are for other releases or packages)")
    return table


def _verdict(result: DemoResult) -> str:
    if result.passed and result.exact is not None:
        ratio = result.exact.tokens_per_second / result.padded.tokens_per_second
        already = " (as it is without patchwork)" if result.before.passed else ""
        return f"[bold green]Packing is exact here{already}, and trains at {ratio:.1f} x the speed of padded batches.[/]"
    if result.decision.reasons:
        return "[bold]Keep packing off for this model: with patchwork in force, a packed row is refused.[/]"
    if result.exact is not None and not result.exact.packed:
        return "[bold red]The trainer fell back to padded batches.[/]"
    return "[bold red]Packing is not exact here: see the table of leaks, and `patchwork doctor`.[/]"
