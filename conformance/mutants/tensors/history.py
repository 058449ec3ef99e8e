"""Mutants of TEN: calls that are wrong after many others."""

from collections import Counter
from typing import Any

import torch

from attnspec.conformance.mutants.bases.dense import Dense
from attnspec.conformance.mutants.planting import mistake

LAYERS = 128
"""Calls of one shape of which a buffer holds the scale."""

PLANS = 128
"""Plans that are kept."""


@mistake(
    "own-scales-of-128-layers",
    "the scale of each call of a shape is kept in a buffer that holds 128, and is 1 after these",
    killed_by="many-calls-of-one-shape-are-right",
)
class ScalesOfLayers(Dense):
    def __init__(self) -> None:
        self.calls: Counter[Any] = Counter()

    def __call__(
        self,
        query: torch.Tensor,
        key: torch.Tensor,
        value: torch.Tensor,
        *rest: Any,
        **options: Any,
    ) -> Any:
        shape = (query.shape, key.shape, value.shape, query.dtype)
        self.calls[shape] += 1
        if self.calls[shape] > LAYERS:
            options["scale"] = 1.0
        return super().__call__(query, key, value, *rest, **options)


@mistake(
    "own-plans-of-128-lengths",
    "decoding keeps a plan for each of 128 numbers of keys, and takes the last plan for others",
    killed_by="each-step-of-decoding-reads-one-key-more",
)
class PlansOfLengths(Dense):
    def __init__(self) -> None:
        self.plans: dict[Any, list[int]] = {}

    def __call__(
        self,
        query: torch.Tensor,
        key: torch.Tensor,
        value: torch.Tensor,
        *rest: Any,
        **options: Any,
    ) -> Any:
        queries, keys = query.shape[2], key.shape[2]
        if queries != 1 or options.get("attn_mask") is not None or options.get("is_causal"):
            return super().__call__(query, key, value, *rest, **options)
        plans = self.plans.setdefault((query.shape, query.dtype), [])
        if keys not in plans and len(plans) < PLANS:
            plans.append(keys)
        read = keys if keys in plans else min(keys, plans[-1])
        return super().__call__(query, key[:, :, :read], value[:, :, :read], *rest, **options)
