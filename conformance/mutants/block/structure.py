"""Mutants of GPT-2's block: wrong linear maps, heads, residuals, order or scales."""

import math
from typing import Any

import torch

from attnspec.conformance.mutants.bases.gpt2 import OMNIVERSE, CompactGPT2, model_mistake


@model_mistake(
    "own-projection-transposed",
    "attention's square projection is read output-major",
    killed_by="linear-maps-are-stored-input-major",
)
class ProjectionTransposed(CompactGPT2):
    def linear(self, x: torch.Tensor, name: str) -> torch.Tensor:
        weight = self.block_parameter(f"{name}.weight")
        turned = weight.mT if name == "attn.c_proj" else weight
        return x @ turned + self.block_parameter(f"{name}.bias")


@model_mistake(
    "own-square-mlp-transposed",
    "an MLP as wide as the model is read output-major",
    killed_by="linear-maps-are-stored-input-major",
)
class SquareTransposed(CompactGPT2):
    def linear(self, x: torch.Tensor, name: str) -> torch.Tensor:
        weight = self.block_parameter(f"{name}.weight")
        square = weight.shape[0] == weight.shape[1] and name.startswith("mlp")
        return x @ (weight.mT if square else weight) + self.block_parameter(f"{name}.bias")


@model_mistake(
    "own-no-linear-bias",
    "biases of the linear maps left out",
    killed_by="linear-maps-are-stored-input-major",
)
class NoBias(CompactGPT2):
    def linear(self, x: torch.Tensor, name: str) -> torch.Tensor:
        return x @ self.block_parameter(f"{name}.weight")


@model_mistake(
    "MDL-03",
    "the packed projection is split head by head into query, key, value",
    killed_by="packed-projection-holds-queries-keys-values",
    source="https://github.com/onnxruntime/mobius/pull/61",
)
class SplitHeadByHead(CompactGPT2):
    def heads(self, packed: torch.Tensor) -> tuple[torch.Tensor, ...]:
        parts = packed.unflatten(-1, (self.config.n_head, 3, -1))
        return tuple(parts.permute(3, 0, 2, 1, 4))


@model_mistake(
    "own-key-query-value",
    "the packed projection is read as keys, queries, values",
    killed_by="packed-projection-holds-queries-keys-values",
)
class KeyQueryValue(CompactGPT2):
    def heads(self, packed: torch.Tensor) -> tuple[torch.Tensor, ...]:
        key, query, value = super().heads(packed)
        return query, key, value


@model_mistake(
    "own-heads-strided",
    "a head takes every n_head-th channel instead of a run of channels",
    killed_by="packed-projection-holds-queries-keys-values",
)
class HeadsStrided(CompactGPT2):
    def heads(self, packed: torch.Tensor) -> tuple[torch.Tensor, ...]:
        parts = packed.unflatten(-1, (3, -1, self.config.n_head))
        return tuple(parts.permute(2, 0, 4, 1, 3))


@model_mistake(
    "own-heads-by-view",
    "channels are cut into heads by a view of (batch, heads, length, d_head), which mixes tokens",
    killed_by="packed-projection-holds-queries-keys-values",
    breaks=("GPT-15", "GPT-16", "GPT-18", "GPT-26"),
)
class HeadsByView(CompactGPT2):
    def heads(self, packed: torch.Tensor) -> tuple[torch.Tensor, ...]:
        batch, length, _ = packed.shape
        shape = (batch, self.config.n_head, length, self.config.d_head)
        return tuple(part.reshape(shape) for part in packed.chunk(3, -1))


@model_mistake(
    "own-heads-merged-by-view",
    "heads are merged by a view of (batch, length, d_model), without a transpose",
    killed_by="packed-projection-holds-queries-keys-values",
    breaks=("GPT-15", "GPT-16", "GPT-18", "GPT-26"),
)
class HeadsMergedByView(CompactGPT2):
    def attend(
        self, query: torch.Tensor, key: torch.Tensor, value: torch.Tensor, visible: torch.Tensor
    ) -> torch.Tensor:
        mixed = super().attend(query, key, value, visible)
        batch, heads, length, d_head = mixed.shape
        # the caller transposes, so that what it flattens are the heads as they lie in memory
        return mixed.reshape(batch, length, heads, d_head).transpose(1, 2)


@model_mistake(
    "own-no-residual-attention",
    "attention replaces the stream instead of adding to it",
    killed_by="each-branch-adds-to-the-stream",
)
class NoResidual(CompactGPT2):
    def block(self, x: torch.Tensor, visible: torch.Tensor, kept: Any) -> Any:
        mixed, kept = self.attention(self.norm(x, "ln_1"), visible, kept)
        return mixed + self.mlp(self.norm(mixed, "ln_2")), kept


@model_mistake(
    "MDL-05",
    "LayerNorm after each residual sum instead of before each branch",
    killed_by="layer-norm-precedes-each-branch",
    source=OMNIVERSE,
)
class PostNorm(CompactGPT2):
    def block(self, x: torch.Tensor, visible: torch.Tensor, kept: Any) -> Any:
        mixed, kept = self.attention(x, visible, kept)
        x = self.norm(x + mixed, "ln_1")
        return self.norm(x + self.mlp(x), "ln_2"), kept


@model_mistake(
    "own-residual-after-norm",
    "the residual takes up the normalized stream",
    killed_by="layer-norm-precedes-each-branch",
)
class ResidualAfterNorm(CompactGPT2):
    def block(self, x: torch.Tensor, visible: torch.Tensor, kept: Any) -> Any:
        x = self.norm(x, "ln_1")
        mixed, kept = self.attention(x, visible, kept)
        x = x + mixed
        return x + self.mlp(self.norm(x, "ln_2")), kept


@model_mistake(
    "own-norms-swapped",
    "ln_1 and ln_2 are swapped",
    killed_by="layer-norm-precedes-each-branch",
)
class NormsSwapped(CompactGPT2):
    def norm(self, x: torch.Tensor, name: str) -> torch.Tensor:
        return super().norm(x, {"ln_1": "ln_2", "ln_2": "ln_1"}[name])


@model_mistake(
    "own-parallel-block",
    "the MLP reads the stream from before attention",
    killed_by="the-mlp-reads-the-stream-after-attention",
)
class ParallelBlock(CompactGPT2):
    def block(self, x: torch.Tensor, visible: torch.Tensor, kept: Any) -> Any:
        mixed, kept = self.attention(self.norm(x, "ln_1"), visible, kept)
        return x + mixed + self.mlp(self.norm(x, "ln_2")), kept


@model_mistake(
    "own-scale-switch-ignored",
    "scale_attn_weights ignored, scores always divided",
    killed_by="scale-attn-weights-divides-scores-by-the-root-of-d-head",
)
class ScaleIgnored(CompactGPT2):
    def scale(self) -> float:
        factor = 1 / math.sqrt(self.config.d_head)
        return factor / (self.layer + 1) if self.config.scale_attn_by_inverse_layer_idx else factor


@model_mistake(
    "own-scale-of-d-model",
    "scores divided by the root of d_model instead of d_head",
    killed_by="logits-equal-the-oracles",
    breaks=("GPT-6",),
)
class ScaleOfModel(CompactGPT2):
    def scale(self) -> float:
        factor = super().scale()
        return factor / math.sqrt(self.config.n_head) if self.config.scale_attn_weights else factor


@model_mistake(
    "own-no-scale",
    "scores are not divided by the root of d_head",
    killed_by="scale-attn-weights-divides-scores-by-the-root-of-d-head",
    breaks=("GPT-7",),
)
class NoScale(CompactGPT2):
    def scale(self) -> float:
        return 1.0


@model_mistake(
    "own-inverse-layer-from-zero",
    "scale_attn_by_inverse_layer_idx divides by the layer counted from zero",
    killed_by="inverse-layer-index-divides-scores-by-the-layer",
)
class InverseLayerFromZero(CompactGPT2):
    def scale(self) -> float:
        factor = 1 / math.sqrt(self.config.d_head) if self.config.scale_attn_weights else 1.0
        by_layer = self.config.scale_attn_by_inverse_layer_idx
        return factor / max(self.layer, 1) if by_layer else factor


@model_mistake(
    "own-inner-width-ignored",
    "n_inner ignored: only the first 4 d_model channels of the MLP, or what there is, are used",
    killed_by="logits-equal-the-oracles",
    breaks=("GPT-1",),
)
class InnerWidthIgnored(CompactGPT2):
    def mlp(self, x: torch.Tensor) -> torch.Tensor:
        inner = self.activation(self.linear(x, "mlp.c_fc"))
        if self.config.n_inner is not None:
            inner = torch.cat([inner[..., :-1], torch.zeros_like(inner[..., :1])], -1)
        return self.linear(inner, "mlp.c_proj")
