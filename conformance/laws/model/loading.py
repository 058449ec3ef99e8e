"""Laws of GPT: the state dictionary that a model is built from."""

from collections.abc import Iterator

import torch

from attnspec.conformance.comparison.violation import Raised, Violation
from attnspec.conformance.laws.law import law
from attnspec.conformance.models.case import DEEP, PINNED, ModelCase, draw, shapes
from attnspec.conformance.models.oracle import Allowed, check_within, own_logits
from attnspec.conformance.models.subject import Weights, build, logits_of
from attnspec.spec import GPT2Config, ModelImplementation

_FEW = PINNED[:10]
_UNTIED = ModelCase(n_layer=2, n_head=2, d_head=3, n_inner=5, tied=False, seed=14)
_PREFIX = "transformer."


@law("GPT-24", pinned=(*PINNED[:2], PINNED[4], _UNTIED), cost=20.0)
def law_parameters_that_do_not_fit_are_refused(
    subject: ModelImplementation, case: ModelCase
) -> None:
    """GPT-24: a parameter that is missing, unknown or misshapen raises an error that names it."""
    inputs = draw(case)
    config, weights, ids = inputs.config, inputs.state_dict, inputs.input_ids
    logits_of(build(subject, config, weights), ids, weights)
    for name, problem, wrong in _unfit(config, weights):
        try:
            logits_of(build(subject, config, wrong), ids, weights)
        except Raised as error:
            if name.removeprefix(_PREFIX) in str(error):
                continue
            raise Violation(f"{name} is {problem}, but the error does not name it: {error}") from (
                error
            )
        raise Violation(f"{name} is {problem}, but the model gives logits")


def _unfit(config: GPT2Config, weights: Weights) -> Iterator[tuple[str, str, Weights]]:
    """Yield state dictionaries with one mistake: its parameter, what that is, the dictionary."""
    last = config.n_layer - 1
    for name in weights:
        if name.startswith(f"{_PREFIX}h.") and not name.startswith(f"{_PREFIX}h.{last}."):
            continue  # blocks have the same parameters
        tensor = weights[name]
        yield name, "missing", {each: weights[each] for each in weights if each != name}
        longer = torch.cat([tensor, tensor[:1]])
        yield name, "one row too long", {**weights, name: longer}
        if len(tensor) > 1:
            # one row broadcasts in a sum or a product
            yield name, "one row only", {**weights, name: tensor[:1].clone()}
        if tensor.dim() == 2 and tensor.shape[0] != tensor.shape[1]:
            yield name, "transposed", {**weights, name: tensor.mT.clone()}
    block = f"{_PREFIX}h.{last}"
    row = weights[f"{block}.ln_1.bias"]
    for name in (f"{_PREFIX}h.{last + 1}.ln_1.bias", f"{block}.ln_3.bias", f"{_PREFIX}wte.bias"):
        yield name, "no parameter of this model", {**weights, name: row.clone()}


@law("GPT-25", pinned=(*_FEW, DEEP[0]), cost=4.0)
def law_parameters_are_taken_by_their_names(subject: ModelImplementation, case: ModelCase) -> None:
    """GPT-25: the order of the parameters, and the buffers of old checkpoints, change nothing."""
    inputs = draw(case)
    config, weights, ids = inputs.config, inputs.state_dict, inputs.input_ids
    expected = own_logits(subject, config, weights, ids)
    tolerance = Allowed(config, weights, ids).own_logits
    # the file format safetensors lists names as text: h.10 before h.2
    orders = {"sorted as text": sorted(weights), "in reverse": list(weights)[::-1]}
    for order, names in orders.items():
        model = build(subject, config, {name: weights[name] for name in names})
        message = f"parameters {order} give other logits"
        check_within(
            logits_of(model, ids, weights), expected, tolerance, what="logits", message=message
        )
    buffers = _buffers(config, weights)
    try:
        got = logits_of(build(subject, config, {**buffers, **weights}), ids, weights)
    except Raised as error:
        if any(name.removeprefix(_PREFIX) in str(error) for name in buffers):
            return
        raise
    message = "the buffers attn.bias and attn.masked_bias change the logits"
    check_within(got, expected, tolerance, what="logits", message=message)


def _buffers(config: GPT2Config, weights: Weights) -> dict[str, torch.Tensor]:
    """Return the causal masks and the masked score that the released checkpoints hold."""
    like = weights[f"{_PREFIX}wte.weight"]
    triangle = torch.ones(config.n_positions, config.n_positions).tril()[None, None].to(like)
    buffers = {}
    for layer in range(config.n_layer):
        buffers[f"{_PREFIX}h.{layer}.attn.bias"] = triangle
        buffers[f"{_PREFIX}h.{layer}.attn.masked_bias"] = torch.tensor(-1e4).to(like)
    assert not buffers.keys() & shapes(config).keys()
    return buffers
