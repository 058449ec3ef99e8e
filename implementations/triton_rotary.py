"""Rotary positions in Triton, one program for each head of each token."""

from attnspec.implementations.triton_rows import DTYPES, few_tokens, rotary, without_triton
from attnspec.spec.rotary import RotaryImplementation

IMPLEMENTATION = RotaryImplementation(
    name="triton_rotary",
    function=rotary,
    features=frozenset({"base"}),
    dtypes=DTYPES,
    supports=few_tokens,
    unavailable=without_triton,
)
