"""Laws of ATT, options: what softcap does to a score, and what it leaves alone."""

import math

import torch

from attnspec.conformance.call import Call
from attnspec.conformance.compare import check_close
from attnspec.conformance.law import Judged, law
from attnspec.conformance.laws.attention_sides import (
    POSITIVE,
    check_oracle,
    check_target,
    evident,
    per_head,
    plain,
)
from attnspec.conformance.laws.masking_visibility import law_a_query_reads_exactly_its_keys
from attnspec.conformance.laws.options_sides import (
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
    check_refused,
    weighted,
)
from attnspec.conformance.strategies import cases, every
from attnspec.conformance.subject import Subject
from attnspec.conformance.tally import NotClaimed
from attnspec.conformance.violation import Violation
from attnspec.spec import Case, Feature, Mask, MaskKind, MaskPattern, MaskShape, Values

OTHERS = (Feature.WINDOW, Feature.SINKS, Feature.ALIBI)
CAPPED = SMALL.but(softcap=1.0)


@law(
    "ATT-21",
    judges=Judged.ATTENTION,
    pinned=(
        TINIEST.but(softcap=0.5, scale=2.0),
        *every(CAPPED.but(values=Values.PEAKED), dtype=DTYPES),
        *every(SMALL.but(keys=17, values=Values.ONE_HOT), softcap=(0.5, 1.0, 3.0, 20.0, 50.0)),
        *every(CAPPED.but(scale=2.0), values=(Values.NEGATIVE, Values.GROWING, Values.OFFSET)),
        *every(CAPPED.but(values=Values.PEAKED), mask=(HIDDEN, BIAS)),
        CAPPED.but(is_causal=True, values=Values.PEAKED),
        CAPPED.but(window=(3, None), values=Values.PEAKED),
        *(CAPPED.but(**{name: True}, values=Values.PEAKED) for name in ("sinks", "alibi")),
        GROUPED.but(softcap=3.0, values=Values.PEAKED),
        TILES.but(softcap=1.0, values=Values.PEAKED),
        TILES.but(softcap=20.0, values=Values.GROWING, dtype=BF16),
    ),
    explore=cases(always=(Feature.SOFTCAP,), sometimes=OTHERS, only=plain),
    needs={Feature.SOFTCAP},
)
def law_softcap_bends_the_scaled_scores(subject: Subject, case: Case) -> None:
    """ATT-21: scores are c·tanh(score / c) of the scaled products of query and key."""
    call = subject.draw(case)
    expected = subject.judge(call, subject.call(call), "the output is not that under the softcap")
    evident(call, expected)


@law(
    "ATT-22",
    judges=Judged.ATTENTION,
    pinned=(
        TINIEST.but(queries=5, softcap=1.0, scale=1.0),
        *every(CAPPED.but(queries=9), dtype=DTYPES),
        *every(SMALL.but(queries=9, dtype=F64), softcap=(0.5, 3.0, 20.0, 50.0)),
        *every(CAPPED.but(queries=9), scale=(0.1, 2.0, 1.0)),
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
    needs={Feature.SOFTCAP},
    cost=2,
)
def law_softcap_is_bounded_odd_and_monotone(subject: Subject, case: Case) -> None:
    """ATT-22: a growing score never loses weight, its opposite mirrors it, and c bounds both."""
    cap = case.softcap or 1.0
    call = _ladder(case, subject.draw(case), cap)
    out, expected = subject.call(call), subject.expect(call)
    check_oracle(call, out, expected, "two scores under a softcap are not weighed rightly")
    hot = torch.arange(case.keys) % 2 == 1
    many, few = float(hot.sum()), float((~hot).sum())
    share, slack = out.double(), expected.bound
    low, high = (many / (many + few * torch.tensor(sign * cap).double().exp()) for sign in (1, -1))
    if bool((share > high + slack).any() or (share < low - slack).any()):
        raise Violation(f"a score leaves ({-cap}, {cap}): a weight of {_farthest(share):.6g}")
    falls = share[:, :, :-1] - share[:, :, 1:]
    if bool((falls > slack[:, :, :-1] + slack[:, :, 1:]).any()):
        raise Violation(f"a key loses weight where its score grows: {float(falls.max()):.6g}")
    # m e^t / (m e^t + f) for t, and for -t: their odds have the product (m / f)²
    share = share.clamp(0, 1)
    mirrored = many**2 * (1 - share) / (many**2 * (1 - share) + few**2 * share)
    # the derivative of that map is m² f² / (m² (1 - share) + f² share)², at most (larger/smaller)²
    steep = (max(many, few) / min(many, few)) ** 2
    check_close(
        mirrored.flip(2),
        share,
        slack + steep * slack.flip(2),
        what="out",
        message="opposite scores do not mirror each other",
    )
    evident(call, expected)


def _ladder(case: Case, call: Call, cap: float) -> Call:
    """Odd keys score a ladder of steps from -4c to 4c, one step per query; even keys score zero.

    Values are one for odd keys and zero for even ones, so that an output is the odd keys' share.
    """
    step = torch.arange(case.queries, dtype=torch.float64) - (case.queries - 1) / 2
    scale = case.d_head**-0.5 if case.scale is None else case.scale
    reach = 4 * cap / scale / max((case.queries - 1) / 2, 1)
    # a power of two keeps the ladder symmetric and exact
    unit = 2.0 ** torch.tensor(reach).log2().floor()
    query = torch.zeros(call.query.shape, dtype=torch.float64)
    query[..., 0] = unit * step
    hot = (torch.arange(case.keys) % 2 == 1).double()
    key = torch.zeros(call.key.shape, dtype=torch.float64)
    key[..., 0] = hot
    value = hot[:, None].expand(call.value.shape).clone()
    return call.but(query=query.to(call.query), key=key.to(call.key), value=value.to(call.value))


def _farthest(share: torch.Tensor) -> float:
    """The share that is farthest from one half."""
    flat = share.flatten()
    return float(flat[(flat - 0.5).abs().argmax()])


@law(
    "ATT-23",
    judges=Judged.ATTENTION,
    pinned=(
        TINIEST.but(softcap=0.5, mask=Mask(kind=MaskKind.FLOAT, pattern=MaskPattern.BIAS)),
        *every(CAPPED.but(mask=BIAS), dtype=DTYPES),
        *every(
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
    needs={Feature.SOFTCAP, Feature.MASK},
    cost=2,
)
def law_softcap_leaves_the_bias_alone(subject: Subject, case: Case) -> None:
    """ATT-23: a bias beyond the softcap has its full effect."""
    call = subject.draw(case)
    if call.attn_mask is None:
        raise ValueError("the law of biases needs a case with a mask")
    scores = call.attn_mask.double().expand(*call.query.shape[:3], case.keys)
    target = weighted(subject, call, scores)[0] @ per_head(call.value.double(), case.heads)
    zeros = call.but(query=torch.zeros_like(call.query))
    check_target(subject, zeros, target, "a softcap bounds the bias, which joins after it")
    both = subject.call(call)
    check_oracle(call, both, subject.expect(call), "softcap and bias are joined wrongly")


@law(
    "ATT-23",
    judges=Judged.ATTENTION,
    pinned=(
        TINIEST.but(softcap=0.5, mask=Mask(), d_head=4, d_value=4),
        TINIEST.but(softcap=0.5, is_causal=True, d_head=4, d_value=4),
        *every(CAPPED.but(mask=HIDDEN), dtype=DTYPES),
        *every(CAPPED.but(mask=Mask(kind=MaskKind.FLOAT)), dtype=(F64, F16)),
        CAPPED.but(is_causal=True),
        CAPPED.but(window=(2, 1)),
        GROUPED.but(softcap=0.5, mask=HIDDEN, d_head=17, d_value=17),
        TILES.but(softcap=1.0, is_causal=True, keys=64),
    ),
    explore=cases(
        always=(Feature.SOFTCAP,),
        sometimes=OTHERS,
        families=FLAT,
        patterns=UNBIASED,
        scales=POSITIVE,
        only=lambda case: (
            case.keys <= case.d_value
            and (case.mask is not None or case.is_causal or case.window is not None)
        ),
    ),
    needs={Feature.SOFTCAP},
    cost=2,
)
def law_softcap_reveals_no_hidden_key(subject: Subject, case: Case) -> None:
    """ATT-23: under a small softcap, a key that may not be read has no weight at all."""
    law_a_query_reads_exactly_its_keys(subject, case)


@law(
    "ATT-24",
    judges=Judged.ATTENTION,
    pinned=(
        TINIEST.but(softcap=1.0),
        *every(CAPPED, dtype=DTYPES),
        *every(CAPPED, values=(Values.PEAKED, Values.TIES, Values.ONE_HOT)),
        CAPPED.but(mask=BIAS, dtype=F64),
        GROUPED.but(softcap=1.0),
        TILES.but(softcap=1.0, is_causal=True),
    ),
    explore=cases(
        always=(Feature.SOFTCAP,),
        sometimes=OTHERS,
        families=(*FLAT, Values.PEAKED, Values.ONE_HOT),
        scales=POSITIVE,
        only=lambda case: plain(case) and case.keys > 0,
    ),
    needs={Feature.SOFTCAP},
    cost=4,
)
def law_a_large_softcap_bounds_nothing(subject: Subject, case: Case) -> None:
    """ATT-24: where c is far above every score, the output is that without a softcap."""
    call = subject.draw(case)
    without = subject.expect(call.but(softcap=None), with_bound=False).out
    # where the exact result is not finite the closed form says nothing
    target = torch.where(without.isfinite(), without, torch.nan)
    scale = case.d_head**-0.5 if case.scale is None else case.scale
    key = per_head(call.key.double(), case.heads)
    value = per_head(call.value.double(), case.heads)
    largest = float((scale * (call.query.double() @ key.mT)).abs().max())
    tried = False
    for cap in (64.0, 1024.0):
        # |t - c tanh(t / c)| ≤ δ = |t|³ / 3c², and no weight changes by more than a factor e^2δ
        twice = 2 * largest**3 / (3 * cap**2)
        if twice > 0.5:
            continue
        tried = True
        slack = value.abs().amax(2, keepdim=True) * math.expm1(twice)
        message = f"a softcap of {cap:g} moves scores of at most {largest:.3g} too far"
        check_target(subject, call.but(softcap=cap), target, message, slack=slack)
    if not tried:
        raise NotClaimed("the scores are too large for a softcap that bounds nothing")


@law(
    "ATT-25",
    judges=Judged.ATTENTION,
    pinned=(TINIEST, *every(SMALL, dtype=DTYPES), GROUPED, TILES),
    explore=cases(masked=False, causal=False, scales=POSITIVE, lengths=(1, 2, 3, 5, 16, 17)),
    needs={Feature.SOFTCAP},
    cost=4,
)
def law_a_softcap_that_is_not_positive_is_refused(subject: Subject, case: Case) -> None:
    """ATT-25: a softcap of zero, below it or NaN raises; nothing comes back."""
    call = subject.draw(case)
    for cap in (0.0, -1.0, -50.0, float("nan")):
        check_refused(subject, call.but(softcap=cap), f"a softcap of {cap}")
