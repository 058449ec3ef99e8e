"""Mutants of whole GPT-2 models: parameters that do not fit, are taken otherwise, or change."""

from collections.abc import Mapping

import torch

from attnspec.conformance.models.case import shapes
from attnspec.conformance.mutants.bases.gpt2 import CompactGPT2, model_mistake
from attnspec.spec import GPT2Config


@model_mistake(
    "own-missing-parameter-zero",
    "a missing bias is zero, without an error",
    killed_by="parameters-that-do-not-fit-are-refused",
)
class MissingIsZero(CompactGPT2):
    def __init__(self, config: GPT2Config, parameters: Mapping[str, torch.Tensor]) -> None:
        like = next(iter(parameters.values()))
        missing = {
            name: like.new_zeros(shape)
            for name, shape in shapes(config).items()
            if name not in parameters and name.endswith(".bias")
        }
        super().__init__(config, {**parameters, **missing})


@model_mistake(
    "own-extra-parameter-ignored",
    "an unknown parameter, such as one of a further layer, is ignored",
    killed_by="parameters-that-do-not-fit-are-refused",
)
class ExtraIgnored(CompactGPT2):
    def __init__(self, config: GPT2Config, parameters: Mapping[str, torch.Tensor]) -> None:
        known = shapes(config)
        super().__init__(
            config, {name: tensor for name, tensor in parameters.items() if name in known}
        )


@model_mistake(
    "own-misshapen-parameter-broadcast",
    "a parameter of one row is broadcast to the others",
    killed_by="parameters-that-do-not-fit-are-refused",
)
class MisshapenBroadcast(CompactGPT2):
    def __init__(self, config: GPT2Config, parameters: Mapping[str, torch.Tensor]) -> None:
        known = shapes(config)
        super().__init__(
            config,
            {
                name: tensor.expand(known[name])
                if name in known and len(tensor) == 1 and tensor.dim() == len(known[name])
                else tensor
                for name, tensor in parameters.items()
            },
        )


@model_mistake(
    "own-unnamed-parameter",
    "a parameter that does not fit raises an error that does not name it",
    killed_by="parameters-that-do-not-fit-are-refused",
)
class Unnamed(CompactGPT2):
    def check(self) -> None:
        try:
            super().check()
        except ValueError:
            raise ValueError("the checkpoint does not fit the configuration") from None


@model_mistake(
    "own-parameters-by-order",
    "parameters are taken by their order and not by their names",
    killed_by="parameters-are-taken-by-their-names",
)
class ByOrder(CompactGPT2):
    def __init__(self, config: GPT2Config, parameters: Mapping[str, torch.Tensor]) -> None:
        super().__init__(config, parameters)
        names = [name for name in parameters if name in shapes(config)]
        tensors = (parameters[name] for name in names)
        self.parameters = dict(zip(shapes(config), tensors, strict=True))


@model_mistake(
    "own-buffer-taken-for-a-gain",
    "the buffer attn.bias of old checkpoints is taken for a gain of the projection",
    killed_by="parameters-are-taken-by-their-names",
)
class BufferMultiplied(CompactGPT2):
    def linear(self, x: torch.Tensor, name: str) -> torch.Tensor:
        out = super().linear(x, name)
        if name != "attn.c_proj":
            return out
        buffer = self.parameters.get(f"transformer.h.{self.layer}.attn.bias")
        return out if buffer is None else out * buffer.mean()


@model_mistake(
    "own-head-kept-transposed",
    "evaluation transposes the head once and keeps it, whatever an optimiser does to it",
    killed_by="a-change-of-the-parameters-changes-the-next-logits",
)
class HeadKept(CompactGPT2):
    kept: torch.Tensor | None = None

    def head(self, x: torch.Tensor) -> torch.Tensor:
        if torch.is_grad_enabled():
            return super().head(x)
        if self.kept is None:
            tied = self.config.tie_word_embeddings
            head = self.parameters["transformer.wte.weight" if tied else "lm_head.weight"]
            self.kept = head.detach().mT.clone()
        return x @ self.kept


@model_mistake(
    "own-fields-raise-key-errors",
    "values of a field that the build does not know raise a KeyError, which is no refusal",
    killed_by="every-field-of-a-configuration-is-followed-or-refused",
    breaks=("ACT-5",),
)
class FieldsRaiseKeyErrors(CompactGPT2):
    def check(self) -> None:
        if self.config.activation_function == "tanh":
            raise KeyError(self.config.activation_function)
        super().check()
