"""Value families: the contents of a case's tensors, each family named after its property."""

import functools
import math
import zlib
from collections.abc import Callable

import torch
from jaxtyping import Float64, Int64

from attnspec.spec import Case, Values

Tensors = tuple[torch.Tensor, torch.Tensor, torch.Tensor]

KEPT = 2**13
"""Numbers in the largest draw that is cached."""


PERIOD = 65_539
"""Numbers after which a long draw repeats: a prime, so that no two rows of a tensor are equal."""


def generator(seed: int, purpose: str) -> torch.Generator:
    """Return a random generator for one purpose of a case: the same bits on every machine."""
    return torch.Generator().manual_seed(seed_of(seed, purpose))


def seed_of(seed: int, purpose: str) -> int:
    """Return a seed for one purpose of a case, derived from the case's one seed."""
    return zlib.crc32(f"{seed}/{purpose}".encode())


def normal(case: Case, purpose: str, *shape: int) -> Float64[torch.Tensor, "..."]:
    """Return standard normal numbers of a case; many repeat, since to draw takes long."""
    seed, numbers = seed_of(case.seed, purpose), math.prod(shape)
    if numbers <= KEPT:
        return _numbers(seed, shape).clone()  # a copy: a subject may write to its inputs
    drawn = _draw(seed, (min(numbers, PERIOD),))
    return drawn.repeat(-(-numbers // PERIOD))[:numbers].view(shape)


@functools.lru_cache(maxsize=1024)
def _numbers(seed: int, shape: tuple[int, ...]) -> Float64[torch.Tensor, "..."]:
    """Return cached standard normal numbers: most laws draw the same few shapes and seeds."""
    return _draw(seed, shape)


def _draw(seed: int, shape: tuple[int, ...]) -> Float64[torch.Tensor, "..."]:
    return torch.randn(*shape, generator=torch.Generator().manual_seed(seed), dtype=torch.float64)


def contents(case: Case) -> Tensors:
    """Return the queries, keys and values of a case in float64, before rounding to its dtype."""
    query = normal(case, "query", case.batch, case.heads, case.queries, case.d_head)
    key = normal(case, "key", case.batch, case.kv_heads, case.keys, case.d_head)
    value = normal(case, "value", case.batch, case.kv_heads, case.keys, case.d_value)
    return _FAMILIES[case.values](case, query, key, value)


def level(case: Case, score: float) -> float:
    """Return the a for which q = a·1 and k = a·1 give this score; 0 if no input can (scale 0)."""
    scale = case.d_head**-0.5 if case.scale is None and case.d_head else case.scale or 0.0
    return min(math.sqrt(abs(score / (scale * case.d_head))), 64.0) if scale * case.d_head else 0.0


def sign(case: Case) -> float:
    """Return the sign of the scale, +1 by default."""
    return -1.0 if case.scale is not None and case.scale < 0 else 1.0


def _normal(case: Case, q: torch.Tensor, k: torch.Tensor, v: torch.Tensor) -> Tensors:
    return q, k, v


def _peaked(case: Case, q: torch.Tensor, k: torch.Tensor, v: torch.Tensor) -> Tensors:
    return 4 * q, k, v


def spread(case: Case, score: float) -> tuple[tuple[float, float], tuple[float, float]]:
    """Return (mean, deviation) of the queries, and of the keys, whose scores lie about `score`."""
    mean = level(case, score)
    deviation = 2 / max(mean * math.sqrt(max(case.d_head, 1)), 1.0)
    return (mean, deviation), (sign(case) * math.copysign(mean, score), deviation)


def _shifted(
    case: Case, score: float, q: torch.Tensor, k: torch.Tensor
) -> tuple[torch.Tensor, torch.Tensor]:
    """Return queries and keys whose scores lie about `score`, with a spread of a few units."""
    (query_mean, deviation), (key_mean, _) = spread(case, score)
    return query_mean + deviation * q, key_mean + deviation * k


def _far(case: Case, q: torch.Tensor, k: torch.Tensor, v: torch.Tensor) -> Tensors:
    return *_shifted(case, common_score(case), q, k), v


FAR = (Values.NEGATIVE, Values.VERY_NEGATIVE, Values.OFFSET)
"""Families whose scores all lie about one that is far from zero."""


def common_score(case: Case) -> float:
    """Return the score about which all scores of a case of one of these families lie."""
    if case.values is Values.NEGATIVE:
        return -60.0
    if case.values is Values.VERY_NEGATIVE:
        return -20_000.0
    # exp leaves float32 at 88 and float64 at 709: a kernel that does not subtract the maximum
    # overflows on one of the two signs and divides zero by zero on the other.
    score = 800.0 if case.dtype == torch.float64 else 120.0
    return score if case.seed % 2 == 0 else -score


RAMPS = {Values.GROWING: 40.0, Values.CLIMBING: 160.0}
"""The score of the last key where scores grow from 0 along the keys."""


def _ramp(case: Case, q: torch.Tensor, k: torch.Tensor, v: torch.Tensor) -> Tensors:
    high = level(case, RAMPS[case.values])
    ramp = torch.linspace(0, 1, case.keys, dtype=torch.float64)[:, None] if case.keys else 0.0
    return high + 0.1 * q, sign(case) * high * ramp + 0.1 * k, v


def _one_hot(case: Case, q: torch.Tensor, k: torch.Tensor, v: torch.Tensor) -> Tensors:
    one_hot = torch.zeros_like(v)
    if case.d_value:
        one_hot[..., torch.arange(case.keys), torch.arange(case.keys) % case.d_value] = 1.0
    return 3 * q, k, one_hot


def _integers(case: Case, q: torch.Tensor, k: torch.Tensor, v: torch.Tensor) -> Tensors:
    return (
        q.mul(2).round().clamp(-2, 2),
        k.mul(2).round().clamp(-2, 2),
        v.mul(4).round().clamp(-8, 8),
    )


def _ties(case: Case, q: torch.Tensor, k: torch.Tensor, v: torch.Tensor) -> Tensors:
    if case.keys:
        distinct = max(1, case.keys // 4)
        k = k[..., torch.arange(case.keys) % distinct, :]
    return q, k, v


def _cancellation(case: Case, q: torch.Tensor, k: torch.Tensor, v: torch.Tensor) -> Tensors:
    sign = torch.where(torch.arange(case.keys) % 2 == 0, 1.0, -1.0).to(torch.float64)
    return q, k, 1000.0 * sign[:, None] + v


def _positive(case: Case, q: torch.Tensor, k: torch.Tensor, v: torch.Tensor) -> Tensors:
    return q, k, 32 + 8 * v.abs()


def _plateau(case: Case, q: torch.Tensor, k: torch.Tensor, v: torch.Tensor) -> Tensors:
    high = level(case, math.log(max(case.keys, 2)))
    keys = 0.01 * k
    if case.keys:
        keys[..., case.keys // 3, :] += sign(case) * high
    return high + 0.01 * q, keys, v


def _tiny(case: Case, q: torch.Tensor, k: torch.Tensor, v: torch.Tensor) -> Tensors:
    return 1e-3 * q, 1e-3 * k, 1e-3 * v


def _denormal(case: Case, q: torch.Tensor, k: torch.Tensor, v: torch.Tensor) -> Tensors:
    return q, k, v * (torch.finfo(case.dtype).smallest_normal / 8)


def needles(case: Case) -> Int64[torch.Tensor, "heads queries"]:
    """Return the key that each query of a head has most of its weight on.

    At random these are the keys where kernels err: the first and the last one, the query's own and
    the next one, counted from either end of the keys, and the last one of the tile before. Turns
    would give the rows at the end of a tile the same kind each.
    """
    shape = (case.heads, case.queries)
    drawn = torch.randint(8 * max(case.keys, 1), shape, generator=generator(case.seed, "needles"))
    query, place = torch.arange(case.queries).expand(shape), drawn // 8
    own = query + case.keys - case.queries
    candidates = torch.stack(
        [
            torch.zeros_like(query),
            torch.full_like(query, case.keys - 1),
            query,
            query + 1,
            own,
            own + 1,
            query // 64 * 64 - 1,
            place,
        ]
    )
    return candidates.gather(0, drawn[None] % 8)[0].clamp(0, max(case.keys - 1, 0))


def needle_factor(case: Case) -> float:
    """Return the factor of a key of d numbers whose score outweighs all others; 0 for none."""
    scale: float = case.d_head**-0.5 if case.scale is None and case.d_head else case.scale or 0.0
    if not (scale and case.d_head and case.keys):
        return 0.0
    return sign(case) * (math.log(case.keys) + 1) / (abs(scale) * case.d_head)


def _needles(case: Case, q: torch.Tensor, k: torch.Tensor, v: torch.Tensor) -> Tensors:
    factor = needle_factor(case)
    if not factor:
        return q, k, v
    head = torch.arange(case.heads) // max(1, case.heads // max(1, case.kv_heads))
    # products in place: these are the largest calls
    return k[:, head[:, None], needles(case)].mul_(factor) + q.mul_(0.05), k, v


UNEVEN = 64.0
"""The factor by which queries or keys are larger in uneven calls; 16 bits hold it exactly."""


def uneven(case: Case) -> tuple[float, float]:
    """Return the factors of the queries and of the keys of an uneven case."""
    factor = UNEVEN if case.seed % 2 == 0 else 1 / UNEVEN
    return factor, 1 / factor


def _uneven(case: Case, q: torch.Tensor, k: torch.Tensor, v: torch.Tensor) -> Tensors:
    q, k, v = _needles(case, q, k, v)
    of_query, of_key = uneven(case)
    return q.mul_(of_query), k.mul_(of_key), v


_FAMILIES: dict[Values, Callable[..., Tensors]] = {
    Values.NORMAL: _normal,
    Values.PEAKED: _peaked,
    **dict.fromkeys(FAR, _far),
    Values.GROWING: _ramp,
    Values.CLIMBING: _ramp,
    Values.ONE_HOT: _one_hot,
    Values.INTEGERS: _integers,
    Values.TIES: _ties,
    Values.CANCELLATION: _cancellation,
    Values.PLATEAU: _plateau,
    Values.POSITIVE: _positive,
    Values.TINY: _tiny,
    Values.DENORMAL: _denormal,
    Values.NEEDLES: _needles,
    Values.UNEVEN: _uneven,
}
