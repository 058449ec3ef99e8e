"""Fields of a configuration that a build does not follow: other values change nothing, or fail.

A build that ignores a field is right for released configurations, and breaks every law that tries
another one. One law reports it for all, with the line that refuses other values.
"""

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

import torch

from attnspec.conformance.models.case import ACTIVATIONS, ModelCase, draw
from attnspec.spec import GPT2Config

REFUSALS = (NotImplementedError, ValueError)
"""The exceptions by which a `build` refuses a configuration."""

NOT_FOLLOWED = "build does not follow"
"""How the reason begins for which a configuration is not tried, if the build does not refuse it."""

RELEASED = ModelCase(
    n_layer=2, n_head=2, d_head=4, length=4, n_positions=6, vocab_size=11, initializer_range=0.5
)
"""A small model with the fields of released ones."""

OTHERS: Mapping[str, tuple[Mapping[str, Any], ...]] = {
    "n_inner": ({"n_inner": 5},),
    "activation_function": tuple(
        {"activation_function": name}
        for name in ACTIVATIONS
        if name != RELEASED.activation_function
    ),
    "layer_norm_epsilon": ({"layer_norm_epsilon": 0.25}, {"layer_norm_epsilon": 1e-3}),
    "scale_attn_weights": ({"scale_attn_weights": False},),
    "scale_attn_by_inverse_layer_idx": ({"scale_attn_by_inverse_layer_idx": True},),
    "tie_word_embeddings": ({"tied": False},),
}
"""Other values of each field, as fields of a case."""

REFUSING = {
    "n_inner": "config.n_inner not in (None, 4 * config.n_embd)",
    "activation_function": 'config.activation_function != "gelu_new"',
    "layer_norm_epsilon": "config.layer_norm_epsilon != 1e-5",
    "scale_attn_weights": "not config.scale_attn_weights",
    "scale_attn_by_inverse_layer_idx": "config.scale_attn_by_inverse_layer_idx",
    "tie_word_embeddings": "not config.tie_word_embeddings",
}
"""The condition of the values that differ from the released one, by field."""


@dataclass(frozen=True, kw_only=True)
class Unfollowed:
    """A field that a build does not follow.

    Attributes:
        field: its name.
        problem: what happens with another value.
    """

    field: str
    problem: str

    @property
    def line(self) -> str:
        """The line that refuses other values in a `build`."""
        return f'if {REFUSING[self.field]}: raise NotImplementedError("{self.field}")'

    def concerns(self, config: GPT2Config) -> bool:
        """Return whether a configuration has another value of the field than released models."""
        own, released = (
            each.d_inner == 4 * each.n_embd
            if self.field == "n_inner"
            else getattr(each, self.field)
            for each in (config, RELEASED.config)
        )
        return bool(own != released)


def unfollowed_fields(
    build: Callable[..., Any],
    dtype: torch.dtype,
    supports: Callable[[GPT2Config], str | None] = lambda config: None,
) -> list[Unfollowed]:
    """Return the fields that a build does not follow, by one model for each value.

    Args:
        build: builds a model from a `GPT2Config` and a state dictionary.
        dtype: the dtype of the parameters.
        supports: returns the reason why a configuration is not claimed, or None.
    """
    try:
        released = _logits(build, RELEASED.but(dtype=dtype))
    except Exception:
        return []  # every law says so
    found = []
    for field, values in OTHERS.items():
        for changes in values:
            case = RELEASED.but(dtype=dtype, **changes)
            if supports(case.config) is not None:
                continue
            value = f"{field}={next(iter(changes.values()))!r}"
            try:
                logits = _logits(build, case)
            except REFUSALS:
                continue
            except Exception as error:
                text = str(error).partition("\n")[0]
                problem = f"{value} raises {type(error).__name__}: {text}"
            else:
                if not torch.equal(logits, released):
                    continue
                problem = f"{value} gives the logits of {getattr(RELEASED.config, field)!r}"
            found.append(Unfollowed(field=field, problem=problem))
            break
    return found


def _logits(build: Callable[..., Any], case: ModelCase) -> torch.Tensor:
    inputs = draw(case)
    model = build(inputs.config, dict(inputs.state_dict))
    with torch.no_grad():
        logits: torch.Tensor = model(inputs.input_ids)
    return logits
