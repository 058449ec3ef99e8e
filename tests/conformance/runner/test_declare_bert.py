"""Bare functions that build a BERT: features by parameters, positions and pooler by calls."""

from functools import partial
from itertools import product

import pytest

from attnspec.conformance.operators.bert.mistakes import MaskAsLength, PreNorm
from attnspec.conformance.operators.bert.steps import Steps
from attnspec.conformance.runner.claims import Claims
from attnspec.conformance.runner.declare_operator import declare_operator
from attnspec.spec.encoder import BertImplementation, BertProfile, Pooled
from attnspec.spec.padding import PaddedPositions

EVERY = BertImplementation.FEATURES
CLAIMS = Claims(operator="bert")


class WithoutMask(Steps):
    def __call__(self, input_ids, token_type_ids=None):
        return super().__call__(input_ids, token_type_ids=token_type_ids)


@pytest.mark.parametrize(("positions", "pooler"), list(product(PaddedPositions, Pooled)))
def test_positions_and_pooler_are_found(positions, pooler):
    profile = BertProfile(positions=positions, pooler=pooler)
    found = declare_operator("it", partial(Steps, profile=profile), CLAIMS)
    assert found.features == EVERY
    assert found.profile == profile


def test_a_model_without_a_mask_claims_no_padding():
    found = declare_operator("it", WithoutMask, CLAIMS)
    assert found.features == {"token_types", "gradients"}
    assert found.profile == BertProfile()


@pytest.mark.parametrize("base", [PreNorm, MaskAsLength])
def test_mistakes_take_no_claims_away(base):
    found = declare_operator("it", base, CLAIMS)
    assert found.features == EVERY
    assert found.profile == BertProfile()
