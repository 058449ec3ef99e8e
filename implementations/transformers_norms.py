"""RMSNorm modules of transformers' models, on weights that a call gives."""

from collections.abc import Callable
from importlib import import_module
from typing import Any

import torch


def rms_norm_of(model: str, name: str, epsilon: str) -> Callable[..., Any]:
    """Return the RMSNorm of a model as a function.

    Args:
        model: the model, such as `llama`.
        name: the class of its module.
        epsilon: the attribute that holds epsilon.
    """

    def rms_norm(
        input: torch.Tensor,
        normalized_shape: tuple[int],
        weight: torch.Tensor,
        eps: float,
    ) -> Any:
        modeling = import_module(f"transformers.models.{model}.modeling_{model}")
        with torch.device("meta"):
            module = getattr(modeling, name)(normalized_shape[0])
        setattr(module, epsilon, eps)
        return torch.func.functional_call(module, {"weight": weight}, (input,), strict=True)

    return rms_norm
