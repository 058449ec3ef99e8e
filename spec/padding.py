"""The positions of tokens in a row with padding, in which models differ."""

from enum import StrEnum


class PaddedPositions(StrEnum):
    """The position of a token of a row in which padding precedes it."""

    SLOTS = "slots"
    """Its index in the row, with padding: BERT and BART in transformers."""
    REAL_TOKENS = "real_tokens"
    """The number of real tokens before it: fairseq, where BART comes from."""
