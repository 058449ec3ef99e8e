"""Mutants of TEN: right with one thread, wrong with several."""

import torch

from attnspec.conformance.mutants.bases.dense import Dense
from attnspec.conformance.mutants.bases.explicit_backward import Explicit
from attnspec.conformance.mutants.planting import mistake


@mistake(
    "own-keys-divided-among-threads",
    "several threads divide more than 1024 keys of one query, and none reads what is left over",
    killed_by="threads-change-nothing",
)
class KeysDividedAmongThreads(Dense):
    def hide(self, scores: torch.Tensor, visible: torch.Tensor) -> torch.Tensor:
        queries, keys = scores.shape[-2:]
        if queries == 1 and keys > 1024:
            left_over = keys % torch.get_num_threads()
            visible = visible & (torch.arange(keys, device=visible.device) < keys - left_over)
        return super().hide(scores, visible)


@mistake(
    "own-gradients-of-a-group-by-threads",
    "threads that add to the gradient of one key/value head write over each other",
    killed_by="threads-change-no-gradient",
)
class GradientsOfAGroupByThreads(Explicit):
    def join_heads(self, gradient: torch.Tensor, like: torch.Tensor) -> torch.Tensor:
        group = gradient.shape[1] // like.shape[1]
        if torch.get_num_threads() == 1:
            return super().join_heads(gradient, like)
        return gradient[:, group - 1 :: group]
