"""`attnspec check-model`: the three mistakes of a student's BERT are found one after another."""

from pathlib import Path

import pytest
from typer.testing import CliRunner

from attnspec.conformance.cli.app import app

EXAMPLES = Path(__file__).parents[3] / "docs" / "examples"
STUDENT = EXAMPLES / "student_bert.py"
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


OF_TRANSFORMER = (
    (
        '        x = self.weights["model.shared.weight"][ids]\n',
        '        x = self.weights["model.shared.weight"][ids]\n'
        "        if self.config.scale_embedding:\n"
        "            x = x * math.sqrt(self.config.d_model)\n",
        "the embeddings of the encoder: the rows of tokens are not scaled",
    ),
    (
        "        heads = self.config.encoder_attention_heads\n",
        "        heads = self.config.encoder_attention_heads\n"
        '        if name.startswith("model.decoder"):\n'
        "            heads = self.config.decoder_attention_heads\n",
        "block 0 of the decoder: the decoder has as many heads as the encoder",
    ),
    (
        "decoded = self.decode(decoder_input_ids, encoded[-1])",
        "decoded = self.decode(decoder_input_ids, encoded[-1], padding)",
        "block 0 of the decoder: cross-attention reads the padding of the source",
    ),
)


def check_mended(student, architecture, mended, steps, tmp_path, *options):
    source = student.read_text()
    for old, new, _ in steps[:mended]:
        assert source.count(old) == 1
        source = source.replace(old, new)
    path = tmp_path / "student.py"
    path.write_text(source)
    arguments = [f"{path}:build", "--architecture", architecture, "-x", "-n", "1"]
    result = CliRunner().invoke(app, ["check-model", *arguments, "--effort", "smoke", *options])
    if mended == len(steps):
        assert result.exit_code == 0, result.output
        return
    assert result.exit_code == 1, result.output
    assert steps[mended][2] in " ".join(result.output.split())


@pytest.mark.rotating(parts=16)
@pytest.mark.parametrize("mended", range(len(MENDED) + 1))
def test_three_mistakes_are_found_one_after_another(mended, tmp_path):
    check_mended(STUDENT, "bert", mended, MENDED, tmp_path)


@pytest.mark.rotating(parts=16)
@pytest.mark.parametrize("mended", range(len(OF_TRANSFORMER) + 1))
def test_three_mistakes_of_a_transformer_are_found_one_after_another(mended, tmp_path):
    student = tmp_path / "student_transformer.py"
    source = (EXAMPLES / student.name).read_text()
    if mended == len(OF_TRANSFORMER):  # the last mistake is mended in three places
        source = source.replace(
            "def decode(self, ids, memory):", "def decode(self, ids, memory, padding):"
        )
        source = source.replace("x, memory, nothing,", "x, memory, padding,")
    student.write_text(source)
    check_mended(student, "encoder_decoder", mended, OF_TRANSFORMER, tmp_path)


@pytest.mark.rotating(parts=6)
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


@pytest.mark.rotating(parts=6)
def test_wrong_gradients_of_a_wrong_model_name_the_stage():
    """With several workers, `-x` stops at the law that fails first, whichever that is."""
    target = f"{EXAMPLES / 'student_transformer.py'}:build"
    options = ["--architecture", "encoder_decoder", "--laws", "CRS-21", "-n", "1"]
    result = CliRunner().invoke(app, ["check-model", target, *options])
    assert result.exit_code == 1, result.output
    assert f"Found     {OF_TRANSFORMER[0][2]}" in result.output
