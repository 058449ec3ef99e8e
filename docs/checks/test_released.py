"""The parts of pages that need GPT-2's weights, on a small checkpoint of the same layout."""

import doctest
import os
import re
import runpy
import subprocess
import sys
from pathlib import Path

import pytest
import torch
from transformers import GPT2Config, GPT2LMHeadModel

from attnspec.conformance.text.vocabularies import vocabulary
from attnspec.reference.weights import WeightsError

DOCS = Path(__file__).parents[1]
for name in ("_ext", "examples", "figures"):
    sys.path.insert(0, str(DOCS / name))

import pronouns  # noqa: E402  (found by the lines above)
import released  # noqa: E402

EXAMPLE = re.compile(r"```\{doctest\}\n:skipif: [^\n]*missing_weights\(\)\n\n(.*?)```", re.DOTALL)


@pytest.fixture
def checkpoint(tmp_path, monkeypatch):
    """Return the folder of a small random checkpoint, which the pages take for GPT-2's."""
    words = vocabulary("trained")
    torch.manual_seed(0)
    config = GPT2Config(
        vocab_size=417, n_positions=64, n_embd=32, n_layer=3, n_head=4, initializer_range=0.3,
        bos_token_id=416, eos_token_id=416,
    )  # fmt: skip
    GPT2LMHeadModel(config).save_pretrained(tmp_path)
    for file, content in (("vocab.json", words.vocab_json), ("merges.txt", words.merges_txt)):
        Path(tmp_path, file).write_text(content, encoding="utf-8")
    monkeypatch.setenv(released.FOLDER, str(tmp_path))
    released.folder.cache_clear()
    yield tmp_path
    released.folder.cache_clear()


def test_a_noun_is_found_in_its_tokens(checkpoint):
    for (text, noun), reading in zip(
        pronouns.SENTENCES.items(), pronouns.readings(str(checkpoint)), strict=True
    ):
        assert "".join(reading.tokens) == text
        assert noun in "".join(reading.tokens[place] for place in reading.noun)
        assert reading.weights.shape == (3, 4, len(reading.tokens))
        assert torch.allclose(reading.weights.sum(dim=-1), torch.ones(3, 4))


def test_the_head_that_reads_the_nouns_is_found(checkpoint):
    found = pronouns.readings(str(checkpoint))
    for reading in found:
        reading.weights[2, 1] = 0
        reading.weights[2, 1, reading.noun[0]] = 1
    assert pronouns.noun_head(found) == (2, 1)


def test_the_figure_is_drawn(checkpoint, monkeypatch):
    monkeypatch.chdir(DOCS)
    figure = runpy.run_path("figures/released_attention.py")["figure"]
    assert len(figure.axes) == len(pronouns.SENTENCES)


def test_the_example_runs(checkpoint):
    (example,) = EXAMPLE.findall((DOCS / "learn" / "patterns.md").read_text(encoding="utf-8"))
    preamble = ">>> import torch\n"
    test = doctest.DocTestParser().get_doctest(preamble + example, {}, "patterns", None, 0)
    assert test.examples[-1].want == "True\n"
    assert doctest.DocTestRunner().run(test).failed == 0


def test_a_page_shows_the_part_only_with_weights(checkpoint, tmp_path):
    site = tmp_path / "site"
    site.mkdir()
    (site / "index.md").write_text("# Title\n\n````{released}\nthe *part*\n````\n")
    (site / "conf.py").write_text(
        f"import sys\nsys.path.insert(0, {str(DOCS / '_ext')!r})\n"
        "extensions = ['myst_parser', 'released']\n"
    )

    def page(folder):
        command = [sys.executable, "-m", "sphinx", "-W", "-E", "-q", str(site), str(site / "html")]
        offline = {"HF_HUB_OFFLINE": "1", "HF_HOME": str(tmp_path / "none")}
        environment = offline | {released.FOLDER: folder}
        subprocess.run(command, check=True, env=os.environ | environment)
        return (site / "html" / "index.html").read_text()

    assert "the <em>part</em>" in page(str(checkpoint))
    without = page("")
    assert "the <em>part</em>" not in without
    assert "built without GPT-2" in without


def test_a_folder_without_weights_is_an_error(monkeypatch, tmp_path):
    monkeypatch.setenv(released.FOLDER, str(tmp_path))
    released.folder.cache_clear()
    with pytest.raises(WeightsError, match="holds none of"):
        released.folder()
    released.folder.cache_clear()
