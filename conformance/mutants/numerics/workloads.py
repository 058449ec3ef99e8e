"""Planted bugs of NUM-19: attention that is wrong only where several classes of calls meet."""

import torch

from attnspec.conformance.mutants.bases.dense import Dense
from attnspec.conformance.mutants.bases.wrong_at import wrong_at
from attnspec.conformance.mutants.planting import mistake, plant_dense

LAW = "calls-of-models-equal-the-definition"
GRADIENTS = "gradients-in-training-of-models-equal-the-definition"

plant_dense(
    "own-wrong-prefill-of-wide-groups",
    "the output is wrong with the causal flag, groups of 4 heads, 128 channels and over 256 tokens",
    wrong_at(
        ("causal", "yes"),
        ("heads in a group", "4"),
        ("d_head", "128"),
        ("queries", "257 to 512"),
        ("keys", "257 to 512"),
    ),
    killed_by=LAW,
)
plant_dense(
    "own-wrong-training-of-wide-groups",
    "the output is wrong there if gradients are required",
    wrong_at(
        ("extent", "several tiles of queries and keys, backward"),
        ("causal", "yes"),
        ("heads in a group", "4"),
        ("d_head", "128"),
        ("queries", "257 to 512"),
    ),
    killed_by=GRADIENTS,
)


@mistake(
    "own-last-heads-left-out",
    "in a long call, the heads beyond the last multiple of 8 are left at zero",
    killed_by=LAW,
)
class LastHeadsLeftOut(Dense):
    def mix(self, weights: torch.Tensor, value: torch.Tensor) -> torch.Tensor:
        heads, queries, keys = weights.shape[1:]
        out = super().mix(weights, value)
        if min(queries, keys) > 256 and value.shape[-1] >= 64 and heads > 8 and heads % 8:
            out = torch.cat(
                [out[:, : heads // 8 * 8], torch.zeros_like(out[:, heads // 8 * 8 :])], 1
            )
        return out
