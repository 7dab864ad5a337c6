"""Shows the progress of a long command: a bar on stderr, or one line a stage where that is no terminal."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager

from rich.console import Console
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeElapsedColumn

# Called with what is being done, how much of it is done, and how much there is.
Advance = Callable[[str, int, int], None]


@contextmanager
def shown() -> Iterator[Advance]:
    """Gives the function to be called as work goes on; a stage of no work is not shown."""
    console = Console(stderr=True, highlight=False)
    if not console.is_terminal:
        yield lambda what, done, total: console.print(f"{what}: {total}") if total and not done else None
        return
    columns = (TextColumn("{task.description}"), BarColumn(), MofNCompleteColumn(), TimeElapsedColumn())
    with Progress(*columns, console=console, transient=True) as bars:
        stages: dict[tuple[str, int], int] = {}

        def advance(what: str, done: int, total: int) -> None:
            if total and (what, total) not in stages:
                stages[what, total] = bars.add_task(what, total=total)
            if total:
                bars.update(stages[what, total], completed=done)  # type: ignore[arg-type]

        yield advance
