"""Invalid arguments of paged attention, which one that claims `validates` refuses."""

from typing import Any

from attnspec.conformance.operators.packed.call import PackedCall
from attnspec.conformance.operators.packed.invalid import invalid_offsets, undeclared_types
from attnspec.conformance.operators.paged.call import PagedCall
from attnspec.spec.packed import IndexType


def invalid_tables(call: PagedCall, index_type: IndexType) -> dict[str, PackedCall]:
    """Return calls whose lengths, table or pool do not fit, by the mistake in words.

    Args:
        call: a valid call of at least two sequences with a token in use each.
        index_type: the declared types of offsets, lengths and tables.
    """
    table, used = call.block_table, call.seqused_k
    room, pages = table.shape[1] * call.page_size, len(call.key)
    added = int(call.cu_seq_q.diff()[-1]) if call.appends else 0
    last_column = (int(used[-1]) - 1) // call.page_size

    def changed(name: str, place: Any, value: int) -> PagedCall:
        numbers = getattr(call, name).clone()
        numbers[place] = value
        made: PagedCall = call.but(**{name: numbers})
        return made

    wrong = undeclared_types(call, index_type) | {
        "a negative length": changed("seqused_k", -1, -1),
        "a length beyond the room of the table": changed("seqused_k", -1, room + 1 - added),
        "an entry beyond the pool within the length": changed(
            "block_table", (-1, last_column), pages
        ),
        "an entry of -1 within the length": changed("block_table", (-1, last_column), -1),
        "a table of a sequence fewer": call.but(block_table=table[:-1]),
        "lengths of a sequence fewer": call.but(seqused_k=used[:-1]),
        "max_k below a length": call.but(max_k=max(call.lengths()) - 1),
        "max_q below the number of queries of a sequence": call.but(
            max_q=int(call.cu_seq_q.diff().max()) - 1
        ),
    }
    return wrong | invalid_offsets(call, "cu_seq_q", len(call.query), "queries")
