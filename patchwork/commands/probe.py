"""The command `patchwork probe`: builds or loads a model, measures it, and draws the result."""

from __future__ import annotations

import warnings
from collections.abc import Sequence
from dataclasses import dataclass
from importlib.util import find_spec
from pathlib import Path
from typing import TYPE_CHECKING, Any

from rich.console import Console
from rich.markup import escape
from rich.table import Table

from ..packing.errors import ProbeError

if TYPE_CHECKING:
    from ..packing import LeakReport

STYLE: Any = {"title_justify": "left", "title_style": "bold", "box": None, "header_style": "", "pad_edge": False}


@dataclass(frozen=True)
class Probed:
    """What was measured of `model`, or why packed rows are refused there. `how`: "stock" or "patchwork.apply()"."""

    model: str
    how: str
    report: LeakReport | None = None
    refused: str = ""
    picture: Path | None = None

    @property
    def passed(self) -> bool:
        """Whether packed rows are exact here, and that was shown."""
        return self.report is not None and self.report.passed

    def as_dict(self) -> dict[str, Any]:
        """Plain values, for JSON."""
        return {
            "passed": self.passed,
            "model": self.model,
            "how": self.how,
            "refused": self.refused,
            "leak": self.report and self.report.as_dict(),
            "picture": self.picture and str(self.picture),
        }


def lengths(text: str) -> tuple[int, ...]:
    """Document lengths as they are written on the command line. Raises ProbeError."""
    parts = [part.strip() for part in text.split(",")]
    if len(parts) < 2 or not all(part.isdecimal() and int(part) for part in parts):
        raise ProbeError(f"--documents {text}: give two or more lengths in tokens, such as 7,5,9")
    return tuple(map(int, parts))


def run(
    model: str,
    documents: Sequence[int],
    arguments: str,
    stock: bool,
    full_size: bool,
    trust_remote_code: bool,
    picture: Path | None,
) -> Probed:
    """Measures a tiny model of that architecture, or with `full_size` the model itself, with all patches that fit in
    force unless `stock`; leaves them applied, so call it in a process of its own. Raises ProbeError for what cannot be
    measured, before anything is patched where that can be known.
    """
    _check_installed(picture)
    from ..api import apply
    from ..packing import IsolationError, PackingRefused, isolate, probe
    from ..packing.probing.model_sources import config_of, load

    how = "stock" if stock else "patchwork.apply()"
    with Console(stderr=True).status(f"measuring {escape(model)}"):
        _quieten()
        config = config_of(model, trust_remote_code)
        if not stock:
            apply()
        try:
            subject = load(model, trust_remote_code) if full_size else config
            if full_size and not stock:
                isolate(subject)
            report = probe(subject, documents, arguments=arguments, stock=stock)
        except (IsolationError, PackingRefused, NotImplementedError, ValueError) as error:  # the last two: transformers' own
            return Probed(model, how, refused=str(error))
    if picture is not None:
        _draw(report, how, picture)
    return Probed(model, how, report, picture=picture)


def _check_installed(picture: Path | None) -> None:
    missing = [name for name in ("torch", "transformers") if find_spec(name) is None]
    if missing:
        raise ProbeError(f"a probe runs a model and needs {', '.join(missing)}. Install: pip install {' '.join(missing)}")
    if picture is None:
        return
    if find_spec("matplotlib") is None:
        raise ProbeError("--picture needs matplotlib. Install: pip install matplotlib")
    if not picture.parent.is_dir():
        raise ProbeError(f"--picture {picture}: there is no folder {picture.parent}")


def _quieten() -> None:
    """Keeps bars and warnings of the libraries out of the report."""
    import transformers

    transformers.logging.set_verbosity_error()
    transformers.logging.disable_progress_bar()
    for name in ("transformers", "torch"):
        warnings.filterwarnings("ignore", module=rf"{name}\b")


def _draw(report: LeakReport, how: str, path: Path) -> None:
    from .picture import as_png

    try:
        as_png({how: report.matrix}, path, f"documents in one row, {report.model}")
    except (OSError, ValueError) as error:  # no right to write; a format that matplotlib does not know
        raise ProbeError(f"--picture {path}: {error}") from error


# ---- drawing ----------------------------------------------------------------------------------------------------


def show(result: Probed, console: Console) -> None:
    """Print the leak matrix, the errors, how documents were kept apart, and the verdict."""
    from .picture import in_terminal

    report = result.report
    if report is None:
        console.print(f"[red]refused:[/] {escape(result.refused)}")
        return
    console.print(f"[bold]model[/]      {escape(result.model)}, {escape(report.model)}")
    console.print(f"[bold]documents[/]  {' + '.join(map(str, report.documents))} tokens in one row\n")
    console.print("When the document of a line is changed, how far do the logits of the others move?")
    console.print(in_terminal({result.how: report.matrix}), soft_wrap=False)
    for table in (_errors(report), _ways(report)):
        if table.row_count:
            console.print()
            console.print(table, soft_wrap=False)
    if result.picture is not None:
        console.print(f"\nPicture: {escape(str(result.picture))}")
    console.print(f"\n{_verdict(report)}")


def _errors(report: LeakReport) -> Table:
    table = Table(title="Packed against alone, largest error", **STYLE)
    for heading in ("", "packed", "control: no boundaries"):
        table.add_column(heading, justify="left" if not heading else "right")
    table.add_column("worst parameter", overflow="fold")
    table.add_row("logits", f"{report.forward.worst:.1e}", f"{report.control.worst:.1e}")
    table.add_row(
        "parameter gradients",
        f"{report.backward.worst:.1e}",
        f"{report.control_backward.worst:.1e}",
        escape(report.backward.parameter),
    )
    return table


def _ways(report: LeakReport) -> Table:
    table = Table(title="How documents are kept apart", show_header=False, **STYLE)
    for kind, way in report.ways.items():
        table.add_row(escape(kind), escape(way))
    return table


def _verdict(report: LeakReport) -> str:
    noise = f"the noise is {report.noise:.0e}"
    if report.passed:
        return f"[bold green]Packing is exact here:[/] nothing moves by more than {report.worst:.1e}; {noise}."
    if report.worst >= report.noise:
        return f"[bold red]Documents reach each other:[/] by {report.worst:.1e}; {noise}."
    seen = min(report.control.worst, report.control_backward.worst)
    return (
        f"[bold red]This shows nothing:[/] even without boundaries the error is only {seen:.1e}, so a leak would not be seen. "
        "Are the weights very small, or the documents very short?"
    )
