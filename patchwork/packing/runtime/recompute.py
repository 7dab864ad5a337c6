"""Code that is run again in a backward pass knows the documents of the call that ran it first, or raises.

Activation checkpointing runs a part of a model again when the packed call is over: a layer, a mixer, half a layer, several
layers. What torch.utils.checkpoint will run again carries the scope of the first run, wherever the checkpoint was put. Other
checkpointing code does not pass there. So the backward pass of each packed call is watched while it lasts: an isolated module
that is run again in it, by whoever, without a scope, raises IsolationError before its gradients leak.
"""

from __future__ import annotations

import functools
import itertools
import weakref
from collections.abc import Callable, Iterator, Mapping
from typing import Any

import torch
from torch.utils import checkpoint

from ..errors import IsolationError
from .call_scope import AMBIENT, Scope, telling, within

Function = Callable[..., Any]


# ---- what torch runs again ---------------------------------------------------------------------------------------


def carry() -> None:
    """Lets both kinds of torch's checkpointing carry scopes, once a process.

    Both classes are wrapped, not the functions around them, of which other modules hold their own references
    (torch.distributed's checkpoint wrappers, transformers).
    """
    reentrant: Any = checkpoint.CheckpointFunction
    if not hasattr(reentrant.forward, "__patchwork__"):
        reentrant.forward = staticmethod(_reentrant(reentrant.forward))
    frame: Any = checkpoint._CheckpointFrame
    if not hasattr(frame.__init__, "__patchwork__"):
        frame.__init__ = _not_reentrant(frame.__init__)


def _reentrant(original: Function) -> Function:
    @functools.wraps(original)
    def forward(ctx: Any, run_function: Function, *args: Any) -> Any:
        outputs = original(ctx, run_function, *args)
        ctx.run_function = carried(ctx.run_function)  # what backward() runs
        return outputs

    forward.__patchwork__ = True  # type: ignore[attr-defined]
    return forward


def _not_reentrant(original: Function) -> Function:
    @functools.wraps(original)
    def __init__(self: Any, *args: Any, **kwargs: Any) -> None:
        original(self, *args, **kwargs)
        self.recompute_fn = carried(self.recompute_fn)

    __init__.__patchwork__ = True  # type: ignore[attr-defined]
    return __init__


def carried(function: Function) -> Function:
    """`function` for a later run in the scope of now, in whichever thread that is; an ordinary call stays one."""
    scope, told = AMBIENT.scope, AMBIENT.told

    def again(*args: Any, **kwargs: Any) -> Any:
        if scope is None and told is None and not RUNNING:  # as it ran first, for compiled code too
            return function(*args, **kwargs)
        with within(scope.again() if scope is not None else Scope.ordinary()), telling(told):
            return function(*args, **kwargs)

    return again


class Carrying:
    """A checkpointing function that is none of torch's, for what it is handed to run again."""

    def __init__(self, function: Function) -> None:
        self.function = function

    def __call__(self, function: Function, *args: Any, **kwargs: Any) -> Any:
        return self.function(_twice(function), *args, **kwargs)


def carrying(function: Function) -> Function:
    """A checkpointing function, as transformers gives it to a model's layers, that carries scopes: torch's does already."""
    inner = function
    while isinstance(inner, functools.partial):
        inner = inner.func
    return function if inner is checkpoint.checkpoint or isinstance(inner, Carrying) else Carrying(function)


def _twice(function: Function) -> Function:
    """`function` for its first run, which is now, and in the scope of now for those that follow."""
    runs = itertools.chain([function], itertools.repeat(carried(function)))

    def run(*args: Any, **kwargs: Any) -> Any:
        return next(runs)(*args, **kwargs)

    return run


# ---- what others run again ---------------------------------------------------------------------------------------

# The packed calls whose backward pass is under way, in any thread. Compiled code guards on its being empty.
RUNNING: list[weakref.ref[_Packed]] = []


class _Packed:
    """A packed call of a model, held by the graph that its outputs came with.

    `detached`: of a model whose backbone ran without gradients, so that nothing but the backbone's own run again can follow.
    """

    def __init__(self, model: Any, detached: bool) -> None:
        self.model, self.detached = weakref.ref(model), detached

    def enter(self, _: Any) -> None:
        """Called as a backward pass reaches the outputs of the call."""
        entry = weakref.ref(self, _forget)  # gone with the graph, should the pass end in an error
        RUNNING.append(entry)
        torch.autograd.Variable._execution_engine.queue_callback(functools.partial(_forget, entry))

    def holds(self, module: Any) -> bool:
        model = self.model()
        return model is not None and any(each is module for each in model.modules())


def _forget(entry: weakref.ref[_Packed]) -> None:
    RUNNING[:] = [each for each in RUNNING if each is not entry]


@torch.compiler.disable  # type: ignore[untyped-decorator]
def watch(model: Any, output: Any, detached: bool = False) -> bool:
    """Watches the backward pass of a packed call of `model`, through `output`; whether there will be one."""
    nodes = {id(tensor.grad_fn): tensor.grad_fn for tensor in _tensors(output) if tensor.grad_fn is not None}
    packed = _Packed(model, detached)
    for node in nodes.values():
        node.register_prehook(packed.enter)
    return bool(nodes)


def _tensors(value: Any) -> Iterator[torch.Tensor]:
    if isinstance(value, torch.Tensor):
        yield value
    elif isinstance(value, Mapping):
        yield from _tensors(tuple(value.values()))
    elif isinstance(value, (tuple, list)):
        for each in value:
            yield from _tensors(each)


def unscoped() -> bool:
    """Whether this thread is in no call that is known, while a packed call's backward pass is under way somewhere."""
    return bool(RUNNING) and AMBIENT.scope is None


@torch.compiler.disable  # type: ignore[untyped-decorator]
def refuse_recompute(module: Any, whole: bool = False) -> None:
    """Raises IsolationError if `module`, called where `unscoped()`, is run again in the backward pass of a packed call.

    `whole`: it is a backbone, which reads boundaries from its own call unless the model around it had to hand them on.
    """
    if not _in_backward():
        return
    packed = [found for each in RUNNING if (found := each()) is not None and (found.detached or not whole)]
    if any(each.holds(module) for each in packed):
        raise IsolationError(
            f"a {type(module).__name__} is run again in the backward pass of a packed call by checkpointing that does not pass "
            "torch.utils.checkpoint, so it does not know the documents, and gradients would leak: use "
            "torch.utils.checkpoint.checkpoint, or model.gradient_checkpointing_enable() after patchwork.apply()"
        )


def _in_backward() -> bool:
    return torch._C._current_graph_task_id() != -1  # what torch.utils.checkpoint asks, too
