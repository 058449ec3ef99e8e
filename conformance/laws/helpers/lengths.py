"""Helpers of the laws of LEN: the numbers of keys of a call, and its batch elements alone."""

from collections.abc import Iterator

import torch
from jaxtyping import Bool, Int

from attnspec.conformance.attention.bounds.rows import first_places, rows_of
from attnspec.conformance.attention.call import Call
from attnspec.conformance.attention.subject import Subject
from attnspec.spec import EmptyRow, Feature


def lengths_of(call: Call) -> Int[torch.Tensor, " batch"]:
    """Return how many keys each batch element has.

    Raises:
        ValueError: if the call has no lengths, because a law of lengths got another case.
    """
    if call.key_lengths is None:
        raise ValueError("a law of lengths needs a case with lengths")
    return call.key_lengths


def readable(subject: Subject, call: Call) -> Bool[torch.Tensor, "batch heads queries keys"]:
    """Return the keys that each query may read, those within the length of its batch element."""
    rows = torch.arange(call.query.shape[2])
    visible = rows_of(call, subject.implementation.profile, rows).visible
    return visible.expand(*call.query.shape[:3], call.key.shape[2])


def as_mask(subject: Subject, call: Call) -> Call:
    """Return the same call with one full mask in place of all that hides keys."""
    visible = readable(subject, call)
    mask = visible
    if call.attn_mask is not None and call.attn_mask.dtype != torch.bool:
        mask = call.attn_mask.expand(visible.shape).masked_fill(~visible, -torch.inf)
    return call.but(
        attn_mask=mask.contiguous(),
        is_causal=False,
        window=None,
        key_lengths=None,
        query_offset=None,
    )


def each_element(subject: Subject, call: Call) -> Iterator[tuple[int, Call]]:
    """Yield each batch element with keys, as a call of its own that has its keys and no lengths.

    An element whose queries are at other places than in a call of its own, as with a
    `query_offset`, keeps them: by its offset if that is claimed, else it is left out.
    """
    places = first_places(call, subject.implementation.profile).expand(call.query.shape[0])
    for number, length in enumerate(lengths_of(call).tolist()):
        if length == 0:
            continue
        own = slice(number, number + 1)
        mask = call.attn_mask
        if mask is not None:
            mask = mask if mask.dim() < 4 or mask.shape[0] == 1 else mask[own]
            mask = mask if mask.shape[-1] == 1 else mask[..., :length]
        alone = call.but(
            query=call.query[own],
            key=call.key[own, :, :length],
            value=call.value[own, :, :length],
            attn_mask=mask,
            key_lengths=None,
            query_offset=None,
        )
        if int(first_places(alone, subject.implementation.profile)) != int(places[number]):
            if not subject.claims(Feature.QUERY_OFFSET):
                continue
            alone = alone.but(query_offset=places[own])
        yield number, alone


def comparable_rows(subject: Subject, alone: Call) -> Bool[torch.Tensor, "batch heads queries"]:
    """Return the rows of a batch element alone that have the same output as in its batch.

    An empty row may not: its batch hides keys by length too, and a mean over all keys has more.
    """
    answers = {*subject.implementation.profile.empty_row_answers.values()}
    reads = readable(subject, alone).any(-1)
    is_one = len(answers) == 1 and EmptyRow.MEAN not in answers
    return torch.ones_like(reads) if is_one else reads
