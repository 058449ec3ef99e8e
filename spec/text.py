"""The contracts of a tokenizer and of a sampler: text to ids, logits to the next id."""

import json
from collections.abc import Callable, Collection, Sequence
from dataclasses import dataclass, field
from enum import StrEnum
from typing import Protocol

import torch
from jaxtyping import Float

from attnspec.spec.contract import available

END_OF_TEXT = "<|endoftext|>"
"""The one special token of GPT-2, written between the documents of its training text."""


UNKNOWN = "[UNK]"
"""The token of what a vocabulary lacks that is not one of bytes."""


class Scheme(StrEnum):
    """The way in which a vocabulary divides text into tokens."""

    BYTE_PAIR = "byte_pair"
    """Byte-level byte-pair encoding, as GPT-2 uses it (TOK-1 to TOK-10)."""
    CHARACTERS = "characters"
    """One token for each character (TOK-11)."""
    WORDS = "words"
    """One token for each word and each punctuation mark (TOK-12)."""
    WORD_PIECES = "word_pieces"
    """The longest known parts of each word, as BERT uses them (TOK-13)."""
    UNIGRAM = "unigram"
    """The most probable tokens of a text, as SentencePiece finds them (TOK-15)."""


@dataclass(frozen=True, kw_only=True)
class Vocabulary:
    """A vocabulary: by default a byte-level byte-pair one, as the two files that GPT-2 ships.

    In such a vocabulary each byte is written as one printable character (TOK-3). The vocabularies
    of the other schemes have no merges, and their special token is `UNKNOWN`.

    Attributes:
        name: `gpt2` for the released vocabulary, anything else for another.
        vocab_json: the content of `vocab.json` (or `encoder.json`): token to id.
        merges_txt: the content of `merges.txt` (or `vocab.bpe`): a version line, then one pair per
            line, in order of priority.
        special_tokens: the tokens that represent no text; keys of `vocab_json`.
        scheme: the way in which it divides text.
        scores: of a unigram vocabulary, the natural logarithm of each token's probability, by id;
            that of the unknown token is not used.
    """

    name: str
    vocab_json: str = field(repr=False)
    merges_txt: str = field(default="", repr=False)
    special_tokens: tuple[str, ...] = (END_OF_TEXT,)
    scheme: Scheme = Scheme.BYTE_PAIR
    scores: tuple[float, ...] = ()

    @property
    def ids(self) -> dict[str, int]:
        """Token to id, special tokens included."""
        ids: dict[str, int] = json.loads(self.vocab_json)
        return ids

    @property
    def merges(self) -> list[tuple[str, str]]:
        """The pairs that are merged, in order of priority."""
        lines = self.merges_txt.split("\n")
        pairs = (line.split(" ") for line in lines if line and not line.startswith("#version"))
        return [(left, right) for left, right in pairs]


class Tokenizer(Protocol):
    """A tokenizer, from text to ids and back."""

    @property
    def vocab_size(self) -> int:
        """The number of ids: every id lies in ``0 .. vocab_size - 1``."""

    def encode(self, text: str, *, allowed_special: Collection[str] = frozenset()) -> Sequence[int]:
        """Return the ids of a text; a special token is read as one only if it is allowed.

        Raises:
            ValueError: if the text is not made of Unicode scalar values (lone surrogates).
        """

    def decode(self, ids: Sequence[int]) -> str:
        """Return the text of ids; bytes that are no UTF-8 become U+FFFD.

        Raises:
            ValueError: if an id is outside the vocabulary.
        """


def any_vocabulary(vocabulary: Vocabulary) -> None:
    """Accept every vocabulary: the default of `TokenizerImplementation.supports`."""


@dataclass(frozen=True, kw_only=True)
class TokenizerImplementation:
    """A tokenizer and its claims, as data.

    Attributes:
        name: unique, lower case, words joined by underscores.
        load: makes a tokenizer of a vocabulary.
        schemes: the kinds of vocabularies that it takes.
        supports: returns the reason why it refuses a vocabulary of these kinds, or None.
        unavailable: returns the reason why it cannot run on this machine, or None.
    """

    name: str
    load: Callable[[Vocabulary], Tokenizer]
    schemes: frozenset[Scheme] = frozenset({Scheme.BYTE_PAIR})
    supports: Callable[[Vocabulary], str | None] = any_vocabulary
    unavailable: Callable[[], str | None] = available


@dataclass(frozen=True, kw_only=True)
class Sampling:
    """The settings with which the next token is chosen from its logits.

    Attributes:
        temperature: divides the logits; positive.
        top_k: the number of largest logits that are kept, at least 1, or None for all.
        top_p: the probability that the kept tokens must reach, in (0, 1], or None for all.
        min_p: the share of the largest probability that a kept token must have, in [0, 1], or
            None for all; set only for an implementation that claims it.
    """

    temperature: float = 1.0
    top_k: int | None = None
    top_p: float | None = None
    min_p: float | None = None

    def __str__(self) -> str:
        """Return the settings that are in force."""
        filters = {"top_k": self.top_k, "top_p": self.top_p, "min_p": self.min_p}
        return f"temperature={self.temperature}" + "".join(
            f" {name}={value}" for name, value in filters.items() if value is not None
        )


NextLogits = Callable[[Sequence[int]], Float[torch.Tensor, " vocab"]]
"""Returns the logits of the token that follows a sequence of ids; a sampler's view of a model."""


class Probabilities(Protocol):
    """A function from logits to the distribution of the next token."""

    def __call__(
        self, logits: Float[torch.Tensor, " vocab"], sampling: Sampling
    ) -> Float[torch.Tensor, " vocab"]:
        """Apply temperature, then top-k, then top-p, then min-p, and normalize.

        Raises:
            ValueError: if a setting is outside its domain; names it.
        """


class Generate(Protocol):
    """A function that generates tokens one by one, each from the logits given all before it."""

    def __call__(
        self,
        next_logits: NextLogits,
        prompt: Sequence[int],
        *,
        max_new_tokens: int,
        stop_tokens: Collection[int] = frozenset(),
        sampling: Sampling | None = None,
        seed: int = 0,
    ) -> Sequence[int]:
        """Return the new tokens, without the prompt.

        Args:
            next_logits: called with the prompt and all new tokens so far.
            prompt: at least one id.
            max_new_tokens: a count, at least 1.
            stop_tokens: ids before which generation ends; none of them is returned.
            sampling: the settings of the draws, or None for the most probable token each time.
            seed: the seed of the random draws; equal seeds give equal tokens.
        """


class EarlyStopping(StrEnum):
    """The rule by which a beam search ends before its maximum length.

    Each needs as many finished hypotheses as there are beams.
    """

    NEVER = "never"
    """End if no open hypothesis, however it goes on, can have a better score than the worst of
    the finished ones: nothing is lost."""
    HEURISTIC = "heuristic"
    """End if the best open hypothesis, with its present length, has no better score."""
    FULL = "full"
    """End at once."""


@dataclass(frozen=True, kw_only=True)
class Beams:
    """The settings of a beam search.

    Attributes:
        beams: the number of hypotheses that are continued at each step, at least 1.
        length_penalty: the power of the length that divides a sum of log-probabilities; 0 turns
            it off, a larger one favours longer texts.
        early_stopping: the rule by which the search ends early.
    """

    beams: int
    length_penalty: float = 1.0
    early_stopping: EarlyStopping = EarlyStopping.HEURISTIC

    def __str__(self) -> str:
        """Return the settings."""
        penalty = f"length_penalty={self.length_penalty}"
        return f"beams={self.beams} {penalty} early_stopping={self.early_stopping}"


@dataclass(frozen=True)
class Hypothesis:
    """A continuation that a beam search found.

    Attributes:
        tokens: the new tokens, with the stop token by which it ended, if it ended by one.
        score: the sum of the tokens' log-probabilities, natural, divided by the power
            `length_penalty` of their number.
    """

    tokens: tuple[int, ...]
    score: float


class BeamSearch(Protocol):
    """A function that searches for the most probable continuation with several hypotheses."""

    def __call__(
        self,
        next_logits: NextLogits,
        prompt: Sequence[int],
        *,
        max_new_tokens: int,
        beams: Beams,
        stop_tokens: Collection[int] = frozenset(),
    ) -> Sequence[Hypothesis]:
        """Return the best hypotheses, as many as there are beams, the best one first.

        Args:
            next_logits: called with the prompt and the new tokens of a hypothesis.
            prompt: at least one id.
            max_new_tokens: a count, at least 1.
            beams: the settings.
            stop_tokens: ids that end a hypothesis.

        Raises:
            ValueError: if a setting is outside its domain; names it.
        """


def any_sampling(sampling: Sampling) -> None:
    """Accept all settings: the default of `SamplerImplementation.supports`."""


def any_beams(beams: Beams) -> None:
    """Accept all settings: the default of `SamplerImplementation.supports_beams`."""


class SamplerFeature(StrEnum):
    """A capability beyond temperature, top-k and top-p that a sampler can claim."""

    MIN_P = "min_p"
    """`Sampling.min_p`."""
    BEAM_SEARCH = "beam_search"
    """`SamplerImplementation.beam_search`."""


@dataclass(frozen=True, kw_only=True)
class SamplerImplementation:
    """A sampler and its claims, as data.

    Attributes:
        name: unique, lower case, words joined by underscores.
        probabilities: returns the distribution of the next token.
        generate: generates one token after another.
        features: what it claims beside temperature, top-k, top-p and greedy generation.
        beam_search: searches with several hypotheses; None unless the feature is claimed.
        dtypes: the types of logits that it accepts; it computes in no narrower one.
        beam_dtype: the type in which its beam search computes and adds log-probabilities.
        supports: returns the reason why it refuses settings, or None.
        supports_beams: returns the reason why it refuses settings of a beam search, or None.
        unavailable: returns the reason why it cannot run on this machine, or None.
    """

    name: str
    probabilities: Probabilities
    generate: Generate
    features: frozenset[SamplerFeature] = frozenset()
    beam_search: BeamSearch | None = None
    dtypes: tuple[torch.dtype, ...] = (torch.float64, torch.float32)
    beam_dtype: torch.dtype = torch.float64
    supports: Callable[[Sampling], str | None] = any_sampling
    supports_beams: Callable[[Beams], str | None] = any_beams
    unavailable: Callable[[], str | None] = available

    def __post_init__(self) -> None:
        """Refuse a claim of beam search without the function, and the function without a claim.

        Raises:
            ValueError: naming the implementation.
        """
        if (SamplerFeature.BEAM_SEARCH in self.features) != (self.beam_search is not None):
            raise ValueError(f"{self.name}: the feature beam_search needs a beam_search function")
