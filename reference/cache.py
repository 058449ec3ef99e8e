"""The KV cache: keys and values of earlier tokens, kept so that they are computed once."""

from dataclasses import dataclass

import torch
from jaxtyping import Float

KeyValue = tuple[
    Float[torch.Tensor, "batch heads keys d_head"], Float[torch.Tensor, "batch heads keys d_head"]
]


@dataclass(frozen=True, kw_only=True)
class Cache:
    """What each layer's later queries will read. Never changed in place: each step gives a new one.

    Attributes:
        layers: keys and values of each layer; None where nothing was kept yet.
        length: how many tokens they stand for.
    """

    layers: tuple[KeyValue | None, ...]
    length: int = 0

    def append(
        self,
        layer: int,
        key: Float[torch.Tensor, "batch heads length d_head"],
        value: Float[torch.Tensor, "batch heads length d_head"],
    ) -> KeyValue:
        """Put new keys and values after those that one layer kept.

        Args:
            layer: counted from 0.
            key: of the new tokens.
            value: of the new tokens.

        Returns:
            All keys and all values of the layer, oldest first.

        Raises:
            ValueError: for another batch, heads or channels than before.
        """
        kept = self.layers[layer]
        if kept is None:
            return key, value
        for name, old, new in (("key", kept[0], key), ("value", kept[1], value)):
            if (*old.shape[:2], old.shape[3]) != (*new.shape[:2], new.shape[3]):
                raise ValueError(
                    f"cache: layer {layer} keeps a {name} of (batch, heads, keys, d_head) = "
                    f"{tuple(old.shape)}, to which {tuple(new.shape)} cannot be appended"
                )
        return torch.cat([kept[0], key], dim=2), torch.cat([kept[1], value], dim=2)

    def truncate(self, length: int) -> "Cache":
        """Forget everything after the first tokens: roll back.

        Args:
            length: how many tokens to keep, at most as many as there are.

        Returns:
            What the cache was after that many tokens.

        Raises:
            ValueError: for a length that the cache does not reach.

        Clauses:
            GPT-16
        """
        if not 0 <= length <= self.length:
            raise ValueError(f"length must lie in [0, {self.length}], got {length}")
        layers = (kept and (kept[0][:, :, :length], kept[1][:, :, :length]) for kept in self.layers)
        return Cache(layers=tuple(layers), length=length)


def empty_cache(layers: int) -> Cache:
    """Start a cache that holds nothing yet.

    Args:
        layers: a count.

    Returns:
        A cache of length 0.
    """
    return Cache(layers=(None,) * layers)
