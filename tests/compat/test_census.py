"""A census finds a state and a reason for every type, whatever the models do, and never ends with one of them."""

from __future__ import annotations

import json
import sys
from pathlib import Path

import pytest
from transformers import LlamaForCausalLM

from patchwork.cli import main
from patchwork.commands import census, census_worker
from patchwork.packing import BoundariesError, IsolationError, LeakReport, PackingRefused
from patchwork.packing.decision import Decision
from patchwork.packing.errors import ProbeError
from patchwork.packing.probing.leaks import Measured

FAULTY = (sys.executable, str(Path(__file__).with_name("census_types.py")))


@pytest.fixture
def run(monkeypatch, capsys):
    """`patchwork probe ARGUMENTS`: exit code, output, errors."""

    def run(*arguments):
        monkeypatch.setattr(sys, "argv", ["patchwork", "probe", *arguments])
        with pytest.raises(SystemExit) as ended:
            main()
        done = capsys.readouterr()
        return ended.value.code, done.out, done.err

    return run


def test_the_command_tells_what_is_isolated_and_what_is_refused_why(run):
    code, out, err = run("--all", "--only", "bert, llama", "--json")
    assert code == 0, err
    told = json.loads(out)
    assert told["counts"] == dict.fromkeys(census.STATES, 0) | {"isolated": 1, "refused": 1}
    bert, llama = told["types"]
    assert (bert["type"], bert["class"], bert["state"], llama["state"]) == ("bert", "BertLMHeadModel", "refused", "isolated")
    assert bert["reason"]
    assert bert["worst"] is None
    assert llama["worst"] < 1e-4 < llama["control"]
    assert "measuring model types of transformers" in err


def test_no_fault_of_a_model_ends_the_census(run, monkeypatch):
    monkeypatch.setattr(census, "WORKER", FAULTY)
    only = "dies_packed,refuses_packed,fails_packed,not_finite,same_for_all,large,dies,llama,qwen3_next"
    code, out, err = run("--all", "--stock", "--only", only, "--json")
    assert code == 1, err
    told = {each["type"]: each for each in json.loads(out)["types"]}
    assert {name: each["state"] for name, each in told.items()} == {
        "llama": "isolated",
        "qwen3_next": "leaking",
        "dies_packed": "failed",
        "refuses_packed": "refused",
        "fails_packed": "failed",
        "not_finite": "unbuilt",
        "same_for_all": "unproven",
        "large": "unbuilt",
        "dies": "unbuilt",
    }
    assert told["dies_packed"]["reason"] == "the process ended with exit code 3"
    assert told["dies"]["reason"] == "the process ended with SIGKILL"
    assert told["fails_packed"]["reason"] == "TypeError: position_ids are of the wrong kind"
    assert "makes a model of 70," in told["large"]["reason"]
    assert told["qwen3_next"]["worst"] > 0.1


@pytest.mark.skipif(sys.platform != "linux", reason="other systems do not hold a process to its limit")
@pytest.mark.parametrize(
    ("kind", "limit", "said"),
    [("takes_memory", (), "an ordinary call: out of memory"), ("hangs", ("--timeout", "3"), "not done after 3 s")],
    ids=["memory", "time"],
)
def test_a_model_that_takes_too_much_time_or_memory_is_told_so(run, monkeypatch, kind, limit, said):
    """The limit of time is for the one that hangs alone: on a loaded machine, others may need as long."""
    monkeypatch.setattr(census, "WORKER", FAULTY)
    code, out, err = run("--all", "--stock", "--only", kind, *limit)
    assert code == 0, err
    assert f"{kind}  {said}" in out


@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        ([], "give either a MODEL or --all"),
        (["llama", "--all"], "give either a MODEL or --all"),
        (["llama", "--jobs", "2"], "--jobs goes with --all"),
        (["--all", "--full-size"], "--full-size goes with a MODEL"),
        (["--all", "--jobs", "0"], "give one process"),
    ],
    ids=" ".join,
)
def test_wrong_use_is_told_before_anything_is_measured(run, monkeypatch, arguments, said):
    monkeypatch.setattr(census, "WORKER", ("no-such-program",))
    code, _, err = run(*arguments)
    assert code == 2
    assert said in err


def test_a_type_that_there_is_not_is_told_with_those_near_it():
    with pytest.raises(ProbeError, match=r"--only lama: not a type .*; near: llama"):
        census._chosen({"llama": "A", "opt": "B"}, "opt,lama")


def test_a_process_that_cannot_start_is_an_error_and_no_finding(monkeypatch):
    monkeypatch.setattr(census, "WORKER", (sys.executable, "-c", "raise ImportError('patchwork is broken')"))
    with pytest.raises(ProbeError, match=r"no process can start that measures: .*exit code 1: ImportError: patchwork is broken"):
        census.run()


def test_processes_are_replaced_and_share_the_work(monkeypatch):
    answers = """
import json, os, sys
print(json.dumps({"transformers": "1", "types": {f"t{number}": "Kind" for number in range(7)}}), flush=True)
for line in sys.stdin:
    print('{"runs": true}', flush=True)
    print(json.dumps({"state": "isolated", "reason": str(os.getpid())}), flush=True)
"""
    monkeypatch.setattr(census, "WORKER", (sys.executable, "-c", answers))
    monkeypatch.setattr(census, "PER_PROCESS", 2)
    for jobs in (1, 3):
        found = census.run(jobs=jobs).findings
        assert [finding.type for finding in found] == [f"t{number}" for number in range(7)]
        assert len({finding.reason for finding in found}) >= 4


# ---- one type, in this process ------------------------------------------------------------------------------------------


def report(leak, control):
    return LeakReport(
        (4, 3), ((0, leak), (0, 0)), Measured(leak), Measured(leak), Measured(control), Measured(1.0), 1e-4, "Model"
    )


def raises(error):
    def probe(*arguments, **settings):
        raise error

    return probe


@pytest.mark.parametrize(
    ("probe", "state", "reason"),
    [
        (raises(PackingRefused(Decision(False, ("an encoder",), model="A"))), "refused", "an encoder"),
        (raises(IsolationError("a gap")), "refused", "a gap"),
        (raises(BoundariesError("no lengths")), "failed", "BoundariesError: no lengths"),
        (raises(ValueError("padding")), "failed", "ValueError: padding"),
        (lambda *arguments, **settings: report(float("nan"), 0.5), "leaking", "outputs by nan"),
        (lambda *arguments, **settings: report(0.2, 0.5), "leaking", "outputs by 2.0e-01"),
        (lambda *arguments, **settings: report(1e-6, 1e-4), "unproven", "without boundaries the error is only 1.0e-04"),
        (lambda *arguments, **settings: report(1e-6, 0.5), "isolated", ""),
    ],
)
def test_what_a_probe_says_is_a_state_with_a_reason(monkeypatch, probe, state, reason):
    monkeypatch.setattr(census_worker, "probe", probe)
    found = census_worker.measured("llama", False, lambda: None)
    assert found["state"] == state
    assert found["reason"].startswith(reason)
    json.dumps(found, allow_nan=False)


@pytest.mark.parametrize(("ours", "state"), [(True, "failed"), (False, "unbuilt")])
def test_an_ordinary_call_that_fails_is_upstream_s_fault_if_it_fails_without_patches_too(monkeypatch, ours, state):
    applied = [True]
    monkeypatch.setattr(census_worker, "apply", lambda: applied.append(True))
    monkeypatch.setattr(census_worker, "revert", lambda: applied.append(False))
    forward = LlamaForCausalLM.forward

    def faulty(self, **given):
        if applied[-1] or not ours:
            raise TypeError("no")
        return forward(self, **given)

    monkeypatch.setattr(LlamaForCausalLM, "forward", faulty)
    found = census_worker.measured("llama", False, lambda: pytest.fail("an ordinary call has worked"))
    assert found["state"] == state
    assert found["reason"] == "an ordinary call: TypeError: no"
    assert applied == [True, False, True]


def test_reasons_that_differ_in_names_of_the_model_alone_are_one():
    findings = [
        census.Finding("gpt2", "GPT2LMHeadModel", "refused", "no layers in GPT2Model; known: llama, opt"),
        census.Finding("opt", "OPTForCausalLM", "refused", "no layers in OPTModel; known: llama, opt"),
        census.Finding("t5", "T5ForCausalLM", "refused", "T5 is an encoder-decoder"),
    ]
    groups = {reason: [each.type for each in group] for reason, group in census.by_reason(findings).items()}
    assert groups == {"no layers in …": ["gpt2", "opt"], "T5 is an encoder-decoder": ["t5"]}
