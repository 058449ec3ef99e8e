"""Laws of GPT: padding, cache, causality, batches and repeated calls of a model."""

import contextlib
import functools
import itertools
from dataclasses import replace
from typing import Any

import torch

from attnspec.conformance.attention.modes import run_in
from attnspec.conformance.attention.values import generator
from attnspec.conformance.comparison.violation import NotClaimed, Raised, Violation
from attnspec.conformance.laws.helpers.states import STATES
from attnspec.conformance.laws.law import law
from attnspec.conformance.models.cached import call_with_cache, fed_in_parts
from attnspec.conformance.models.case import (
    DEEP,
    LONG_ROWS,
    MANY,
    PADDED,
    PINNED,
    WIDE_HEADS,
    ModelCase,
    ModelInputs,
    Padding,
    draw,
    model_cases,
)
from attnspec.conformance.models.oracle import Allowed, check_within, logits_alone, own_logits
from attnspec.conformance.models.subject import (
    build,
    build_on,
    call,
    logits_of,
)
from attnspec.spec import CallMode, ModelFeature, ModelImplementation

_FEW = PINNED[:10]
_LARGE_CACHES = (
    # more than 768 tokens of several rows
    ModelCase(n_head=1, d_head=3, length=777, n_positions=780, batch=5, seed=38),
    # more than 2^23 numbers: 24 layers, 64 rows
    ModelCase(
        n_layer=24, n_head=1, d_head=64, n_inner=1, length=45, n_positions=48, batch=64,
        vocab_size=11, initializer_range=0.02, seed=39,
    ),
)  # fmt: skip
"""Cases that are fed in two ways alone."""
_NARROW = ModelCase(
    n_head=2, d_head=64, length=100, n_positions=102, batch=2, vocab_size=11,
    initializer_range=0.05, embedding_range=4.0, dtype=torch.float32, seed=45,
)  # fmt: skip
"""A case of heads as wide as in released models whose bound is narrow in float32."""
_WIDE_PADDED = tuple(
    _NARROW.but(length=40, n_positions=42, batch=5, padding=side, dtype=dtype)
    for side, dtype in ((Padding.LEFT, torch.float64), (Padding.RIGHT, torch.float32))
)
_MODES = {CallMode.NO_GRAD: ""} | {
    mode: f" {STATES[mode]}"
    for mode in (CallMode.INFERENCE, CallMode.OTHER_THREAD, CallMode.SERVING)
}
"""The states in which parts are fed to a cache by turns, in words of a failure."""
_padded_cases = functools.partial(model_cases, padded=True)


@law(
    "GPT-15",
    pinned=PADDED,
    wide=tuple(DEEP[0].but(padding=side) for side in (Padding.LEFT, Padding.RIGHT)),
    explore=_padded_cases,
    needs={ModelFeature.PADDING},
    cost=3.0,
)
def law_padding_changes_no_real_token(subject: ModelImplementation, case: ModelCase) -> None:
    """GPT-15: with mask and positions given, a padded row gives what it gives alone, unpadded."""
    inputs = draw(case)
    config, weights, ids = inputs.config, inputs.state_dict, inputs.input_ids
    model = build(subject, config, weights)
    padding = {"attention_mask": inputs.attention_mask, "position_ids": inputs.position_ids}
    logits = logits_of(model, ids, weights, **padding)
    tolerance = Allowed(config, weights, ids, **padding).own_logits
    for row, real in enumerate(inputs.attention_mask.bool()):
        check_within(
            logits[row, real],
            logits_alone(subject, config, weights, ids[row, real]),
            tolerance[row, real],
            what=f"logits of row {row}'s {int(real.sum())} real tokens",
            message=f"padding on the {case.padding} changes real tokens",
        )


@law(
    "GPT-16",
    # the last but one has more rows than a cache of 16, and the last one a released vocabulary
    pinned=(
        *PINNED,
        *DEEP,
        MANY[2],
        *WIDE_HEADS,
        LONG_ROWS,
        PINNED[4].but(batch=17),
        MANY[0],
        _NARROW,
        _NARROW.but(n_head=1, d_head=128, length=40),
        *_LARGE_CACHES,
    ),
    explore=model_cases,
    needs={ModelFeature.CACHE},
    cost=3.0,
)
def law_a_cache_equals_all_at_once(subject: ModelImplementation, case: ModelCase) -> None:
    """GPT-16: token by token and in chunks, with a cache, the logits are those of one call.

    Also in inference mode, and in another thread than the one that built the model.
    """
    inputs = draw(case)
    config, weights, ids = inputs.config, inputs.state_dict, inputs.input_ids
    model = build(subject, config, weights)
    expected = own_logits(subject, config, weights, ids)
    tolerance = Allowed(config, weights, ids).own_logits
    length = ids.shape[1]
    cut = int(torch.randint(length, (), generator=generator(case.seed, "cut")))
    late = length // 8
    ways: tuple[list[int], ...] = (
        [1] * length,
        [length],
        [cut, length - cut],
        [length - cut, *[1] * cut],
        [length - late, late],
    )
    if case in _LARGE_CACHES:
        ways = ([length - 12, *[1] * 12], [length - late, late])
    for steps, (mode, state) in zip(ways, itertools.cycle(_MODES.items()), strict=False):
        sizes = [size for size in steps if size]
        check_within(
            run_in(mode, functools.partial(fed_in_parts, model, ids, weights, sizes)),
            expected,
            tolerance,
            what="logits",
            message=f"tokens fed with a cache in {describe_steps(sizes)} give other logits{state}",
        )


def describe_steps(sizes: list[int]) -> str:
    """Return the sizes of steps in words, equal ones that follow each other as one number."""
    runs = [(size, len(list(run))) for size, run in itertools.groupby(sizes)]
    return " and ".join(
        f"{count} {'step' if count == 1 else 'steps'} of {size}" for size, count in runs
    )


@law(
    "GPT-17",
    pinned=[case for case in PADDED if case.padding is Padding.LEFT],
    needs={ModelFeature.CACHE, ModelFeature.PADDING},
    cost=3.0,
)
def law_cached_padding_stays_hidden(subject: ModelImplementation, case: ModelCase) -> None:
    """GPT-17: with a cache the mask speaks of cached and new tokens, and padding stays unread."""
    _check_with_cache(
        subject,
        draw(case),
        # the last token follows two, or a chunk of a third of all tokens
        [case.length - 3, 2, 1] if case.seed % 2 else _thirds(case.length),
        "padding on the left is read by tokens that come through the cache",
        turn=case.seed,
    )


@law(
    "GPT-17",
    pinned=[case for case in PADDED if case.padding is Padding.RIGHT],
    needs={ModelFeature.CACHE, ModelFeature.PADDING},
    cost=3.0,
)
def law_a_prompt_padded_on_the_right_can_be_continued(
    subject: ModelImplementation, case: ModelCase
) -> None:
    """GPT-17: tokens that follow padding in a cache get what they get without the padding."""
    inputs = draw(case)
    prompt = inputs.input_ids
    count = min(2, case.n_positions - case.length)
    new = (prompt.flip(1)[:, :count] + 1) % case.vocab_size
    ids = torch.cat([prompt, new], 1)
    mask = torch.cat([inputs.attention_mask, torch.ones_like(new)], 1)
    real = inputs.attention_mask.sum(1, keepdim=True)
    position_ids = torch.cat([inputs.position_ids, real + torch.arange(count)], 1)
    _check_with_cache(
        subject,
        replace(inputs, input_ids=ids, attention_mask=mask, position_ids=position_ids),
        [case.length, *([2] if case.seed % 2 and count == 2 else [1] * count)],
        "tokens that follow padding on the right get other logits than without it",
        turn=case.seed,
    )


def _thirds(length: int) -> list[int]:
    first = max(1, 2 * length // 3)
    return [first, length - 1 - first, 1]


def _check_with_cache(
    subject: ModelImplementation,
    inputs: ModelInputs,
    sizes: list[int],
    message: str,
    *,
    turn: int,
) -> None:
    """Feed padded rows with a cache in parts of given sizes, and compare with each row alone.

    In inference mode or another thread by turns.
    """
    config, weights, ids = inputs.config, inputs.state_dict, inputs.input_ids
    mask, position_ids = inputs.attention_mask, inputs.position_ids
    model = build(subject, config, weights)
    padding: dict[str, Any] = {"attention_mask": mask, "position_ids": position_ids}
    mode, state = list(_MODES.items())[turn % len(_MODES)]
    got = run_in(mode, functools.partial(fed_in_parts, model, ids, weights, sizes, **padding))
    tolerance = Allowed(config, weights, ids, **padding).own_logits
    for row, real in enumerate(mask.bool()):
        check_within(
            got[row, real],
            logits_alone(subject, config, weights, ids[row, real]),
            tolerance[row, real],
            what=f"logits of row {row}'s real tokens",
            message=f"{message}{state}",
        )


@law("GPT-18", pinned=(*PINNED, WIDE_HEADS[0], LONG_ROWS), explore=model_cases, cost=2.0)
def law_no_logit_depends_on_later_tokens(subject: ModelImplementation, case: ModelCase) -> None:
    """GPT-18: other tokens after position t, or none, leave the logits up to t as they are."""
    inputs = draw(case)
    config, weights, ids = inputs.config, inputs.state_dict, inputs.input_ids
    model = build(subject, config, weights)
    logits = logits_of(model, ids, weights).double()
    length = ids.shape[1]
    cut = 1 + int(torch.randint(length, (), generator=generator(case.seed, "cut"))) % length
    changed_ids = ids.clone()
    changed_ids[:, cut:] = (changed_ids[:, cut:] + 1) % config.vocab_size
    tolerance = Allowed(config, weights, ids).one_call[:, :cut]
    for name, input_ids in (("other", changed_ids), ("no", ids[:, :cut].contiguous())):
        if input_ids.shape == ids.shape and torch.equal(input_ids, ids):
            continue
        again = logits_of(model, input_ids, weights)[:, :cut]
        check_within(
            again,
            logits[:, :cut],
            tolerance + Allowed(config, weights, input_ids).one_call[:, :cut],
            what="logits",
            message=f"{name} tokens from position {cut} on change logits before it",
        )


@law("GPT-19", pinned=[*(case.but(batch=3) for case in _FEW), WIDE_HEADS[0], LONG_ROWS])
def law_rows_of_a_batch_are_independent(subject: ModelImplementation, case: ModelCase) -> None:
    """GPT-19: a row of a batch gives what it gives alone."""
    inputs = draw(case)
    config, weights, ids = inputs.config, inputs.state_dict, inputs.input_ids
    model = build(subject, config, weights)
    logits = logits_of(model, ids, weights).double()
    tolerance = Allowed(config, weights, ids).own_logits
    for row in range(len(ids)):
        alone = logits_of(model, ids[row : row + 1], weights)[0]
        name = f"logits of row {row}"
        check_within(
            alone,
            logits[row],
            tolerance[row],
            what=name,
            message="a row depends on the rest of the batch",
        )


@law("GPT-20", pinned=_FEW)
def law_equal_calls_give_equal_logits(subject: ModelImplementation, case: ModelCase) -> None:
    """GPT-20: a second call gives the logits of the first, and leaves them and all parameters."""
    inputs = draw(case)
    config, weights, ids = inputs.config, inputs.state_dict, inputs.input_ids
    passed = {name: tensor.clone() for name, tensor in weights.items()}
    model = build_on(subject, config, passed)
    tolerance = Allowed(config, weights, ids).own_logits
    result = logits_of(model, ids, weights)
    first = result.clone()
    logits_of(model, (ids + 1) % config.vocab_size, weights)
    if not torch.equal(result.nan_to_num(), first.nan_to_num()):
        raise Violation("a later call overwrites the logits that an earlier one returned")
    second = logits_of(model, ids, weights)
    check_within(
        second,
        first.double(),
        tolerance,
        what="logits",
        message="a second call gives other logits (is dropout on?)",
    )
    for name, tensor in passed.items():
        if not torch.equal(tensor, weights[name]):
            raise Violation(f"building or calling the model changed {name}")


@law("GPT-20", pinned=_FEW, cost=3.0)
def law_other_calls_and_models_in_between_change_nothing(
    subject: ModelImplementation, case: ModelCase
) -> None:
    """GPT-20: calls of another kind, and other models, leave the logits of a call as they are."""
    inputs = draw(case)
    config, weights, ids = inputs.config, inputs.state_dict, inputs.input_ids
    model = build(subject, config, weights)
    expected = own_logits(subject, config, weights, ids)
    tolerance = Allowed(config, weights, ids).own_logits

    def check_again(after: str) -> None:
        got = logits_of(model, ids, weights)
        message = f"the model gives other logits after {after}"
        check_within(got, expected, tolerance, what="logits", message=message)

    other = draw(case.but(seed=case.seed + 1))
    logits_of(build(subject, config, other.state_dict), ids, weights)
    check_again("another model of other parameters is built and called")
    if ModelFeature.CACHE in subject.features:
        call_with_cache(model, other.input_ids, model.empty_cache(), weights)
        check_again("a call with a cache")
    if ModelFeature.PADDING in subject.features:
        padded = draw(case.but(padding=Padding.RIGHT, batch=case.batch + 1))
        mask, places = padded.attention_mask[-case.batch :], padded.position_ids[-case.batch :]
        with contextlib.suppress(Raised):  # which the laws about padding report
            logits_of(model, ids, weights, attention_mask=mask, position_ids=places)
        check_again("a call with padding")
    if ModelFeature.HIDDEN_STATES in subject.features:
        with torch.no_grad():
            call(model, other.input_ids, output_hidden_states=True)
        check_again("a call for hidden states")


@law("GPT-26", pinned=(*PADDED[:4], *_WIDE_PADDED), needs={ModelFeature.PADDING}, cost=4.0)
def law_masks_of_any_type_hide_the_same(subject: ModelImplementation, case: ModelCase) -> None:
    """GPT-26: a padding mask of bools, of 32 bits or of floats hides the same tokens, or raises.

    Also from tokens that come after others through a cache, and beside ids of 32 bits.
    """
    inputs = draw(case)
    config, weights, ids = inputs.config, inputs.state_dict, inputs.input_ids
    mask, position_ids = inputs.attention_mask, inputs.position_ids
    model = build(subject, config, weights)
    real = mask.bool()
    padding: dict[str, Any] = {"attention_mask": mask, "position_ids": position_ids}
    tolerance = Allowed(config, weights, ids, **padding).own_logits[real]
    ways = {"": functools.partial(logits_of, model, like=weights)}
    if ModelFeature.CACHE in subject.features:
        sizes = [case.length - 2, 1, 1]
        ways[" in steps with a cache"] = functools.partial(
            fed_in_parts, model, like=weights, sizes=sizes
        )
    types = [(dtype, ids.dtype) for dtype in (torch.bool, torch.int32, case.dtype)]
    for way, make in ways.items():
        try:
            expected = make(ids, **padding)[real].double()
        except Raised as error:
            raise NotClaimed("padding is refused, which GPT-15 and GPT-17 judge") from error
        for dtype, of_ids in (*types, (mask.dtype, torch.int32)):
            padding = {"attention_mask": mask.to(dtype), "position_ids": position_ids}
            try:
                logits = make(ids.to(of_ids), **padding)
            except Raised:
                continue
            words = f"a padding mask of {dtype}"
            if of_ids is not ids.dtype:
                words = f"beside ids of {of_ids}, {words}"
            check_within(
                logits[real],
                expected,
                tolerance,
                what="logits of real tokens",
                message=f"{words} hides other tokens than one of int64{way}",
            )


@law(
    "GPT-26",
    pinned=[*(case for case in PINNED if case.batch > 1 and case.dtype == torch.float64), DEEP[1]],
    cost=5.0,
)
def law_ids_are_read_wherever_they_lie(subject: ModelImplementation, case: ModelCase) -> None:
    """GPT-26: the memory layout of the ids changes no logit, and neither does their type."""
    inputs = draw(case)
    config, weights, ids = inputs.config, inputs.state_dict, inputs.input_ids
    model = build(subject, config, weights)
    spread = torch.stack([ids, (ids + 1) % config.vocab_size], 2).flatten(1)
    views = {
        "transposed": ids.T.contiguous().T,
        "every second column of a longer tensor": spread[:, ::2],
        "one row, expanded to the batch": ids[:1].expand(ids.shape),
        "of 32 bits": ids.int(),
    }
    ways = {"": functools.partial(logits_of, model, like=weights)}
    if ModelFeature.CACHE in subject.features:
        sizes = [case.length - 1, 1]
        ways[" in parts with a cache"] = functools.partial(
            fed_in_parts, model, like=weights, sizes=sizes, as_they_lie=True
        )
    for name, view in views.items():
        plain = view.long().contiguous()
        tolerance = Allowed(config, weights, plain).own_logits
        for way, make in ways.items():
            expected = make(plain).double()
            try:
                logits = make(view)
            except Raised:
                if view.dtype != ids.dtype:
                    continue  # another type may be refused
                raise
            check_within(
                logits,
                expected,
                tolerance,
                what="logits",
                message=f"ids that are {name} give other logits{way}",
            )
