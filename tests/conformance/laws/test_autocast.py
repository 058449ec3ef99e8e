"""Laws of autocast accept functions whose operations PyTorch rounds, in any correct order."""

import math

import pytest
import torch

from attnspec.conformance import laws
from attnspec.conformance.attention.subject import Subject
from attnspec.conformance.report.record import Outcome
from attnspec.conformance.runner.check import check
from attnspec.spec import (
    EmptyRow,
    Feature,
    Implementation,
    MaskedNonfinite,
    Profile,
    Rounding,
    RoundingLevel,
)

LAWS = [law for name, law in laws.load().items() if name.startswith("autocast-")]


def scores_of(query, key, attn_mask, is_causal, scale):
    scores = query @ key.mT * (query.shape[-1] ** -0.5 if scale is None else scale)
    if attn_mask is not None and attn_mask.dtype == torch.bool:
        scores = scores.masked_fill(~attn_mask, -math.inf)
    elif attn_mask is not None:
        scores = scores + attn_mask
    if is_causal:
        visible = torch.ones(scores.shape[-2:], dtype=torch.bool).tril()
        scores = scores.masked_fill(~visible, -math.inf)
    return scores


def exponentials_of_shifted_scores(scores, value):
    return torch.exp(scores - scores.logsumexp(-1, keepdim=True)) @ value


def exponentials_of_log_softmax(scores, value):
    return torch.exp(scores.log_softmax(-1)) @ value


def merged_halves(scores, value):
    half = -(-scores.shape[-1] // 2)
    parts, sums = [], []
    for place in range(0, scores.shape[-1], half):
        part = scores[..., place : place + half]
        lse = part.logsumexp(-1, keepdim=True)
        weights = torch.exp(part - torch.where(lse == -math.inf, 0.0, lse))
        parts.append(weights @ value[..., place : place + half, :])
        sums.append(lse)
    whole = torch.cat(sums, -1).logsumexp(-1, keepdim=True)
    return sum(torch.exp(lse - whole) * part for lse, part in zip(sums, parts, strict=True))


def tiles_of(size):
    def sums_over_tiles(scores, value):
        largest, total, out = scores.amax(-1, keepdim=True), 0, 0
        for place in range(0, scores.shape[-1], size):
            weights = torch.exp(scores[..., place : place + size] - largest)
            total = total + weights.sum(-1, keepdim=True)
            out = out + weights @ value[..., place : place + size, :]
        return out / total

    return sums_over_tiles


def subject(mix, dtypes=(torch.float32, torch.bfloat16)):
    def attention(
        query, key, value, attn_mask=None, dropout_p=0.0, is_causal=False, scale=None,
        enable_gqa=False,
    ):  # fmt: skip
        group = query.shape[1] // key.shape[1]
        key, value = (each.repeat_interleave(group, 1) for each in (key, value))
        return mix(scores_of(query, key, attn_mask, is_causal, scale), value)

    return Subject(
        Implementation(
            name="it",
            attention=attention,
            features=frozenset({Feature.CAUSAL, Feature.MASK, Feature.GQA, Feature.BACKWARD}),
            dtypes=dtypes,
            profile=Profile(
                empty_row=EmptyRow.NAN,
                masked_values=MaskedNonfinite.PROPAGATES,
                rounding=Rounding(level=RoundingLevel.EAGER),
            ),
        )
    )


FUNCTIONS = pytest.mark.parametrize(
    "mix",
    [
        exponentials_of_shifted_scores,
        exponentials_of_log_softmax,
        merged_halves,
        *(pytest.param(tiles_of(size), id=f"tiles of {size}") for size in (16, 64, 128)),
    ],
)


@pytest.mark.parametrize("law", LAWS, ids=lambda law: law.name)
@FUNCTIONS
def test_a_function_whose_operations_round_conforms(mix, law):
    record = check(law, subject(mix), None)
    assert record.outcome is Outcome.PASSED, record.message
    # the case of 1 100 keys is evidence too
    assert record.examples >= 6


@pytest.mark.parametrize("law", LAWS, ids=lambda law: law.name)
@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16], ids=str)
@FUNCTIONS
def test_a_function_of_16_bits_conforms(mix, dtype, law):
    record = check(law, subject(mix, (dtype,)), None)
    assert record.outcome is Outcome.PASSED, record.message
    assert record.examples >= 6


def test_sums_that_stop_growing_fail():
    def one_key_at_a_time(scores, value):
        weights, total, out = torch.exp(scores - scores.amax(-1, keepdim=True)), 0, 0
        for place in range(scores.shape[-1]):
            weight = weights[..., place : place + 1]
            dtype = torch.bfloat16 if torch.is_autocast_enabled("cpu") else weight.dtype
            total = (total + weight).to(dtype)
            out = out + weight * value[..., place : place + 1, :]
        return out / total

    outcomes = {law.name: check(law, subject(one_key_at_a_time), None).outcome for law in LAWS}
    assert outcomes["autocast-lowers-the-precision-and-nothing-else"] is Outcome.FAILED
