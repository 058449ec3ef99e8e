"""Laws of a model's gradients."""

from typing import Any

import torch

from attnspec.conformance.law import Judged, law
from attnspec.conformance.model_case import PINNED, ModelCase, draw, model_cases, normal
from attnspec.conformance.model_gradients import Gradients, gradients
from attnspec.conformance.model_judge import (
    ILL_CONDITIONED,
    Allowed,
    Weights,
    build_on,
    call,
    doubled,
    hold,
    model_oracle,
    sound,
    telling,
)
from attnspec.conformance.sharing import remembered
from attnspec.conformance.tally import NotClaimed
from attnspec.conformance.violation import Violation
from attnspec.spec import GPT2Config, ModelFeature, ModelImplementation

_PINNED = (
    # a large epsilon keeps bounds narrow, so that float32 tells something as well
    *(
        ModelCase(
            n_layer=layers, n_head=2, d_head=3, length=3, layer_norm_epsilon=0.25, batch=2,
            initializer_range=0.2, tied=tied, dtype=dtype, seed=layers,
        )
        for layers, tied in ((1, True), (2, False))
        for dtype in (torch.float64, torch.float32)
    ),
    *(case for case in PINNED if case.n_layer < 3 and case.dtype == torch.float64),
)  # fmt: skip


@law(
    "GPT-14",
    "NUM-16",
    judges=Judged.MODEL,
    pinned=_PINNED,
    explore=model_cases,
    needs={ModelFeature.BACKWARD},
    cost=4.0,
)
def law_every_gradient_equals_the_oracles(subject: ModelImplementation, case: ModelCase) -> None:
    """GPT-14: the gradient of every weight is right; a tied table has the sum of both its uses."""
    inputs = draw(case)
    config, weights, ids = inputs.config, inputs.state_dict, inputs.input_ids
    shape = (*ids.shape, config.vocab_size)
    cotangent = normal(case.seed, "cotangent", *shape).to(case.dtype)
    got = _gradients(subject, config, weights, ids, cotangent)
    expected = _gradients(model_oracle(subject), config, doubled(weights), ids, cotangent.double())
    radii = _enclosed(config, weights, ids, cotangent)
    told = True
    for name in reversed(expected):
        gate = radii[0][name].radius + radii[1][name].radius
        hold(got[name], expected[name], gate, what=f"gradient of {name}", message="it is wrong")
        told &= telling(gate, expected[name])
    if not told:
        raise NotClaimed(ILL_CONDITIONED)


def _radii(
    config: GPT2Config, weights: Weights, input_ids: torch.Tensor, cotangent: torch.Tensor
) -> tuple[Gradients, ...]:
    """The gradients of the model and of the oracle, in enclosures."""
    allowed = Allowed(config, weights, input_ids)
    passes = ((allowed.model, allowed.arithmetic), (allowed.oracle, allowed.fine))
    return tuple(
        gradients(config, weights, input_ids, passed, cotangent, arithmetic)
        for passed, arithmetic in passes
    )


_enclosed = remembered(_radii, kept=16)
"""Many models are held to the same gradients."""


def _gradients(
    subject: ModelImplementation,
    config: Any,
    weights: Any,
    input_ids: torch.Tensor,
    cotangent: torch.Tensor,
) -> dict[str, torch.Tensor]:
    """d(Σ cotangent·logits)/d(weight), read from the weights given or from like-named parameters.

    Raises:
        Violation: where some weight has no gradient.
    """
    leaves = {name: each.detach().clone().requires_grad_() for name, each in weights.items()}
    model = build_on(subject, config, leaves)
    with torch.enable_grad():
        logits = sound(call(model, input_ids), input_ids, weights)
        if not logits.requires_grad:
            raise Violation("the logits carry no gradient")
        named = dict(model.named_parameters()) if hasattr(model, "named_parameters") else {}
        sources = [leaves, {name: named[name] for name in leaves if name in named}]
        for source in sources:
            if not source:
                continue
            found = torch.autograd.grad(
                logits, list(source.values()), cotangent, retain_graph=True, allow_unused=True
            )
            if any(each is not None for each in found):
                break
    missing = [name for name, each in zip(source, found, strict=True) if each is None]
    missing += [name for name in leaves if name not in source]
    if missing:
        raise Violation(f"no gradient reaches {', '.join(missing)}")
    return {name: each for name, each in zip(source, found, strict=True) if each is not None}
