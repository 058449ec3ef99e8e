"""The diagnosis of the planted models: the stage and the bug that each of them has."""

from dataclasses import replace

import pytest

import attnspec.conformance.mutants  # noqa: F401
from attnspec.conformance.model_likeness import model_resembles
from attnspec.conformance.model_stage import diverges
from attnspec.conformance.model_stage_names import Stage
from attnspec.conformance.mutants.registry import planted
from attnspec.spec import ModelImplementation


def block(stage, layer=0):
    """The name of a stage in a block."""
    return f"block {layer}, {stage}"


MUTANTS = {
    name: each for name, each in planted().items() if isinstance(each.subject, ModelImplementation)
}
NO_STAGE = {
    # padding
    "SPV-07",
    "POS-05",
    "own-padding-mask-ignored",
    "own-padding-positions-ignored",
    # a cache
    "own-generation-cached-position-early",
    "own-generation-cached-values-stale",
    "CAC-01",
    "CAC-02",
    "CAC-03",
    "CAC-04",
    "MSK-05",
    # what must be refused
    "own-token-clamped",
    "own-token-negative-wraps",
    "own-positions-clamped",
    # gradients
    "MDL-10",
    "own-norm-statistics-detached",
    # other answers each time, or other weights
    "own-dropout-in-evaluation",
    "own-state-kept",
    "own-weights-folded-in-place",
}
STAGES = {
    "own-token-next-row": str(Stage.TOKENS),
    "own-embedding-scaled": str(Stage.TOKENS),
    "own-no-positions": str(Stage.POSITIONS),
    "own-positions-from-one": str(Stage.POSITIONS),
    "own-generation-positions-from-one": str(Stage.POSITIONS),
    "MDL-04": block(Stage.FIRST_NORM),
    "MDL-05": block(Stage.FIRST_NORM),
    "own-residual-after-norm": block(Stage.FIRST_NORM),
    "own-norms-swapped": block(Stage.FIRST_NORM),
    "own-epsilon-outside": block(Stage.FIRST_NORM),
    "own-epsilon-fixed": block(Stage.FIRST_NORM),
    "own-rms-norm": block(Stage.FIRST_NORM),
    "own-variance-by-moments": block(Stage.FIRST_NORM),
    "own-norm-over-sequence": block(Stage.FIRST_NORM),
    "own-norm-over-batch": block(Stage.FIRST_NORM),
    "own-bias-before-gain": block(Stage.FIRST_NORM),
    "own-projection-transposed": block(Stage.PROJECTIONS),
    "own-no-linear-bias": block(Stage.PROJECTIONS),
    "MDL-03": block(Stage.HEADS),
    "own-key-query-value": block(Stage.HEADS),
    "own-heads-strided": block(Stage.HEADS),
    "MSK-40": block(Stage.MASK),
    "own-future-leak": block(Stage.MASK),
    "own-mask-finite": block(Stage.MASK),
    "own-scale-switch-ignored": block(Stage.SCALE),
    "own-scale-of-d-model": block(Stage.SCALE),
    "own-inverse-layer-from-zero": block(Stage.SCALE, 1),
    "own-attention-over-batch": block(Stage.BATCH),
    "own-no-residual-attention": block(Stage.FIRST_RESIDUAL),
    "own-parallel-block": block(Stage.SECOND_NORM),
    "own-square-mlp-transposed": block(Stage.MLP_MAPS),
    "own-inner-width-ignored": block(Stage.MLP_MAPS),
    "own-erf-gelu": block(Stage.ACTIVATION),
    "own-quick-gelu": block(Stage.ACTIVATION),
    "own-gelu-constant": block(Stage.ACTIVATION),
    "own-leaky-gelu": block(Stage.ACTIVATION),
    "own-activation-ignored": block(Stage.ACTIVATION),
    "own-no-final-norm": str(Stage.FINAL_NORM),
    "own-generation-head-without-norm": str(Stage.FINAL_NORM),
    "own-final-norm-twice": str(Stage.FINAL_NORM),
    "MDL-08": str(Stage.HEAD),
    "MDL-09": str(Stage.HEAD),
    "own-logits-shifted": str(Stage.HEAD),
    "own-hidden-states-late": str(Stage.STATES),
}
TWINS = (
    {"own-positions-from-one", "own-generation-positions-from-one"},
    {"own-no-final-norm", "own-generation-head-without-norm"},
)
"""Mutants with the same mistake in the same words of the model."""


def blind(subject):
    """The same model without hidden states, or anything else beside logits."""
    return replace(subject, name=f"blind_{subject.name}", features=frozenset())


def place(subject):
    """The stage that is named, or nothing."""
    found = diverges(subject)
    return "" if found is None else found.place


def figures(name, expected, found):
    """Print how many are named, and how many of them right; demand nineteen of twenty."""
    named = [each for each in found if found[each]]
    wrong = {each: found[each] for each in named if found[each] != expected[each]}
    print(f"{name}: {len(named)} of {len(found)} named, {len(named) - len(wrong)} right: {wrong}")
    assert len(wrong) <= 0.05 * len(named), wrong
    missed = [each for each in found if expected[each] and not found[each]]
    assert len(missed) <= 0.05 * len(found), missed


def test_the_table_knows_every_mutant():
    assert set(STAGES) | NO_STAGE == set(MUTANTS)
    assert not set(STAGES) & NO_STAGE


@pytest.mark.parametrize("sees", [True, False], ids=["hidden states", "logits alone"])
def test_the_stage_of_a_mutant_is_named(sees):
    expected = dict.fromkeys(NO_STAGE, "") | STAGES
    if not sees:
        expected["own-hidden-states-late"] = ""
    found = {
        name: place(each.subject if sees else blind(each.subject))
        for name, each in MUTANTS.items()
        if sees or name in STAGES
    }
    figures("stages of mutants", expected, found)


def test_a_mutant_is_like_itself_and_without_its_entry_like_its_twin_at_most():
    named = right = strange = 0
    for name, each in MUTANTS.items():
        refusals = name in {
            "own-token-clamped",
            "own-token-negative-wraps",
            "own-positions-clamped",
        }
        twins = next((pair for pair in TWINS if name in pair), {name})
        found = {bug.id for bug in model_resembles(each.subject, refusals=refusals)}
        others = {
            bug.id
            for bug in model_resembles(each.subject, refusals=refusals, without=frozenset({name}))
        }
        named += bool(found)
        right += name in found and found <= twins
        strange += not others <= twins
    print(f"looks like: {named} of {len(MUTANTS)} named, {right} right; {strange} like another")
    assert right >= 0.95 * len(MUTANTS)
    assert strange <= 0.05 * len(MUTANTS)
