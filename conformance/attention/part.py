"""A part of a call: some batch elements, and the query heads of some key/value heads.

Batch elements and key/value heads do not read each other, so that the results of a part are those
of the whole call there. A call of a model's size is judged by a part of it.
"""

from dataclasses import dataclass

import torch
from jaxtyping import Int

from attnspec.conformance.attention.bounds.rows import group_of_heads
from attnspec.conformance.attention.call import Call
from attnspec.spec import Grouping


@dataclass(frozen=True, kw_only=True, eq=False)
class Part:
    """The places of a part.

    Attributes:
        batch: batch elements, ascending.
        kv_heads: key/value heads, ascending.
        heads: the query heads that read them, or some of each group, ascending.
        is_whole: true if the part is the whole call.
    """

    batch: Int[torch.Tensor, " some_batch"]
    kv_heads: Int[torch.Tensor, " some_kv_heads"]
    heads: Int[torch.Tensor, " some_heads"]
    is_whole: bool

    @classmethod
    def of(
        cls,
        call: Call,
        batch: torch.Tensor,
        kv_heads: torch.Tensor,
        grouping: Grouping,
        members: torch.Tensor | None = None,
    ) -> "Part":
        """Return the part of a call with some batch elements and key/value heads.

        Args:
            call: the call.
            batch: the batch elements.
            kv_heads: the key/value heads.
            grouping: which query heads read a key/value head.
            members: places in each group of query heads; None for all of them.
        """
        of_head = group_of_heads(call.query.shape[1], call.key.shape[1], grouping)
        batch, kv_heads = batch.unique(), kv_heads.unique()
        groups = torch.stack([(of_head == each).nonzero()[:, 0] for each in kv_heads])
        chosen = groups if members is None else groups[:, members.unique()]
        heads = chosen.flatten().sort().values
        device = call.query.device
        return cls(
            batch=batch.to(device),
            kv_heads=kv_heads.to(device),
            heads=heads.to(device),
            is_whole=(len(batch), len(heads)) == call.query.shape[:2],
        )

    def call(self, call: Call) -> Call:
        """Return the call of the part: its results are those of the whole call at its places."""
        if self.is_whole:
            return call
        mask, sinks, slopes = call.attn_mask, call.sinks, call.alibi_slopes
        lengths, offset = call.key_lengths, call.query_offset
        return call.but(
            query=self.of_heads(call.query),
            key=self.of_kv_heads(call.key),
            value=self.of_kv_heads(call.value),
            attn_mask=None if mask is None else self.of_mask(mask),
            sinks=None if sinks is None else sinks[self.heads],
            alibi_slopes=None if slopes is None else slopes[self.heads],
            key_lengths=None if lengths is None else lengths[self.batch],
            query_offset=None if offset is None else offset[self.batch],
        )

    def of_heads(self, tensor: torch.Tensor) -> torch.Tensor:
        """Return the part of a tensor (batch, heads, ...)."""
        return tensor if self.is_whole else tensor[self.batch][:, self.heads]

    def of_kv_heads(self, tensor: torch.Tensor) -> torch.Tensor:
        """Return the part of a tensor (batch, kv_heads, ...)."""
        return tensor if self.is_whole else tensor[self.batch][:, self.kv_heads]

    def of_mask(self, mask: torch.Tensor) -> torch.Tensor:
        """Return the part of a mask of rank 2 to 4; axes along which it is broadcast stay."""
        if mask.dim() > 2 and mask.shape[-3] > 1:
            mask = mask.index_select(-3, self.heads)
        if mask.dim() > 3 and mask.shape[0] > 1:
            mask = mask.index_select(0, self.batch)
        return mask

    def outside(self, gradient: torch.Tensor, name: str) -> torch.Tensor:
        """Return the gradient of an operand with zeros in place of the part."""
        places = self.heads if name == "query" else self.kv_heads
        rest = gradient.clone()
        rest[self.batch[:, None], places] = 0
        return rest
