"""Laws of GPT on training: the gradients of a model, and a change of its parameters."""

from collections.abc import Callable, Collection
from dataclasses import replace
from typing import Any

import torch

from attnspec.conformance.attention.memoize import memoize
from attnspec.conformance.comparison.violation import NotClaimed, Raised, Violation
from attnspec.conformance.laws.law import law
from attnspec.conformance.models.bounds.backward import Gradients, gradients
from attnspec.conformance.models.case import (
    PINNED,
    ModelCase,
    ModelInputs,
    Padding,
    draw,
    model_cases,
    normal,
)
from attnspec.conformance.models.oracle import (
    ILL_CONDITIONED,
    Allowed,
    check_within,
    in_float64,
    is_narrow,
    is_small,
    model_oracle,
    own_logits,
)
from attnspec.conformance.models.subject import (
    Weights,
    build_on,
    call,
    checked_logits,
    logits_of,
    pair,
)
from attnspec.spec import GPT2Config, ModelFeature, ModelImplementation

_PINNED = (
    # a large epsilon keeps bounds narrow enough for float32
    *(
        ModelCase(
            n_layer=layers, n_head=2, d_head=3, length=3, layer_norm_epsilon=0.25, batch=2,
            initializer_range=0.2, tied=tied, dtype=dtype, seed=layers,
        )
        for layers, tied in ((1, True), (2, False))
        for dtype in (torch.float64, torch.float32)
    ),
    *(case for case in PINNED if case.n_layer < 3 and case.dtype == torch.float64),
    # ids that do not fit into 15 bits, and that no power of two divides
    ModelCase(
        vocab_size=40_003, n_head=1, d_head=2, length=3, layer_norm_epsilon=0.25,
        initializer_range=0.2, seed=19,
    ),
    # more tokens than a tile of a backward pass holds
    ModelCase(
        n_head=2, d_head=3, length=33, n_positions=40, layer_norm_epsilon=0.25,
        initializer_range=0.2, seed=16,
    ),
    # more tokens in several rows than one block of threads adds to the token table
    ModelCase(
        n_head=2, d_head=3, length=40, n_positions=40, batch=2, layer_norm_epsilon=0.25,
        initializer_range=0.2, seed=22,
    ),
    # the width of the heads of released models
    ModelCase(
        n_head=1, d_head=64, length=18, n_positions=20, layer_norm_epsilon=0.25,
        initializer_range=0.05, seed=25,
    ),
    # more positions than one block of 64 rows
    ModelCase(
        n_head=1, d_head=3, length=70, n_positions=72, layer_norm_epsilon=0.25,
        initializer_range=0.2, seed=26,
    ),
    # more tokens than a tile of 128, and ids that occur more often than a tile of 32 holds
    ModelCase(
        n_head=1, d_head=3, length=130, n_positions=132, batch=2, layer_norm_epsilon=0.25,
        initializer_range=0.2, seed=29,
    ),
    # more tokens than a tile in float32, for narrow heads and for those of released models
    ModelCase(
        n_head=2, d_head=3, length=33, n_positions=40, layer_norm_epsilon=0.25,
        initializer_range=0.2, dtype=torch.float32, seed=16,
    ),
    ModelCase(
        n_head=1, d_head=64, length=100, n_positions=102, layer_norm_epsilon=0.25,
        initializer_range=0.02, dtype=torch.float32, seed=25,
    ),
    # more tokens than a tile of 256
    *(
        ModelCase(
            n_head=1, d_head=d_head, length=300, n_positions=302, batch=2,
            layer_norm_epsilon=0.25, initializer_range=spread, dtype=dtype, seed=29,
        )
        for d_head, spread, dtype in ((3, 0.1, torch.float32), (16, 0.05, torch.float64))
    ),
    # more blocks than a part of them whose activations are kept
    ModelCase(
        n_layer=9, n_head=1, d_head=3, length=3, layer_norm_epsilon=0.25, initializer_range=0.1,
        seed=27,
    ),
)  # fmt: skip
_MANY_TOKENS = ModelCase(
    n_layer=2, n_head=2, d_head=64, length=40, n_positions=42, layer_norm_epsilon=0.25, batch=2,
    initializer_range=0.02, seed=25,
)  # fmt: skip
"""A case of several layers, rows and wide heads, on more tokens than a tile of 32."""
_FEW = (*_PINNED[:4], _MANY_TOKENS)
_PADDED = tuple(
    ModelCase(
        n_layer=layers, n_head=2, d_head=3, length=5, n_positions=8, batch=3,
        layer_norm_epsilon=0.25, initializer_range=0.2, padding=side, dtype=dtype, seed=28,
    )
    for side in (Padding.LEFT, Padding.RIGHT)
    for layers, dtype in ((2, torch.float64), (1, torch.float32))
)  # fmt: skip
_PADDED += (
    # more tokens than a tile of 32, of 64 or of 128
    _PADDED[0].but(length=40, n_positions=42),
    ModelCase(
        n_head=1, d_head=64, length=70, n_positions=72, batch=4, layer_norm_epsilon=0.25,
        initializer_range=0.02, padding=Padding.LEFT, dtype=torch.float32, seed=28,
    ),
    ModelCase(
        n_head=2, d_head=16, length=140, n_positions=142, batch=4, layer_norm_epsilon=0.25,
        initializer_range=0.05, padding=Padding.ENDS, seed=28,
    ),
)  # fmt: skip


@law(
    "GPT-14",
    "NUM-16",
    pinned=_PINNED,
    explore=model_cases,
    needs={ModelFeature.BACKWARD},
    cost=4.0,
)
def law_every_gradient_equals_the_oracles(subject: ModelImplementation, case: ModelCase) -> None:
    """GPT-14: the gradient of every parameter is right, and sums both uses of a tied table."""
    inputs = draw(case)
    config, weights, ids = inputs.config, inputs.state_dict, inputs.input_ids
    shape = (*ids.shape, config.vocab_size)
    cotangent = normal(case.seed, "cotangent", *shape).to(case.dtype)
    gradients = _gradients(subject, config, weights, ids, cotangent)
    expected = _gradients(
        model_oracle(subject), config, in_float64(weights), ids, cotangent.double()
    )
    of_model, of_oracle = _cached_enclosures(config, weights, ids, cotangent)
    tolerance = {name: of_model[name].radius + of_oracle[name].radius for name in expected}
    _check(gradients, expected, tolerance, "a gradient is wrong")


@law(
    "GPT-14",
    pinned=_PADDED,
    needs={ModelFeature.BACKWARD, ModelFeature.PADDING},
    cost=4.0,
)
def law_gradients_of_padded_rows_are_those_of_each_alone(
    subject: ModelImplementation, case: ModelCase
) -> None:
    """GPT-14: with a padding mask, gradients from real tokens are the sum of those of each row."""
    inputs = draw(case)
    config, weights, ids = inputs.config, inputs.state_dict, inputs.input_ids
    real = inputs.attention_mask.bool()
    shape = (*ids.shape, config.vocab_size)
    cotangent = (normal(case.seed, "cotangent", *shape) * real[..., None]).to(case.dtype)
    got = _gradients_with_padding(subject, inputs, cotangent)
    radii = _enclosed_with_padding(inputs, cotangent)
    expected = {name: torch.zeros(1, dtype=torch.float64) for name in weights}
    tolerance = {name: enclosed.radius for name, enclosed in radii.items()}
    for row, is_real in enumerate(real):
        alone, incoming = ids[row, is_real][None], cotangent[row, is_real][None]
        own = _gradients(subject, config, weights, alone, incoming)
        enclosed, _ = _enclosures(config, weights, alone, incoming)
        for name, gradient in own.items():
            expected[name] = expected[name] + gradient.double()
            rounding = torch.finfo(torch.float64).eps * len(ids) * gradient.double().abs()
            tolerance[name] = tolerance[name] + enclosed[name].radius + rounding
    _check(got, expected, tolerance, f"padding on the {case.padding} changes a gradient")


@law("GPT-14", pinned=_FEW, needs={ModelFeature.BACKWARD}, cost=4.0)
def law_what_else_is_returned_changes_no_gradient(
    subject: ModelImplementation, case: ModelCase
) -> None:
    """GPT-14: asked for hidden states, or with an empty cache, logits have the same gradients."""
    inputs = draw(case)
    config, weights, ids = inputs.config, inputs.state_dict, inputs.input_ids
    cotangent = normal(case.seed, "cotangent", *ids.shape, config.vocab_size).to(case.dtype)
    own = _own(subject, inputs, cotangent)
    ways: dict[str, Callable[[Any], Any]] = {}
    if ModelFeature.HIDDEN_STATES in subject.features:
        ways["hidden states are asked for"] = lambda model: call(
            model, ids, output_hidden_states=True
        )
    if ModelFeature.CACHE in subject.features:
        ways["it begins a cache"] = lambda model: call(model, ids, cache=model.empty_cache())
    if not ways:
        raise NotClaimed("neither hidden states nor a cache are claimed")
    for way, make in ways.items():
        got = _gradients(subject, config, weights, ids, cotangent, make)
        _check(got, *own, f"a gradient is another one if {way}")


@law("GPT-14", pinned=_FEW, needs={ModelFeature.BACKWARD}, cost=4.0)
def law_frozen_parameters_change_no_other_gradient(
    subject: ModelImplementation, case: ModelCase
) -> None:
    """GPT-14: if some parameters need no gradient, those of the others are the same."""
    inputs = draw(case)
    config, weights, ids = inputs.config, inputs.state_dict, inputs.input_ids
    cotangent = normal(case.seed, "cotangent", *ids.shape, config.vocab_size).to(case.dtype)
    own = _own(subject, inputs, cotangent)
    for trained, names in _trained_parts(config, weights).items():
        got = _gradients(subject, config, weights, ids, cotangent, trained=names)
        _check(got, *own, f"a gradient is another one if {trained} alone need one")


def _trained_parts(config: GPT2Config, weights: Weights) -> dict[str, list[str]]:
    """Return parts of a model that are trained alone, by what they are."""
    last = f"transformer.h.{config.n_layer - 1}."
    return {
        "biases": [name for name in weights if name.endswith(".bias")],
        "weights": [name for name in weights if name.endswith(".weight")],
        "the parameters of LayerNorm": [name for name in weights if ".ln_" in name],
        "those of the last block": [name for name in weights if name.startswith(last)],
        "the embeddings": [name for name in weights if ".wte." in name or ".wpe." in name],
    }


@law("GPT-14", pinned=_FEW, needs={ModelFeature.BACKWARD}, cost=4.0)
def law_calls_before_a_backward_pass_leave_its_gradients(
    subject: ModelImplementation, case: ModelCase
) -> None:
    """GPT-14: of several calls, each has its own gradients, in whatever order they are asked."""
    inputs = draw(case)
    config, weights = inputs.config, inputs.state_dict
    calls = (inputs, replace(inputs, input_ids=(inputs.input_ids + 1) % config.vocab_size))
    shape = (*inputs.input_ids.shape, config.vocab_size)
    cotangent = normal(case.seed, "cotangent", *shape).to(case.dtype)
    own = [_own(subject, each, cotangent) for each in calls]
    for order in ((0, 1), (1, 0)):
        leaves = _leaves(weights)
        model = build_on(subject, config, leaves)
        logits = [_logits_in_training(model, each.input_ids, weights) for each in calls]
        for number in order:
            got = _gradients_of(model, logits[number], leaves, cotangent)
            message = "after another call, a backward pass gives wrong gradients"
            _check(got, *own[number], message)


@law(
    "GPT-29",
    pinned=(*_FEW, *_PADDED[:2]),
    needs={ModelFeature.BACKWARD, ModelFeature.CACHE},
    cost=4.0,
)
def law_gradients_pass_through_a_cache(subject: ModelImplementation, case: ModelCase) -> None:
    """GPT-29: logits of a text that is fed in parts have the gradients of one call, or none.

    Also of real tokens beside padding, if it is claimed.
    """
    inputs = draw(case)
    config, weights, ids = inputs.config, inputs.state_dict, inputs.input_ids
    padding = {}
    if case.padding is not Padding.NONE:
        if ModelFeature.PADDING not in subject.features:
            raise NotClaimed("padding is not claimed")
        padding = {"attention_mask": inputs.attention_mask, "position_ids": inputs.position_ids}
    real = inputs.attention_mask.bool()
    shape = (*ids.shape, config.vocab_size)
    cotangent = (normal(case.seed, "cotangent", *shape) * real[..., None]).to(case.dtype)
    expected = own_logits(subject, config, weights, ids, **padding)
    tolerance = Allowed(config, weights, ids, **padding).own_logits
    own = _own(subject, inputs, cotangent, is_padded=bool(padding))
    cut = 1 + case.seed % (case.length - 1)
    for sizes in ([cut, case.length - cut], [1] * case.length):

        def make(model: Any, sizes: list[int] = sizes) -> torch.Tensor:
            parts, cache, seen = [], model.empty_cache(), 0
            for part in ids.split(sizes, 1):
                end, options = seen + part.shape[1], {}
                if padding:
                    options = {
                        "attention_mask": inputs.attention_mask[:, :end],
                        "position_ids": inputs.position_ids[:, seen:end],
                    }
                result = call(model, part, cache=cache, **options)
                logits, cache = pair(result, "a call with a cache")
                if not logits.requires_grad:
                    raise NotClaimed("calls with a cache give logits without a gradient")
                parts.append(logits)
                seen = end
            logits = torch.cat(parts, 1)
            distance = (logits.detach() - expected).abs()
            if not bool((distance <= tolerance)[real].all()):
                raise NotClaimed("calls with a cache give other logits, which GPT-16 judges")
            return logits

        try:
            got = _gradients(subject, config, weights, ids, cotangent, make)
        except (Raised, RuntimeError) as error:
            raise NotClaimed("gradients of calls with a cache are refused") from error
        _check(got, *own, "fed with a cache, tokens have other gradients than in one call")


@law(
    "GPT-12",
    pinned=[case.but(tied=False) for case in _PINNED[:3]],
    needs={ModelFeature.BACKWARD, ModelFeature.HIDDEN_STATES},
    cost=4.0,
)
def law_the_last_hidden_state_has_the_gradients_of_the_logits(
    subject: ModelImplementation, case: ModelCase
) -> None:
    """GPT-12: what is trained on the last hidden state trains the model, as a head of it does."""
    inputs = draw(case)
    config, weights, ids = inputs.config, inputs.state_dict, inputs.input_ids
    cotangent = normal(case.seed, "cotangent", *ids.shape, config.vocab_size).to(case.dtype)
    own = _own(subject, inputs, cotangent)
    names = [name for name in weights if name != "lm_head.weight"]
    leaves = _leaves(weights)
    model = build_on(subject, config, leaves)
    with torch.enable_grad():
        result = call(model, ids, output_hidden_states=True)
    state = pair(result, "a call with output_hidden_states=True")[1][-1]
    if not state.requires_grad:
        raise Violation("the last hidden state carries no gradient")
    got = _gradients_of(model, state, leaves, cotangent @ weights["lm_head.weight"], names)
    message = "a gradient of the last hidden state is another one than the logits have"
    _check(got, *own, message)


def _own(
    subject: ModelImplementation,
    inputs: ModelInputs,
    cotangent: torch.Tensor,
    *,
    is_padded: bool = False,
) -> tuple[dict[str, torch.Tensor], dict[str, torch.Tensor]]:
    """Return the gradients that a subject gives for the logits of one call, and tolerances.

    A law about another way of calling compares with these, so that it holds or fails whatever else
    is wrong with the model. The call has the mask and the positions of its rows if they are padded.
    """
    config, weights, ids = inputs.config, inputs.state_dict, inputs.input_ids
    if is_padded:
        radii = _enclosed_with_padding(inputs, cotangent)
        own = _gradients_with_padding(subject, inputs, cotangent)
    else:
        radii, _ = _cached_enclosures(config, weights, ids, cotangent)
        own = _gradients(subject, config, weights, ids, cotangent)
    return own, {name: 2 * radii[name].radius for name in weights}


def _gradients_with_padding(
    subject: ModelImplementation, inputs: ModelInputs, cotangent: torch.Tensor
) -> dict[str, torch.Tensor]:
    """Return the gradients of a call with the mask and the positions of its rows."""
    return _gradients(
        subject,
        inputs.config,
        inputs.state_dict,
        inputs.input_ids,
        cotangent,
        attention_mask=inputs.attention_mask,
        position_ids=inputs.position_ids,
    )


def _enclosed_with_padding(inputs: ModelInputs, cotangent: torch.Tensor) -> Gradients:
    """Return enclosures of the gradients of a call with the mask and the positions of its rows."""
    config, weights, ids = inputs.config, inputs.state_dict, inputs.input_ids
    padding = {"attention_mask": inputs.attention_mask, "position_ids": inputs.position_ids}
    allowed = Allowed(config, weights, ids, **padding)
    return gradients(
        config,
        weights,
        ids,
        allowed.model,
        cotangent.double(),
        allowed.arithmetic,
        position_ids=inputs.position_ids,
    )


def _check(
    got: dict[str, torch.Tensor],
    expected: dict[str, torch.Tensor],
    tolerance: dict[str, torch.Tensor],
    message: str,
) -> None:
    """Check gradients of some parameters, the last ones first, in the order of a backward pass.

    Raises:
        Violation: if one exceeds its tolerance.
        NotClaimed: if tolerances are so wide that a pass would be no evidence.
    """
    for name in reversed(got):
        check_within(
            got[name], expected[name], tolerance[name], what=f"gradient of {name}", message=message
        )
    if not all(is_narrow(tolerance[name], expected[name]) for name in got):
        raise NotClaimed(ILL_CONDITIONED)


def _enclosures(
    config: GPT2Config, weights: Weights, input_ids: torch.Tensor, cotangent: torch.Tensor
) -> tuple[Gradients, ...]:
    """Return enclosures of the gradients of the model and of the oracle."""
    allowed = Allowed(config, weights, input_ids)
    passes = ((allowed.model, allowed.arithmetic), (allowed.oracle, allowed.fine))
    return tuple(
        gradients(config, weights, input_ids, passed, cotangent, arithmetic)
        for passed, arithmetic in passes
    )


_cached_enclosures = memoize(_enclosures, kept=16, where=is_small)
"""Memoized: many models are compared with the same gradients."""


def _gradients(
    subject: ModelImplementation,
    config: Any,
    weights: Any,
    input_ids: torch.Tensor,
    cotangent: torch.Tensor,
    make: Callable[[Any], Any] | None = None,
    *,
    trained: Collection[str] | None = None,
    **options: torch.Tensor,
) -> dict[str, torch.Tensor]:
    """Return d(Σ cotangent·logits)/d(parameter), of given tensors or of parameters of their names.

    `make` calls the model, whose result may hold more than the logits. Parameters that are not
    `trained` need no gradient.

    Raises:
        Violation: if a parameter that is trained has no gradient.
    """
    leaves = _leaves(weights, trained)
    model = build_on(subject, config, leaves)
    if trained is not None:
        for name, tensor in _own_parameters(model, leaves).items():
            tensor.requires_grad_(name in trained)
    logits = _logits_in_training(model, input_ids, weights, make, **options)
    return _gradients_of(model, logits, leaves, cotangent, trained)


def _leaves(weights: Weights, trained: Collection[str] | None = None) -> dict[str, torch.Tensor]:
    """Return copies of parameters that need a gradient, or of which those that are trained do."""
    return {
        name: tensor.detach().clone().requires_grad_(trained is None or name in trained)
        for name, tensor in weights.items()
    }


def _gradients_of(
    model: Any,
    result: torch.Tensor,
    leaves: Weights,
    cotangent: torch.Tensor,
    trained: Collection[str] | None = None,
) -> dict[str, torch.Tensor]:
    """Return the gradients of a result, of the tensors that its model was built from or its own.

    Raises:
        Violation: if a parameter, or one that is trained, has no gradient.
    """
    leaves = {name: each for name, each in leaves.items() if trained is None or name in trained}
    own = _own_parameters(model, leaves)
    gradients = _of(result, leaves, cotangent)
    if not gradients and own:
        gradients = {
            name: gradient.mT if _is_transposed(own[name], leaves[name]) else gradient
            for name, gradient in _of(result, own, cotangent).items()
        }
    missing = [name for name in leaves if name not in gradients]
    if len(missing) == len(leaves):
        raise Violation(
            "no gradient reaches the tensors that the model was built from, nor parameters of "
            "these names"
        )
    if missing:
        raise Violation(f"no gradient reaches {', '.join(missing)}")
    return gradients


@law("GPT-27", pinned=_FEW, needs={ModelFeature.BACKWARD}, cost=4.0)
def law_a_change_of_the_parameters_changes_the_next_logits(
    subject: ModelImplementation, case: ModelCase
) -> None:
    """GPT-27: after an optimiser's step a model gives what one of the new parameters gives."""
    inputs = draw(case)
    config, weights, ids = inputs.config, inputs.state_dict, inputs.input_ids
    changed = draw(case.but(seed=case.seed + 1)).state_dict
    leaves = _leaves(weights)
    model = build_on(subject, config, leaves)
    # an evaluation, and a step of training, before the parameters are changed
    logits_of(model, ids, weights)
    logits = _logits_in_training(model, ids, weights)
    are_used = _of(logits, leaves, torch.ones_like(logits))
    held = leaves if are_used else _own_parameters(model, leaves)
    if not held:
        raise NotClaimed("the parameters of the model cannot be reached")
    with torch.no_grad():
        for name, tensor in held.items():
            is_turned = not are_used and _is_transposed(tensor, leaves[name])
            tensor.copy_(changed[name].mT if is_turned else changed[name])
    expected = own_logits(subject, config, changed, ids)
    tolerance = Allowed(config, changed, ids).own_logits
    evaluation, training = (way(model, ids, weights) for way in (logits_of, _logits_in_training))
    for name, got in (("in evaluation", evaluation), ("in training", training)):
        check_within(
            got,
            expected,
            tolerance,
            what="logits",
            message=f"{name}, logits are not those of the parameters as they are now",
        )


def _logits_in_training(
    model: Any,
    input_ids: torch.Tensor,
    like: Weights,
    make: Callable[[Any], Any] | None = None,
    **options: torch.Tensor,
) -> torch.Tensor:
    """Return the logits of a call that records gradients, made by `make` if it is given.

    Raises:
        Violation: if they carry none.
    """
    with torch.enable_grad():
        result = make(model) if make is not None else call(model, input_ids, **options)
        if make is not None and isinstance(result, tuple) and result:
            result = result[0]
        logits = checked_logits(result, input_ids, like)
    if not logits.requires_grad:
        raise Violation("the logits carry no gradient")
    return logits


def _own_parameters(model: Any, leaves: Weights) -> dict[str, torch.Tensor]:
    """Return the parameters of a module that have the names of those that it was built from."""
    named = dict(model.named_parameters()) if hasattr(model, "named_parameters") else {}
    return {name: named[name] for name in leaves if name in named}


def _of(logits: torch.Tensor, sources: Weights, cotangent: torch.Tensor) -> dict[str, torch.Tensor]:
    """Return the gradients of those tensors that the logits depend on."""
    gradients = torch.autograd.grad(
        logits, list(sources.values()), cotangent, retain_graph=True, allow_unused=True
    )
    return {
        name: gradient
        for name, gradient in zip(sources, gradients, strict=True)
        if gradient is not None
    }


def _is_transposed(own: torch.Tensor, given: torch.Tensor) -> bool:
    """Return whether a model holds a parameter transposed, as `torch.nn.Linear` does."""
    if own.dim() != 2 or own.shape != given.mT.shape:
        return False
    return torch.equal(own, given.mT) and not torch.equal(own, given)
