"""Invalid arguments of packed attention, which one that claims `validates` refuses."""

import torch

from attnspec.conformance.operators.packed.call import PackedCall
from attnspec.spec.packed import IndexType


def invalid_packs(call: PackedCall, index_type: IndexType) -> dict[str, PackedCall]:
    """Return calls with offsets or maxima that do not fit, by the mistake in words.

    Args:
        call: a valid call of at least two sequences, none of them empty.
        index_type: the declared types of offsets.
    """
    wrong = undeclared_types(call, index_type)
    for name, rows, longest, what in (
        ("cu_seq_q", len(call.query), "max_q", "queries"),
        ("cu_seq_k", len(call.key), "max_k", "keys"),
    ):
        wrong |= invalid_offsets(call, name, rows, what)
        wrong[f"{longest} below the number of {what} of a sequence"] = call.but(
            **{longest: int(getattr(call, name).diff().max()) - 1}
        )
    fewer = call.cu_seq_k[:-1]
    wrong["offsets of keys for a sequence fewer than of queries"] = call.but(cu_seq_k=fewer)
    return wrong


def undeclared_types(call: PackedCall, index_type: IndexType) -> dict[str, PackedCall]:
    """Return calls with offsets of integer types that are not declared, by the mistake in words."""
    return {
        f"offsets of {str(dtype).removeprefix('torch.')}, a type that is not declared": (
            call.with_indices(dtype)
        )
        for dtype in IndexType.EITHER.dtypes
        if dtype not in index_type.dtypes
    }


def invalid_offsets(call: PackedCall, name: str, rows: int, what: str) -> dict[str, PackedCall]:
    """Return calls with offsets that do not fit, by the mistake in words.

    Args:
        call: a valid call of at least two sequences, none of them empty.
        name: the argument.
        rows: of the tensor that the offsets divide.
        what: the rows, in words.
    """
    right = getattr(call, name)

    def changed(place: int, value: int) -> PackedCall:
        offsets = right.clone()
        offsets[place] = value
        made: PackedCall = call.but(**{name: offsets})
        return made

    fall = torch.cat([right[:1], right[2:3], right[1:2], right[3:]])
    return {
        f"offsets of {what} that fall": call.but(**{name: fall}),
        f"a negative offset of {what}": changed(1, -1),
        f"offsets of {what} that begin at 1": changed(0, 1),
        f"offsets of {what} that end beyond the tensor": changed(-1, rows + 1),
    }
