"""Mutants of paged attention: wrong in one class of calls alone, and wrong splits."""

import torch

from attnspec.conformance.mutants.bases.paged import (
    PlainPaged,
    paged_mistake,
    paged_wrong_at,
)

SPLIT = 256
"""Keys of a part."""

paged_wrong_at(
    "own-paged-wrong-at-4096", "wrong on 4 096 keys and more", ("longest", "4096 and more")
)
paged_wrong_at(
    "own-paged-wrong-at-pages-of-128",
    "wrong for pages of 128 tokens",
    ("page_size", "128"),
)
paged_wrong_at(
    "own-paged-wrong-at-groups-of-16",
    "wrong for groups of 9 heads and more",
    ("group", "9 and more"),
)


@paged_mistake(
    "own-paged-splits-averaged",
    "the parts of a long sequence are averaged, without their log-sum-exps",
    killed_by="decoding-on-unequal-lengths-is-exact",
)
class Averaged(PlainPaged):
    def sequence(
        self, b: int, query: torch.Tensor, key: torch.Tensor, value: torch.Tensor
    ) -> tuple[torch.Tensor, torch.Tensor]:
        if len(query) > 1 or len(key) <= SPLIT:
            return super().sequence(b, query, key, value)
        parts = [
            super(Averaged, self).sequence(b, query, *part)
            for part in zip(key.split(SPLIT), value.split(SPLIT), strict=True)
        ]
        lse = torch.stack([each[1] for each in parts]).logsumexp(0)
        return torch.stack([each[0] for each in parts]).mean(0), lse
