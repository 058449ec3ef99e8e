"""A decoding session as data: the decoder's cache, and its steps."""

from dataclasses import dataclass, fields
from enum import StrEnum

from attnspec.spec import Case


@dataclass(frozen=True)
class Append:
    """A step that appends tokens to the cache and computes their queries."""

    tokens: int

    def __str__(self) -> str:
        return f"append {self.tokens}"


@dataclass(frozen=True)
class Again:
    """A step that computes the last queries again, perhaps in other chunks than before."""

    queries: int

    def __str__(self) -> str:
        return f"ask again for the last {self.queries}"


@dataclass(frozen=True)
class RollBack:
    """A step that drops the last tokens."""

    tokens: int

    def __str__(self) -> str:
        return f"roll back {self.tokens}"


@dataclass(frozen=True)
class Reorder:
    """A step that continues each place of the batch from a named element, perhaps repeated."""

    order: tuple[int, ...]

    def __str__(self) -> str:
        return f"reorder the batch to {', '.join(map(str, self.order))}"


@dataclass(frozen=True)
class Restart:
    """A step that drops all tokens and starts another sequence in the same memory."""

    def __str__(self) -> str:
        return "restart"


Step = Append | Again | RollBack | Reorder | Restart


class Memory(StrEnum):
    """The kind of memory that holds the cache."""

    FRESH = "fresh tensors"
    """Every step makes new tensors."""
    BUFFER = "a view of a longer buffer"
    """(batch, heads, capacity, channels); positions that were never written hold NaN."""
    HEADS_INSIDE = "a view of a longer buffer with the heads inside"
    """(batch, capacity, heads, channels); likewise."""
    MASKED = "a whole buffer under a mask"
    """Unused positions hold NaN if the profile blocks it, else large numbers."""


class Spelling(StrEnum):
    """The argument that expresses which keys a query may read."""

    FLAG = "flag"
    """The causal flag if its meaning is right, else a bool mask."""
    BOOL = "bool mask"
    FLOAT = "float mask"
    SLICES = "one query at a time, over the keys that it may read"


@dataclass(frozen=True, kw_only=True)
class Session(Case):
    """A causal decoder with a cache; `queries` and `keys` of the case are ignored.

    Attributes:
        memory: the kind of memory that holds the cache.
        spelling: the argument that expresses which keys a query may read.
        steps: the steps, in order.
    """

    memory: Memory = Memory.FRESH
    spelling: Spelling = Spelling.FLAG
    steps: tuple[Step, ...] = ()

    def __post_init__(self) -> None:
        super().__post_init__()
        states(self)

    def __str__(self) -> str:
        """Describe a session: the case without lengths, then the kind of cache, then the steps."""
        case = Case(**{item.name: getattr(self, item.name) for item in fields(Case)})
        lengths = ("queries=", "keys=")
        words = [word for word in str(case).split(" ") if not word.startswith(lengths)]
        how = f"{self.memory}; visible by {self.spelling}"
        return f"{' '.join(words)}; cache in {how}; " + ", then ".join(map(str, self.steps))


@dataclass(frozen=True)
class State:
    """The numbers of tokens and batch elements after a step."""

    length: int
    batch: int


def states(session: Session) -> list[State]:
    """Return the state before the first step and after each.

    Raises:
        ValueError: if a step cannot be taken; names the step.
    """
    history = [State(0, session.batch)]
    for step in session.steps:
        now = history[-1]
        match step:
            case Append(tokens) if tokens > 0:
                history.append(State(now.length + tokens, now.batch))
            case Again(queries) if 0 < queries <= now.length:
                history.append(now)
            case RollBack(tokens) if 0 < tokens <= now.length:
                history.append(State(now.length - tokens, now.batch))
            case Reorder(order) if order and all(0 <= element < now.batch for element in order):
                history.append(State(now.length, len(order)))
            case Restart():
                history.append(State(0, session.batch))
            case _:
                raise ValueError(
                    f"cannot {step} with {now.length} tokens and {now.batch} batch elements"
                )
    return history
