"""`attnspec check-model`: the three mistakes of a student's BERT are found one after another."""

from pathlib import Path

import pytest
from typer.testing import CliRunner

from attnspec.conformance.cli.app import app

STUDENT = Path(__file__).parents[3] / "docs" / "examples" / "student_bert.py"
MENDED = (
    (
        '.token_type_embeddings.weight"][0]',
        '.token_type_embeddings.weight"][\n'
        "            torch.zeros_like(input_ids) if token_type_ids is None else token_type_ids\n"
        "        ]",
        "the embeddings: token types are ignored",
    ),
    (
        "math.sqrt(channels)",
        "math.sqrt(query.shape[-1])",
        "block 0: scores are scaled by the width of the model",
    ),
    (
        '        table = self.weights["bert.embeddings.word_emb',
        '        x = self.norm(x, "cls.predictions.transform.LayerNorm")\n'
        '        table = self.weights["bert.embeddings.word_emb',
        "the head: the head has no LayerNorm",
    ),
)


@pytest.mark.parametrize("mended", range(len(MENDED) + 1))
def test_three_mistakes_are_found_one_after_another(mended, tmp_path):
    source = STUDENT.read_text()
    for old, new, _ in MENDED[:mended]:
        assert source.count(old) == 1
        source = source.replace(old, new)
    path = tmp_path / "student.py"
    path.write_text(source)
    arguments = [f"{path}:build", "--architecture", "bert", "-x", "-n", "1", "--effort", "smoke"]
    result = CliRunner().invoke(app, ["check-model", *arguments])
    if mended == len(MENDED):
        assert result.exit_code == 0, result.output
        return
    assert result.exit_code == 1, result.output
    printed = " ".join(result.output.split())
    assert MENDED[mended][2] in printed


def test_an_encoder_decoder_is_judged_with_its_stages(tmp_path):
    base = "from attnspec.conformance.operators.encoder_decoder import mistakes, steps\n"
    wrong, right = tmp_path / "wrong.py", tmp_path / "right.py"
    wrong.write_text(base + "build = mistakes.CrossReadsPadding\n")
    right.write_text(base + "build = steps.Steps\n")
    options = ["--architecture", "encoder_decoder", "-n", "1", "--effort", "smoke"]
    options += ["--laws", "CRS-9"]
    result = CliRunner().invoke(app, ["check-model", f"{wrong}:build", *options])
    assert result.exit_code == 1, result.output
    printed = " ".join(result.output.split())
    cause = "block 0 of the decoder: cross-attention reads the padding of the source"
    assert cause in printed
    assert "model = encoder_decoder(case.config, weights)" in printed
    result = CliRunner().invoke(app, ["check-model", f"{right}:build", *options])
    assert result.exit_code == 0, result.output


def test_an_unknown_architecture_is_refused():
    result = CliRunner().invoke(app, ["check-model", "it.py:build", "--architecture", "lstm"])
    assert result.exit_code == 2
