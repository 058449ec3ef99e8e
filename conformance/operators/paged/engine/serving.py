"""A run of a serving engine as data: the size of its pages, and its steps."""

from dataclasses import dataclass, fields

import torch

from attnspec.conformance.operators.paged.case import PagedCase
from attnspec.spec.packed import CAUSAL


@dataclass(frozen=True)
class Add:
    """A step that adds a sequence and prefills it; none of an evicted one, which comes back."""

    tokens: int

    def __str__(self) -> str:
        if not self.tokens:
            return "bring the evicted sequence back"
        return f"add a sequence of {self.tokens} tokens"


@dataclass(frozen=True)
class Decode:
    """A step that appends a token to some sequences, in one call."""

    sequences: tuple[int, ...]

    def __str__(self) -> str:
        return f"decode a token of {_named(self.sequences)}"


@dataclass(frozen=True)
class Extend:
    """A step that prefills a further chunk of a sequence."""

    sequence: int
    tokens: int

    def __str__(self) -> str:
        return f"prefill {self.tokens} more tokens of sequence {self.sequence}"


@dataclass(frozen=True)
class Fork:
    """A step that continues a sequence as another one, which shares its pages until it writes."""

    sequence: int

    def __str__(self) -> str:
        return f"fork sequence {self.sequence}"


@dataclass(frozen=True)
class RollBack:
    """A step that drops the last tokens of a sequence."""

    sequence: int
    tokens: int

    def __str__(self) -> str:
        return f"roll sequence {self.sequence} back by {self.tokens}"


@dataclass(frozen=True)
class Free:
    """A step that ends a sequence and frees its pages."""

    sequence: int

    def __str__(self) -> str:
        return f"free sequence {self.sequence}"


@dataclass(frozen=True)
class Evict:
    """A step that moves a sequence out of the pool, to be brought back."""

    sequence: int

    def __str__(self) -> str:
        return f"evict sequence {self.sequence}"


Step = Add | Decode | Extend | Fork | RollBack | Free | Evict


def _named(sequences: tuple[int, ...]) -> str:
    word = "sequence" if len(sequences) == 1 else "sequences"
    return f"{word} {', '.join(map(str, sequences))}"


@dataclass(frozen=True)
class State:
    """The sequences after a step.

    Attributes:
        lengths: the number of tokens of each sequence in the pool.
        evicted: those of sequences outside the pool.
    """

    lengths: tuple[int, ...] = ()
    evicted: tuple[int, ...] = ()


@dataclass(frozen=True, kw_only=True)
class Serving(PagedCase):
    """A run of an engine; `queries` and `keys` of the case are ignored.

    Attributes:
        steps: in order. Sequences are numbered by their place; one that is freed or evicted leaves
            the others in their order.
    """

    queries: tuple[int, ...] = (1,)
    keys: tuple[int, ...] = (1,)
    window: tuple[int, int] = CAUSAL
    dtype: torch.dtype = torch.float64
    steps: tuple[Step, ...] = ()

    def __post_init__(self) -> None:
        super().__post_init__()
        states(self)

    def __str__(self) -> str:
        """Describe a run as a short script: the pages, then each step."""
        names = {each.name for each in fields(PagedCase)} - {"queries", "keys", "window"}
        case = PagedCase(**{name: getattr(self, name) for name in names})
        skipped = ("queries=", "keys=")
        words = [word for word in str(case).split(" ") if not word.startswith(skipped)]
        words.append(f"pages of {self.page_size}")
        return f"{' '.join(words)}; " + ", then ".join(map(str, self.steps))


def states(serving: Serving) -> list[State]:
    """Return the state before the first step and after each.

    Raises:
        ValueError: if a step cannot be taken; names the step.
    """
    history = [State()]
    for step in serving.steps:
        history.append(after(history[-1], step))
    return history


def after(now: State, step: Step) -> State:
    """Return the state after a step.

    Raises:
        ValueError: if the step cannot be taken; names it.
    """
    lengths, evicted = list(now.lengths), list(now.evicted)
    count = len(lengths)
    match step:
        case Add(tokens) if tokens > 0:
            lengths.append(tokens)
        case Add(0) if evicted:
            lengths.append(evicted.pop(0))
        case Decode(sequences) if sequences and len(set(sequences)) == len(sequences):
            if not all(0 <= each < count for each in sequences):
                raise ValueError(f"cannot {step} with {count} sequences")
            for each in sequences:
                lengths[each] += 1
        case Extend(sequence, tokens) if 0 <= sequence < count and tokens > 0:
            lengths[sequence] += tokens
        case Fork(sequence) if 0 <= sequence < count:
            lengths.append(lengths[sequence])
        case RollBack(sequence, tokens) if 0 <= sequence < count and 0 < tokens < lengths[sequence]:
            lengths[sequence] -= tokens
        case Free(sequence) if 0 <= sequence < count:
            lengths.pop(sequence)
        case Evict(sequence) if 0 <= sequence < count:
            evicted.append(lengths.pop(sequence))
        case _:
            raise ValueError(f"cannot {step} with sequences of {now.lengths} tokens")
    return State(tuple(lengths), tuple(evicted))
