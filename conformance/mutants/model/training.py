"""Mutants of GPT-2 models in training: right logits, and wrong gradients of some calls alone."""

from collections.abc import Callable
from typing import Any

import torch

from attnspec.conformance.mutants.bases.gpt2 import CompactGPT2, model_mistake


@model_mistake(
    "own-heads-detached-in-a-cache",
    "cached keys and values are detached: no gradient reaches what the earlier tokens went through",
    killed_by="gradients-pass-through-a-cache",
)
class DetachedInACache(CompactGPT2):
    def attention(
        self,
        x: torch.Tensor,
        visible: torch.Tensor,
        kept: tuple[torch.Tensor, torch.Tensor] | None,
    ) -> tuple[torch.Tensor, tuple[torch.Tensor, torch.Tensor]]:
        detached = None if kept is None else (kept[0].detach(), kept[1].detach())
        return super().attention(x, visible, detached)


class _LinearWithFrozenWeight(torch.autograd.Function):
    @staticmethod
    def forward(
        ctx: Any, x: torch.Tensor, weight: torch.Tensor, bias: torch.Tensor
    ) -> torch.Tensor:
        ctx.save_for_backward(x, weight)
        return x @ weight + bias

    @staticmethod
    def backward(ctx: Any, *grads: torch.Tensor) -> Any:
        (grad,) = grads
        x, weight = ctx.saved_tensors
        of_weight = x.flatten(0, -2).mT @ grad.flatten(0, -2)
        of_bias = grad.flatten(0, -2).sum(0)
        # both are computed by one kernel, which runs if the weight needs a gradient
        return grad @ weight.mT, of_weight, of_bias if ctx.needs_input_grad[1] else of_bias * 0


@model_mistake(
    "own-bias-of-a-frozen-weight",
    "the gradient of a bias is zero if the weight beside it needs none",
    killed_by="frozen-parameters-change-no-other-gradient",
)
class BiasOfAFrozenWeight(CompactGPT2):
    def linear(self, x: torch.Tensor, name: str) -> torch.Tensor:
        parameters = (self.block_parameter(f"{name}.{part}") for part in ("weight", "bias"))
        return _LinearWithFrozenWeight.apply(x, *parameters)  # type: ignore[no-untyped-call,no-any-return]


class _ActivationOfTheLastCall(torch.autograd.Function):
    @staticmethod
    def forward(
        ctx: Any, x: torch.Tensor, activation: Callable[[torch.Tensor], torch.Tensor], buffer: Any
    ) -> torch.Tensor:
        ctx.activation, ctx.buffer = activation, buffer
        buffer["x"] = x.detach()
        return activation(x)

    @staticmethod
    def backward(ctx: Any, *grads: torch.Tensor) -> Any:
        with torch.enable_grad():
            x = ctx.buffer["x"].requires_grad_()
            active = ctx.activation(x)
        return torch.autograd.grad(active, x, grads)[0], None, None


@model_mistake(
    "own-activations-of-the-last-call",
    "what an MLP keeps for its backward pass lies in one buffer for each layer, not for each call",
    killed_by="calls-before-a-backward-pass-leave-its-gradients",
    breaks=("GPT-29",),
)
class ActivationsOfTheLastCall(CompactGPT2):
    def __init__(self, *arguments: Any) -> None:
        super().__init__(*arguments)
        self.buffers: dict[Any, dict[str, torch.Tensor]] = {}

    def activation(self, x: torch.Tensor) -> torch.Tensor:
        buffer = self.buffers.setdefault((self.layer, x.shape), {})
        apply = _ActivationOfTheLastCall.apply
        return apply(x, super().activation, buffer)  # type: ignore[no-any-return,no-untyped-call]


@model_mistake(
    "own-reported-states-detached",
    "the hidden states that are returned are detached: a head that is trained on them trains "
    "nothing else",
    killed_by="the-last-hidden-state-has-the-gradients-of-the-logits",
)
class ReportedStatesDetached(CompactGPT2):
    def report(self, states: list[torch.Tensor]) -> tuple[torch.Tensor, ...]:
        return tuple(state.detach() for state in states)


class _BiasOfFewTokens(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, x: torch.Tensor, bias: torch.Tensor, tokens: int) -> torch.Tensor:
        ctx.tokens = tokens
        return x + bias

    @staticmethod
    def backward(ctx: Any, *grads: torch.Tensor) -> Any:
        (grad,) = grads
        return grad, grad[:, : ctx.tokens].flatten(0, -2).sum(0), None


@model_mistake(
    "own-bias-of-32-tokens-in-float32",
    "in float32, the gradient of a bias is summed over the first 32 tokens of each row",
    killed_by="every-gradient-equals-the-oracles",
)
class BiasOf32TokensInFloat32(CompactGPT2):
    def linear(self, x: torch.Tensor, name: str) -> torch.Tensor:
        if x.dtype != torch.float32:
            return super().linear(x, name)
        weight, bias = (self.block_parameter(f"{name}.{part}") for part in ("weight", "bias"))
        return _BiasOfFewTokens.apply(x @ weight, bias, 32)  # type: ignore[no-untyped-call,no-any-return]


@model_mistake(
    "own-gradients-of-many-padded-tokens",
    "in a padded batch of over 32 tokens, no gradient reaches keys from the 33rd on",
    killed_by="gradients-of-padded-rows-are-those-of-each-alone",
)
class GradientsOfManyPaddedTokens(CompactGPT2):
    is_padded = False

    def visible(
        self, input_ids: torch.Tensor, past: int, attention_mask: torch.Tensor | None
    ) -> torch.Tensor:
        self.is_padded = attention_mask is not None and not bool(attention_mask.all())
        return super().visible(input_ids, past, attention_mask)

    def attend(
        self, query: torch.Tensor, key: torch.Tensor, value: torch.Tensor, visible: torch.Tensor
    ) -> torch.Tensor:
        if self.is_padded:
            key = torch.cat([key[:, :, :32], key[:, :, 32:].detach()], 2)
        return super().attend(query, key, value, visible)


@model_mistake(
    "own-padding-detached-in-a-cache",
    "beside padding, cached keys and values are detached",
    killed_by="gradients-pass-through-a-cache",
)
class PaddingDetachedInACache(CompactGPT2):
    is_padded = False

    def visible(
        self, input_ids: torch.Tensor, past: int, attention_mask: torch.Tensor | None
    ) -> torch.Tensor:
        self.is_padded = attention_mask is not None
        return super().visible(input_ids, past, attention_mask)

    def attention(
        self,
        x: torch.Tensor,
        visible: torch.Tensor,
        kept: tuple[torch.Tensor, torch.Tensor] | None,
    ) -> tuple[torch.Tensor, tuple[torch.Tensor, torch.Tensor]]:
        if self.is_padded and kept is not None:
            kept = (kept[0].detach(), kept[1].detach())
        return super().attention(x, visible, kept)
