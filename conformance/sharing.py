"""Sharing: a question about the same numbers is answered once, for all laws and all subjects."""

import functools
import hashlib
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field, fields
from typing import Any, TypeVar

import torch

from attnspec.conformance.call import Call

Verdict = TypeVar("Verdict")

KEPT = 128
"""How many verdicts are kept at once."""

SHORT = 2**10
"""Bytes up to which contents stand for themselves; of more a digest is kept."""

LARGEST = 2**17
"""Scores of the largest call whose verdict is kept: about two megabytes."""

_ARGUMENTS = tuple(item.name for item in fields(Call))


@dataclass(frozen=True)
class _Question:
    """Arguments of a function; two questions are equal where their contents are."""

    contents: tuple[Any, ...]
    ask: Callable[[], Any] = field(compare=False)


def shared(
    oracle: Callable[..., Verdict], *, kept: int = KEPT, largest: int = LARGEST
) -> Callable[..., Verdict]:
    """Answer from memory where the same numbers were asked of an oracle under the same profile.

    Args:
        oracle: takes a call first; a pure function, whose results nobody changes.
        kept: how many verdicts are kept at once.
        largest: scores of the largest call whose verdict is kept.
    """

    def is_small(call: Call, *_: Any, **options: Any) -> bool:
        batch, heads, queries = call.query.shape[:3]
        rows = options.get("rows")
        judged = queries if rows is None else len(rows)
        return batch * heads * judged * call.key.shape[2] <= largest

    return remembered(oracle, kept=kept, where=is_small)


def remembered(
    function: Callable[..., Verdict],
    *,
    kept: int,
    where: Callable[..., bool] = lambda *_, **__: True,
) -> Callable[..., Verdict]:
    """Answer from memory where a function was asked about the same contents.

    What counts is the numbers at the time of asking: a subject that writes to its inputs is not
    judged by the verdict on what they were before.

    Args:
        function: pure, with results that nobody changes.
        kept: how many answers are kept at once.
        where: says of which arguments the answer is kept; by default of all.
    """

    @functools.lru_cache(maxsize=kept)
    def answer(question: _Question) -> Verdict:
        verdict: Verdict = question.ask()
        return verdict

    @functools.wraps(function)
    def ask(*arguments: Any, **options: Any) -> Verdict:
        given = functools.partial(function, *arguments, **options)
        if not where(*arguments, **options):
            return given()
        contents = (*map(content_of, arguments), content_of(options))
        return answer(_Question(contents, given))

    return ask


def content_of(value: Any) -> Any:
    """What tells a value from another, to be looked up: of a tensor it is the numbers."""
    if value is None or isinstance(value, (str, int, float)):
        return value
    if isinstance(value, torch.Tensor):
        bits = value.detach().view(torch.int16) if value.dtype == torch.bfloat16 else value
        stored = bits.numpy(force=True).tobytes()
        if len(stored) > SHORT:
            stored = hashlib.blake2b(stored, digest_size=16).digest()
        return value.shape, value.dtype, value.device, stored
    if isinstance(value, Call):
        return tuple([content_of(getattr(value, name)) for name in _ARGUMENTS])
    if isinstance(value, tuple):
        return tuple(map(content_of, value))
    if isinstance(value, Mapping):
        return tuple((name, content_of(each)) for name, each in value.items())
    return value
