"""Play a decoding session on a subject, and check every call against the oracle."""

from dataclasses import dataclass, replace

import torch

from attnspec.conformance.attention.call import Call
from attnspec.conformance.attention.decoding.session import (
    Again,
    Append,
    Memory,
    Reorder,
    Restart,
    RollBack,
    Session,
    Spelling,
    states,
)
from attnspec.conformance.attention.subject import Subject
from attnspec.conformance.attention.values import contents, normal
from attnspec.conformance.comparison.close import check_close
from attnspec.conformance.comparison.violation import NotClaimed
from attnspec.spec import (
    CausalAlignment,
    Feature,
    Layout,
    Layouts,
    Mask,
    MaskedNonfinite,
    MaskKind,
    MaskShape,
)

SLACK = 3
"""Positions of a buffer that hold no token in any session."""

SLICED = 5
"""Queries of a chunk, at most, that are computed one at a time: more would detect no more."""

GARBAGE = 30.0
"""Size of the numbers in unused positions if NaN is not blocked: large, but in range."""


@dataclass(frozen=True)
class Tokens:
    """Queries, keys and values of a sequence, (batch, heads, length, channels) each."""

    query: torch.Tensor
    key: torch.Tensor
    value: torch.Tensor

    @property
    def length(self) -> int:
        """The number of tokens."""
        return self.key.shape[2]

    def then(self, later: "Tokens") -> "Tokens":
        """Return this sequence followed by another."""
        pairs = ((getattr(self, name), getattr(later, name)) for name in self.__dict__)
        return Tokens(*(torch.cat(pair, dim=2) for pair in pairs))

    def first(self, length: int) -> "Tokens":
        """Return the first tokens only."""
        return Tokens(*(tensor[:, :, :length] for tensor in self.__dict__.values()))

    def elements(self, order: tuple[int, ...]) -> "Tokens":
        """Return the named batch elements, in that order."""
        return Tokens(*(tensor[list(order)] for tensor in self.__dict__.values()))


class Store:
    """The cached keys or values of a decoder, in a kind of memory."""

    def __init__(self, memory: Memory, capacity: int, unused: torch.Tensor) -> None:
        """Start empty.

        Args:
            memory: the kind of memory.
            capacity: positions of a buffer.
            unused: (batch, heads, capacity, channels), the contents of unused positions.
        """
        self.memory, self.capacity, self.unused = memory, capacity, unused
        self.held = self._laid_out(unused)

    def _laid_out(self, whole: torch.Tensor) -> torch.Tensor:
        if self.memory is Memory.HEADS_INSIDE:
            return whole.transpose(1, 2).contiguous().transpose(1, 2)
        return whole.clone(memory_format=torch.contiguous_format)

    def write(self, start: int, new: torch.Tensor) -> None:
        """Write new positions after the first `start`."""
        if self.memory is Memory.FRESH:
            self.held = torch.cat([self.held[:, :, :start], new], dim=2)
        else:
            self.held[:, :, start : start + new.shape[2]] = new

    def reorder(self, order: tuple[int, ...]) -> None:
        """Reorder the batch elements, in the same buffer if the batch keeps its size."""
        reordered = self.held[list(order)]
        if len(order) == self.held.shape[0] and self.memory is not Memory.FRESH:
            self.held.copy_(reordered)
        else:
            self.held = self._laid_out(reordered)

    def restart(self, batch: int) -> None:
        """Restart with `batch` elements; a buffer of that size keeps its old numbers."""
        if batch != self.held.shape[0]:
            self.held = self._laid_out(self.unused)

    def read(self, length: int) -> torch.Tensor:
        """Return the tensor to pass to an attention function for the first `length` tokens."""
        return self.held if self.memory is Memory.MASKED else self.held[:, :, :length]


class Decoder:
    """The state of a session while it is played."""

    def __init__(self, subject: Subject, session: Session) -> None:
        self.subject, self.session = subject, session
        alignment = subject.implementation.profile.causal_alignment
        self.lower_right = alignment is CausalAlignment.LOWER_RIGHT
        self.appended = 0
        self.sequence = self._tokens(session.batch, 0)
        capacity = max(state.length for state in states(session)) + SLACK
        profile = subject.implementation.profile
        self.keys, self.values = (
            Store(session.memory, capacity, self._unused(tensor, capacity, masked))
            for tensor, masked in (
                (self.sequence.key, profile.masked_keys),
                (self.sequence.value, profile.masked_values),
            )
        )
        # powers of two, so that slope times distance in a float mask is exact in every dtype
        heads = torch.arange(session.heads, device=subject.device)
        self.slopes = 2.0 ** -(1.0 + heads.to(session.dtype)) if session.alibi else None
        sinks = normal(session, "sinks", session.heads).to(session.dtype).to(subject.device)
        self.sinks = sinks if session.sinks else None

    def play(self, message: str) -> None:
        """Take every step; check each call against its own oracle and the whole sequence's.

        Args:
            message: the sentence of a failure, to which the step is added.

        Raises:
            Violation: if a result exceeds its bound; names the step.
            NotClaimed: if the subject refuses a call.
        """
        for number, step in enumerate(self.session.steps, 1):
            step_message = f"{message}, at step {number} ({step})"
            match step:
                case Append(tokens):
                    self._append(tokens)
                    self._check_last(tokens, step_message)
                case Again(queries):
                    self._check_last(queries, step_message)
                case RollBack(tokens):
                    self.sequence = self.sequence.first(self.sequence.length - tokens)
                case Reorder(order):
                    self.sequence = self.sequence.elements(order)
                    self.keys.reorder(order)
                    self.values.reorder(order)
                case Restart():
                    self.sequence = self._tokens(self.session.batch, 0)
                    self.keys.restart(self.session.batch)
                    self.values.restart(self.session.batch)
        self._check_whole(message)

    def _tokens(self, batch: int, length: int) -> Tokens:
        """Draw new tokens, different ones each time."""
        seed = self.session.seed + 2 * self.appended  # its parity is the sign of some families
        self.appended += length
        case = self.session.but(batch=batch, queries=length, keys=length, seed=seed, steps=())
        operands = (operand.to(case.dtype).to(self.subject.device) for operand in contents(case))
        return Tokens(*operands)

    def _unused(self, like: torch.Tensor, capacity: int, masked: MaskedNonfinite) -> torch.Tensor:
        shape = (*like.shape[:2], capacity, like.shape[3])
        blocks = masked is MaskedNonfinite.BLOCKED
        if self.session.memory is not Memory.MASKED or blocks:
            return like.new_full(shape, torch.nan)
        return (GARBAGE * normal(self.session, f"unused {shape}", *shape)).to(like)

    def _append(self, tokens: int) -> None:
        new = self._tokens(self.sequence.key.shape[0], tokens)
        self.keys.write(self.sequence.length, new.key)
        self.values.write(self.sequence.length, new.value)
        self.sequence = self.sequence.then(new)

    def _whole(self) -> Call:
        """Return the sequence as one call, which means the same under either alignment."""
        return Call(
            query=self.sequence.query,
            key=self.sequence.key,
            value=self.sequence.value,
            is_causal=True,
            scale=self.session.scale,
            window=self.session.window,
            softcap=self.session.softcap,
            sinks=self.sinks,
            alibi_slopes=self.slopes,
        )

    def _check_last(self, queries: int, message: str) -> None:
        """Compute the last queries, and check them against their oracle and the whole call's."""
        length = self.sequence.length
        rows = torch.arange(length - queries, length, device=self.subject.device)
        whole = self.subject.expect(self._whole(), rows=rows)
        for first, call in self._calls(queries):
            self._check_claimed(call)
            out = self.subject.call(call)
            own = self.subject.judge(call, out, f"{message}: wrong by itself")
            part = slice(first, first + call.query.shape[2])
            check_close(
                out,
                whole.out[:, :, part],
                own.bound + whole.bound[:, :, part],
                what="out",
                message=f"{message}: differs from the whole sequence in one call",
                dtype=call.value.dtype,
            )

    def _check_whole(self, message: str) -> None:
        """Check the subject's result for the whole sequence in one call."""
        whole = self._whole()
        if self.sequence.length and self._refusal(whole) is None:
            message = f"{message}: wrong for the whole sequence in one call"
            self.subject.judge(whole, self.subject.call(whole), message)

    def _calls(self, queries: int) -> list[tuple[int, Call]]:
        """Return the calls that compute the last queries, each with the number of its first."""
        session, length = self.session, self.sequence.length
        call = self._whole().but(
            query=self.sequence.query[:, :, length - queries :],
            key=self.keys.read(length),
            value=self.values.read(length),
        )
        placed = self.lower_right or queries == length
        free = session.window is None and not session.alibi
        if session.memory is not Memory.MASKED:
            by_flag = session.spelling is Spelling.FLAG
            if by_flag and placed and self.subject.claims(Feature.CAUSAL):
                return [(0, call)]
            if by_flag and free and queries == 1:
                return [(0, call.but(is_causal=False))]
            if session.spelling is Spelling.SLICES or not self.subject.claims(Feature.MASK):
                return [self._slice(call, row) for row in _sampled_rows(queries)]
        return [(0, self._masked(call, length - queries))]

    def _slice(self, call: Call, row: int) -> tuple[int, Call]:
        """Return the call of one query with the keys that it may read, and no others."""
        place = self.sequence.length - call.query.shape[2] + row
        left = None if call.window is None else call.window[0]
        keys = slice(0 if left is None else max(0, place - left), place + 1)
        row_call = call.but(
            query=call.query[:, :, row : row + 1],
            key=call.key[:, :, keys],
            value=call.value[:, :, keys],
            is_causal=False,
            window=None,
        )
        if self.slopes is not None and not self.lower_right:
            row_call = self._masked(row_call, place, keys.start)
        return row, row_call

    def _masked(self, call: Call, first_query: int, first_key: int = 0) -> Call:
        """Return the call with a mask instead of all options that count from a query's position."""
        queries, keys = call.query.shape[2], call.key.shape[2]
        device = self.subject.device
        place = torch.arange(first_query, first_query + queries, device=device)[:, None]
        key = torch.arange(first_key, first_key + keys, device=device)
        visible = key <= place
        left = None if call.window is None else call.window[0]
        if left is not None:
            visible &= key >= place - left
        mask = visible
        if self.slopes is not None:
            distance = (place - key).abs().to(self.slopes.dtype)
            mask = (-self.slopes[:, None, None] * distance).masked_fill(~visible, -torch.inf)
        elif self.session.spelling is Spelling.FLOAT:
            mask = torch.zeros(visible.shape, dtype=call.query.dtype, device=device)
            mask = mask.masked_fill(~visible, -torch.inf)
        return call.but(attn_mask=mask, is_causal=False, window=None, alibi_slopes=None)

    def _refusal(self, call: Call) -> str | None:
        """Return the reason why the subject refuses a call, or None."""
        mask = None
        if call.attn_mask is not None:
            kind = MaskKind.BOOL if call.attn_mask.dtype == torch.bool else MaskKind.FLOAT
            is_flat = call.attn_mask.dim() == 2
            mask = Mask(kind=kind, shape=MaskShape.RANK_2 if is_flat else MaskShape.RANK_3)
        inside = self.session.memory is Memory.HEADS_INSIDE
        layout = Layout.HEADS_INSIDE if inside else Layout.CONTIGUOUS
        return self.subject.refuses(
            self.session.but(
                steps=(),
                batch=call.query.shape[0],
                queries=call.query.shape[2],
                keys=call.key.shape[2],
                mask=mask,
                is_causal=call.is_causal,
                window=call.window,
                alibi=call.alibi_slopes is not None,
                layouts=replace(Layouts(), key=layout, value=layout),
            )
        )

    def _check_claimed(self, call: Call) -> None:
        reason = self._refusal(call)
        if reason is not None:
            raise NotClaimed(reason)


def _sampled_rows(queries: int) -> list[int]:
    """Return the first and the last of the queries, and others spread evenly between them."""
    if queries <= SLICED:
        return list(range(queries))
    return [round(number * (queries - 1) / (SLICED - 1)) for number in range(SLICED)]
