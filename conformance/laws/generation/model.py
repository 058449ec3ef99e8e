"""Laws of GEN that judge models: the tokens that a GPT-2 generates."""

from collections.abc import Sequence
from typing import Any

import torch
from hypothesis.strategies import SearchStrategy
from jaxtyping import Float

from attnspec.conformance.attention.memoize import memoize
from attnspec.conformance.comparison.violation import NotAvailable, NotClaimed, Violation
from attnspec.conformance.laws.law import law
from attnspec.conformance.models.case import PINNED, ModelCase, draw, model_cases
from attnspec.conformance.models.oracle import Allowed, expected_logits, in_float64
from attnspec.conformance.models.subject import Weights, build, call, checked_logits, logits_of
from attnspec.spec import GPT2Config, ModelFeature, ModelImplementation

NEW_TOKENS = 6

_PINNED = tuple(
    case.but(batch=1, n_positions=case.length + NEW_TOKENS, n_layer=max(1, case.n_layer))
    for case in PINNED
)


def _cases(subject: ModelImplementation) -> SearchStrategy[ModelCase]:
    return model_cases(subject, batch=1, n_positions=9 + NEW_TOKENS)


def generate_greedily(
    model: Any, prompt: Sequence[int], count: int, like: Weights, *, cached: bool
) -> list[int]:
    """Generate tokens by the largest logit, of equal ones the lowest id."""
    ids, new = list(prompt), list(prompt)
    cache = model.empty_cache() if cached else None
    for _ in range(count):
        if cached:
            input_ids = torch.tensor([new])
            with torch.no_grad():
                result = call(model, input_ids, cache=cache)
            if not isinstance(result, tuple) or len(result) != 2:
                raise Violation(f"with a cache a model returns (logits, cache), got {result!r}")
            logits, cache = checked_logits(result[0], input_ids, like), result[1]
        else:
            logits = logits_of(model, torch.tensor([ids]), like)
        row = logits[0, -1].tolist()
        new = [row.index(max(row))]
        ids += new
    return ids[len(prompt) :]


def _first_difference(left: Sequence[int], right: Sequence[int]) -> int | None:
    return next((n for n, (a, b) in enumerate(zip(left, right, strict=True)) if a != b), None)


def _tie_or_violation(
    logits: Float[torch.Tensor, " vocab"],
    tolerance: Float[torch.Tensor, " vocab"],
    chosen: int,
    other: int,
    message: str,
) -> None:
    """Judge two different tokens that were chosen after the same ids.

    Raises:
        NotClaimed: if their logits are so close that errors within the bounds allow either.
        Violation: if they are not.
    """
    margin = float(logits[other] - logits[chosen])
    error = float(tolerance[other] + tolerance[chosen])
    if abs(margin) <= error:
        raise NotClaimed("two logits differ by less than their errors: either token is allowed")
    raise Violation(
        f"{message}; their logits differ by {abs(margin):.3g}, errors by at most {error:.3g}"
    )


@law(
    "GEN-11",
    pinned=_PINNED,
    explore=_cases,
    needs={ModelFeature.CACHE},
    cost=8.0,
)
def law_a_cache_changes_no_token(subject: ModelImplementation, case: ModelCase) -> None:
    """GEN-11: greedy generation with a cache gives the tokens that it gives without."""
    inputs = draw(case)
    model = build(subject, inputs.config, inputs.state_dict)
    prompt = inputs.input_ids[0].tolist()
    expected = generate_greedily(model, prompt, NEW_TOKENS, inputs.state_dict, cached=False)
    tokens = generate_greedily(model, prompt, NEW_TOKENS, inputs.state_dict, cached=True)
    step = _first_difference(tokens, expected)
    if step is None:
        return
    context = torch.tensor([[*prompt, *tokens[:step]]])
    logits = logits_of(model, context, inputs.state_dict)[0, -1].double()
    radius = Allowed(inputs.config, inputs.state_dict, context).model.logits.radius[0, -1]
    message = (
        f"after {context[0].tolist()} comes {tokens[step]} with a cache, {expected[step]} without"
    )
    _tie_or_violation(logits, 2 * radius, tokens[step], expected[step], message)


@law("GEN-12", pinned=_PINNED, explore=_cases, cost=16.0)
def law_greedy_generation_equals_hugging_faces(
    subject: ModelImplementation, case: ModelCase
) -> None:
    """GEN-12: greedy generation gives, token by token, what Hugging Face's `generate` gives."""
    inputs = draw(case)
    config, weights = inputs.config, inputs.state_dict
    model = build(subject, config, weights)
    prompt = inputs.input_ids[0].tolist()
    cached = ModelFeature.CACHE in subject.features
    tokens = generate_greedily(model, prompt, NEW_TOKENS, weights, cached=cached)
    if subject.name == "huggingface_gpt2":
        expected = _reference(config, weights, prompt)
    else:
        expected = _cached_hugging_face(config, weights, tuple(prompt))
    step = _first_difference(tokens, expected)
    if step is None:
        return
    context = torch.tensor([[*prompt, *tokens[:step]]])
    logits = expected_logits(subject, config, weights, context)[0, -1]
    tolerance = Allowed(config, weights, context).logits[0, -1]
    message = f"after {context[0].tolist()} must come {expected[step]}, got {tokens[step]}"
    _tie_or_violation(logits, tolerance, tokens[step], expected[step], message)


def _hugging_face(config: GPT2Config, weights: Weights, prompt: tuple[int, ...]) -> list[int]:
    """Return the tokens of the `generate` of transformers in float64, with its own cache."""
    from attnspec.implementations import load_model

    hugging_face = load_model("huggingface_gpt2")
    if (missing := hugging_face.unavailable()) is not None:
        raise NotAvailable(missing)
    if (reason := hugging_face.supports(config)) is not None:
        raise NotClaimed(f"the oracle refuses the configuration: {reason}")
    import transformers

    exact = in_float64(weights)
    module = transformers.GPT2LMHeadModel(hugging_face.build(config, exact).config).double().eval()
    absent, unexpected = module.load_state_dict(exact, strict=False)
    if unexpected or set(absent) - ({"lm_head.weight"} if config.tie_word_embeddings else set()):
        raise RuntimeError(f"the oracle lacks {absent} and does not know {unexpected}")
    ids = torch.tensor([prompt])
    out = module.generate(
        ids,
        attention_mask=torch.ones_like(ids),
        do_sample=False,
        max_new_tokens=NEW_TOKENS,
        pad_token_id=0,
    )
    tokens: list[int] = out[0, len(prompt) :].tolist()
    return tokens


_cached_hugging_face = memoize(_hugging_face, kept=64)
"""Memoized: many models are compared with the same tokens."""


def _reference(config: GPT2Config, weights: Weights, prompt: list[int]) -> list[int]:
    """Return the tokens of the `generate` of the reference in float64, without a cache."""
    from attnspec.reference.generation import generate
    from attnspec.reference.model import MODEL

    model = MODEL.build(config, in_float64(weights))
    return list(generate(model, prompt, max_new_tokens=NEW_TOKENS, greedy=True, use_cache=False))
