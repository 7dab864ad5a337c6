"""The demo reads what it is given, refuses what it cannot use in a sentence, and shows what it measured."""

from __future__ import annotations

import json
import os
import re
import subprocess
import sys
from importlib.util import find_spec
from pathlib import Path

import pytest
from rich.console import Console

from patchwork.commands.demo_data import DemoError, byte_tokenizer, read_documents, standard_library_docstrings, tokenize
from patchwork.commands.picture import SHADES, as_png, in_terminal, shade

needs_torch = pytest.mark.skipif(find_spec("torch") is None, reason="torch is not installed")
needs_matplotlib = pytest.mark.skipif(find_spec("matplotlib") is None, reason="matplotlib is not installed")


def test_docstrings_are_a_megabyte_of_real_text_in_a_fixed_order() -> None:
    documents = standard_library_docstrings()
    assert sum(len(text.encode()) for text in documents) >= 1_000_000
    assert len(set(documents)) == len(documents)
    few = standard_library_docstrings(limit=50_000)
    assert few == documents[: len(few)]
    assert 50_000 <= sum(len(text.encode()) for text in few) < 60_000


@needs_torch
def test_byte_tokenizer_gives_back_any_text() -> None:
    tokenizer = byte_tokenizer()
    assert len(tokenizer) == 258
    text = "Grüße, 日本, \t\r\n  two  spaces " + "".join(map(chr, range(128)))
    ids = tokenizer(text, add_special_tokens=False)["input_ids"]
    assert len(ids) == len(text.encode())
    assert tokenizer.decode(ids) == text


@needs_torch
def test_each_document_ends_once_also_when_it_is_cut() -> None:
    tokenizer = byte_tokenizer()
    rows = tokenize(["abc", "", "x" * 100], tokenizer, longest=10)
    assert [len(row) for row in rows] == [4, 10]
    assert all(row[-1] == tokenizer.eos_token_id and tokenizer.eos_token_id not in row[:-1] for row in rows)


def test_jsonl_documents(tmp_path: Path) -> None:
    path = tmp_path / "mine.jsonl"
    path.write_text('{"text": "one"}\n\n{"text": "zwei\\n", "more": 1}\n{"text": "three"}', encoding="utf-8")
    assert read_documents(str(path)) == ["one", "zwei", "three"]


def test_txt_documents_are_separated_by_blank_lines(tmp_path: Path) -> None:
    path = tmp_path / "mine.txt"
    path.write_text("\n\none\nstill one\n \n\ntwo\n\nthree", encoding="utf-8")
    assert read_documents(str(path)) == ["one\nstill one", "two", "three"]


@pytest.mark.parametrize(
    ("name", "content", "says"),
    [
        ("empty.jsonl", b"", "empty.jsonl: the file is empty"),
        ("empty.txt", b" \n\n", "empty.txt: the file is empty"),
        ("plain.jsonl", b'{"text": "a"}\nhello\n', "plain.jsonl, line 2: not JSON"),
        ("other.jsonl", b'{"prompt": "a", "answer": "b"}\n', "(fields: prompt, answer)"),
        ("number.jsonl", b'{"text": 1}\n', 'line 1: no "text" field with a string'),
        ("list.jsonl", b'["a"]\n', 'line 1: no "text" field with a string in it (list)'),
        ("table.csv", b"a,b\n", ".csv extension is not known. Give a .jsonl"),
        ("latin.txt", "Grüße".encode("latin-1"), "latin.txt: not UTF-8 at byte 2"),
        (
            "single.txt",
            b"one\ntwo\nthree\n",
            "holds 1 document(s); packing needs at least 3. Documents of a .txt file are separated by blank lines",
        ),
    ],
)
def test_dataset_that_cannot_be_used_is_named(tmp_path: Path, name: str, content: bytes, says: str) -> None:
    path = tmp_path / name
    path.write_bytes(content)
    with pytest.raises(DemoError, match=re.escape(says)) as caught:
        read_documents(str(path))
    assert str(path) in str(caught.value)


@pytest.mark.parametrize(("name", "says"), [("", "no such file"), ("no/such/file.jsonl", "no such file"), (".", "is a folder")])
def test_dataset_that_does_not_exist_is_named(name: str, says: str) -> None:
    with pytest.raises(DemoError, match=says):
        read_documents(name)


@needs_torch
@pytest.mark.parametrize(
    "kind", ["missing", "empty name", "empty folder", "unknown architecture", "no weights", "tokenizer too large"]
)
def test_model_that_cannot_be_loaded_is_named(tmp_path: Path, kind: str) -> None:
    from patchwork.commands.demo_training import load

    name = {"missing": str(tmp_path / "missing"), "empty name": ""}.get(kind, str(tmp_path))
    if kind == "unknown architecture":
        (tmp_path / "config.json").write_text('{"model_type": "no_such_model"}')
    if kind == "no weights":
        byte_tokenizer().save_pretrained(tmp_path)
        (tmp_path / "config.json").write_text('{"model_type": "llama", "num_hidden_layers": 1}')
    if kind == "tokenizer too large":
        byte_tokenizer().save_pretrained(tmp_path)
        (tmp_path / "config.json").write_text('{"model_type": "llama", "num_hidden_layers": 1, "vocab_size": 97}')
    with pytest.raises(DemoError, match="--model") as caught:
        load(name).build()
    assert name in str(caught.value)
    assert "\n" not in str(caught.value)


def test_shades_grow_with_the_leak() -> None:
    shades = [shade(value) for value in (0.0, 1e-9, 1e-5, 1e-3, 0.1, 1.0, 5.0, float("nan"))]
    assert shades == sorted(shades)
    assert (shades[0], shades[1], shades[-1]) == (0, 0, len(SHADES) - 1)


def test_terminal_shows_numbers_and_leaves_noise_out() -> None:
    console = Console(width=100, record=True, file=open(os.devnull, "w"))  # noqa: SIM115
    console.print(in_terminal({"before": [[0.0, 0.25], [3e-9, 0.0]], "after": [[0.0, 0.0], [2e-4, 0.0]]}))
    lines = console.export_text().splitlines()
    assert "before" in lines[0]
    assert "after" in lines[0]
    assert "0.25" in lines[2]
    assert "·" in lines[3]
    assert "2e-4" in lines[3]


@needs_matplotlib
def test_png_is_written(tmp_path: Path) -> None:
    as_png({"a": [[0.0, 0.5], [0.0, 0.0]]}, tmp_path / "leak.png", "caption")
    assert (tmp_path / "leak.png").read_bytes().startswith(b"\x89PNG")


RUN = """
import json, sys
from pathlib import Path
from rich.console import Console
from patchwork.commands.demo import run
model, dataset = (value or None for value in sys.argv[2:])
run(model, dataset, Path(sys.argv[1]), Console(width=120), tokens=5000, seconds=5)
"""


def run_demo(out: Path, model: str = "", dataset: str = "") -> tuple[str, dict[str, object]]:
    """A short demo in a process of its own: it leaves patches applied."""
    done = subprocess.run([sys.executable, "-c", RUN, out, model, dataset], capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
    assert "Traceback" not in done.stderr
    return done.stdout, json.loads((out / "demo.json").read_text())


@pytest.mark.slow
@needs_torch
def test_demo_shows_the_leak_and_its_end(tmp_path: Path) -> None:
    printed, numbers = run_demo(tmp_path / "out")
    assert numbers["passed"] is True
    before, after = numbers["leak"]["before"], numbers["leak"]["after"]
    assert before["forward"]["worst"] > 1e-2
    assert before["backward"]["worst"] > 1e-2
    assert after["forward"]["worst"] < 1e-4
    assert after["backward"]["worst"] < 1e-4
    assert after["control"]["worst"] > 1e-2
    training = numbers["training"]
    assert training["packed_exact"]["packed"] is True
    assert training["padded"]["padding"] > 0.3
    assert training["packed_exact"]["padding"] == 0
    assert "Packing is exact here" in printed
    assert (tmp_path / "out" / "leak.png").is_file()


@pytest.mark.slow
@needs_torch
def test_demo_runs_on_a_model_and_text_of_ones_own(tmp_path: Path) -> None:
    from patchwork.commands.demo_training import tiny_qwen

    subject = tiny_qwen()
    subject.build().save_pretrained(tmp_path / "model")
    subject.tokenizer.save_pretrained(tmp_path / "model")
    rows = [{"text": text} for text in standard_library_docstrings(limit=20_000)]
    (tmp_path / "text.jsonl").write_text("\n".join(map(json.dumps, rows)))
    printed, numbers = run_demo(tmp_path / "out", str(tmp_path / "model"), str(tmp_path / "text.jsonl"))
    assert numbers["passed"] is True
    assert numbers["model"] == str(tmp_path / "model")
    assert "text.jsonl" in printed


@pytest.mark.slow
@needs_torch
def test_demo_runs_on_three_short_documents(tmp_path: Path) -> None:
    text = tmp_path / "short.txt"
    text.write_text("\n\n".join(["a first document", "a second one", "and a third"]))
    _, values = run_demo(tmp_path, dataset=str(text))
    assert values["passed"]
    assert values["documents"] == 3


@needs_torch
def test_importing_the_demo_imports_no_torch() -> None:
    code = "import patchwork.commands.demo, sys; sys.exit('torch' in sys.modules or 'transformers' in sys.modules)"
    assert subprocess.run([sys.executable, "-c", code]).returncode == 0


@pytest.mark.parametrize(
    ("arguments", "says"),
    [
        (["--dataset", "no-such-file.jsonl"], "no-such-file.jsonl"),
        pytest.param(["--model", "no/such-folder/here"], "no/such-folder/here", marks=needs_torch),
        (["--out", "pyproject.toml/folder"], "pyproject.toml"),
    ],
)
def test_command_line_refuses_bad_input_without_a_traceback(arguments: list[str], says: str, tmp_path: Path) -> None:
    if find_spec("torch") is None:
        says = "Install: pip install torch"  # the first thing that is missing
    command = [sys.executable, "-c", "from patchwork.cli import main; main()", "demo", *arguments]
    if "--out" not in arguments:
        command += ["--out", str(tmp_path)]
    done = subprocess.run(command, capture_output=True, text=True, cwd=Path(__file__).parent.parent)
    assert done.returncode == 2, done.stdout + done.stderr
    assert says in " ".join((done.stdout + done.stderr).split())
    assert "Traceback" not in done.stderr
