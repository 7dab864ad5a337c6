"""The torch scan of zamba2 and nemotron_h: chunks see those before them, not those behind."""

from __future__ import annotations

from patchwork.engine.patch import Case, Patch, required

_MIXERS = {
    "zamba2": ("Zamba2MambaMixer", ">=4.57,<5.15"),
    "nemotron_h": ("NemotronHMamba2Mixer", ">=5.3,<5.15"),
}
_SUM = "(decay_chunk[..., None, None] * states_permuted[:, :, None, ...]).sum(dim={})"


def _patch(family: str, mixer: str, versions: str) -> Patch:
    return Patch(
        name=f"transformers.torch_scan.{family}",
        target=f"transformers.models.{family}.modeling_{family}:{mixer}.torch_forward",
        versions={"transformers": versions},
        reason=(
            "The states of chunks are summed over the chunks that they go to instead of those that they come from, so on the "
            "path of torch a token of one chunk changes outputs of the chunks before it, and a document of more than one chunk "
            "comes out otherwise when it is padded. The kernels, and upstream from 5.15 on, have it right. Packed or not, "
            "documents of more than one chunk change by about 1% of the largest logit."
        ),
        edits=[required(_SUM.format("2")).set_argument("dim", "3")],
        cases=[
            Case(
                before=f"def torch_forward(self, x):\n    result = {_SUM.format('2')}\n    return result\n",
                after=f"def torch_forward(self, x):\n    result = {_SUM.format('3')}\n    return result\n",
            )
        ],
    )


PATCHES = tuple(_patch(family, *entry) for family, entry in _MIXERS.items())
