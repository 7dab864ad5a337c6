"""Reads the text that the demo trains on, and makes tokens of it.

Real text that every machine has: the docstrings of the Python standard library, about 1 MB. Nothing is downloaded.
Or a file of the user's own. Tokens of the demo's own model are bytes, so no vocabulary is downloaded either.
"""

from __future__ import annotations

import ast
import inspect
import json
import random
import sysconfig
from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from transformers import PreTrainedTokenizerBase

SKIPPED_FOLDERS = {"__pycache__", "dist-packages", "idlelib", "lib2to3", "site-packages", "test", "tests", "turtledemo"}
SHORTEST_DOCSTRING = 16
FEWEST_DOCUMENTS = 3


class DemoError(Exception):
    """The demo cannot run on what it was given. The message names the input and says what to do."""


def standard_library_docstrings(limit: int = 1_000_000, seed: int = 0) -> list[str]:
    """The docstrings of the running Python's standard library, each one once, in a fixed shuffled order.

    `limit` is in bytes of UTF-8; the document that passes it is the last. Raises DemoError where the library holds
    no readable source.
    """
    texts: dict[str, None] = {}  # a dict keeps the order, so that the shuffle below starts from the same one
    for path in _library_files(Path(sysconfig.get_path("stdlib"))):
        for text in _docstrings(path):
            texts.setdefault(text)
    documents = list(texts)
    random.Random(seed).shuffle(documents)
    chosen: list[str] = []
    size = 0
    for text in documents:
        if size >= limit:
            break
        chosen.append(text)
        size += len(text.encode())
    if len(chosen) < FEWEST_DOCUMENTS:
        raise DemoError(
            f"The standard library in {sysconfig.get_path('stdlib')} holds no docstrings (is it stripped, or a zip?). "
            "Give text of your own: patchwork demo --dataset FILE.txt"
        )
    return chosen


def _library_files(root: Path) -> Iterator[Path]:
    for path in sorted(root.rglob("*.py")):
        if not SKIPPED_FOLDERS.intersection(path.relative_to(root).parts):
            yield path


def _docstrings(path: Path) -> Iterator[str]:
    try:
        tree = ast.parse(path.read_bytes())
    except (SyntaxError, ValueError):  # the library ships some files that are broken on purpose
        return
    for node in ast.walk(tree):
        if isinstance(node, (ast.Module, ast.ClassDef, ast.FunctionDef, ast.AsyncFunctionDef)):
            text = inspect.cleandoc(ast.get_docstring(node, clean=False) or "").strip()
            # Lone surrogates, spelled as escapes in a few docstrings, are no text.
            if len(text) >= SHORTEST_DOCSTRING and not any("\ud800" <= letter <= "\udfff" for letter in text):
                yield text


def read_documents(name: str) -> list[str]:
    """The documents of a file: `.jsonl`, one object with a "text" a line; `.txt`, documents between blank lines.

    Raises DemoError where the file is missing, is empty, is not UTF-8, holds something else or too few documents.
    """
    path = Path(name)
    readers = {".jsonl": _read_jsonl, ".txt": _read_text}
    if name and path.is_dir():
        raise DemoError(f"--dataset {name}: is a folder. Give a .jsonl or .txt file.")
    if not name or not path.is_file():
        raise DemoError(f"--dataset {name or '(empty)'}: no such file. Give a .jsonl or .txt file.")
    if path.suffix not in readers:
        raise DemoError(
            f'--dataset {name}: {path.suffix or "no"} extension is not known. Give a .jsonl file with {{"text": ...}} '
            "on each line, or a .txt file with blank lines between documents."
        )
    try:
        content = path.read_text(encoding="utf-8-sig")
    except UnicodeDecodeError as error:
        raise DemoError(f"--dataset {name}: not UTF-8 at byte {error.start}. Convert it first.") from error
    except OSError as error:
        raise DemoError(f"--dataset {name}: {error.strerror}.") from error
    documents = [text for text in readers[path.suffix](name, content) if text]
    if not documents:
        raise DemoError(f"--dataset {name}: the file is empty. Give one with at least {FEWEST_DOCUMENTS} documents.")
    if len(documents) < FEWEST_DOCUMENTS:
        hint = " Documents of a .txt file are separated by blank lines." if path.suffix == ".txt" else ""
        raise DemoError(f"--dataset {name}: holds {len(documents)} document(s); packing needs at least {FEWEST_DOCUMENTS}.{hint}")
    return documents


def _read_jsonl(name: str, content: str) -> Iterator[str]:
    for number, line in enumerate(content.split("\n"), start=1):
        if not line.strip():
            continue
        try:
            row = json.loads(line)
        except json.JSONDecodeError as error:
            raise DemoError(f"--dataset {name}, line {number}: not JSON ({error.msg}).") from error
        text = row.get("text") if isinstance(row, dict) else None
        if not isinstance(text, str):
            found = f"fields: {', '.join(map(str, row)) or 'none'}" if isinstance(row, dict) else type(row).__name__
            raise DemoError(f'--dataset {name}, line {number}: no "text" field with a string in it ({found}).')
        yield text.strip()


def _read_text(name: str, content: str) -> Iterator[str]:
    lines: list[str] = []
    for line in [*content.split("\n"), ""]:
        if line.strip():
            lines.append(line)
        elif lines:
            yield "\n".join(lines)
            lines = []


def byte_tokenizer() -> PreTrainedTokenizerBase:
    """A tokenizer of 258 ids: the 256 bytes, the end of a document, padding. Decoding gives back the exact text."""
    from tokenizers import Tokenizer, decoders, models, pre_tokenizers
    from transformers import PreTrainedTokenizerFast

    vocabulary = {symbol: number for number, symbol in enumerate(sorted(pre_tokenizers.ByteLevel.alphabet()))}
    tokenizer = Tokenizer(models.BPE(vocab=vocabulary, merges=[]))
    tokenizer.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=False)
    tokenizer.decoder = decoders.ByteLevel()
    return PreTrainedTokenizerFast(tokenizer_object=tokenizer, eos_token="<|end|>", pad_token="<|pad|>")


def tokenize(documents: list[str], tokenizer: PreTrainedTokenizerBase, longest: int) -> list[list[int]]:
    """Token ids of each document, ended by the end-of-document token where the tokenizer has one.

    A document of more than `longest` tokens is cut, so that every way of batching sees the same tokens.
    """
    end: list[Any] = [] if tokenizer.eos_token_id is None else [tokenizer.eos_token_id]
    rows = (list(tokenizer(text, add_special_tokens=False)["input_ids"]) for text in documents)
    return [row[: longest - len(end)] + end for row in rows if row]
