"""Lay out the values of a tensor differently in memory."""

from collections.abc import Callable

import torch

from attnspec.spec import Layout, Layouts

_GAP = 3  # unused channels before the first one; odd, so that the data is not aligned


def lay_out(tensor: torch.Tensor, layout: Layout) -> torch.Tensor:
    """Return a view of fresh memory that holds the values of `tensor` in the given layout.

    Args:
        tensor: any shape; one of rank one has no axes to swap, and holds one number per head.
        layout: the strides. `EXPANDED` takes the values of the first head for all heads,
            `EXPANDED_BATCH` those of the first element for all elements.

    Returns:
        A tensor equal to `tensor` (of an expanded layout: to its first part, repeated).
    """
    least = 2 if layout in _OF_SEVERAL_AXES else 1
    return _LAYOUTS[layout](tensor) if tensor.dim() >= least else tensor.contiguous()


_OF_SEVERAL_AXES = (
    Layout.TRANSPOSED,
    Layout.HEADS_INSIDE,
    Layout.CACHE,
    Layout.CACHE_INSIDE,
    Layout.LENGTH_FIRST,
)


def lay_out_operands(operands: tuple[torch.Tensor, ...], layouts: Layouts) -> list[torch.Tensor]:
    """Return queries, keys and values in their layouts.

    Packed ones that differ in heads at most share a buffer, as the result of one projection: all
    three, or two of them. Those that are packed for each head do if all three have equal shapes.
    """
    chosen = (layouts.query, layouts.key, layouts.value)
    if set(chosen) == {Layout.PACKED_HEADS} and len({operand.shape for operand in operands}) == 1:
        buffer = torch.stack([operand.transpose(1, 2) for operand in operands], dim=3)
        return [part.transpose(1, 2) for part in buffer.unbind(3)]
    laid = [lay_out(*each) for each in zip(operands, chosen, strict=True)]
    shared = [place for place, layout in enumerate(chosen) if layout is Layout.PACKED]
    packed = [operands[place] for place in shared]
    shapes = {(operand.shape[:-3], operand.shape[-2:]) for operand in packed}
    if len(shared) < 2 or len(shapes) > 1 or operands[0].dim() < 4:
        return laid
    buffer = torch.cat([operand.transpose(1, 2) for operand in packed], dim=2)
    heads = [operand.shape[1] for operand in packed]
    for place, part in zip(shared, buffer.split(heads, dim=2), strict=True):
        laid[place] = part.transpose(1, 2)
    return laid


def is_unaligned(tensor: torch.Tensor) -> bool:
    """Return whether a tensor starts at no multiple of 16 bytes, as vector loads need it."""
    return tensor.data_ptr() % 16 != 0


def _contiguous(tensor: torch.Tensor) -> torch.Tensor:
    return tensor.contiguous()


def _transposed(tensor: torch.Tensor) -> torch.Tensor:
    return tensor.mT.contiguous().mT


def _heads_inside(tensor: torch.Tensor) -> torch.Tensor:
    if tensor.dim() < 3:
        return _transposed(tensor)
    return tensor.transpose(-3, -2).contiguous().transpose(-3, -2)


def _sliced(tensor: torch.Tensor) -> torch.Tensor:
    *outer, channels = tensor.shape
    if tensor.dtype == torch.bool:
        # the gaps hold the negated mask, so that reading a wrong element changes the result
        buffer = torch.zeros(*outer, _GAP + 2 * channels, dtype=torch.bool, device=tensor.device)
        buffer[..., _GAP - 1 :: 2][..., :channels] = ~tensor
    else:
        buffer = torch.full(
            (*outer, _GAP + 2 * channels), torch.nan, dtype=tensor.dtype, device=tensor.device
        )
    return buffer[..., _GAP::2].copy_(tensor)


def _expanded(tensor: torch.Tensor) -> torch.Tensor:
    axis = -min(tensor.dim(), 3)  # the heads, or the rows of a mask of rank two
    if tensor.shape[axis] == 0:
        return tensor.contiguous()
    return tensor.narrow(axis, 0, 1).contiguous().expand(tensor.shape)


def _expanded_batch(tensor: torch.Tensor) -> torch.Tensor:
    if tensor.dim() < 4 or tensor.shape[0] == 0:
        return tensor.contiguous()
    return tensor[:1].contiguous().expand(tensor.shape)


def _filled(shape: tuple[int, ...], like: torch.Tensor) -> torch.Tensor:
    """Return a buffer of numbers that must not be read."""
    filler = True if like.dtype == torch.bool else torch.nan
    return torch.full(shape, filler, dtype=like.dtype, device=like.device)


def _packed(tensor: torch.Tensor) -> torch.Tensor:
    if tensor.dim() < 4:
        return _padded(tensor)
    batch, heads, length, channels = tensor.shape
    buffer = _filled((batch, length, 3, heads, channels), tensor)
    return buffer[:, :, 1].transpose(1, 2).copy_(tensor)


def _packed_heads(tensor: torch.Tensor) -> torch.Tensor:
    if tensor.dim() < 4:
        return _padded(tensor)
    batch, heads, length, channels = tensor.shape
    buffer = _filled((batch, length, heads, 3, channels), tensor)
    return buffer[:, :, :, 1].transpose(1, 2).copy_(tensor)


def _padded(tensor: torch.Tensor) -> torch.Tensor:
    return _corner(tensor, rows=2, channels=_GAP)


def _padded_to_eight(tensor: torch.Tensor) -> torch.Tensor:
    return _corner(tensor, rows=0, channels=8 - tensor.shape[-1] % 8)


def _cache(tensor: torch.Tensor) -> torch.Tensor:
    return _corner(tensor, rows=2, channels=0)


def _corner(tensor: torch.Tensor, rows: int, channels: int) -> torch.Tensor:
    """Return the first rows and channels of a buffer that has more of them."""
    *outer, length, width = (1, *tensor.shape) if tensor.dim() == 1 else tensor.shape
    view = _filled((*outer, length + rows, width + channels), tensor)[..., :length, :width]
    return (view[0] if tensor.dim() == 1 else view).copy_(tensor)


def _cache_inside(tensor: torch.Tensor) -> torch.Tensor:
    if tensor.dim() < 4:
        return _cache(tensor)
    batch, heads, length, channels = tensor.shape
    buffer = _filled((batch, length + 2, heads, channels), tensor)
    return buffer[:, :length].transpose(1, 2).copy_(tensor)


def _fewer_heads(tensor: torch.Tensor) -> torch.Tensor:
    if tensor.dim() < 4:
        return _cache(tensor)
    batch, heads, length, channels = tensor.shape
    return _filled((batch, 2 * heads, length, channels), tensor)[:, :heads].copy_(tensor)


def _length_first(tensor: torch.Tensor) -> torch.Tensor:
    if tensor.dim() < 4:
        return _heads_inside(tensor)
    return tensor.permute(2, 0, 1, 3).contiguous().permute(1, 2, 0, 3)


def _unaligned(tensor: torch.Tensor) -> torch.Tensor:
    buffer = tensor.new_empty(tensor.numel() + 1)
    return buffer[1:].view(tensor.shape).copy_(tensor)


def _odd_strides(tensor: torch.Tensor) -> torch.Tensor:
    fresh = tensor.contiguous()
    strides = [
        stride if size != 1 else 7 * fresh.numel() + 1
        for size, stride in zip(fresh.shape, fresh.stride(), strict=True)
    ]
    return torch.as_strided(fresh, fresh.shape, strides)


_LAYOUTS: dict[Layout, Callable[[torch.Tensor], torch.Tensor]] = {
    Layout.CONTIGUOUS: _contiguous,
    Layout.TRANSPOSED: _transposed,
    Layout.HEADS_INSIDE: _heads_inside,
    Layout.SLICED: _sliced,
    Layout.EXPANDED: _expanded,
    Layout.EXPANDED_BATCH: _expanded_batch,
    Layout.PACKED: _packed,
    Layout.PACKED_HEADS: _packed_heads,
    Layout.PADDED: _padded,
    Layout.PADDED_TO_EIGHT: _padded_to_eight,
    Layout.CACHE: _cache,
    Layout.CACHE_INSIDE: _cache_inside,
    Layout.FEWER_HEADS: _fewer_heads,
    Layout.LENGTH_FIRST: _length_first,
    Layout.ODD_STRIDES: _odd_strides,
    Layout.UNALIGNED: _unaligned,
}
