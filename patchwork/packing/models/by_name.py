"""Resolves a name as a trainer will: its config, and its class where the code comes with the checkpoint."""

from __future__ import annotations

import copy
import json
import os
import struct
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

from ..errors import Unresolved

# What a load is told that is no part of its config.
_NOT_CONFIG = (
    *("config", "dtype", "torch_dtype", "quantization_config", "state_dict", "adapter_kwargs", "adapter_name"),
    *("device_map", "device_mesh", "distributed_config", "key_mapping", "generation_config"),
)
_FETCHING = ("cache_dir", "force_download", "local_files_only", "proxies", "revision", "token")
# The Auto classes that TRL looks for, in its order, where the architecture is none of transformers.
_AUTO = ("AutoModelForImageTextToText", "AutoModelForCausalLM")


def resolved(name: str, args: Any) -> tuple[Any, type | None]:
    """The config that loading `name` reads, and the class that it builds if that is not transformers' own.

    `args`: the trainer's arguments; `model_init_kwargs` (a dict or JSON, never changed) counts before `trust_remote_code`
    of the arguments themselves. Nothing is asked on the terminal, and no weights are fetched but a GGUF file, which holds its
    own config. Raises Unresolved.
    """
    from transformers import PretrainedConfig

    arguments = _arguments(args)
    given = arguments.pop("config", None)
    if isinstance(given, PretrainedConfig):
        config = copy.deepcopy(given)
        if arguments.get("attn_implementation") is not None:
            config._attn_implementation = arguments["attn_implementation"]
    elif given is None:
        config, name = _config(name, arguments)
    elif isinstance(given, (str, os.PathLike)):
        config, _ = _config(os.fspath(given), arguments)
    else:
        raise Unresolved(f"model_init_kwargs['config'] is a {type(given).__name__}, neither a config nor a name or path")
    try:
        return _with_class(config, name, arguments)
    except failures() as error:
        raise Unresolved(f"its code cannot be loaded: {_why(error, arguments)}") from error


def _arguments(args: Any) -> dict[str, Any]:
    """What the load will be told, as far as it concerns the config. Values are copies: configs change what they are given."""
    given = getattr(args, "model_init_kwargs", None) or {}
    if isinstance(given, str):
        try:
            given = json.loads(given)
        except ValueError as error:
            raise Unresolved(f"model_init_kwargs is no JSON ({error})") from error
    if not isinstance(given, Mapping):
        raise Unresolved(f"model_init_kwargs is a {type(given).__name__}, not a dict")
    arguments = {
        key: copy.deepcopy(value) if isinstance(value, (dict, list)) else value
        for key, value in given.items()
        if key == "config" or key not in _NOT_CONFIG
    }
    # False where nobody says: with None, transformers would ask on the terminal.
    arguments["trust_remote_code"] = bool(given.get("trust_remote_code", getattr(args, "trust_remote_code", None)))
    token = arguments.pop("use_auth_token", None)  # what `token` was called before transformers 5
    if token is not None and arguments.get("token") is None:
        arguments["token"] = token
    return arguments


def _config(source: str, arguments: dict[str, Any], adapted: bool = True) -> tuple[Any, str]:
    """The config of `source`, or, where that is an adapter alone, of its base model; and which of them it is."""
    from transformers import AutoConfig

    try:
        return AutoConfig.from_pretrained(source, return_unused_kwargs=True, **copy.copy(arguments))[0], source
    except failures() as error:
        base = _base_of_adapter(source, arguments) if adapted and not _unreachable(error) else None
        if base is not None:
            return _config(base, arguments, adapted=False)
        raise Unresolved(f"its config cannot be resolved: {_why(error, arguments)}") from error


def _base_of_adapter(source: str, arguments: Mapping[str, Any]) -> str | None:
    """The model that a repository of an adapter alone is for; transformers loads it in its place."""
    from transformers.utils import find_adapter_config_file, is_peft_available

    if not is_peft_available():
        return None
    try:
        path = find_adapter_config_file(source, **_fetching(arguments))
        base = json.loads(Path(path).read_text(encoding="utf-8")).get("base_model_name_or_path") if path else None
    except failures():  # there is no adapter either: what was wrong with the config is the reason
        return None
    return base if isinstance(base, str) else None


def _fetching(arguments: Mapping[str, Any]) -> dict[str, Any]:
    return {key: arguments[key] for key in _FETCHING if arguments.get(key) is not None}


def _with_class(config: Any, name: str, arguments: dict[str, Any]) -> tuple[Any, type | None]:
    """As TRL chooses: transformers' class of the architecture's name, else the code that comes with the checkpoint if that is
    trusted, else what Auto classes know, the caller's own registrations too."""
    import transformers
    from transformers.dynamic_module_utils import get_class_from_dynamic_module

    kind = getattr(transformers, architecture_of(config), None)
    if kind is not None:
        if not of_transformers(config) and getattr(kind, "config_class", None) is not None:
            told = {key: value for key, value in arguments.items() if key not in ("trust_remote_code", "code_revision")}
            config = kind.config_class.from_pretrained(name, return_unused_kwargs=True, **told)[0]
        return config, None
    code = getattr(config, "auto_map", None) or {}
    if arguments["trust_remote_code"] and (auto := next((each for each in _AUTO if each in code), None)) is not None:
        revision = arguments.get("code_revision")
        return config, get_class_from_dynamic_module(code[auto], name, code_revision=revision, **_fetching(arguments))
    if not of_transformers(config) and type(config) in transformers.MODEL_FOR_CAUSAL_LM_MAPPING:
        return config, transformers.MODEL_FOR_CAUSAL_LM_MAPPING[type(config)]
    return config, None


def architecture_of(config: Any) -> str:
    """The name of the class that a checkpoint was saved from; empty where it does not say."""
    named = getattr(config, "architectures", None)
    return named[0] if isinstance(named, (list, tuple)) and named and isinstance(named[0], str) else ""


def of_transformers(config: Any) -> bool:
    """Whether a config is one of transformers' own models'."""
    return type(config).__module__.startswith("transformers.models.")


# ---- what went wrong ----------------------------------------------------------------------------------------------


def failures() -> tuple[type[Exception], ...]:
    """What reading a config, importing the code of a checkpoint, or building it may raise: both are anybody's."""
    from huggingface_hub import errors

    strict = getattr(errors, "StrictDataclassError", None)  # of configs that check their fields; older clients have none
    http = [kind for kind in errors.HfHubHTTPError.__mro__ if kind.__name__ == "HTTPError"]  # requests', httpx's or httpx2's
    return (
        *(OSError, ValueError, LookupError, TypeError, AttributeError, ImportError, ArithmeticError, RuntimeError),
        *(AssertionError, NameError, SyntaxError, struct.error, *http, *([strict] if strict is not None else [])),
    )


def _causes(error: BaseException | None) -> Iterator[BaseException]:
    while error is not None:
        yield error
        error = error.__cause__ or error.__context__


def _unreachable(error: BaseException) -> bool:
    """Whether asking the Hub again is waiting again."""
    from huggingface_hub.errors import LocalEntryNotFoundError

    return any(isinstance(each, (LocalEntryNotFoundError, ConnectionError)) for each in _causes(error))


def _why(error: BaseException, arguments: Mapping[str, Any]) -> str:
    """What is wrong, and what to do."""
    from huggingface_hub import errors

    said = list(_causes(error))
    for kinds, reason in (
        (
            errors.GatedRepoError,
            "access to it has to be granted: ask for it on its page on the Hub, then log in (`hf auth login`) or pass `token`",
        ),
        (errors.RevisionNotFoundError, f"it has no revision {arguments.get('revision')!r}: check `revision`"),
        (
            errors.RepositoryNotFoundError,
            "there is no such repository, or it is private: check the name, or log in (`hf auth login`) or pass `token`",
        ),
        (
            (errors.LocalEntryNotFoundError, errors.OfflineModeIsEnabled, ConnectionError),
            "the Hub is not reached (offline?), and it is not in the cache: download it once, or check `cache_dir`",
        ),
    ):
        if any(isinstance(each, kinds) for each in said):
            return reason
    if isinstance(error, ValueError) and "trust_remote_code" in str(error):
        return "its code comes with the checkpoint and is run only if it is trusted: read it, then say trust_remote_code=True"
    if isinstance(error, ValueError) and "Unrecognized model" in str(error):
        return "it has no config.json there, or one without model_type: check the name, `subfolder` and `revision`"
    if any(isinstance(each, errors.HFValidationError) for each in said):
        return "it is no name of a repository, and there is no such folder: check the path"
    # transformers says "a specific connection error" and leaves the answer of the server to the cause
    refusals = [
        each for each in said if isinstance(each, errors.HfHubHTTPError) and not isinstance(each, errors.EntryNotFoundError)
    ]
    server = refusals[0] if refusals else error
    return f"{type(server).__name__}: {first_line(server)}"


def first_line(error: BaseException) -> str:
    """The first line of what an error says that has words in it, and the next where it only announces that."""
    lines = [line.strip() for line in str(error).splitlines() if line.strip()] or ["it says nothing"]
    return " ".join(lines[:2]) if lines[0].endswith(":") else lines[0]
