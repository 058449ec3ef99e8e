"""Laws of GPT: hidden tokens stay hidden, however large their scores."""

from dataclasses import replace

import torch

from attnspec.conformance.laws.law import law
from attnspec.conformance.models.cached import call_with_cache
from attnspec.conformance.models.case import ModelCase, ModelInputs, Padding, draw
from attnspec.conformance.models.oracle import Allowed, check_within, logits_alone, own_logits
from attnspec.conformance.models.subject import build, logits_of
from attnspec.spec import ModelFeature, ModelImplementation

FACTOR = 2.0**14
"""Factor of the queries; a power of two, so that the parameters stay exact."""

_SINGLE_HEAD = tuple(
    ModelCase(
        d_head=4, length=4, n_positions=4, batch=2, initializer_range=0.5, dtype=dtype, seed=seed
    )
    for seed in range(3)
    for dtype in (torch.float64, torch.float32)
)
_PADDED = tuple(
    case.but(batch=3, padding=side)
    for case in _SINGLE_HEAD
    for side in (Padding.LEFT, Padding.RIGHT)
)


def with_large_scores(case: ModelCase) -> ModelInputs:
    """Draw a model of one block whose scores are of about 10⁴, with its MLP switched off.

    The largest score of a row is then certain even in float32, and the penalty of -10⁴ that old
    code gives to hidden keys hides few of them.
    """
    inputs = draw(case)
    weights = {name: tensor.clone() for name, tensor in inputs.state_dict.items()}
    weights["transformer.h.0.attn.c_attn.weight"][:, : inputs.config.n_embd] *= FACTOR
    weights["transformer.h.0.attn.c_attn.bias"][: inputs.config.n_embd] *= FACTOR
    for name in ("weight", "bias"):
        weights[f"transformer.h.0.mlp.c_proj.{name}"].zero_()
    return replace(inputs, state_dict=weights)


@law("GPT-18", pinned=_SINGLE_HEAD)
def law_later_tokens_stay_hidden_however_large_their_scores(
    subject: ModelImplementation, case: ModelCase
) -> None:
    """GPT-18: no score is large enough for a later token to be read."""
    inputs = with_large_scores(case)
    config, weights, ids = inputs.config, inputs.state_dict, inputs.input_ids
    changed_ids = ids.clone()
    changed_ids[:, 2:] = (changed_ids[:, 2:] + 1) % config.vocab_size
    model = build(subject, config, weights)
    batches = (ids, changed_ids)
    tolerances = [Allowed(config, weights, input_ids).one_call[:, :2] for input_ids in batches]
    first, second = (logits_of(model, input_ids, weights)[:, :2] for input_ids in batches)
    message = "a later token with a large score is read"
    check_within(
        second, first.double(), tolerances[0] + tolerances[1], what="logits", message=message
    )


@law("GPT-18", pinned=_SINGLE_HEAD, needs={ModelFeature.CACHE})
def law_later_tokens_of_a_chunk_stay_hidden_however_large_their_scores(
    subject: ModelImplementation, case: ModelCase
) -> None:
    """GPT-18: nor is a later token of the same chunk read, after tokens in a cache."""
    inputs = with_large_scores(case)
    config, weights, ids = inputs.config, inputs.state_dict, inputs.input_ids
    model = build(subject, config, weights)
    _, cache = call_with_cache(model, ids[:, :1], model.empty_cache(), weights)
    logits, _ = call_with_cache(model, ids[:, 1:], cache, weights)
    check_within(
        logits,
        own_logits(subject, config, weights, ids)[:, 1:],
        Allowed(config, weights, ids).own_logits[:, 1:],
        what="logits",
        message="a later token of a chunk with a large score is read",
    )


@law("GPT-15", pinned=_PADDED, needs={ModelFeature.PADDING}, cost=3.0)
def law_padding_stays_hidden_however_large_its_scores(
    subject: ModelImplementation, case: ModelCase
) -> None:
    """GPT-15: no score is large enough for padding to be read."""
    inputs = with_large_scores(case)
    config, weights, ids = inputs.config, inputs.state_dict, inputs.input_ids
    padding = {"attention_mask": inputs.attention_mask, "position_ids": inputs.position_ids}
    logits = logits_of(build(subject, config, weights), ids, weights, **padding)
    tolerance = Allowed(config, weights, ids, **padding).own_logits
    for row, real in enumerate(inputs.attention_mask.bool()):
        check_within(
            logits[row, real],
            logits_alone(subject, config, weights, ids[row, real]),
            tolerance[row, real],
            what=f"logits of row {row}'s {int(real.sum())} real tokens",
            message=f"padding on the {case.padding} with a large score is read",
        )
