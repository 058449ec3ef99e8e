"""Play the steps of an engine on a subject, and check every sequence after each step."""

from dataclasses import dataclass, field

import torch

from attnspec.conformance.attention.values import contents
from attnspec.conformance.comparison.violation import Explained, NotClaimed, Violation
from attnspec.conformance.operators.packed.call import PackedCall
from attnspec.conformance.operators.packed.case import GARBAGE, offsets
from attnspec.conformance.operators.packed.subject import Result
from attnspec.conformance.operators.paged.call import PagedCall
from attnspec.conformance.operators.paged.case import PagedCase
from attnspec.conformance.operators.paged.engine.serving import (
    Add,
    Decode,
    Evict,
    Extend,
    Fork,
    Free,
    RollBack,
    Serving,
    Step,
    states,
)
from attnspec.conformance.operators.paged.subject import PagedSubject
from attnspec.spec import MaskedNonfinite

OPERANDS = ("query", "key", "value")


@dataclass
class Sequence:
    """A sequence that is served.

    Attributes:
        tokens: its whole history: query, key and value, (length, heads, d_head) each.
        pages: its pages in the pool, in order.
    """

    tokens: dict[str, torch.Tensor]
    pages: list[int] = field(default_factory=list)

    @property
    def length(self) -> int:
        """The number of its tokens."""
        return len(self.tokens["key"])


class Player:
    """The engine while it is played: one pool, a table of pages, and counts of their owners."""

    def __init__(self, subject: PagedSubject, serving: Serving) -> None:
        self.subject, self.serving, self.size = subject, serving, serving.page_size
        most = max(sum(state.lengths) + len(state.lengths) * self.size for state in states(serving))
        pages = 2 * -(-most // self.size) + 2
        shape = (pages, self.size, serving.kv_heads, serving.d_head)
        # a page may have the rest of one sequence, and be no other's before and after
        profile = subject.implementation.profile
        spreads = MaskedNonfinite.PROPAGATES in (profile.neighbours, profile.unwritten)
        filler = GARBAGE if spreads else torch.nan
        self.pools = {
            name: torch.full(shape, filler, dtype=serving.dtype) for name in ("key", "value")
        }
        self.owners = [0] * pages
        generator = torch.Generator().manual_seed(serving.seed)
        self.free: list[int] = torch.randperm(pages, generator=generator).tolist()
        self.sequences: list[Sequence] = []
        self.evicted: list[Sequence] = []
        self.drawn = 0

    def play(self, message: str) -> None:
        """Take every step; check the sequences that it computes, and then all that live.

        Raises:
            Violation: if a result exceeds its bound; names the step.
            NotClaimed: if the subject refuses the sizes of the run.
        """
        reason = self.subject.refuses(self.serving)
        if reason is not None:
            raise NotClaimed(reason)
        for number, step in enumerate(self.serving.steps, 1):
            where = f"{message}, at step {number} ({step})"
            try:
                self.take(step, where)
                self._check_all(where)
            except Explained as error:
                raise Explained(f"{error} at step {number} ({step})", error.mismatch) from None

    def take(self, step: Step, message: str) -> None:
        """Take one step, and check the sequences that it computes.

        Raises:
            Violation: with the message, if a result exceeds its bound.
        """
        match step:
            case Add(0):
                self._bring_back()
            case Add(tokens):
                self.sequences.append(Sequence(self._draw(0)))
                self._extend([len(self.sequences) - 1], tokens, message)
            case Decode(sequences):
                self._extend(list(sequences), 1, message)
            case Extend(sequence, tokens):
                self._extend([sequence], tokens, message)
            case Fork(sequence):
                parent = self.sequences[sequence]
                self.sequences.append(Sequence(dict(parent.tokens), list(parent.pages)))
                for page in parent.pages:
                    self.owners[page] += 1
            case RollBack(sequence, tokens):
                self._roll_back(self.sequences[sequence], tokens)
            case Free(sequence):
                self._release(self.sequences.pop(sequence).pages)
            case Evict(sequence):
                leaving = self.sequences.pop(sequence)
                self._release(leaving.pages)
                leaving.pages = []
                self.evicted.append(leaving)

    def _draw(self, length: int) -> dict[str, torch.Tensor]:
        """Draw new tokens, different ones each time."""
        self.drawn += length
        case = self.serving.of_sequence(0).but(queries=length, keys=length)
        numbers = contents(case.but(seed=self.serving.seed + 2 * self.drawn))
        return {
            name: each[0].transpose(0, 1).to(self.serving.dtype)
            for name, each in zip(OPERANDS, numbers, strict=True)
        }

    def _bring_back(self) -> None:
        """Write the history of the sequence that was evicted first to new pages."""
        sequence = self.evicted.pop(0)
        self.sequences.append(sequence)
        self._reserve(sequence, 0, sequence.length)
        self._write(sequence, 0)

    def _roll_back(self, sequence: Sequence, tokens: int) -> None:
        left = sequence.length - tokens
        sequence.tokens = {name: each[:left] for name, each in sequence.tokens.items()}
        kept = -(-left // self.size)
        self._release(sequence.pages[kept:])
        sequence.pages = sequence.pages[:kept]

    def _release(self, pages: list[int]) -> None:
        """Give up pages; those that nobody owns are taken again first, as they are."""
        for page in pages:
            self.owners[page] -= 1
            if not self.owners[page]:
                self.free.append(page)

    def _take_page(self) -> int:
        page = self.free.pop()
        self.owners[page] = 1
        return page

    def _reserve(self, sequence: Sequence, start: int, stop: int) -> None:
        """Give a sequence pages of its own for some tokens: it copies a page that it shares."""
        for column in range(start // self.size, -(-stop // self.size)):
            if column == len(sequence.pages):
                sequence.pages.append(self._take_page())
            elif self.owners[sequence.pages[column]] > 1:
                shared = sequence.pages[column]
                sequence.pages[column] = self._take_page()
                for pool in self.pools.values():
                    pool[sequence.pages[column]] = pool[shared]
                self.owners[shared] -= 1

    def _write(self, sequence: Sequence, start: int) -> None:
        """Write the tokens of a sequence from one on to its pages."""
        places = torch.arange(start, sequence.length)
        page = torch.tensor(sequence.pages, dtype=torch.int64)[places // self.size]
        for name, pool in self.pools.items():
            pool[page, places % self.size] = sequence.tokens[name][start:]

    def _extend(self, numbers: list[int], tokens: int, message: str) -> None:
        """Append tokens to some sequences, and compute their queries in one call."""
        chosen, new = [self.sequences[each] for each in numbers], []
        for sequence in chosen:
            drawn, start = self._draw(tokens), sequence.length
            new.append(drawn)
            self._reserve(sequence, start, start + tokens)
            sequence.tokens = {
                name: torch.cat([each, drawn[name]]) for name, each in sequence.tokens.items()
            }
            if "append" not in self.subject.implementation.features:
                self._write(sequence, start)
        self._check(chosen, tokens, new, message)

    def _check_all(self, message: str) -> None:
        """Compute the last query of each sequence again, in one call that appends nothing."""
        if self.sequences:
            self._check(self.sequences, 1, None, f"{message}, the last query of each sequence")

    def _check(
        self,
        chosen: list[Sequence],
        queries: int,
        new: list[dict[str, torch.Tensor]] | None,
        message: str,
    ) -> None:
        """Compute the last queries of some sequences, and compare with their whole histories."""
        appends = new is not None and "append" in self.subject.implementation.features
        columns = max(len(each.pages) for each in chosen) + 1
        index = self.subject.profile.index_type.dtypes[0]
        table = torch.full((len(chosen), columns), -1, dtype=index)
        for row, sequence in zip(table, chosen, strict=True):
            row[: len(sequence.pages)] = torch.tensor(sequence.pages, dtype=index)
        lengths = [each.length for each in chosen]
        used = [length - (queries if appends else 0) for length in lengths]
        added = new if appends and new is not None else []
        case = self.serving
        self._demand(queries, lengths, appends=appends)
        call = PagedCall(
            query=torch.cat([each.tokens["query"][-queries:] for each in chosen]),
            key=self.pools["key"],
            value=self.pools["value"],
            cu_seq_q=offsets((queries,) * len(chosen), index),
            cu_seq_k=offsets(lengths, index),
            max_q=queries,
            max_k=max(lengths),
            window_size=case.window,
            scale=case.scale,
            seqused_k=torch.tensor(used, dtype=index),
            block_table=table,
            new_key=torch.cat([each["key"] for each in added]) if added else None,
            new_value=torch.cat([each["value"] for each in added]) if added else None,
        )
        histories = PackedCall(
            query=call.query,
            key=torch.cat([each.tokens["key"] for each in chosen]),
            value=torch.cat([each.tokens["value"] for each in chosen]),
            cu_seq_q=call.cu_seq_q,
            cu_seq_k=call.cu_seq_k,
            max_q=call.max_q,
            max_k=call.max_k,
            window_size=case.window,
            scale=case.scale,
        )
        result: Result = self.subject.call_in_place(call)
        self.subject.compare_rows(histories, result, message, call.page_size)
        if appends:
            self._check_written(chosen, queries, message)

    def _demand(self, queries: int, lengths: list[int], *, appends: bool) -> None:
        """Check that the subject takes a call of these lengths.

        Raises:
            NotClaimed: with the reason.
        """
        case = self.serving
        made = PagedCase(
            queries=(queries,) * len(lengths),
            keys=tuple(lengths),
            heads=case.heads,
            kv_heads=case.kv_heads,
            d_head=case.d_head,
            dtype=case.dtype,
            window=case.window,
            scale=case.scale,
            page_size=case.page_size,
            append=appends,
        )
        self.subject.demand(made)

    def _check_written(self, chosen: list[Sequence], tokens: int, message: str) -> None:
        """Check that the pages hold the tokens that a call has appended."""
        for number, sequence in enumerate(chosen):
            places = torch.arange(sequence.length - tokens, sequence.length)
            page = torch.tensor(sequence.pages, dtype=torch.int64)[places // self.size]
            for name, pool in self.pools.items():
                got = pool[page, places % self.size]
                if not torch.equal(got, sequence.tokens[name][-tokens:]):
                    raise Violation(f"{message}: the pages do not hold new {name}s of row {number}")
