"""A correct packed attention that divides keys into parts, whose outputs are rounded and merged."""

import torch

from attnspec.conformance.mutants.bases.packed import PlainPacked
from attnspec.spec.packed import Merging

Part = tuple[torch.Tensor, torch.Tensor]
"""The output of some keys, and their log-sum-exp (heads, queries)."""


class InParts(PlainPacked):
    """A packed attention that merges the outputs of parts of the keys by their log-sum-exps.

    Outputs of parts are stored in the type of the values, log-sum-exps in float32 at least. With
    sinks the keys are one part.
    """

    size = 16
    """Keys of a part."""
    merging = Merging.RUNNING

    first_key = 0
    keys_in_all: int | None = None

    def sequence(
        self, b: int, query: torch.Tensor, key: torch.Tensor, value: torch.Tensor
    ) -> tuple[torch.Tensor, torch.Tensor]:
        """Return the output and the log-sum-exp of a sequence."""
        if len(key) <= self.size or self.sinks is not None:
            return super().sequence(b, query, key, value)
        self.keys_in_all, parts = len(key), []
        for begin in range(0, len(key), self.size):
            self.first_key, some = begin, slice(begin, begin + self.size)
            parts.append(super().sequence(b, query, key[some], value[some]))
        self.keys_in_all, self.first_key = None, 0
        return self.merge(parts)

    def after(self, b: int, queries: int, keys: int) -> torch.Tensor:
        """Return how far each key of a part lies after the position of each query."""
        if self.keys_in_all is None:
            return super().after(b, queries, keys)
        place = torch.arange(queries) + self.keys_in_all - queries
        return torch.arange(keys) + self.first_key - place[:, None]

    def merge(self, parts: list[Part]) -> Part:
        """Return the output of all parts, rounded after each merge."""
        if self.merging is Merging.TOGETHER:
            return self.weigh(parts)
        if self.merging is Merging.RUNNING:
            merged = parts[0]
            for part in parts[1:]:
                merged = self.weigh([merged, part])
            return merged
        while len(parts) > 1:
            parts = [self.weigh(parts[i : i + 2]) for i in range(0, len(parts), 2)]
        return parts[0]

    def weigh(self, parts: list[Part]) -> Part:
        """Return the sum of some outputs, weighed by their log-sum-exps."""
        if len(parts) == 1:
            return parts[0]
        sums = torch.stack([lse for _, lse in parts])
        lse = sums.logsumexp(0)
        shares = (sums - lse).exp().where(lse != -torch.inf, 0.0).mT[..., None]
        outs = torch.stack([out for out, _ in parts])
        return (shares * outs.to(shares.dtype)).sum(0).to(outs.dtype), lse
