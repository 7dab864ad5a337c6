"""Measures packed documents against documents alone, in each recurrent family of the installed transformers.

Without kernels, on tiny models in training mode with weights of standard deviation 0.1. Prints JSON; exit code 1 where an
error is above LIMIT, or a control that ought to leak is below CONTROL and so shows nothing. tests/compat/families_page.py
makes docs/families.md of it.
"""

from __future__ import annotations

import os

os.environ.setdefault("HF_HUB_OFFLINE", "1")

import argparse
import inspect
import json
import sys
from collections.abc import Mapping
from typing import Any

import families
import tiny
import torch
import transformers
from alone import Case, Result, reference, run, stock

import patchwork
from patchwork.packing import IsolationError, isolate
from patchwork.packing.isolation import validate
from patchwork.packing.models.families import released

LIMIT = 1e-4
CONTROL = 100 * LIMIT
FORMS = ("positions", "full")
# Documents by row, and the length of the rows. A chunk of the torch rules has 64 tokens; two rows have tails of padding.
SHAPES: tuple[tuple[tuple[tuple[int, ...], ...], int | None], ...] = (
    (((7, 5, 9),), None),
    (((1, 64, 65, 2),), None),
    (((7, 5, 9), (13, 8)), 24),
)
BELOW_A_CHUNK = ((1, 29, 31, 2),)


def cases(name: str) -> list[Case]:
    """The packed rows that a family is measured on."""
    whole_chunks = name != "xlstm" or released("5.0")  # upstream's code for them does not run before
    return [
        Case(name, rows if whole_chunks or max(map(sum, rows)) < 64 else BELOW_A_CHUNK, total=total) for rows, total in SHAPES
    ]


def outputs_off(found: Result, expected: Result) -> list[float]:
    """Of each document, the largest difference of a logit, relative to the largest logit of all."""
    scale = max(float(each.abs().max()) for each in expected[0])
    return [float((ours - theirs).abs().max()) / scale for ours, theirs in zip(found[0], expected[0], strict=True)]


def gradients_off(found: Result, expected: Result) -> float:
    """Of the worst parameter, the norm of the difference, relative to that of its gradient (tiny.worst_difference)."""
    return tiny.worst_difference(found[1], expected[1])


def stock_off(name: str) -> dict[str, float | str]:
    """By form of the call, how far a document behind another is off in stock transformers; words where it raises."""
    found: dict[str, float | str] = {}
    for form in FORMS:
        worst = 0.0
        for case in cases(name):
            try:
                result = run(stock(name), case, gradients=False, **taken(stock(name), case.form(form)))
            except (NotImplementedError, RuntimeError, TypeError, ValueError) as error:
                found[form] = f"{type(error).__name__}: {str(error).splitlines()[0]}"
                break
            off = outputs_off(result, reference(case))
            worst = max(worst, *(off[number] for number in case.followers))
        else:
            found[form] = worst
    return found


def taken(model: torch.nn.Module, told: Mapping[str, Any]) -> dict[str, Any]:
    """What of a call a stock model takes: some are told of documents in no way."""
    parameters = inspect.signature(type(model).forward).parameters
    open_ended = any(each.kind is each.VAR_KEYWORD for each in parameters.values())
    return {name: value for name, value in told.items() if open_ended or name in parameters}


def isolated(name: str) -> torch.nn.Module:
    """The stock model, isolated."""
    model = families.duplicate(stock(name))
    isolate(model)
    return model


def measured(model: torch.nn.Module, name: str) -> dict[str, float]:
    """The worst errors of an isolated model over all rows and forms, and the smallest of the controls: what it returns
    when it is told nothing."""
    ours: dict[str, list[float]] = {"outputs": [], "gradients": []}
    control: dict[str, list[float]] = {"outputs": [], "gradients": []}
    for case in cases(name):
        expected = reference(case)
        for form in FORMS:
            result = run(model, case, **case.form(form))
            ours["outputs"] += outputs_off(result, expected)
            ours["gradients"].append(gradients_off(result, expected))
        result = run(model, case)
        off = outputs_off(result, expected)
        control["outputs"] += [off[number] for number in case.followers]
        control["gradients"].append(gradients_off(result, expected))
    return {
        **{name: max(values) for name, values in ours.items()},
        **{f"control_{name}": min(values) for name, values in control.items()},
    }


def ways(model: torch.nn.Module) -> dict[str, dict[str, str]]:
    """How the modules of an isolated model keep documents apart, by kind."""
    found: dict[str, dict[str, str]] = {}
    for part in validate(model):
        if part.role != "layer":
            found[part.kind] = {"role": part.role, "way": part.way, "why": part.why}
    return found


def short_of(found: Mapping[str, Any]) -> list[str]:
    """What a family's numbers lack."""
    if "refused" in found:
        return [str(found["refused"])]
    errors = [f"{what} off by {found[what]:.1e}" for what in ("outputs", "gradients") if not found[what] <= LIMIT]
    hidden = [
        f"the control of the {what} differs by {found[f'control_{what}']:.1e} only"
        for what in ("outputs", "gradients")
        if not found[f"control_{what}"] >= CONTROL
    ]
    return errors + hidden


def report(names: list[str]) -> list[dict[str, Any]]:
    """The measurements of some families: stock first, and all references, before anything is patched."""
    before = {name: stock_off(name) for name in names}
    for name in names:
        for case in cases(name):
            reference(case)
    patchwork.apply()
    lines = []
    for name in names:
        line: dict[str, Any] = {"family": name, "release": transformers.__version__, "stock": before[name]}
        try:
            model = isolated(name)
            line |= measured(model, name)
            line["ways"] = ways(model)
        except IsolationError as error:
            line["refused"] = str(error)
        line["short"] = short_of(line)
        lines.append(line)
    return lines


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("families", nargs="*", help="default: all that the installed transformers has")
    chosen = parser.parse_args().families or families.names()
    torch.set_num_threads(1)
    lines = report(chosen)
    print(json.dumps(lines, indent=1))
    short = [f"{line['family']}: {reason}" for line in lines for reason in line["short"]]
    print("\n".join(short), file=sys.stderr)
    return int(bool(short))


if __name__ == "__main__":
    sys.exit(main())
