"""Names of wrong rotations: what a result is instead of the declared one."""

from collections.abc import Iterator
from dataclasses import replace

import torch

from attnspec.conformance.operators.precision import Precision
from attnspec.conformance.operators.rotary.angles import (
    Turns,
    exact_frequencies,
    roundoff_of_angles,
    turns,
)
from attnspec.conformance.operators.rotary.bounds import Turned, join, split, turned
from attnspec.conformance.operators.rotary.case import BASE, RotaryCase
from attnspec.spec.operator import Working
from attnspec.spec.profiles import Float64Precision
from attnspec.spec.rotary import AnglePrecision, Pairing, RotaryProfile, ScalingKind

_ACCURACY = "angles have the accuracy of "
_STEPS = "cosine, sine and products are rounded to 16 bits: the profile says working=float32"
_NARROWED = "float64 is computed in float32: the profile says float64_precision=float64"
NARROWER = (torch.float32, torch.float16, torch.bfloat16)
"""Types in which angles may have been computed, the most accurate first."""


def explanation(
    got: torch.Tensor,
    x: torch.Tensor,
    positions: torch.Tensor,
    case: RotaryCase,
    profile: RotaryProfile,
) -> str:
    """Return the name of a wrong result, or an empty string if it has none.

    Args:
        got: the result.
        x: queries or keys.
        positions: of the tokens.
        case: has the configuration.
        profile: the declared answers.
    """
    if _is_within(got, _expect(x, positions, case, profile)):
        return ""
    for name, other in _others(x, positions, case, profile):
        if _is_within(got, other):
            return name
    for dtype in NARROWER:
        roundoff = torch.finfo(dtype).eps / 2
        if roundoff > roundoff_of_angles(x.dtype, profile) and _has_accuracy(
            got, x, positions, case, profile, roundoff
        ):
            equal, name = round(1 / roundoff), str(dtype).removeprefix("torch.")
            merged = f", in which positions {equal} and {equal + 1} are equal"
            return f"{_ACCURACY}{name}{merged if equal < 10_000 else ''}"
    return ""


def is_of_precision(name: str) -> bool:
    """Return whether a name says that the function is right, in a coarser type."""
    return name.startswith((_ACCURACY, _STEPS, _NARROWED))


def is_of_float16(name: str) -> bool:
    """Return whether a name says that angles have the accuracy of float16."""
    return name.startswith(f"{_ACCURACY}float16")


def _is_within(got: torch.Tensor, other: Turned) -> bool:
    close = (got.detach().double() - other.value).abs() <= other.bound
    return bool(close.all())


def _turns(
    positions: torch.Tensor, case: RotaryCase, roundoff: float, length: int | None = None
) -> Turns:
    """Return the turns of a configuration; None is the length of the call."""
    if length is None:
        length = int(positions.max()) + 1
    found = exact_frequencies(case.turned, case.base, case.scaling, length)
    return turns(positions, found, roundoff)


def _expect(
    x: torch.Tensor,
    positions: torch.Tensor,
    case: RotaryCase,
    profile: RotaryProfile,
    turned_by: Turns | None = None,
) -> Turned:
    if turned_by is None:
        turned_by = _turns(positions, case, roundoff_of_angles(x.dtype, profile))
    computed = profile.float64_precision.computed_in(x.dtype)
    return turned(
        x,
        turned_by,
        profile.pairing,
        Precision.of(computed),
        profile.working,
        is_narrowed=computed is not x.dtype,
    )


def _others(
    x: torch.Tensor, positions: torch.Tensor, case: RotaryCase, profile: RotaryProfile
) -> Iterator[tuple[str, Turned]]:
    """Yield well-known wrong results by their names, those that explain most first."""
    if profile.working is Working.FLOAT32:
        stored = replace(profile, working=Working.STORAGE)
        yield (
            _STEPS,
            _expect(x, positions, case, stored),
        )
    if profile.float64_precision is Float64Precision.FLOAT64 and x.dtype == torch.float64:
        if profile.angles is AnglePrecision.WIDEST:
            float32 = replace(profile, angles=AnglePrecision.FLOAT32)
            yield f"{_ACCURACY}float32", _expect(x, positions, case, float32)
        narrowed = replace(profile, float64_precision=Float64Precision.FLOAT32)
        yield _NARROWED, _expect(x, positions, case, narrowed)
    other = Pairing.INTERLEAVED if profile.pairing is Pairing.HALF else Pairing.HALF
    title = f"pairs are {other}: the profile says {profile.pairing}"
    yield title, _expect(x, positions, case, replace(profile, pairing=other))
    yield from _of_positions(x, positions, case, profile)
    yield from _of_configuration(x, positions, case, profile)
    yield from _of_pairs(x, positions, case, profile)


def _of_positions(
    x: torch.Tensor, positions: torch.Tensor, case: RotaryCase, profile: RotaryProfile
) -> Iterator[tuple[str, Turned]]:
    counted = torch.arange(positions.shape[1]).expand_as(positions)
    is_single = positions.shape[1] == 1
    nothing = "a single token is turned as the first" if is_single else "nothing is turned"
    twice = "tokens are turned twice"
    read = {
        nothing: torch.zeros_like(positions),
        "pairs are turned the other way: the sine has the wrong sign": -positions,
        twice: 2 * positions,
        "positions are ignored: tokens are turned by their place in the call": counted,
        "positions are ignored: tokens are turned by their place in the call, from 1": counted + 1,
        "positions are one too large": positions + 1,
        "positions are one too small": positions - 1,
        "every sequence is turned by the positions of the first": positions[:1].expand_as(
            positions
        ),
        "positions are counted on from the first of each sequence": positions[:, :1] + counted,
        "positions are counted on from the first of the call": positions[:1, :1] + counted,
    }
    scaling = case.scaling
    if scaling is not None and scaling.kind is ScalingKind.LINEAR and scaling.factor % 1 == 0:
        # a frequency that is multiplied by s is divided by it at the position s² p
        times = int(scaling.factor) ** 2 * positions
        read["frequencies are multiplied by the factor of linear, not divided"] = times
    length = int(positions.max()) + 1
    for name, each in read.items():
        if not torch.equal(each, positions):
            # `dynamic` reads the length of the call as it is
            by = _turns(each, case, roundoff_of_angles(x.dtype, profile), length)
            if name == twice and by.magnitude != 1:
                by = replace(by, cosine=by.magnitude * by.cosine, sine=by.magnitude * by.sine)
            yield name, _expect(x, each, case, profile, by)


def _of_configuration(
    x: torch.Tensor, positions: torch.Tensor, case: RotaryCase, profile: RotaryProfile
) -> Iterator[tuple[str, Turned]]:
    others: dict[str, RotaryCase] = {}
    scaling = case.scaling
    if scaling is not None:
        others[f"the scaling {scaling.kind} is forgotten"] = case.but(scaling=None)
        if scaling.kind is ScalingKind.YARN:
            others["cosine and sine are not multiplied by the attention factor"] = case.but(
                scaling=replace(scaling, attention_factor=1.0)
            )
        for factor in (8.0, 1 / scaling.factor):
            if factor >= 1 and factor != scaling.factor:
                others[f"the factor of {scaling.kind} is {factor:g}, not {scaling.factor:g}"] = (
                    case.but(scaling=replace(scaling, factor=factor))
                )
    if case.base != BASE:
        others[f"the base is {BASE:g}, not {case.base:g}"] = case.but(base=BASE)
    if case.turned != case.d_head:
        others["the whole head is turned"] = case.but(rotary_dim=case.d_head)
    for name, other in others.items():
        yield name, _expect(x, positions, other, profile)
    roundoff = roundoff_of_angles(x.dtype, profile)
    if scaling is not None and scaling.kind is ScalingKind.DYNAMIC:
        longest = int(scaling.factor * scaling.original_length)
        by = _turns(positions, case, roundoff, longest)
        yield (
            "dynamic scales by a fixed length, not by that of the call",
            _expect(x, positions, case, profile, by),
        )
    if case.turned != case.d_head:
        kept = case.d_head - case.turned
        last = _expect(x.roll(-kept, -1), positions, case, profile)
        yield (
            "the last channels of a head are turned, not the first",
            Turned(value=last.value.roll(kept, -1), bound=last.bound.roll(kept, -1)),
        )
        whole = _turns(positions, case.but(rotary_dim=case.d_head), roundoff)
        first = case.turned // 2
        by = Turns(
            cosine=whole.cosine[..., :first],
            sine=whole.sine[..., :first],
            error=whole.error[..., :first],
            magnitude=whole.magnitude,
        )
        yield (
            "frequencies are those of all channels of a head, not of the turned ones",
            _expect(x, positions, case, profile, by),
        )


def _of_pairs(
    x: torch.Tensor, positions: torch.Tensor, case: RotaryCase, profile: RotaryProfile
) -> Iterator[tuple[str, Turned]]:
    right = _turns(positions, case, roundoff_of_angles(x.dtype, profile))
    swapped = replace(right, cosine=right.sine, sine=right.cosine)
    yield "cosine and sine are swapped", _expect(x, positions, case, profile, swapped)
    expected = _expect(x, positions, case, profile)
    exact, error = x.detach().double(), right.error[:, None]
    a, b = split(exact, case.turned, profile.pairing)
    cosine, sine = right.cosine[:, None], right.sine[:, None]
    kept = exact[..., case.turned :]
    added = join(a * cosine + b * sine, a * sine + b * cosine, profile.pairing)
    yield (
        "the second channel of a pair is added to the first without a minus",
        Turned(value=torch.cat([added, kept], -1), bound=expected.bound),
    )
    other = Pairing.INTERLEAVED if profile.pairing is Pairing.HALF else Pairing.HALF

    def reordered(part: torch.Tensor, read: Pairing, written: Pairing) -> torch.Tensor:
        pairs = join(*split(part, case.turned, read), written)
        return torch.cat([pairs, part[..., case.turned :]], -1)

    yield (
        f"pairs are read as {profile.pairing} and written as {other}",
        Turned(
            value=reordered(expected.value, profile.pairing, other),
            bound=reordered(expected.bound, profile.pairing, other),
        ),
    )
    # each channel has a cosine and a sine of its own, in the order of the other pairing
    minus = join(-b, a, profile.pairing)
    both = [join(each[:, None], each[:, None], other) for each in (right.cosine, right.sine)]
    value = exact[..., : case.turned] * both[0] + minus * both[1]
    bound = (exact[..., : case.turned].abs() + minus.abs()) * join(error, error, other)
    spare = expected.bound[..., : case.turned] + 8 * torch.finfo(x.dtype).eps * (
        exact[..., : case.turned].abs() + minus.abs()
    )
    yield (
        "the two channels of a pair are turned by different angles",
        Turned(
            value=torch.cat([value, kept], -1),
            bound=torch.cat([bound + spare, torch.zeros_like(kept)], -1),
        ),
    )


def _has_accuracy(
    got: torch.Tensor,
    x: torch.Tensor,
    positions: torch.Tensor,
    case: RotaryCase,
    profile: RotaryProfile,
    roundoff: float,
) -> bool:
    """Return whether a result is what angles of a coarser type may give, and no others.

    Positions, frequencies and angles round once each, and what follows is stored three times. If
    every angle is so large that this allows any direction, nothing is known.
    """
    right = _turns(positions, case, roundoff_of_angles(x.dtype, profile))
    found = exact_frequencies(case.turned, case.base, case.scaling, int(positions.max()) + 1)
    theta = torch.tensor([float(each) for each in found.exact], dtype=torch.float64)
    exponent = torch.arange(len(theta), dtype=torch.float64) / len(theta)
    units = 3 + exponent * torch.tensor(case.base, dtype=torch.float64).log()
    size = positions.double()[..., None] * theta
    error = abs(right.magnitude) * (size * roundoff * units + 6 * roundoff) + right.error
    is_telling = bool(((error < 0.25) & (size > 0.25)).any())
    by = replace(right, error=error.clamp(max=2 * abs(right.magnitude)))
    return is_telling and _is_within(got, _expect(x, positions, case, profile, by))
