"""Tests of the diagnosis of the mutants of GPT-2: the stage of each, and its own entry."""

from dataclasses import replace

import pytest

from attnspec.conformance import mutants
from attnspec.conformance.diagnosis.likeness.models import likely_model_mutants
from attnspec.conformance.diagnosis.stages.names import Stage
from attnspec.conformance.diagnosis.stages.search import first_divergence
from attnspec.conformance.mutants.registry import planted
from attnspec.spec import GPT2Config, ModelImplementation

mutants.load()


def block(stage, layer=0):
    """Return the name of a stage in a block."""
    return f"block {layer}, {stage}"


MUTANTS = {
    name: mutant
    for name, mutant in planted().items()
    if isinstance(mutant.subject, ModelImplementation)
}
ELSEWHERE = {
    # in larger models than those of the diagnosis, in gradients, or in what a later call leaves
    "own-ids-in-one-byte",
    "own-heads-detached-in-a-cache",
    "own-bias-of-a-frozen-weight",
    "own-activations-of-the-last-call",
    "own-reported-states-detached",
    "own-ids-at-padding-overwritten",
    "own-logits-in-one-buffer",
    "own-token-table-in-two-buffers",
    "own-heads-in-float32-unmasked",
    "own-inner-width-in-whole-parts",
    "own-24-layers-of-wide-heads",
    "own-padding-of-32-rows",
    "own-64-tokens-of-padding",
    "own-cache-that-grows-by-768",
    "own-large-cache-in-bfloat16",
    "own-ids-in-two-bytes",
    "own-positions-in-one-byte",
    "own-layers-by-prefix",
    "own-layers-sorted-as-text",
    "own-layer-of-one-digit",
    "own-eight-heads",
    "own-four-rows",
    "own-cache-of-32",
    "own-cached-positions-in-one-byte",
    "own-padding-of-four-rows",
    "own-inner-width-of-256",
    "own-hidden-states-of-four-layers",
    "own-ids-in-two-unsigned-bytes",
    "own-norm-of-1024-channels",
    "own-sixteen-wide-heads",
    "own-24-layers",
    "own-diagonal-tile-unmasked",
    "own-token-gradient-of-64",
    "own-cached-padding-of-eight-rows",
    "own-hidden-states-after-a-cache",
    "own-states-of-a-padded-cache",
    "own-tiles-of-later-layers",
    # in gradients of a call that also returns hidden states or a cache
    "own-states-detached",
    "own-cache-detached",
    "own-bias-of-32-tokens-in-float32",
    "own-gradients-of-many-padded-tokens",
    "own-padding-detached-in-a-cache",
    # in float32, or in what is given beside the tokens of a cache
    "own-wide-heads-in-a-cache-in-float32",
    "own-given-positions-of-a-cache",
    "own-bool-mask-of-a-cache",
    "own-narrow-ids-of-a-cache",
    # in several caches, calls or models
    "own-cache-in-the-model",
    "own-cache-in-place",
    "own-cache-memory-shared",
    "own-mask-remembered",
    "own-parameters-of-the-class",
    # in loading, and in parameters that change
    "own-head-kept-transposed",
    "own-missing-parameter-zero",
    "own-extra-parameter-ignored",
    "own-misshapen-parameter-broadcast",
    "own-unnamed-parameter",
    "own-parameters-by-order",
    "own-buffer-taken-for-a-gain",
    "own-fields-raise-key-errors",
    # in large scores of padding, or after a cache
    "own-padding-penalty",
    "own-chunk-penalty",
}
"""Mutants that are right on nearly every call that the diagnosis makes."""
NO_STAGE = {
    *ELSEWHERE,
    # padding
    "SPV-07",
    "POS-05",
    "own-padding-mask-ignored",
    "own-padding-positions-ignored",
    "own-bool-padding-inverted",
    "own-states-without-padding",
    "own-backward-without-padding",
    # the layout of the ids
    "own-ids-read-as-contiguous",
    # positions that are given
    "own-given-positions-need-a-mask",
    # a cache
    "own-cached-padding-counted-from-the-left",
    "own-generation-cached-position-early",
    "own-generation-cached-values-stale",
    "CAC-01",
    "CAC-02",
    "CAC-03",
    "CAC-04",
    "MSK-05",
    # missing refusals
    "own-token-clamped",
    "own-token-negative-wraps",
    "own-positions-clamped",
    # gradients
    "MDL-10",
    "own-norm-statistics-detached",
    # the state of torch
    "own-model-scale-in-default-dtype",
    "own-rows-divided-among-threads",
    "own-cache-of-a-thread",
    # not deterministic, or changed model parameters
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
    "own-heads-by-view": block(Stage.HEADS),
    "own-heads-merged-by-view": block(Stage.HEADS),
    "own-no-scale": block(Stage.SCALE),
    "own-mask-strict": block(Stage.MASK),
    "own-hidden-scores-zero": block(Stage.MASK),
    "own-masked-after-softmax": block(Stage.MASK),
    "own-softmax-over-queries": block(Stage.MASK),
    "own-no-epsilon": block(Stage.FIRST_NORM),
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
"""Pairs of mutants with the same mistake in the same step of the model."""


def blind(subject):
    """Return the same model with logits only, without hidden states and other features."""
    return replace(subject, name=f"blind_{subject.name}", features=frozenset())


def place(subject):
    """Return the stage that the diagnosis names, or an empty string."""
    divergence = first_divergence(subject)
    return "" if divergence is None else divergence.place


def assert_accurate(title, expected, named):
    """Print the counts of named and rightly named mutants; require 19 of 20 to be right."""
    stages = {mutant: stage for mutant, stage in named.items() if stage}
    wrong = {mutant: stage for mutant, stage in stages.items() if stage != expected[mutant]}
    right = len(stages) - len(wrong)
    print(f"{title}: {len(stages)} of {len(named)} named, {right} right: {wrong}")
    assert len(wrong) <= 0.05 * len(stages), wrong
    missed = [mutant for mutant in named if expected[mutant] and not named[mutant]]
    assert len(missed) <= 0.05 * len(named), missed


def test_the_table_has_every_mutant():
    assert set(STAGES) | NO_STAGE == set(MUTANTS)
    assert not set(STAGES) & NO_STAGE


@pytest.mark.rotating(parts=8)
@pytest.mark.parametrize("sees", [True, False], ids=["hidden states", "logits alone"])
def test_the_stage_of_a_mutant_is_named(sees):
    expected = dict.fromkeys(NO_STAGE, "") | STAGES
    if not sees:
        expected["own-hidden-states-late"] = ""
    named = {
        name: place(mutant.subject if sees else blind(mutant.subject))
        for name, mutant in MUTANTS.items()
        if sees or name in STAGES
    }
    assert_accurate("stages of mutants", expected, named)


UNRELEASED = {
    # these are right in every configuration of a released model
    "own-epsilon-fixed",
    "own-scale-switch-ignored",
    "own-inverse-layer-from-zero",
    "own-square-mlp-transposed",
    "own-inner-width-ignored",
    "own-activation-ignored",
    "MDL-09",
}


def released(subject):
    """Return the same model, refusing every configuration that no released model has."""

    def supports(config):
        usual = GPT2Config()
        fields = (
            *("n_inner", "activation_function", "layer_norm_epsilon", "scale_attn_weights"),
            *("scale_attn_by_inverse_layer_idx", "tie_word_embeddings"),
        )
        other = [name for name in fields if getattr(config, name) != getattr(usual, name)]
        return f"no released model has this {other[0]}" if other else subject.supports(config)

    return replace(subject, name=f"released_{subject.name}", supports=supports)


def test_the_stage_of_a_mutant_is_named_where_only_released_configurations_are_claimed():
    expected = STAGES | dict.fromkeys(UNRELEASED, "")
    named = {name: place(released(MUTANTS[name].subject)) for name in STAGES}
    assert_accurate("stages under released configurations", expected, named)


@pytest.mark.parametrize(
    ("mutant", "configuration", "refused"),
    [
        ("own-epsilon-outside", "n_layer=1 n_head=1 n_embd=6 layer_norm_epsilon=0.25", ()),
        ("own-scale-switch-ignored", "n_layer=1 n_head=2 n_embd=6 scale_attn_weights=False", ()),
        ("own-inner-width-ignored", "n_layer=1 n_head=1 n_embd=6 activation_function=relu", ()),
    ],
)
def test_a_stage_is_named_with_the_configuration_that_diverged(mutant, configuration, refused):
    divergence = first_divergence(MUTANTS[mutant].subject)
    assert divergence.configuration.startswith(configuration)
    assert divergence.refused == refused
    assert f"; configuration: {configuration}" in str(divergence)
    assert "refuses" not in str(divergence)


def test_what_a_model_refuses_is_no_answer_and_is_listed():
    divergence = first_divergence(released(MUTANTS["own-erf-gelu"].subject))
    assert divergence.configuration == "n_layer=1 n_head=1 n_embd=16"
    assert "no released model has this layer_norm_epsilon" in divergence.refused
    assert "not compared where the model refuses: " in str(divergence)


@pytest.mark.rotating(parts=3)
def test_a_mutant_looks_like_itself_and_without_its_entry_like_its_twin_at_most():
    named = right = wrong = 0
    shown = set(MUTANTS) - ELSEWHERE
    for name, mutant in MUTANTS.items():
        refusals = name in {
            "own-token-clamped",
            "own-token-negative-wraps",
            "own-positions-clamped",
        }
        twins = next((pair for pair in TWINS if name in pair), {name})
        matches = {match.id for match in likely_model_mutants(mutant.subject, refusals=refusals)}
        others = {
            match.id
            for match in likely_model_mutants(
                mutant.subject, refusals=refusals, without=frozenset({name})
            )
        }
        named += bool(matches)
        right += name in matches and matches <= twins
        wrong += not others <= twins
    print(f"looks like: {named} of {len(shown)} named, {right} right; {wrong} like another")
    assert right >= 0.95 * len(shown)
    assert wrong <= 0.05 * len(MUTANTS)
