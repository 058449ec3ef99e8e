"""Cases for samplers: logits with settings, and sources of logits that follow a script."""

import zlib
from collections.abc import Callable, Sequence
from dataclasses import dataclass

import torch
from hypothesis import strategies as st
from jaxtyping import Float

from attnspec.spec import SamplerImplementation, Sampling

STEP = 8
"""Logits are multiples of 1/STEP: exact in every dtype, and either equal or far apart."""

PLAIN = Sampling()
"""Temperature 1 and no filter."""


@dataclass(frozen=True, kw_only=True)
class LogitsCase:
    """Logits from which a distribution is made.

    Attributes:
        logits: multiples of 1/8, or minus infinity for a token that is ruled out.
        sampling: the settings.
        dtype: the dtype of the logits.
    """

    logits: tuple[float, ...]
    sampling: Sampling = PLAIN
    dtype: torch.dtype = torch.float64

    @property
    def tensor(self) -> Float[torch.Tensor, " vocab"]:
        """The logits as a sampler receives them."""
        return torch.tensor(self.logits, dtype=self.dtype)

    def __str__(self) -> str:
        """Return the logits in full, the settings and the dtype."""
        name = str(self.dtype).removeprefix("torch.")
        return f"logits={list(self.logits)} {self.sampling} dtype={name}"


@dataclass(frozen=True, kw_only=True)
class ScriptCase:
    """A run of generation on logits that depend on every id so far.

    Attributes:
        vocab: the number of ids.
        prompt: ids below `vocab`.
        max_new_tokens: a count.
        stop_tokens: ids below `vocab`.
        levels: the number of different logits; few levels make ties.
        step: logits are multiples of its reciprocal.
        sampling: the settings, or None for the most probable token.
        seed: the seed of the script and of the draws.
    """

    vocab: int = 5
    prompt: tuple[int, ...] = (0,)
    max_new_tokens: int = 4
    stop_tokens: tuple[int, ...] = ()
    levels: int = 200
    step: int = STEP
    sampling: Sampling | None = None
    seed: int = 0

    def next_logits(self, ids: Sequence[int]) -> Float[torch.Tensor, " vocab"]:
        """Return pseudorandom logits that change with any earlier id."""
        numbers = (
            zlib.crc32(f"{self.seed}/{list(ids)}/{word}".encode()) % self.levels
            for word in range(self.vocab)
        )
        return torch.tensor([number / self.step for number in numbers], dtype=torch.float64)

    def greedy(self) -> list[int]:
        """Return the tokens of greedy generation; of equal logits, the lowest id is chosen."""
        new: list[int] = []
        while len(new) < self.max_new_tokens:
            logits = self.next_logits([*self.prompt, *new]).tolist()
            token = logits.index(max(logits))
            if token in self.stop_tokens:
                break
            new.append(token)
        return new

    def __str__(self) -> str:
        """Return the script's numbers and settings."""
        settings = "greedy" if self.sampling is None else str(self.sampling)
        return (
            f"vocab={self.vocab} prompt={list(self.prompt)} max_new_tokens={self.max_new_tokens} "
            f"stop_tokens={list(self.stop_tokens)} levels={self.levels} {settings} seed={self.seed}"
        )


def dtypes(subject: SamplerImplementation) -> st.SearchStrategy[torch.dtype]:
    """Return a strategy of the dtypes of logits that a sampler accepts."""
    return st.sampled_from(subject.dtypes)


TEMPERATURES = (0.25, 0.5, 0.7, 1.0, 1.3, 2.0, 10.0)


def logits_cases(
    *,
    temperature: bool = False,
    top_k: bool = False,
    top_p: bool = False,
    min_p: bool = False,
    distinct: bool = False,
) -> Callable[[SamplerImplementation], st.SearchStrategy[LogitsCase]]:
    """Return the `explore` of a law that draws some of the settings, the others at defaults."""
    number = st.integers(-8 * STEP, 8 * STEP).map(lambda n: n / STEP)
    ruled_out = st.just(-torch.inf)
    logit = number if distinct else st.one_of(number, st.sampled_from([0.0, 0.5]), ruled_out)
    logits = st.lists(logit, min_size=1, max_size=20, unique=distinct).filter(
        lambda values: max(values) > -torch.inf
    )
    settings = st.builds(
        Sampling,
        temperature=st.sampled_from(TEMPERATURES) if temperature else st.just(1.0),
        top_k=st.integers(1, 24) if top_k else st.none(),
        top_p=st.one_of(st.integers(1, 64).map(lambda n: n / 64), st.floats(0.01, 1.0))
        if top_p
        else st.none(),
        min_p=st.one_of(st.sampled_from([0.0, 1.0]), st.floats(0.0, 1.0)) if min_p else st.none(),
    )

    def cases(subject: SamplerImplementation) -> st.SearchStrategy[LogitsCase]:
        return st.builds(
            LogitsCase, logits=logits.map(tuple), sampling=settings, dtype=dtypes(subject)
        ).filter(lambda case: subject.supports(case.sampling) is None)

    return cases


@st.composite
def _script(draw: st.DrawFn, *, levels: Sequence[int], stops: bool, drawing: bool) -> ScriptCase:
    vocab = draw(st.integers(1, 9))
    ids = st.integers(0, vocab - 1)
    return ScriptCase(
        vocab=vocab,
        prompt=tuple(draw(st.lists(ids, min_size=1, max_size=5))),
        max_new_tokens=draw(st.integers(1, 8)),
        stop_tokens=tuple(sorted(draw(st.sets(ids, max_size=3)))) if stops else (),
        levels=draw(st.sampled_from(levels)),
        sampling=Sampling(temperature=draw(st.sampled_from(TEMPERATURES))) if drawing else None,
        seed=draw(st.integers(0, 2**16)),
    )


def scripts(
    *, levels: Sequence[int] = (200,), stops: bool = False, drawing: bool = False
) -> Callable[[object], st.SearchStrategy[ScriptCase]]:
    """Return the `explore` of a law that follows a script."""
    return lambda subject: _script(levels=levels, stops=stops, drawing=drawing)
