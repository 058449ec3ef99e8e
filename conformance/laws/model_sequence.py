"""Laws of a model's sequence: padding, cache, causality, batch, and answering alike each time."""

import functools
from typing import Any

import torch

from attnspec.conformance.law import Judged, law
from attnspec.conformance.model_case import (
    PADDED,
    PINNED,
    ModelCase,
    Padding,
    draw,
    model_cases,
)
from attnspec.conformance.model_judge import (
    Allowed,
    ask,
    build,
    build_on,
    call,
    expected_logits,
    hold,
    sound,
)
from attnspec.conformance.values import generator
from attnspec.conformance.violation import Violation
from attnspec.spec import ModelFeature, ModelImplementation

_FEW = PINNED[:10]
_PADDED = functools.partial(model_cases, padded=True)


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
def law_a_cache_gives_what_all_at_once_gives(subject: ModelImplementation, case: ModelCase) -> None:
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


_SINGLE_HEAD = tuple(
    ModelCase(
        d_head=4, length=4, n_positions=4, batch=2, initializer_range=0.5, dtype=dtype, seed=seed
    )
    for seed in range(3)
    for dtype in (torch.float64, torch.float32)
)


@law("GPT-18", judges=Judged.MODEL, pinned=_SINGLE_HEAD)
def law_later_tokens_stay_hidden_however_large_their_scores(
    subject: ModelImplementation, case: ModelCase
) -> None:
    """GPT-18: no score is large enough for a later token to be read."""
    inputs = draw(case)
    config, ids = inputs.config, inputs.input_ids
    weights = {name: each.clone() for name, each in inputs.state_dict.items()}
    # Scores of some 10^4: hardly a doubt is left about the largest, even in float32. The factor is
    # a power of two, so that the weights are the same numbers, and the MLP is shut.
    weights["transformer.h.0.attn.c_attn.weight"][:, : config.n_embd] *= 2.0**14
    weights["transformer.h.0.attn.c_attn.bias"][: config.n_embd] *= 2.0**14
    for name in ("weight", "bias"):
        weights[f"transformer.h.0.mlp.c_proj.{name}"].zero_()
    other = ids.clone()
    other[:, 2:] = (other[:, 2:] + 1) % config.vocab_size
    model = build(subject, config, weights)
    gates = [Allowed(config, weights, each).logits[:, :2] for each in (ids, other)]
    first, second = (ask(model, each, weights)[:, :2] for each in (ids, other))
    message = "a later token with a large score is read"
    hold(second, first.double(), gates[0] + gates[1], what="logits", message=message)


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
    """GPT-20: a second call gives the logits of the first, and no weight is changed."""
    inputs = draw(case)
    config, weights, ids = inputs.config, inputs.state_dict, inputs.input_ids
    given = {name: each.clone() for name, each in weights.items()}
    model = build_on(subject, config, given)
    gate = Allowed(config, weights, ids).logits
    first = ask(model, ids, weights).double()
    ask(model, (ids + 1) % config.vocab_size, weights)
    second = ask(model, ids, weights)
    hold(second, first, 2 * gate, what="logits", message="a second call gives other logits")
    for name, each in given.items():
        if not torch.equal(each, weights[name]):
            raise Violation(f"building or calling the model changed {name}")
