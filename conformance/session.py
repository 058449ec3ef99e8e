"""A session: a decoder at work, as data: what it keeps, and what it does step by step."""

from dataclasses import dataclass, fields
from enum import StrEnum

from attnspec.spec import Case


@dataclass(frozen=True)
class Append:
    """Add tokens to the cache, and ask what their queries read in it."""

    tokens: int

    def __str__(self) -> str:
        return f"append {self.tokens}"


@dataclass(frozen=True)
class Again:
    """Ask once more for the last queries, which may have been asked for in other chunks."""

    queries: int

    def __str__(self) -> str:
        return f"ask again for the last {self.queries}"


@dataclass(frozen=True)
class RollBack:
    """Drop the last tokens."""

    tokens: int

    def __str__(self) -> str:
        return f"roll back {self.tokens}"


@dataclass(frozen=True)
class Reorder:
    """Let each place of the batch go on from the element named, which may be named twice."""

    order: tuple[int, ...]

    def __str__(self) -> str:
        return f"reorder the batch to {', '.join(map(str, self.order))}"


@dataclass(frozen=True)
class Restart:
    """Drop all tokens, and begin with another sequence in the same memory."""

    def __str__(self) -> str:
        return "restart"


Step = Append | Again | RollBack | Reorder | Restart


class Memory(StrEnum):
    """Where the cache lies."""

    FRESH = "fresh tensors"
    """Every step makes new ones."""
    BUFFER = "a view of a longer buffer"
    """(batch, heads, capacity, channels); places that were never written hold NaN."""
    HEADS_INSIDE = "a view of a longer buffer with the heads inside"
    """(batch, capacity, heads, channels); likewise."""
    MASKED = "a whole buffer under a mask"
    """What is not in use holds NaN where the profile blocks it, else large numbers."""


class Spelling(StrEnum):
    """How a query is told which keys it may read."""

    FLAG = "flag"
    """By the causal flag, where it says the right thing; else by a bool mask."""
    BOOL = "bool mask"
    FLOAT = "float mask"
    SLICES = "one query at a time, over the keys that it may read"


@dataclass(frozen=True, kw_only=True)
class Session(Case):
    """A causal decoder with a cache; `queries` and `keys` of the case are of no account.

    Attributes:
        memory: where the cache lies.
        spelling: how a query is told which keys it may read.
        steps: what happens, in order.
    """

    memory: Memory = Memory.FRESH
    spelling: Spelling = Spelling.FLAG
    steps: tuple[Step, ...] = ()

    def __post_init__(self) -> None:
        super().__post_init__()
        states(self)

    def __str__(self) -> str:
        """The case without its lengths, the kind of cache, and the steps in words."""
        case = Case(**{item.name: getattr(self, item.name) for item in fields(Case)})
        lengths = ("queries=", "keys=")
        words = [word for word in str(case).split(" ") if not word.startswith(lengths)]
        how = f"{self.memory}; visible by {self.spelling}"
        return f"{' '.join(words)}; cache in {how}; " + ", then ".join(map(str, self.steps))


@dataclass(frozen=True)
class State:
    """How many tokens and batch elements there are after a step."""

    length: int
    batch: int


def states(session: Session) -> list[State]:
    """The state before the first step and after each.

    Raises:
        ValueError: for a step that cannot be taken, naming it.
    """
    found = [State(0, session.batch)]
    for step in session.steps:
        now = found[-1]
        match step:
            case Append(tokens) if tokens > 0:
                found.append(State(now.length + tokens, now.batch))
            case Again(queries) if 0 < queries <= now.length:
                found.append(now)
            case RollBack(tokens) if 0 < tokens <= now.length:
                found.append(State(now.length - tokens, now.batch))
            case Reorder(order) if order and all(0 <= each < now.batch for each in order):
                found.append(State(now.length, len(order)))
            case Restart():
                found.append(State(0, session.batch))
            case _:
                raise ValueError(
                    f"cannot {step} with {now.length} tokens and {now.batch} batch elements"
                )
    return found
