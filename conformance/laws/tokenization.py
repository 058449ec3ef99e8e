"""Laws of the chapter on tokenization: text to ids and back, nothing lost, nothing unknown."""

from collections.abc import Sequence

from hypothesis import strategies as st

from attnspec.conformance.byte_pair import byte_characters
from attnspec.conformance.law import Judged, law
from attnspec.conformance.tally import NotClaimed
from attnspec.conformance.text_case import (
    PINNED,
    PINNED_TEXTS,
    IdsCase,
    TextCase,
    definition,
    exploring,
    exploring_ids,
    tokenizer,
)
from attnspec.conformance.violation import Violation
from attnspec.spec import END_OF_TEXT, TokenizerImplementation

GPT2_SIZE = 50_257

_COST = 0.25  # a short text takes less time than a plain call of attention

_ONLY_GPT2 = (TextCase(vocabulary="gpt2"),)


def _demand_ids(got: Sequence[int], expected: Sequence[int], message: str) -> None:
    """Compare ids.

    Raises:
        Violation: naming the first place where they differ.
    """
    got, expected = list(got), list(expected)
    if got == expected:
        return
    place = next(
        (n for n, (a, b) in enumerate(zip(got, expected, strict=False)) if a != b),
        min(len(got), len(expected)),
    )
    raise Violation(f"{message}: expected {expected}, got {got}; they differ from place {place} on")


def _demand_text(got: str, expected: str, message: str) -> None:
    if got != expected:
        raise Violation(f"{message}: expected {expected!a}, got {got!a}")


@law("TOK-1", judges=Judged.TOKENIZER, pinned=PINNED, explore=exploring(), cost=_COST)
def law_decoding_undoes_encoding(subject: TokenizerImplementation, case: TextCase) -> None:
    """TOK-1: decoding what was encoded gives the text back, character for character."""
    judged = tokenizer(subject, case.vocabulary)
    _demand_text(judged.decode(judged.encode(case.text)), case.text, "decode(encode(text))")


@law("TOK-2", judges=Judged.TOKENIZER, pinned=_ONLY_GPT2)
def law_gpt2_has_50257_ids(subject: TokenizerImplementation, case: TextCase) -> None:
    """TOK-2: the released vocabulary has 50 257 ids, and each stands for the token in its files."""
    judged = tokenizer(subject, case.vocabulary)
    if judged.vocab_size != GPT2_SIZE:
        raise Violation(f"vocab_size must be {GPT2_SIZE}, got {judged.vocab_size}")
    expected = definition(case.vocabulary)
    for identifier in range(GPT2_SIZE):
        told = f"decode([{identifier}])"
        _demand_text(judged.decode([identifier]), expected.decode([identifier]), told)


@law("TOK-2", judges=Judged.TOKENIZER, pinned=PINNED, explore=exploring(), cost=_COST)
def law_ids_lie_in_the_vocabulary(subject: TokenizerImplementation, case: TextCase) -> None:
    """TOK-2: every id that encoding gives is an integer from 0 to vocab_size − 1."""
    judged = tokenizer(subject, case.vocabulary)
    size = len(definition(case.vocabulary).ids)
    if judged.vocab_size != size:
        raise Violation(f"vocab_size must be {size}, got {judged.vocab_size}")
    for identifier in judged.encode(case.text):
        if not isinstance(identifier, int) or not 0 <= identifier < size:
            raise Violation(f"encode gave {identifier!r}, which is no id in 0..{size - 1}")


@law(
    "TOK-3",
    judges=Judged.TOKENIZER,
    pinned=[TextCase(vocabulary="bytes", text=text) for text in PINNED_TEXTS],
    explore=lambda subject: st.builds(
        TextCase,
        vocabulary=st.just("bytes"),
        text=st.text(st.characters(exclude_categories=["Cs"]), max_size=20),
    ),
)
def law_without_merges_each_byte_is_one_id(
    subject: TokenizerImplementation, case: TextCase
) -> None:
    """TOK-3: a vocabulary without merges spells any text byte by byte, and nothing is unknown."""
    ids, table = definition(case.vocabulary).ids, byte_characters()
    expected = [ids[table[byte]] for byte in case.text.encode()]
    judged = tokenizer(subject, case.vocabulary)
    _demand_ids(judged.encode(case.text), expected, "encode(text), one id per byte")


@law("TOK-3", judges=Judged.TOKENIZER, pinned=PINNED, explore=exploring(), cost=_COST)
def law_text_can_be_spelled_in_bytes(subject: TokenizerImplementation, case: TextCase) -> None:
    """TOK-3: the ids of a text's single bytes decode to that text, whatever merges there are."""
    ids, table = definition(case.vocabulary).ids, byte_characters()
    spelled = [ids[table[byte]] for byte in case.text.encode()]
    judged = tokenizer(subject, case.vocabulary)
    _demand_text(judged.decode(spelled), case.text, "decode(ids of single bytes)")


@law(
    "TOK-4",
    judges=Judged.TOKENIZER,
    pinned=[
        *(TextCase(vocabulary=each.vocabulary, text=END_OF_TEXT + each.text) for each in PINNED),
        *(TextCase(text=text) for text in (f"a{END_OF_TEXT}{END_OF_TEXT}", "<|endoftext|")),
    ],
    explore=exploring(known=True),
    cost=_COST,
)
def law_special_tokens_are_read_only_where_allowed(
    subject: TokenizerImplementation, case: TextCase
) -> None:
    """TOK-4: text that spells a special token is ordinary text, unless the caller allows it."""
    judged, expected = tokenizer(subject, case.vocabulary), definition(case.vocabulary)
    text = f"{case.text} {END_OF_TEXT}{case.text}"
    special = expected.ids[END_OF_TEXT]
    plain = judged.encode(text)
    if special in plain:
        raise Violation(f"id {special} in encode({text!a}) without allowed_special: {list(plain)}")
    _demand_text(judged.decode(plain), text, "decode(encode(text that spells a special token))")
    allowed = judged.encode(text, allowed_special={END_OF_TEXT})
    _demand_ids(
        allowed,
        expected.encode(text, allowed_special={END_OF_TEXT}),
        "encode(text, allowed_special={'<|endoftext|>'})",
    )
    _demand_text(judged.decode(allowed), text, "decode of ids with a special token")


_SURROGATES = ("\ud800", "\udfff", "a\udc80b", "\ud83d\ude00", "\U0001f600\ud83d", "ab cd\udbff")


@law(
    "TOK-5",
    judges=Judged.TOKENIZER,
    pinned=[
        TextCase(vocabulary=name, text=text) for name in ("trained", "gpt2") for text in _SURROGATES
    ],
    explore=lambda subject: st.builds(
        TextCase,
        text=st.builds(
            "{}{}{}".format,
            st.text(st.characters(), max_size=5),
            st.characters(categories=["Cs"]),
            st.text(st.characters(), max_size=5),
        ),
    ),
)
def law_a_lone_surrogate_is_refused(subject: TokenizerImplementation, case: TextCase) -> None:
    """TOK-5: text with a surrogate code point is refused by a ValueError that says so."""
    judged = tokenizer(subject, case.vocabulary)
    try:
        ids = judged.encode(case.text)
    except ValueError as error:
        if "surrogate" not in str(error):
            raise Violation(f"the error does not speak of a surrogate: {error}") from error
        return
    except Exception as error:
        told = f"{type(error).__name__}: {error}"
        raise Violation(f"a surrogate must raise ValueError, got {told}") from error
    raise Violation(f"encode({case.text!a}) must be refused, got {list(ids)}")


@law("TOK-6", judges=Judged.TOKENIZER, pinned=PINNED, explore=exploring(known=True), cost=_COST)
def law_pieces_are_encoded_apart(subject: TokenizerImplementation, case: TextCase) -> None:
    """TOK-6: a text's ids are those of its pieces, one after another."""
    judged = tokenizer(subject, case.vocabulary)
    pieces = list(definition(case.vocabulary).pieces(case.text))
    expected = [identifier for piece in pieces for identifier in judged.encode(piece)]
    _demand_ids(judged.encode(case.text), expected, f"encode(text), its pieces being {pieces!a}")


@law("TOK-7", judges=Judged.TOKENIZER, pinned=PINNED, explore=exploring(known=True), cost=_COST)
def law_tokens_are_those_of_the_definition(
    subject: TokenizerImplementation, case: TextCase
) -> None:
    """TOK-7: encoding gives exactly the ids of the definition: pieces, bytes, merges by rank."""
    judged = tokenizer(subject, case.vocabulary)
    expected = definition(case.vocabulary).encode(case.text)
    _demand_ids(judged.encode(case.text), expected, "encode(text)")


_BROKEN = ((128,), (0, 188), (220, 127, 0), (170, 220, 220), (185, 222, 220, 0, 172, 256, 258))
_WHOLE = ((127, 102), (0, 127, 102, 220))
"""The letter é in two bytes, alone and among others."""


@law(
    "TOK-8",
    judges=Judged.TOKENIZER,
    pinned=[
        IdsCase(vocabulary=name, places=places)
        for places in (*_BROKEN, *_WHOLE)
        for name in ("bytes", "gpt2")
    ],
    explore=exploring_ids,
    cost=_COST,
)
def law_bytes_are_joined_before_they_are_read(
    subject: TokenizerImplementation, case: IdsCase
) -> None:
    """TOK-8: ids decode to their bytes, joined, then read, each broken sequence as one U+FFFD."""
    judged = tokenizer(subject, case.vocabulary)
    _demand_text(
        judged.decode(case.ids), definition(case.vocabulary).decode(case.ids), "decode(ids)"
    )


@law(
    "TOK-9",
    judges=Judged.TOKENIZER,
    pinned=[
        IdsCase(vocabulary=name, places=places)
        for name in ("trained", "gpt2")
        for places in ((), (0,), (1, 2))
    ],
    explore=exploring_ids,
    cost=_COST,
)
def law_an_id_outside_the_vocabulary_is_refused(
    subject: TokenizerImplementation, case: IdsCase
) -> None:
    """TOK-9: decoding an id below 0 or from vocab_size on is refused by a ValueError."""
    judged = tokenizer(subject, case.vocabulary)
    size = len(definition(case.vocabulary).ids)
    for outside in (-1, size, size + 1000):
        ids = [*case.ids, outside]
        try:
            text = judged.decode(ids)
        except ValueError:
            continue
        except Exception as error:
            told = f"{type(error).__name__}: {error}"
            raise Violation(f"id {outside} must raise ValueError, got {told}") from error
        raise Violation(f"decode({ids}) must be refused: {outside} is no id; got {text!a}")


@law("TOK-10", judges=Judged.TOKENIZER, pinned=PINNED, explore=exploring(known=True), cost=_COST)
def law_tiktoken_and_hugging_face_agree(subject: TokenizerImplementation, case: TextCase) -> None:
    """TOK-10: encoding gives the ids of Hugging Face's tokenizer, itself those of tiktoken."""
    judged = tokenizer(subject, case.vocabulary)
    other = _independent(subject)
    expected = tokenizer(other, case.vocabulary)
    _demand_ids(
        judged.encode(case.text), expected.encode(case.text), f"encode(text) of {other.name}"
    )
    text = f"{case.text}{END_OF_TEXT}{case.text}"
    _demand_ids(
        judged.encode(text, allowed_special={END_OF_TEXT}),
        expected.encode(text, allowed_special={END_OF_TEXT}),
        f"encode(text, allowed_special={{'<|endoftext|>'}}) of {other.name}",
    )


def _independent(subject: TokenizerImplementation) -> TokenizerImplementation:
    """The library that is compared with: never the one that the subject is.

    Raises:
        NotClaimed: where it is not installed.
    """
    from attnspec.implementations import load_tokenizer

    own = subject.name == "huggingface_tokenizer"
    other: TokenizerImplementation = load_tokenizer(
        "tiktoken_gpt2" if own else "huggingface_tokenizer"
    )
    reason = other.unavailable()
    if reason is not None:
        raise NotClaimed(f"{other.name} is not available: {reason}")
    return other
