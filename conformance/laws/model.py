"""Laws of the whole model: head, logits, hidden states, loss."""

import functools
from typing import Any

import torch
from hypothesis import strategies as st

from attnspec.conformance.law import Judged, law
from attnspec.conformance.model_arithmetic import Enclosure
from attnspec.conformance.model_bounds import loss
from attnspec.conformance.model_case import (
    PINNED,
    ModelCase,
    draw,
    model_cases,
    normal,
)
from attnspec.conformance.model_judge import (
    ILL_CONDITIONED,
    Allowed,
    ask,
    build,
    call,
    doubled,
    expected_logits,
    hold,
    hold_to_oracle,
    model_oracle,
    telling,
)
from attnspec.conformance.model_probe import PINNED as PROBES
from attnspec.conformance.model_probe import coarse_rows, normalized, probe
from attnspec.conformance.tally import NotClaimed
from attnspec.conformance.violation import Violation
from attnspec.spec import ModelFeature, ModelImplementation

_FEW = PINNED[:10]
_PADDED = functools.partial(model_cases, padded=True)
_DEEP = tuple(case.but(n_layer=2) for case in PINNED[2:6])


def _untied(subject: ModelImplementation) -> st.SearchStrategy[ModelCase]:
    return model_cases(subject, n_layer=1, tied=False)


def _tied(subject: ModelImplementation) -> st.SearchStrategy[ModelCase]:
    return model_cases(subject, n_layer=1, tied=True)


@law("GPT-8", judges=Judged.MODEL, pinned=PROBES, explore=_tied)
def law_one_final_layer_norm_stands_before_the_head(
    subject: ModelImplementation, case: ModelCase
) -> None:
    """GPT-8: the head reads the stream after the last block through ln_f, applied once."""
    rows = coarse_rows(case)
    width = rows.shape[1]
    gain = 1.5 + (normal(case.seed, "gain", width) * 16).round() / 16
    bias = (normal(case.seed, "bias", width) * 16).round() / 16
    shown = probe(rows, case).but(ln_f__weight=gain, ln_f__bias=bias)
    hold(
        shown.read(subject),
        gain * normalized(shown.stream, case.layer_norm_epsilon) + bias,
        shown.gate,
        what="logits of the unit rows",
        message="the head does not read ln_f of the stream",
    )


@law(
    "GPT-9",
    judges=Judged.MODEL,
    pinned=[case for case in _FEW if case.tied],
    explore=_tied,
    cost=2.0,
)
def law_a_tied_head_is_the_token_table(subject: ModelImplementation, case: ModelCase) -> None:
    """GPT-9: a tied head gives the logits that an untied one equal to the token table gives."""
    inputs = draw(case.but(tied=True))
    config, weights, ids = inputs.config, dict(inputs.state_dict), inputs.input_ids
    hold_to_oracle(subject, config, weights, ids, "the head is not the token embeddings")
    # the row of a token that is not shown moves that token's logits alone
    shown = set(ids.flatten().tolist())
    other = next((each for each in range(config.vocab_size) if each not in shown), None)
    if other is None:
        return
    changed = weights | {"transformer.wte.weight": weights["transformer.wte.weight"].clone()}
    changed["transformer.wte.weight"][other] *= -2
    before = ask(build(subject, config, weights), ids, weights)[..., other].double()
    after = ask(build(subject, config, changed), ids, changed)[..., other].double()
    gates = [Allowed(config, each, ids).logits[..., other] for each in (weights, changed)]
    hold(
        after,
        -2 * before,
        gates[1] + 2 * gates[0],
        what=f"logits of token {other}",
        message="a row of wte times -2 does not multiply that token's logit",
    )


@law("GPT-10", judges=Judged.MODEL, pinned=[case.but(tied=False) for case in _FEW], explore=_untied)
def law_an_untied_head_is_used_as_given(subject: ModelImplementation, case: ModelCase) -> None:
    """GPT-10: with tie_word_embeddings false the logits come from lm_head.weight, not from wte."""
    inputs = draw(case.but(tied=False))
    hold_to_oracle(
        subject,
        inputs.config,
        inputs.state_dict,
        inputs.input_ids,
        "an untied head is not lm_head.weight",
    )


@law("GPT-11", "NUM-16", judges=Judged.MODEL, pinned=PINNED, explore=model_cases)
def law_logits_equal_the_oracles(subject: ModelImplementation, case: ModelCase) -> None:
    """GPT-11: every logit is within its own bound of the oracle's, for every configuration."""
    inputs = draw(case)
    hold_to_oracle(
        subject, inputs.config, inputs.state_dict, inputs.input_ids, "the logits are wrong"
    )


@law(
    "GPT-12",
    "NUM-16",
    judges=Judged.MODEL,
    pinned=PINNED,
    explore=model_cases,
    needs={ModelFeature.HIDDEN_STATES},
)
def law_every_hidden_state_equals_the_oracles(
    subject: ModelImplementation, case: ModelCase
) -> None:
    """GPT-12: embeddings, the stream after each block, and the last one after ln_f, are right."""
    inputs = draw(case)
    got = _states(subject, inputs.config, inputs.state_dict, inputs.input_ids)
    expected = _states(
        model_oracle(subject), inputs.config, doubled(inputs.state_dict), inputs.input_ids
    )
    if len(got) != len(expected):
        raise Violation(f"there must be {len(expected)} hidden states, got {len(got)}")
    allowed = Allowed(inputs.config, inputs.state_dict, inputs.input_ids)
    for layer, (ours, theirs) in enumerate(zip(got, expected, strict=True)):
        name = "embeddings" if layer == 0 else f"hidden state {layer} of {len(expected) - 1}"
        if ours.shape != theirs.shape:
            raise Violation(
                f"{name} must have shape {tuple(theirs.shape)}, got {tuple(ours.shape)}"
            )
        gate = allowed.gate(lambda passed, layer=layer: passed.hidden_states[layer])  # type: ignore[misc]
        hold(ours, theirs, gate, what=name, message="the first hidden state that is wrong")
        if not telling(gate, theirs):
            raise NotClaimed(ILL_CONDITIONED)


def _states(
    subject: ModelImplementation, config: Any, weights: Any, input_ids: torch.Tensor
) -> list[torch.Tensor]:
    with torch.no_grad():
        answer = call(build(subject, config, weights), input_ids, output_hidden_states=True)
    if not (isinstance(answer, tuple) and len(answer) == 2):
        raise Violation("output_hidden_states=True must give (logits, states)")
    return list(answer[1])


@law("GPT-13", judges=Judged.MODEL, pinned=[case for case in PINNED if case.length > 1])
def law_next_token_loss_equals_the_oracles(subject: ModelImplementation, case: ModelCase) -> None:
    """GPT-13: the mean cross-entropy of position t's logits with token t + 1 is right."""
    inputs = draw(case)
    config, weights, ids = inputs.config, inputs.state_dict, inputs.input_ids
    got = ask(build(subject, config, weights), ids, weights)[:, :-1].double()
    expected = expected_logits(subject, config, weights, ids)[:, :-1]
    gate = Allowed(config, weights, ids).logits[:, :-1]
    fine = Allowed(config, doubled(weights), ids).fine
    theirs, bound = loss(Enclosure(expected, gate), ids[:, 1:], fine)
    ours, _ = loss(Enclosure(got, torch.zeros_like(got)), ids[:, 1:], fine)
    hold(ours, theirs, bound, what="loss", message="the next-token loss is wrong")
