"""Writes docs/families.md from reports of each recurrent family, and chooses the releases that it is measured on.

`--wheels` prints the wheels of all first, middle and newest listed releases, and the families that each is one of. With
what report_families.py printed, a file a release, it prints the page. Neither torch nor transformers is needed.
"""

from __future__ import annotations

import argparse
import json
import zipfile
from pathlib import Path
from typing import Any

import yaml
from packaging.specifiers import SpecifierSet

from patchwork.packing.models.families import FAMILIES
from patchwork.packing.models.mixers import MIXERS, Mixer
from patchwork.releases import wheels

ROOT = Path(__file__).parents[2]
RECURRENT = {family.name: family for family in FAMILIES if family.recurrent}
KINDS = {
    "gated delta rule": ("qwen3_next", "qwen3_5", "qwen3_5_moe", "qwen4_exp", "olmo_hybrid", "lara_mini"),
    "Kimi delta attention": ("kimi_linear", "bailing_hybrid", "glm5_next"),
    "Mamba": ("mamba", "falcon_mamba", "jamba", "zamba"),
    "Mamba-2": ("mamba2", "bamba", "zamba2", "falcon_h1", "nemotron_h", "granitemoehybrid"),
    "lightning attention": ("minimax",),
    "short convolutions": ("lfm2", "lfm2_moe", "lfm3", "inkling", "inkling2", "inkling2_loop"),
    "convolutions and a delay": ("zaya",),
    "RG-LRU and a convolution": ("recurrent_gemma",),
    "RWKV": ("rwkv",),
    "xLSTM": ("xlstm",),
}
UNMASKED = ("Glm5NextTextAttention",)  # attention that asks for no mask, so it is listed as a mixer like the recurrent ones
BEGIN = """\
# Recurrent families

Each recurrent family that patchwork knows, measured on the first, the middle and the newest release of transformers that
has it, of those that [compat_matrix.yaml](../compat_matrix.yaml) lists. `nox -s families` (`make families`) made this page:
it installs each of these releases, runs `tests/compat/report_families.py` there, and fails where one falls short.

What runs is a tiny model of the family's own default config, or of one with all kinds of its layers: float32, on the CPU,
in training mode, weights of standard deviation 0.1, without kernels, `patchwork.apply()` in force. The rows hold documents
of 7, 5 and 9 tokens; of 1, 64, 65 and 2; and a batch of two has 7, 5, 9 and 13, 8, with a tail of padding. Each call is
made with `position_ids` alone, and with all boundary arguments. The reference is stock transformers, with each document
in a row of its own. The limit of all errors is 1e-4.
"""
MEANING = """\
* **outputs / gradients**: the largest error of an output, relative to the largest logit, and of a parameter's gradient,
  relative to its norm, which counts as at least a thousandth of that of all gradients.
* **stock**: how far outputs of documents behind another one are off in stock transformers, in the worst row; the least and
  the most of the releases. With `position_ids` alone / with all arguments. *raises*: in some of the releases, or all.
* **documents side by side**: the mixers that, without kernels, run on the documents of a row as on a batch. So they do
  where kernels are not all installed, cannot be told of documents, or cannot be watched.
* **native with kernels**: the releases in which that mixer is called once for the row and hands the boundaries on to its
  kernels, source patches of `patchwork.apply()` in force.
* **attention**: *registry*: it looks its function up in transformers' registry, and so runs on documents side by side under
  sdpa and eager, with documents in its block mask under flex attention, with varlen arguments under flash attention. *as a
  mixer*: it runs on documents side by side, like the mixers. *no flash*: packed rows are refused under flash attention.
"""
UPSTREAM = """\
## What upstream itself cannot run
* **xlstm 4.57**: its code for whole chunks, rows of 64 tokens and more, does not run. The second row has 1, 29, 31 and 2
  there.
* **recurrent_gemma 4.57**: a call without a cache, too, goes on from the states of the one before it. Here they are dropped
  before each such call.
* **zamba2 and nemotron_h to 5.14**: in the scan of torch, chunks see those behind them, so padding behind a document would
  change it. There documents of one length only run together.
* **zamba2 5.0** cannot be built of its own default config, and 5.1 to 5.3 run with `use_mem_rope` only. Here it is set.
* **falcon_h1 5.4** refuses its own default config (`use_cache`).

Without kernels, stock ignores all boundary arguments to 5.19, and from 5.20 raises ValueError where they reach a kernel.
Exceptions: bamba and granitemoehybrid raise NotImplementedError to 5.14; the convolutions of lfm2 and lfm2_moe in 5.13 and
5.14, in a batch of one, and the dynamic ones of inkling2 and inkling2_loop from 5.24 on obey `seq_idx`.
"""
STRUCTURE = """\
## Code that comes with a checkpoint
Classes that are no part of transformers are recognised by what they hold (`patchwork/packing/models/unknown_code.py`):

| part | recognised by |
|---|---|
| gated delta rule, Mamba | causal depthwise `Conv1d`s, `A_log` with `D` or `dt_bias`, a projection out |
| short convolution | a causal depthwise `Conv1d` between `in_proj` and `out_proj`, no parameters of its own |
| attention | projections to query, key and value, `is_causal`, a call through transformers' registry of attention functions |
| part that works on each token alone | torch's linear, norm, embedding and activation modules; by name, norms, MLPs, experts, \
routers and rotary embeddings, where no method moves or sums anything along a dimension (`roll`, `cumsum`, `pad`) |

All of them run on documents side by side, attention too. Refused, naming the part, is a model with anything else: a
convolution that looks ahead or is not depthwise, attention that is not causal or not called through the registry, a token
shift, a mixer whose call takes an argument that is not known, or a backbone without a list of layers.
"""


# ---- which releases ---------------------------------------------------------------------------------------------


def listed() -> list[str]:
    """The releases of transformers in compat_matrix.yaml, ascending."""
    matrix = yaml.safe_load((ROOT / "compat_matrix.yaml").read_text(encoding="utf-8"))
    return [str(release) for release in matrix["packages"]["transformers"]["releases"]]


def listed_wheels() -> dict[str, Path]:
    """The wheels of those, from the cache or fetched into it."""
    found = listed()
    return dict(zip(found, wheels.fetch_all([("transformers", each) for each in found]), strict=True))


def releases(held: dict[str, Path]) -> dict[str, tuple[str, ...]]:
    """By family, the first, the middle and the newest of some releases whose wheel has its modeling file."""
    files = {}
    for release, path in held.items():
        with zipfile.ZipFile(path) as wheel:
            files[release] = set(wheel.namelist())
    having = {
        name: [release for release in held if f"transformers/models/{name}/modeling_{name}.py" in files[release]]
        for name in RECURRENT
    }
    return {name: tuple(dict.fromkeys((own[0], own[len(own) // 2], own[-1]))) for name, own in having.items()}


# ---- the page ---------------------------------------------------------------------------------------------------


def page(lines: list[dict[str, Any]], chosen: dict[str, tuple[str, ...]]) -> str:
    """docs/families.md of all measurements: those of a family's own releases count, in that order."""
    found = {(line["family"], line["release"]): line for line in lines}
    measured = {name: [found[name, release] for release in own] for name, own in chosen.items()}
    all_of = [line for own in measured.values() for line in own]
    outputs, gradients = (min(line[f"control_{what}"] for line in all_of) for what in ("outputs", "gradients"))
    rows = [_row(name, kind, measured[name]) for kind, names in KINDS.items() for name in names]
    heads = ("family", "kind", "release: outputs / gradients off by", "stock off by", "documents side by side")
    return "\n".join(
        (
            BEGIN,
            f"The control, the same calls without boundaries, differs by {outputs:.2g} at least in the outputs of each document",
            f"behind another one, and by {gradients:.2g} in the gradients; 0.01 would do.\n",
            f"| {' | '.join((*heads, 'native with kernels', 'attention'))} |\n{'|---' * 7}|",
            "\n".join(rows) + "\n",
            MEANING,
            _closed(),
            UPSTREAM,
            STRUCTURE.rstrip(),
        )
    )


def _row(name: str, kind: str, measured: list[dict[str, Any]]) -> str:
    errors = [f"{line['release']}: {_short(line['outputs'])} / {_short(line['gradients'])}" for line in measured]
    mixers = [mixer for mixer in MIXERS if name == mixer.family and not mixer.attention]
    cells = (
        f"`{name}`",
        kind,
        "<br>".join(errors),
        " / ".join(_stock([line["stock"][form] for line in measured]) for form in ("positions", "full")),
        "<br>".join(f"`{mixer.name}`" for mixer in mixers),
        "<br>".join(native(mixer, measured[0]["release"]) for mixer in mixers),
        _attention(name, measured),
    )
    return f"| {' | '.join(cells)} |"


def native(mixer: Mixer, first: str) -> str:
    """In which releases a mixer goes the native way; ``first``: the first one that is listed and has it."""
    if not mixer.native:
        return "never"
    return "all" if SpecifierSet(mixer.native).contains(first) else mixer.native.replace(">=", "from ")


def _short(value: float) -> str:
    return f"{value:.0e}".replace("e-0", "e-")


def _stock(values: list[float | str]) -> str:
    numbers = [value for value in values if not isinstance(value, str)]
    said = []
    if numbers:
        low, high = f"{min(numbers):.2g}", f"{max(numbers):.2g}"
        said.append(low if low == high else f"{low} to {high}")
    return ", ".join(said + ["raises"] * (len(numbers) < len(values)))


def _attention(name: str, measured: list[dict[str, Any]]) -> str:
    """Through what attention is kept apart, as it was measured."""
    own = {mixer.name for mixer in MIXERS if name == mixer.family and (mixer.attention or mixer.name in UNMASKED)}
    ways: dict[str, list[str]] = {}
    for line in measured:
        for kind, part in line["ways"].items():
            if part["role"] == "attention" or kind in own:
                on = ways.setdefault("as a mixer" if kind in own else "registry", [])
                on += [line["release"]] * (line["release"] not in on)
    said = ", ".join(ways if len(ways) < 2 else (f"{way} ({', '.join(on)})" for way, on in ways.items()))
    return f"{said}, no flash" if said and not RECURRENT[name].flash else said or "none"


def _closed() -> str:
    """Why kernels are not told of documents, mixers with the same reason together."""
    by_reason: dict[tuple[str, str], list[str]] = {}
    for mixer in MIXERS:
        if mixer.closed and not mixer.attention:
            when = mixer.native.replace(">=", "before ") or "all"
            by_reason.setdefault((when, mixer.closed), []).append(f"`{mixer.name}`")
    rows = [f"| {', '.join(names)} | {when} | {reason} |" for (when, reason), names in by_reason.items()]
    return (
        "## Where the kernels' path is left closed, and why\n"
        "Documents side by side then use whatever kernel runs, in one call for those of about one length.\n\n"
        "| mixer | releases | why |\n|---|---|---|\n" + "\n".join(rows) + "\n"
    )


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--wheels", action="store_true", help="print them as JSON: families by path")
    parser.add_argument("reports", nargs="*", type=Path, help="what report_families.py printed")
    given = parser.parse_args()
    held = listed_wheels()
    chosen = releases(held)
    if given.wheels:
        due = {str(path): [name for name, own in chosen.items() if release in own] for release, path in held.items()}
        print(json.dumps({path: names for path, names in due.items() if names}, indent=1))
        return
    print(page([line for path in given.reports for line in json.loads(path.read_text(encoding="utf-8"))], chosen))


if __name__ == "__main__":
    main()
