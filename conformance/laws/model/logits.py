"""Laws of GPT: the whole model, its head, logits, hidden states and loss."""

import math
from dataclasses import replace
from typing import Any

import torch
from hypothesis import strategies as st

from attnspec.conformance.attention.values import generator
from attnspec.conformance.comparison.violation import NotClaimed, Violation
from attnspec.conformance.laws.law import law
from attnspec.conformance.models.bounds.enclosure import Enclosure
from attnspec.conformance.models.bounds.forward import loss
from attnspec.conformance.models.case import (
    DEEP,
    DEEPEST,
    LONG_AND_DEEP,
    LONG_IN_FLOAT32,
    LONG_ROWS,
    MANY,
    PADDED,
    PINNED,
    RELEASED_TABLE,
    WIDE_HEADS,
    WIDE_INSIDE,
    WIDEST,
    ModelCase,
    ModelInputs,
    draw,
    model_cases,
    normal,
)
from attnspec.conformance.models.oracle import (
    ILL_CONDITIONED,
    Allowed,
    check_against_oracle,
    check_within,
    expected_logits,
    in_float64,
    is_narrow,
    model_oracle,
    own_logits,
)
from attnspec.conformance.models.readout import PINNED as READOUTS
from attnspec.conformance.models.readout import Readout, coarse_rows, make_readout, normalized
from attnspec.conformance.models.subject import build, call, checked_logits, logits_of
from attnspec.spec import ModelFeature, ModelImplementation


def _untied_cases(subject: ModelImplementation) -> st.SearchStrategy[ModelCase]:
    return model_cases(subject, n_layer=1, tied=False)


def _tied_cases(subject: ModelImplementation) -> st.SearchStrategy[ModelCase]:
    return model_cases(subject, n_layer=1, tied=True)


@law("GPT-8", pinned=READOUTS, explore=_tied_cases)
def law_one_final_layer_norm_precedes_the_head(
    subject: ModelImplementation, case: ModelCase
) -> None:
    """GPT-8: the head reads the stream after the last block through ln_f, applied once."""
    rows = coarse_rows(case)
    width = rows.shape[1]
    gain = 1.5 + (normal(case.seed, "gain", width) * 16).round() / 16
    bias = (normal(case.seed, "bias", width) * 16).round() / 16
    readout = make_readout(rows, case).but(ln_f__weight=gain, ln_f__bias=bias)
    check_within(
        readout.read(subject),
        gain * normalized(readout.stream, case.layer_norm_epsilon) + bias,
        readout.tolerance,
        what="logits of the unit rows",
        message="the head does not read ln_f of the stream",
    )


@law("GPT-9", pinned=READOUTS, explore=_tied_cases, cost=2.0)
def law_a_tied_head_is_the_token_table(subject: ModelImplementation, case: ModelCase) -> None:
    """GPT-9: a tied head multiplies what it reads by the token table, as an untied one would."""
    rows = coarse_rows(case)
    readout = make_readout(rows, case)
    table = readout.weights["transformer.wte.weight"]
    logits = _check_head(subject, readout, table, "the head is not the token embeddings")
    untied = replace(
        readout,
        config=replace(readout.config, tie_word_embeddings=False),
        weights=readout.weights | {"lm_head.weight": table.clone()},
    )
    if subject.supports(untied.config) is not None:
        return
    check_within(
        logits,
        own_logits(subject, untied.config, untied.weights, untied.input_ids),
        Allowed(readout.config, readout.weights, readout.input_ids).own_logits,
        what="logits",
        message="a tied head gives other logits than an untied one that is the token table",
    )


@law("GPT-10", pinned=[case.but(tied=False) for case in READOUTS], explore=_untied_cases)
def law_an_untied_head_is_used_as_given(subject: ModelImplementation, case: ModelCase) -> None:
    """GPT-10: with tie_word_embeddings false the logits come from lm_head.weight, not from wte."""
    rows = coarse_rows(case)
    readout = make_readout(rows, case, tie_word_embeddings=False)
    head = torch.cat([coarse_rows(case, "head"), torch.eye(rows.shape[1])])
    readout = replace(readout, weights=readout.weights | {"lm_head.weight": head.to(case.dtype)})
    _check_head(subject, readout, head, "an untied head is not lm_head.weight")


def _check_head(
    subject: ModelImplementation, readout: Readout, head: torch.Tensor, message: str
) -> torch.Tensor:
    """Check that all logits are those of one input of the head, which the last logits show.

    The last rows of the head are the identity. So the check does not depend on what makes the
    input of the head.

    Returns:
        The logits.
    """
    logits = logits_of(
        build(subject, readout.config, readout.weights), readout.input_ids, readout.weights
    )
    width = readout.config.n_embd
    read, matrix = logits[..., -width:].double(), head.double()
    # a sum of `width` products, in any order, and its rounding
    unit = torch.finfo(logits.dtype).eps / 2
    rounding = math.expm1((width + 2) * unit) * (read.abs() @ matrix.abs().mT)
    check_within(logits, read @ matrix.mT, rounding, what="logits", message=message)
    return logits


@law(
    "GPT-11",
    "NUM-16",
    pinned=(
        *PINNED,
        *DEEP,
        *MANY,
        *WIDE_HEADS,
        LONG_ROWS,
        LONG_AND_DEEP,
        *DEEPEST,
        WIDEST,
        WIDE_INSIDE,
        *LONG_IN_FLOAT32,
    ),
    explore=model_cases,
)
def law_logits_equal_the_oracles(subject: ModelImplementation, case: ModelCase) -> None:
    """GPT-11: every logit is within its own bound of the oracle's, for every configuration."""
    inputs = draw(case)
    check_against_oracle(
        subject, inputs.config, inputs.state_dict, inputs.input_ids, "the logits are wrong"
    )


SOME_IDS = 61
"""Ids by which the logits of a large table are judged, beside those of the text."""


@law("GPT-11", pinned=(*PINNED[:4], RELEASED_TABLE))
def law_logits_of_an_id_need_its_row_alone(subject: ModelImplementation, case: ModelCase) -> None:
    """GPT-11: the logits of some ids are those of a model whose token table has their rows alone.

    So tables of any size are judged without an oracle of that size.
    """
    inputs = draw(case)
    ids, count = inputs.input_ids, case.vocab_size
    some = torch.randint(count, (SOME_IDS,), generator=generator(case.seed, "some ids"))
    kept = torch.cat([ids.flatten(), some, torch.tensor([0, count - 1])]).unique()
    few = {
        name: tensor[kept] if name in TABLES else tensor
        for name, tensor in inputs.state_dict.items()
    }
    config, places = replace(inputs.config, vocab_size=len(kept)), torch.searchsorted(kept, ids)
    logits = logits_of(build(subject, inputs.config, inputs.state_dict), ids, inputs.state_dict)
    check_within(
        logits[..., kept],
        expected_logits(subject, config, few, places),
        Allowed(config, few, places).logits,
        what="logits of some ids",
        message=f"of a table of {count} rows, some ids have wrong logits",
    )


TABLES = ("transformer.wte.weight", "lm_head.weight")
"""Parameters with a row for each id."""


@law(
    "GPT-12",
    "NUM-16",
    pinned=(*PINNED, DEEP[0], WIDE_HEADS[0], *DEEPEST),
    explore=model_cases,
    needs={ModelFeature.HIDDEN_STATES},
)
def law_every_hidden_state_equals_the_oracles(
    subject: ModelImplementation, case: ModelCase
) -> None:
    """GPT-12: embeddings, the stream after each block, and the last one after ln_f, are right."""
    inputs = draw(case)
    expected = _hidden_states(
        model_oracle(subject), inputs.config, in_float64(inputs.state_dict), inputs.input_ids
    )
    states = _hidden_states(subject, inputs.config, inputs.state_dict, inputs.input_ids)
    tolerances = _tolerances(inputs)
    _check_states(states, expected, tolerances)
    if ModelFeature.PADDING in subject.features:
        ids = inputs.input_ids
        nothing = {
            "attention_mask": torch.ones_like(ids),
            "position_ids": torch.arange(case.length).expand(ids.shape),
        }
        states = _hidden_states(subject, inputs.config, inputs.state_dict, ids, **nothing)
        _check_states(states, expected, tolerances, " with a mask that hides nothing")
    if ModelFeature.CACHE in subject.features:
        _, states = _results_with_a_cache(subject, inputs)
        _check_states(states, expected, tolerances, " with a cache")


@law(
    "GPT-12",
    pinned=PADDED,
    needs={ModelFeature.HIDDEN_STATES, ModelFeature.PADDING},
    cost=3.0,
)
def law_hidden_states_of_padded_rows_are_those_of_each_alone(
    subject: ModelImplementation, case: ModelCase
) -> None:
    """GPT-12: with a padding mask, each real token has the hidden states of its row alone.

    With a cache as well, if it is claimed and gives the logits of a call without one: wrong logits
    are a matter of the clauses on caches.
    """
    inputs = draw(case)
    config, weights, ids = inputs.config, inputs.state_dict, inputs.input_ids
    padding = {"attention_mask": inputs.attention_mask, "position_ids": inputs.position_ids}
    states_of_calls = {"": _hidden_states(subject, config, weights, ids, **padding)}
    if ModelFeature.CACHE in subject.features:
        logits, states = _results_with_a_cache(subject, inputs, **padding)
        if _are_own_logits(subject, inputs, logits, **padding):
            states_of_calls[" and a cache"] = states
    for states in states_of_calls.values():
        for layer, state in enumerate(states):
            if state.shape[:2] != ids.shape:
                raise Violation(f"hidden state {layer} must have a place for each token and row")
    tolerances = _tolerances(inputs, **padding)
    for row, real in enumerate(inputs.attention_mask.bool()):
        alone = ids[row, real][None]
        expected = _hidden_states(model_oracle(subject), config, in_float64(weights), alone)
        for call_name, states in states_of_calls.items():
            _check_states(
                [state[row, real][None] for state in states],
                expected,
                [tolerance[row, real][None] for tolerance in tolerances],
                f" in the real tokens of row {row}, with padding on the {case.padding}{call_name}",
            )


def _tolerances(inputs: ModelInputs, **padding: torch.Tensor) -> list[torch.Tensor]:
    """Return the distance allowed for each hidden state."""
    allowed = Allowed(inputs.config, inputs.state_dict, inputs.input_ids, **padding)
    return [
        allowed.tolerance(lambda passed, i=layer: passed.hidden_states[i])  # type: ignore[misc]
        for layer in range(inputs.config.n_layer + 1)
    ]


def _check_states(
    states: list[torch.Tensor],
    expected: list[torch.Tensor],
    tolerances: list[torch.Tensor],
    call: str = "",
) -> None:
    """Compare hidden states with the oracle's, in the order in which they are computed.

    Args:
        states: the states.
        expected: those of the oracle.
        tolerances: the distance allowed for each.
        call: the kind of call, for the failure message.
    """
    if len(states) != len(expected):
        raise Violation(f"there must be {len(expected)} hidden states, got {len(states)}")
    compared = zip(states, expected, tolerances, strict=True)
    for layer, (state, expected_state, tolerance) in enumerate(compared):
        name = "embeddings" if layer == 0 else f"hidden state {layer} of {len(expected) - 1}"
        if state.shape != expected_state.shape:
            raise Violation(
                f"{name} must have shape {tuple(expected_state.shape)}, got {tuple(state.shape)}"
            )
        check_within(
            state,
            expected_state,
            tolerance,
            what=name,
            message=f"the first hidden state that is wrong{call}",
        )
        if not is_narrow(tolerance, expected_state):
            raise NotClaimed(ILL_CONDITIONED)


def _hidden_states(
    subject: ModelImplementation,
    config: Any,
    weights: Any,
    input_ids: torch.Tensor,
    **options: torch.Tensor,
) -> list[torch.Tensor]:
    model = build(subject, config, weights)
    with torch.no_grad():
        result = call(model, input_ids, output_hidden_states=True, **options)
    if not (isinstance(result, tuple) and len(result) == 2):
        raise Violation("output_hidden_states=True must give (logits, states)")
    return list(result[1])


def _results_with_a_cache(
    subject: ModelImplementation, inputs: ModelInputs, **padding: torch.Tensor
) -> tuple[torch.Tensor, list[torch.Tensor]]:
    """Return logits and hidden states of all tokens: of the first half, and of the rest after it.

    Args:
        subject: the model under test.
        inputs: its parameters and tokens.
        padding: `attention_mask` and `position_ids` of all tokens, or neither.
    """
    model = build(subject, inputs.config, inputs.state_dict)
    length = inputs.input_ids.shape[1]
    cache, parts, logits, seen = model.empty_cache(), [], [], 0
    for ids in inputs.input_ids.split([length - length // 2, length // 2], 1):
        if not ids.shape[1]:
            continue  # a single token has no second part
        end, options = seen + ids.shape[1], {}
        if padding:
            options = {
                "attention_mask": padding["attention_mask"][:, :end],
                "position_ids": padding["position_ids"][:, seen:end],
            }
        with torch.no_grad():
            result = call(model, ids, cache=cache, output_hidden_states=True, **options)
        seen = end
        if not (isinstance(result, tuple) and len(result) == 3):
            raise Violation(
                "a call with a cache and output_hidden_states=True must give "
                "(logits, cache, states)"
            )
        cache = result[1]
        parts.append(result[2])
        logits.append(checked_logits(result[0], ids, inputs.state_dict))
    if len({len(states) for states in parts}) > 1:
        raise Violation("the number of hidden states changes with a cache")
    return torch.cat(logits, 1), [torch.cat(states, 1) for states in zip(*parts, strict=True)]


def _are_own_logits(
    subject: ModelImplementation,
    inputs: ModelInputs,
    logits: torch.Tensor,
    **padding: torch.Tensor,
) -> bool:
    """Return whether real tokens have the logits that the model gives them without a cache."""
    config, weights, ids = inputs.config, inputs.state_dict, inputs.input_ids
    expected = own_logits(subject, config, weights, ids, **padding)
    tolerance = Allowed(config, weights, ids, **padding).own_logits
    real = inputs.attention_mask.bool()
    return bool(((logits.double() - expected.double()).abs() <= tolerance)[real].all())


@law("GPT-13", pinned=[case for case in PINNED if case.length > 1])
def law_next_token_loss_equals_the_oracles(subject: ModelImplementation, case: ModelCase) -> None:
    """GPT-13: the mean cross-entropy of position t's logits with token t + 1 is right."""
    inputs = draw(case)
    config, weights, ids = inputs.config, inputs.state_dict, inputs.input_ids
    logits = logits_of(build(subject, config, weights), ids, weights)[:, :-1].double()
    expected = expected_logits(subject, config, weights, ids)[:, :-1]
    tolerance = Allowed(config, weights, ids).logits[:, :-1]
    fine = Allowed(config, in_float64(weights), ids).fine
    expected_loss, bound = loss(Enclosure(expected, tolerance), ids[:, 1:], fine)
    got_loss, _ = loss(Enclosure(logits, torch.zeros_like(logits)), ids[:, 1:], fine)
    check_within(
        got_loss, expected_loss, bound, what="loss", message="the next-token loss is wrong"
    )
