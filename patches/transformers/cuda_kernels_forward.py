"""Patches of mixers that go to `cuda_kernels_forward` on a GPU: `seq_idx` is handed on to it, and by it to its kernels."""

from __future__ import annotations

from collections.abc import Sequence

from patchwork import Case, Patch, parameter, required

_SEQ_IDX = parameter("seq_idx", default="None")


def kernel_patches(
    name: str, target: str, versions: str, kernels: Sequence[str], reason: str, before: str, after: str
) -> tuple[Patch, Patch]:
    """The dispatch and the kernels' calls, which only together do anything."""
    return (
        Patch(
            name=f"{name}.forward",
            target=f"{target}.forward",
            versions={"transformers": versions},
            reason=reason,
            edits=[_SEQ_IDX, required("self.cuda_kernels_forward($$$ARGS)").set_argument("seq_idx", "seq_idx")],
            cases=[
                Case(
                    before="def forward(self, x):\n    return self.cuda_kernels_forward(x)\n",
                    after="def forward(self, x, *, seq_idx=None):\n    return self.cuda_kernels_forward(x, seq_idx=seq_idx)\n",
                )
            ],
        ),
        Patch(
            name=f"{name}.kernels",
            target=f"{target}.cuda_kernels_forward",
            versions={"transformers": versions},
            reason=reason,
            edits=[_SEQ_IDX, *(required(kernel).set_argument("seq_idx", "seq_idx") for kernel in kernels)],
            cases=[Case(before=before, after=after)],
        ),
    )
