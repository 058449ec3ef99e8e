"""Escape control characters in untrusted text."""

import re

_CONTROL = re.compile(
    # control characters but tab and line feed, marks of text direction, lone surrogates
    "[\x00-\x08\x0b-\x1f\x7f-\x9f\u061c\u200e\u200f\u2028-\u202e\u2066-\u2069\ufeff\ud800-\udfff]"
)


def escape_controls(text: object) -> str:
    r"""Escape the invisible characters that a terminal or browser interprets, such as `\x1b`."""

    def escaped(match: re.Match[str]) -> str:
        number = ord(match[0])
        return f"\\x{number:02x}" if number < 0x100 else f"\\u{number:04x}"

    return _CONTROL.sub(escaped, str(text))
