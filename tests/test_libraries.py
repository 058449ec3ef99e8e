"""Sentences about libraries in the pages agree with what the probe found."""

import re
from pathlib import Path

import pytest

from attnspec.conformance.evidence.libraries import read, rows
from attnspec.implementations import libraries

ROOT = Path(__file__).parents[1]
STORED = ROOT / "docs" / "results" / "libraries.json"
RECORDS = {record.name: record for record in read(STORED)}

SENTENCES = [
    (
        "spec/conventions.md",
        "It is what `is_causal` means in PyTorch",
        ("sdpa", "sdpa_math", "sdpa_flash"),
        "causal_alignment",
        {"upper_left"},
    ),
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
        ("gpt2_eager", "llama_eager", "flax_attention", "keras_attention"),
        "empty_row_bool_mask",
        {"mean"},
    ),
    (
        "spec/masking.md",
        "in `onnx.reference` 1.23 and ONNX Runtime 1.32.",
        ("onnx_reference", "ort_attention"),
        "empty_row_bool_mask",
        {"zero"},
    ),
    (
        "spec/masking.md",
        "The mean of all values: JAX 0.10 with a bool mask",
        ("jax_attention",),
        "empty_row_bool_mask",
        {"mean"},
    ),
    (
        "spec/masking.md",
        "NaN: JAX 0.10 with a bias of minus infinity",
        ("jax_attention",),
        "empty_row_float_mask",
        {"nan"},
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
    (
        "docs/findings/jax.md",
        "The softmax is in float32 for float64 operands too",
        ("jax_attention",),
        "float64_precision",
        {"float32"},
    ),
    (
        "docs/findings/pallas.md",
        "With more queries than keys, it goes on behind the last key.",
        ("pallas_attention",),
        "causal_alignment",
        {
            "the causal mask follows neither alignment throughout "
            "(queries < keys: upper_left; queries > keys: neither)"
        },
    ),
    (
        "docs/findings/keras.md",
        "float32 and bfloat16 give the mean of all values",
        ("keras_attention",),
        "empty_row_bool_mask",
        {"mean"},
    ),
    (
        "docs/findings/x_transformers.md",
        "aligns it at the lower right, as the other path always does",
        ("x_transformers_attend",),
        "causal_alignment",
        {"lower_right"},
    ),
    (
        "docs/findings/x_transformers.md",
        "With more queries than keys, the flash path aligns the causal diagonal at the upper left",
        ("x_transformers_flash",),
        "causal_alignment",
        {
            "the causal mask follows neither alignment throughout "
            "(queries < keys: lower_right; queries > keys: upper_left)"
        },
    ),
    (
        "docs/findings/onnxruntime.md",
        "With as many queries as keys, and with more queries, it is right.",
        ("ort_multi_head_attention",),
        "causal_alignment",
        {
            "the causal mask follows neither alignment throughout "
            "(queries < keys: neither; queries > keys: upper_left)"
        },
    ),
]
"""A page, a sentence of it, the implementations that it is about, a row, and the answers."""


CHAPTERS = ("conventions", "masking", "attention_options", "heads", "positions", "cache")
"""The chapters of the specification on which the profile of an implementation rests."""

LIBRARIES = re.compile(r"PyTorch|torch\.nn|JAX|Flax|Keras|MLX|ONNX|onnx|transformers|Flash")

NOT_PROBED = (
    # tested beside the implementation: tests/implementations/test_frameworks.py
    "The `sdpa` attention of transformers 5 drops the flag for a single query",
    # documentation of a library, or an argument of it
    "PyTorch documents that the two together are an error",
    "`torch.nn.MultiheadAttention`, and many libraries with *padding masks*, mean the opposite",
    "FlashAttention and ONNX write 0 for no softcap",
    "FlashInfer returns it to base 2",
    # tested with the laws of this clause
    "PyTorch takes a float32 mask beside queries of any type",
)
"""Sentences about libraries that no question of the probe answers."""


def about_libraries():
    """Yield each line about implementations that names a library, of the pages on conventions."""
    for chapter in CHAPTERS:
        inside = False
        text = (ROOT / "spec" / f"{chapter}.md").read_text(encoding="utf-8")
        for number, line in enumerate(text.splitlines(), 1):
            inside = line.startswith("*Implementations") or (inside and line != "")
            # the rows of the table of the profile say why an answer is the default
            is_row = chapter == "conventions" and line.startswith("| `")
            if (inside or is_row) and LIBRARIES.search(line):
                yield pytest.param(line, id=f"{chapter}.md:{number}")


@pytest.mark.parametrize("line", list(about_libraries()))
def test_every_sentence_about_libraries_is_checked(line):
    checked = [sentence for _, sentence, *_ in SENTENCES]
    assert any(each in line for each in (*checked, *NOT_PROBED)), (
        "name the answers of the probe in SENTENCES"
    )


@pytest.mark.parametrize("sentence", NOT_PROBED)
def test_every_sentence_that_is_not_probed_is_there(sentence):
    lines = [parameter.values[0] for parameter in about_libraries()]
    assert [line for line in lines if sentence in line], "the sentence has changed: leave it out"


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
