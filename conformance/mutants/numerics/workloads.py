"""Planted bugs of NUM-19: attention that is wrong only where several classes of calls meet."""

from typing import Any

import torch

from attnspec.conformance.mutants.bases.dense import Dense
from attnspec.conformance.mutants.bases.explicit_backward import Explicit, Gradients, Saved
from attnspec.conformance.mutants.bases.wrong_at import wrong_at
from attnspec.conformance.mutants.planting import mistake, plant_dense, read_memory

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
plant_dense(
    "own-wrong-long-decoding",
    "the output is wrong for one query of 64 channels on over 8 000 keys",
    wrong_at(("queries", "1"), ("keys", "8 001 to 65 000"), ("d_head", "64")),
    killed_by=LAW,
)
plant_dense(
    "own-wrong-batched-prefill",
    "the output is wrong with the causal flag, 64 channels and over 64 tokens in a large batch",
    wrong_at(
        ("causal", "yes"), ("batch", "16 to 65 535"), ("d_head", "64"), ("heads in a group", "4")
    ),
    killed_by=LAW,
)
plant_dense(
    "own-wrong-long-prompts",
    "the output is wrong for several causal texts of over 512 tokens in groups of 4 wide heads",
    wrong_at(
        ("causal", "yes"),
        ("heads in a group", "4"),
        ("d_head", "128"),
        ("batch", "2 to 4"),
        ("queries", "513 to 1 000"),
    ),
    killed_by=LAW,
)
plant_dense(
    "own-wrong-training-on-long-texts",
    "the output is wrong there if gradients are required",
    wrong_at(
        ("backward", "yes"),
        ("causal", "yes"),
        ("heads in a group", "4"),
        ("d_head", "128"),
        ("batch", "2 to 4"),
        ("queries", "513 to 1 000"),
    ),
    killed_by=GRADIENTS,
)
plant_dense(
    "own-wrong-long-training",
    "the output is wrong with 64 channels and over 2 048 tokens if gradients are required",
    wrong_at(
        ("backward", "yes"),
        ("queries", "2 049 to 8 000"),
        ("keys", "2 049 to 8 000"),
        ("d_head", "64"),
    ),
    killed_by=GRADIENTS,
)


@mistake(
    "own-group-of-frozen-keys",
    "if keys need no gradient, that of the values of a group is the one of its first head",
    killed_by=GRADIENTS,
)
class GroupOfFrozenKeys(Explicit):
    def backward(self, saved: Saved, d_out: torch.Tensor, needed: tuple[bool, ...]) -> Gradients:
        self.is_frozen = not needed[1] and saved.key.shape[2] >= 64
        return super().backward(saved, d_out, needed)

    def join_heads(self, gradient: torch.Tensor, like: torch.Tensor) -> torch.Tensor:
        if self.is_frozen:
            return gradient[:, :: gradient.shape[1] // like.shape[1]]
        return super().join_heads(gradient, like)


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


@mistake(
    "own-tiles-in-twelve-bits",
    "the number of a tile has 12 bits: of over 4096 tiles of 64 queries, later ones stay zero",
    killed_by=LAW,
)
class TilesInTwelveBits(Dense):
    def finish(self, out: torch.Tensor, value: torch.Tensor) -> Any:
        batch, heads, queries, channels = out.shape
        if queries < 64 or channels < 64:
            return super().finish(out, value)
        tile = torch.arange(queries, device=out.device) // 64
        tiles = -(-queries // 64)
        pair = torch.arange(batch * heads, device=out.device).view(batch, heads, 1)
        return super().finish(out * (pair * tiles + tile < 4096)[..., None], value)


@mistake(
    "own-strides-of-a-full-cache",
    "in decoding for several requests on over 1 024 keys, the heads of a cache are taken as full",
    killed_by=LAW,
)
class StridesOfAFullCache(Dense):
    def __call__(self, query: torch.Tensor, key: torch.Tensor, *rest: Any, **options: Any) -> Any:
        batch, _, keys, channels = key.shape
        has_room = keys * channels < key.stride(1)
        if query.shape[2] == 1 and batch > 1 and keys > 1024 and has_room:
            key = read_memory(key, (key.stride(0), keys * channels, channels, 1))
        return super().__call__(query, key, *rest, **options)
