"""Call a GPT-2 under test with a cache."""

from collections.abc import Sequence
from typing import Any

import torch

from attnspec.conformance.comparison.violation import Violation
from attnspec.conformance.models.subject import Weights, call, checked_logits


def call_with_cache(
    model: Any, input_ids: torch.Tensor, cache: Any, like: Weights, **options: Any
) -> tuple[torch.Tensor, Any]:
    """Call a model with a cache and return its checked logits and the cache of all tokens.

    Raises:
        Raised: if the model raises.
        Violation: if the result is no pair, or the logits have another shape or dtype.
    """
    with torch.no_grad():
        result = call(model, input_ids, cache=cache, **options)
    if not (isinstance(result, tuple) and len(result) == 2):
        raise Violation("a call with a cache must give (logits, cache)")
    return checked_logits(result[0], input_ids, like), result[1]


def fed_in_parts(
    model: Any,
    input_ids: torch.Tensor,
    like: Weights,
    sizes: Sequence[int],
    *,
    attention_mask: torch.Tensor | None = None,
    position_ids: torch.Tensor | None = None,
    as_they_lie: bool = False,
) -> torch.Tensor:
    """Return the logits of tokens that are fed to one cache in parts of given sizes.

    Each part is given the mask of all tokens up to its end, and the positions of its own; parts
    without a token are left out.

    Args:
        model: the model.
        input_ids: the tokens.
        like: weights of its dtype.
        sizes: numbers of tokens of the parts.
        attention_mask: of real tokens, or None.
        position_ids: or None.
        as_they_lie: whether ids are views of all ids, and no copies: a law about memory alone
            depends on where they lie.
    """
    parts, cache, seen = [], model.empty_cache(), 0
    for part in input_ids.split([size for size in sizes if size], 1):
        end, options = seen + part.shape[1], {}
        if attention_mask is not None:
            options["attention_mask"] = attention_mask[:, :end]
        if position_ids is not None:
            options["position_ids"] = position_ids[:, seen:end]
        passed = part if as_they_lie else part.contiguous()
        logits, cache = call_with_cache(model, passed, cache, like, **options)
        parts.append(logits)
        seen = end
    return torch.cat(parts, 1)
