"""Laws of ATT: changes of the input that do not change the output."""

import torch

from attnspec.conformance.attention.strategies import POSITIVE, cases, vary
from attnspec.conformance.attention.subject import Subject
from attnspec.conformance.attention.values import generator, normal
from attnspec.conformance.laws.helpers.calls import (
    changed_mask,
    check_equal_calls,
    require_claimed,
    round_to_grid,
)
from attnspec.conformance.laws.helpers.cases import (
    BF16,
    BIAS,
    DTYPES,
    F32,
    GROUPED,
    HIDDEN,
    SMALL,
    TINIEST,
)
from attnspec.conformance.laws.law import law
from attnspec.spec import Case, Mask, MaskPattern, MaskShape, Values

TILES = Case(queries=17, keys=129, d_head=64, d_value=64, dtype=F32)
SPREAD = (Values.NORMAL, Values.PEAKED, Values.ONE_HOT, Values.CANCELLATION, Values.TIES)


@law(
    "ATT-14",
    pinned=(
        TINIEST,
        *vary(TINIEST.but(queries=3, d_head=4, d_value=4), seed=(1, 2)),
        *vary(SMALL, dtype=DTYPES),
        *vary(SMALL.but(d_head=64, d_value=64), seed=(1, 2)),
        SMALL.but(queries=7, keys=5, is_causal=True),
        SMALL.but(mask=HIDDEN, seed=1),
        SMALL.but(mask=BIAS),
        GROUPED.but(seed=1),
        TILES,
    ),
    wide=(TILES.but(seed=2),),
    explore=cases(scales=POSITIVE, families=SPREAD),
    cost=2,
)
def law_adding_a_vector_to_every_key_changes_nothing(subject: Subject, case: Case) -> None:
    """ATT-14: one vector added to every key changes nothing."""
    call = subject.draw(case)
    key = round_to_grid(call.key)
    shift = shift_every_key(case, key)
    # with positive queries all products with a shift of one sign add up
    query = round_to_grid(call.query) if case.seed % 3 == 0 else round_to_grid(call.query).abs() + 1
    call = call.but(query=query, key=key)
    moved = call.but(key=key + shift)
    check_equal_calls(subject, call, moved, "adding one vector to every key changes the output")


def shift_every_key(case: Case, key: torch.Tensor) -> torch.Tensor:
    """Draw one vector per key/value head: small with mixed signs, large, or large and negative.

    Keys on the grid plus whole numbers up to 15 are exact in every dtype.
    """
    shape = (case.batch, case.kv_heads, 1, case.d_head)
    small = normal(case, "shift", *shape).mul(2).round().clamp(-4, 4)
    full = torch.full(shape, 15.0, dtype=torch.float64)
    return (small, full, -full)[case.seed % 3].to(key.dtype).to(key.device)


def _permutation(case: Case, purpose: str, length: int) -> torch.Tensor:
    """Draw a permutation that is not the identity, if there is another."""
    order = torch.randperm(length, generator=generator(case.seed, purpose))
    if length > 1 and bool((order == torch.arange(length)).all()):
        order = order.roll(1)
    return order.to(case.device)


@law(
    "ATT-15",
    pinned=(
        TINIEST,
        *vary(SMALL, dtype=DTYPES),
        SMALL.but(mask=HIDDEN),
        SMALL.but(mask=BIAS, values=Values.PEAKED),
        GROUPED,
        GROUPED.but(queries=1, keys=65),
        TILES.but(values=Values.GROWING),
    ),
    wide=(TILES.but(dtype=BF16),),
    explore=cases(causal=False, scales=POSITIVE),
    cost=2,
)
def law_order_of_keys_does_not_matter(subject: Subject, case: Case) -> None:
    """ATT-15: keys, their values and their columns of the mask may be permuted together."""
    call = subject.draw(case)
    order = _permutation(case, "keys", case.keys)
    shuffled = call.but(
        key=call.key[:, :, order],
        value=call.value[:, :, order],
        attn_mask=changed_mask(call, -1, lambda mask: mask[..., order]),
    )
    check_equal_calls(subject, call, shuffled, "the order of the keys changes the output")


@law(
    "ATT-16",
    pinned=(
        TINIEST,
        *vary(SMALL, dtype=DTYPES),
        SMALL.but(mask=HIDDEN),
        GROUPED.but(queries=33, keys=17),
        TILES.but(queries=65, keys=17, values=Values.PEAKED),
    ),
    explore=cases(causal=False, scales=POSITIVE),
    cost=2,
)
def law_queries_are_independent(subject: Subject, case: Case) -> None:
    """ATT-16: permuted queries, with their rows of the mask, give permuted outputs."""
    call = subject.draw(case)
    order = _permutation(case, "queries", case.queries)
    shuffled = call.but(
        query=call.query[:, :, order],
        attn_mask=changed_mask(call, -2, lambda mask: mask[..., order, :]),
    )
    inverse = order.argsort()
    check_equal_calls(
        subject,
        call,
        shuffled,
        "the order of the queries changes their outputs",
        undo=lambda out: out[:, :, inverse],
    )


@law(
    "ATT-17",
    pinned=(
        TINIEST,
        TINIEST.but(keys=1),
        *vary(SMALL, dtype=DTYPES),
        SMALL.but(seed=1),
        SMALL.but(mask=HIDDEN),
        SMALL.but(mask=BIAS, seed=1),
        SMALL.but(mask=Mask(shape=MaskShape.QUERIES)),
        GROUPED.but(values=Values.PEAKED),
    ),
    wide=(
        TILES.but(queries=5, keys=65, values=Values.ONE_HOT),
        TILES.but(queries=5, keys=43, seed=1),
    ),
    explore=cases(
        causal=False,
        scales=POSITIVE,
        patterns=tuple(MaskPattern),
        only=lambda case: case.keys < 130,
    ),
    cost=4,
)
def law_repeating_every_key_changes_nothing(subject: Subject, case: Case) -> None:
    """ATT-17: every key given twice or three times, with its value, changes nothing."""
    call = subject.draw(case)
    times = 2 + case.seed % 2
    require_claimed(subject, case.but(keys=times * case.keys))
    repeated = call.but(
        key=torch.cat(times * [call.key], dim=2),
        value=torch.cat(times * [call.value], dim=2),
        attn_mask=changed_mask(call, -1, lambda mask: torch.cat(times * [mask], dim=-1)),
    )
    check_equal_calls(subject, call, repeated, "repeating every key changes the output")


@law(
    "ATT-18",
    pinned=(
        TINIEST,
        TINIEST.but(d_head=1, d_value=1),
        *vary(SMALL, dtype=DTYPES),
        SMALL.but(d_head=13, d_value=13, values=Values.PEAKED),
        SMALL.but(mask=HIDDEN),
        SMALL.but(queries=7, keys=5, is_causal=True),
        GROUPED,
        TILES.but(d_head=128, d_value=128, keys=33),
    ),
    explore=cases(scales=POSITIVE, families=SPREAD),
    cost=2,
)
def law_rotating_queries_and_keys_changes_nothing(subject: Subject, case: Case) -> None:
    """ATT-18: one orthogonal map applied to every query and every key changes nothing."""
    call = subject.draw(case)
    call = call.but(query=round_to_grid(call.query), key=round_to_grid(call.key))
    turned = call.but(query=rotate(case, call.query), key=rotate(case, call.key))
    check_equal_calls(
        subject, call, turned, "rotating queries and keys together changes the output"
    )


def rotate(case: Case, tensor: torch.Tensor) -> torch.Tensor:
    """Permute the channels, change some signs, and mix each block of four orthogonally.

    Every step is exact for numbers on the grid: the mix halves sums of four of them.
    """
    order = _permutation(case, "channels", case.d_head)
    negative = torch.rand(case.d_head, generator=generator(case.seed, "signs")) < 0.5
    sign = torch.where(negative, -1.0, 1.0).to(tensor.dtype).to(tensor.device)
    turned = (tensor[..., order] * sign).clone()
    whole = case.d_head // 4 * 4
    a, b, c, d = (turned[..., start:whole:4].clone() for start in range(4))
    turned[..., 0:whole:4] = (a + b + (c + d)) / 2
    turned[..., 1:whole:4] = (a - b + (c - d)) / 2
    turned[..., 2:whole:4] = (a + b - (c + d)) / 2
    turned[..., 3:whole:4] = (a - b - (c - d)) / 2
    return turned
