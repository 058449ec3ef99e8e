"""Laws of ATT, options: the effect of a softcap on scores, and on nothing else."""

import math

import torch

from attnspec.conformance.attention.call import Call
from attnspec.conformance.attention.invalid import INVALID_SOFTCAPS
from attnspec.conformance.attention.oracle import check_oracle
from attnspec.conformance.attention.strategies import POSITIVE, cases, vary
from attnspec.conformance.attention.subject import Subject
from attnspec.conformance.comparison.close import check_close
from attnspec.conformance.comparison.violation import NotClaimed, Violation
from attnspec.conformance.laws.helpers.calls import (
    caps_bias,
    check_target,
    plain,
    repeat_kv,
    require_evidence,
)
from attnspec.conformance.laws.helpers.cases import (
    BF16,
    BIAS,
    DTYPES,
    F16,
    F64,
    FLAT,
    GROUPED,
    HIDDEN,
    SMALL,
    TILES,
    TINIEST,
    UNBIASED,
)
from attnspec.conformance.laws.helpers.options import (
    alibi_bias,
    check_refused,
    scores_of_bias,
    weights_of_scores,
)
from attnspec.conformance.laws.helpers.rows import check_readable_keys_have_weight
from attnspec.conformance.laws.law import law
from attnspec.spec import Case, Feature, Mask, MaskKind, MaskPattern, MaskShape, Values

OTHER_OPTIONS = (Feature.WINDOW, Feature.SINKS, Feature.ALIBI)
CAPPED = SMALL.but(softcap=1.0)


@law(
    "ATT-21",
    pinned=(
        TINIEST.but(softcap=0.5, scale=2.0),
        *vary(CAPPED.but(values=Values.PEAKED), dtype=DTYPES),
        *vary(SMALL.but(keys=17, values=Values.ONE_HOT), softcap=(0.5, 1.0, 3.0, 20.0, 50.0)),
        *vary(CAPPED.but(scale=2.0), values=(Values.NEGATIVE, Values.GROWING, Values.OFFSET)),
        *vary(CAPPED.but(values=Values.PEAKED), mask=(HIDDEN, BIAS)),
        CAPPED.but(is_causal=True, values=Values.PEAKED),
        CAPPED.but(window=(3, None), values=Values.PEAKED),
        *(CAPPED.but(**{name: True}, values=Values.PEAKED) for name in ("sinks", "alibi")),
        GROUPED.but(softcap=3.0, values=Values.PEAKED),
        TILES.but(softcap=1.0, values=Values.PEAKED),
        TILES.but(softcap=20.0, values=Values.GROWING, dtype=BF16),
    ),
    explore=cases(always=(Feature.SOFTCAP,), sometimes=OTHER_OPTIONS, only=plain),
)
def law_softcap_bounds_the_scaled_scores(subject: Subject, case: Case) -> None:
    """ATT-21: scores are c·tanh(score / c) of the scaled products of query and key."""
    call = subject.draw(case)
    expected = subject.judge(
        call, subject.call(call), "the output with a softcap differs from the definition"
    )
    require_evidence(call, expected)


@law(
    "ATT-22",
    pinned=(
        TINIEST.but(queries=5, softcap=1.0, scale=1.0),
        *vary(CAPPED.but(queries=9), dtype=DTYPES),
        *vary(SMALL.but(queries=9, dtype=F64), softcap=(0.5, 3.0, 20.0, 50.0)),
        *vary(CAPPED.but(queries=9), scale=(0.1, 2.0, 1.0)),
        GROUPED.but(softcap=3.0, queries=9),
        TILES.but(softcap=1.0, queries=65),
    ),
    explore=cases(
        always=(Feature.SOFTCAP,),
        masked=False,
        causal=False,
        scales=POSITIVE,
        only=lambda case: case.keys > 1 and case.queries > 1,
    ),
    cost=2,
)
def law_softcap_is_bounded_odd_and_monotone(subject: Subject, case: Case) -> None:
    """ATT-22: a growing score never loses weight, its opposite mirrors it, and c bounds both."""
    cap = case.softcap or 1.0
    call = score_ladder(case, subject.draw(case), cap)
    out, expected = subject.call(call), subject.expect(call)
    check_oracle(call, out, expected, "the weights of two scores under a softcap are wrong")
    is_odd = torch.arange(case.keys) % 2 == 1
    odd_keys, even_keys = float(is_odd.sum()), float((~is_odd).sum())
    share, slack = out.double(), expected.bound
    low, high = (
        odd_keys / (odd_keys + even_keys * torch.tensor(sign * cap).double().exp())
        for sign in (1, -1)
    )
    if bool((share > high + slack).any() or (share < low - slack).any()):
        raise Violation(
            f"a score leaves ({-cap}, {cap}): a weight of {_farthest_from_half(share):.6g}"
        )
    falls = share[:, :, :-1] - share[:, :, 1:]
    if bool((falls > slack[:, :, :-1] + slack[:, :, 1:]).any()):
        raise Violation(f"a key loses weight where its score grows: {float(falls.max()):.6g}")
    # m odd and f even keys share m e^t / (m e^t + f): the odds for t and -t multiply to (m / f)²
    share = share.clamp(0, 1)
    mirrored = odd_keys**2 * (1 - share) / (odd_keys**2 * (1 - share) + even_keys**2 * share)
    # the derivative of that map is m² f² / (m² (1 - share) + f² share)², at most (larger/smaller)²
    steep = (max(odd_keys, even_keys) / min(odd_keys, even_keys)) ** 2
    check_close(
        mirrored.flip(2),
        share,
        slack + steep * slack.flip(2),
        what="out",
        message="opposite scores do not mirror each other",
    )
    require_evidence(call, expected)


def score_ladder(case: Case, call: Call, cap: float) -> Call:
    """Return a call in which odd keys score from -4c to 4c, a step per query, even keys zero.

    Values are one at odd keys and zero at even ones, so that an output is the share of odd keys.
    """
    step = torch.arange(case.queries, dtype=torch.float64) - (case.queries - 1) / 2
    scale = case.d_head**-0.5 if case.scale is None else case.scale
    spacing = 4 * cap / scale / max((case.queries - 1) / 2, 1)
    # a power of two keeps the ladder symmetric and exact
    power_of_two = 2.0 ** torch.tensor(spacing).log2().floor()
    query = torch.zeros(call.query.shape, dtype=torch.float64)
    query[..., 0] = power_of_two * step
    is_odd = (torch.arange(case.keys) % 2 == 1).double()
    key = torch.zeros(call.key.shape, dtype=torch.float64)
    key[..., 0] = is_odd
    value = is_odd[:, None].expand(call.value.shape).clone()
    return call.but(query=query.to(call.query), key=key.to(call.key), value=value.to(call.value))


def _farthest_from_half(share: torch.Tensor) -> float:
    """Return the share that is farthest from one half."""
    flat = share.flatten()
    return float(flat[(flat - 0.5).abs().argmax()])


@law(
    "ATT-23",
    pinned=(
        TINIEST.but(softcap=0.5, mask=Mask(kind=MaskKind.FLOAT, pattern=MaskPattern.BIAS)),
        *vary(CAPPED.but(mask=BIAS), dtype=DTYPES),
        *vary(
            CAPPED,
            mask=[
                Mask(kind=MaskKind.FLOAT, pattern=MaskPattern.BIAS, shape=shape)
                for shape in MaskShape
            ],
        ),
        SMALL.but(softcap=0.5, mask=BIAS, keys=17, queries=9),
        GROUPED.but(softcap=0.5, mask=BIAS),
        TILES.but(softcap=1.0, mask=BIAS),
    ),
    explore=cases(
        always=(Feature.SOFTCAP,),
        masked=True,
        causal=False,
        patterns=(MaskPattern.BIAS,),
        scales=POSITIVE,
        only=lambda case: case.mask is not None,
    ),
    cost=2,
)
def law_softcap_leaves_the_bias_alone(subject: Subject, case: Case) -> None:
    """ATT-23: a bias beyond the softcap has its full effect, unless the profile bounds it too."""
    call = subject.draw(case)
    if call.attn_mask is None:
        raise ValueError("the law of biases needs a case with a mask")
    bias = call.attn_mask.double().expand(*call.query.shape[:3], case.keys)
    scores = scores_of_bias(subject, call, bias)
    target = weights_of_scores(subject, call, scores)[0] @ repeat_kv(
        subject, call.value.double(), case.heads
    )
    zeros = call.but(query=torch.zeros_like(call.query))
    message = "the softcap bounds the bias, which is added after it"
    if caps_bias(subject, call):
        message = "the softcap does not bound the bias, which is added before it"
    check_target(subject, zeros, target, message)
    out = subject.call(call)
    check_oracle(call, out, subject.expect(call), "softcap and bias are combined wrongly")


@law(
    "ATT-23",
    pinned=(
        TINIEST.but(softcap=0.5, mask=Mask(), d_head=4, d_value=4),
        TINIEST.but(softcap=0.5, is_causal=True, d_head=4, d_value=4),
        *vary(CAPPED.but(mask=HIDDEN), dtype=DTYPES),
        *vary(CAPPED.but(mask=Mask(kind=MaskKind.FLOAT)), dtype=(F64, F16)),
        CAPPED.but(is_causal=True),
        CAPPED.but(window=(2, 1)),
        GROUPED.but(softcap=0.5, mask=HIDDEN, d_head=17, d_value=17),
        TILES.but(softcap=1.0, is_causal=True, keys=64),
    ),
    explore=cases(
        always=(Feature.SOFTCAP,),
        sometimes=OTHER_OPTIONS,
        families=FLAT,
        patterns=UNBIASED,
        scales=POSITIVE,
        only=lambda case: (
            case.keys <= case.d_value
            and (case.mask is not None or case.is_causal or case.window is not None)
        ),
    ),
    cost=2,
)
def law_softcap_reveals_no_hidden_key(subject: Subject, case: Case) -> None:
    """ATT-23: under a small softcap, a key that may not be read has no weight at all."""
    check_readable_keys_have_weight(subject, case)


@law(
    "ATT-24",
    pinned=(
        TINIEST.but(softcap=1.0),
        *vary(CAPPED, dtype=DTYPES),
        *vary(CAPPED, values=(Values.PEAKED, Values.TIES, Values.ONE_HOT)),
        CAPPED.but(mask=BIAS, dtype=F64),
        GROUPED.but(softcap=1.0),
        TILES.but(softcap=1.0, is_causal=True),
    ),
    explore=cases(
        always=(Feature.SOFTCAP,),
        sometimes=OTHER_OPTIONS,
        families=(*FLAT, Values.PEAKED, Values.ONE_HOT),
        scales=POSITIVE,
        only=lambda case: plain(case) and case.keys > 0,
    ),
    cost=4,
)
def law_a_large_softcap_changes_nothing(subject: Subject, case: Case) -> None:
    """ATT-24: if c is far above every score, the output is the same without a softcap."""
    call = subject.draw(case)
    without = subject.expect(call.but(softcap=None), with_bound=False).out
    # the closed form does not apply if the exact result is not finite
    target = torch.where(without.isfinite(), without, torch.nan)
    scale = case.d_head**-0.5 if case.scale is None else case.scale
    key = repeat_kv(subject, call.key.double(), case.heads)
    value = repeat_kv(subject, call.value.double(), case.heads)
    capped = scale * (call.query.double() @ key.mT)
    if caps_bias(subject, call):
        mask = call.attn_mask
        if mask is not None and mask.dtype != torch.bool:
            capped = capped + torch.where(mask == -torch.inf, 0.0, mask.double())
        if call.alibi_slopes is not None:
            capped = capped + alibi_bias(subject, call)
    largest = float(capped.abs().max())
    is_judged = False
    for cap in (64.0, 1024.0):
        # |t - c tanh(t / c)| ≤ δ = |t|³ / 3c², and no weight changes by more than a factor e^2δ
        twice = 2 * largest**3 / (3 * cap**2)
        if twice > 0.5:
            continue
        is_judged = True
        slack = value.abs().amax(2, keepdim=True) * math.expm1(twice)
        message = f"a softcap of {cap:g} moves scores of at most {largest:.3g} too far"
        check_target(subject, call.but(softcap=cap), target, message, slack=slack)
    if not is_judged:
        raise NotClaimed("the scores are too large for a softcap that bounds nothing")


@law(
    "ATT-25",
    "TEN-20",
    pinned=(TINIEST, *vary(SMALL, dtype=DTYPES), GROUPED, TILES),
    explore=cases(masked=False, causal=False, scales=POSITIVE, lengths=(1, 2, 3, 5, 16, 17)),
    needs={Feature.SOFTCAP, Feature.VALIDATES},
    cost=4,
)
def law_a_softcap_that_is_not_positive_is_refused(subject: Subject, case: Case) -> None:
    """ATT-25: a softcap of zero, below it or NaN raises; nothing comes back."""
    call = subject.draw(case)
    for cap in INVALID_SOFTCAPS:
        check_refused(subject, call.but(softcap=cap), f"a softcap of {cap}")
