"""A call: the arguments that one case stands for, as tensors."""

from dataclasses import dataclass, fields, replace
from typing import Any

import torch
from jaxtyping import Bool, Float


@dataclass(frozen=True, kw_only=True)
class Call:
    """The arguments of one call of an attention implementation (see `attnspec.spec.Attention`)."""

    query: Float[torch.Tensor, "batch heads queries d_head"]
    key: Float[torch.Tensor, "batch kv_heads keys d_head"]
    value: Float[torch.Tensor, "batch kv_heads keys d_value"]
    attn_mask: Bool[torch.Tensor, "..."] | Float[torch.Tensor, "..."] | None = None
    dropout_p: float = 0.0
    is_causal: bool = False
    scale: float | None = None
    window: tuple[int | None, int | None] | None = None
    softcap: float | None = None
    sinks: Float[torch.Tensor, " heads"] | None = None
    alibi_slopes: Float[torch.Tensor, " heads"] | None = None
    return_lse: bool = False

    @property
    def enable_gqa(self) -> bool:
        """True where queries outnumber key/value heads."""
        return self.query.shape[1] != self.key.shape[1]

    @property
    def tensors(self) -> dict[str, torch.Tensor]:
        """The tensor arguments that are present, by name."""
        given = {item.name: getattr(self, item.name) for item in fields(self)}
        return {name: each for name, each in given.items() if isinstance(each, torch.Tensor)}

    def but(self, **changes: Any) -> "Call":
        """The same call with some arguments changed."""
        return replace(self, **changes)

    def keywords(self) -> dict[str, Any]:
        """The arguments beside query, key and value that are not at their defaults.

        What is not used is not passed: a function needs no parameter for what it does not claim.
        """
        given = {
            "attn_mask": self.attn_mask,
            "dropout_p": self.dropout_p or None,
            "is_causal": self.is_causal or None,
            "scale": self.scale,
            "enable_gqa": self.enable_gqa or None,
            "window": self.window,
            "softcap": self.softcap,
            "sinks": self.sinks,
            "alibi_slopes": self.alibi_slopes,
            "return_lse": self.return_lse or None,
        }
        return {name: value for name, value in given.items() if value is not None}
