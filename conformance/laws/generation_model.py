"""Laws of the chapter on generation that judge models: the tokens that a GPT-2 generates."""

from collections.abc import Sequence
from typing import Any

import torch
from hypothesis.strategies import SearchStrategy
from jaxtyping import Float

from attnspec.conformance.law import Judged, law
from attnspec.conformance.model_case import PINNED, ModelCase, draw, model_cases
from attnspec.conformance.model_judge import (
    Allowed,
    Weights,
    ask,
    build,
    call,
    doubled,
    expected_logits,
    sound,
)
from attnspec.conformance.sharing import remembered
from attnspec.conformance.tally import NotClaimed
from attnspec.conformance.violation import Violation
from attnspec.spec import GPT2Config, ModelFeature, ModelImplementation

NEW_TOKENS = 6

_PINNED = tuple(
    case.but(batch=1, n_positions=case.length + NEW_TOKENS, n_layer=max(1, case.n_layer))
    for case in PINNED
)


def _cases(subject: ModelImplementation) -> SearchStrategy[ModelCase]:
    return model_cases(subject, batch=1, n_positions=9 + NEW_TOKENS)


def greedy(
    model: Any, prompt: Sequence[int], count: int, like: Weights, *, cached: bool
) -> list[int]:
    """Generate with a model, the largest logit each time, of equal ones that of the lowest id."""
    ids, fresh = list(prompt), list(prompt)
    cache = model.empty_cache() if cached else None
    for _ in range(count):
        if cached:
            given = torch.tensor([fresh])
            with torch.no_grad():
                answer = call(model, given, cache=cache)
            if not isinstance(answer, tuple) or len(answer) != 2:
                raise Violation(f"with a cache a model returns (logits, cache), got {answer!r}")
            logits, cache = sound(answer[0], given, like), answer[1]
        else:
            logits = ask(model, torch.tensor([ids]), like)
        row = logits[0, -1].tolist()
        fresh = [row.index(max(row))]
        ids += fresh
    return ids[len(prompt) :]


def _first_difference(left: Sequence[int], right: Sequence[int]) -> int | None:
    return next((n for n, (a, b) in enumerate(zip(left, right, strict=True)) if a != b), None)


def _tie_or_violation(
    logits: Float[torch.Tensor, " vocab"],
    gate: Float[torch.Tensor, " vocab"],
    chosen: int,
    other: int,
    message: str,
) -> None:
    """Decide between two tokens that were chosen after the same ids.

    Raises:
        NotClaimed: where their logits are so close that errors within their bounds choose either.
        Violation: where they are not.
    """
    margin = float(logits[other] - logits[chosen])
    reach = float(gate[other] + gate[chosen])
    if abs(margin) <= reach:
        raise NotClaimed("two tokens tie within the error of their logits: either may come")
    raise Violation(
        f"{message}; their logits differ by {abs(margin):.3g}, errors reach {reach:.3g}"
    )


@law(
    "GEN-11",
    judges=Judged.MODEL,
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
    without = greedy(model, prompt, NEW_TOKENS, inputs.state_dict, cached=False)
    got = greedy(model, prompt, NEW_TOKENS, inputs.state_dict, cached=True)
    step = _first_difference(got, without)
    if step is None:
        return
    context = torch.tensor([[*prompt, *got[:step]]])
    logits = ask(model, context, inputs.state_dict)[0, -1].double()
    radius = Allowed(inputs.config, inputs.state_dict, context).model.logits.radius[0, -1]
    told = f"after {context[0].tolist()} comes {got[step]} with a cache, {without[step]} without"
    _tie_or_violation(logits, 2 * radius, got[step], without[step], told)


@law("GEN-12", judges=Judged.MODEL, pinned=_PINNED, explore=_cases, cost=16.0)
def law_greedy_generation_equals_hugging_faces(
    subject: ModelImplementation, case: ModelCase
) -> None:
    """GEN-12: greedy generation gives, token by token, what Hugging Face's `generate` gives."""
    inputs = draw(case)
    config, weights = inputs.config, inputs.state_dict
    model = build(subject, config, weights)
    prompt = inputs.input_ids[0].tolist()
    cached = ModelFeature.CACHE in subject.features
    got = greedy(model, prompt, NEW_TOKENS, weights, cached=cached)
    if subject.name == "huggingface_gpt2":
        expected = _reference(config, weights, prompt)
    else:
        expected = _as_theirs(config, weights, tuple(prompt))
    step = _first_difference(got, expected)
    if step is None:
        return
    context = torch.tensor([[*prompt, *got[:step]]])
    logits = expected_logits(subject, config, weights, context)[0, -1]
    gate = Allowed(config, weights, context).logits[0, -1]
    told = f"after {context[0].tolist()} must come {expected[step]}, got {got[step]}"
    _tie_or_violation(logits, gate, got[step], expected[step], told)


def _hugging_face(config: GPT2Config, weights: Weights, prompt: tuple[int, ...]) -> list[int]:
    """What transformers' own `generate` gives in float64, with its own cache."""
    from attnspec.implementations import load_model

    theirs = load_model("huggingface_gpt2")
    reason = theirs.unavailable() or theirs.supports(config)
    if reason is not None:
        raise NotClaimed(f"the oracle is not available: {reason}")
    import transformers

    exact = doubled(weights)
    module = transformers.GPT2LMHeadModel(theirs.build(config, exact).config).double().eval()
    missing, unexpected = module.load_state_dict(exact, strict=False)
    if unexpected or set(missing) - ({"lm_head.weight"} if config.tie_word_embeddings else set()):
        raise RuntimeError(f"the oracle lacks {missing} and does not know {unexpected}")
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


_as_theirs = remembered(_hugging_face, kept=64)
"""Many models are held to the same tokens, for which a module is built and run."""


def _reference(config: GPT2Config, weights: Weights, prompt: list[int]) -> list[int]:
    """What the reference's own `generate` gives in float64, without a cache."""
    from attnspec.reference.generation import generate
    from attnspec.reference.model import MODEL

    model = MODEL.build(config, doubled(weights))
    return list(generate(model, prompt, max_new_tokens=NEW_TOKENS, greedy=True, use_cache=False))
