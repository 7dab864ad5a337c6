"""Models whose code is not part of transformers, as it comes with a checkpoint: an installed modeling file under other names."""

from __future__ import annotations

import importlib
import re
import sys
from pathlib import Path
from types import ModuleType
from typing import Any

import tiny
import torch
import transformers

STEMS = {"falcon_h1": "FalconH1", "qwen3_next": "Qwen3Next", "lfm2": "Lfm2", "bamba": "Bamba", "jamba": "Jamba", "rwkv": "Rwkv"}


def module(name: str, folder: Path, *changes: tuple[str, str]) -> ModuleType:
    """The family's modeling file as `transformers_modules.somebody.modeling_<name>`, its classes called Other…, ``changes``
    (what, into what) made to its text."""
    source = Path(transformers.__file__).parent / "models" / name / f"modeling_{name}.py"
    text = source.read_text()
    text = re.sub(r"^from \.\.\. import", "from transformers import", text, flags=re.M)
    text = re.sub(r"^from \.\.\.", "from transformers.", text, flags=re.M)
    text = re.sub(r"^from \.", f"from transformers.models.{name}.", text, flags=re.M)
    text = re.sub(rf"\b{STEMS[name]}(?!\w*Config)", "Other", text)
    for before, after in changes:
        assert before in text
        text = text.replace(before, after)
    package = folder / "transformers_modules" / "somebody"
    package.mkdir(parents=True)
    (package / f"modeling_{name}.py").write_text(text)
    for old in [each for each in sys.modules if each.startswith("transformers_modules")]:
        del sys.modules[old]
    sys.path.insert(0, str(folder))
    try:
        return importlib.import_module(f"transformers_modules.somebody.modeling_{name}")
    finally:
        sys.path.remove(str(folder))


def build(name: str, code: ModuleType) -> torch.nn.Module:
    """A tiny causal language model of that code, with the weights of tiny.build."""
    original: Any = tiny.build(name)
    model = code.OtherForCausalLM(original.config).train()
    model.load_state_dict(original.state_dict())
    return model
