"""The KV cache: keys and values of earlier tokens, stored so that they are computed once."""

from dataclasses import dataclass

import torch
from jaxtyping import Float

KeyValue = tuple[
    Float[torch.Tensor, "batch heads keys d_head"], Float[torch.Tensor, "batch heads keys d_head"]
]


@dataclass(frozen=True, kw_only=True)
class Cache:
    """The keys and values of all tokens so far, in every layer; each step makes a new cache.

    Attributes:
        layers: keys and values of each layer; None for a layer without any yet.
        length: the number of tokens.
    """

    layers: tuple[KeyValue | None, ...]
    length: int = 0

    def append(
        self,
        layer: int,
        key: Float[torch.Tensor, "batch heads length d_head"],
        value: Float[torch.Tensor, "batch heads length d_head"],
    ) -> KeyValue:
        """Append the keys and values of new tokens to those of one layer.

        Args:
            layer: counted from 0.
            key: keys of the new tokens, dimensionless.
            value: values of the new tokens, dimensionless.

        Returns:
            All keys and all values of the layer, oldest first. The cache is unchanged.

        Raises:
            ValueError: if the batch, heads or channels differ from those in the cache.
        """
        cached = self.layers[layer]
        if cached is None:
            return key, value
        for name, old, new in (("key", cached[0], key), ("value", cached[1], value)):
            if (*old.shape[:2], old.shape[3]) != (*new.shape[:2], new.shape[3]):
                raise ValueError(
                    f"cache: layer {layer} keeps a {name} of (batch, heads, keys, d_head) = "
                    f"{tuple(old.shape)}, to which {tuple(new.shape)} cannot be appended"
                )
        return torch.cat([cached[0], key], dim=2), torch.cat([cached[1], value], dim=2)

    def truncate(self, length: int) -> "Cache":
        """Roll back: keep only the first tokens.

        Args:
            length: the number of tokens to keep, in [0, self.length].

        Returns:
            A cache equal to the one after that many tokens.

        Raises:
            ValueError: if the length is out of range.

        Clauses:
            GPT-16
        """
        if not 0 <= length <= self.length:
            raise ValueError(f"length must lie in [0, {self.length}], got {length}")
        layers = (pair and (pair[0][:, :, :length], pair[1][:, :, :length]) for pair in self.layers)
        return Cache(layers=tuple(layers), length=length)


def empty_cache(layers: int) -> Cache:
    """Create a cache without tokens.

    Args:
        layers: the number of layers, at least 0.

    Returns:
        A cache of length 0.
    """
    return Cache(layers=(None,) * layers)
