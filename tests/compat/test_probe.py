"""A config, a name or a folder is enough for a measurement; what is refused is said, and never a traceback."""

from __future__ import annotations

import io
import json
import os
import subprocess
import sys
from pathlib import Path

import pytest
import tiny
import torch
import transformers
from rich.console import Console

import patchwork
from patchwork.cli import main
from patchwork.commands import probe as command
from patchwork.packing import LeakReport, PackingRefused, isolation, probe
from patchwork.packing.errors import ProbeError
from patchwork.packing.probing import leaks
from patchwork.packing.probing.leaks import Measured


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    """What a user would have: a model with its weights on disk."""
    path = tmp_path_factory.mktemp("model")
    tiny.build("qwen3_next").save_pretrained(path)
    return path


def small_config():
    _, name, settings = tiny.RECURRENT["qwen3_next"]
    return getattr(transformers, name)(**settings)


def test_a_config_is_measured_as_a_user_would_have_it_and_as_transformers_has_it():
    before, after = probe(small_config(), stock=True), probe(small_config())
    assert not before.passed
    assert before.ways == {}
    assert after.passed
    assert after.ways["Qwen3NextGatedDeltaNet"] == "document batching"
    assert before.control == after.control, "the same model"


@pytest.mark.parametrize("arguments", ["positions", "full"])
def test_a_model_type_is_enough(arguments):
    report = probe("qwen3_next", arguments=arguments)
    assert report.passed
    assert report.model == "Qwen3NextForCausalLM"


def test_a_folder_is_enough(folder):
    assert probe(folder).passed
    assert probe(str(folder), (4, 6, 3, 8)).documents == (4, 6, 3, 8)


def test_special_tokens_stay_out_of_random_documents():
    model = tiny.build("qwen3_next", eos_token_id=list(range(2, 90)))
    assert set(leaks._ordinary(model, tiny.VOCABULARY).tolist()) == set(range(tiny.VOCABULARY)) - set(range(90))
    assert (
        not leaks._replaced(torch.tensor([90, 96] * 50), torch.tensor([90, 96]), torch.Generator())
        .eq(torch.tensor([90, 96] * 50))
        .any()
    )


def test_a_fault_of_training_mode_alone_is_found(monkeypatch):
    """Models take other kernels in training mode."""
    isolate = isolation.isolate

    def faulty(model):
        parts = isolate(model)
        model.lm_head.register_forward_hook(
            lambda module, inputs, output: output + 0.1 * output.mean(1, keepdim=True) if module.training else output
        )
        return parts

    monkeypatch.setattr(isolation, "isolate", faulty)
    report = probe(small_config())
    assert report.forward.worst < report.noise < report.backward.worst
    assert not report.passed


def test_refusals_pass_through(monkeypatch):
    with pytest.raises(PackingRefused, match=r"attention of GPTNeoForCausalLM .GPTNeo.* does not go through"):
        probe("gpt_neo")
    assert not probe("gpt_oss", stock=True).passed, "its attention leaks"
    monkeypatch.setenv("PATCHWORK_HYBRID_PACKING", "0")
    with pytest.raises(PackingRefused, match="PATCHWORK_HYBRID_PACKING=0"):
        probe("qwen3_next")


def test_names_that_lead_nowhere_say_what_would(tmp_path):
    with pytest.raises(ProbeError, match=r"no config found .* a folder with a config\.json, or a model type"):
        probe(tmp_path)


# ---- the command ----------------------------------------------------------------------------------------------------


@pytest.fixture
def run(monkeypatch, capsys):
    """`patchwork probe ARGUMENTS` in this process, which has torch already: exit code, output, errors."""
    monkeypatch.setattr(command, "_quieten", lambda: None)  # it would silence the tests that follow

    def run(*arguments):
        monkeypatch.setattr(sys, "argv", ["patchwork", "probe", *map(str, arguments)])
        with pytest.raises(SystemExit) as ended:
            main()
        done = capsys.readouterr()
        return ended.value.code, done.out, done.err

    yield run
    patchwork.revert()


def test_the_command_prints_the_matrix_how_documents_are_kept_apart_and_the_verdict(tmp_path):
    arguments = ["qwen3_next", "--documents", "6,4,7", "--picture", str(tmp_path / "leak.png")]
    command = [sys.executable, "-c", "from patchwork.cli import main; main()", "probe", *arguments]
    done = subprocess.run(command, capture_output=True, text=True, env={**os.environ, "COLUMNS": "120"}, check=False)
    assert done.returncode == 0, done.stderr
    for text in ("6 + 4 + 7 tokens", "doc 3", "parameter gradients", "document batching", "Packing is exact here", "leak.png"):
        assert text in done.stdout
    assert (tmp_path / "leak.png").read_bytes().startswith(b"\x89PNG")


def test_the_command_tells_a_leak_as_json(run, folder):
    code, out, _ = run(folder, "--full-size", "--stock", "--json")
    assert code == 1
    told = json.loads(out)
    assert told["passed"] is False
    assert told["how"] == "stock"
    assert told["leak"]["model"] == "Qwen3NextForCausalLM"
    assert told["leak"]["matrix"][0][1] > 0.01


def test_the_command_measures_the_weights_of_a_folder(run, folder):
    code, out, _ = run(folder, "--full-size")
    assert code == 0
    assert "Packing is exact here" in out


def test_a_refusal_is_told_in_a_line(run):
    code, out, err = run("gpt_neo")
    assert code == 1
    assert "refused: packing is refused for GPTNeoForCausalLM" in out
    assert "Traceback" not in out + err


@pytest.mark.parametrize(
    ("arguments", "said"),
    [(["qwen3_next", "--full-size"], "is a model type, which has no weights"), (["no/such-model"], "no config found")],
    ids=["type", "name"],
)
def test_names_that_lead_nowhere_are_told_in_a_line(run, arguments, said):
    code, _, err = run(*arguments)
    assert code == 2
    assert said in err
    assert "Traceback" not in err


@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        (["--documents", "7"], "give two or more lengths"),
        (["--documents", "7,0"], "give two or more lengths"),
        (["--documents", "7,five"], "give two or more lengths"),
        (["--picture", "no-such-folder/leak.png"], "there is no folder no-such-folder"),
    ],
    ids=lambda value: " ".join(value) if isinstance(value, list) else "",
)
def test_wrong_use_is_told_in_a_line_before_anything_is_done(run, arguments, said):
    code, _, err = run("qwen3_next", *arguments)
    assert code == 2
    assert said in err


@pytest.mark.parametrize(
    ("leak", "control", "said"),
    [(1e-6, 0.5, "Packing is exact here"), (0.2, 0.5, "Documents reach each other"), (1e-6, 1e-4, "This shows nothing")],
)
def test_the_verdict_is_one_of_three(leak, control, said):
    report = LeakReport(
        (4, 3), ((0, leak), (0, 0)), Measured(leak), Measured(leak), Measured(control), Measured(1.0), 1e-4, "Model"
    )
    console = Console(record=True, file=io.StringIO(), width=100)
    command.show(command.Probed("a", "stock", report), console)
    assert said in console.export_text()


@pytest.mark.parametrize(("missing", "said"), [("matplotlib", "pip install matplotlib"), ("torch", "pip install torch")])
def test_what_is_not_installed_is_named_with_the_command(monkeypatch, missing, said):
    found = command.find_spec
    monkeypatch.setattr(command, "find_spec", lambda name: None if name == missing else found(name))
    with pytest.raises(ProbeError, match=said):
        command.run("qwen3_next", (7, 5), "positions", True, False, False, Path("leak.png"))
