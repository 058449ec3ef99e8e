"""Unseen letters: what strangers write is shown, not obeyed."""

import re

_UNSEEN = re.compile(
    # controls save tab and line feed, marks that turn the direction of text, lone surrogates
    "[\x00-\x08\x0b-\x1f\x7f-\x9f\u061c\u200e\u200f\u2028-\u202e\u2066-\u2069\ufeff\ud800-\udfff]"
)


def clean(text: object) -> str:
    r"""Spell out what a terminal or a browser would obey and nobody would see, such as `\x1b`."""

    def spelled(found: re.Match[str]) -> str:
        number = ord(found[0])
        return f"\\x{number:02x}" if number < 0x100 else f"\\u{number:04x}"

    return _UNSEEN.sub(spelled, str(text))
