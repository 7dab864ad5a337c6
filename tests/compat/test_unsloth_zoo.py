"""unsloth_zoo's data preparation loses nothing that the packer keeps: each release's own source, run with the real TRL.

The sources are read from the published wheels when the tests run, and of all but the newest the function alone is run: most
releases refuse to be imported without a GPU, and a process that imports one is changed by it.
"""

from __future__ import annotations

import ast
import functools
import json
import os
import subprocess
import sys
import types
import warnings
import zipfile
from collections.abc import Callable
from pathlib import Path
from types import SimpleNamespace
from typing import Any, Optional, Union

import pytest
import trl
import yaml
from datasets import Dataset, IterableDataset
from packaging.version import Version
from tokenizers import Tokenizer
from tokenizers.models import WordLevel
from tokenizers.pre_tokenizers import WhitespaceSplit
from transformers import PreTrainedTokenizerFast
from trl import pack_dataset

from patchwork import ReleaseUnavailable
from patchwork.packing.decision import PackingRefused
from patchwork.packing.errors import PackingWarning
from patchwork.packing.trainers.dataset_packing import pack_wrapped
from patchwork.patches.unsloth_zoo.dataset_utils import PATCHES
from patchwork.releases.checking import check
from patchwork.releases.trees import Tree
from patchwork.releases.wheels import fetch

MATRIX = yaml.safe_load((Path(__file__).parents[2] / "compat_matrix.yaml").read_text())
RELEASES = [str(release) for release in MATRIX["packages"]["unsloth_zoo"]["releases"]]
NEWEST = RELEASES[-1]
TRL = Version(trl.__version__)
SPLITS = Version("0.27") <= TRL < Version("0.29")  # `bfd` does
SPLITTING = ["bfd_split"] if Version("1.0") <= TRL else ["bfd-requeue"] if Version("0.29") <= TRL else ["bfd"] if SPLITS else []

MAX_LENGTH = 8
LENGTHS = (20, 5)
TOKENS, CUT = 25, 13  # of all documents, and of the first MAX_LENGTH of each
TEMPLATE = "{% for message in messages %}{{ message['content'] + ' ' }}{% endfor %}"


@functools.cache
def tokenizer() -> PreTrainedTokenizerFast:
    words = Tokenizer(WordLevel({"<unk>": 0, "<pad>": 1, **{f"w{n}": n for n in range(2, 100)}}, unk_token="<unk>"))
    words.pre_tokenizer = WhitespaceSplit()
    return PreTrainedTokenizerFast(
        tokenizer_object=words, unk_token="<unk>", pad_token="<pad>", chat_template=TEMPLATE, model_max_length=512
    )


def words(first: int, count: int) -> str:
    return " ".join(f"w{n}" for n in range(first, first + count))


def texts() -> Dataset:
    return Dataset.from_dict({"text": [words(2, LENGTHS[0]), words(50, LENGTHS[1])]})


def pairs() -> Dataset:
    return Dataset.from_dict(
        {"prompt": ["w2 w3", "w50"], "completion": [" " + words(4, LENGTHS[0] - 2), " " + words(51, LENGTHS[1] - 1)]}
    )


def chats() -> Dataset:
    return Dataset.from_dict({"messages": [[{"role": "user", "content": row["text"]}] for row in texts()]})


def arguments(strategy: str = "bfd", **changes: Any) -> SimpleNamespace:
    values = {"max_length": MAX_LENGTH, "dataset_text_field": "text", "packing_strategy": strategy, "dataset_num_proc": None}
    return SimpleNamespace(**{**values, "packing": True, **changes})


@functools.cache
def sources(release: str) -> tuple[str, str]:
    """The module of a release, as it is published and as patchwork rewrites it."""
    try:
        wheel = fetch("unsloth_zoo", release)
    except ReleaseUnavailable as error:
        pytest.skip(f"the published wheel is needed: {error.what}")
    [finding] = check(PATCHES, Tree("unsloth_zoo", release, wheel), keep_rewrites=True)
    assert finding.outcome.state == "applied", finding.outcome.detail
    assert finding.rewrite is not None
    before, after = (text.decode().replace("\r\n", "\n") for text in (finding.rewrite.before, finding.rewrite.source))
    return before, after


@pytest.fixture
def zoo(monkeypatch: pytest.MonkeyPatch) -> Callable[..., Callable[..., Any]]:
    """Gives `sft_prepare_dataset` of a release, stock or patched, and calls it: `packer=None` leaves TRL's out."""
    package = {name: types.ModuleType(f"unsloth_zoo{name}") for name in ("", ".dataset_utils", ".dataset_num_proc")}
    package[".dataset_utils"].trl_collator_applies_masks = lambda: True  # type: ignore[attr-defined]
    package[".dataset_num_proc"].get_dataset_num_proc = lambda wanted: wanted  # type: ignore[attr-defined]
    for name, module in package.items():
        monkeypatch.setitem(sys.modules, f"unsloth_zoo{name}", module)
    mapped = Dataset.map
    # Some releases ask for a process more than there are cores, to tokenize two rows.
    monkeypatch.setattr(Dataset, "map", lambda self, *args, **kwargs: mapped(self, *args, **{**kwargs, "num_proc": None}))

    def prepared(release: str, *, stock: bool = False, packer: Any = pack_dataset) -> Callable[..., Any]:
        source = sources(release)[0 if stock else 1]
        wanted = ("sft_prepare_dataset", "_iterable_batch_size")
        body = [node for node in ast.parse(source).body if isinstance(node, ast.FunctionDef) and node.name in wanted]
        names = {
            "Dataset": Dataset,
            "IterableDataset": IterableDataset,
            "Union": Union,
            "Optional": Optional,
            "Callable": Callable,
        }
        space: dict[str, Any] = {**names, **({"pack_dataset": packer} if packer is not None else {})}
        exec(compile(ast.Module(body, []), f"unsloth_zoo {release}", "exec"), space)

        def call(dataset: Any, args: SimpleNamespace, packing: bool = True, **trainer: Any) -> Any:
            state = SimpleNamespace(**trainer)
            return space["sft_prepare_dataset"](state, dataset, tokenizer(), args, packing, None, "train")

        return call

    return prepared


def kept(dataset: Any) -> int:
    return sum(len(row["input_ids"]) for row in dataset)


@pytest.mark.parametrize("release", RELEASES)
def test_documents_are_cut_by_the_packer_alone(release: str, zoo: Any) -> None:
    ours, stock = zoo(release), zoo(release, stock=True)
    for strategy in ("wrapped", *SPLITTING):
        assert kept(stock(texts(), arguments(strategy))) == CUT  # the control: upstream cuts first, whatever the strategy
        packed = ours(texts(), arguments(strategy))
        assert kept(packed) == TOKENS
        assert {token for row in packed for token in row["input_ids"]} == {*range(2, 22), *range(50, 55)}
        assert max(len(row["input_ids"]) for row in packed) == MAX_LENGTH
    if not SPLITS:
        with pytest.warns(PackingWarning, match="1 of 2 documents have max_length=8 tokens: unsloth_zoo cut those that were"):
            packed = ours(texts(), arguments("bfd"))
        assert packed[:] == stock(texts(), arguments("bfd"))[:]
        assert kept(packed) == CUT
    assert ours(texts(), arguments("wrapped"), False)[:] == stock(texts(), arguments("wrapped"), False)[:]
    assert kept(ours(texts(), arguments("wrapped"), False)) == CUT


@pytest.mark.parametrize(
    ("release", "dataset"),
    [
        *((release, pairs) for release in RELEASES if Version(release) >= Version("2026.3")),
        *((release, chats) for release in RELEASES if Version(release) >= Version("2026.10")),
    ],
)
def test_prompts_with_completions_and_messages_too(release: str, dataset: Callable[[], Dataset], zoo: Any) -> None:
    ours, stock = zoo(release), zoo(release, stock=True)
    for strategy in ("wrapped", *SPLITTING):
        assert kept(stock(dataset(), arguments(strategy))) == CUT
        packed = ours(dataset(), arguments(strategy))
        assert kept(packed) == TOKENS
        assert all(len(row.get("completion_mask", row["input_ids"])) == len(row["input_ids"]) for row in packed)
    for mode in () if SPLITS else ("keep_start", "keep_end"):
        args = arguments("bfd", truncation_mode=mode)
        assert ours(dataset(), args)[:] == stock(dataset(), args)[:]


def test_cut_documents_of_a_stream_are_counted_as_they_are_read(zoo: Any) -> None:
    """Of the newest release: older ones ask a stream for a size of batches that it need not have."""
    if SPLITS:
        pytest.skip("this release of TRL splits documents")
    packed = zoo(NEWEST)(texts().to_iterable_dataset(), arguments("bfd"))
    with pytest.warns(PackingWarning, match="1 of 2 documents have max_length=8"):
        assert kept(packed) == CUT


@pytest.mark.parametrize("release", RELEASES)
def test_the_boundaries_that_a_packer_gives_are_returned(release: str, zoo: Any) -> None:
    """Whatever the strategy: so the rows of `wrapped`, once TRL's packer says them."""

    def with_boundaries(dataset: Any, seq_length: int, strategy: str, map_kwargs: Any = None) -> Any:
        packing = functools.partial(pack_wrapped, seq_length=seq_length)
        return dataset.with_format("arrow").map(packing, batched=True, remove_columns=dataset.column_names).with_format(None)

    packed = zoo(release, packer=with_boundaries)(texts(), arguments("wrapped"))
    assert [row["seq_lengths"] for row in packed] == [[8], [8], [4, 4], [1]]
    assert "seq_lengths" in zoo(release)(texts(), arguments("bfd")).column_names


class Opaque:
    """A callable whose parameters nobody can know."""

    @property
    def __signature__(self) -> Any:
        raise ValueError("no signature found")

    def __call__(self, dataset: Any, seq_length: int, map_kwargs: Any = None) -> Any:
        raise AssertionError("called")


def without_strategy(dataset: Any, seq_length: int, map_kwargs: Any = None) -> Any:
    raise AssertionError("called")


PACKERS = {
    "none": None,
    "no callable": 0,
    "builtin": dict.pop,
    "opaque": Opaque(),
    "without strategy": without_strategy,
    "partial": functools.partial(pack_dataset, strategy="wrapped"),
    "anything": lambda *given: given[0],
}


@pytest.mark.parametrize(
    ("release", "packer"),
    [(release, "without strategy") for release in RELEASES] + [(NEWEST, name) for name in PACKERS if name != "without strategy"],
)
def test_where_the_packer_takes_no_strategy_nothing_is_packed(
    release: str, packer: str, zoo: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    prepared = zoo(release, packer=PACKERS[packer])
    for strategy in ("bfd", "wrapped"):
        with pytest.warns(PackingWarning, match=f"no pack_dataset that is known to take packing_strategy='{strategy}'"):
            rows = prepared(texts(), arguments(strategy))
        assert [len(row["input_ids"]) for row in rows] == [8, 5]
    monkeypatch.setenv("PATCHWORK_ON_REFUSAL", "raise")
    with pytest.raises(PackingRefused, match="no pack_dataset"):
        prepared(texts(), arguments("wrapped"))
    with warnings.catch_warnings():
        warnings.simplefilter("error", PackingWarning)
        assert kept(prepared(texts(), arguments("wrapped"), False)) == CUT  # nobody asked to pack


@pytest.mark.parametrize("release", [RELEASES[0], NEWEST])
def test_documents_of_a_dataset_packed_before_are_not_forgotten(release: str, zoo: Any) -> None:
    prepared = zoo(release)
    packed = Dataset.from_dict({"input_ids": [[1, 2, 3], [4]], "seq_lengths": [[2, 1], [1]]})
    for dataset in (packed, packed.to_iterable_dataset()):  # a stream may not know its columns before its first row
        with pytest.raises(PackingRefused, match="give the documents"):
            prepared(dataset, arguments(), padding_free=True)
        with pytest.raises(PackingRefused, match="its documents are forgotten"):
            prepared(dataset, arguments(), False)
        assert [row["seq_lengths"] for row in prepared(dataset, arguments(), False, padding_free=True)] == [[2, 1], [1]]


@pytest.mark.parametrize("release", [RELEASES[0], NEWEST])
def test_packing_without_max_length_is_an_error_of_one_line(release: str, zoo: Any) -> None:
    with pytest.raises(ValueError, match="packing needs max_length"):
        zoo(release)(texts(), arguments("wrapped", max_length=None))


# ---- the newest release, imported -------------------------------------------------------------------------------

IMPORTED = """
import inspect, json, sys
from pathlib import Path
from types import SimpleNamespace

import patchwork
from patchwork.patches.unsloth_zoo.dataset_utils import PATCHES

if sys.argv[1] == "before":
    [outcome] = patchwork.apply(*PATCHES)
import unsloth_zoo.dataset_utils
from unsloth_zoo.rl_replacements import RL_REPLACEMENTS
if sys.argv[1] == "after":
    [outcome] = patchwork.apply(*PATCHES)
import test_unsloth_zoo as shared

function = unsloth_zoo.dataset_utils.sft_prepare_dataset
# As unsloth takes it over: its text, in a module that has TRL's names.
names = "from typing import *\\nfrom datasets import Dataset, IterableDataset\\nfrom trl import pack_dataset\\n"
Path("pasted.py").write_text(names + inspect.getsource(RL_REPLACEMENTS["sft_prepare_dataset"]))
sys.path.insert(0, "")
import pasted
unsloth_zoo.dataset_utils.pack_dataset = shared.pack_dataset

def kept(call, strategy):
    args = shared.arguments(strategy, dataset_num_proc=1)
    return shared.kept(call(SimpleNamespace(), shared.texts(), shared.tokenizer(), args, True, None, "train"))

strategies = ["bfd", "wrapped", *shared.SPLITTING]
print("RESULT", json.dumps({
    "states": [item.state for item in patchwork.status() if item.patch == outcome.patch],
    "identity": RL_REPLACEMENTS["sft_prepare_dataset"] is function,
    "imported": {name: kept(function, name) for name in strategies},
    "pasted": {name: kept(pasted.sft_prepare_dataset, name) for name in strategies},
}))
"""


@pytest.mark.parametrize("when", ["before", "after"])
def test_the_newest_release_imported_for_real(when: str, tmp_path: Path) -> None:
    """Patched before its import or after, where it is used and where unsloth pastes its text."""
    sources(NEWEST)
    with zipfile.ZipFile(fetch("unsloth_zoo", NEWEST)) as wheel:
        wheel.extractall(tmp_path / "site")
    environment = {
        **os.environ,
        "PYTHONPATH": os.pathsep.join([str(tmp_path / "site"), str(Path(__file__).parent)]),
        "PATCHWORK_CACHE_DIR": str(tmp_path / "cache"),
        "UNSLOTH_ZOO_DISABLE_GPU_INIT": "1",
    }
    command = [sys.executable, "-c", IMPORTED, when]
    done = subprocess.run(command, capture_output=True, text=True, env=environment, cwd=tmp_path, check=False, timeout=300)
    assert done.returncode == 0, done.stderr[-3000:]
    found = json.loads(done.stdout.rpartition("RESULT ")[2])
    expected = {"bfd": CUT, **dict.fromkeys(("wrapped", *SPLITTING), TOKENS)}
    assert found == {"states": ["applied"], "identity": True, "imported": expected, "pasted": expected}
