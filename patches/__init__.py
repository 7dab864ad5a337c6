"""The built-in patches: declarations only, one file per upstream module or family. Installed as `patchwork.patches`."""

from __future__ import annotations

from . import causal_conv1d, fla, mamba_ssm, peft
from .transformers import data_collator, gated_delta, hub_kernels, kda, mamba2, modeling_utils, short_conv, trainer
from .trl import data_utils, dpo_trainer, sft_trainer
from .unsloth_zoo import dataset_utils as zoo_dataset_utils

PATCHES = (
    *modeling_utils.PATCHES,
    *trainer.PATCHES,
    *data_collator.PATCHES,
    *gated_delta.PATCHES,
    *mamba2.PATCHES,
    *short_conv.PATCHES,
    *kda.PATCHES,
    *hub_kernels.PATCHES,
    *causal_conv1d.PATCHES,
    *fla.PATCHES,
    *mamba_ssm.PATCHES,
    *peft.PATCHES,
    *data_utils.PATCHES,
    *sft_trainer.PATCHES,
    *dpo_trainer.PATCHES,
    *zoo_dataset_utils.PATCHES,
)

# The newest releases that these patches were checked against; on newer ones they are tried and marked untested.
TESTED = {"transformers": "5.24.0", "trl": "1.16.0", "fla-core": "0.6.0", "unsloth_zoo": "2026.10.9"}
