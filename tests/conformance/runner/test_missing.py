"""Machines that lack something: no law is errored, and the run says what each law waited for."""

import os
import subprocess
import sys

import pytest

from attnspec.conformance.report.file import read_report
from attnspec.conformance.report.matrix import missing
from attnspec.conformance.report.record import CONFORMING, Outcome, Record

HIDE = """
import os, sys
for name in os.environ["HIDDEN"].split():
    sys.modules[name] = None  # importing it raises, and no finder finds it
"""
UNREACHABLE = dict.fromkeys(("HTTP_PROXY", "HTTPS_PROXY"), "http://127.0.0.1:9")
EXTRA = "transformers tiktoken safetensors tokenizers huggingface_hub"
TOKENIZERS = ("reference", "tiktoken_gpt2", "huggingface_tokenizer")
MODELS = ("reference", "huggingface_gpt2", "huggingface_sampler", "eager")
TEXT, MODEL = ("TOK",), ("EMB", "LNM", "ACT", "GPT", "GEN")

WAYS = {
    "no vocabulary": ({}, TOKENIZERS, TEXT, "GPT-2 vocabulary"),
    "no tiktoken": ({"HIDDEN": "tiktoken"}, TOKENIZERS, TEXT, "tiktoken is not installed"),
    "no transformers": (
        {"HIDDEN": "transformers tokenizers"},
        (*TOKENIZERS, *MODELS),
        (*TEXT, *MODEL),
        "transformers is not installed",
    ),
    "no extra": ({"HIDDEN": EXTRA}, (*TOKENIZERS, *MODELS), (*TEXT, *MODEL), "attnspec[gpt2]"),
    "no compiler": (
        {"CXX": "no-such-compiler", "CC": "no-such-compiler"},
        ("compiled", "custom_op", "eager"),
        ("TEN", "ATT-1"),
        "no C++ compiler",
    ),
    "no CUDA device": ({}, ("cuda_flash", "cuda_compiled"), ("ATT-1",), "no CUDA device"),
}


@pytest.mark.rotating(parts=24)
@pytest.mark.parametrize("way", WAYS)
def test_whatever_is_missing_no_law_is_errored(way, tmp_path):
    settings, targets, laws, reason = WAYS[way]
    (tmp_path / "sitecustomize.py").write_text(HIDE, encoding="utf-8")
    path = [str(tmp_path), *filter(None, [os.environ.get("PYTHONPATH")])]
    lacking = {
        "HIDDEN": "",
        "TIKTOKEN_CACHE_DIR": str(tmp_path / "nothing"),
        "HF_HUB_OFFLINE": "1",
        "CUDA_VISIBLE_DEVICES": "",
        "PYTHONPATH": os.pathsep.join(path),
        **UNREACHABLE,
        **settings,
    }
    report = tmp_path / "report.jsonl"
    command = [sys.executable, "-P", "-m", "attnspec", "check", *dict.fromkeys(targets)]
    command += [f"--laws={each}" for each in laws]
    command += ["--effort=smoke", "-n", "1", f"--report={report}"]
    run = subprocess.run(
        command, capture_output=True, text=True, env=os.environ | lacking, cwd=tmp_path
    )
    assert run.returncode == 0, run.stdout + run.stderr
    records = read_report(report).records
    assert not [each for each in records if each.outcome not in CONFORMING]
    waited = [each for each in records if each.missing]
    assert any(reason in " ".join(each.missing) for each in waited)
    lines = [each for each in run.stdout.splitlines() if reason in each]
    reasons = {each for record in waited for each in record.missing}
    assert len(lines) == len([each for each in reasons if reason in each])
    assert all(each.startswith("not available here: ") for each in lines)


def test_a_line_says_which_laws_waited_for_what():
    def record(subject: str, law: str, clause: str, outcome: Outcome, *lacking: str) -> Record:
        reason = lacking[0] if outcome is Outcome.NOT_AVAILABLE else ""
        return Record(
            subject=subject,
            law=law,
            clauses=(clause,),
            outcome=outcome,
            reason=reason,
            missing=lacking,
        )

    lines = missing(
        [
            record("ours", "a", "TOK-1", Outcome.PASSED, "no words: buy some"),
            record("ours", "b", "TOK-2", Outcome.NOT_AVAILABLE, "no words: buy some"),
            record("ours", "c", "TOK-3", Outcome.PASSED),
            record("theirs", "a", "TOK-1", Outcome.NOT_AVAILABLE, "no device"),
        ]
    )
    assert lines == [
        "not available here: no words: buy some "
        "(not tried: TOK-2 of ours; tried on fewer cases: TOK-1 of ours)",
        "not available here: no device (no law of theirs was tried)",
    ]
