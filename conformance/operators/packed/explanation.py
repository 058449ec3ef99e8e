"""Name the mistake of a wrong result: the mistaken call of each sequence that gives it."""

from collections.abc import Callable, Iterable, Iterator

import torch

from attnspec.conformance.attention.call import Call
from attnspec.conformance.operators.packed.call import PackedCall
from attnspec.conformance.operators.packed.oracle import expect_rows
from attnspec.spec import CausalAlignment, Profile
from attnspec.spec.packed import EVERYWHERE, UNBOUNDED

Mistaken = Callable[[PackedCall, int], Call | None]
"""Returns the call that a mistake makes of a sequence; None if it changes nothing there."""

Named = tuple[str, CausalAlignment, Mistaken]
"""A mistake in words, the alignment of the diagonal, and the calls that it makes."""

MOST = 40_000
"""Scores of all sequences above which no explanation is sought."""


def explained(
    call: PackedCall, out: torch.Tensor, profile: Profile, more: Iterable[Named] = ()
) -> str:
    """Return the mistake that explains the rows of every sequence, or an empty string.

    Args:
        call: the call.
        out: its wrong output.
        profile: of the padded call of a sequence.
        more: mistakes that are tried first.
    """
    if call.query.shape[0] * call.key.shape[0] * call.query.shape[1] > MOST:
        return ""
    if _explains(call, out, lambda call, b: call.padded(b), profile):
        return ""  # the rows are right, and something else is wrong
    for title, alignment, mistaken in (*more, *mistakes(call)):
        changed = Profile(
            causal_alignment=alignment, empty_row=profile.empty_row, rounding=profile.rounding
        )
        if _explains(call, out, mistaken, changed):
            return title
    return ""


def _explains(call: PackedCall, out: torch.Tensor, mistaken: Mistaken, profile: Profile) -> bool:
    """Return whether a mistake gives the output of every sequence, with some rows at all."""
    calls = [mistaken(call, b) for b in range(call.sequences)]
    if not any(calls) or not sum(each.query.shape[2] for each in calls if each is not None):
        return False
    for b in range(call.sequences):
        expected = expect_rows(calls[b] or call.padded(b), profile)
        got = out[call.rows(b)].double()
        close = (got - expected.out).abs() <= expected.bound
        if not bool((close | (got.isnan() & expected.out.isnan())).all()):
            return False
    return True


def mistakes(call: PackedCall) -> Iterator[Named]:
    """Yield the mistakes that are worth trying on a call, with the alignment of each."""
    upper, lower = CausalAlignment.UPPER_LEFT, CausalAlignment.LOWER_RIGHT
    left, right = call.window_size
    if (left, right) != EVERYWHERE:
        yield (
            "positions count from the start of each sequence: the diagonal is upper-left",
            upper,
            _of(call),
        )
        yield (
            "positions count from max_k: the diagonal is that of the longest sequence",
            lower,
            _from_longest,
        )
        yield "window_size is ignored", lower, _of(call.but(window_size=EVERYWHERE))
        for side, name in ((0, "left"), (1, "right")):
            for change, word in ((1, "one key too many"), (-1, "one key too few")):
                if call.window_size[side] + change >= 0 and call.window_size[side] != UNBOUNDED:
                    widths = list(call.window_size)
                    widths[side] += change
                    wider = call.but(window_size=tuple(widths))
                    yield f"the window has {word} on the {name}", lower, _of(wider)
    yield "each query reads the keys of all sequences", lower, _all_keys
    yield "each sequence reads the keys of the next one", lower, _neighbour(1)
    yield "each sequence reads the keys of the one before", lower, _neighbour(-1)
    yield "each sequence reads one key too many", lower, _moved(0, 1)
    yield "each sequence reads one key too few", lower, _moved(0, -1)
    yield "the keys of each sequence begin one too early", lower, _moved(-1, 0)
    yield "the keys of each sequence begin one too late", lower, _moved(1, 0)
    unscaled, width = call.but(scale=1.0), call.query.shape[-1]
    yield "scores are not scaled", lower, _of(unscaled)
    if call.scale is not None:
        yield "scale is ignored", lower, _of(call.but(scale=width**-0.5))
    if call.softcap is not None:
        yield "softcap is ignored", lower, _of(call.but(softcap=None))
    if call.alibi_slopes is not None:
        yield "alibi_slopes are ignored", lower, _of(call.but(alibi_slopes=None))
    if call.sinks is not None:
        yield "sinks are ignored", lower, _of(call.but(sinks=None))
    heads, kv_heads = call.query.shape[1], call.key.shape[1]
    if 1 < kv_heads < heads:
        interleaved = torch.arange(heads) % kv_heads
        repeated = call.but(key=call.key[:, interleaved], value=call.value[:, interleaved])
        title = "query head h reads key/value head h % kv_heads"
        yield title, lower, _of(repeated)


def _from_longest(call: PackedCall, b: int) -> Call:
    """Return the call whose queries end where the longest sequence ends."""
    return under_window(call, b, call.max_k)


def under_window(call: PackedCall, b: int, end: int) -> Call:
    """Return the call of a sequence whose last query has the position of key `end` - 1."""
    padded = call.padded(b)
    queries, keys = padded.query.shape[2], padded.key.shape[2]
    after = torch.arange(keys) - (torch.arange(queries) + end - queries)[:, None]
    return padded.but(is_causal=False, window=None, attn_mask=_near(call, after))


def _near(call: PackedCall, after: torch.Tensor) -> torch.Tensor:
    """Return whether keys that lie so far after a query are in its window."""
    left, right = call.window_size
    visible = torch.ones_like(after, dtype=torch.bool)
    if left != UNBOUNDED:
        visible &= after >= -left
    if right != UNBOUNDED:
        visible &= after <= right
    return visible


def _of(changed: PackedCall) -> Mistaken:
    """Return the mistake that makes another packed call."""
    return lambda _, b: changed.padded(b)


def _all_keys(call: PackedCall, b: int) -> Call:
    """Return the call of a sequence that reads every key, at its own place under a window."""
    keys = int(call.cu_seq_k[-1])
    padded = call.with_keys(b, call.key[:keys], call.value[:keys])
    rows, of_key = call.rows(b), call.key_rows(b)
    places = torch.arange(rows.stop - rows.start) + of_key.stop - (rows.stop - rows.start)
    after = torch.arange(keys) - places[:, None]
    return padded.but(is_causal=False, window=None, attn_mask=_near(call, after))


def _neighbour(step: int) -> Mistaken:
    def mistaken(call: PackedCall, b: int) -> Call | None:
        if not 0 <= b + step < call.sequences:
            return None
        keys = call.key_rows(b + step)
        return call.with_keys(b, call.key[keys], call.value[keys])

    return mistaken


def _moved(start: int, stop: int) -> Mistaken:
    """Return the mistake that moves the first and the last key of each sequence."""

    def mistaken(call: PackedCall, b: int) -> Call | None:
        keys = call.key_rows(b)
        first, last = max(keys.start + start, 0), min(keys.stop + stop, len(call.key))
        if not first <= last:
            return None
        return call.with_keys(b, call.key[first:last], call.value[first:last])

    return mistaken
