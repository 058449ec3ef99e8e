"""A call of paged attention, as tensors, and the packed call that gives the same result."""

from dataclasses import dataclass, fields
from typing import Any

import torch
from jaxtyping import Float, Int

from attnspec.conformance.operators.packed.call import PackedCall, every_second
from attnspec.conformance.operators.packed.case import offsets


@dataclass(frozen=True, kw_only=True)
class PagedCall(PackedCall):
    """The arguments of one call (see `attnspec.spec.paged.PagedAttention`).

    `cu_seq_k` counts the keys after the call, for the oracle; it is not passed.

    Attributes:
        seqused_k: the number of tokens of each sequence in its pages, before the call.
        block_table: the pages of each sequence.
        new_key: keys that the call appends; None if it appends none.
        new_value: values that it appends.
    """

    key: Float[torch.Tensor, "pages page_size kv_heads d_head"]
    value: Float[torch.Tensor, "pages page_size kv_heads d_head"]
    seqused_k: Int[torch.Tensor, " sequences"]
    block_table: Int[torch.Tensor, "sequences columns"]
    new_key: Float[torch.Tensor, "total_q kv_heads d_head"] | None = None
    new_value: Float[torch.Tensor, "total_q kv_heads d_head"] | None = None

    @property
    def page_size(self) -> int:
        """The number of tokens of a page."""
        return self.key.shape[1]

    @property
    def appends(self) -> bool:
        """True if the call writes new tokens."""
        return self.new_key is not None

    def tensors(self) -> dict[str, torch.Tensor]:
        """Return the tensor arguments that are present, by name."""
        given = super().tensors()
        del given["cu_seq_k"]
        more = {"seqused_k": self.seqused_k, "block_table": self.block_table}
        new = {"new_key": self.new_key, "new_value": self.new_value}
        return given | more | {name: each for name, each in new.items() if each is not None}

    def positional(self) -> tuple[Any, ...]:
        """Return the positional arguments."""
        query, key, value, cu_seq_q, _, max_q, max_k = super().positional()
        return query, key, value, cu_seq_q, None, max_q, max_k

    def keywords(self) -> dict[str, Any]:
        """Return the keyword arguments that are present or differ from their defaults."""
        names = ("seqused_k", "block_table", "new_key", "new_value")
        given = {name: getattr(self, name) for name in names}
        present = {name: each for name, each in given.items() if each is not None}
        return super().keywords() | present

    def code(self) -> tuple[str, ...]:
        """Return code of all arguments, with the names of tensors."""
        return tuple("None" if each == "cu_seq_k" else each for each in super().code())

    def with_indices(self, dtype: torch.dtype) -> Any:
        """Return the call with offsets, lengths and a table of another integer type."""
        table, used = self.block_table.to(dtype), self.seqused_k.to(dtype)
        return super().with_indices(dtype).but(block_table=table, seqused_k=used)

    def lengths(self) -> list[int]:
        """Return the number of keys of each sequence after the call."""
        return [int(length) for length in self.cu_seq_k.diff()]

    def slots(self, b: int, start: int, stop: int) -> tuple[torch.Tensor, torch.Tensor]:
        """Return the page and the slot of some tokens of a sequence."""
        places = torch.arange(start, stop)
        return self.block_table[b][places // self.page_size].long(), places % self.page_size

    def gathered(self) -> PackedCall:
        """Return the packed call on the keys and values of each sequence, new ones included."""
        key, value = self.written()
        slots = [self.slots(b, 0, length) for b, length in enumerate(self.lengths())]
        page, slot = (torch.cat([each[i] for each in slots]) for i in range(2))
        names = {each.name for each in fields(PackedCall)}
        same = {name: getattr(self, name) for name in names - {"key", "value", "cu_seq_k"}}
        return PackedCall(
            key=key[page, slot],
            value=value[page, slot],
            cu_seq_k=offsets(tuple(self.lengths())),
            **same,
        )

    def written(self) -> tuple[torch.Tensor, torch.Tensor]:
        """Return copies of both pools as they are after the call."""
        key, value = self.key.clone(), self.value.clone()
        if self.new_key is None or self.new_value is None:
            return key, value
        for b, length in enumerate(self.lengths()):
            rows = self.rows(b)
            place = self.slots(b, length - (rows.stop - rows.start), length)
            key[place], value[place] = self.new_key[rows], self.new_value[rows]
        return key, value

    def strided(self) -> Any:
        """Return the call with pools that are halves of each page, and gaps in the table."""
        both = torch.stack([self.key, self.value], dim=1)
        return self.but(
            key=both[:, 0],
            value=both[:, 1],
            cu_seq_q=every_second(self.cu_seq_q),
            seqused_k=every_second(self.seqused_k),
            block_table=every_second(self.block_table),
        )
