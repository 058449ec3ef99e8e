"""Isolation: the laws that fail on a mutant of a model, beside those of the clauses it breaks."""

from attnspec.conformance import laws, mutants
from attnspec.conformance.evidence.mutation.isolation import isolation, stray_laws
from attnspec.conformance.evidence.mutation.kills import Kills, is_undecided, run_law
from attnspec.conformance.report.record import Outcome

LAWS, MUTANTS = laws.load(), mutants.load()


def result(mutant, *names, undecided=()):
    return Kills(
        mutant=mutant, kind="model", pinned=dict.fromkeys(names, 1), undecided=tuple(undecided)
    )


def test_laws_of_the_broken_clauses_and_of_the_whole_model_are_no_strays():
    named = MUTANTS["own-erf-gelu"].killed_by
    clean = result("own-erf-gelu", named, "logits-equal-the-oracles", "gelu-is-not-the-erf-form")
    assert stray_laws(clean) == ()
    other = result("own-erf-gelu", named, "epsilon-is-inside-the-root", "a-cache-changes-no-token")
    assert stray_laws(other) == ("epsilon-is-inside-the-root", "a-cache-changes-no-token")
    undecided = result("own-erf-gelu", named, "positions-add", undecided=["positions-add"])
    assert stray_laws(undecided) == ()


def test_the_count_and_every_exception_are_printed():
    named = MUTANTS["own-erf-gelu"].killed_by
    stray = result("own-rms-norm", "positions-add")
    count, exception = isolation([result("own-erf-gelu", named), stray])
    assert count.startswith("isolation: on 1 of 2 mutants of models, no law fails but those of the")
    assert exception == "also fails on own-rms-norm: positions-add"
    assert isolation([Kills(mutant="own-erf-gelu", kind="attention")]) == []


def test_a_law_about_another_stage_is_not_decided_on_a_mutant():
    subject = MUTANTS["own-erf-gelu"].subject
    outcomes = {}
    for name in ("activation-is-the-tanh-gelu", "the-mlp-reads-the-stream-after-attention"):
        record, _ = run_law(LAWS[name], subject, None)
        assert record.outcome is Outcome.FAILED
        outcomes[name] = is_undecided(record, subject)
    assert list(outcomes.values()) == [False, True]
