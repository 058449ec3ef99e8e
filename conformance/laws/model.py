"""Laws of the whole model: head, logits, hidden states, loss, gradients, padding, cache, causality."""

import functools
from typing import Any

import torch
from hypothesis import strategies as st

from attnspec.conformance.law import Judged, law
from attnspec.conformance.model_bounds import loss
from attnspec.conformance.model_arithmetic import Enclosure
from attnspec.conformance.model_case import (
    PADDED,
    PINNED,
    ModelCase,
    Padding,
    draw,
    generator,
    model_cases,
    normal,
)
from attnspec.conformance.model_gradients import gradients
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
    sound,
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


@law("GPT-9", judges=Judged.MODEL, pinned=[case for case in _FEW if case.tied], explore=_tied)
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


@law("GPT-11", judges=Judged.MODEL, pinned=PINNED, explore=model_cases)
def law_logits_equal_the_oracles(subject: ModelImplementation, case: ModelCase) -> None:
    """GPT-11: every logit is within its own bound of the oracle's, for every configuration."""
    inputs = draw(case)
    hold_to_oracle(
        subject, inputs.config, inputs.state_dict, inputs.input_ids, "the logits are wrong"
    )


@law(
    "GPT-12",
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
            raise Violation(f"{name} must have shape {tuple(theirs.shape)}, got {tuple(ours.shape)}")
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


@law(
    "GPT-14",
    judges=Judged.MODEL,
    pinned=[case for case in PINNED if case.n_layer < 3],
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
    allowed = Allowed(config, weights, ids)
    radii = [
        gradients(config, weights, ids, passed, cotangent, arithmetic)
        for passed, arithmetic in ((allowed.model, allowed.arithmetic), (allowed.oracle, allowed.fine))
    ]
    told = True
    for name in reversed(expected):
        gate = radii[0][name].radius + radii[1][name].radius
        hold(got[name], expected[name], gate, what=f"gradient of {name}", message="it is wrong")
        told &= telling(gate, expected[name])
    if not told:
        raise NotClaimed(ILL_CONDITIONED)


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
    dtype = next(iter(leaves.values())).dtype
    model = _build_on(subject, config, leaves, dtype)
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


def _build_on(
    subject: ModelImplementation, config: Any, leaves: dict[str, torch.Tensor], dtype: torch.dtype
) -> Any:
    """Build on these very tensors, after `build` has seen whether the subject claims them."""
    build(subject, config, leaves)
    return call_build(subject, config, leaves)


def call_build(subject: ModelImplementation, config: Any, weights: Any) -> Any:
    """Build without copying, so that gradients can flow back to the weights."""
    return subject.build(config, weights)


@law(
    "GPT-15",
    judges=Judged.MODEL,
    pinned=PADDED,
    explore=_PADDED,
    needs={ModelFeature.PADDING},
    cost=3.0,
)
def law_padding_changes_no_real_token(subject: ModelImplementation, case: ModelCase) -> None:
    """GPT-15: with mask and positions given, a padded row gives what it gives alone, unpadded."""
    inputs = draw(case)
    config, weights, ids = inputs.config, inputs.state_dict, inputs.input_ids
    model = build(subject, config, weights)
    padding = {"attention_mask": inputs.attention_mask, "position_ids": inputs.position_ids}
    got = ask(model, ids, weights, **padding)
    gate = Allowed(config, weights, ids, **padding).logits
    for row, real in enumerate(inputs.attention_mask.bool()):
        alone = ids[row, real][None]
        hold(
            got[row, real],
            expected_logits(subject, config, weights, alone)[0],
            gate[row, real],
            what=f"logits of row {row}'s {int(real.sum())} real tokens",
            message=f"padding on the {case.padding} changes real tokens",
        )


@law(
    "GPT-16",
    judges=Judged.MODEL,
    pinned=PINNED,
    explore=model_cases,
    needs={ModelFeature.CACHE},
    cost=3.0,
)
def law_a_cache_gives_what_all_at_once_gives(
    subject: ModelImplementation, case: ModelCase
) -> None:
    """GPT-16: token by token and in chunks, with a cache, the logits are those of one call."""
    inputs = draw(case)
    config, weights, ids = inputs.config, inputs.state_dict, inputs.input_ids
    model = build(subject, config, weights)
    expected = expected_logits(subject, config, weights, ids)
    gate = Allowed(config, weights, ids).logits
    length = ids.shape[1]
    cut = int(torch.randint(length, (), generator=generator(case.seed, "cut")))
    for steps in ([1] * length, [cut, length - cut], [length], [length - cut, *[1] * cut]):
        sizes = [size for size in steps if size]
        parts, cache = [], model.empty_cache()
        for part in ids.split(sizes, 1):
            logits, cache = _cached(model, part, cache, weights)
            parts.append(logits)
        hold(
            torch.cat(parts, 1),
            expected,
            gate,
            what="logits",
            message=f"tokens fed with a cache in steps of {sizes} give other logits",
        )


def _cached(
    model: Any, input_ids: torch.Tensor, cache: Any, like: Any, **options: Any
) -> tuple[torch.Tensor, Any]:
    with torch.no_grad():
        answer = call(model, input_ids, cache=cache, **options)
    if not (isinstance(answer, tuple) and len(answer) == 2):
        raise Violation("a call with a cache must give (logits, cache)")
    return sound(answer[0], input_ids, like), answer[1]


@law(
    "GPT-17",
    judges=Judged.MODEL,
    pinned=[case for case in PADDED if case.padding is Padding.LEFT],
    needs={ModelFeature.CACHE, ModelFeature.PADDING},
    cost=3.0,
)
def law_a_cache_remembers_what_was_padding(subject: ModelImplementation, case: ModelCase) -> None:
    """GPT-17: with a cache the mask speaks of cached and new tokens, and padding stays unread."""
    inputs = draw(case)
    config, weights, ids = inputs.config, inputs.state_dict, inputs.input_ids
    mask, places = inputs.attention_mask, inputs.position_ids
    model = build(subject, config, weights)
    gate = Allowed(config, weights, ids, attention_mask=mask, position_ids=places).logits
    parts, cache, seen = [], model.empty_cache(), 0
    for part in ids.split([ids.shape[1] - 2, 1, 1], 1):
        end = seen + part.shape[1]
        options = {"attention_mask": mask[:, :end], "position_ids": places[:, seen:end]}
        logits, cache = _cached(model, part, cache, weights, **options)
        parts.append(logits)
        seen = end
    got = torch.cat(parts, 1)
    for row, real in enumerate(mask.bool()):
        hold(
            got[row, real],
            expected_logits(subject, config, weights, ids[row, real][None])[0],
            gate[row, real],
            what=f"logits of row {row}'s real tokens",
            message="padding on the left is read by tokens that come through the cache",
        )


@law("GPT-18", judges=Judged.MODEL, pinned=PINNED, explore=model_cases, cost=2.0)
def law_no_logit_depends_on_later_tokens(subject: ModelImplementation, case: ModelCase) -> None:
    """GPT-18: other tokens after position t, or none, leave the logits up to t as they are."""
    inputs = draw(case)
    config, weights, ids = inputs.config, inputs.state_dict, inputs.input_ids
    model = build(subject, config, weights)
    got = ask(model, ids, weights).double()
    length = ids.shape[1]
    cut = 1 + int(torch.randint(length, (), generator=generator(case.seed, "cut"))) % length
    other = ids.clone()
    other[:, cut:] = (other[:, cut:] + 1) % config.vocab_size
    gate = Allowed(config, weights, ids).logits[:, :cut]
    for name, changed in (("other", other), ("no", ids[:, :cut])):
        if changed.shape == ids.shape and torch.equal(changed, ids):
            continue
        again = ask(model, changed, weights)[:, :cut]
        hold(
            again,
            got[:, :cut],
            gate + Allowed(config, weights, changed).logits[:, :cut],
            what="logits",
            message=f"{name} tokens from position {cut} on change logits before it",
        )


@law("GPT-19", judges=Judged.MODEL, pinned=[case.but(batch=3) for case in _FEW])
def law_rows_of_a_batch_do_not_meet(subject: ModelImplementation, case: ModelCase) -> None:
    """GPT-19: a row of a batch gives what it gives alone."""
    inputs = draw(case)
    config, weights, ids = inputs.config, inputs.state_dict, inputs.input_ids
    model = build(subject, config, weights)
    got = ask(model, ids, weights).double()
    gate = Allowed(config, weights, ids).logits
    for row in range(len(ids)):
        alone = ask(model, ids[row : row + 1], weights)[0]
        what = f"logits of row {row}"
        hold(alone, got[row], 2 * gate[row], what=what, message="the rest of the batch matters")


@law("GPT-20", judges=Judged.MODEL, pinned=_FEW)
def law_a_model_answers_alike_each_time(subject: ModelImplementation, case: ModelCase) -> None:
    """GPT-20: a second call gives the logits of the first, within the bound, and changes no weight."""
    inputs = draw(case)
    config, weights, ids = inputs.config, inputs.state_dict, inputs.input_ids
    given = {name: each.clone() for name, each in weights.items()}
    build(subject, config, given)  # settles what is claimed, on copies
    model = call_build(subject, config, given)
    gate = Allowed(config, weights, ids).logits
    first = ask(model, ids, weights).double()
    ask(model, (ids + 1) % config.vocab_size, weights)
    second = ask(model, ids, weights)
    hold(second, first, 2 * gate, what="logits", message="a second call gives other logits")
    for name, each in given.items():
        if not torch.equal(each, weights[name]):
            raise Violation(f"building or calling the model changed {name}")
