"""Names of wrong online softmaxes and merges: what their results are instead."""

from collections.abc import Iterator, Mapping, Sequence

import torch

from attnspec.conformance.operators.gated_mlp.subject import Allowed
from attnspec.spec.online_softmax import LogBase

Result = tuple[torch.Tensor, torch.Tensor]
"""Output and log-sum-exp, which is to the declared base."""

TILES = (1, 2, 4, 8, 16, 32, 64, 128)
"""Numbers of keys of a tile that are tried."""

_WIDER = 8.0
"""Factor of the bound within which a result is another function's: names decide no verdict."""


def explanation(
    got: Result,
    scores: torch.Tensor,
    values: torch.Tensor,
    base: LogBase,
    expected: Result,
    bounds: Result,
) -> str:
    """Return the name of a wrong result of an online softmax, or an empty string if it has none.

    Args:
        got: the result.
        scores: of the call.
        values: of the call.
        base: of the log-sum-exp that is declared.
        expected: the right result.
        bounds: the largest distance from it.
    """
    wide = scores.double(), values.double()
    return _name(got, expected, bounds, _others(*wide, base, expected, scores.dtype))


def merge_explanation(
    got: Result, parts: Sequence[Result], base: LogBase, expected: Result, bounds: Result
) -> str:
    """Return the name of a wrong merge, or an empty string if it has none.

    Args:
        got: the result.
        parts: output and log-sum-exp of both parts.
        base: of the log-sum-exps that is declared.
        expected: the right result.
        bounds: the largest distance from it.
    """
    wide = [(out.double(), lse.double()) for out, lse in parts]
    name = _name(got, expected, bounds, _other_merges(wide, base, expected, parts[0][1].dtype))
    if name:
        return name
    # any finite number is allowed there
    is_empty = (expected[1] == -torch.inf) & got[1].isfinite()
    filled = torch.where(is_empty, got[1].double(), expected[1])
    finite = "two parts without keys have a finite log-sum-exp"
    return _name(got, expected, bounds, iter([(finite, (expected[0], filled))]))


def _name(
    got: Result, expected: Result, bounds: Result, others: Iterator[tuple[str, Result]]
) -> str:
    for name, wrong in others:
        pairs = list(zip(got, wrong, expected, bounds, strict=True))
        if all(_is_near(one, two, bound) for one, two, _, bound in pairs) and any(
            not _is_near(two, right, 4 * bound) for _, two, right, bound in pairs
        ):
            return name
    return ""


def _is_near(one: torch.Tensor, two: torch.Tensor, bound: torch.Tensor) -> bool:
    one, two = one.double(), two.double()
    near = ((one - two).abs() <= _WIDER * bound) | (one == two) | (one.isnan() & two.isnan())
    return bool(near.all())


def _others(
    scores: torch.Tensor,
    values: torch.Tensor,
    base: LogBase,
    expected: Result,
    dtype: torch.dtype,
) -> Iterator[tuple[str, Result]]:
    """Yield the results of wrong functions, with their names."""
    out, lse = expected
    for other in LogBase:
        if other is not base:
            name = f"the log-sum-exp is to base {other}: the profile says {base}"
            yield name, (out, lse * base.unit / other.unit)
    peak = scores.amax(-1)
    finite = torch.where(peak == -torch.inf, 0.0, peak)
    total = (scores - finite[:, None]).exp().sum(-1)
    yield "the log-sum-exp lacks the maximum", (out, total.log() / base.unit)
    yield "the log-sum-exp is the maximum alone", (out, peak / base.unit)
    yield "the output is not divided by its sum", (out * total[:, None], lse)
    is_empty = peak == -torch.inf
    one_more = torch.logaddexp(lse * base.unit, torch.zeros_like(lse)) / base.unit
    for name, rows in (
        ("one more score, of zero, counts in the log-sum-exp", torch.ones_like(is_empty)),
        ("in rows without a positive score, one more, of zero, counts", peak <= 0),
    ):
        yield name, (out, torch.where(rows, one_more, lse))
    for name, row in (
        ("a row without visible scores gives NaN", torch.full_like(out, torch.nan)),
        (
            "a row without visible scores gives the mean of the values",
            values.mean(0).expand(out.shape),
        ),
    ):
        filled = torch.where(is_empty[:, None], row, out)
        for mark in (lse, torch.where(is_empty, torch.nan, lse)):
            yield name, (filled, mark)
    yield (
        "the log-sum-exp of a row without visible scores is plus infinity",
        (out, torch.where(is_empty, torch.inf, lse)),
    )
    for name, seen in (
        ("hidden scores are −10 000, and not minus infinity", scores.clamp(min=-10_000)),
        (
            "hidden scores are −10 000, and not minus infinity",
            torch.where(scores == -torch.inf, -10_000.0, scores),
        ),
        ("a NaN score is taken for a hidden one", scores.nan_to_num(nan=-torch.inf)),
    ):
        weights = torch.softmax(seen, -1)
        weights = torch.where((seen == -torch.inf).all(-1, keepdim=True), 0.0, weights)
        yield name, (weights @ values, torch.logsumexp(seen, -1) / base.unit)
    narrow = scores.to(torch.float64 if dtype == torch.float64 else torch.float32)
    for name, shift in (
        ("nothing, or too little, is subtracted from the scores", torch.zeros_like(narrow[:, :1])),
        ("one maximum is subtracted from all rows", narrow.max().expand(len(narrow), 1)),
    ):
        masses = (narrow - shift).exp()
        sums = masses.sum(-1, keepdim=True)
        mixed = (masses @ values.to(narrow.dtype) / sums).double()
        logs = (shift + sums.log())[:, 0].double() / base.unit
        for is_zero in (is_empty[:, None], sums == 0, torch.zeros_like(is_empty)[:, None]):
            marked = torch.where(is_zero[:, 0], -torch.inf, logs)
            yield name, (torch.where(is_zero, 0.0, mixed), marked)
    for name in _MISTAKES:
        for tile in TILES:
            mixed, logs = _running(scores, values, tile, name)
            yield name, (mixed, logs / base.unit)


_SUM = "the running sum is not rescaled when the maximum grows"
_OUTPUT = "the running output is not rescaled when the maximum grows"
_TWICE = "the running output is rescaled twice when the maximum grows"
_TILE = "the maximum of the last tile takes the place of the running one"
_DROPPED = "a last tile that is shorter is not read"
_COUNTED = "the empty places of the last tile count in the sum, with score zero"
_MISTAKES = (_SUM, _OUTPUT, _TWICE, _TILE, _DROPPED, _COUNTED)


def _running(scores: torch.Tensor, values: torch.Tensor, tile: int, mistake: str) -> Result:
    """Return output and natural log-sum-exp of a softmax by tiles, with a mistake."""
    peak = torch.full_like(scores[:, :1], -torch.inf)
    total, out = torch.zeros_like(peak), torch.zeros(len(scores), values.shape[-1]).double()
    for start in range(0, scores.shape[-1], tile):
        part, rows = scores[:, start : start + tile], values[start : start + tile]
        if part.shape[-1] < tile and start and mistake == _DROPPED:
            break
        if mistake == _COUNTED:
            missing = tile - part.shape[-1]
            part = torch.nn.functional.pad(part, (0, missing))
            rows = torch.nn.functional.pad(rows, (0, 0, 0, missing))
        highest = part.amax(-1, keepdim=True)
        higher = highest if mistake == _TILE else torch.maximum(peak, highest)
        shift = torch.where(higher == -torch.inf, 0.0, higher)
        masses, shrink = (part - shift).exp(), (peak - shift).exp()
        total = (total if mistake == _SUM else shrink * total) + masses.sum(-1, keepdim=True)
        if mistake != _OUTPUT:
            out = out * (shrink * shrink if mistake == _TWICE else shrink)
        out, peak = out + masses @ rows, higher
    divisor = torch.where(total == 0, 1.0, total)
    shift = torch.where(peak == -torch.inf, 0.0, peak)
    return out / divisor, torch.where(total == 0, -torch.inf, shift + divisor.log())[:, 0]


def _other_merges(
    parts: Sequence[Result], base: LogBase, expected: Result, dtype: torch.dtype
) -> Iterator[tuple[str, Result]]:
    """Yield the results of wrong merges, with their names."""
    (out_a, lse_a), (out_b, lse_b) = parts
    out, lse = expected
    equal = (out_a + out_b) / 2
    of_zero = [torch.where(each == -torch.inf, 0.0, each) for each in (lse_a, lse_b)]
    share = torch.sigmoid((of_zero[0] - of_zero[1]) * base.unit)[..., None]
    yield (
        "the log-sum-exp of a part without keys is taken for zero",
        (
            share * out_a + (1 - share) * out_b,
            torch.logaddexp(*(each * base.unit for each in of_zero)) / base.unit,
        ),
    )
    yield "both parts weigh the same", (equal, lse)
    share = torch.sigmoid((lse_a - lse_b).abs() * base.unit)[..., None]
    yield "the first part has the larger weight", (share * out_a + (1 - share) * out_b, lse)
    yield "both outputs are added, without weights", (out_a + out_b, lse)
    share = torch.sigmoid((lse_b - lse_a) * base.unit)[..., None]
    yield "the weights of both parts are swapped", (share * out_a + (1 - share) * out_b, lse)
    for other in LogBase:
        if other is not base:
            share = torch.sigmoid((lse_a - lse_b) * other.unit)[..., None]
            logs = torch.logaddexp(lse_a * other.unit, lse_b * other.unit) / other.unit
            name = f"log-sum-exps are read to base {other}: the profile says {base}"
            yield name, (share * out_a + (1 - share) * out_b, logs)
    masses = [(each * base.unit).to(dtype).exp() for each in (lse_a, lse_b)]
    whole = masses[0] + masses[1]
    share_a, share_b = (
        (each / torch.where(whole == 0, 1.0, whole)).double()[..., None] for each in masses
    )
    yield (
        "nothing is subtracted from the log-sum-exps",
        (share_a * out_a + share_b * out_b, whole.log().double() / base.unit),
    )
    yield "the log-sum-exp is the larger of both", (out, torch.maximum(lse_a, lse_b))
    yield "the log-sum-exp is the sum of both", (out, lse_a + lse_b)
    yield "the log-sum-exp is that of the first part", (out, lse_a)
    for name, is_nan in (
        ("two parts without keys give NaN", lse == -torch.inf),
        ("a part without keys gives NaN", (lse_a == -torch.inf) | (lse_b == -torch.inf)),
    ):
        spoiled = torch.where(is_nan[..., None], torch.nan, out)
        for logs in (lse, torch.where(is_nan, torch.nan, lse)):
            yield name, (spoiled, logs)


def gradient_explanation(
    got: Mapping[str, torch.Tensor],
    scores: torch.Tensor,
    values: torch.Tensor,
    grad_out: torch.Tensor,
    expected: Mapping[str, Allowed],
) -> str:
    """Return the name of wrong gradients, or an empty string if they have none.

    Args:
        got: the gradients of `scores` and `values`.
        scores: of the call.
        values: of the call.
        grad_out: the incoming gradient of the output.
        expected: the right gradients, and the largest distance from them.
    """
    s, v, grad = (each.detach().double() for each in (scores, values, grad_out))
    peak, lse = s.amax(-1, keepdim=True), torch.logsumexp(s, -1, keepdim=True)
    reads = lse != -torch.inf
    weights = torch.where(reads, (s - lse).exp(), 0.0)
    of_weights = grad @ v.mT
    of_row = (weights * of_weights).sum(-1, keepdim=True)

    def by(recomputed: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
        recomputed = torch.where(reads, recomputed, 0.0)
        return recomputed * (of_weights - of_row), recomputed.mT @ grad

    for name, pair in (
        (
            "the product of gradient and output is not subtracted in the backward pass",
            (weights * of_weights, weights.mT @ grad),
        ),
        ("the backward pass takes the maximum for the log-sum-exp", by((s - peak).exp())),
        (
            "the backward pass takes a log-sum-exp to base 2 for a natural one",
            by((s - lse / LogBase.TWO.unit).exp()),
        ),
        (
            "the backward pass takes a natural log-sum-exp for one to base 2",
            by((s - lse * LogBase.TWO.unit).exp()),
        ),
    ):
        wrong = dict(zip(("scores", "values"), pair, strict=True))
        near = (
            _is_near(got[each], wrong[each], allowed.bound) for each, allowed in expected.items()
        )
        far = (
            not _is_near(wrong[each], allowed.value, 4 * allowed.bound)
            for each, allowed in expected.items()
        )
        if all(near) and any(far):
            return name
    return ""
