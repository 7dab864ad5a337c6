"""What one of two processes does in test_ranks.py: one training step on documents of its own, with gloo, on the CPU."""

from __future__ import annotations

import functools
import os
from collections.abc import Callable
from pathlib import Path
from typing import Any

import tiny
import torch
import torch.distributed
from alone import DENSE, Case, logits

from patchwork.packing import isolate
from patchwork.packing.runtime.document_batching import plan

# Two buckets against one, and another row length.
CASES = [Case(DENSE, ((7, 100, 9),)), Case(DENSE, ((12, 11, 10),))]


def model() -> torch.nn.Module:
    """The same on every rank. No experts: DDP wants each parameter to take part in each step."""
    return tiny.build(DENSE, **({} if DENSE == "qwen3_5" else {"mlp_only_layers": [0, 1, 2, 3]}))


@functools.cache
def expected(nudged: bool = False) -> dict[str, torch.Tensor]:
    """The mean over ranks of the gradients of documents alone; ``nudged``: with the last bits of the weights moved."""
    plain = tiny.nudged(model()) if nudged else model()
    found = [
        tiny.gradients(plain, lambda case=case: tiny.loss([logits(plain, part) for part in case.documents])) for case in CASES
    ]
    return {name: (found[0][name] + found[1][name]) / 2 for name in found[0]}


def worst(rank: int, wrap: Callable[[torch.nn.Module], Any], packed: bool = True) -> float:
    inner = model()
    isolate(inner)
    wrapped = wrap(inner)
    case = CASES[rank]
    arguments = case.form() if packed else {}
    tiny.loss(case.split(logits(wrapped, case.tokens, **arguments))).backward()
    found = {}
    for name, parameter in inner.named_parameters():
        gradient = parameter.grad
        found[name] = gradient.full_tensor() if hasattr(gradient, "full_tensor") else gradient
    return tiny.worst_difference(found, expected())


def checkpointed(module: Any, reentrant: bool) -> Any:
    module.gradient_checkpointing_enable({"use_reentrant": reentrant})
    module.enable_input_require_grads()
    return module


def sharded(module: Any) -> Any:
    """Parameters sharded by mixer, by layer and for the rest, gathered where each of them is called."""
    from torch.distributed.device_mesh import init_device_mesh
    from torch.distributed.fsdp import fully_shard

    mesh = init_device_mesh("cpu", (2,))
    for layer in module.model.layers:
        if hasattr(layer, "linear_attn"):
            fully_shard(layer.linear_attn, mesh=mesh)
        fully_shard(layer, mesh=mesh)
    fully_shard(module, mesh=mesh)
    return module


def step(rank: int, folder: str) -> None:
    """Writes the largest difference of a gradient for each way to run a step, without boundaries, and with nudged weights."""
    assert len({len(plan(case.boundaries).shapes) for case in CASES}) == 2, "ranks must differ in their number of buckets"
    store = torch.distributed.FileStore(f"{folder}/store", 2)
    torch.distributed.init_process_group("gloo", store=store, rank=rank, world_size=2)
    ddp = torch.nn.parallel.DistributedDataParallel
    differences = {
        "ddp": worst(rank, ddp),
        "ddp, checkpointing": worst(rank, lambda module: ddp(checkpointed(module, False))),
        "ddp, reentrant checkpointing": worst(rank, lambda module: ddp(checkpointed(module, True))),
        "sharded": worst(rank, sharded),
        "sharded, checkpointing": worst(rank, lambda module: sharded(checkpointed(module, False))),
        "control": worst(rank, ddp, packed=False),
        "nudged": tiny.worst_difference(expected(nudged=True), expected()),
    }
    torch.save(differences, Path(folder) / f"{rank}.pt")
    torch.distributed.barrier()
    torch.distributed.destroy_process_group()
    # Threads of gloo can outlive the group and abort the interpreter's shutdown ("terminate called ..."); all is written.
    os._exit(0)
