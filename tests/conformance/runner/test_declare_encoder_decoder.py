"""Bare functions that build an encoder-decoder: features by what changes their results."""

from functools import partial

import pytest
import torch

from attnspec.conformance.operators.encoder_decoder.mistakes import NotCausal, PostNorm
from attnspec.conformance.operators.encoder_decoder.steps import Steps
from attnspec.conformance.runner.claims import Claims
from attnspec.conformance.runner.declare_operator import declare_operator
from attnspec.implementations.huggingface_bart import HuggingFaceBart
from attnspec.implementations.torch_transformer import TorchTransformer
from attnspec.spec.encoder_decoder import (
    EncoderDecoderImplementation,
    EncoderDecoderProfile,
    Sinusoids,
)
from attnspec.spec.padding import PaddedPositions

EVERY = EncoderDecoderImplementation.FEATURES
CLAIMS = Claims(operator="encoder_decoder")
HALVES = EncoderDecoderProfile(sinusoids=Sinusoids.HALVES)


class WithoutSwitches(Steps):
    """As a student writes it: the Transformer of 2017, whatever the configuration says."""

    def __init__(self, config, state_dict):
        super().__init__(config, state_dict)

    branch = PostNorm.branch

    def learned(self, places, side):
        return self.sinusoids(places)

    def final(self, x, side):
        return x


def test_options_steps_and_configurations_are_found():
    found = declare_operator("it", Steps, CLAIMS)
    assert found.features == EVERY
    assert found.profile.sinusoids is Sinusoids.INTERLEAVED
    assert found.dtypes == (torch.float64, torch.float32)


def test_configurations_that_change_nothing_are_not_claimed():
    found = declare_operator("it", WithoutSwitches, CLAIMS)
    assert EVERY - found.features == {"learned", "pre_norm", "final_norm"}


def test_mistakes_take_no_claims_away():
    assert declare_operator("it", NotCausal, CLAIMS).features == EVERY


@pytest.mark.filterwarnings("ignore")
def test_bart_claims_learned_positions_alone():
    pytest.importorskip("transformers")
    found = declare_operator("it", HuggingFaceBart, CLAIMS)
    assert EVERY - found.features == {"sinusoidal", "pre_norm", "final_norm"}


def test_the_order_of_the_sinusoids_is_found():
    made = lambda config, weights: Steps(config, weights, HALVES)  # noqa: E731
    assert declare_operator("it", made, CLAIMS).profile.sinusoids is Sinusoids.HALVES


def test_a_function_that_raises_has_the_default_claim():
    def build(config, state_dict):
        raise KeyError("no such parameter")

    assert declare_operator("it", build, CLAIMS).features == {"sinusoidal"}


@pytest.mark.rotating(parts=4)
@pytest.mark.parametrize("positions", PaddedPositions)
def test_positions_behind_padding_are_found(positions):
    profile = EncoderDecoderProfile(positions=positions)
    found = declare_operator("it", partial(Steps, profile=profile), CLAIMS)
    assert found.profile == profile
    assert found.features == EVERY


def test_nan_behind_padding_of_a_target_is_not_claimed():
    """A block later, a row that reads nothing reaches the others."""
    found = declare_operator("it", TorchTransformer, CLAIMS)
    assert EVERY - found.features == {"hidden_states", "steps", "any_target_padding"}
