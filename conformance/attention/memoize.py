"""Memoize oracles by the contents of their arguments, for all laws and all subjects."""

import functools
import hashlib
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field, fields
from typing import Any, TypeVar

import numpy as np
import torch

from attnspec.conformance.attention.call import Call

Result = TypeVar("Result")

KEPT = 128
"""Results that a cache holds at once."""

SHORT = 2**10
"""Bytes of a tensor up to which the key holds the contents themselves, else a digest."""

LARGEST = 2**17
"""Scores of the largest call whose result is cached: about two megabytes."""

LARGEST_OPERANDS = 2**18
"""Numbers in the operands of the largest such call."""

FEW = 4
"""Results of larger calls that are held at once: a law may ask for one several times."""

FACTOR = 16
"""Factor by which these calls and their operands may be larger: to read more takes as long as the
result."""

_ARGUMENTS = tuple(item.name for item in fields(Call))


@dataclass(frozen=True)
class _Key:
    """The key of one call of a function; two keys are equal if their contents are.

    Attributes:
        contents: of the arguments.
        compute: makes the call. It is taken out of a key that is kept, since it holds the
            arguments, such as all weights of a model.
    """

    contents: tuple[Any, ...]
    compute: list[Callable[[], Any]] = field(compare=False)


def memoize_oracle(
    oracle: Callable[..., Result], *, kept: int = KEPT, largest: int = LARGEST
) -> Callable[..., Result]:
    """Return an oracle with cached results for equal contents under an equal profile.

    Args:
        oracle: takes a call first; a pure function, whose results no caller changes.
        kept: results of small calls that the cache holds at once, beside `FEW` of larger ones.
        largest: scores of the largest small call.
    """

    def is_within(factor: int, call: Call, *_: Any, **options: Any) -> bool:
        batch, heads, queries = call.query.shape[:3]
        rows = options.get("rows")
        judged = queries if rows is None else len(rows)
        if batch * heads * judged * call.key.shape[2] > factor * largest:
            return False
        operands = (call.query, call.key, call.value, call.attn_mask)
        numbers = sum(0 if each is None else each.numel() for each in operands)
        return numbers <= factor * LARGEST_OPERANDS

    of_small = memoize(oracle, kept=kept)
    of_large = memoize(oracle, kept=FEW, where=functools.partial(is_within, FACTOR))

    @functools.wraps(oracle)
    def cached(call: Call, *arguments: Any, **options: Any) -> Result:
        memoized = of_small if is_within(1, call, **options) else of_large
        return memoized(call, *arguments, **options)

    return cached


def memoize(
    function: Callable[..., Result],
    *,
    kept: int,
    where: Callable[..., bool] = lambda *_, **__: True,
) -> Callable[..., Result]:
    """Return a function with cached results for arguments of equal contents.

    The key holds the numbers at the time of the call, so a subject that writes to its inputs is
    not judged by the result for the previous numbers.

    Args:
        function: pure, with results that no caller changes.
        kept: results that the cache holds at once.
        where: true for arguments whose result is cached; by default for all.
    """

    @functools.lru_cache(maxsize=kept)
    def look_up(key: _Key) -> Result:
        result: Result = key.compute.pop()()
        return result

    @functools.wraps(function)
    def cached(*arguments: Any, **options: Any) -> Result:
        compute = functools.partial(function, *arguments, **options)
        if not where(*arguments, **options):
            return compute()
        contents = (*map(content_of, arguments), content_of(options))
        return look_up(_Key(contents, [compute]))

    return cached


def is_hashable(*arguments: Any) -> bool:
    """Return whether all arguments have a hash, so that results for them can be cached."""
    try:
        hash(arguments)
    except TypeError:
        return False
    return True


def content_of(value: Any) -> Any:
    """Return a hashable key of a value; the key of a tensor is its numbers, shape and dtype."""
    if value is None or isinstance(value, (str, int, float)):
        return value
    if isinstance(value, torch.Tensor):
        bits = value.detach().view(torch.int16) if value.dtype == torch.bfloat16 else value
        stored = np.ascontiguousarray(bits.numpy(force=True))
        is_short = stored.nbytes <= SHORT
        # SHA-256, since processors have instructions for it
        contents = stored.tobytes() if is_short else hashlib.sha256(stored.data).digest()
        return value.shape, value.dtype, value.device, contents
    if isinstance(value, Call):
        return tuple([content_of(getattr(value, name)) for name in _ARGUMENTS])
    if isinstance(value, tuple):
        return tuple(map(content_of, value))
    if isinstance(value, Mapping):
        return tuple((name, content_of(item)) for name, item in value.items())
    return value
