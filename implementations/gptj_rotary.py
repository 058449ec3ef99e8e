"""transformers' rotary positions of GPT-J, which pair neighbours and read a table."""

from attnspec.implementations.transformers_rotary import (
    beyond_the_table,
    gptj_rotary,
    unavailable,
)
from attnspec.spec.operator import Working
from attnspec.spec.rotary import (
    AnglePrecision,
    Pairing,
    RotaryImplementation,
    RotaryProfile,
)

IMPLEMENTATION = RotaryImplementation(
    name="gptj_rotary",
    function=gptj_rotary,
    features=frozenset({"partial"}),
    profile=RotaryProfile(
        pairing=Pairing.INTERLEAVED, angles=AnglePrecision.FLOAT32, working=Working.STORAGE
    ),
    supports=beyond_the_table,
    unavailable=unavailable,
)
