"""How much of one document reaches another in a packed row? Measured on a model, forward and backward.

Each document runs alone, packed, and packed with its boundaries removed (the positive control). Each document is
replaced in turn, and whatever moves outside of it is a leak.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import asdict, dataclass
from typing import Any

import torch

from patchwork.packing.boundaries import Boundaries, BoundariesError

# A leak passes below NOISE of the logits' scale, and only if the control shows CLEAR times what was measured and CLEAR
# times the noise: with small weights a leak hides below it. No control gets far above the noise of half precision, so
# VISIBLE is always enough.
NOISE = {torch.float64: 1e-8, torch.float32: 1e-4, torch.float16: 2e-2, torch.bfloat16: 5e-2}
CLEAR, VISIBLE = 20.0, 0.1


@dataclass(frozen=True)
class Measured:
    """One comparison. ``worst``: the largest error in any document, ``by_document``: in each. For gradients,
    ``parameter`` names the worst one; errors are relative to its norm."""

    worst: float
    by_document: tuple[float, ...] = ()
    parameter: str = ""


@dataclass(frozen=True)
class LeakReport:
    """What ``measure_leaks`` saw; all numbers are relative to the scale of the reference.

    ``matrix[i][j]``: how far the logits of document j move when document i is replaced; 0 on the diagonal. ``forward``
    and ``backward``: packed against alone. ``control``: the same with boundaries removed; a row whose control is not
    clearly above the noise proves nothing.
    """

    documents: tuple[int, ...]
    matrix: tuple[tuple[float, ...], ...]
    forward: Measured
    backward: Measured
    control: Measured
    control_backward: Measured
    noise: float
    model: str

    @property
    def worst(self) -> float:
        """The largest leak of any kind; infinite where an output was not finite."""
        return _largest([self.forward.worst, self.backward.worst, *(value for row in self.matrix for value in row)])

    @property
    def passed(self) -> bool:
        """All leaks at the noise floor, and both controls clearly above it and above what was measured."""
        seen = min(self.control.worst, self.control_backward.worst)
        bar = max(CLEAR * self.worst, min(CLEAR * self.noise, VISIBLE))
        return math.isfinite(seen) and self.worst < self.noise and seen > bar

    def as_dict(self) -> dict[str, Any]:
        """Plain numbers, strings and lists, for JSON."""
        plain: dict[str, Any] = asdict(self) | {"worst": self.worst, "passed": self.passed}
        return plain


def measure_leaks(
    model: Any,
    documents: Sequence[int] | Sequence[torch.Tensor] = (7, 5, 9),
    *,
    arguments: str = "positions",
    seed: int = 0,
) -> LeakReport:
    """Measures a model as it is, isolated or stock.

    ``documents``: at least two, token ids (1-D) or lengths for random ones. ``arguments``: what the packed call says of
    its documents, "positions" (restarting position ids) or "full" (seq_idx and cumulative lengths too). The model is
    run in evaluation mode, and its mode and gradients are as before afterwards. Raises BoundariesError for fewer than
    two documents, and whatever the model raises when it refuses the row.
    """
    if len(documents) < 2:
        raise BoundariesError(f"a leak needs two documents, got {len(documents)}")
    vocabulary = model.get_input_embeddings().weight.shape[0]
    device = model.get_input_embeddings().weight.device
    generator = torch.Generator().manual_seed(seed)
    first, other = (
        [_document(each, vocabulary, generator, replace).to(device) for each in documents] for replace in (False, True)
    )
    lengths = [len(document) for document in first]
    kwargs = Boundaries.from_seq_lens(lengths, device=device).model_kwargs()
    if arguments == "positions":
        kwargs = {"position_ids": kwargs["position_ids"]}
    control_kwargs = {"position_ids": torch.arange(sum(lengths), device=device)[None]}

    def packed(parts: Sequence[torch.Tensor], call: Mapping[str, Any]) -> list[torch.Tensor]:
        logits = model(input_ids=torch.cat(list(parts))[None], use_cache=False, **call).logits[0]
        return list(logits.split(lengths))

    def alone(parts: Sequence[torch.Tensor]) -> list[torch.Tensor]:
        return [model(input_ids=part[None], use_cache=False).logits[0] for part in parts]

    with _undisturbed(model):
        with torch.no_grad():
            reference, row = alone(first), packed(first, kwargs)
            matrix = []
            for number in range(len(first)):
                changed = packed([*first[:number], other[number], *first[number + 1 :]], kwargs)
                moved = _errors(changed, row)
                matrix.append(tuple(0.0 if at == number else value for at, value in enumerate(moved)))
            forward, control = (_errors(outputs, reference) for outputs in (row, packed(first, control_kwargs)))
        expected = _gradients(model, lambda: alone(first))
        backward = _worst_parameter(_gradients(model, lambda: packed(first, kwargs)), expected)
        control_backward = _worst_parameter(_gradients(model, lambda: packed(first, control_kwargs)), expected)
    return LeakReport(
        documents=tuple(lengths),
        matrix=tuple(matrix),
        forward=Measured(_largest(forward), tuple(forward)),
        backward=backward,
        control=Measured(_largest(control), tuple(control)),
        control_backward=control_backward,
        noise=NOISE.get(reference[0].dtype, NOISE[torch.bfloat16]),
        model=type(model).__name__,
    )


def _document(given: Any, vocabulary: int, generator: torch.Generator, replace: bool) -> torch.Tensor:
    """Token ids ``(length,)``: those given, or random ones; to ``replace`` a given document, ids that all differ."""
    if isinstance(given, torch.Tensor) and given.ndim == 1:
        return (given + 1 + vocabulary // 3) % vocabulary if replace else given
    return torch.randint(vocabulary, (int(given),), generator=generator)


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
    """``max`` that does not step over NaN, which compares as smaller than nothing and larger than nothing."""
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
    parameter whose gradient is nearly 0 is noise."""
    whole = float(torch.stack([gradient.float().norm() for gradient in expected.values()]).norm()) or 1.0
    errors = {}
    for name, like in {**found, **expected}.items():
        ours, theirs = (each.get(name, torch.zeros_like(like)).float() for each in (found, expected))
        errors[name] = _largest([float((ours - theirs).norm()) / max(float(theirs.norm()), 1e-2 * whole)])
    worst = max(errors, key=lambda name: errors[name])
    return Measured(errors[worst], parameter=worst)
