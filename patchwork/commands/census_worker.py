"""Measures model types in packed rows, in the other process of a census.

It reads a type a line, and answers in lines of JSON: first which types there are; then, of each, a line once an ordinary
call has worked, and a line with what was found. The first tells a model that cannot run from one that ends the process
when its rows are packed.
"""

from __future__ import annotations

import inspect
import json
import math
import os
import sys
import textwrap
import time
import warnings
from collections.abc import Callable
from typing import Any

import torch
from huggingface_hub.errors import StrictDataclassError

from .. import apply, revert
from ..packing import IsolationError, PackingRefused, probe
from ..packing.errors import ProbeError
from ..packing.isolation import restore
from ..packing.models.config_fields import token_ids
from ..packing.probing.leaks import embeddings
from ..packing.probing.model_sources import config_of
from ..packing.probing.tiny_models import shrink, tiny_model

# Each with a seed: what depends on values (ties between tokens to choose from) may show in one row only.
ROWS = (((7, 5, 9), 0), ((13, 1, 22, 2, 15), 1))
LONGEST = 300  # characters of a reason

# What models raise. Anything else ends the process, and its last line is told.
RAISED = (
    *(ArithmeticError, AssertionError, AttributeError, ImportError, LookupError, MemoryError, NameError, OSError),
    *(RuntimeError, StrictDataclassError, SyntaxError, TypeError, ValueError),
)

Answer = dict[str, Any]


def main(stock: bool, memory: int) -> None:
    """Answers until there is nothing more to read. `memory`: bytes of data that this process may have, where the
    system can hold it to that."""
    # Whatever the models print themselves goes where errors go.
    with os.fdopen(os.dup(1), "w", encoding="utf-8") as answers:
        os.dup2(2, 1)
        _limit(memory)

        def say(answer: Answer) -> None:
            print(json.dumps(answer), file=answers, flush=True)

        say(_begin(stock))
        for line in sys.stdin:
            started = time.perf_counter()
            found = measured(line.strip(), stock, lambda: say({"runs": True}))
            say(found | {"seconds": round(time.perf_counter() - started, 2)})


def measured(kind: str, stock: bool, runs: Callable[[], None]) -> Answer:
    """State, reason, worst leak and control of a model type; `runs` is called once an ordinary call has worked.

    What is raised in an ordinary call of stock transformers is the reason why a type is `unbuilt`. Behind that, whatever
    is no refusal has `failed`.
    """
    if why := _why_not(kind):
        return _answer("unbuilt" if stock or _fails_without_patches(kind) else "failed", why)
    runs()
    try:
        reports = [probe(kind, documents, stock=stock, seed=seed) for documents, seed in ROWS]
    except PackingRefused as error:
        return _answer("refused", "; ".join(error.decision.reasons))
    except IsolationError as error:
        return _answer("refused", str(error))
    except RAISED as error:
        refused = stock and isinstance(error, (NotImplementedError, ValueError))  # as transformers does it
        return _answer("refused" if refused else "failed", _said(error))
    report = max(reports, key=lambda each: (not each.passed, each.worst))
    control = min(report.control.worst, report.control_backward.worst)
    if report.worst >= report.noise:
        errors = f"outputs by {report.forward.worst:.1e}, gradients by {report.backward.worst:.1e} ({report.backward.parameter})"
        return _answer("leaking", errors, report.worst, control)
    if not report.passed:
        return _answer("unproven", f"without boundaries the error is only {control:.1e}", report.worst, control)
    return _answer("isolated", "", report.worst, control)


def _begin(stock: bool) -> Answer:
    torch.set_num_threads(1)  # the models are tiny, and so is the difference between two orders of a sum
    warnings.simplefilter("ignore")
    if not stock:
        apply()
    import transformers
    from transformers.models.auto.modeling_auto import MODEL_FOR_CAUSAL_LM_MAPPING_NAMES

    transformers.logging.set_verbosity_error()
    names = {kind: name if isinstance(name, str) else name[0] for kind, name in MODEL_FOR_CAUSAL_LM_MAPPING_NAMES.items()}
    return {"transformers": transformers.__version__, "types": names}


def _limit(memory: int) -> None:
    try:
        import resource
    except ImportError:  # Windows
        return
    _, most = resource.getrlimit(resource.RLIMIT_DATA)
    if most == resource.RLIM_INFINITY or memory < most:
        resource.setrlimit(resource.RLIMIT_DATA, (memory, most))


def _answer(state: str, reason: str, worst: float | None = None, control: float | None = None) -> Answer:
    finite = [value if value is None or math.isfinite(value) else None for value in (worst, control)]  # JSON has no infinity
    return {"state": state, "reason": textwrap.shorten(reason, LONGEST), "worst": finite[0], "control": finite[1]}


# ---- ordinary calls -------------------------------------------------------------------------------------------------


def _why_not(kind: str) -> str:
    """Why a type cannot be built, or not be called with documents one by one and with all their tokens; nothing if it can."""
    try:
        model = tiny_model(shrink(config_of(kind)))
    except ProbeError as error:
        return f"it cannot be built: {_said(error.__cause__)}" if error.__cause__ else str(error)
    except RAISED as error:
        return f"it cannot be built: {_said(error)}"
    restore(model)
    try:
        return "" if _runs(model) else "its outputs are not finite in an ordinary call"
    except RAISED as error:
        return f"an ordinary call: {_said(error)}"


def _runs(model: Any) -> bool:
    """Whether the outputs of ordinary calls are finite, made as a probe makes its own: in both modes, then backward."""
    parameters = inspect.signature(type(model).forward).parameters.values()
    takes_all = any(parameter.kind is parameter.VAR_KEYWORD for parameter in parameters)
    given = {"use_cache": False} if takes_all or any(parameter.name == "use_cache" for parameter in parameters) else {}
    special = token_ids(model.config)
    ordinary = [number for number in range(embeddings(model).shape[0]) if number not in special]
    lengths = {length for documents, _ in ROWS for length in (*documents, sum(documents))}
    outputs = []
    for training in (False, True):
        model.train(training)
        with torch.set_grad_enabled(training):
            for length in sorted(lengths):
                tokens = [ordinary[at % len(ordinary)] for at in range(length)]
                outputs.append(model(input_ids=torch.tensor([tokens]), **given).logits.float())
    torch.stack([logits.sum() for logits in outputs]).sum().backward()  # type: ignore[no-untyped-call]
    return all(bool(logits.isfinite().all()) for logits in outputs)


def _fails_without_patches(kind: str) -> bool:
    """Whether an ordinary call that does not work here is upstream's own fault."""
    revert()
    try:
        return bool(_why_not(kind))
    finally:
        apply()


def _said(error: BaseException) -> str:
    said = " ".join(str(error).split())
    if isinstance(error, MemoryError) or "can't allocate memory" in said:  # of Python, of torch
        return f"out of memory: {said}".rstrip(": ")
    return f"{type(error).__name__}: {said}".rstrip(": ")
