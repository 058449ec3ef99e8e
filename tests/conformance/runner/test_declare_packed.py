"""Bare functions that take packed sequences: features by parameters, the profile by calls."""

from dataclasses import replace

import pytest
import torch
from typer.testing import CliRunner

from attnspec.conformance.cli.app import app
from attnspec.conformance.mutants.bases.packed import PROFILE, PlainPacked
from attnspec.conformance.runner.claims import Claims
from attnspec.conformance.runner.declare_operator import declare_operator, profile_in_words
from attnspec.conformance.runner.targets import TargetError, resolve
from attnspec.conformance.subjects.kinds import SubjectKind
from attnspec.spec.packed import (
    PACKED_FEATURES,
    EmptySequences,
    LseLayout,
    OutsideRows,
    PackedImplementation,
    PackedProfile,
)
from attnspec.spec.profiles import EmptyRow, MaskedNonfinite, RoundingLevel

PLAIN = PlainPacked()


def found(function, **claims):
    return declare_operator("it", function, Claims(operator="packed", **claims))


def plain(
    query, key, value, cu_seq_q, cu_seq_k, max_q, max_k, *, scale=None, window_size=(-1, -1)
):  # fmt: skip
    return PLAIN(
        query, key, value, cu_seq_q, cu_seq_k, max_q, max_k, scale=scale, window_size=window_size
    )


def test_a_plain_function_is_declared_by_its_parameters_and_calls():
    declared = found(plain)
    assert declared.features == {"causal", "window"}
    assert declared.profile == PROFILE
    assert len(declared.dtypes) == 4


def test_a_function_with_every_parameter_claims_every_feature():
    assert found(PLAIN).features == PACKED_FEATURES - {"validates"}


def test_a_feature_whose_calls_raise_is_not_claimed():
    def without_window(*arguments, window_size=(-1, -1)):
        if window_size not in ((-1, -1), (-1, 0)):
            raise ValueError(window_size)
        return PLAIN(*arguments, window_size=window_size)

    assert found(without_window).features == {"causal"}


def test_calls_find_what_rows_outside_all_sequences_hold():
    def of_garbage(query, *arguments):
        return torch.cat([PLAIN(query, *arguments)[: arguments[2][-1]], query[arguments[2][-1] :]])

    assert found(of_garbage).profile.outside_rows is OutsideRows.UNDEFINED


def test_calls_find_that_nan_of_neighbours_spreads():
    class Spreads(PlainPacked):
        def sequence(self, b, query, key, value):
            out, lse = super().sequence(b, query, key, value)
            return out + self.value.sum() * 0, lse

    assert found(Spreads()).profile.neighbours is MaskedNonfinite.PROPAGATES


def test_calls_find_the_rounding():
    def wide(query, key, value, *arguments):
        return PLAIN(query.double(), key.double(), value.double(), *arguments).to(query.dtype)

    assert found(wide).profile.rounding is RoundingLevel.FUSED
    assert found(plain).profile.rounding is RoundingLevel.EAGER


def test_calls_find_the_layout_of_the_log_sum_exp():
    function = PlainPacked()
    function.lse_layout = LseLayout.TOKENS_FIRST
    assert found(function).profile.lse_layout is LseLayout.TOKENS_FIRST


def test_calls_find_the_output_of_empty_rows():
    class NaN(PlainPacked):
        def softmax(self, scores):
            return scores.softmax(-1), super().softmax(scores)[1]

    assert found(NaN()).profile.empty_row is EmptyRow.NAN


def test_empty_sequences_that_raise_are_undefined_and_wrong_ones_are_a_finding():
    class Refuses(PlainPacked):
        def sequence(self, b, query, key, value):
            if not len(query) or not len(key):
                raise ValueError("empty")
            return super().sequence(b, query, key, value)

    class Wrong(PlainPacked):
        def rows(self, b):
            rows = super().rows(b)
            return rows if len(set(self.offsets)) == len(self.offsets) else slice(0, rows.stop)

    assert found(Refuses()).profile.empty_sequences is EmptySequences.UNDEFINED
    assert found(Wrong()).profile.empty_sequences is EmptySequences.ALLOWED


def test_given_claims_are_held():
    declared = found(
        plain,
        features=frozenset({"causal"}),
        dtypes=(torch.float32,),
        profile=(("rounding", "rowsum"), ("batch_invariant", "yes")),
    )
    assert declared.features == {"causal"}
    assert declared.dtypes == (torch.float32,)
    assert declared.profile == replace(PROFILE, rounding=RoundingLevel.ROWSUM, batch_invariant=True)


def test_a_function_that_always_raises_is_declared_all_the_same():
    def broken(*arguments):
        raise RuntimeError("broken")

    assert found(broken).profile == PackedProfile(empty_sequences=EmptySequences.UNDEFINED)


def test_an_unknown_answer_is_refused():
    with pytest.raises(ValueError, match="no question of packed"):
        found(plain, profile=(("alignment", "upper_left"),))


@pytest.mark.parametrize("question", ["accumulator", "partial_outputs"])
def test_an_answer_that_is_no_word_is_refused(question):
    with pytest.raises(ValueError, match=f"no question of packed '{question}'"):
        found(plain, profile=((question, "never"),))


def test_an_answer_that_is_a_function_has_a_name():
    def each_page(queries, keys, page_size):
        return keys // page_size

    declared = PackedImplementation(name="it", function=plain, has_gradients=False)
    assert "partial_outputs=never" in profile_in_words(declared)
    rounded = replace(declared, profile=PackedProfile(partial_outputs=each_page))
    assert "partial_outputs=each_page" in profile_in_words(rounded)


def test_a_target_is_resolved_as_packed(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    (tmp_path / "my_varlen.py").write_text(
        "from attnspec.reference.packed import packed_attention as attention\n"
    )
    (subject,) = resolve("my_varlen.py:attention", claims=Claims(operator="packed"))
    assert subject.kind is SubjectKind.PACKED
    words = profile_in_words(subject.subject.implementation)
    assert "outside_rows=zero" in words
    (registered,) = resolve("packed_eager")
    assert registered.kind is SubjectKind.PACKED
    with pytest.raises(TargetError, match="declared as packed"):
        resolve("packed_eager", claims=Claims(operator="router"))


def test_packed_means_the_operator_of_that_name():
    result = CliRunner().invoke(app, ["check", "x.py:f", "--packed", "--operator", "router"])
    assert result.exit_code == 2
    assert "--packed means --operator packed" in result.output
