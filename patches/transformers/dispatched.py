"""Mixers that go to `cuda_kernels_forward` on a GPU (Mamba-2, short convolutions): documents for their kernels."""

from __future__ import annotations

from collections.abc import Sequence

from patchwork import Case, Patch, parameter, required

_SEQ_IDX = parameter("seq_idx", default="None")
_CONVOLUTION = "causal_conv1d_fn(x=$X, weight=$WEIGHT, bias=$BIAS, activation=$ACTIVATION)"
_SHORT_CONVOLUTION = "causal_conv1d_fn($X, $WEIGHTS, $BIAS, activation=None)"
_SCANS = ("mamba_chunk_scan_combined($$$ARGS, seq_idx=None)", "mamba_split_conv1d_scan_combined($$$ARGS, seq_idx=None)")


def _patches(
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


def _mamba2(family: str, mixer: str, since: str) -> tuple[Patch, Patch]:
    body = """
    if self.training:
        return mamba_split_conv1d_scan_combined(x, seq_idx={}, **self.limits)
    x = causal_conv1d_fn(x=x, weight=self.w, bias=self.b, activation=self.a{})
    return mamba_chunk_scan_combined(x, seq_idx={}, z=None)
"""
    return _patches(
        f"transformers.mamba2.{family}",
        f"transformers.models.{family}.modeling_{family}:{mixer}",
        f"{since},<5.15",
        [_CONVOLUTION, *_SCANS],
        "Before 5.15 the mixer tells its scan `seq_idx=None` and its convolution nothing, whatever it was given (bamba and "
        "granitemoehybrid, otherwise of the same text, hand it on). Without the argument nothing changes.",
        "def cuda_kernels_forward(self, x):" + body.format("None", "", "None"),
        "def cuda_kernels_forward(self, x, *, seq_idx=None):" + body.format("seq_idx", ", seq_idx=seq_idx", "seq_idx"),
    )


def _short_conv(family: str, mixer: str, since: str) -> tuple[Patch, Patch]:
    body = "\n    return causal_conv1d_fn(x, self.w, self.b, activation=None{})\n"
    return _patches(
        f"transformers.short_conv.{family}",
        f"transformers.models.{family}.modeling_{family}:{mixer}",
        f"{since},<5.12",
        [_SHORT_CONVOLUTION],
        "Before 5.12 the mixer does not tell its kernel of documents. Without the argument nothing changes.",
        "def cuda_kernels_forward(self, x):" + body.format(""),
        "def cuda_kernels_forward(self, x, *, seq_idx=None):" + body.format(", seq_idx=seq_idx"),
    )


PATCHES = (
    *_mamba2("mamba2", "Mamba2Mixer", ">=4.57"),
    *_mamba2("falcon_h1", "FalconH1Mixer", ">=4.57"),
    *_mamba2("zamba2", "Zamba2MambaMixer", ">=4.57"),
    *_mamba2("nemotron_h", "NemotronHMamba2Mixer", ">=5.3"),
    *_short_conv("lfm2", "Lfm2ShortConv", ">=4.57"),
    *_short_conv("lfm2_moe", "Lfm2MoeShortConv", ">=5.0"),
)
