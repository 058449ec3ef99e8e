"""Sentences about libraries in the pages agree with what the probe found."""

from pathlib import Path

import pytest

from attnspec.conformance.evidence.libraries import read, rows
from attnspec.implementations import libraries

ROOT = Path(__file__).parents[1]
STORED = ROOT / "docs" / "results" / "libraries.json"
RECORDS = {record.name: record for record in read(STORED)}

SENTENCES = [
    (
        "spec/masking.md",
        "PyTorch's `is_causal` is `upper_left`",
        ("sdpa", "sdpa_math", "sdpa_flash", "multi_head_attention"),
        "causal_alignment",
        {"upper_left"},
    ),
    (
        "spec/masking.md",
        "Zero: PyTorch 2.13",
        ("sdpa", "sdpa_math", "sdpa_flash", "flex", "flex_compiled"),
        "empty_row_bool_mask",
        {"zero"},
    ),
    (
        "spec/masking.md",
        "every implementation that hides keys by a large finite number",
        ("gpt2_eager", "llama_eager"),
        "empty_row_bool_mask",
        {"mean"},
    ),
    (
        "spec/conventions.md",
        "It is what `enable_gqa` means in PyTorch",
        ("sdpa", "sdpa_math", "sdpa_flash", "flex"),
        "grouping",
        {"consecutive"},
    ),
    (
        "docs/libraries.md",
        "with every query among the last of the keys",
        ("gpt2_eager", "gpt2_sdpa", "gpt2_flex", "llama_eager", "llama_sdpa", "llama_flex"),
        "causal_alignment",
        {"lower_right"},
    ),
    (
        "docs/findings/transformers_flex_attention.md",
        "Block masks, which a model makes by itself, are right.",
        ("gpt2_flex", "llama_flex"),
        "bool mask",
        {"yes"},
    ),
]
"""A page, a sentence of it, the implementations that it is about, a row, and the answers."""


@pytest.mark.parametrize(("page", "sentence", "names", "row", "expected"), SENTENCES)
def test_a_sentence_is_what_the_probe_found(page, sentence, names, row, expected):
    assert sentence in (ROOT / page).read_text(encoding="utf-8"), "the sentence has changed"
    assert {RECORDS[name].answers[row] for name in names} == expected


def test_the_records_are_of_registered_implementations():
    assert RECORDS.keys() <= libraries().keys()
    for record in RECORDS.values():
        assert record.library == libraries()[record.name]
        assert record.answers.keys() == rows().keys()
        assert not [each.question for each in record.findings if not each.evidence]


def test_every_stored_implementation_conforms():
    """A record without a run of the laws is allowed, one with a broken law is not."""
    broken = {"failed", "errored", "flaky", "unexpected pass"}
    assert not [name for name, record in RECORDS.items() if broken & record.laws.keys()]
