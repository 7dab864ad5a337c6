"""Measures how much of one document reaches another in a packed row of a model, forward and backward.

Each document runs alone, packed, and packed with its boundaries removed (the positive control). Each document is
replaced in turn, and whatever moves outside of it is a leak. Of a config or a name, a tiny model of the same
architecture is measured.
"""

from __future__ import annotations

import inspect
import math
import os
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import asdict, dataclass, field
from typing import Any

import torch

from .. import isolation
from ..argument_names import BOUNDARIES
from ..boundaries import Boundaries
from ..decision import PackingRefused, decide
from ..errors import BoundariesError
from ..models.config_fields import token_ids
from .model_sources import config_of
from .tiny_models import shrink, tiny_model

# A leak passes below NOISE of the logits' scale, and only if the control shows CLEAR times what was measured and CLEAR
# times the noise: with small weights a leak hides below it. No control gets far above the noise of half precision, so
# VISIBLE is always enough.
NOISE = {torch.float64: 1e-8, torch.float32: 1e-4, torch.float16: 2e-2, torch.bfloat16: 5e-2}
CLEAR, VISIBLE = 20.0, 0.1


@dataclass(frozen=True)
class Measured:
    """One comparison. `worst`: the largest error in any document, `by_document`: in each. For gradients,
    `parameter` names the worst one; errors are relative to its norm."""

    worst: float
    by_document: tuple[float, ...] = ()
    parameter: str = ""


@dataclass(frozen=True)
class LeakReport:
    """What `probe` saw; all numbers are relative to the scale of the reference.

    `matrix[i][j]`: how far the logits of document j move when document i is replaced; 0 on the diagonal. `forward`
    and `backward`: packed against alone. `control`: the same with boundaries removed; a row whose control is not
    clearly above the noise proves nothing. `ways`: how the documents were kept apart, by kind of module; empty where
    that was not patchwork's doing.
    """

    documents: tuple[int, ...]
    matrix: tuple[tuple[float, ...], ...]
    forward: Measured
    backward: Measured
    control: Measured
    control_backward: Measured
    noise: float
    model: str
    ways: Mapping[str, str] = field(default_factory=dict)

    @property
    def worst(self) -> float:
        """The largest leak of any kind; infinite where an output was not finite."""
        return _largest([self.forward.worst, self.backward.worst, *(value for row in self.matrix for value in row)])

    @property
    def shown(self) -> bool:
        """Whether a leak would have been seen: both controls are clearly above the noise and above what was measured."""
        seen = min(self.control.worst, self.control_backward.worst)
        return math.isfinite(seen) and seen > max(CLEAR * self.worst, min(CLEAR * self.noise, VISIBLE))

    @property
    def passed(self) -> bool:
        """All leaks at the noise floor, where a leak would have been seen."""
        return self.worst < self.noise and self.shown

    def as_dict(self) -> dict[str, Any]:
        """Plain numbers, strings and lists, for JSON."""
        plain: dict[str, Any] = asdict(self) | {"worst": self.worst, "shown": self.shown, "passed": self.passed}
        return plain


def probe(
    model: Any,
    documents: Sequence[int] | Sequence[torch.Tensor] = (7, 5, 9),
    *,
    arguments: str = "positions",
    stock: bool = False,
    seed: int = 0,
) -> LeakReport:
    """Measures how far documents of a packed row reach each other.

    `model`: a model, measured as it is, in evaluation mode; its mode and its gradients are as before afterwards. Or a
    config, or a name (of the hub, a folder, a model type such as "qwen3_5"): then a tiny model of that architecture is
    built on the CPU and isolated as a user's would be, or left as transformers has it with `stock`; its gradients are
    those of training mode. `documents`: at least two, token ids (1-D) or lengths for random ones. `arguments`: what
    the packed call says of its documents, "positions" (restarting position ids) or "full" (seq_idx and cumulative
    lengths too).

    Raises BoundariesError for fewer than two documents or other arguments, ProbeError for what cannot be found or built
    small, PackingRefused and IsolationError where documents cannot be kept apart.
    """
    if len(documents) < 2:
        raise BoundariesError(f"a leak needs two documents, got {len(documents)}")
    if arguments not in ("positions", "full"):
        raise BoundariesError(f'arguments={arguments!r}: give "positions" or "full"')
    if hasattr(model, "named_modules"):
        return _measure(model, documents, arguments, seed, training=False)
    config = config_of(model) if isinstance(model, (str, os.PathLike)) else model
    built = tiny_model(shrink(config))
    isolation.restore(built)
    if not stock:
        decision = decide(built)
        if not decision.packing:
            raise PackingRefused(decision)
        isolation.isolate(built)
    return _measure(built, documents, arguments, seed, training=True)


def _measure(model: Any, documents: Sequence[Any], arguments: str, seed: int, training: bool) -> LeakReport:
    table = embeddings(model)
    ordinary = _ordinary(model, table.shape[0])
    generator = torch.Generator().manual_seed(seed)
    first = [_document(each, ordinary, generator).to(table.device) for each in documents]
    other = [_replaced(each, ordinary, generator) for each in first]
    lengths = [len(document) for document in first]
    told = Boundaries.from_seq_lens(lengths, device=table.device).model_kwargs()
    if arguments == "positions":
        told = {"position_ids": told["position_ids"]}
    kwargs, silent = _taken(model, told), _taken(model, {})

    def packed(parts: Sequence[torch.Tensor], call: Mapping[str, Any]) -> list[torch.Tensor]:
        return list(model(input_ids=torch.cat(list(parts))[None], **call).logits[0].split(lengths))

    def alone(parts: Sequence[torch.Tensor]) -> list[torch.Tensor]:
        return [model(input_ids=part[None], **silent).logits[0] for part in parts]

    with _undisturbed(model):
        with torch.no_grad():
            reference, row = alone(first), packed(first, kwargs)
            matrix = []
            for number in range(len(first)):
                changed = packed([*first[:number], other[number], *first[number + 1 :]], kwargs)
                moved = _errors(changed, row)
                matrix.append(tuple(0.0 if at == number else value for at, value in enumerate(moved)))
            forward, control = (_errors(outputs, reference) for outputs in (row, packed(first, silent)))
        model.train(training)
        expected = _gradients(model, lambda: alone(first))
        backward = _worst_parameter(_gradients(model, lambda: packed(first, kwargs)), expected)
        control_backward = _worst_parameter(_gradients(model, lambda: packed(first, silent)), expected)
    return LeakReport(
        documents=tuple(lengths),
        matrix=tuple(matrix),
        forward=Measured(_largest(forward), tuple(forward)),
        backward=backward,
        control=Measured(_largest(control), tuple(control)),
        control_backward=control_backward,
        noise=NOISE.get(reference[0].dtype, NOISE[torch.bfloat16]),
        model=type(model).__name__,
        ways=_ways(model),
    )


def embeddings(model: Any) -> torch.Tensor:
    """The table of a model's input embeddings (V, H); of the first stream of tokens, where there are several."""
    found = model.get_input_embeddings()
    first: Any = found[0] if isinstance(found, torch.nn.ModuleList) else found
    table: torch.Tensor = first.weight
    return table


def _ways(model: Any) -> dict[str, str]:
    """How the modules of an isolated model keep documents apart, by their kind."""
    ways: dict[str, dict[str, None]] = {}
    for part in isolation.validate(model) if isolation.isolated(model) else ():
        ways.setdefault(part.kind, {})[part.way] = None
    return {kind: ", ".join(found) for kind, found in ways.items()}


def _taken(model: Any, told: Mapping[str, Any]) -> dict[str, Any]:
    """What of a call the model takes. Some stock ones are not told of documents in any way."""
    parameters = inspect.signature(type(model).forward).parameters
    takes_all = any(parameter.kind is parameter.VAR_KEYWORD for parameter in parameters.values())
    known = {*parameters, *(("position_ids", *BOUNDARIES) if isolation.isolated(model) else ())}
    return {name: value for name, value in {**told, "use_cache": False}.items() if takes_all or name in known}


def _ordinary(model: Any, vocabulary: int) -> torch.Tensor:
    """The ids of tokens that mean nothing special: those would change what a model does with the ones around them."""
    special = token_ids(config) if hasattr(config := getattr(model, "config", None), "model_type") else set()
    return torch.tensor([number for number in range(vocabulary) if number not in special])


def _document(given: Any, ordinary: torch.Tensor, generator: torch.Generator) -> torch.Tensor:
    """Token ids `(length,)`: those given, or random ones."""
    if isinstance(given, torch.Tensor) and given.ndim == 1:
        return given
    return ordinary[torch.randint(len(ordinary), (int(given),), generator=generator)]


def _replaced(document: torch.Tensor, ordinary: torch.Tensor, generator: torch.Generator) -> torch.Tensor:
    """Another document of the same length, that differs in each token."""
    at = torch.randint(len(ordinary), (len(document),), generator=generator)
    same = ordinary[at] == document.cpu()
    return ordinary[(at + same.long()) % len(ordinary)].to(document.device)


@contextmanager
def _undisturbed(model: Any) -> Iterator[None]:
    modes = {module: module.training for module in model.modules()}
    gradients = {parameter: parameter.grad for parameter in model.parameters()}
    for parameter in gradients:
        parameter.grad = None
    model.eval()
    try:
        yield
    finally:
        for module, mode in modes.items():
            module.training = mode
        for parameter, gradient in gradients.items():
            parameter.grad = gradient


def _errors(outputs: Sequence[torch.Tensor], reference: Sequence[torch.Tensor]) -> list[float]:
    """Largest difference in each document, relative to the largest logit of all."""
    scale = _largest(float(each.abs().max()) for each in reference) or 1.0
    return [_largest([float((ours - theirs).abs().max()) / scale]) for ours, theirs in zip(outputs, reference, strict=True)]


def _largest(values: Iterable[float]) -> float:
    """`max` that does not step over NaN, which compares as smaller than nothing and larger than nothing."""
    return max(value if math.isfinite(value) else math.inf for value in values)


def _gradients(model: Any, run: Any) -> dict[str, torch.Tensor]:
    """Gradients of a loss on the documents after the first: only those can have seen another."""
    with torch.enable_grad():
        loss = torch.zeros(())
        for number, logits in enumerate(run()[1:]):
            generator = torch.Generator().manual_seed(number)
            weights = torch.randn(logits.shape, generator=generator).to(logits)
            loss = loss.to(logits.device) + (logits * weights).float().sum()
        loss.backward()  # type: ignore[no-untyped-call]
    found = {name: value.grad for name, value in model.named_parameters() if value.grad is not None}
    for parameter in model.parameters():
        parameter.grad = None
    return found


def _worst_parameter(found: Mapping[str, torch.Tensor], expected: Mapping[str, torch.Tensor]) -> Measured:
    """Norm of the difference relative to the norm of the reference, which counts as at least 1e-2 of the whole: a
    parameter whose gradient is nearly 0 is noise. A parameter in half precision among others in float32 (the activation of
    Apertus in 4.57) counts for as much less as its noise is larger."""
    whole = float(torch.stack([gradient.float().norm() for gradient in expected.values()]).norm()) or 1.0
    errors = {}
    least = min(NOISE.get(gradient.dtype, NOISE[torch.bfloat16]) for gradient in expected.values())
    for name, like in {**found, **expected}.items():
        ours, theirs = (each.get(name, torch.zeros_like(like)).float() for each in (found, expected))
        errors[name] = _largest([float((ours - theirs).norm()) / max(float(theirs.norm()), 1e-2 * whole)])
        errors[name] *= least / NOISE.get(like.dtype, least)
    worst = max(errors, key=lambda name: errors[name])
    return Measured(errors[worst], parameter=worst)
