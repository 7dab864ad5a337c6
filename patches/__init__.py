"""The built-in patches: declarations only, one file per upstream module or family. Installed as `patchwork.patches`."""

from __future__ import annotations

from . import kernels
from .transformers import dispatched, gated_delta, hub_kernels, kda, modeling_utils, trainer
from .trl import sft_trainer

PATCHES = (
    *modeling_utils.PATCHES,
    *trainer.PATCHES,
    *gated_delta.PATCHES,
    *dispatched.PATCHES,
    *kda.PATCHES,
    *hub_kernels.PATCHES,
    *kernels.PATCHES,
    *sft_trainer.PATCHES,
)

# The newest releases that these patches were checked against; on newer ones they are tried and marked untested.
TESTED = {"transformers": "5.24.0", "trl": "1.16.0", "fla-core": "0.6.0"}
