"""The command line: formats what the library says and picks the exit code (0 all well, 1 something falls short, 2 wrong use)."""

from __future__ import annotations

import io
import json
import os
import sys
import textwrap
from collections.abc import Iterable
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, Literal

import typer
from rich.console import Console
from rich.markup import escape
from rich.syntax import Syntax

from . import __version__
from .commands.colours import COLOURS
from .commands.demo_data import DemoError
from .engine.errors import InvalidMatrix, InvalidPatch, PatchError, UnknownPatch, UnknownRelease
from .packing.errors import ProbeError

if TYPE_CHECKING:
    from .commands.doctor import Diagnosis
    from .engine.preview import Preview

app = typer.Typer(
    help="Patch installed Python source safely, and pack samples exactly.",
    no_args_is_help=True,
    add_completion=False,
    pretty_exceptions_enable=False,
)
console = Console(highlight=False, soft_wrap=True)
Json = Annotated[bool, typer.Option("--json", help="Print JSON instead of text.")]
Against = Annotated[
    list[str] | None,
    typer.Option(metavar="WHAT", help="PKG==V, 'PKG>=A,<B', PKG (its newest release), a folder or a wheel; may be repeated."),
]
Form = Literal["table", "markdown", "json"]
_WORDS = {"pending": "fits"}


@app.callback(invoke_without_command=True)
def _main(version: Annotated[bool, typer.Option("--version", help="Print the version.", is_eager=True)] = False) -> None:
    if version:
        console.print(f"patchwork-packing {__version__}")
        raise typer.Exit


@app.command("list")
def list_patches(as_json: Json = False) -> None:
    """Every patch: whether it fits what is installed, and why it exists."""
    from .api import previews
    from .commands.doctor import patch_as_dict
    from .selection import all_patches

    found = previews(all_patches())
    if as_json:
        _print_json([patch_as_dict(item) for item in found])
    else:
        for item in found:
            _print_patch(item)
        _print_closed()
    raise typer.Exit(int(any(item.outcome.state == "failed" for item in found)))


@app.command()
def check(
    names: Annotated[
        list[str] | None, typer.Argument(metavar="[PATCH]...", help="Names, globs, or FILE.py with patches; none: every patch.")
    ] = None,
    against: Against = None,
    as_json: Json = False,
) -> None:
    """Whether patches fit releases, folders or wheels, without installing or importing them."""
    if not against:
        return _check_installed(names, as_json)
    from .commands import check as checking
    from .commands import check_text

    done = checking.run(names or [], against)
    if as_json:
        _print_json(done.as_dicts())
    else:
        for line in check_text.checked_lines(done):
            console.print(line)
    _print_notes(done.notes)
    raise typer.Exit(int(not done.ok))


@app.command()
def diff(
    name: Annotated[str, typer.Argument(metavar="PATCH", help="Name, glob such as 'trl.*', or FILE.py with patches.")],
    against: Against = None,
    as_json: Json = False,
) -> None:
    """The change that a patch makes to the installed source, or to that of a release, folder or wheel."""
    if against:
        return _diff_against(name, against, as_json)
    from .api import previews
    from .selection import named

    found = previews(named([name]), switches=False)
    if as_json:
        _print_json([{"patch": i.patch.name, "state": i.outcome.state, "path": i.path, "diff": _diff(i)} for i in found])
    for item in found if not as_json else ():
        if text := _diff(item):
            _print_diff(text)
        else:
            _print_patch(item)
    raise typer.Exit(int(any(item.outcome.state == "failed" for item in found)))


@app.command()
def doctor(
    model: Annotated[str | None, typer.Option(help="Name or path of a model: may it be packed here?")] = None,
    imports: Annotated[bool, typer.Option("--imports", help="Try to import each patched module, in another process.")] = False,
    as_json: Json = False,
) -> None:
    """This machine: packages, patches, and whether packing is safe and in which way."""
    from .commands.doctor import diagnose

    found = diagnose(model, with_imports=imports)
    if as_json:
        _print_json(found.as_dict())
        raise typer.Exit(int(not found.ok))
    _print_diagnosis(found)
    raise typer.Exit(int(not found.ok))


@app.command()
def probe(
    context: typer.Context,
    model: Annotated[str | None, typer.Argument(metavar="MODEL|CONFIG", help="A name, a folder, or a model type.")] = None,
    documents: Annotated[str, typer.Option(metavar="LENGTHS", help="The documents of the row, in tokens.")] = "7,5,9",
    arguments: Annotated[
        Literal["positions", "full"], typer.Option(help="What a packed call says: restarting positions, or all boundaries too.")
    ] = "positions",
    stock: Annotated[bool, typer.Option("--stock", help="Without patchwork.")] = False,
    full_size: Annotated[bool, typer.Option("--full-size", help="The model itself, not a tiny one of its architecture.")] = False,
    trust_remote_code: Annotated[bool, typer.Option("--trust-remote-code", help="Run code that comes with the model.")] = False,
    picture: Annotated[Path | None, typer.Option(metavar="FILE.png", help="Draw the leak matrix.")] = None,
    everything: Annotated[bool, typer.Option("--all", help="Every model type of the installed transformers.")] = False,
    only: Annotated[str | None, typer.Option(metavar="TYPES", help="With --all: only these, as in llama,qwen3_5.")] = None,
    jobs: Annotated[int, typer.Option(metavar="N", help="With --all: processes that measure at once.")] = 1,
    timeout: Annotated[float, typer.Option(metavar="SECONDS", help="With --all: the longest for one type.")] = 120.0,
    as_json: Json = False,
) -> None:
    """Measure how far documents that are packed into one row reach each other."""
    from .commands import census
    from .commands import probe as probing

    _check_use(context, model, everything)
    if model is None:
        counted = census.run(only, stock=stock, jobs=jobs, timeout=timeout)
        if as_json:
            _print_json(counted.as_dict())
        else:
            census.show(counted, console)
        raise typer.Exit(int(not counted.ok))
    lengths = probing.lengths(documents)
    result = probing.run(model, lengths, arguments, stock, full_size, trust_remote_code, picture)
    if as_json:
        _print_json(result.as_dict())
    else:
        probing.show(result, console)
    raise typer.Exit(int(not result.passed))


@app.command()
def demo(
    model: Annotated[str | None, typer.Option(help="A model of your own: name or path. Default: a tiny random Qwen3.5.")] = None,
    dataset: Annotated[str | None, typer.Option(help="Documents of your own: FILE.jsonl or FILE.txt.")] = None,
    out: Annotated[Path, typer.Option(help="Folder for the picture and the numbers.")] = Path("patchwork-demo"),
    as_json: Json = False,
) -> None:
    """See packing go wrong and then right, on real text."""
    from .commands.demo import run

    progress = Console(stderr=True, highlight=False) if as_json else console
    result = run(model=model, dataset=dataset, out=out, console=progress)
    if as_json:
        _print_json(result.as_dict())
    raise typer.Exit(int(not result.passed))


@app.command()
def matrix(
    file: Annotated[Path, typer.Option(help="The matrix file.")] = Path("compat_matrix.yaml"),
    package: Annotated[str | None, typer.Option(help="The releases of this package alone.")] = None,
    update: Annotated[bool, typer.Option("--update", help="Write what was found into the file, once you agree.")] = False,
    yes: Annotated[bool, typer.Option("--yes", help="Agree to what --update writes.")] = False,
    new: Annotated[bool, typer.Option("--new", help="Check the releases that are newer than the listed ones.")] = False,
    form: Annotated[Form, typer.Option("--format", help="How to print it.")] = "table",
    as_json: Json = False,
) -> None:
    """Every patch on every listed release, from its wheel, against what the matrix file expects."""
    from .commands import matrix_text
    from .commands.matrix import run, write_changes

    result = run(file, package, new=new, complete=not update or new)
    form = "json" if as_json else form
    if form == "json":
        _print_json(matrix_text.as_dict(result))
    elif form == "markdown":
        print("\n".join(matrix_text.markdown(result)))
    else:
        for line in matrix_text.table(result, console.width if console.is_terminal else 100):
            console.print(line)
    ok = write_changes(result, yes) if update else result.ok
    raise typer.Exit(int(not ok))


def _check_use(context: typer.Context, model: str | None, everything: bool) -> None:
    """Raises ProbeError unless `probe` got either a model or --all, and only what goes with it."""
    if everything == (model is not None):
        raise ProbeError("give either a MODEL or --all" + (f", not {model} and --all" if model is not None else ""))
    others = (
        ("documents", "arguments", "full_size", "trust_remote_code", "picture") if everything else ("only", "jobs", "timeout")
    )
    for name in others:
        source = context.get_parameter_source(name)
        if source is not None and source.name != "DEFAULT":
            option = f"--{name.replace('_', '-')}"
            raise ProbeError(f"{option} goes with {'a MODEL, not with --all' if everything else '--all, not with a MODEL'}")


def _check_installed(names: list[str] | None, as_json: bool) -> None:
    from .api import previews
    from .commands.doctor import patch_as_dict
    from .selection import named

    found = previews(named(names or ()))
    if as_json:
        _print_json([patch_as_dict(item) for item in found])
    else:
        console.print("What is installed here (--against names releases, folders or wheels instead):")
        for item in found:
            _print_patch(item, with_reason=False)
    raise typer.Exit(int(any(item.outcome.state == "failed" for item in found)))


def _diff_against(name: str, against: list[str], as_json: bool) -> None:
    from .commands import check as checking
    from .commands import check_text

    done = checking.run([name], against, keep_rewrites=True)
    if as_json:
        _print_json(done.as_dicts(diffs=True))
    for item in () if as_json else done.findings:
        if item.diff:
            _print_diff(item.diff)
        else:
            console.print("\n".join(check_text.check_lines([item])))
    for line in () if as_json else check_text.left_out_lines(done.left_out):
        console.print(line)
    _print_notes(done.notes)
    raise typer.Exit(int(not done.ok))


def _print_notes(notes: Iterable[str]) -> None:
    for note in notes:
        Console(stderr=True, highlight=False, soft_wrap=True).print(escape(note))


def _print_diagnosis(found: Diagnosis) -> None:
    console.print(f"[bold]Python[/]  {escape(found.python)}\n\n[bold]Packages[/]")
    for package in found.packages:
        version = package.version or "not installed"
        console.print(f"  {package.name:<14} {escape(version):<14} [dim]{escape(package.path or '')}[/]")
    console.print("\n[bold]Patches[/]")
    concerned = [item for item in found.patches if _concerns(item)]
    for item in concerned:
        _print_patch(item, with_reason=False)
    if others := len(found.patches) - len(concerned):
        console.print(f"  [dim]({others} more are for other releases or packages: patchwork list)[/]")
    if found.imports is not None:
        console.print("\n[bold]Imports[/]")
    for trial in found.imports or ():
        console.print(f"  {'[green]works[/]   ' if trial.error is None else '[bold red]fails[/]   '} {escape(trial.module)}")
        if trial.error is not None:
            console.print(textwrap.indent(escape(str(trial.error)), "    "))
    for warning in found.warnings:
        console.print(f"\n[yellow]Note[/]  {escape(warning)}")
    verdict = "[green]safe[/]" if found.packing.safe else "[red]not safe[/]"
    console.print(f"\n[bold]Packing[/]  {verdict}: {escape(found.packing.sentence)}")
    for reason in found.packing.reasons:
        console.print(f"  - {escape(reason)}")


def _concerns(item: Preview) -> bool:
    """Whether a patch is for what is installed; one that is switched off is."""
    return item.outcome.state not in ("skipped", "absent") or "PATCHWORK_DISABLE" in item.outcome.detail


def _print_closed() -> None:
    """The mixers whose kernels no patch opens, and why."""
    from .packing.models.mixers import closed_ways

    console.print(
        "\n[bold]No patch[/] opens the kernels of these to packed rows; they run on documents side by side, with any kernel:"
    )
    for reason, families in closed_ways().items():
        console.print(f"  [bold]{escape(', '.join(families))}[/]  [dim]{escape(reason)}[/]")


def _print_patch(item: Preview, *, with_reason: bool = True) -> None:
    outcome = item.outcome
    word = _WORDS.get(outcome.state, outcome.state)
    console.print(f"  [{COLOURS[outcome.state]}]{word:<8}[/] [bold]{escape(outcome.patch)}[/]  [dim]{escape(outcome.target)}[/]")
    if outcome.error is not None:
        console.print(textwrap.indent(escape(str(outcome.error)), "    "))
        return
    for note in filter(None, (outcome.detail, ", ".join(outcome.edits))):
        console.print(f"    {escape(note)}")
    if with_reason and item.patch.reason:
        console.print(f"    [dim]{escape(item.patch.reason)}[/]")


def _diff(item: Preview) -> str:
    if item.rewrite is None or not item.rewrite.diff:
        return ""
    _, _, *body = item.rewrite.diff.split("\n")  # not at form feeds, as splitlines() would
    return "\n".join([f"--- {item.path}", f"+++ {item.path} ({item.patch.name})", *body])


def _print_diff(text: str) -> None:
    if console.is_terminal:
        console.print(Syntax(text, "diff", theme="ansi_dark", background_color="default"))
    else:
        print(text)  # as it is: rich would turn tabs into spaces


def _print_json(value: Any) -> None:
    print(json.dumps(value, indent=2))


def main() -> None:
    """Entry point: errors of the library become a message and an exit code, never a traceback."""
    for stream in (sys.stdout, sys.stderr):
        if isinstance(stream, io.TextIOWrapper):
            stream.reconfigure(errors="backslashreplace")  # a terminal without this character still gets the message
    errors = Console(stderr=True, highlight=False, soft_wrap=True)
    try:
        try:
            app()
        finally:
            sys.stdout.flush()  # here, where a reader that has gone can be told from a fault
    except BrokenPipeError:  # `| head`
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        sys.exit(1)
    except (UnknownPatch, UnknownRelease, InvalidPatch, InvalidMatrix, DemoError, ProbeError) as error:
        errors.print(f"[red]patchwork:[/] {escape(str(error))}")
        sys.exit(2)
    except PatchError as error:
        errors.print(f"[red]patchwork:[/] {escape(str(error))}")
        sys.exit(1)
