"""A call: the arguments of one case, as tensors."""

from dataclasses import dataclass, fields, replace
from typing import Any

import torch
from jaxtyping import Bool, Float, Int

from attnspec.spec import CallMode


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
    key_lengths: Int[torch.Tensor, " batch"] | None = None
    query_offset: Int[torch.Tensor, " batch"] | None = None
    return_lse: bool = False
    mode: CallMode = CallMode.PLAIN
    """The state of torch in which it is made; not an argument."""

    @property
    def enable_gqa(self) -> bool:
        """Return whether query heads share key/value heads, i.e. whether their numbers differ."""
        return self.query.shape[1] != self.key.shape[1]

    @property
    def tensors(self) -> dict[str, torch.Tensor]:
        """The tensor arguments that are present, by name."""
        arguments = {item.name: getattr(self, item.name) for item in fields(self)}
        return {name: value for name, value in arguments.items() if isinstance(value, torch.Tensor)}

    def but(self, **changes: Any) -> "Call":
        """Return the same call with some arguments changed."""
        return replace(self, **changes)

    def keywords(self) -> dict[str, Any]:
        """Return the arguments beside query, key and value that differ from their defaults.

        Unused options are not passed, so a function needs no parameter for a feature that it does
        not claim.
        """
        options = {
            "attn_mask": self.attn_mask,
            "dropout_p": self.dropout_p or None,
            "is_causal": self.is_causal or None,
            "scale": self.scale,
            "enable_gqa": self.enable_gqa or None,
            "window": self.window,
            "softcap": self.softcap,
            "sinks": self.sinks,
            "alibi_slopes": self.alibi_slopes,
            "key_lengths": self.key_lengths,
            "query_offset": self.query_offset,
            "return_lse": self.return_lse or None,
        }
        return {name: value for name, value in options.items() if value is not None}
