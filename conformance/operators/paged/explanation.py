"""Name the mistake with pages of a wrong result: the keys that a mistaken call reads."""

from collections.abc import Callable, Iterator

import torch

from attnspec.conformance.attention.call import Call
from attnspec.conformance.operators.packed.call import PackedCall
from attnspec.conformance.operators.packed.explanation import Mistaken, Named, under_window
from attnspec.conformance.operators.paged.call import PagedCall
from attnspec.spec import CausalAlignment

Slots = Callable[[int], tuple[torch.Tensor, torch.Tensor] | None]
"""Returns the page and the slot of each key that a mistake reads for a sequence."""


def paged_mistakes(call: PagedCall) -> Iterator[Named]:
    """Yield the mistakes that are worth trying on a call."""
    lower, size, lengths = CausalAlignment.LOWER_RIGHT, call.page_size, call.lengths()
    before = [int(each) for each in call.seqused_k]

    def tokens(b: int) -> torch.Tensor:
        return torch.arange(lengths[b])

    def pages(b: int, column: torch.Tensor) -> torch.Tensor:
        column = column.clamp(0, call.block_table.shape[1] - 1)
        return call.block_table[b][column].long() % len(call.key)

    def column_off(step: int) -> Slots:
        return lambda b: (pages(b, tokens(b) // size + step), tokens(b) % size)

    def row_off(step: int) -> Slots:
        return lambda b: ((pages((b + step) % call.sequences, tokens(b) // size), tokens(b) % size))

    def to_the_end(b: int) -> tuple[torch.Tensor, torch.Tensor]:
        read = torch.arange(-(-lengths[b] // size) * size)
        return pages(b, read // size), read % size

    def side_by_side(b: int) -> tuple[torch.Tensor, torch.Tensor]:
        first = pages(b, tokens(b) * 0)
        return (first + tokens(b) // size) % len(call.key), tokens(b) % size

    def without_new(b: int) -> tuple[torch.Tensor, torch.Tensor]:
        read = torch.arange(before[b])
        return pages(b, read // size), read % size

    yield "the column of the table is one too large", lower, _reading(call, column_off(1))
    yield "the column of the table is one too small", lower, _reading(call, column_off(-1))
    yield "each sequence reads the pages of the next one", lower, _reading(call, row_off(1))
    yield "each sequence reads the pages of the one before", lower, _reading(call, row_off(-1))
    yield "the last page is read to its end, past the length", lower, _reading(call, to_the_end)
    yield "pages are taken to lie side by side", lower, _reading(call, side_by_side)
    if call.appends:
        yield "new tokens are not attended", lower, _reading(call, without_new)
    capacity = call.block_table.shape[1] * size
    yield (
        "positions count from the capacity of the table, not from seqused_k",
        lower,
        _from_capacity(call, capacity),
    )


def _reading(call: PagedCall, slots: Slots) -> Mistaken:
    """Return the mistake that reads other slots."""
    key, value = call.written()

    def mistaken(gathered: PackedCall, b: int) -> Call | None:
        places = slots(b)
        if places is None:
            return None
        return gathered.with_keys(b, key[places], value[places])

    return mistaken


def _from_capacity(call: PagedCall, capacity: int) -> Mistaken:
    """Return the mistake that lets the queries end where the table ends."""

    def mistaken(gathered: PackedCall, b: int) -> Call | None:
        if call.window_size == (-1, -1):
            return None
        return under_window(gathered, b, capacity)

    return mistaken
