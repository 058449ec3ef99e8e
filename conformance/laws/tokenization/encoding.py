"""Laws of TOK: text to ids and back, nothing lost, nothing unknown."""

from collections.abc import Sequence

from hypothesis import strategies as st

from attnspec.conformance.comparison.violation import NotAvailable, Violation
from attnspec.conformance.laws.law import law
from attnspec.conformance.text.byte_pair import byte_characters
from attnspec.conformance.text.tokenizer_cases import (
    PINNED,
    PINNED_TEXTS,
    IdsCase,
    TextCase,
    definition,
    explore_ids,
    exploring,
    tokenizer,
)
from attnspec.spec import END_OF_TEXT, TokenizerImplementation

GPT2_SIZE = 50_257

_COST = 0.25  # a short text takes less time than a plain attention call

_ONLY_GPT2 = (TextCase(vocabulary="gpt2"),)


def _check_ids(ids: Sequence[int], expected: Sequence[int], message: str) -> None:
    """Compare ids.

    Raises:
        Violation: if they differ, naming the first position.
    """
    ids, expected = list(ids), list(expected)
    if ids == expected:
        return
    position = next(
        (n for n, (a, b) in enumerate(zip(ids, expected, strict=False)) if a != b),
        min(len(ids), len(expected)),
    )
    raise Violation(
        f"{message}: expected {expected}, got {ids}; they differ from position {position} on"
    )


def _check_text(text: str, expected: str, message: str) -> None:
    if text != expected:
        raise Violation(f"{message}: expected {expected!a}, got {text!a}")


@law("TOK-1", pinned=PINNED, explore=exploring(), cost=_COST)
def law_decoding_undoes_encoding(subject: TokenizerImplementation, case: TextCase) -> None:
    """TOK-1: decoding what was encoded gives the text back, character for character."""
    judged = tokenizer(subject, case.vocabulary)
    _check_text(judged.decode(judged.encode(case.text)), case.text, "decode(encode(text))")


@law("TOK-2", pinned=_ONLY_GPT2)
def law_gpt2_has_50257_ids(subject: TokenizerImplementation, case: TextCase) -> None:
    """TOK-2: the released vocabulary has 50 257 ids, and each decodes to the token in its files."""
    judged = tokenizer(subject, case.vocabulary)
    if judged.vocab_size != GPT2_SIZE:
        raise Violation(f"vocab_size must be {GPT2_SIZE}, got {judged.vocab_size}")
    expected = definition(case.vocabulary)
    for identifier in range(GPT2_SIZE):
        message = f"decode([{identifier}])"
        _check_text(judged.decode([identifier]), expected.decode([identifier]), message)


@law("TOK-2", pinned=PINNED, explore=exploring(), cost=_COST)
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
    _check_ids(judged.encode(case.text), expected, "encode(text), one id per byte")


@law("TOK-3", pinned=PINNED, explore=exploring(), cost=_COST)
def law_single_byte_ids_decode_to_their_text(
    subject: TokenizerImplementation, case: TextCase
) -> None:
    """TOK-3: the ids of a text's single bytes decode to that text, whatever merges there are."""
    ids, table = definition(case.vocabulary).ids, byte_characters()
    spelled = [ids[table[byte]] for byte in case.text.encode()]
    judged = tokenizer(subject, case.vocabulary)
    _check_text(judged.decode(spelled), case.text, "decode(ids of single bytes)")


@law(
    "TOK-4",
    pinned=[
        *(TextCase(vocabulary=case.vocabulary, text=END_OF_TEXT + case.text) for case in PINNED),
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
    _check_text(judged.decode(plain), text, "decode(encode(text that spells a special token))")
    allowed = judged.encode(text, allowed_special={END_OF_TEXT})
    _check_ids(
        allowed,
        expected.encode(text, allowed_special={END_OF_TEXT}),
        "encode(text, allowed_special={'<|endoftext|>'})",
    )
    _check_text(judged.decode(allowed), text, "decode of ids with a special token")


_SURROGATES = ("\ud800", "\udfff", "a\udc80b", "\ud83d\ude00", "\U0001f600\ud83d", "ab cd\udbff")


@law(
    "TOK-5",
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
            raise Violation(f"the error does not mention a surrogate: {error}") from error
        return
    except Exception as error:
        raised = f"{type(error).__name__}: {error}"
        raise Violation(f"a surrogate must raise ValueError, got {raised}") from error
    raise Violation(f"encode({case.text!a}) must be refused, got {list(ids)}")


@law("TOK-6", pinned=PINNED, explore=exploring(known=True), cost=_COST)
def law_pieces_are_encoded_separately(subject: TokenizerImplementation, case: TextCase) -> None:
    """TOK-6: a text's ids are those of its pieces, one after another."""
    judged = tokenizer(subject, case.vocabulary)
    pieces = list(definition(case.vocabulary).pieces(case.text))
    expected = [identifier for piece in pieces for identifier in judged.encode(piece)]
    _check_ids(judged.encode(case.text), expected, f"encode(text), its pieces being {pieces!a}")


@law("TOK-7", pinned=PINNED, explore=exploring(known=True), cost=_COST)
def law_encoding_equals_the_definition(subject: TokenizerImplementation, case: TextCase) -> None:
    """TOK-7: encoding gives exactly the ids of the definition: pieces, bytes, merges by rank."""
    judged = tokenizer(subject, case.vocabulary)
    expected = definition(case.vocabulary).encode(case.text)
    _check_ids(judged.encode(case.text), expected, "encode(text)")


_INCOMPLETE = ((128,), (0, 188), (220, 127, 0), (170, 220, 220), (185, 222, 220, 0, 172, 256, 258))
_WHOLE = ((127, 102), (0, 127, 102, 220))
"""The letter é in two bytes, alone and among others."""


@law(
    "TOK-8",
    pinned=[
        IdsCase(vocabulary=name, places=places)
        for places in (*_INCOMPLETE, *_WHOLE)
        for name in ("bytes", "gpt2")
    ],
    explore=explore_ids,
    cost=_COST,
)
def law_bytes_are_joined_before_decoding(subject: TokenizerImplementation, case: IdsCase) -> None:
    """TOK-8: ids decode to their bytes, joined, then read, each broken sequence as one U+FFFD."""
    judged = tokenizer(subject, case.vocabulary)
    _check_text(
        judged.decode(case.ids), definition(case.vocabulary).decode(case.ids), "decode(ids)"
    )


@law(
    "TOK-9",
    pinned=[
        IdsCase(vocabulary=name, places=places)
        for name in ("trained", "gpt2")
        for places in ((), (0,), (1, 2))
    ],
    explore=explore_ids,
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
            raised = f"{type(error).__name__}: {error}"
            raise Violation(f"id {outside} must raise ValueError, got {raised}") from error
        raise Violation(f"decode({ids}) must be refused: {outside} is no id; got {text!a}")


@law("TOK-10", pinned=PINNED, explore=exploring(known=True), cost=_COST)
def law_tiktoken_and_hugging_face_agree(subject: TokenizerImplementation, case: TextCase) -> None:
    """TOK-10: encoding gives the ids of Hugging Face's tokenizer, itself those of tiktoken."""
    judged = tokenizer(subject, case.vocabulary)
    other = _other_library(subject)
    expected = tokenizer(other, case.vocabulary)
    _check_ids(
        judged.encode(case.text), expected.encode(case.text), f"encode(text) of {other.name}"
    )
    text = f"{case.text}{END_OF_TEXT}{case.text}"
    _check_ids(
        judged.encode(text, allowed_special={END_OF_TEXT}),
        expected.encode(text, allowed_special={END_OF_TEXT}),
        f"encode(text, allowed_special={{'<|endoftext|>'}}) of {other.name}",
    )


def _other_library(subject: TokenizerImplementation) -> TokenizerImplementation:
    """Return the library to compare with, which is never the subject.

    Raises:
        NotAvailable: if it is not installed.
    """
    from attnspec.implementations import load_tokenizer

    is_hugging_face = subject.name == "huggingface_tokenizer"
    other: TokenizerImplementation = load_tokenizer(
        "tiktoken_gpt2" if is_hugging_face else "huggingface_tokenizer"
    )
    if (missing := other.unavailable()) is not None:
        raise NotAvailable(missing)
    return other
